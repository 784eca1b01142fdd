// SPDX-License-Identifier: Apache-2.0
// small: what is taken from caches for whom, and what those who ask are told, on a pool without a
// context around it.
#include <algorithm>
#include <tuple>
#include <utility>
#include <vector>

#include "driver/recording.hpp"
#include "small/small_pool_fixture.hpp"

namespace vpmm::small {
namespace {

using Freed = WarmCalls::Freed;

class TakingBack : public SmallPoolFixture<driver::RecordingDriver> {
 protected:
  using SmallPoolFixture::SmallPoolFixture;
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

// Less than a page of others is no help for whole pages, but for parts if it is a sixteenth.
TEST_F(TakingBack, parts_that_others_keep_come_back_for_parts_alone) {
  const DevicePtr live = take_part(100, b), freed = take_part(200 * kKiB, b);
  EXPECT_NE(free_warm(freed, b), Freed::no);
  const Bytes before = kept(b);
  EXPECT_FALSE(small->flusher().flush_for_pages(a));
  EXPECT_EQ(kept(b), before);
  EXPECT_TRUE(small->flusher().flush_for_parts(a));
  EXPECT_EQ(kept(b), 0u);
  cache_of(b).wants_attention = false;
  EXPECT_NE(free_warm(live, b), Freed::no);
  EXPECT_FALSE(small->flusher().flush_for_parts(a)) << "a unit of a page";
  EXPECT_EQ(kept(b), kUnit);
}

// Of sizes that caches serve, for a stream, and only where another one keeps something.
TEST_F(TakingBack, the_pool_may_grow_instead_of_it) {
  Flusher& flusher = small->flusher();
  place(request(300), a);  // so that it may grow by so much early
  keep_pages(1, a);
  EXPECT_FALSE(flusher.may_grow_instead(request(1), a)) << "it is all its own";
  keep_pages(1, b);
  for (Bytes pages = 1; pages <= 6; ++pages)
    EXPECT_EQ(flusher.may_grow_instead(request(pages), a), pages <= kMostPages) << pages;
  EXPECT_FALSE(flusher.may_grow_instead(request(1), Caller{}));
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
      small->flusher().flush(cache_of(victim));
      EXPECT_EQ(small->flusher().steal(make_caller(), kPage), half > 0) << "nobody uses them";
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

// A timeline with a reference is not forgotten: one for each part that was cut for it.
TEST_F(TakingBack,
       pages_that_leave_a_segment_in_use_leave_their_stream_as_many_references_as_parts) {
  const std::uint64_t before = a.timeline->references;
  add_free_segment(4, 0, a);
  EXPECT_EQ(a.timeline->references, before + 1);
  std::vector<DevicePtr> spans;
  for (int i = 0; i < 4; ++i) spans.push_back(take_part(kPage, a));
  std::sort(spans.begin(), spans.end());
  for (const std::size_t i : {1u, 2u}) EXPECT_EQ(free_warm(spans[i], a), Freed::yes);
  small->flusher().flush();
  EXPECT_EQ(small->cut_pages().segment_bytes(), 2 * kPage);
  EXPECT_EQ(a.timeline->references, before + 2);
  cache_of(a).wants_attention = false;
  for (const std::size_t i : {0u, 3u}) EXPECT_NE(free_warm(spans[i], a), Freed::no);
  small->flusher().flush();
  EXPECT_EQ(small->cut_pages().segment_bytes(), 0u);
  EXPECT_EQ(a.timeline->references, before);
}

// --- before more pages are cut

TEST_F(TakingBack,
       more_is_cut_at_once_unless_a_quarter_of_what_is_cut_is_idle_or_the_pool_has_none) {
  struct Case {
    std::size_t live;  // quarters of a page
    bool has_pool, expected;
  };
  for (const auto& [live, has_pool, expected] :
       {Case{4, true, true}, Case{4, false, false}, Case{3, true, true}, Case{3, false, false},
        Case{2, true, false}, Case{1, true, false}}) {
    SCOPED_TRACE(::testing::Message() << live << has_pool);
    cache_of(a).wants_attention = false;
    std::vector<DevicePtr> spans;
    for (std::size_t i = 0; i < live; ++i) spans.push_back(take_part(kPage / 4, a));
    ASSERT_EQ(small->cut_pages().bytes(), kPage);
    while (pool->find(request(1), a)) {
    }
    if (has_pool) give_back(place(request(1), a).begin);
    EXPECT_EQ(small->should_cut(request(1), a), expected);
    for (const DevicePtr span : spans) EXPECT_NE(free_warm(span, a), Freed::no);
    a.timeline->seal();
    small->flusher().flush();
    complete({a.timeline->id, a.timeline->numbers.last});
    ASSERT_EQ(small->cut_pages().bytes(), 0u);
  }
}

TEST_F(TakingBack, a_stream_that_crowds_gives_back_its_whole_pages_before_more_are_cut) {
  keep_pages(3, a);
  keep_pages(3, b);
  EXPECT_TRUE(small->should_cut(request(1), a));
  EXPECT_EQ(kept(a), 0u);
  EXPECT_EQ(kept(b), 3 * kPage);
  EXPECT_FALSE(small->should_cut(request(1), Caller{})) << "no stream's, which keeps none";
}

struct TakingBackWhereNoneCrowds : TakingBack {
  TakingBackWhereNoneCrowds() : TakingBack(4) {}
};

TEST_F(TakingBackWhereNoneCrowds, a_stream_gives_back_one_piece_if_the_pool_has_none) {
  keep_pages(3, a);
  EXPECT_FALSE(small->should_cut(request(2), a)) << "no piece is as large";
  EXPECT_EQ(kept(a), 3 * kPage);
  EXPECT_FALSE(small->should_cut(request(1), b)) << "it is another stream's";
  for (int i = 0; i < 2; ++i) {
    EXPECT_TRUE(small->should_cut(request(1), a));
    EXPECT_EQ(kept(a), 2 * kPage) << "the pool has one by then";
  }
}

// Aligned to a power of two of pages.
TEST_F(TakingBack, the_pages_of_a_request_are_as_many_as_its_span_needs) {
  const Bytes alignment = pool->memory().page_alignment();
  for (const auto& [bytes, pages, aligned] : {std::tuple{Bytes{1}, Bytes{1}, Bytes{1}},
                                              {kPage - 1, 1, 1},
                                              {kPage, 1, 1},
                                              {kPage + 1, 2, 2},
                                              {2 * kPage, 2, 2},
                                              {2 * kPage + 1, 3, 4},
                                              {3 * kPage, 3, 4},
                                              {4 * kPage - 1, 4, 4}}) {
    const pool::PageRequest asked = small->cut_pages().next_pages(bytes);
    EXPECT_EQ(asked.size, pages * kPage) << bytes;
    EXPECT_EQ(asked.alignment, aligned * alignment) << bytes;
  }
}

// --- after a wait

// What no stream allocated serves the next such call, what a stream did that is gone any.
TEST_F(TakingBack, memory_whose_wait_is_over_stays_where_somebody_calls_for_it) {
  for (const bool is_of_stream : {false, true})
    for (const bool is_gone : {false, true}) {
      if (is_gone && !is_of_stream) continue;
      SCOPED_TRACE(::testing::Message() << is_of_stream << is_gone);
      const Caller caller = is_of_stream ? make_caller() : Caller{};
      const DevicePtr part = take_part(kPage, caller);
      const time::StampPart use = b.timeline->next(0);
      small->deallocate(*end(part), time::Stamp(use));
      EXPECT_EQ(small->figures().pending_bytes(), kPage);
      if (is_gone) small->bounds().retire(*caller.timeline);
      b.timeline->seal();
      complete(use);
      EXPECT_EQ(small->figures().pending_bytes(), 0u);
      EXPECT_EQ(small->cut_pages().segment_bytes(), is_gone ? 0 : kPage);
      small->flusher().flush();
    }
}

}  // namespace
}  // namespace vpmm::small
