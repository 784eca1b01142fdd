// small: caches serve one stream after another.
#include "small/stream_caches.hpp"

#include <gtest/gtest.h>

#include "driver/sim/sim_driver.hpp"
#include "support/page_size.hpp"
#include "support/sim_timelines.hpp"

namespace vpmm::small {
namespace {

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
  for (const Slab* const slab : {one, two}) {
    EXPECT_EQ(slab->cache(), nullptr);
    EXPECT_EQ(slab->next, nullptr);
  }
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
