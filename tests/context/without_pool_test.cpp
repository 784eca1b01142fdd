// SPDX-License-Identifier: Apache-2.0
// context: what a device without the virtual memory pool maps ahead, and tells of a shortage.
#include <gtest/gtest.h>
#include <stdlib.h>

#include <optional>
#include <string>

#include "support/pool_world_words.hpp"

namespace vpmm::test {
namespace {

// For children of the process: a variable of the environment.
class MappedAhead : public ::testing::Test {
 protected:
  static constexpr const char* kName = "VPMM_PAGES_PID";
  MappedAhead() {
    if (const char* const text = ::getenv(kName)) before_ = text;
    ::unsetenv(kName);
  }
  ~MappedAhead() override {
    ::unsetenv(kName);
    if (before_) ::setenv(kName, before_->c_str(), 1);
  }
  MappedAhead(const MappedAhead&) = delete;
  MappedAhead& operator=(const MappedAhead&) = delete;

 private:
  std::optional<std::string> before_;
};

TEST_F(MappedAhead, is_noted_by_a_pool_that_maps_pages_ahead) {
  struct Case {
    bool has_pool;
    std::uint64_t pages;
    bool is_noted;
  };
  for (const Case& each : {Case{false, 4, false}, Case{true, 0, false}, Case{true, 4, true}}) {
    WorldOptions options = page_by_page_world();
    options.config.pool_enabled = each.has_pool;
    options.config.pages = each.pages;
    PoolWorld world(options);
    EXPECT_EQ(::getenv(kName), nullptr);
    world.allocate(3 * kPage, world.stream());
    EXPECT_EQ(::getenv(kName) != nullptr, each.is_noted) << each.has_pool << each.pages;
    if (each.is_noted) {
      EXPECT_GE(world.statistics().mapped_bytes, each.pages * kPage);
    }
  }
}

TEST(WithoutPool, a_shortage_tells_exactly_what_is_missing) {
  WorldOptions options = adaptive_world();
  options.config.pool_enabled = false;
  options.config.limits.capacity = 8 * kPage;
  PoolWorld world(options);
  const StreamHandle stream = world.stream();
  expect_error(world.pool().allocate({20 * kPage, 0, stream}), ErrorCode::out_of_memory,
               {"asked for 40 MiB; 24 MiB are missing; live 0 bytes, free 0 bytes, limit 16 MiB"});
}

}  // namespace
}  // namespace vpmm::test
