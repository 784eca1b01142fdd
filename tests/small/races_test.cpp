// SPDX-License-Identifier: Apache-2.0
// small: what other threads do between two looks of a call at the same memory.
#include <algorithm>
#include <functional>
#include <optional>

#include "small/small_world.hpp"
#include "support/held.hpp"

namespace vpmm::test {
namespace {

constexpr std::chrono::seconds kLong{20};

class Races : public SmallTest {
 protected:
  // Says whether the call succeeded, or failed because nothing live is there.
  static bool succeeds(const Result<void>& result) {
    if (!result) {
      EXPECT_EQ(result.error().code, ErrorCode::invalid_pointer) << result.error().message;
    }
    return result.ok();
  }
  void expect_apart(std::vector<AddressRange> ranges) {
    std::sort(ranges.begin(), ranges.end(), [](auto& x, auto& y) { return x.begin < y.begin; });
    for (std::size_t i = 1; i < ranges.size(); ++i)
      EXPECT_LE(ranges[i - 1].end(), ranges[i].begin)
          << "handed out twice: " << hex(ranges[i].begin);
  }
};

TEST_P(Races, of_two_frees_of_one_allocation_at_once_one_is_a_mistake_and_changes_nothing) {
  for (const Bytes bytes : kSizes)
    for (const pool::Stream slow : {pool::Stream(b), pool::Stream()}) {
      SCOPED_TRACE(bytes);
      warm(bytes, a);
      const DevicePtr ptr = world.allocate(bytes, a);
      const std::uint64_t mistakes = world.statistics().caller_mistakes;
      bool is_other_ok = false;
      Held held("a free holds the pool's lock, nothing has ended",
                [&] { is_other_ok = succeeds(world.pool().deallocate(ptr, a)); });
      const bool is_ok = succeeds(world.pool().deallocate(ptr, slow));
      ASSERT_TRUE(held.end());
      EXPECT_NE(is_ok, is_other_ok);
      EXPECT_EQ(world.statistics().caller_mistakes, mistakes + 1);
      EXPECT_EQ(world.statistics().live_allocations, 0u);
      EXPECT_EQ(world.pool().reports().validate(), "");
      std::vector<AddressRange> next;
      for (int i = 0; i < 3; ++i) next.push_back({world.allocate(bytes, a), bytes});
      expect_apart(next);
      world.wait();
      for (const AddressRange& range : next) world.deallocate(range.begin, a);
    }
}

TEST_P(Races, a_deferred_free_beside_another_of_the_same_allocation_is_a_mistake) {
  for (const Bytes bytes : kSizes) {
    SCOPED_TRACE(bytes);
    warm(bytes, a);
    const DevicePtr ptr = world.allocate(bytes, a);
    const std::uint64_t mistakes = world.statistics().caller_mistakes;
    bool is_other_ok = false;
    world.pool().deallocate_deferred(ptr);
    Held held("a free holds the pool's lock, nothing has ended",
              [&] { is_other_ok = succeeds(world.pool().deallocate(ptr, a)); });
    world.wait();
    ASSERT_TRUE(held.end());
    EXPECT_EQ(world.statistics().caller_mistakes, mistakes + 1);
    EXPECT_EQ(world.statistics().live_allocations, 0u);
    EXPECT_EQ(world.pool().reports().validate(), "");
  }
}

TEST_P(Races, a_use_of_what_is_freed_at_the_same_time_is_a_mistake_and_leaves_no_mark) {
  for (const Bytes bytes : kSizes) {
    if (GetParam() && bytes >= kPage)
      continue;  // such pages are never freed without the pool's lock
    SCOPED_TRACE(bytes);
    warm(bytes, a);
    const DevicePtr ptr = world.allocate(bytes, a);
    Held held("what is used elsewhere was found",
              [&] { EXPECT_TRUE(world.pool().deallocate(ptr, a).ok()); });
    EXPECT_FALSE(succeeds(world.pool().record_use(ptr, b)));
    ASSERT_TRUE(held.end());
    const DevicePtr next = world.allocate(bytes, a);
    EXPECT_EQ(next, ptr);
    world.deallocate(next, a);
    EXPECT_EQ(world.allocate(bytes, a), ptr) << "it was cached, so nobody else used it";
    world.deallocate(ptr, a);
  }
}

TEST_P(Races, what_is_freed_while_it_is_shared_is_not_shared) {
  for (const Bytes bytes : kSizes) {
    if (GetParam() && bytes >= kPage) continue;
    SCOPED_TRACE(bytes);
    warm(bytes, a);
    const DevicePtr ptr = world.allocate(bytes, a);
    Held held("what is to be shared was found",
              [&] { EXPECT_TRUE(world.pool().deallocate(ptr, a).ok()); });
    expect_error(world.pool().sharing().share({ptr, bytes}), ErrorCode::invalid_pointer,
                 {hex(ptr)});
    ASSERT_TRUE(held.end());
    EXPECT_EQ(world.allocate(bytes, a), ptr);
    world.deallocate(ptr, a);
  }
}

TEST_P(Races, a_query_of_a_dead_address_does_not_answer_for_what_its_slab_became_meanwhile) {
  constexpr Bytes kTwoInAUnit = 8 * kKiB;
  const DevicePtr live = world.allocate(kTwoInAUnit, a);
  const DevicePtr dead = world.allocate(kTwoInAUnit, a);
  ASSERT_EQ(dead, live + kTwoInAUnit) << "the two fill a slab";
  const DevicePtr other = world.allocate(kTwoInAUnit, a);
  world.allocate(kTwoInAUnit, a);
  world.deallocate(dead, a);
  Held held("whose an address is was read, what is there was not", [&] {
    EXPECT_TRUE(world.pool().deallocate(live, a).ok());
    EXPECT_TRUE(world.pool().deallocate(other, a).ok());  // this ends the slab of the first
    for (int i = 0; i < 2; ++i) EXPECT_TRUE(world.pool().allocate({kTwoInAUnit / 2, 0, a}).ok());
  });
  const auto info = world.pool().query(dead);
  EXPECT_TRUE(held.end());
  EXPECT_TRUE(held.is_over());
  EXPECT_FALSE(info.ok()) << "told to be in " << hex(info.value().begin);
}

// A page goes back, and an allocation has it, between two looks at who owns it.
TEST_P(Races, a_free_of_a_dead_address_in_a_page_that_is_cut_no_more_is_a_mistake) {
  for (const Bytes bytes : {Bytes{5000}, 200 * kKiB}) {
    SCOPED_TRACE(bytes);
    const DevicePtr live = world.allocate(100 * kKiB, a);
    const DevicePtr dead = world.allocate(bytes, a);
    for (const DevicePtr ptr : {dead, live}) world.deallocate(ptr, a);
    DevicePtr page{};
    Held held(
        "the owner of a page was read, the word beside it was not",
        [&] {
          ASSERT_TRUE(world.pool().limits().trim(0).ok());
          page = world.allocate(kPage, a);
        },
        kLong);
    EXPECT_FALSE(succeeds(world.pool().deallocate(dead, a)));
    ASSERT_TRUE(held.end());
    EXPECT_TRUE(held.is_over());
    EXPECT_LT(dead - page, kPage) << "where the other was";
    world.deallocate(page, a);
    world.wait();
    ASSERT_TRUE(world.pool().limits().trim(0).ok());
  }
}

// Holds a warm free of one stream while it has that stream's lock.
TEST_P(Races, a_free_by_another_stream_waits_for_no_stream_but_that_of_the_allocation) {
  const StreamHandle c = world.stream();
  warm(5000, c);
  warm(5000, b);
  const DevicePtr of_c = world.allocate(5000, c);
  const DevicePtr first = world.allocate(5000, a);
  const DevicePtr second = world.allocate(5000, a);
  Held held(
      "the number of a free is read",
      [&] {
        EXPECT_TRUE(world.pool().deallocate(first, b).ok());
        world.pool().deallocate_deferred(second);
        EXPECT_TRUE(world.pool().allocate({5 * kPage, 0, std::nullopt}).ok());  // carries it out
      },
      kLong);
  EXPECT_TRUE(world.pool().deallocate(of_c, c).ok());
  EXPECT_TRUE(held.is_over())
      << "they waited for the lock of a stream that they have nothing to do with";
  EXPECT_TRUE(held.end());
}

TEST_P(Races, figures_are_told_while_a_call_has_the_lock_of_a_stream) {
  warm(5000, a);
  const DevicePtr block = world.allocate(5000, a);
  observe::Statistics meanwhile;
  Held held(
      "the number of a free is read", [&] { meanwhile = world.statistics(); }, kLong);
  EXPECT_TRUE(world.pool().deallocate(block, a).ok());
  EXPECT_TRUE(held.is_over()) << "they waited for the lock of a stream";
  EXPECT_TRUE(held.end());
  EXPECT_EQ(meanwhile.allocations, 3u);
  EXPECT_EQ(meanwhile.peak_live_bytes, 5000u);
}

class CrossingRaces : public Races {};

// Of a stream: a segment F, another stream's page, a segment E whose last unit is a slab, and then
// new pages. While a call looks for the segment in front of the new pages, the slab leaves E, and
// its record serves in F.
TEST_P(CrossingRaces,
       new_pages_become_part_of_the_segment_in_front_of_them_whatever_is_cut_meanwhile) {
  constexpr Bytes kUnit = small::kUnit;
  constexpr Bytes kRun = kPage - 8 * kUnit;
  const DevicePtr in_f = world.allocate(kRun, a);
  const DevicePtr others = world.allocate(kRun, b);
  const DevicePtr in_e = world.allocate(kRun, a);
  ASSERT_EQ(others, in_f + kPage);
  ASSERT_EQ(in_e, others + kPage);
  std::vector<DevicePtr> blocks;  // a slab each
  for (int i = 0; i < 16; ++i) blocks.push_back(world.allocate(kUnit, a));
  std::sort(blocks.begin(), blocks.end());
  ASSERT_EQ(blocks[0], in_f + kRun);
  ASSERT_EQ(blocks[15], in_e + kPage - kUnit);
  for (const auto i : {0U, 1U, 3U}) world.deallocate(blocks[i], a);  // two are units again
  std::optional<DevicePtr> cut;
  Held held("whose a unit is was read, its segment was not", [&] {
    EXPECT_TRUE(world.pool().deallocate(blocks[15], a).ok());
    EXPECT_TRUE(world.pool().deallocate(blocks[5], a).ok());  // ends the slab of the one before
    const auto made = world.pool().allocate({kUnit + 1, 0, a});
    EXPECT_TRUE(made.ok());
    if (made) cut = made.value();
  });
  const auto span = world.pool().allocate({kRun, 0, a});
  EXPECT_TRUE(held.end()) << "nothing was cut meanwhile";
  ASSERT_TRUE(span.ok() && cut);
  EXPECT_EQ(*cut, blocks[0]) << "in F";
  EXPECT_EQ(world.pool().reports().validate(), "");
  std::vector<AddressRange> live{
      {in_f, kRun}, {others, kRun}, {in_e, kRun}, {span.value(), kRun}, {*cut, kUnit + 1}};
  for (int i = 0; i < 8; ++i) live.push_back({world.allocate(kRun, a), kRun});
  expect_apart(live);
}

INSTANTIATE_TEST_SUITE_P(Policies, Races, ::testing::Bool(), name_of_policy);
INSTANTIATE_TEST_SUITE_P(Policies, CrossingRaces, ::testing::Values(false), name_of_policy);

}  // namespace
}  // namespace vpmm::test
