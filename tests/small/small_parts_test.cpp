// SPDX-License-Identifier: Apache-2.0
// small: calls between its parts and from the room above, each with all its answers, on a pool
// without a context around it.
#include <algorithm>
#include <limits>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "driver/forwarding.hpp"
#include "driver/recording.hpp"
#include "small/small_pool_fixture.hpp"
#include "support/watching_driver.hpp"

namespace vpmm::small {
namespace {

using Freed = WarmCalls::Freed;

class SmallParts : public SmallPoolFixture<driver::RecordingDriver> {
 protected:
  static driver::StreamHandle handle_of(const Caller& caller) { return *caller.stream; }
  // As a call through the lock does.
  void note_handle(const Caller& caller) {
    StreamCache& cache = cache_of(caller);
    cache.wants_attention = false;
    cache.service.handle = static_cast<std::uint64_t>(handle_of(caller));
  }
  // Its context, or the stream itself, is gone.
  void end_cache_of(const Caller& caller) {
    small->caches().end(caller.timeline->id);
    caller.timeline->next_number = nullptr;
  }
};

// --- a request

// The least block that is large enough and whose neighbours begin at the alignment as well.
TEST_F(SmallParts, a_request_takes_the_least_aligned_block_or_else_a_span) {
  for (const Bytes bytes : {Bytes{1}, Bytes{256}, Bytes{257}, 2 * kKiB, Bytes{5000}, 16 * kKiB,
                            kLargestBlock - 1, kLargestBlock, kLargestBlock + 1, 200 * kKiB})
    for (const Bytes alignment : {Bytes{0}, Bytes{8}, Bytes{256}, Bytes{512}, 4 * kKiB, 8 * kKiB,
                                  16 * kKiB, 32 * kKiB, 128 * kKiB}) {
      Bytes expected = span_units(bytes) * kUnit;
      for (std::size_t c = kSlabClasses; c-- > 0;)
        if (alignment <= kUnit && block_size(c) >= bytes &&
            is_multiple(block_size(c), std::max(alignment, kGrain)))
          expected = block_size(c);
      DevicePtr part = small->take(bytes, alignment, a);
      while (is_null(part)) {
        small->cut_pages().add(place(request(1), a), a);
        part = small->take(bytes, alignment, a);
      }
      EXPECT_TRUE(is_multiple(to_integer(part), std::max(alignment, kGrain)));
      const std::optional<Allocation> found =
          Ownership::find(*pool->memory().index.allocated_around(part), part);
      ASSERT_TRUE(found.has_value());
      EXPECT_EQ(found->range, (AddressRange{part, expected})) << bytes << " at " << alignment;
      EXPECT_EQ(found->requested, bytes);
    }
}

// Free are 8 units before the border of two pages, and 16 behind it.
TEST_F(SmallParts, units_are_found_within_one_page_or_across_two_if_they_fit_in_none) {
  CutPages& cut_pages = small->cut_pages();
  cut_pages.add(place(request(2), a), a);
  const CutPages::FreePart all = cut_pages.find_pages(2 * kPage, a);
  ASSERT_EQ(all.part.size, 2 * kPage);
  const DevicePtr border = all.part.begin + kPage;
  const auto cut = [&](DevicePtr begin, DevicePtr end) {
    CutPages::FreePart room = cut_pages.find_aligned(end - begin, kUnit, a);
    room.part = {begin, end - begin};
    return cut_pages.cut(room, a);
  };
  Segment* const before = cut(all.part.begin, border - 8 * kUnit);
  Segment* const behind = cut(border + 16 * kUnit, border + kPage);
  constexpr std::uint64_t kAny = 1000;
  struct Case {
    std::uint64_t least, most, skipped, found;  // units; from the first that is free
  };
  for (const auto& [least, most, skipped, found] :
       {Case{1, 1, 0, 1}, Case{4, kAny, 0, 8}, Case{8, 8, 0, 8}, Case{8, kAny, 0, 8},
        Case{9, 9, 8, 9}, Case{9, kAny, 8, 16}, Case{15, kAny, 8, 16}, Case{16, 16, 8, 16},
        Case{16, kAny, 8, 16}, Case{17, 17, 0, 17}, Case{17, kAny, 0, 17}, Case{24, kAny, 0, 24},
        Case{25, kAny, 0, 0}}) {
    const CutPages::FreePart room = cut_pages.find(least * kUnit, most * kUnit, kUnit, a);
    EXPECT_EQ(room.free == nullptr, found == 0) << least;
    if (room.free == nullptr) continue;
    EXPECT_EQ(room.part, (AddressRange{border - 8 * kUnit + skipped * kUnit, found * kUnit}))
        << least << " to " << most;
    EXPECT_EQ(room.number, 0u) << "complete";
  }
  for (Segment* const segment : {before, behind}) cut_pages.end(segment, {});
  EXPECT_EQ(cut_pages.bytes(), 0u);
}

// Note [A segment is as complete as what it was cut from]
TEST_F(SmallParts, units_of_a_pending_page_are_no_other_streams_until_it_is_complete) {
  CutPages& cut_pages = small->cut_pages();
  for (const bool is_pending : {false, true}) {
    SCOPED_TRACE(is_pending);
    if (is_pending) give_back_pending(place(request(1), a).begin, a, Closed::no);
    const pool::Placed page = place(request(1), a);
    ASSERT_EQ(page.is_complete, !is_pending);
    cut_pages.add(page, a);
    const std::uint64_t number = is_pending ? a.timeline->numbers.last : 0;
    EXPECT_EQ(cut_pages.find(kUnit, kPage, kUnit, a).number, number);
    EXPECT_EQ(cut_pages.find_aligned(kUnit, kUnit, a).number, number);
    const CutPages::FreePart room = cut_pages.find_pages(kPage, a);
    EXPECT_EQ(room.number, number);
    StreamCache& cache = cache_of(a);
    Segment* const segment = cut_pages.cut(room, a);
    {
      const CacheGuard guard(cache);
      cache.segments.attach(segment, &cache, room.number);
    }
    EXPECT_EQ(small->flusher().steal(b, kPage), !is_pending);
    if (!is_pending) {
      EXPECT_EQ(cache.cached_bytes(), 0u);
      continue;
    }
    a.timeline->seal();
    complete({a.timeline->id, number});
    EXPECT_TRUE(small->flusher().steal(b, kPage));
  }
}

// So that no warm call looks into what the page was.
TEST_F(SmallParts, a_page_that_goes_back_is_named_by_nobody) {
  for (const Bytes bytes : {Bytes{100}, 200 * kKiB, kPage}) {
    const DevicePtr part = take_part(bytes, a);
    EXPECT_EQ(small->ownership().locate(part).cache, &cache_of(a));
    EXPECT_EQ(free_warm(part, a), Freed::yes);
    a.timeline->seal();
    small->flusher().flush(cache_of(a));
    complete({a.timeline->id, a.timeline->numbers.last});
    ASSERT_EQ(small->cut_pages().bytes(), 0u);
    EXPECT_EQ(small->ownership().pagemap().at(part)->content(), Content{}) << bytes;
    EXPECT_EQ(small->ownership().locate(part).cache, nullptr) << bytes;
    note_handle(a);
  }
}

// --- a free

TEST_F(SmallParts, a_free_by_the_handle_says_why_it_is_none) {
  const DevicePtr of_a = take_part(200 * kKiB, a), of_b = take_part(200 * kKiB, b);
  WarmCalls& calls = small->warm_calls();
  for (const Caller& caller : {a, b}) {
    EXPECT_EQ(calls.try_free_by_handle(of_a, handle_of(caller)), Freed::not_known)
        << "it has not called with it";
    note_handle(caller);
  }
  EXPECT_EQ(calls.try_free_by_handle(of_a, handle_of(b)), Freed::not_known);
  EXPECT_EQ(calls.try_free_by_handle(of_a, driver::StreamHandle{kNoHandle}), Freed::no);
  EXPECT_EQ(calls.try_free_by_handle(DevicePtr{kPage}, handle_of(a)), Freed::not_known);
  EXPECT_EQ(calls.try_free_by_handle(of_a + kUnit, handle_of(a)), Freed::no) << "inside";
  cache_of(a).wants_attention = true;
  EXPECT_EQ(calls.try_free_by_handle(of_a, handle_of(a)), Freed::no);
  EXPECT_EQ(calls.try_free_by_handle(of_b, handle_of(b)), Freed::yes) << "another stream's";
  EXPECT_EQ(cache_of(a).cached_bytes(), 0u);
  note_handle(a);
  EXPECT_EQ(calls.try_free_by_handle(of_a, handle_of(a)), Freed::yes);
  EXPECT_GT(cache_of(a).cached_bytes(), 0u);
  EXPECT_EQ(calls.try_free_by_handle(of_a, handle_of(a)), Freed::no) << "a second time";
}

TEST_F(SmallParts, a_free_of_whole_pages_takes_the_lock_where_others_have_to_know) {
  const DevicePtr page = take_page(a);
  region::Region& region = *pool->memory().index.allocated_around(page);
  EXPECT_EQ(free_warm(page + kUnit, a), Freed::no) << "inside";
  EXPECT_EQ(free_warm(page, b), Freed::no) << "another stream's";
  region.owner.capture = 5;
  EXPECT_EQ(free_warm(page, a), Freed::no) << "a graph's";
  region.owner.capture = 0;
  EXPECT_TRUE(small->ownership().record_use(region, *b.timeline));
  EXPECT_EQ(free_warm(page, a), Freed::no) << "used on another stream";
  const DevicePtr other = take_page(a);
  EXPECT_EQ(free_warm(other, a), Freed::yes);
  EXPECT_EQ(free_warm(other, a), Freed::no) << "a second time";
  EXPECT_EQ(cache_of(a).cached_bytes(), kPage);
  region::Region& kept = *pool->memory().index.allocated_around(other);
  for (const bool is_listed : {true, false}) {
    if (!is_listed) small->ownership().leave(kept);
    EXPECT_FALSE(small->ownership().record_use(kept, *b.timeline)) << "nobody's";
    EXPECT_FALSE(small->ownership().end(kept)) << "nobody's";
  }
  EXPECT_TRUE(kept.owner.other_uses.empty());
}

// The cache is the same, so only the owner tells them apart.
TEST_F(SmallParts, whole_pages_of_a_stream_that_is_gone_are_not_its_successors) {
  const Caller first = make_caller();
  StreamCache& cache = cache_of(first);
  const DevicePtr page = take_page(first);
  small->bounds().retire(*first.timeline);
  const Caller second = make_caller();
  ASSERT_EQ(&cache_of(second), &cache);
  note_handle(second);
  EXPECT_EQ(free_warm(page, second), Freed::no);
  EXPECT_EQ(small->warm_calls().try_free_by_handle(page, handle_of(second)), Freed::no);
  EXPECT_EQ(cache.cached_bytes(), 0u);
}

// If the call does not record it.
TEST_F(SmallParts, the_call_after_a_free_that_is_worth_an_event_takes_the_lock) {
  StreamCache& cache = cache_of(a);
  std::vector<DevicePtr> pages;
  for (int i = 0; i < 40; ++i) pages.push_back(take_page(a));
  small->caches().want_events(b.timeline);
  sim.advance_host_ns(pool::kSecondNs);
  Freed freed = Freed::yes;
  while (freed == Freed::yes && pages.size() > 1) {
    EXPECT_FALSE(cache.events.is_due);
    freed = free_warm(pages.back(), a);
    pages.pop_back();
  }
  EXPECT_EQ(freed, Freed::yes_and_event_is_due);
  EXPECT_TRUE(cache.events.is_due);
  EXPECT_EQ(free_warm(pages.back(), a), Freed::no);
  EXPECT_TRUE(is_null(small->warm_calls().try_allocate(client_of(cache, a), kPage)));
}

// It records the event that others want, of what they took; if they took nothing, calls stay warm.
TEST_F(SmallParts, the_call_after_a_flush_takes_the_lock) {
  for (const bool has_cached : {true, false}) {
    SCOPED_TRACE(has_cached);
    const Caller caller = make_caller();
    StreamCache& cache = cache_of(caller);
    const WarmCalls::FirstCache client = client_of(cache, caller);
    const DevicePtr page = take_page(caller), first = take_part(100, caller),
                    second = take_part(100, caller);
    if (has_cached) {
      EXPECT_EQ(free_warm(page, caller), Freed::yes);
    }
    note_handle(caller);
    small->flusher().flush(cache);
    EXPECT_EQ(cache.cached_bytes(), 0u);
    EXPECT_EQ(is_null(small->warm_calls().try_allocate(client, 100)), has_cached);
    const Freed expected = has_cached ? Freed::no : Freed::yes;
    EXPECT_EQ(small->warm_calls().try_free(client, first), expected);
    EXPECT_EQ(small->warm_calls().try_free_by_handle(second, handle_of(caller)), expected);
    note_handle(caller);
    if (has_cached) {
      EXPECT_EQ(small->warm_calls().try_free(client, first), Freed::yes) << "the call after that";
    }
  }
}

// Note [Many streams keep a bounded amount]
TEST_F(SmallParts, a_free_through_the_lock_leaves_no_more_in_a_cache_than_it_may_keep) {
  for (const bool waits : {false, true})
    for (const auto& [are_bounded, has_much_live, kept] :
         {std::tuple{false, false, kPage}, {true, false, Bytes{0}}, {true, true, kPage}}) {
      SCOPED_TRACE(::testing::Message() << waits << are_bounded << has_much_live);
      const Caller caller = make_caller();
      StreamCache& cache = cache_of(caller);
      const DevicePtr part = take_part(kPage, caller);
      const DevicePtr live = has_much_live ? place(request(8), b).begin : DevicePtr{};
      small->caches().set_bounded(are_bounded);
      const std::optional<Allocation> ended = end(part);
      ASSERT_TRUE(ended.has_value());
      const time::StampPart use = (waits ? b : caller).timeline->next(0);
      small->deallocate(*ended, time::Stamp(use));
      if (waits) {
        EXPECT_EQ(cache.cached_bytes(), 0u);
        b.timeline->seal();
        complete(use);
      }
      EXPECT_EQ(cache.cached_bytes(), kept);
      EXPECT_EQ(small->caches().allowed(), are_bounded ? kept - std::min(kept, kUnit) : 0);
      if (has_much_live) give_back(live);
      small->bounds().give_back(*caller.timeline);
      EXPECT_EQ(cache.cached_bytes(), 0u);
      EXPECT_EQ(small->caches().allowed(), 0u);
    }
}

// A cache whose stream is gone serves the next stream as soon as nothing is left in it, whoever
// empties it.
enum class Emptied { by_a_flush_of_all, by_the_end_of_its_context, by_the_last_free };

TEST_F(SmallParts, a_cache_without_a_stream_serves_another_once_it_is_empty) {
  for (const Emptied emptied : {Emptied::by_a_flush_of_all, Emptied::by_the_end_of_its_context,
                                Emptied::by_the_last_free}) {
    SCOPED_TRACE(static_cast<int>(emptied));
    const Caller caller = make_caller();
    StreamCache& cache = cache_of(caller);
    const DevicePtr kept = take_part(kPage, caller), live = take_part(200 * kKiB, caller);
    const bool has_live = emptied == Emptied::by_the_last_free;
    if (!has_live) free_warm(live, caller);
    free_warm(kept, caller);
    if (emptied == Emptied::by_the_end_of_its_context) {
      caller.timeline->is_over = true;
      small->flusher().retire_dead();
    } else {
      end_cache_of(caller);
      EXPECT_FALSE(cache.is_unused);
      EXPECT_TRUE(small->flusher().flush());
    }
    EXPECT_EQ(cache.cached_bytes(), 0u);
    EXPECT_EQ(cache.is_unused, !has_live);
    if (has_live) {
      EXPECT_NE(&cache_of(make_caller()), &cache) << "something lives in it";
      const time::StampPart use = b.timeline->next(0);
      small->deallocate(*end(live), time::Stamp(use));
      EXPECT_FALSE(cache.is_unused);
      b.timeline->seal();
      complete(use);
      EXPECT_TRUE(cache.is_unused);
    }
    EXPECT_EQ(&cache_of(make_caller()), &cache);
  }
}

// --- streams that crowd

struct SmallPartsOfACrowd : SmallPoolFixture<driver::RecordingDriver> {
  SmallPartsOfACrowd() : SmallPoolFixture(4) {}
};

// Only those look whether the pool's lock is taken.
TEST_F(SmallPartsOfACrowd, a_request_that_finds_nothing_is_alone_or_not_and_no_other) {
  StreamCache& cache = cache_of(a);
  const WarmCalls::FirstCache client = client_of(cache, a);
  WarmCalls& calls = small->warm_calls();
  add_free_segment(2, 0, a);
  EXPECT_TRUE(is_null(calls.try_allocate(client, kPage))) << "it does not crowd";
  small->warm_calls().heed(mutex);  // which this thread holds
  for (int i = 0; i < 4; ++i) {
    EXPECT_FALSE(cache.crowding.is_crowded());
    EXPECT_TRUE(is_null(calls.try_allocate(client, kPage)));
  }
  EXPECT_TRUE(cache.crowding.is_crowded());
  Mutex free;
  small->warm_calls().heed(free);
  for (int i = 0; i < 100; ++i) {
    const DevicePtr pages = calls.try_allocate(client, 2 * kPage);
    ASSERT_FALSE(is_null(pages));
    EXPECT_NE(calls.try_free(client, pages), Freed::no);
    cache.wants_attention = false;
  }
  for (int i = 0; i < 64; ++i) {
    EXPECT_TRUE(cache.crowding.is_crowded());
    EXPECT_TRUE(is_null(calls.try_allocate(client, 3 * kPage)));
  }
  EXPECT_FALSE(cache.crowding.is_crowded());
  EXPECT_TRUE(is_null(calls.try_allocate(client, kPage)));
}

// --- an observer of memory

struct Silent : driver::ForwardingDriver {
  using ForwardingDriver::ForwardingDriver;
  driver::MemoryObserver* memory_observer() override { return nullptr; }
};

// Warm calls of a stream, by its handle, and of no stream, for blocks, spans and whole pages.
template <typename Between>
class Told : public SmallPoolFixture<Between> {
 protected:
  template <typename Expect>
  void for_each_call(const Expect& expect) {
    for (const bool is_of_stream : {true, false})
      for (const Bytes bytes : {Bytes{100}, Bytes{5000}, 200 * kKiB, kPage}) {
        SCOPED_TRACE(::testing::Message() << bytes << (is_of_stream ? " of a stream" : ""));
        const Caller caller = is_of_stream ? this->a : Caller{};
        StreamCache& cache = this->cache_of(caller);
        const WarmCalls::FirstCache client{
            &cache, is_of_stream ? *caller.timeline->stream : driver::StreamId{}, caller.stream};
        WarmCalls& calls = this->small->warm_calls();
        const AddressRange part{this->take_part(bytes, caller),
                                this->small->serving().taken_for(bytes)};
        EXPECT_NE(calls.try_free(client, part.begin), Freed::no);
        expect({}, {{part, caller.stream}});
        EXPECT_EQ(calls.try_free(client, part.begin), Freed::no);
        expect({}, {});
        EXPECT_EQ(calls.try_allocate(client, bytes), part.begin);
        expect({{part, caller.stream}}, {});
        if (is_of_stream) {
          cache.service.handle = static_cast<std::uint64_t>(*caller.stream);
          EXPECT_NE(calls.try_free_by_handle(part.begin, *caller.stream), Freed::no);
          expect({}, {{part, std::nullopt}});
        } else {
          EXPECT_NE(calls.try_free(client, part.begin), Freed::no);
          expect({}, {{part, std::nullopt}});
        }
        cache.wants_attention = true;
        EXPECT_TRUE(is_null(calls.try_allocate(client, bytes)));
        expect({}, {});
        cache.wants_attention = false;
      }
  }
};

using ToldTo = test::WatchingDriver::Told;

struct AnObserver : Told<test::WatchingDriver> {};

TEST_F(AnObserver, hears_once_of_each_warm_call_and_of_its_stream_unless_it_went_by_the_handle) {
  for_each_call([&](const std::vector<ToldTo>& begun, const std::vector<ToldTo>& ended) {
    EXPECT_EQ(driver.begun, begun);
    EXPECT_EQ(driver.ended, ended);
    driver.begun.clear();
    driver.ended.clear();
  });
}

struct NoObserver : Told<Silent> {};

TEST_F(NoObserver, is_needed_for_any_warm_call) {
  std::size_t calls = 0;
  for_each_call([&](const std::vector<ToldTo>& begun, const std::vector<ToldTo>& ended) {
    calls += begun.size() + ended.size();
  });
  EXPECT_EQ(calls, 2u * 4 * 3);
}

}  // namespace
}  // namespace vpmm::small
