// SPDX-License-Identifier: Apache-2.0
// small: what is taken from caches for whom, and what those who ask are told, on a pool without a
// context around it.
#include <algorithm>
#include <utility>
#include <vector>

#include "driver/recording.hpp"
#include "small/small_pool_fixture.hpp"

namespace vpmm::small {
namespace {

using Freed = WarmCalls::Freed;

class TakingBack : public SmallPoolFixture<driver::RecordingDriver> {
 protected:
  // Leaves so many pages in the caller's cache.
  void keep_pages(std::size_t count, const Caller& caller) {
    StreamCache& cache = cache_of(caller);
    cache.wants_attention = false;
    const WarmCalls::FirstCache client{
        &cache, caller.timeline == nullptr ? driver::StreamId{} : *caller.timeline->stream,
        caller.stream};
    std::vector<DevicePtr> live;
    for (std::size_t i = 0; i < count; ++i) live.push_back(take_page(caller));
    for (const DevicePtr ptr : live)
      EXPECT_NE(small->warm_calls().try_free(client, ptr), Freed::no);
  }
  Bytes kept(const Caller& caller) { return cache_of(caller).cached_bytes(); }
  // All that the stream freed so far; what it frees from here on is not.
  void complete_frees_of(const Caller& caller) {
    const time::StampPart part = caller.timeline->next(0);
    caller.timeline->seal();
    complete(part);
  }
};

TEST_F(TakingBack, all_tells_if_there_was_any) {
  Flusher& flusher = small->flusher();
  EXPECT_FALSE(flusher.flush());
  const DevicePtr live = take_part(100, a), freed = take_part(5000, a);
  EXPECT_EQ(free_warm(freed, a), Freed::yes);
  EXPECT_TRUE(flusher.flush()) << "a part of a page that stays in use";
  EXPECT_FALSE(flusher.flush());
  keep_pages(1, a);
  EXPECT_TRUE(flusher.flush());
  EXPECT_FALSE(flusher.flush());
  cache_of(a).wants_attention = false;
  EXPECT_EQ(free_warm(live, a), Freed::yes);
  a.timeline->seal();
  EXPECT_TRUE(flusher.flush());
  ASSERT_EQ(small->cut_pages().bytes(), kPage) << "of which parts are pending";
  EXPECT_FALSE(flusher.flush());
  const time::StampPart last{a.timeline->id, a.timeline->numbers.last};
  EXPECT_EQ(timelines.mark_complete({last}).size(), 1u);
  small->cut_pages().advance(last);
  EXPECT_TRUE(flusher.flush()) << "the whole page";
  EXPECT_EQ(small->cut_pages().bytes(), 0u);
  EXPECT_FALSE(flusher.flush());
}

TEST_F(TakingBack, for_a_stream_comes_from_its_own_cache_and_that_of_no_stream_before_all_others) {
  const Caller none;
  for (const auto& [own, of_none] : {std::pair{1u, 1u}, {1u, 0u}, {0u, 1u}, {0u, 0u}})
    for (const bool is_for_parts : {false, true}) {
      SCOPED_TRACE(::testing::Message() << own << of_none << is_for_parts);
      const auto flush_for = [&, is_for_parts = is_for_parts](const Caller& caller) {
        return is_for_parts ? small->flusher().flush_for_parts(caller)
                            : small->flusher().flush_for_pages(caller);
      };
      keep_pages(own, a);
      keep_pages(of_none, none);
      keep_pages(2, b);
      EXPECT_TRUE(flush_for(a));
      EXPECT_EQ(kept(a), 0u);
      EXPECT_EQ(kept(none), 0u);
      EXPECT_EQ(kept(b), own + of_none == 0 ? 0 : 2 * kPage);
      EXPECT_EQ(flush_for(a), own + of_none != 0);
      EXPECT_EQ(kept(b), 0u);
      EXPECT_FALSE(flush_for(a));
      keep_pages(1, none);
      keep_pages(2, b);
      EXPECT_TRUE(flush_for(none));
      EXPECT_EQ(kept(none), 0u);
      EXPECT_EQ(kept(b), 2 * kPage);
      EXPECT_TRUE(flush_for(none));
      EXPECT_FALSE(flush_for(none));
    }
}

// One goes to the pool, and half of the others to the stream that asked, if it is a stream.
TEST_F(TakingBack, pages_that_another_stream_is_done_with_are_one_and_half_of_the_rest) {
  for (std::size_t count = 1; count <= 6; ++count)
    for (const bool is_by_stream : {true, false}) {
      SCOPED_TRACE(::testing::Message() << count << (is_by_stream ? " by a stream" : ""));
      const Caller thief = is_by_stream ? make_caller() : Caller{}, victim = make_caller();
      keep_pages(count, victim);
      EXPECT_FALSE(small->flusher().steal(thief, kPage)) << "it may use them";
      complete_frees_of(victim);
      const Bytes before = idle();
      EXPECT_FALSE(small->flusher().steal(victim, kPage)) << "its own";
      EXPECT_FALSE(small->flusher().steal(thief, 2 * kPage)) << "none is as large";
      EXPECT_TRUE(small->flusher().steal(thief, kPage));
      const std::size_t half = is_by_stream ? (count - 1) / 2 : 0;
      EXPECT_EQ(idle() - before, kPage);
      EXPECT_EQ(kept(thief), half * kPage);
      EXPECT_EQ(kept(victim), (count - 1 - half) * kPage);
      small->flusher().flush();
    }
}

// A page that the stream may still use is all that it keeps besides.
TEST_F(TakingBack, pages_are_stolen_from_among_spans_that_live) {
  add_free_segment(4, 0, b);
  std::vector<DevicePtr> spans;
  for (int i = 0; i < 4; ++i) spans.push_back(take_part(kPage, b));
  std::sort(spans.begin(), spans.end());
  for (const std::size_t i : {1u, 2u}) EXPECT_EQ(free_warm(spans[i], b), Freed::yes);
  complete_frees_of(b);
  EXPECT_FALSE(small->flusher().steal(a, kPage)) << "it keeps less than a page in a piece";
  keep_pages(1, b);
  const Bytes before = idle();
  EXPECT_TRUE(small->flusher().steal(a, kPage));
  EXPECT_GE(idle() - before, kPage);
  EXPECT_EQ(kept(b) + idle() - before, 3 * kPage);
  const DevicePtr page = place(request(1), a).begin;
  EXPECT_TRUE(page == spans[1] || page == spans[2]);
}

}  // namespace
}  // namespace vpmm::small
