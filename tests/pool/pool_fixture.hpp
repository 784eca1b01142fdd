// SPDX-License-Identifier: Apache-2.0
// pool tests: a pool of pages on the simulator, without a context around it.
#pragma once

#include <gtest/gtest.h>

#include <memory>

#include "base/message.hpp"
#include "driver/sim/sim_driver.hpp"
#include "pool/pool.hpp"
#include "support/page_size.hpp"
#include "support/sim_timelines.hpp"

namespace vpmm::pool {

constexpr std::uint64_t kSecondNs = 1'000'000'000;

// `Between` is the driver between the pool and the simulator. A test sets `config` and opens the
// pool.
template <typename Between>
class PoolFixture : public ::testing::Test {
 protected:
  explicit PoolFixture(const driver::sim::SimOptions& options = {}) : sim(options) {
    context = time::enter_primary(sim, timelines);
    config.page_chunks = true;
    config.va_size = kGiB;
  }
  ~PoolFixture() override {
    EXPECT_EQ(pool->memory().validate(), "");
    sim.run_until_idle();
    pool->release_everything();
    timelines.destroy_events();
    EXPECT_EQ(sim.census().chunks, 0u);
    EXPECT_EQ(sim.census().mappings, 0u);
    EXPECT_EQ(sim.census().reservations, 0u);
  }
  static void expect(driver::CuResult result) { EXPECT_EQ(result, driver::CuResult::success); }

  // A new pool; one before it ends.
  void open() {
    if (pool != nullptr) pool->release_everything();
    pool = std::make_unique<Pool>(driver, driver::ChunkProperties{}, config, kPage, timelines);
    a = make_caller();
    b = make_caller();
  }
  Caller make_caller() {
    Caller caller;
    driver::StreamHandle stream{};
    expect(sim.stream_create(driver::StreamFlags::non_blocking, stream));
    caller.stream = stream;
    caller.timeline = timelines.of(stream).value();
    return caller;
  }
  static PageRequest request(Bytes pages) { return {pages * kPage, pages * kPage, kPage}; }
  // As whoever asks: what is idle, what is idle behind a wait, and what can be mapped; nothing is
  // delayed.
  Result<DevicePtr> allocate(MutexLock& held, Bytes pages, const Caller& caller,
                             Effort effort = Effort::by_policy) {
    std::optional<Placed> found = pool->find(request(pages), caller);
    if (!found) {
      VPMM_TRY_ASSIGN(found, pool->find_waiting(request(pages), caller, effort));
    }
    if (found) return found->begin;
    VPMM_TRY_ASSIGN(const Answer answer, pool->map(held, request(pages), caller, effort, 0));
    if (const Placed* const placed = std::get_if<Placed>(&answer)) return placed->begin;
    EXPECT_EQ(std::get<Needs>(answer).what, Needs::What::memory);
    return Error{ErrorCode::out_of_memory,
                 message_of("{} bytes are missing", std::get<Needs>(answer).missing)};
  }
  Result<DevicePtr> allocate(Bytes pages, const Caller& caller, Effort effort = Effort::by_policy) {
    return allocate(lock, pages, caller, effort);
  }
  DevicePtr take(Bytes pages, const Caller& caller, Effort effort = Effort::by_policy) {
    auto result = allocate(pages, caller, effort);
    EXPECT_TRUE(result.ok()) << (result ? "" : result.error().message);
    return result ? result.value() : DevicePtr{};
  }
  void give_back(DevicePtr ptr) {
    pool->deallocate(pool->memory().index.allocated_around(ptr), {});
  }
  enum class Closed { no, yes };
  // Freed behind some work; `closed` when an event stands for it.
  void give_back_pending(DevicePtr ptr, const Caller& caller, Closed closed,
                         std::uint64_t work_ns = kSecondNs) {
    expect(sim.launch({"work", work_ns, {}, {}}, *caller.stream));
    region::Region* region = pool->memory().index.allocated_around(ptr);
    pool->deallocate(region, time::Stamp(caller.timeline->next(region->range.size)));
    if (closed == Closed::yes) {
      EXPECT_TRUE(timelines.close(*caller.timeline, *caller.stream).ok());
    }
  }
  observe::Statistics figures() {
    observe::Statistics figures;
    pool->memory().fill(figures);
    return figures;
  }

  driver::sim::SimDriver sim;
  Between driver{sim};
  time::Timelines timelines{driver, {}};
  driver::ContextHandle context{};
  settings::Config config;
  std::unique_ptr<Pool> pool;
  Mutex mutex;
  MutexLock lock{mutex};
  Caller a;
  Caller b;
};

}  // namespace vpmm::pool
