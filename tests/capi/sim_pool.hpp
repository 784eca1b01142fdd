// SPDX-License-Identifier: Apache-2.0
// capi tests: a private pool on the simulator for each test.
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <string>

#include "vpmm/vpmm.h"

namespace vpmm::capi_test {

constexpr std::size_t kMiB = std::size_t{1} << 20;

inline void* plus(void* ptr, std::size_t bytes) { return static_cast<char*>(ptr) + bytes; }

inline vpmm_config default_config() {
  vpmm_config config{};
  config.size = sizeof(config);
  EXPECT_EQ(vpmm_config_from_environment(&config), VPMM_OK) << vpmm_last_error();
  return config;
}

inline vpmm_statistics statistics_of(vpmm_pool* pool) {
  vpmm_statistics statistics{};
  statistics.size = sizeof(statistics);
  EXPECT_EQ(vpmm_get_statistics(pool, &statistics), VPMM_OK) << vpmm_last_error();
  return statistics;
}

// The block that begins there, as the layout has it.
inline vpmm_block block_at(vpmm_pool* pool, const void* ptr) {
  vpmm_layout layout{};
  layout.size = sizeof(layout);
  EXPECT_EQ(vpmm_layout_take(pool, &layout), VPMM_OK) << vpmm_last_error();
  vpmm_block found{};
  for (std::size_t i = 0; i < layout.block_count; ++i)
    if (layout.blocks[i].begin == ptr) found = layout.blocks[i];
  vpmm_layout_release(&layout);
  EXPECT_EQ(found.begin, ptr);
  return found;
}

inline bool last_error_names(const char* words) {
  return std::strstr(vpmm_last_error(), words) != nullptr;
}

// With a pool that ends with the test.
class SimPool : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_EQ(vpmm_pool_create(0, nullptr, &pool_), VPMM_OK) << vpmm_last_error();
  }
  void TearDown() override { EXPECT_EQ(vpmm_pool_destroy(pool_), VPMM_OK) << vpmm_last_error(); }

  void* allocate(std::size_t bytes) {
    void* ptr = nullptr;
    EXPECT_EQ(vpmm_allocate(pool_, bytes, nullptr, &ptr), VPMM_OK) << vpmm_last_error();
    return ptr;
  }

  vpmm_pool* pool_ = nullptr;
};

}  // namespace vpmm::capi_test
