// SPDX-License-Identifier: Apache-2.0
// pool: memory that goes back, is told of, or is lost between two places for a while.
#include "pool/reclaimer.hpp"

#include <algorithm>
#include <string>
#include <vector>

#include "pool/pool_calls.hpp"

namespace vpmm::pool {
namespace {

TEST_F(PoolCalls, a_call_unmaps_sixteen_old_mappings_at_most) {
  open();
  every_other_of(40);
  take(20, a);
  ASSERT_EQ(figures().zombie_bytes, 20 * kPage);
  pool->hold_cleanup(true);
  ASSERT_TRUE(pool->settle(lock).ok());
  EXPECT_EQ(figures().zombie_bytes, 20 * kPage) << "the user asked for no pauses";
  pool->hold_cleanup(false);
  ASSERT_TRUE(pool->settle(lock).ok());
  EXPECT_EQ(figures().zombie_bytes, 4 * kPage);
  ASSERT_TRUE(pool->settle(lock).ok());
  EXPECT_EQ(figures().zombie_bytes, 0u);
}

TEST_F(PoolCalls, a_call_unmaps_sixteen_old_mappings_of_one_range_at_most) {
  open();
  const DevicePtr large = take(20, a);
  take(1, a);
  give_back(large);
  take(21, a);
  ASSERT_EQ(picture(), "[~20][1][21]");
  ASSERT_TRUE(pool->settle(lock).ok());
  EXPECT_EQ(picture(), "[*16][~4][1][21]");
}

TEST_F(PoolCalls, an_old_mapping_that_the_driver_does_not_unmap_stays_and_is_tried_again) {
  open();
  every_other_of(4);
  take(2, a);
  driver.on[Call::mem_unmap] = [] { return CuResult::unknown; };
  EXPECT_TRUE(pool->settle(lock).ok());
  EXPECT_EQ(figures().zombie_bytes, 2 * kPage);
  EXPECT_EQ(figures().quarantined_bytes, 2 * kPage);
  driver.on[Call::mem_unmap] = [] { return CuResult::illegal_address; };
  const Result<void> broken = pool->settle(lock);
  EXPECT_TRUE(!broken && broken.error().code == ErrorCode::poisoned);
  driver.on.clear();
  EXPECT_TRUE(pool->settle(lock).ok());
  EXPECT_EQ(figures().zombie_bytes + figures().quarantined_bytes, 0u);
}

TEST_F(PoolCalls, a_trim_gives_back_what_is_too_much_and_no_more) {
  open();
  take(1, a);
  give_back(take(10, a));
  EXPECT_EQ(trimmed_to(20) + trimmed_to(11), 0u);
  EXPECT_EQ(trimmed_to(7), 4u);
  EXPECT_EQ(driver.counts[Call::mem_unmap], 1u) << "side by side, they are unmapped at once";
  EXPECT_EQ(figures().mapped_bytes, 7 * kPage);
  EXPECT_EQ(figures().chunks_released, 4u);
  EXPECT_EQ(trimmed_to(0), 6u) << "the rest is in use";
}

TEST_F(PoolCalls, a_trim_keeps_chunks_that_work_still_uses_at_an_old_address) {
  open();
  const DevicePtr first = take(1, a);
  take(1, a);
  const DevicePtr second = take(1, a);
  take(1, a);
  for (const DevicePtr ptr : {first, second}) give_back_pending(ptr, a, Closed::no);
  const DevicePtr moved = take(2, a);
  give_back(moved);
  EXPECT_EQ(trimmed_to(0), 0u);
  EXPECT_EQ(figures().mapped_bytes, 4 * kPage);
  EXPECT_EQ(pool->memory().validate(), "");
  see_done();
  EXPECT_EQ(trimmed_to(0), 2u);
}

TEST_F(PoolCalls, a_trim_has_the_streams_prove_their_work) {
  open();
  give_back_pending(take(1, a), a, Closed::no);
  give_back_pending(take(1, b), b, Closed::yes);
  EXPECT_EQ(trimmed_to(0), 0u) << "the work goes on";
  EXPECT_TRUE(a.timeline->wanted);
  EXPECT_FALSE(b.timeline->wanted) << "an event stands for it";
}

TEST_F(PoolCalls, memory_that_the_driver_does_not_unmap_stays_free) {
  open();
  give_back(take(3, a));
  driver.on[Call::mem_unmap] = [] { return CuResult::unknown; };
  EXPECT_FALSE(pool->trim(lock, 0).ok());
  driver.on.clear();
  EXPECT_EQ(picture(), "[-3]");
  EXPECT_EQ(pool->memory().validate(), "");
  take(3, a);
  EXPECT_EQ(figures().chunks_created, 3u);
}

// Where chunks are, and why they leave.
class Fates : public MappingObserver {
 public:
  void on_map(AddressRange chunk, DevicePtr before) noexcept override {
    text += is_null(before) ? "new " : "moved ";
    bytes += chunk.size;
  }
  void on_unmap(AddressRange chunk, Fate fate) noexcept override {
    text += fate == Fate::given_back ? "given_back " : "lives_on ";
    bytes -= chunk.size;
  }
  std::string text;
  Bytes bytes = 0;
};

TEST_F(PoolCalls, an_observer_learns_whether_a_chunk_that_leaves_its_place_lives_on) {
  open();
  Fates fates;
  pool->set_mapping_observer(&fates);
  give_back(take(1, a));
  trimmed_to(0);
  EXPECT_EQ(fates.text, "new given_back ");
  give_back(take(1, a));
  driver.on[Call::mem_release] = [] { return CuResult::unknown; };
  trimmed_to(0);
  EXPECT_EQ(fates.text, "new given_back new lives_on ") << "the driver did not take it";
  EXPECT_EQ(fates.bytes, 0u);
  ASSERT_TRUE(pool->settle(lock).ok());
  EXPECT_EQ(figures().quarantined_bytes, kPage) << "nor the second time";
  driver.on.clear();
  ASSERT_TRUE(pool->settle(lock).ok());
  EXPECT_EQ(figures().quarantined_bytes, 0u);
  pool->set_mapping_observer(nullptr);
}

TEST_F(PoolCalls, only_as_much_is_given_back_for_one_chunk_as_it_lacks) {
  config.limits.capacity = 40 * kPage;
  open();
  every_other_of(37);
  const Result<bool> has_room = pool->make_room(lock, request(10));
  EXPECT_TRUE(has_room && has_room.value());
  EXPECT_EQ(figures().chunks_released, 7u) << "three more may be created";
  const Result<bool> again = pool->make_room(lock, request(10));
  EXPECT_TRUE(again && !again.value()) << "there is room";
  pool->set_capacity(28 * kPage);
  EXPECT_TRUE(pool->make_room(lock, request(1)).ok());
  EXPECT_EQ(figures().mapped_bytes, 27 * kPage) << "a limit that was lowered holds, too";
}

TEST_F(PoolCalls, idle_memory_gives_way_to_a_request_that_it_cannot_serve) {
  config.page_chunks = false;
  config.chunk_max = kPage;
  open();
  every_other_of(40);
  PageRequest one = request(10);
  one.chunks = Chunks::one;
  pool->hold_cleanup(true);
  Result<bool> has_given = pool->give_way(lock, one, a);
  EXPECT_TRUE(has_given && !has_given.value()) << "the user asked for no pauses";
  pool->hold_cleanup(false);
  has_given = pool->give_way(lock, one, a);
  EXPECT_TRUE(has_given && has_given.value());
  EXPECT_EQ(figures().chunks_released, 9u) << "one page of growth is early";
  PageRequest beyond = one;
  beyond.requested = beyond.size = 2000 * kPage;
  has_given = pool->give_way(lock, beyond, a);
  EXPECT_TRUE(has_given && has_given.value()) << "of which there is no plan";
  EXPECT_EQ(figures().chunks_released, 20u);
}

TEST_F(PoolCalls, idle_memory_gives_way_to_no_request_that_it_can_serve) {
  config.page_chunks = false;
  config.chunk_max = kPage;
  open();
  every_other_of(40);
  const Result<bool> has_given = pool->give_way(lock, request(3), a);
  EXPECT_TRUE(has_given && !has_given.value()) << "idle chunks can move for this one";
  EXPECT_EQ(figures().chunks_released, 0u);
}

// Resumes three pages behind a driver that is out of order.
class OutOfOrder : public PoolCalls {
 protected:
  void SetUp() override {
    open();
    suspended = own_pages();
    ASSERT_TRUE(pool->suspender().suspend(lock, {suspended}, Suspender::Fate::goes_to_driver).ok());
    refills = {{suspended, own_pages()}};
  }
  void TearDown() override {
    if (suspended->is_suspended) pool->suspender().drop(suspended);
  }
  region::Region* own_pages() {
    PageRequest owned = request(3);
    owned.chunks = Chunks::own;
    const Result<Answer> answer = pool->map(lock, owned, a, Effort::by_policy, 0);
    return region_of(std::get<Placed>(answer.value()).begin);
  }
  // Of the calls to come, those with these numbers, from 1, fail.
  void fail(Call call, const std::vector<int>& numbers) {
    driver.on[call] = [numbers, count = 0]() mutable {
      const bool fails = std::find(numbers.begin(), numbers.end(), ++count) != numbers.end();
      return fails ? CuResult::unknown : CuResult::success;
    };
  }
  bool resume() {
    const bool is_resumed = pool->suspender().resume(lock, refills).ok();
    driver.on.clear();
    EXPECT_EQ(pool->memory().validate(), "");
    EXPECT_EQ(sim.census().mappings, figures().mappings);
    return is_resumed;
  }
  region::Region* suspended = nullptr;
  Vector<Suspender::Refill> refills;
};

// Each of the two that were mapped again may be the one that stays mapped.
TEST_F(OutOfOrder, memory_that_reaches_neither_place_goes_back_later) {
  for (const int stuck : {2, 3}) {
    fail(Call::mem_map, {1, 4});     // there; back again, the third page
    fail(Call::mem_unmap, {stuck});  // one of the two before it
    EXPECT_FALSE(resume());
    EXPECT_EQ(refills[0].memory, nullptr);
    EXPECT_TRUE(suspended->is_suspended);
    EXPECT_EQ(figures().suspended_bytes, 3 * kPage);
    EXPECT_EQ(figures().quarantined_bytes, 3 * kPage);
    EXPECT_EQ(figures().zombie_bytes, kPage);
    for (int round = 0; round < 2; ++round) {
      EXPECT_TRUE(pool->settle(lock).ok());
    }
    EXPECT_EQ(figures().quarantined_bytes, 0u);
    EXPECT_EQ(sim.census().chunks, 0u);
    refills[0].memory = own_pages();
  }
}

TEST_F(OutOfOrder, memory_that_stays_mapped_at_its_new_place_is_unmapped_before_the_next_try) {
  fail(Call::mem_map, {3});
  fail(Call::mem_unmap, {2});
  EXPECT_FALSE(resume());
  EXPECT_TRUE(suspended->is_suspended);
  EXPECT_NE(refills[0].memory, nullptr);
  EXPECT_EQ(figures().quarantined_bytes, kPage);
  fail(Call::mem_unmap, {1});
  EXPECT_FALSE(resume()) << "it is still there";
  EXPECT_EQ(figures().quarantined_bytes, kPage);
  EXPECT_TRUE(resume());
  EXPECT_FALSE(suspended->is_suspended);
  EXPECT_EQ(figures().suspended_bytes + figures().quarantined_bytes, 0u);
}

}  // namespace
}  // namespace vpmm::pool
