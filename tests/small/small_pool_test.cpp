// SPDX-License-Identifier: Apache-2.0
// small: what the room above asks its parts for, on a pool without a context around it.
#include <algorithm>
#include <chrono>
#include <vector>

#include "driver/recording.hpp"
#include "small/small_pool_fixture.hpp"
#include "support/held.hpp"

namespace vpmm::small {
namespace {

class SmallPoolTest : public SmallPoolFixture<driver::RecordingDriver> {};

TEST_F(SmallPoolTest,
       a_stream_is_idle_while_it_calls_for_nothing_and_gives_back_at_the_eighth_look) {
  EXPECT_TRUE(small->bounds().look_at(*a.timeline)) << "it has no cache";
  const DevicePtr live = take_part(kPage, a);
  StreamCache& cache = cache_of(a);
  EXPECT_FALSE(small->bounds().look_at(*a.timeline));
  free_warm(live, a);
  for (int turn = 0; turn < 2; ++turn) {
    for (int looks = 0; looks < 7; ++looks) {
      EXPECT_TRUE(small->bounds().look_at(*a.timeline));
      EXPECT_EQ(cache.cached_bytes(), kPage);
    }
    if (turn == 1) break;
    free_warm(small->warm_calls().try_allocate(client_of(cache, a), kPage), a);
    EXPECT_FALSE(small->bounds().look_at(*a.timeline)) << "from here on anew";
  }
  EXPECT_EQ(idle(), 0u);
  EXPECT_TRUE(small->bounds().look_at(*a.timeline));
  EXPECT_EQ(cache.cached_bytes(), 0u);
  EXPECT_EQ(idle(), kPage);
  EXPECT_TRUE(small->bounds().look_at(*a.timeline));
}

// By the records of slabs, or by the units that slabs and spans can have.
TEST_F(SmallPoolTest, warm_calls_bring_no_more_to_life_than_what_is_cut_has_room_for) {
  EXPECT_EQ(small->figures().most_live(), 0u);
  take_part(1, a);
  EXPECT_EQ(small->caches().slab_count(), 2u);
  EXPECT_EQ(small->cut_pages().segment_bytes(), kUnit);
  EXPECT_EQ(small->figures().most_live(), kUnit / kGrain) << "fewer than the records are for";
  const Bytes span = span_units(200 * kKiB) * kUnit;
  take_part(200 * kKiB, a);
  EXPECT_EQ(small->cut_pages().segment_bytes(), kUnit + span);
  EXPECT_EQ(small->figures().most_live(), 2 * kMostBlocks + (kUnit + span) / kLeastSpan);
}

// All bytes that leave a cache count for the next event of their stream, of which others get the
// memory: one is due after 32 MiB.
TEST_F(SmallPoolTest, what_a_flush_takes_back_is_freed_with_its_bytes_and_its_last_number) {
  for (const std::uint64_t pages : {14U, 15U}) {
    SCOPED_TRACE(pages);
    const Caller caller = make_caller();
    StreamCache& cache = cache_of(caller);
    std::vector<DevicePtr> live;
    for (std::uint64_t i = 0; i < pages; ++i) live.push_back(take_page(caller));
    live.push_back(take_part(kPage, caller));
    for (const DevicePtr ptr : live) {
      caller.timeline->seal();  // each free has a number of its own
      EXPECT_NE(free_warm(ptr, caller), WarmCalls::Freed::no);
    }
    EXPECT_EQ(cache.cached_bytes(), (pages + 1) * kPage);
    EXPECT_FALSE(small->flusher().flush_one(Caller{}, kPage)) << "of no stream";
    small->flusher().flush(cache);
    EXPECT_EQ(cache.cached_bytes(), 0u);
    EXPECT_EQ(caller.timeline->numbers.last, pages + 1);
    EXPECT_EQ(caller.timeline->since_event.count, 1u);
    EXPECT_EQ(caller.timeline->since_event.bytes, (pages + 1) * kPage);
    EXPECT_EQ(timelines.is_due(*caller.timeline), pages == 15);
    EXPECT_EQ(pool->memory().index.pending_bytes(caller.timeline->id), (pages + 1) * kPage);
    EXPECT_EQ(timelines.mark_complete({{caller.timeline->id, pages + 1}}).size(), 1u);
    pool->advance({{caller.timeline->id, pages + 1}});
    EXPECT_EQ(pool->memory().index.pending_bytes(), 0u);
  }
}

TEST_F(SmallPoolTest, the_last_page_that_was_freed_gives_the_number_of_a_flush) {
  const DevicePtr first = take_page(a), second = take_page(a);
  for (const DevicePtr ptr : {first, second}) {
    a.timeline->seal();
    free_warm(ptr, a);
  }
  small->flusher().flush(cache_of(a));
  EXPECT_EQ(a.timeline->numbers.last, 2u);
  EXPECT_EQ(a.timeline->since_event.bytes, 2 * kPage);
}

// Most recently freed ones come first, and may be in use.
TEST_F(SmallPoolTest, a_thief_looks_at_64_segments) {
  for (const bool is_64th : {true, false}) {
    SCOPED_TRACE(is_64th);
    const Caller victim = make_caller();
    for (int i = 0; i < 2; ++i) victim.timeline->next(0);
    EXPECT_EQ(timelines.mark_complete({{victim.timeline->id, 1}}).size(), 1u);
    add_free_segment(1, 1, victim);
    for (int i = 0; i < (is_64th ? 63 : 64); ++i) add_free_segment(1, 2, victim);
    EXPECT_EQ(small->flusher().steal(a, kPage), is_64th);
    EXPECT_EQ(pool->memory().idle_bytes(), is_64th ? kPage : 0);
    if (is_64th) place(request(1), a);
    EXPECT_EQ(timelines.mark_complete({{victim.timeline->id, 2}}).size(), 1u);
    small->flusher().flush(cache_of(victim));
    while (pool->memory().idle_bytes() > 0) place(request(1), a);
  }
}

// Another thread of the stream moves the border of the free pages at which the segment was to be
// split, or takes them all.
class Splitting : public SmallPoolTest {
 protected:
  // Four pages in one segment, all in use.
  void SetUp() override {
    add_free_segment(4, 0, a);
    for (int i = 0; i < 4; ++i) spans.push_back(take_part(kPage, a));
    std::sort(spans.begin(), spans.end());
    ASSERT_EQ(spans[3], spans[0] + 3 * kPage);
    ASSERT_EQ(small->cut_pages().segments().size(), 1u);
  }
  template <typename Meanwhile>
  void flush_while(Meanwhile&& meanwhile) {
    StreamCache& cache = cache_of(a);
    const WarmCalls::FirstCache client = client_of(cache, a);
    test::Held held(
        "where free pages begin or end was read, the segment was not split",
        [&] { meanwhile(client); }, std::chrono::seconds{20});
    small->flusher().flush(cache);
    EXPECT_TRUE(held.end());
    EXPECT_TRUE(held.is_over());
  }

  std::vector<DevicePtr> spans;
};

TEST_F(Splitting, where_free_pages_end_by_then) {
  free_warm(spans[0], a);
  flush_while([&](const WarmCalls::FirstCache& client) {
    EXPECT_NE(small->warm_calls().try_free(client, spans[1]), WarmCalls::Freed::no);
  });
  EXPECT_EQ(idle(), 2 * kPage);
  EXPECT_EQ(small->cut_pages().segment_bytes(), 2 * kPage);
  EXPECT_EQ(small->cut_pages().segments().size(), 2u) << "a record that serves nobody";
}

TEST_F(Splitting, nowhere_if_no_page_is_free_any_more) {
  for (int turn = 0; turn < 2; ++turn) {
    free_warm(spans[1], a);
    flush_while([&](const WarmCalls::FirstCache& client) {
      EXPECT_EQ(small->warm_calls().try_allocate(client, kPage), spans[1]);
    });
    EXPECT_EQ(idle(), 0u);
    EXPECT_EQ(small->cut_pages().segment_bytes(), 4 * kPage);
    EXPECT_EQ(small->cut_pages().segments().size(), 2u) << "the record serves again";
  }
}

}  // namespace
}  // namespace vpmm::small
