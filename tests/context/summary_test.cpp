// SPDX-License-Identifier: Apache-2.0
// context: the summary that VPMM_STATS=1 asks for.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>

#include "process/process_gate.hpp"
#include "settings/variable.hpp"
#include "support/hooked_world.hpp"

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

// At exit a thread may be stuck in a driver call.
TEST(Summary, is_not_waited_for_while_a_call_of_another_thread_lasts) {
  setenv("VPMM_STATS", "1", 1);
  ::testing::internal::CaptureStderr();
  std::string beside = "not called";
  bool has_met = false;
  bool has_figures = true;
  {
    HookedWorld world(page_world());
    const StreamHandle stream = world.stream();
    world.deallocate(world.allocate(1000, stream), stream);
    world.hooks.on[driver::Call::ctx_record_event] = [&] {
      if (std::exchange(has_met, true)) return driver::CuResult::success;
      world.on_another_thread([&] {
        ::testing::internal::GetCapturedStderr();
        ::testing::internal::CaptureStderr();
        world.pool->reports().summarize();
        beside = ::testing::internal::GetCapturedStderr();
        ::testing::internal::CaptureStderr();
        has_figures = world.pool->reports().try_figures().has_value();
      });
      return driver::CuResult::success;
    };
    world.deallocate(world.allocate(32 * kPage, std::nullopt), std::nullopt);
    EXPECT_TRUE(has_met);
  }
  unsetenv("VPMM_STATS");
  EXPECT_EQ(beside, "");
  EXPECT_FALSE(has_figures);
  EXPECT_EQ(::testing::internal::GetCapturedStderr().rfind("vpmm: summary of a pool", 0), 0u);
}

// A pool that lives as long as the process. Its end comes after the gate was closed.
struct PoolOfTheProcess {
  PoolOfTheProcess() { world.deallocate(world.allocate(kPage, std::nullopt), std::nullopt); }
  ~PoolOfTheProcess() {
    const std::uint64_t calls = world.calls().total_count();
    world.end();
    if (world.calls().total_count() != calls) std::fputs("the driver was called\n", stderr);
  }
  PoolWorld world{adaptive_world()};
};

TEST(Summary, of_a_pool_that_ends_after_exit_began_is_printed_once_and_no_driver_is_called) {
  using ::testing::AllOf;
  using ::testing::ContainsRegex;
  using ::testing::HasSubstr;
  using ::testing::Not;
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const settings::Variable on("VPMM_STATS", "1");
  EXPECT_EXIT(
      {
        static const PoolOfTheProcess pool;
        process::close_gate_at_exit();
        std::exit(0);
      },
      ::testing::ExitedWithCode(0),
      AllOf(HasSubstr("vpmm: summary of a pool on device 0"),
            Not(ContainsRegex("summary of a pool(.|\n)*summary of a pool")),
            Not(HasSubstr("the driver was called"))));
}

}  // namespace
}  // namespace vpmm::test
