// pool: calls of a pool one by one: what they take, what they leave, and what they count.
#include "pool/pool.hpp"

#include <gmock/gmock.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "pool/pool_fixture.hpp"
#include "support/hooked_driver.hpp"

namespace vpmm::pool {
namespace {

using driver::Call;
using driver::CuResult;

// Chunks are pages.
class PoolCalls : public PoolFixture<test::HookedDriver> {
 protected:
  PoolCalls() : PoolCalls(options()) {}
  explicit PoolCalls(const driver::sim::SimOptions& of) : PoolFixture(of) {}
  static driver::sim::SimOptions options() {
    driver::sim::SimOptions options;
    options.capacity = 1000 * kPage;
    return options;
  }
  region::Region* region_of(DevicePtr ptr) { return pool->memory().index.allocated_around(ptr); }
  // So many pages, of which every other one is idle.
  Vector<DevicePtr> every_other_of(Bytes pages) {
    Vector<DevicePtr> all, live;
    for (Bytes i = 0; i < pages; ++i) all.push_back(take(1, a));
    for (std::size_t i = 0; i < all.size(); i += 2) give_back(all[i]);
    for (std::size_t i = 1; i < all.size(); i += 2) live.push_back(all[i]);
    return live;
  }
  Bytes trimmed_to(Bytes pages) {
    const Result<Bytes> released = pool->trim(lock, pages * kPage);
    EXPECT_TRUE(released.ok());
    return released ? released.value() / kPage : 0;
  }
  std::string picture() { return pool->memory().index.picture(kPage); }
  // The work of all streams is done, and the pool knows.
  void see_done() {
    sim.run_until_idle();
    Vector<time::StampPart> done;
    EXPECT_TRUE(timelines.poll(timelines.count(), done).ok());
    pool->advance(done);
  }
};

// Chunks are four pages, of which requests share.
class SharedChunks : public PoolCalls {
 protected:
  SharedChunks() : PoolCalls(driver::sim::SimOptions{}) {
    config.page_chunks = false;
    config.chunk_max = 4 * kPage;
  }
};

// --- requests

TEST(PlainRequest, _it_names_nothing_but_size_alignment_and_stream) {
  Request plain{kPage, kPage, driver::StreamHandle{}};
  EXPECT_TRUE(plain.is_plain());
  EXPECT_EQ(plain.stack + plain.guard_stack, 0u);
  plain.stack = plain.guard_stack = 1;  // of a recording, or guard mode
  EXPECT_TRUE(plain.is_plain());
  Request other = plain;
  other.tag = 1;
  EXPECT_FALSE(other.is_plain());
  other = plain;
  other.library = 1;
  EXPECT_FALSE(other.is_plain());
  other = plain;
  other.one_chunk = true;
  EXPECT_FALSE(other.is_plain());
  other = plain;
  other.arena = ArenaId{1};
  EXPECT_FALSE(other.is_plain());
}

TEST_F(PoolCalls, a_request_that_free_memory_fits_is_served_without_a_plan) {
  open();
  const DevicePtr first = take(2, a);
  EXPECT_EQ(figures().plans, 1u);
  give_back(first);
  const std::optional<Placed> found = pool->find(request(2), a);
  ASSERT_TRUE(found);
  EXPECT_EQ(found->begin, first);
  EXPECT_TRUE(found->is_complete);
  EXPECT_EQ(region_of(first)->owner.timeline, a.timeline->id);
  give_back(first);
  const Result<Answer> mapped = pool->map(lock, request(2), a, Effort::by_policy, 0);
  ASSERT_TRUE(mapped.ok());
  EXPECT_EQ(std::get<Placed>(mapped.value()).begin, first) << "it was freed meanwhile";
  EXPECT_EQ(figures().plans, 1u);
  EXPECT_EQ(figures().hits, 2u);
  EXPECT_EQ(figures().allocations, 3u);
  EXPECT_EQ(figures().deallocations, 2u);
  EXPECT_FALSE(pool->find(request(1), a));
}

TEST_F(PoolCalls, memory_that_the_own_stream_still_uses_is_not_complete) {
  open();
  give_back_pending(take(2, a), a, Closed::yes);
  const std::optional<Placed> found = pool->find(request(2), a);
  ASSERT_TRUE(found);
  EXPECT_FALSE(found->is_complete);
}

TEST_F(PoolCalls, memory_that_others_still_use_is_found_behind_a_wait) {
  open();
  const DevicePtr ptr = take(2, b);
  give_back_pending(ptr, b, Closed::yes);
  EXPECT_FALSE(pool->find(request(2), a));
  const auto found = pool->find_waiting(request(2), a, Effort::by_policy);
  ASSERT_TRUE(found.ok() && found.value());
  EXPECT_EQ(found.value()->begin, ptr);
  EXPECT_EQ(figures().gpu_waits, 1u);
  const auto none = pool->find_waiting(request(2), a, Effort::by_policy);
  EXPECT_TRUE(none.ok() && !none.value());
}

TEST_F(PoolCalls, memory_of_a_capture_is_named_after_it) {
  open();
  Caller capturing = a;
  capturing.standing = Standing::capturing;
  capturing.capture = 7;
  EXPECT_EQ(region_of(take(1, capturing))->owner.capture, 7u);
  EXPECT_EQ(region_of(take(1, a))->owner.capture, 0u);
}

TEST_F(PoolCalls, beyond_the_limit_of_mappings_a_request_is_one_chunk) {
  config.max_mappings = 4;
  open();
  take(2, a);
  take(2, a);
  EXPECT_EQ(figures().chunks, 4u) << "the limit itself is allowed";
  take(2, a);
  EXPECT_EQ(figures().chunks, 5u);
}

TEST_F(PoolCalls, what_comes_back_is_counted) {
  open();
  const DevicePtr first = take(1, a), second = take(1, a);
  const std::uint64_t before = pool->returned();
  give_back(first);
  EXPECT_EQ(pool->returned(), before + 1);
  give_back_pending(second, a, Closed::yes);
  EXPECT_EQ(pool->returned(), before + 2);
  see_done();
  EXPECT_EQ(pool->returned(), before + 3) << "and again once its work is done";
}

TEST_F(PoolCalls, a_broken_context_is_told_when_the_driver_is_asked_for_free_memory) {
  open();
  driver.on[Call::mem_get_info] = [] { return CuResult::illegal_address; };
  const Result<DevicePtr> refused = allocate(1, a);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, ErrorCode::poisoned);
  driver.on[Call::mem_get_info] = [] { return CuResult::unknown; };
  EXPECT_TRUE(allocate(1, a).ok()) << "without an answer, a plan shows what there is";
  driver.on.clear();
}

TEST_F(PoolCalls, all_that_is_free_is_created_without_a_try) {
  open();
  take(1, a);
  take(999, a);
  EXPECT_EQ(driver.counts[Call::mem_create], 1000u);
  EXPECT_EQ(driver.counts[Call::mem_release], 0u);
}

TEST_F(PoolCalls, memory_can_be_exported_as_long_as_the_driver_makes_it_for_that) {
  open();
  EXPECT_FALSE(pool->can_export()) << "nobody asked for it";
  driver::ChunkProperties properties;
  properties.posix_file_descriptor = true;
  pool->release_everything();
  pool = std::make_unique<Pool>(driver, properties, config, kPage, timelines);
  EXPECT_TRUE(pool->can_export());
  int calls = 0;
  driver.on[Call::mem_create] = [&] {
    return ++calls == 1 ? CuResult::not_supported : CuResult::success;
  };
  take(1, a);
  driver.on.clear();
  EXPECT_FALSE(pool->can_export());
}

TEST_F(PoolCalls, the_drivers_error_is_that_of_the_request) {
  open();
  driver.on[Call::mem_create] = [] { return CuResult::unknown; };
  const Result<DevicePtr> refused = allocate(1, a);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, ErrorCode::driver_failed);
  EXPECT_THAT(refused.error().message, testing::HasSubstr("mem_create"));
  driver.on.clear();
}

