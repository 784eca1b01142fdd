// SPDX-License-Identifier: Apache-2.0
// capi: the callback for messages, and texts of errors that come through the C ABI.
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "capi/sim_pool.hpp"

namespace vpmm::capi_test {
namespace {

using HeardMessages = std::vector<std::pair<int, std::string>>;

void hear(void* argument, int level, const char* text) {
  static_cast<HeardMessages*>(argument)->emplace_back(level, text);
}

// Opens a pool of 16 MiB that logs at `level`, and asks it for 64.
void run_short(const char* level) {
  vpmm_config config = default_config();
  config.log = level;
  config.capacity = 16 * kMiB;
  vpmm_pool* pool = nullptr;
  ASSERT_EQ(vpmm_pool_create(0, &config, &pool), VPMM_OK) << vpmm_last_error();
  void* ptr = nullptr;
  EXPECT_EQ(vpmm_allocate(pool, 64 * kMiB, nullptr, &ptr), VPMM_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(vpmm_pool_destroy(pool), VPMM_OK);
}

TEST(Messages, go_to_the_callback_with_their_level_until_it_is_taken_away) {
  HeardMessages heard;
  ASSERT_EQ(vpmm_set_log_callback(hear, &heard), VPMM_OK);
  run_short("info");
  ASSERT_EQ(heard.size(), 2U);
  EXPECT_EQ(heard[0].first, VPMM_LOG_INFO);
  EXPECT_EQ(
      heard[0].second.rfind("device 0 (Simulated GPU, 139 GiB): pool opened, limit 16 MiB; ", 0),
      0U)
      << heard[0].second;
  EXPECT_EQ(heard[1].first, VPMM_LOG_INFO);
  EXPECT_EQ(heard[1].second,
            "out of device memory: asked for 64 MiB; 48 MiB are missing; live 0 bytes, free 0 "
            "bytes, limit 16 MiB");
  ASSERT_EQ(vpmm_set_log_callback(nullptr, nullptr), VPMM_OK);
  testing::internal::CaptureStderr();
  run_short("info");
  EXPECT_EQ(heard.size(), 2U);
  EXPECT_NE(testing::internal::GetCapturedStderr().find(
                "vpmm: info: out of device memory: asked for 64 MiB; "),
            std::string::npos);
}

TEST(Messages, are_only_those_of_the_level) {
  HeardMessages heard;
  ASSERT_EQ(vpmm_set_log_callback(hear, &heard), VPMM_OK);
  run_short("warning");
  EXPECT_EQ(heard, HeardMessages{}) << "the caller has the error";
  ASSERT_EQ(vpmm_set_log_callback(nullptr, nullptr), VPMM_OK);
  EXPECT_TRUE(last_error_names("asked for 64 MiB"));
  EXPECT_TRUE(last_error_names(
      "\nwhat to try:\n  - raise VPMM_CAPACITY (vpmm_set_capacity) by 48 MiB or more"));
}

}  // namespace
}  // namespace vpmm::capi_test
