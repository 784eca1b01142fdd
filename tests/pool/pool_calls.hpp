// SPDX-License-Identifier: Apache-2.0
// pool tests: a pool whose driver a test can put out of order, and questions about its state.
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "pool/pool_fixture.hpp"
#include "support/hooked_driver.hpp"

namespace vpmm::pool {

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
    EXPECT_EQ(released ? released.value() % kPage : 0, 0u);
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

}  // namespace vpmm::pool
