// context: the summary that VPMM_STATS=1 asks for.
#include <gtest/gtest.h>

#include <cstdlib>
#include <memory>
#include <string>

#include "support/pool_world_words.hpp"

namespace vpmm::test {
namespace {

// What a pool prints that lives as long as `use` takes.
template <typename Use>
std::string printed(Use&& use) {
  ::testing::internal::CaptureStderr();
  {
    PoolWorld world(adaptive_world());
    use(world);
  }
  return ::testing::internal::GetCapturedStderr();
}

TEST(Summary, is_printed_at_the_end_of_a_pool_that_was_used_where_the_variable_says_so) {
  const auto use = [](PoolWorld& world) { world.allocate(3 * kPage, world.stream()); };
  EXPECT_EQ(printed(use), "");
  setenv("VPMM_STATS", "1", 1);
  const std::string text = printed(use);
  EXPECT_EQ(printed([](PoolWorld&) {}), "") << "nobody asked it for anything";
  unsetenv("VPMM_STATS");
  EXPECT_EQ(text.rfind("vpmm: summary of a pool on device 0\n  live      6 MiB at most", 0), 0u)
      << text;
}

}  // namespace
}  // namespace vpmm::test
