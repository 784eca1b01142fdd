// SPDX-License-Identifier: Apache-2.0
// small tests: its parts on a pool without a context around it.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <variant>

#include "pool/pool_fixture.hpp"
#include "small/small_pool.hpp"

namespace vpmm::small {

using pool::Caller;

// `Between` is the driver between the pool and the simulator.
template <typename Between>
class SmallPoolFixture : public pool::PoolFixture<Between> {
 protected:
  using Base = pool::PoolFixture<Between>;
  using Base::config, Base::driver, Base::lock, Base::pool, Base::request, Base::timelines;

  // 0: streams cut pages of all sizes.
  explicit SmallPoolFixture(std::uint32_t crowded_after = 0) {
    config.page_chunks = false;
    config.chunk_max = kPage;
    this->open();
    ServingOptions options;
    options.crowded_after = crowded_after;
    small = std::make_unique<SmallPool>(driver, *pool, timelines, options);
    EXPECT_TRUE(pool->prepare(lock).ok());
    small->prepare();
  }
  ~SmallPoolFixture() override { EXPECT_EQ(small->validate(), ""); }

  StreamCache& cache_of(const Caller& caller) { return small->caches().of(caller); }
  static WarmCalls::FirstCache client_of(StreamCache& cache, const Caller& caller) {
    return {&cache, *caller.timeline->stream, caller.stream};
  }
  // New memory of the pool.
  pool::Placed place(const pool::PageRequest& pages, const Caller& caller) {
    if (const auto found = pool->find(pages, caller)) return *found;
    const auto answer = pool->map(lock, pages, caller, pool::Effort::by_policy, 0);
    EXPECT_TRUE(answer.ok());
    return std::get<pool::Placed>(answer.value());
  }
  // Of a page that is cut where the stream has no room.
  DevicePtr take_part(Bytes bytes, const Caller& caller) {
    for (;;) {
      if (const DevicePtr part = small->take(bytes, 0, caller); !is_null(part)) return part;
      const pool::PageRequest pages = small->cut_pages().next_pages(bytes);
      small->cut_pages().add(place(pages, caller), caller);
    }
  }
  // A segment of so many pages that are free, and were freed last with that number.
  void add_free_segment(Bytes pages, std::uint64_t number, const Caller& caller) {
    CutPages& cut_pages = small->cut_pages();
    cut_pages.add(place(cut_pages.next_pages(pages * kPage), caller), caller);
    Segment* const segment = cut_pages.cut(cut_pages.find_pages(pages * kPage, caller), caller);
    StreamCache& cache = cache_of(caller);
    const CacheGuard guard(cache);
    cache.segments.attach(segment, &cache, number);
  }
  // A page as a whole, which its stream may free without the pool's lock.
  DevicePtr take_page(const Caller& caller) {
    const DevicePtr page = place(request(1), caller).begin;
    small->ownership().enlist(*pool->memory().index.allocated_around(page), kPage,
                              cache_of(caller));
    return page;
  }
  WarmCalls::Freed free_warm(DevicePtr ptr, const Caller& caller) {
    return small->warm_calls().try_free(client_of(cache_of(caller), caller), ptr);
  }
  // Ended by its user; its memory is not free yet.
  std::optional<Allocation> end(DevicePtr part) {
    return Ownership::end(*pool->memory().index.allocated_around(part), part);
  }
  void complete(const time::StampPart& part) {
    EXPECT_EQ(timelines.mark_complete({part}).size(), 1u);
    small->advance({part});
  }
  Bytes idle() { return pool->memory().idle_bytes() + small->cut_pages().free_bytes(); }

  std::unique_ptr<SmallPool> small;
};

}  // namespace vpmm::small