// An old address of memory that the own stream has freed is unmapped once the stream's work is
// done, so an event is recorded behind that work, where there is none.
TEST_F(PoolCalls, memory_that_moves_behind_own_work_has_an_event) {
  for (const Closed closed : {Closed::no, Closed::yes}) {
    open();
    const DevicePtr first = take(1, a);
    take(1, a);
    const DevicePtr second = take(1, a);
    take(1, a);
    give_back_pending(first, a, closed);
    give_back_pending(second, a, closed);
    const std::uint64_t events = driver.counts[Call::event_record];
    take(2, a);
    EXPECT_EQ(driver.counts[Call::event_record], events + (closed == Closed::no ? 1 : 0));
    ASSERT_EQ(figures().zombie_bytes, 2 * kPage);
    see_done();
    ASSERT_TRUE(pool->settle(lock).ok());
    EXPECT_EQ(figures().zombie_bytes, 0u);
  }
}

TEST_F(PoolCalls, memory_that_moves_without_an_event_asks_its_stream_for_one_later) {
  open();
  const DevicePtr first = take(1, a);
  take(1, a);
  const DevicePtr second = take(1, a);
  take(1, a);
  for (const DevicePtr ptr : {first, second}) give_back_pending(ptr, a, Closed::no);
  driver.on[Call::event_record] = [] { return CuResult::unknown; };
  take(2, a);
  driver.on.clear();
  EXPECT_EQ(figures().chunks_moved, 2u);
  EXPECT_TRUE(a.timeline->wanted);
  sim.run_until_idle();
}

