// SPDX-License-Identifier: Apache-2.0
// context: the lines of the report after a request failed for want of memory.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "support/pool_world_arenas.hpp"
#include "support/told.hpp"

namespace vpmm::test {
namespace {

using driver::Call;
using driver::CuResult;
using testing::AllOf;
using testing::ContainsRegex;
using testing::HasSubstr;
using testing::Not;

constexpr std::uint32_t kSleeping = 61;

class ShortageReport : public ::testing::Test {
 protected:
  static WorldOptions options() {
    WorldOptions options = page_by_page_world();
    options.config.limits.capacity = 8 * kPage;
    return options;
  }
  std::string report_of(const pool::Request& request) {
    const auto made = world.pool().allocate(request);
    EXPECT_FALSE(made.ok());
    return made ? "" : made.error().message;
  }
  std::string report_of(Bytes bytes) { return report_of(pool::Request{bytes, 0, stream}); }

  PoolWorld world{options()};
  StreamHandle stream = world.stream();
};

TEST_F(ShortageReport, counts_no_suspended_memory_as_live) {
  ASSERT_TRUE(world.pool().suspension().make_suspendable(kSleeping, {false, false}).ok());
  pool::Request sleeping{2 * kPage, 0, stream};
  sleeping.tag = kSleeping;
  const auto asleep = world.pool().allocate(sleeping);
  ASSERT_TRUE(asleep.ok()) << message_of(asleep);
  context::SuspendHow how;
  how.to_driver = true;
  ASSERT_TRUE(world.pool().suspension().suspend(kSleeping, how).ok());
  world.allocate(3 * kPage, stream);
  EXPECT_THAT(
      report_of(8 * kPage),
      AllOf(HasSubstr("; live 6 MiB, free"),
            HasSubstr("\n  live       6 MiB in 1 allocation, which take 6 MiB\n"),
            HasSubstr("\n  suspended  4 MiB sleep at their addresses"), Not(HasSubstr("by tag"))));
  // Its tag's limit counts that memory.
  world.pool().limits().set_tag_limit(kSleeping, settings::Portion{5 * kMiB});
  EXPECT_THAT(report_of(sleeping),
              AllOf(HasSubstr("tag 61 has 4 MiB of its limit of 5 MiB"),
                    ContainsRegex("\n  by stream  [^\n]*: 4 MiB\n"), Not(HasSubstr("6 MiB"))));
  world.pool().limits().set_tag_limit(kSleeping, std::nullopt);
}

TEST_F(ShortageReport, counts_no_memory_of_external_arenas) {
  const AddressRange memory = user_memory(world, 4 * kPage);
  const ArenaId arena = make_arena(world, kExternal);
  add_memory(world, arena, memory);
  const DevicePtr outside = allocate_in(world, arena, 3 * kPage, stream);
  world.allocate(2 * kPage, stream);
  EXPECT_THAT(report_of(8 * kPage),
              AllOf(HasSubstr("\n  live       4 MiB in 1 allocation, which take 4 MiB\n"),
                    ContainsRegex("\n  by stream  [^\n]*: 4 MiB\n"), Not(HasSubstr(": 6 MiB"))));
  world.deallocate(outside, stream);
  world.wait();
  release(world, arena);
  free_user_memory(world, memory);
}

TEST_F(ShortageReport, names_an_alignment_beyond_a_page_only) {
  const auto with = [&](Bytes alignment) {
    return report_of(pool::Request{9 * kPage, alignment, stream});
  };
  for (const Bytes alignment : {Bytes{0}, Bytes{256}, kPage})
    EXPECT_THAT(with(alignment), Not(HasSubstr("aligned"))) << alignment;
  EXPECT_THAT(with(2 * kPage), HasSubstr("(18874368 bytes), aligned to 4 MiB on stream "));
}

TEST_F(ShortageReport, names_arena_tag_and_one_chunk) {
  const ArenaId arena = make_arena(world);
  pool::Request request{9 * kPage, 0, stream};
  EXPECT_THAT(report_of(request),
              AllOf(Not(HasSubstr(", tag")), Not(HasSubstr(", arena")), Not(HasSubstr("chunk"))));
  for (const std::uint32_t tag : {1U, 62U}) {
    request.tag = tag;
    EXPECT_THAT(report_of(request), HasSubstr(", tag " + std::to_string(tag) + "\n"));
  }
  request.tag = 0;
  request.one_chunk = true;
  EXPECT_THAT(report_of(request), HasSubstr(", in one physical chunk\n"));
  request.one_chunk = false;
  request.arena = arena;
  EXPECT_THAT(report_of(request), ContainsRegex(", arena [0-9]+\n"));
}

TEST_F(ShortageReport, lists_arenas_with_what_they_hold) {
  const ArenaId plain = make_arena(world);
  const ArenaId pinned = make_arena(world, {false, false, 63});
  allocate_in(world, plain, kPage, stream);
  const DevicePtr freed = allocate_in(world, pinned, 2 * kPage, stream);
  allocate_in(world, pinned, kPage, stream);
  pin(world, pinned);
  world.deallocate(freed, stream);
  const std::string report = report_of(8 * kPage);
  EXPECT_THAT(report, ContainsRegex("\n  arena      [0-9]+ \\(tag 0\\) holds 2 MiB, of which "
                                    "live 2 MiB\n"));
  EXPECT_THAT(report, ContainsRegex("\n  arena      [0-9]+ \\(tag 63, pinned\\) holds 6 MiB, "
                                    "of which live 2 MiB\n"));
  EXPECT_THAT(report, HasSubstr("\n  - release pinned arenas that are done with: 4 MiB in them"));
}

TEST_F(ShortageReport, says_what_the_request_would_have_taken) {
  world.allocate(5 * kPage, stream);
  EXPECT_THAT(report_of(3 * kPage + 1), HasSubstr("; 128 KiB are missing; "));
  EXPECT_THAT(report_of(5 * kPage + 1), HasSubstr("; 4160 KiB are missing; "));
  EXPECT_THAT(report_of(7 * kPage), HasSubstr("; 8 MiB are missing; "));
  EXPECT_THAT(report_of(200 * kGiB), HasSubstr("; that is more than the GPU has; "));
}

TEST_F(ShortageReport, names_free_memory_in_pages_that_are_cut_and_no_limit_that_is_far) {
  world.allocate(1000, stream);
  EXPECT_THAT(report_of(8 * kPage),
              AllOf(ContainsRegex("\n  in pages   [0-9.]+ MiB are free in pages that smaller"),
                    Not(HasSubstr("VPMM_MAX_MAPPINGS")), Not(HasSubstr("trapped"))));
}

// The middle of one chunk lives.
TEST(ShortageReportOfTrappedMemory, proposes_smaller_chunks_by_what_is_not_set_yet) {
  for (const settings::Prefer prefer : {settings::Prefer::balanced, settings::Prefer::footprint}) {
    WorldOptions options = adaptive_world();
    options.config.prefer = prefer;
    options.config.limits.capacity = 4 * kPage;
    PoolWorld world(options);
    const StreamHandle stream = world.stream();
    pool::Request whole{4 * kPage, 0, stream};
    whole.one_chunk = true;
    world.deallocate(world.pool().allocate(whole).value(), stream);
    const DevicePtr before = world.allocate(kPage, stream);
    world.allocate(kPage, stream);
    const DevicePtr behind = world.allocate(2 * kPage, stream);
    world.deallocate(before, stream);
    world.deallocate(behind, stream);
    const auto refused = world.pool().allocate({3 * kPage, 0, stream});
    ASSERT_FALSE(refused.ok());
    EXPECT_THAT(refused.error().message, HasSubstr("\n  trapped    6 MiB of what is free"));
    EXPECT_THAT(refused.error().message,
                HasSubstr(prefer == settings::Prefer::balanced
                              ? "\n  - VPMM_PREFER=footprint, or a smaller VPMM_CHUNK_MAX, down"
                              : "\n  - a smaller VPMM_CHUNK_MAX, down"));
  }
}

TEST(ShortageReportOfTheDriversPool, says_what_the_request_would_have_taken) {
  WorldOptions options = adaptive_world();
  options.sim.vmm_supported = false;
  options.sim.capacity = 64 * kMiB;
  PoolWorld world(options);
  const auto refused = world.pool().allocate({65 * kMiB, 0, world.stream()});
  expect_error(refused, ErrorCode::out_of_memory,
               {"; that is more than the GPU has; ", "\n  live       0 bytes in 0 allocations"});
}

// Largest first; during the capture no request waits for them.
TEST_F(ShortageReport, names_the_streams_that_others_wait_for) {
  const StreamHandle other = world.stream();
  const DevicePtr little = world.allocate(5 * kPage / 2, stream);
  const DevicePtr much = world.allocate(5 * kPage, other);
  world.use(little, kPage, stream, kLongNs);
  world.use(much, kPage, other, kLongNs);
  ASSERT_TRUE(world.pool().streams().capture_begin().ok());
  world.deallocate(little, stream);
  world.deallocate(much, other);
  const std::string report = report_of(pool::Request{8 * kPage, 0, std::nullopt});
  EXPECT_THAT(report, ContainsRegex("\n  pending    15 MiB of what is free is still used by work "
                                    "that was queued before; stream [^:]*: 10 MiB, stream "
                                    "[^:]*: 5 MiB\n"));
  EXPECT_THAT(report, HasSubstr(" on no stream\n"));
  ASSERT_TRUE(world.pool().streams().capture_end().ok());
}

TEST_F(ShortageReport, lists_holders_by_size) {
  const StreamHandle other = world.stream();
  world.allocate(2 * kPage, stream);
  world.allocate(3 * kPage, other);
  world.allocate(kPage, std::nullopt);
  EXPECT_THAT(report_of(3 * kPage),
              ContainsRegex("\n  by stream  stream [^:]*: 6 MiB, stream [^:]*: 4 MiB, no stream: "
                            "2 MiB\n"));
}

TEST_F(ShortageReport, has_all_lines_but_the_gpus_where_the_driver_does_not_answer) {
  world.allocate(5 * kPage, stream);
  EXPECT_THAT(report_of(4 * kPage), HasSubstr("\n  GPU        "));
  world.faults().set_plan(
      {{Call::mem_get_info}, 1, CuResult::unknown, driver::FaultPlan::Repeat::from_then_on});
  const std::string report = report_of(4 * kPage);
  world.faults().clear_plan();
  EXPECT_THAT(report, AllOf(Not(HasSubstr("\n  GPU        ")), HasSubstr("\n  live       10 MiB"),
                            HasSubstr("\n  mapped     10 MiB; the limit is 16 MiB")));
}

TEST(ShortageReportInTheLog, is_its_first_line) {
  WorldOptions options = page_world();
  options.config.limits.capacity = 2 * kPage;
  options.config.log = observe::LogLevel::info;
  const Told told;
  PoolWorld world(options);
  const auto refused = world.pool().allocate({3 * kPage, 0, world.stream()});
  ASSERT_FALSE(refused.ok());
  const std::string& text = refused.error().message;
  const std::string first = text.substr(0, text.find('\n'));
  EXPECT_THAT(told.lines(), HasSubstr(first + "\n"));
  EXPECT_THAT(told.lines(), Not(HasSubstr("what to try")));
}

// Its context breaks while the callback runs.
TEST(ShortageReportOfABrokenPool, is_the_reason_alone) {
  WorldOptions options = page_world();
  options.config.limits.capacity = 2 * kPage;
  PoolWorld world(options);
  world.pool().limits().out_of_memory_callbacks().set([&](const context::OutOfMemory&) {
    world.break_context();
    return false;
  });
  const auto refused = world.pool().allocate({3 * kPage, 0, std::nullopt});
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, ErrorCode::out_of_memory);
  EXPECT_EQ(refused.error().message, "out of device memory: 2 MiB are missing");
}

}  // namespace
}  // namespace vpmm::test
