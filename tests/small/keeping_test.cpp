// SPDX-License-Identifier: Apache-2.0
// small: how much many streams may keep, to the byte.
#include <gtest/gtest.h>

#include "small/crowd.hpp"
#include "small/stream_cache.hpp"

namespace vpmm::test {
namespace {

using driver::CuResult;

// Of what is live and cached, less a unit of each cache, one stream may keep half: here 70 streams
// keep a unit each, and with the caches of them and of no stream the half is `kKept`, or a half
// unit less.
TEST(KeptOfMany, half_of_what_is_live_may_be_of_one_stream_and_not_a_unit_more) {
  constexpr Bytes kKept = 4 * kMiB;
  for (const bool is_enough : {true, false}) {
    SCOPED_TRACE(is_enough);
    Crowd crowd(70);
    const DevicePtr rest = crowd.take(kKept, std::nullopt);
    crowd.give(crowd.take(64 * kPage, std::nullopt), std::nullopt);
    crowd.world.wait();  // so that memory is idle, and no call takes any from a cache
    for (int i = 0; i < 4; ++i) crowd.round(kKiB);
    ASSERT_EQ(crowd.kept(), 70 * small::kUnit);
    const DevicePtr unit = is_enough ? crowd.take(small::kUnit, crowd.streams[1]) : DevicePtr{};
    crowd.pair(kKept, crowd.streams[2]);
    const Bytes expected = 70 * small::kUnit + (is_enough ? kKept : 0);
    EXPECT_EQ(crowd.kept(), expected);
    crowd.pair(9 * kPage, crowd.streams[3]);
    EXPECT_EQ(crowd.kept(), expected)
        << "a call through the lock takes back no more than it has to";
    if (is_enough) crowd.give(unit, crowd.streams[1]);
    crowd.give(rest, std::nullopt);
  }
}

// A cache of each stream that is gone would be counted as if it kept a unit.
TEST(KeptOfMany, streams_that_are_gone_count_no_more) {
  Crowd crowd(70);
  const DevicePtr rest = crowd.take(64 * kMiB, std::nullopt);
  for (int i = 0; i < 4000; ++i) {
    const StreamHandle stream = crowd.world.stream();
    crowd.pair(kKiB, stream);
    ASSERT_EQ(crowd.world.sim().stream_destroy(stream), CuResult::success);
    if (i % 16 == 0) crowd.world.sim().advance_host_ns(1'000'000);
  }
  ASSERT_LE(crowd.world.statistics().timelines, 400u);
  for (int i = 0; i < 2; ++i) crowd.round(kKiB);
  std::vector<DevicePtr> live;
  for (int i = 0; i < 12; ++i) live.push_back(crowd.take(4 * kMiB, crowd.streams[0]));
  for (const DevicePtr ptr : live) crowd.give(ptr, crowd.streams[0]);
  EXPECT_GE(crowd.kept(), 6 * 4 * kMiB) << "each second free asks for more";
  crowd.give(rest, std::nullopt);
}

// The stream asked for twice as much as it might keep, and frees nothing when there is room.
TEST(KeptOfMany, what_a_stream_was_refused_once_is_not_kept_free_for_it) {
  constexpr Bytes kPiece = 8 * kMiB;
  Crowd crowd(70);
  crowd.give(crowd.take(300 * kPage, std::nullopt), std::nullopt);
  crowd.world.wait();
  for (int i = 0; i < 4; ++i) crowd.round(kKiB);
  crowd.pair(kPiece, crowd.streams[1]);
  ASSERT_EQ(crowd.kept(), 70 * small::kUnit);
  const DevicePtr rest = crowd.take(8 * kPiece + kPage, std::nullopt);
  crowd.pair(9 * kPage, crowd.streams[1]);
  std::vector<DevicePtr> live;
  for (int i = 0; i < 16; ++i) live.push_back(crowd.take(kPiece, crowd.streams[2]));
  for (const DevicePtr ptr : live) crowd.give(ptr, crowd.streams[2]);
  EXPECT_GE(crowd.kept(), 8 * kPiece) << "half of what is live and cached, by one";
  crowd.give(rest, std::nullopt);
}

// Beside the unit that it keeps, the stream may keep no slab of these blocks.
TEST(KeptOfMany, a_block_whose_slab_stays_in_use_is_freed_warm) {
  constexpr Bytes kBlock = 5000;
  Crowd crowd(70);
  for (int i = 0; i < 4; ++i) crowd.round(kKiB);
  const StreamHandle stream = crowd.streams[1];
  const DevicePtr first = crowd.take(kBlock, stream), second = crowd.take(kBlock, stream);
  const DevicePtr unit = crowd.take(kKiB, stream);
  const DevicePtr third = crowd.take(kBlock, stream);
  crowd.give(unit, stream);
  const auto calls_of_free = [&](DevicePtr ptr) {
    const std::uint64_t before = crowd.calls_through_the_lock();
    crowd.give(ptr, stream);
    return crowd.calls_through_the_lock() - before;
  };
  EXPECT_EQ(calls_of_free(first), 0u);
  EXPECT_EQ(calls_of_free(second), 0u);
  EXPECT_GT(calls_of_free(third), 0u) << "the last";
}

// A page is cut by the stream that asks first, and used by others when that one is gone.
TEST(StreamsThatCutPages, are_forgotten_while_others_use_their_pages) {
  Crowd crowd(1, page_by_page_world());
  std::vector<DevicePtr> live;
  for (int i = 0; i < 150; ++i) {
    const StreamHandle stream = crowd.world.stream();
    const DevicePtr first = crowd.take(kPage / 2, stream);
    live.push_back(crowd.take(kPage / 2, crowd.streams[0]));
    ASSERT_EQ(live.back(), first + kPage / 2);
    crowd.give(first, stream);
    crowd.world.wait();
    live.push_back(crowd.take(kPage / 2, crowd.streams[0]));
    ASSERT_EQ(live.back(), first);
    ASSERT_EQ(crowd.world.sim().stream_destroy(stream), CuResult::success);
    crowd.world.sim().advance_host_ns(1'000'000);
  }
  for (Bytes pages = 9; pages < 30; ++pages) crowd.pair(pages * kPage, crowd.streams[0]);
  EXPECT_LE(crowd.world.statistics().timelines, 64u);
  for (const DevicePtr ptr : live) crowd.give(ptr, crowd.streams[0]);
}

}  // namespace
}  // namespace vpmm::test