TEST_F(PoolCalls, memory_of_others_that_moves_needs_no_event_of_the_caller) {
  open();
  every_other_of(4);
  const std::uint64_t events = driver.counts[Call::event_record];
  take(2, Caller{});
  EXPECT_EQ(figures().chunks_moved, 2u);
  EXPECT_EQ(driver.counts[Call::event_record], events);
}

// --- allocations that change hands

TEST_F(PoolCalls, memory_that_is_passed_on_keeps_its_place_and_has_another_stream) {
  open();
  const DevicePtr ptr = take(2, a);
  ASSERT_EQ(a.timeline->references, 1u);
  const observe::Statistics before = figures();
  EXPECT_EQ(pool->pass_on(region_of(ptr), {kPage, 2 * kPage, kPage}, b), ptr);
  EXPECT_EQ(region_of(ptr)->owner.timeline, b.timeline->id);
  EXPECT_EQ(a.timeline->references, 0u);
  EXPECT_EQ(b.timeline->references, 1u);
  EXPECT_EQ(figures().live_bytes, kPage) << "as the next user said";
  EXPECT_EQ(figures().allocations, before.allocations + 1);
  EXPECT_EQ(figures().deallocations, before.deallocations + 1);
  EXPECT_EQ(figures().hits, before.hits + 1);
  give_back(ptr);
  EXPECT_EQ(b.timeline->references, 0u);
}

TEST_F(PoolCalls, memory_that_is_disowned_keeps_no_stream_alive) {
  open();
  const DevicePtr ptr = take(2, a);
  pool->disown(region_of(ptr));
  EXPECT_EQ(region_of(ptr)->owner.timeline, std::nullopt);
  EXPECT_EQ(a.timeline->references, 0u);
  give_back(ptr);
  EXPECT_EQ(a.timeline->references, 0u);
}

TEST_F(SharedChunks, memory_that_is_divided_is_two_allocations) {
  open();
  PageRequest owned = request(3);
  owned.chunks = Chunks::own;
  const Result<Answer> mapped = pool->map(lock, owned, a, Effort::by_policy, 0);
  ASSERT_TRUE(mapped.ok());
  region::Region* const front = region_of(std::get<Placed>(mapped.value()).begin);
  pool->disown(front);
  const observe::Statistics before = figures();
  region::Region* const behind = pool->divide(front, front->range.begin + kPage);
  EXPECT_EQ(picture(), "[1][2]");
  EXPECT_EQ(behind->range.begin, front->range.end());
  EXPECT_TRUE(front->has_own_chunks && behind->has_own_chunks);
  EXPECT_EQ(figures().allocations, before.allocations + 1);
  front->has_own_chunks = behind->has_own_chunks = false;  // they share one
  EXPECT_EQ(pool->memory().validate(), "") << "which counts what is used of each chunk";
  pool->deallocate(behind, {});
  EXPECT_EQ(figures().trapped_bytes, 2 * kPage);
  pool->deallocate(front, {});
  EXPECT_EQ(figures().trapped_bytes, 0u);
}

// --- memory goes back

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
  config.capacity = 40 * kPage;
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

// --- before anybody asks

TEST_F(PoolCalls, a_pool_is_prepared_by_a_page_that_comes_and_goes) {
  open();
  ASSERT_TRUE(pool->prepare(lock).ok());
  EXPECT_EQ(driver.counts[Call::mem_create], 1u);
  EXPECT_EQ(driver.counts[Call::mem_release], 1u);
  const observe::Statistics seen = figures();
  EXPECT_EQ(seen.mapped_bytes + seen.peak_mapped_bytes + seen.peak_chunks + seen.peak_mappings +
                seen.chunks_created + seen.chunks_released + seen.allocations,
            0u)
      << "no figure shows it";
  const std::uint64_t reserved = driver.counts[Call::mem_address_reserve];
  const std::uint64_t asked = driver.counts[Call::mem_get_info];
  take(1, a);
  EXPECT_EQ(driver.counts[Call::mem_address_reserve], reserved);
  EXPECT_EQ(driver.counts[Call::mem_get_info], asked);
  EXPECT_EQ(figures().peak_mappings, 1u);
}

