// SPDX-License-Identifier: Apache-2.0
// small: caches serve one stream after another.
#include "small/stream_caches.hpp"

#include <gtest/gtest.h>

#include "driver/sim/sim_driver.hpp"
#include "small/other_uses.hpp"
#include "support/page_size.hpp"
#include "support/sim_timelines.hpp"

namespace vpmm::small {
namespace {

constexpr Bytes kWorthAnEvent = time::EventPacing::kBytesPerEvent;

class StreamCachesTest : public ::testing::Test {
 protected:
  StreamCachesTest() { time::enter_primary(sim, timelines); }
  ~StreamCachesTest() override { timelines.destroy_events(); }
  time::Timeline& timeline() {
    driver::StreamHandle stream{};
    EXPECT_EQ(sim.stream_create(driver::StreamFlags::non_blocking, stream),
              driver::CuResult::success);
    return *timelines.of(stream).value();
  }

  driver::sim::SimDriver sim{{}};
  time::Timelines timelines{sim, {}};
  StreamCaches caches{kPage};
};

TEST_F(StreamCachesTest, as_many_as_live_at_once_serve_all_that_come_and_go) {
  caches.of(timeline());
  for (int i = 0; i < 20; ++i) {
    time::Timeline& one = timeline();
    time::Timeline& other = timeline();
    StreamCache& of_one = caches.of(one);
    StreamCache& of_other = caches.of(other);
    EXPECT_NE(&of_one, &of_other);
    EXPECT_EQ(&caches.of(one), &of_one) << "a stream keeps its own";
    EXPECT_EQ(caches.stream_count(), 3u);
    for (const auto& [timeline, cache] : {std::pair{&one, &of_one}, {&other, &of_other}}) {
      caches.end(timeline->id);
      EXPECT_EQ(caches.find(timeline), nullptr);
      caches.retire_if_empty(*cache);
      caches.retire_if_empty(*cache);  // no more than once
    }
  }
  EXPECT_EQ(caches.all().size(), 4u) << "of three streams, and of none";
}

TEST_F(StreamCachesTest, caches_keep_all_they_have_until_they_are_many) {
  EXPECT_FALSE(caches.are_bounded());
  EXPECT_EQ(caches.allowed(), 0u);
  for (const bool are_many : {true, false}) {
    caches.set_bounded(are_many);
    EXPECT_EQ(caches.are_bounded(), are_many);
  }
}

TEST_F(StreamCachesTest, a_stream_begins_without_what_was_known_of_the_one_before) {
  time::Timeline& first = timeline();
  StreamCache& cache = caches.of(first);
  cache.activity.idle_looks = 5;
  cache.wants_attention = true;
  cache.unproven = time::StampPart{first.id, 3};
  EXPECT_EQ(cache.next_number.of_a_free(), 1u);
  caches.allow(cache, 100 * kUnit);
  EXPECT_EQ(caches.allowed(), 100 * kUnit);
  caches.end(first.id);
  EXPECT_EQ(caches.allowed(), 0u);
  caches.retire_if_empty(cache);
  time::Timeline& second = timeline();
  second.next(0);
  second.next(0);
  ASSERT_EQ(&caches.of(second), &cache);
  EXPECT_EQ(cache.activity.idle_looks, 0u);
  EXPECT_FALSE(cache.wants_attention);
  EXPECT_FALSE(cache.unproven.has_value());
  EXPECT_EQ(cache.keeping.most, kAlwaysKept);
  EXPECT_FALSE(cache.next_number.is_used());
  EXPECT_EQ(cache.next_number.of_a_free(), 3u) << "behind the last of its own";
}

// So no warm call finds the cache for a stream that it does not serve.
TEST_F(StreamCachesTest, a_cache_names_its_stream_while_it_serves_it) {
  time::Timeline& first = timeline();
  StreamCache& cache = caches.of(first);
  const auto expect_serves = [&](const time::Timeline& stream, bool serves) {
    EXPECT_EQ(cache.serves(*stream.stream), serves);
    EXPECT_EQ(cache.timeline_now() == stream.id, serves);
    EXPECT_EQ(stream.next_number == &cache.next_number, serves);
  };
  expect_serves(first, true);
  cache.service.handle = 7;
  caches.end(first.id);
  EXPECT_EQ(cache.service.handle.load(), kNoHandle);
  EXPECT_FALSE(cache.timeline_now().has_value());
  EXPECT_FALSE(cache.serves(*first.stream));
  first.next_number = nullptr;
  caches.retire_if_empty(cache);
  EXPECT_TRUE(cache.is_unused);
  time::Timeline& second = timeline();
  ASSERT_EQ(&caches.of(second), &cache);
  EXPECT_FALSE(cache.is_unused);
  expect_serves(first, false);
  expect_serves(second, true);
  caches.retire_if_empty(cache);
  EXPECT_FALSE(cache.is_unused) << "it is in service";
  caches.retire_if_empty(caches.any());
  EXPECT_FALSE(caches.any().is_unused);
}

TEST_F(StreamCachesTest, a_miss_wants_events_of_all_streams_that_there_are_but_its_own) {
  time::Timeline& missing = timeline();
  StreamCache& own = caches.of(missing);
  StreamCache& other = caches.of(timeline());
  const auto is_due = [&](StreamCache& cache) {
    return cache.events.pacing.is_due(kWorthAnEvent, caches.misses(), caches.stream_count(),
                                      [] { return std::uint64_t{1} << 40; });
  };
  for (StreamCache* const cache : {&own, &other}) EXPECT_FALSE(is_due(*cache)) << "none missed";
  caches.want_events(&missing);
  EXPECT_EQ(caches.misses(), 1u);
  StreamCache& later = caches.of(timeline());
  EXPECT_FALSE(is_due(own));
  EXPECT_TRUE(is_due(other));
  EXPECT_FALSE(is_due(later)) << "it has freed nothing that the miss could want";
  caches.want_events(nullptr);
  EXPECT_EQ(caches.misses(), 2u);
  EXPECT_TRUE(is_due(own));
  EXPECT_TRUE(is_due(later));
}

TEST_F(StreamCachesTest, uses_by_other_streams_keep_their_timelines_until_they_are_forgotten) {
  time::Timeline &one = timeline(), &two = timeline();
  OtherUses uses(timelines);
  const DevicePtr first{kPage}, second{2 * kPage};
  EXPECT_TRUE(uses.of(first).empty());
  for (time::Timeline* const timeline : {&one, &two, &one}) uses.add(first, *timeline);
  uses.add(second, two);
  EXPECT_EQ(uses.of(first), (Vector<time::TimelineId>{one.id, two.id}));
  EXPECT_EQ(uses.of(second), Vector<time::TimelineId>{two.id});
  EXPECT_EQ(one.references, 1u);
  EXPECT_EQ(two.references, 2u);
  for (int i = 0; i < 2; ++i) {
    uses.forget(first);
    EXPECT_TRUE(uses.of(first).empty());
    EXPECT_EQ(one.references, 0u);
    EXPECT_EQ(two.references, 1u);
  }
  uses.forget(second);
  EXPECT_EQ(two.references, 0u);
}

TEST_F(StreamCachesTest, records_of_slabs_are_counted_while_a_cache_has_them) {
  time::Timeline& stream = timeline();
  StreamCache& cache = caches.of(stream);
  EXPECT_EQ(caches.slab_count(), 0u);
  caches.provide_slabs(cache);
  EXPECT_EQ(caches.slab_count(), 2u);
  caches.provide_slabs(cache);
  EXPECT_EQ(caches.slab_count(), 2u) << "it has some";
  caches.end(stream.id);
  caches.retire_if_empty(cache);
  EXPECT_EQ(caches.slab_count(), 0u);
}

// A cache that gets records of another begins with its own alone.
TEST_F(StreamCachesTest, records_of_slabs_that_go_to_another_cache_name_none) {
  time::Timeline& first = timeline();
  StreamCache& cache = caches.of(first);
  caches.provide_slabs(cache);
  Slab* const one = cache.slabs.take_spare();
  Slab* const two = cache.slabs.take_spare();
  EXPECT_FALSE(cache.slabs.has_spare());
  for (Slab* const slab : {one, two}) {
    slab->set_cache(&cache);
    cache.slabs.add_spare(slab);
  }
  caches.end(first.id);
  caches.retire_if_empty(cache);
  EXPECT_FALSE(cache.slabs.has_spare());
  for (const Slab* const slab : {one, two}) EXPECT_EQ(slab->cache(), nullptr);
  StreamCache& other = caches.of(timeline());
  caches.provide_slabs(other);
  for (int i = 0; i < 2; ++i) {
    const Slab* const slab = other.slabs.take_spare();
    EXPECT_TRUE(slab == one || slab == two) << "they serve again";
  }
  EXPECT_FALSE(other.slabs.has_spare());
}

}  // namespace
}  // namespace vpmm::small
