// SPDX-License-Identifier: Apache-2.0
// pool: bounds of a request: growth before moves, waits for other streams, and the delay before
// growth. What follows for whole programs: tests/context.
#include "pool/planner.hpp"

#include <variant>
#include <vector>

#include "pool/grow_delay.hpp"
#include "pool/pool_fixture.hpp"
#include "support/hooked_driver.hpp"

namespace vpmm::pool {
namespace {

using settings::Prefer;

// Chunks are pages, and grains are smaller.
class Planning : public PoolFixture<test::HookedDriver> {
 protected:
  Planning() : PoolFixture(options()) {
    config.page_chunks = false;
    config.chunk_max = kPage;
  }
  static driver::sim::SimOptions options() {
    driver::sim::SimOptions options;
    options.capacity = 1000 * kPage;
    return options;
  }
  void open(Prefer prefer) {
    config.prefer = prefer;
    PoolFixture::open();
  }
  Planner& planner() { return pool->planner(); }
  Ask ask(Bytes pages, const Caller& caller) { return planner().ask_of(request(pages), caller); }
  Bytes early_pages(Bytes pages) { return ask(pages, a).early_growth / kPage; }
  static Caller while_capturing(Caller caller) {
    caller.standing = Standing::capturing;
    return caller;
  }
  const Caller nobody{};
};

// --- growth before moves

TEST_F(Planning, growth_before_moves_is_a_share_of_the_most_that_was_alive_at_once) {
  struct Expected {
    Prefer prefer;
    Bytes while_alive;  // 499 pages live, and one is asked for
    Bytes when_freed;   // whole pages of the share
  };
  for (const auto& [prefer, while_alive, when_freed] : {Expected{Prefer::footprint, 1, 0},
                                                        {Prefer::balanced, 16, 14},
                                                        {Prefer::latency, 101, 99}}) {
    open(prefer);
    const DevicePtr all = take(499, a);
    EXPECT_EQ(early_pages(1), while_alive);
    give_back(all);
    EXPECT_EQ(early_pages(1), when_freed) << "the peak was 499";
    pool->reset_peaks();
    EXPECT_EQ(early_pages(1), 0u) << "nothing has lived since";
    EXPECT_GE(early_pages(604), 104u) << "the request lives then";
  }
}

TEST_F(Planning, memory_that_streams_keep_for_themselves_is_not_alive) {
  open(Prefer::latency);
  take(103, a);
  planner().set_cached_bytes(100 * kPage);
  EXPECT_EQ(planner().wanted_bytes(), 3 * kPage);
  pool->reset_peaks();
  EXPECT_EQ(early_pages(1), 0u);
  planner().set_cached_bytes(104 * kPage);
  EXPECT_EQ(planner().wanted_bytes(), 0u) << "never negative";
}

TEST_F(Planning, memory_that_a_program_announces_counts_as_alive_once) {
  open(Prefer::latency);
  ASSERT_TRUE(pool->preallocate(lock, 52 * kPage).ok());
  EXPECT_EQ(early_pages(1), 10u);
}

TEST_F(Planning, growth_before_moves_leaves_a_quarter_of_the_memory_and_there_chunks_are_spared) {
  config.limits.capacity = 40 * kPage;
  open(Prefer::latency);
  take(29, a);
  EXPECT_EQ(early_pages(8), 1u);
  EXPECT_FALSE(ask(1, a).spares_chunks);
  EXPECT_TRUE(planner().may_grow_early(kPage));
  EXPECT_FALSE(planner().may_grow_early(2 * kPage));
  take(1, a);
  EXPECT_EQ(early_pages(8), 0u);
  EXPECT_TRUE(ask(1, a).spares_chunks);
}

TEST_F(Planning, growth_is_whole_pages_below_the_limit_to_which_other_memory_counts) {
  config.limits.capacity = 40 * kPage;
  open(Prefer::latency);
  take(29, a);
  EXPECT_EQ(ask(1, a).growth_room, 11 * kPage);
  pool->set_others({kPage / 2, 0});
  EXPECT_EQ(ask(1, a).growth_room, 10 * kPage);
  pool->set_capacity(20 * kPage);
  EXPECT_EQ(ask(1, a).growth_room, 0u) << "a limit may be lowered";
}

TEST_F(Planning, a_pool_grows_within_that_share_although_idle_memory_could_move) {
  open(Prefer::latency);
  Vector<DevicePtr> all;
  for (int i = 0; i < 20; ++i) all.push_back(take(1, a));
  for (std::size_t i = 0; i < all.size(); i += 2) give_back(all[i]);
  const observe::Statistics before = figures();
  take(3, a);
  EXPECT_EQ(figures().chunks_created, before.chunks_created + 3);
  EXPECT_EQ(figures().chunks_moved, before.chunks_moved);
  take(3, a, Effort::move_first);
  EXPECT_EQ(figures().chunks_moved, before.chunks_moved + 3);
}

// --- the choice among free memory

// Note [Own memory first]
TEST_F(Planning, own_memory_goes_first_while_several_streams_take_turns) {
  open(Prefer::balanced);
  const auto prefers_own = [&](const Caller& caller) { return ask(1, caller).own_first; };
  for (int i = 0; i < 2; ++i) give_back(take(1, a));
  EXPECT_FALSE(prefers_own(a)) << "there is one";
  give_back(take(1, b));
  EXPECT_TRUE(prefers_own(a) && prefers_own(b));
  EXPECT_FALSE(prefers_own(nobody) || prefers_own(while_capturing(a)));
  for (int i = 0; i < 4094; ++i) give_back(take(1, b));
  EXPECT_TRUE(prefers_own(b));
  give_back(take(1, b));
  EXPECT_FALSE(prefers_own(b)) << "4096 placements without another";
  give_back(take(1, a));
  EXPECT_TRUE(prefers_own(a));
}

TEST_F(Planning, pages_as_specified_have_no_preference_for_own_memory_low_addresses_or_chunks) {
  PageRequest low = request(1);
  low.goes_low = true;
  for (const bool page_chunks : {false, true}) {
    config.page_chunks = page_chunks;
    config.limits.capacity = kPage;
    open(Prefer::balanced);
    for (const Caller* const caller : {&a, &b, &a}) give_back(take(1, *caller));
    const Ask asked = planner().ask_of(low, a);
    EXPECT_EQ(asked.goes_low, !page_chunks);
    EXPECT_EQ(asked.own_first, !page_chunks);
    EXPECT_EQ(asked.spares_chunks, !page_chunks);
    EXPECT_FALSE(planner().ask_of(request(1), a).goes_low);
  }
}

TEST_F(Planning, chunks_are_shared_unless_the_request_or_the_setting_says_otherwise) {
  const auto asked = [&](Chunks chunks) {
    PageRequest each = request(3);
    each.chunks = chunks;
    EXPECT_EQ(planner().has_own_chunks(each), planner().chunks_of(each) != Chunks::shared);
    return planner().ask_of(each, a);
  };
  config.chunk_max = 16 * kPage;
  open(Prefer::balanced);
  EXPECT_EQ(asked(Chunks::shared).chunks, Chunks::shared);
  EXPECT_EQ(asked(Chunks::own).chunks, Chunks::own);
  EXPECT_EQ(asked(Chunks::one).chunk, 3 * kPage) << "one of the size";
  EXPECT_EQ(asked(Chunks::exact).chunk, 16 * kPage) << "the largest";
  config.ipc_isolate = true;
  open(Prefer::balanced);
  EXPECT_EQ(asked(Chunks::shared).chunks, Chunks::own);
  EXPECT_EQ(asked(Chunks::one).chunks, Chunks::one);
  give_back(take(1, a));
}

TEST_F(Planning, a_request_can_be_found_where_free_memory_fits) {
  open(Prefer::balanced);
  give_back(take(2, a));
  EXPECT_TRUE(planner().can_find(request(2), a));
  EXPECT_FALSE(planner().can_find(request(3), a));
}

// --- memory that other streams still use

TEST_F(Planning, a_request_waits_for_other_streams_by_policy_or_where_memory_is_short) {
  const Effort efforts[] = {Effort::by_policy, Effort::move_first, Effort::wait_too,
                            Effort::few_mappings};
  for (const bool page_chunks : {false, true}) {
    config.page_chunks = page_chunks;
    open(Prefer::balanced);
    for (const Effort effort : efforts) {
      EXPECT_EQ(planner().takes_waiting(a, effort),
                effort == Effort::wait_too || (page_chunks && effort == Effort::by_policy));
      EXPECT_FALSE(planner().takes_waiting(nobody, effort));
      EXPECT_FALSE(planner().takes_waiting(while_capturing(a), effort));
    }
  }
}

// Five pages: 0 and 2 are idle, 4 is used by work of another stream.
class OfTwoStreams : public Planning {
 protected:
  void open(Prefer prefer, Closed closed = Closed::yes) {
    Planning::open(prefer);
    fill(closed);
  }
  void fill(Closed closed = Closed::yes) {
    for (int i = 0; i < 5; ++i) pages.push_back(take(1, b));
    give_back(pages[0]);
    give_back(pages[2]);
    give_back_pending(pages[4], b, closed);
    before = figures();
  }
  // What the request took: chunks that were created, that moved, and waits.
  std::vector<Bytes> price(Bytes count, const Caller& caller) {
    sim.advance_host_ns(kSecondNs / 10);  // no delay is left
    take(count, caller);
    const observe::Statistics after = figures();
    return {after.chunks_created - before.chunks_created, after.chunks_moved - before.chunks_moved,
            after.gpu_waits - before.gpu_waits};
  }
  std::vector<DevicePtr> pages;
  observe::Statistics before;
};

TEST_F(OfTwoStreams, footprint_moves_idle_memory_before_it_waits_for_other_streams) {
  open(Prefer::footprint);
  EXPECT_EQ(price(2, a), (std::vector<Bytes>{0, 2, 0}));
}

TEST_F(OfTwoStreams, footprint_waits_for_other_streams_before_it_grows) {
  open(Prefer::footprint);
  EXPECT_EQ(price(3, a), (std::vector<Bytes>{0, 2, 1})) << "beside the one that is used";
}

// Up to the most that was alive at once any setting grows early.
TEST_F(OfTwoStreams, footprint_waits_for_other_streams_before_it_grows_again) {
  Planning::open(Prefer::footprint);
  give_back(take(40, b));
  ASSERT_TRUE(pool->trim(lock, 0).ok());
  fill();
  EXPECT_EQ(price(3, a), (std::vector<Bytes>{0, 2, 1}));
}

TEST_F(OfTwoStreams, footprint_waits_for_a_range_that_fits_before_it_moves_any_that_is_used) {
  open(Prefer::footprint);
  EXPECT_EQ(price(2, a), (std::vector<Bytes>{0, 2, 0}));
  EXPECT_EQ(price(1, a), (std::vector<Bytes>{0, 2, 1}));
}

TEST_F(OfTwoStreams, footprint_grows_where_other_streams_have_too_little) {
  open(Prefer::footprint);
  EXPECT_EQ(price(4, a).front(), 1u);
}

TEST_F(OfTwoStreams, a_caller_that_may_not_wait_grows) {
  open(Prefer::footprint);
  EXPECT_EQ(price(3, while_capturing(a)), (std::vector<Bytes>{1, 2, 0}));
}

TEST_F(OfTwoStreams, memory_without_an_event_to_wait_for_is_left_alone) {
  open(Prefer::footprint, Closed::no);
  EXPECT_EQ(price(3, a), (std::vector<Bytes>{1, 2, 0}));
}

TEST_F(OfTwoStreams, balanced_grows_instead_of_a_wait) {
  open(Prefer::balanced);
  EXPECT_EQ(price(3, a), (std::vector<Bytes>{1, 2, 0}));
}

// --- Note [Grow delay]

// 64 pages, the most that is worth no delay of less than the longest.
class Delay : public Planning {
 protected:
  static constexpr Bytes kAll = GrowDelay::kLeastWhole / kPage;
  void open(Prefer prefer, Closed closed = Closed::yes, std::uint64_t work_ns = kSecondNs) {
    Planning::open(prefer);
    give_back_pending(take(kAll, b), b, closed, work_ns);
  }
  // How long a request waits from its beginning, at most; 0: it has its memory.
  std::uint64_t delay_of(const PageRequest& request, const Caller& caller,
                         Effort effort = Effort::by_policy) {
    const std::uint64_t began = driver.now_ns();
    const Result<Answer> answer = pool->map(lock, request, caller, effort, began);
    if (!answer) ADD_FAILURE() << answer.error().message;
    const Needs* const needs = answer ? std::get_if<Needs>(&answer.value()) : nullptr;
    if (needs == nullptr) return 0;
    EXPECT_EQ(needs->what, Needs::What::time);
    return needs->until_ns - began;
  }
};

TEST_F(Delay, growth_waits_in_proportion_to_what_other_streams_will_have_freed) {
  open(Prefer::balanced);
  EXPECT_EQ(delay_of(request(kAll), a), GrowDelay::kLongestNs);
  EXPECT_EQ(delay_of(request(kAll / 2), a), GrowDelay::kLongestNs / 2);
  EXPECT_EQ(delay_of(request(2 * kAll), a), GrowDelay::kLongestNs) << "no longer than that";
  pool->hold_cleanup(true);
  EXPECT_EQ(delay_of(request(kAll), a), 0u) << "the user asked for no pauses";
}

// Not for that of the caller, nor for what lives.
TEST_F(Delay, is_as_long_as_all_other_streams_together_deserve) {
  Planning::open(Prefer::balanced);
  const Caller c = make_caller();
  std::vector<DevicePtr> quarters;
  for (int i = 0; i < 4; ++i) quarters.push_back(take(kAll / 4, a));
  give_back_pending(quarters[0], a, Closed::yes);
  give_back_pending(quarters[1], b, Closed::yes);
  EXPECT_EQ(delay_of(request(2 * kAll), a), GrowDelay::kLongestNs / 4);
  give_back_pending(quarters[2], c, Closed::yes);
  EXPECT_EQ(delay_of(request(2 * kAll), a), GrowDelay::kLongestNs / 2);
  sim.run_until_idle();
}

TEST_F(Delay, of_growth_ends) {
  open(Prefer::balanced);
  const std::uint64_t began = driver.now_ns();
  sim.advance_host_ns(GrowDelay::kLongestNs);
  const Result<Answer> answer = pool->map(lock, request(kAll), a, Effort::by_policy, began);
  EXPECT_TRUE(answer.ok() && std::holds_alternative<Placed>(answer.value()));
}

TEST_F(Delay, is_for_memory_of_others_as_own_memory_serves_the_request_at_once) {
  open(Prefer::balanced);
  PageRequest one = request(kAll);
  one.chunks = Chunks::one;
  EXPECT_EQ(delay_of(one, b), GrowDelay::kLongestNs) << "one chunk cannot be made of it yet";
  EXPECT_EQ(delay_of(request(2 * kAll), b), 0u);
}

TEST_F(Delay, is_for_work_that_an_event_can_prove) {
  open(Prefer::balanced, Closed::no);
  EXPECT_EQ(delay_of(request(kAll), a), 0u);
}

TEST_F(Delay, is_not_for_work_that_is_known_to_be_done) {
  open(Prefer::balanced, Closed::yes, 1000);
  sim.run_until_idle();
  Vector<time::StampPart> done;
  ASSERT_TRUE(timelines.poll(timelines.count(), done).ok());
  EXPECT_EQ(planner().delay_until(
                std::get<Plan>(planner().decide(ask(2 * kAll, a), a, Effort::by_policy)), a, 1),
            1u);
}

TEST_F(Delay, is_not_for_a_caller_that_moves_first_or_a_setting_that_is_for_speed) {
  open(Prefer::balanced);
  EXPECT_EQ(delay_of(request(kAll), a, Effort::move_first), 0u);
  open(Prefer::latency);
  EXPECT_EQ(delay_of(request(kAll), a), 0u);
}

TEST_F(Delay, is_not_for_growth_that_is_little) {
  open(Prefer::balanced);
  EXPECT_EQ(delay_of(request(1), a), 0u) << "less than three in a hundred";
  EXPECT_GT(delay_of(request(2), a), 0u);
}

TEST_F(Delay, is_for_growth_beyond_the_largest_footprint_so_far) {
  open(Prefer::balanced);
  pool->set_others({kAll / 2 * kPage, 0});  // came and went
  take(1, a);
  pool->set_others({0, 0});
  ASSERT_EQ(figures().peak_mapped_bytes, (kAll + kAll / 2 + 1) * kPage);
  EXPECT_GT(delay_of(request(kAll / 2 + 1), a), 0u);
  EXPECT_EQ(delay_of(request(kAll / 2), a), 0u);
}

// --- Note [Caches shrink before the footprint grows]

TEST_F(Planning, a_request_sets_a_record_where_idle_memory_is_too_little) {
  open(Prefer::balanced);
  const auto sets_record = [&](Bytes pages, const Caller& caller) {
    return planner().would_set_record(request(pages), caller);
  };
  const DevicePtr front = take(2, a);
  take(8, a);
  EXPECT_TRUE(sets_record(1, a));
  give_back(front);
  EXPECT_FALSE(sets_record(2, a));
  EXPECT_TRUE(sets_record(3, a));
  give_back_pending(take(2, a), b, Closed::yes);
  EXPECT_FALSE(sets_record(2, b)) << "its own memory";
  EXPECT_TRUE(sets_record(2, a) && sets_record(2, nobody)) << "still in use";
  Caller captured = b;
  captured.standing = Standing::capturing;
  EXPECT_TRUE(sets_record(2, captured)) << "a graph's memory is nobody's own";
  sim.run_until_idle();
}

TEST_F(Planning, a_request_below_the_largest_footprint_or_within_early_growth_sets_no_record) {
  open(Prefer::latency);
  const DevicePtr all = take(103, a);
  const auto sets_record = [&](Bytes pages) {
    return planner().would_set_record(request(pages), a);
  };
  EXPECT_FALSE(sets_record(20)) << "a fifth";
  EXPECT_TRUE(sets_record(21));
  give_back(all);
  ASSERT_TRUE(pool->trim(lock, 0).ok());
  EXPECT_FALSE(sets_record(103));
  EXPECT_TRUE(sets_record(124));
  take(125, a);
  EXPECT_FALSE(sets_record(25)) << "exactly a fifth";
  EXPECT_TRUE(sets_record(26));
}

}  // namespace
}  // namespace vpmm::pool