TEST_F(PoolCalls, a_page_that_the_driver_does_not_take_back_shows_in_the_figures) {
  open();
  driver.on[Call::mem_unmap] = [] { return CuResult::unknown; };
  EXPECT_TRUE(pool->prepare(lock).ok());
  driver.on.clear();
  EXPECT_EQ(figures().mapped_bytes, kPage);
  EXPECT_EQ(figures().chunks_created, 1u);
  EXPECT_EQ(figures().peak_chunks, 1u);
}

TEST_F(PoolCalls, a_pool_is_prepared_for_a_program_that_says_how_much_it_needs) {
  config.va_size = 4 * kPage;
  config.pages = 50;
  open();
  ASSERT_TRUE(pool->prepare(lock).ok());
  ASSERT_EQ(pool->memory().reservations.size(), 1u);
  EXPECT_EQ(pool->memory().reservations[0].size, 50 * kPage);
}

TEST_F(PoolCalls, of_what_is_tried_out_only_a_broken_context_is_an_error) {
  for (const Call call : {Call::mem_create, Call::mem_map, Call::mem_unmap, Call::mem_release}) {
    for (const CuResult result : {CuResult::unknown, CuResult::illegal_address}) {
      open();
      driver.on[call] = [=] { return result; };
      const Result<void> prepared = pool->prepare(lock);
      driver.on.clear();
      const bool is_told = result == CuResult::illegal_address && call != Call::mem_release;
      EXPECT_EQ(prepared.ok(), !is_told) << driver::to_string(call);
      if (is_told) {
        EXPECT_EQ(prepared.error().code, ErrorCode::poisoned);
      }
      EXPECT_TRUE(pool->settle(lock).ok());
      take(1, a);
    }
  }
}

TEST_F(PoolCalls, memory_can_be_mapped_ahead) {
  config.capacity = 40 * kPage;
  open();
  ASSERT_TRUE(pool->preallocate(lock, 10 * kPage - 1).ok());
  EXPECT_EQ(picture(), "[-10]");
  EXPECT_EQ(figures().peak_mapped_bytes, 10 * kPage);
  EXPECT_EQ(figures().peak_chunks, 10u);
  ASSERT_TRUE(pool->preallocate(lock, 10 * kPage).ok());
  EXPECT_EQ(picture(), "[-10]") << "in all, not more";
  const std::uint64_t asked = driver.counts[Call::mem_get_info];
  ASSERT_TRUE(pool->preallocate(lock, 12 * kPage).ok());
  EXPECT_EQ(driver.counts[Call::mem_get_info], asked) << "how much is free is known";
  ASSERT_TRUE(pool->preallocate(lock, 40 * kPage).ok());
  EXPECT_EQ(figures().mapped_bytes, 40 * kPage);
  const Result<void> beyond = pool->preallocate(lock, 41 * kPage);
  ASSERT_FALSE(beyond.ok());
  EXPECT_EQ(beyond.error().code, ErrorCode::out_of_memory);
  EXPECT_THAT(beyond.error().message, testing::HasSubstr("the limit is 80 MiB"));
}

TEST_F(PoolCalls, memory_that_is_mapped_ahead_is_whole_or_none) {
  open();
  EXPECT_THAT(pool->preallocate(lock, 1001 * kPage).error().message,
              testing::HasSubstr("the GPU has less free"));
  std::uint64_t created = 0;
  driver.on[Call::mem_create] = [&] {
    return ++created > 5 ? CuResult::out_of_memory : CuResult::success;
  };
  const Result<void> refused = pool->preallocate(lock, 10 * kPage);
  driver.on.clear();
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, ErrorCode::out_of_memory);
  EXPECT_EQ(figures().mapped_bytes, 0u);
  const std::uint64_t asked = driver.counts[Call::mem_get_info];
  EXPECT_TRUE(pool->preallocate(lock, 10 * kPage).ok());
  EXPECT_EQ(driver.counts[Call::mem_get_info], asked + 1) << "how much is free is in doubt";
}

TEST_F(PoolCalls, memory_is_mapped_ahead_where_address_space_is_short) {
  config.va_size = 4 * kPage;
  open();
  take(3, a);
  ASSERT_TRUE(pool->preallocate(lock, 13 * kPage).ok());
  EXPECT_EQ(figures().mapped_bytes, 13 * kPage);
  EXPECT_EQ(figures().reserved_bytes, 14 * kPage);
}

// --- figures

