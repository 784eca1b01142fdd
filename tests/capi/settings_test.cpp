// SPDX-License-Identifier: Apache-2.0
// capi: the settings struct: versions, defaults, and values that are refused.
#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>

#include "capi/sim_pool.hpp"

namespace vpmm::capi_test {
namespace {

// What a newer header would declare.
struct LongerConfig {
  vpmm_config known;
  std::uint64_t new_setting;
};

vpmm_status create_and_destroy(const vpmm_config& config) {
  vpmm_pool* pool = nullptr;
  const vpmm_status status = vpmm_pool_create(0, &config, &pool);
  if (status == VPMM_OK) vpmm_pool_destroy(pool);
  return status;
}

TEST(Settings, init_gives_the_documented_defaults) {
  vpmm_config config{};
  config.size = sizeof(config);
  ASSERT_EQ(vpmm_config_init(&config), VPMM_OK);
  EXPECT_EQ(config.size, sizeof(config));
  EXPECT_EQ(config.page_size, 0U);
  EXPECT_EQ(config.pages, 0U);
  EXPECT_EQ(config.va_size, std::uint64_t{8} << 40);
  EXPECT_EQ(config.chunk_max, 256 * kMiB);
  EXPECT_EQ(config.release_threshold, UINT64_MAX);
  EXPECT_EQ(config.max_mappings, 60'000U);
  EXPECT_EQ(config.capacity, UINT64_MAX);
  EXPECT_STREQ(config.small, "pool");
  EXPECT_STREQ(config.any_stream, "context");
  EXPECT_STREQ(config.prefer, "balanced");
  EXPECT_STREQ(config.log, "warning");
  EXPECT_STREQ(config.driver, "auto");
  EXPECT_EQ(config.unnamed_free_on_allocating_stream, 0);
}

TEST(Settings, come_from_the_environment) {
  setenv("VPMM_CHUNK_MAX", "page", 1);
  setenv("VPMM_PAGE_SIZE", "max", 1);
  const vpmm_config config = default_config();
  unsetenv("VPMM_CHUNK_MAX");
  unsetenv("VPMM_PAGE_SIZE");
  EXPECT_EQ(config.chunk_max, 0U);
  EXPECT_EQ(config.page_size, UINT64_MAX);
}

TEST(Settings, a_share_of_the_gpu_goes_through_the_struct) {
  setenv("VPMM_CAPACITY", "50%", 1);
  vpmm_config config = default_config();
  unsetenv("VPMM_CAPACITY");
  EXPECT_EQ(config.capacity, VPMM_SHARE_OF_GPU(50));
  config.driver = "sim";
  vpmm_pool* pool = nullptr;
  ASSERT_EQ(vpmm_pool_create(0, &config, &pool), VPMM_OK) << vpmm_last_error();
  std::uint64_t free = 0, total = 0;
  std::uint64_t capacity = 0;
  EXPECT_EQ(vpmm_get_capacity(pool, &capacity), VPMM_OK);
  EXPECT_EQ(vpmm_memory_info(pool, &free, &total), VPMM_OK);
  EXPECT_EQ(total, capacity);
  EXPECT_EQ(vpmm_set_capacity(pool, UINT64_MAX), VPMM_OK);
  EXPECT_EQ(vpmm_memory_info(pool, &free, &total), VPMM_OK);
  EXPECT_EQ(capacity, total / 2 / (2 * kMiB) * (2 * kMiB));
  EXPECT_EQ(vpmm_pool_destroy(pool), VPMM_OK);
}

TEST(Settings, a_bad_variable_is_an_error_at_first_use_that_names_it) {
  setenv("VPMM_PAGES", "many", 1);
  vpmm_config config{};
  config.size = sizeof(config);
  vpmm_pool* pool = nullptr;
  EXPECT_EQ(vpmm_config_from_environment(&config), VPMM_ERROR_BAD_CONFIGURATION);
  EXPECT_STREQ(vpmm_last_error(), "VPMM_PAGES=many: must be a number of pages, 0 or more");
  EXPECT_EQ(vpmm_pool_create(0, nullptr, &pool), VPMM_ERROR_BAD_CONFIGURATION);
  unsetenv("VPMM_PAGES");
  EXPECT_EQ(pool, nullptr);
  EXPECT_EQ(config.va_size, 0U) << "an output was written on failure";
}

TEST(Settings, a_struct_too_short_for_any_version_is_refused) {
  for (const std::size_t size : {std::size_t{0}, sizeof(std::size_t), sizeof(vpmm_config) / 2}) {
    vpmm_config config{};
    config.size = size;
    EXPECT_EQ(vpmm_config_init(&config), VPMM_ERROR_INVALID_ARGUMENT) << size;
    EXPECT_TRUE(last_error_names("vpmm_config.size")) << vpmm_last_error();
    EXPECT_EQ(create_and_destroy(config), VPMM_ERROR_INVALID_ARGUMENT) << size;
  }
}

TEST(Settings, a_longer_struct_of_a_newer_header_is_filled_with_zeros_and_accepted) {
  LongerConfig config{};
  config.known.size = sizeof(config);
  config.new_setting = 7;
  ASSERT_EQ(vpmm_config_from_environment(&config.known), VPMM_OK) << vpmm_last_error();
  EXPECT_EQ(config.known.size, sizeof(config));
  EXPECT_EQ(config.new_setting, 0U);
  EXPECT_EQ(create_and_destroy(config.known), VPMM_OK) << vpmm_last_error();
}

TEST(Settings, a_shorter_struct_of_an_older_header_leaves_newer_settings_at_their_defaults) {
  vpmm_config config{};
  config.size = offsetof(vpmm_config, prefer);
  config.prefer = "not read";
  ASSERT_EQ(vpmm_config_init(&config), VPMM_OK) << vpmm_last_error();
  EXPECT_STREQ(config.prefer, "not read");
  config.driver = "sim";
  EXPECT_EQ(create_and_destroy(config), VPMM_OK) << vpmm_last_error();
}

TEST(Settings, a_setting_that_only_a_newer_header_knows_is_not_ignored) {
  LongerConfig config{};
  config.known.size = sizeof(config);
  ASSERT_EQ(vpmm_config_from_environment(&config.known), VPMM_OK);
  config.new_setting = 7;
  EXPECT_EQ(create_and_destroy(config.known), VPMM_ERROR_UNSUPPORTED);
}

TEST(Settings, null_texts_mean_the_defaults) {
  vpmm_config config = default_config();
  config.small = nullptr;
  config.any_stream = nullptr;
  config.prefer = nullptr;
  config.log = nullptr;
  EXPECT_EQ(create_and_destroy(config), VPMM_OK) << vpmm_last_error();
}

TEST(Settings, values_that_are_not_allowed_are_refused_by_name) {
  const std::pair<std::function<void(vpmm_config&)>, std::string> cases[] = {
      {[](vpmm_config& c) { c.page_size = 3 * kMiB; },
       "VPMM_PAGE_SIZE=3MiB: must be a multiple of the device granularity"},
      {[](vpmm_config& c) { c.va_size = 0; },
       "vpmm_config.va_size is 0: call vpmm_config_init first"},
      {[](vpmm_config& c) { c.chunk_max = 5; }, "VPMM_CHUNK_MAX=5B: must be"},
      {[](vpmm_config& c) { c.max_mappings = 3; }, "VPMM_MAX_MAPPINGS=3: must be"},
      {[](vpmm_config& c) { c.capacity = 0; }, "VPMM_CAPACITY=0: must be"},
      {[](vpmm_config& c) { c.capacity = VPMM_SHARE_OF_GPU(0); }, "VPMM_CAPACITY=0: must be"},
      {[](vpmm_config& c) { c.capacity = VPMM_SHARE_OF_GPU(101); }, "VPMM_CAPACITY=101%: must be"},
      {[](vpmm_config& c) { c.small = "own"; }, "VPMM_SMALL=own: must be"},
      {[](vpmm_config& c) { c.any_stream = ""; }, "VPMM_ANY_STREAM=: must be"},
      {[](vpmm_config& c) { c.prefer = "speed"; }, "VPMM_PREFER=speed: must be"},
      {[](vpmm_config& c) { c.log = "loud"; }, "VPMM_LOG=loud: must be"},
      {[](vpmm_config& c) { c.driver = "rocm"; }, "VPMM_DRIVER=rocm: must be"},
      {[](vpmm_config& c) { c.unnamed_free_on_allocating_stream = 2; },
       "unnamed_free_on_allocating_stream=2: must be 0 or 1"},
      {[](vpmm_config& c) { c.ipc_isolate = 2; }, "VPMM_IPC_ISOLATE=2: must be 0 or 1"},
  };
  for (const auto& [change, message] : cases) {
    vpmm_config config = default_config();
    change(config);
    EXPECT_EQ(create_and_destroy(config), VPMM_ERROR_BAD_CONFIGURATION) << message;
    EXPECT_TRUE(last_error_names(message.c_str())) << vpmm_last_error();
  }
}

TEST(Settings, sizes_as_text_are_those_of_the_variables) {
  std::uint64_t bytes = 7;
  ASSERT_EQ(vpmm_parse_bytes("16GiB", &bytes), VPMM_OK) << vpmm_last_error();
  EXPECT_EQ(bytes, std::uint64_t{16} << 30);
  for (const char* text : {"64M", "", "-1", "1.5", "99999999TiB"}) {
    EXPECT_EQ(vpmm_parse_bytes(text, &bytes), VPMM_ERROR_INVALID_ARGUMENT) << text;
    EXPECT_TRUE(last_error_names(text)) << vpmm_last_error();
  }
  EXPECT_EQ(bytes, std::uint64_t{16} << 30) << "nothing is written on failure";
  EXPECT_EQ(vpmm_parse_bytes(nullptr, &bytes), VPMM_ERROR_INVALID_ARGUMENT);
}

}  // namespace
}  // namespace vpmm::capi_test
