// SPDX-License-Identifier: Apache-2.0
// capi: versions, statuses and error messages.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <set>
#include <string>
#include <thread>

#include "capi/sim_pool.hpp"

namespace vpmm::capi_test {
namespace {

TEST(Version, is_that_of_the_header) {
  EXPECT_EQ(vpmm_version(),
            fmt::format("{}.{}.{}", VPMM_VERSION_MAJOR, VPMM_VERSION_MINOR, VPMM_VERSION_PATCH));
}

TEST(StatusString, names_every_status_differently) {
  std::set<std::string> names;
  for (int status = VPMM_OK; status <= VPMM_ERROR_SUSPENDED; ++status) {
    names.insert(vpmm_status_string(static_cast<vpmm_status>(status)));
  }
  EXPECT_EQ(names.size(), static_cast<std::size_t>(VPMM_ERROR_SUSPENDED) + 1);
  EXPECT_STREQ(vpmm_status_string(VPMM_OK), "ok");
  EXPECT_STREQ(vpmm_status_string(VPMM_WOULD_BLOCK), "would block");
#if !defined(__SANITIZE_ADDRESS__)  // comes with that of undefined behaviour, which C++ calls it
  for (const int number : {16, 17, 1000}) {
    vpmm_status none{};
    std::memcpy(&none, &number, sizeof none);
    EXPECT_STREQ(vpmm_status_string(none), "unknown error") << number;
  }
#endif
}

TEST(LastError, names_the_parameter_that_is_null) {
  EXPECT_EQ(vpmm_allocate(nullptr, 1, nullptr, nullptr), VPMM_ERROR_INVALID_ARGUMENT);
  EXPECT_STREQ(vpmm_last_error(), "`pool` is null");
  EXPECT_EQ(vpmm_default_pool(0, nullptr), VPMM_ERROR_INVALID_ARGUMENT);
  EXPECT_STREQ(vpmm_last_error(), "`pool` is null");
  EXPECT_EQ(vpmm_device_count(nullptr), VPMM_ERROR_INVALID_ARGUMENT);
  EXPECT_STREQ(vpmm_last_error(), "`count` is null");
  EXPECT_EQ(vpmm_config_init(nullptr), VPMM_ERROR_INVALID_ARGUMENT);
  EXPECT_STREQ(vpmm_last_error(), "`config` is null");
}

TEST(LastError, belongs_to_the_thread) {
  ASSERT_EQ(vpmm_config_init(nullptr), VPMM_ERROR_INVALID_ARGUMENT);
  std::string in_new_thread = "not asked";
  std::thread([&] { in_new_thread = vpmm_last_error(); }).join();
  EXPECT_EQ(in_new_thread, "");
  EXPECT_STREQ(vpmm_last_error(), "`config` is null");
}

TEST_F(SimPool, refuses_null_for_every_required_output) {
  EXPECT_EQ(vpmm_allocate(pool_, 1, nullptr, nullptr), VPMM_ERROR_INVALID_ARGUMENT);
  EXPECT_EQ(vpmm_allocate_any_stream(pool_, 1, 0, nullptr), VPMM_ERROR_INVALID_ARGUMENT);
  EXPECT_EQ(vpmm_query(pool_, nullptr, nullptr), VPMM_ERROR_INVALID_ARGUMENT);
  EXPECT_EQ(vpmm_usable_size(pool_, nullptr, nullptr), VPMM_ERROR_INVALID_ARGUMENT);
  EXPECT_EQ(vpmm_pool_device(pool_, nullptr), VPMM_ERROR_INVALID_ARGUMENT);
  EXPECT_EQ(vpmm_memory_info(pool_, nullptr, nullptr), VPMM_ERROR_INVALID_ARGUMENT);
  EXPECT_EQ(vpmm_get_statistics(pool_, nullptr), VPMM_ERROR_INVALID_ARGUMENT);
  EXPECT_EQ(vpmm_snapshot(pool_, nullptr, 0, nullptr), VPMM_ERROR_INVALID_ARGUMENT);
  EXPECT_EQ(vpmm_dump_text(pool_, nullptr), VPMM_ERROR_INVALID_ARGUMENT);
  EXPECT_EQ(vpmm_dump_json(pool_, nullptr), VPMM_ERROR_INVALID_ARGUMENT);
  EXPECT_EQ(vpmm_record_start(pool_, nullptr), VPMM_ERROR_INVALID_ARGUMENT);
  std::size_t count = 0;
  EXPECT_EQ(vpmm_snapshot(pool_, nullptr, 4, &count), VPMM_ERROR_INVALID_ARGUMENT);
  EXPECT_EQ(statistics_of(pool_).live_allocations, 0U);
}

TEST_F(SimPool, names_the_argument_that_it_refuses) {
  void* ptr = nullptr;
  auto* const no_stream = reinterpret_cast<vpmm_stream>(std::uintptr_t{0x7357});
  EXPECT_EQ(vpmm_allocate(pool_, 1, no_stream, &ptr), VPMM_ERROR_INVALID_ARGUMENT);
  EXPECT_NE(std::string(vpmm_last_error()).find("`stream` 0x7357"), std::string::npos)
      << vpmm_last_error();
  EXPECT_EQ(ptr, nullptr);
  EXPECT_EQ(vpmm_record_start(pool_, ""), VPMM_ERROR_INVALID_ARGUMENT);
  EXPECT_STREQ(vpmm_last_error(), "`path` is empty");
  ASSERT_EQ(vpmm_set_capacity(pool_, std::uint64_t{1} << 30), VPMM_OK);
  EXPECT_EQ(vpmm_preallocate(pool_, std::size_t{1} << 40), VPMM_ERROR_OUT_OF_MEMORY);
  EXPECT_NE(std::string(vpmm_last_error()).find("asked to map 1 TiB in all"), std::string::npos)
      << vpmm_last_error();
  EXPECT_NE(std::string(vpmm_last_error()).find("the limit is 1 GiB"), std::string::npos)
      << vpmm_last_error();
  EXPECT_EQ(statistics_of(pool_).live_allocations, 0U);
  EXPECT_EQ(statistics_of(pool_).mapped_bytes, 0U);
}

}  // namespace
}  // namespace vpmm::capi_test