TEST_F(PoolCalls, peaks_are_those_since_the_last_reset) {
  open();
  give_back(take(5, a));
  trimmed_to(2);
  const auto peaks = [this] {
    const observe::Statistics seen = figures();
    return std::vector<std::uint64_t>{seen.peak_mapped_bytes / kPage, seen.peak_chunks,
                                      seen.peak_mappings};
  };
  EXPECT_EQ(peaks(), (std::vector<std::uint64_t>{5, 5, 5}));
  pool->reset_peaks();
  EXPECT_EQ(peaks(), (std::vector<std::uint64_t>{2, 2, 2}));
  pool->set_other_bytes(kPage);
  take(3, a);
  EXPECT_EQ(peaks(), (std::vector<std::uint64_t>{4, 3, 3})) << "other memory counts, too";
  every_other_of(4);
  take(2, a);
  EXPECT_EQ(peaks(), (std::vector<std::uint64_t>{8, 7, 9})) << "two chunks have two mappings";
}

TEST_F(SharedChunks, figures_name_each_kind_of_memory) {
  config.va_size = 40 * kPage;
  open();
  const DevicePtr first = take(2, a);
  take(1, a);
  give_back(take(4, a));
  give_back_pending(first, b, Closed::yes);
  const observe::Statistics seen = figures();
  EXPECT_EQ(seen.mapped_bytes, 8 * kPage);
  EXPECT_EQ(seen.live_bytes, kPage);
  EXPECT_EQ(seen.allocated_bytes, kPage);
  EXPECT_EQ(seen.free_bytes, 7 * kPage);
  EXPECT_EQ(seen.trapped_bytes, 3 * kPage) << "of the chunk that is used in part";
  EXPECT_EQ(seen.pending_bytes, 2 * kPage);
  EXPECT_EQ(seen.largest_free_bytes, 5 * kPage);
  EXPECT_EQ(seen.reserved_bytes, 40 * kPage);
  EXPECT_EQ(seen.hole_bytes, 32 * kPage);
  EXPECT_EQ(seen.live_allocations, 1u);
  EXPECT_EQ(seen.free_regions, 2u);
  EXPECT_EQ(seen.chunks, 2u);
  EXPECT_EQ(seen.mappings, 2u);
  sim.run_until_idle();
}

TEST_F(SharedChunks, memory_could_move_if_all_allocations_in_its_chunk_were_idle) {
  open();
  const DevicePtr first = take(2, a), second = take(2, a), third = take(6, a);
  ASSERT_EQ(picture(), "[2][2][6][-2]");
  const auto movable = [&](const std::vector<DevicePtr>& idle) {
    return pool->memory().movable_bytes([&](const region::Region& region, AddressRange part) {
      EXPECT_TRUE(region.range.contains(part));
      EXPECT_LE(part.size, 4 * kPage);
      return std::find(idle.begin(), idle.end(), region.range.begin) != idle.end();
    }) / kPage;
  };
  EXPECT_EQ(movable({}), 0u);
  EXPECT_EQ(movable({first}), 0u);
  EXPECT_EQ(movable({second}), 0u);
  EXPECT_EQ(movable({first, second}), 4u);
  EXPECT_EQ(movable({third}), 8u) << "the rest of its last chunk is free";
  EXPECT_EQ(movable({first, second, third}), 12u);
  take(2, a);
  give_back(third);
  EXPECT_EQ(movable({}), 4u);
  EXPECT_EQ(movable({first, second}), 8u);
  take(10, a);
  ASSERT_EQ(picture(), "[2][2][~4][-2][2][10][-2]");
  EXPECT_EQ(movable({first, second}), 4u) << "an old address counts for nothing";
}

// --- the end

TEST_F(SharedChunks, at_the_end_each_mapping_is_unmapped_once_and_all_address_space_is_freed) {
  config.va_size = 16 * kPage;
  open();
  for (int i = 0; i < 20; ++i) take(1, a);
  ASSERT_EQ(pool->memory().reservations.size(), 2u);
  ASSERT_EQ(figures().mappings, 5u);
  pool->release_everything();
  EXPECT_EQ(driver.counts[Call::mem_unmap], 5u);
  EXPECT_EQ(driver.counts[Call::mem_release], 5u);
  EXPECT_EQ(driver.counts[Call::mem_address_free], 2u);
  EXPECT_EQ(sim.census().reservations, 0u);
  EXPECT_EQ(figures().mapped_bytes + figures().reserved_bytes, 0u);
  open();
}

TEST_F(PoolCalls, at_the_end_address_space_with_memory_in_it_is_not_freed) {
  open();
  take(1, a);
  driver.on[Call::mem_unmap] = [] { return CuResult::unknown; };
  pool->release_everything();
  EXPECT_EQ(driver.counts[Call::mem_address_free], 0u) << "the driver would refuse it";
  driver.on.clear();
}

}  // namespace
}  // namespace vpmm::pool
