// SPDX-License-Identifier: Apache-2.0
// tests: a simulated machine with one pool on it; every test through it ends with the hazard
// checker, validate() and a look for leaks.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/bytes.hpp"
#include "context/context.hpp"
#include "driver/faulting.hpp"
#include "driver/recording.hpp"
#include "driver/sim/sim_driver.hpp"
#include "observe/render.hpp"

namespace vpmm::test {

using driver::StreamFlags;
using driver::StreamHandle;

struct WorldOptions {
  driver::sim::SimOptions sim;
  settings::Config config;
};

// Pages of `page` bytes, one chunk per page: the specification read literally.
inline WorldOptions page_world(Bytes page = 2 * kMiB) {
  WorldOptions options;
  options.config.page_size = page;
  options.config.page_chunks = true;
  options.config.va_size = 64 * kGiB;
  return options;
}

// Chunks of many sizes, the default policy.
inline WorldOptions adaptive_world() {
  WorldOptions options;
  options.config.va_size = 64 * kGiB;
  return options;
}

// The same, growing by no more than a request needs, so that figures can be told exactly.
inline WorldOptions page_by_page_world() {
  WorldOptions options = adaptive_world();
  options.config.chunk_max = 2 * kMiB;
  return options;
}

class PoolWorld {
 public:
  explicit PoolWorld(const WorldOptions& options) : sim_(options.sim) {
    driver::ContextHandle context{};
    EXPECT_EQ(sim_.init(), driver::CuResult::success);
    EXPECT_EQ(sim_.device_primary_ctx_retain(0, context), driver::CuResult::success);
    EXPECT_EQ(sim_.ctx_set_current(context), driver::CuResult::success);
    auto created = context::Context::create(faults_, 0, options.config);
    EXPECT_TRUE(created.ok()) << (created ? "" : created.error().message);
    if (created) pool_ = std::move(created).value();
  }
  ~PoolWorld() {
    if (pool_ == nullptr) return;
    EXPECT_EQ(pool_->reports().validate(), "");
    check_hazards();
    faults_.clear_plan();
    pool_.reset();
    check_leaks();
  }
  PoolWorld(const PoolWorld&) = delete;
  PoolWorld& operator=(const PoolWorld&) = delete;

  driver::sim::SimDriver& sim() { return sim_; }
  context::Context& pool() { return *pool_; }
  driver::FaultingDriver& faults() {
    return faults_;
  }  // between the pool and the simulator: fails what it is told to
  driver::RecordingDriver& calls() { return calls_; }  // what reaches the simulator from the pool
  // The GPU breaks as after an illegal access; the pool may not call it any more, so nothing can be
  // given back.
  void break_context(driver::CuResult error = driver::CuResult::illegal_address) {
    sim_.break_context(0, error);
    is_broken_ = true;
  }

  void end() { pool_.reset(); }  // the pool; whatever work is queued

  StreamHandle stream(StreamFlags flags = StreamFlags::non_blocking) {
    StreamHandle stream{};
    EXPECT_EQ(sim_.stream_create(flags, stream), driver::CuResult::success);
    return stream;
  }
  DevicePtr allocate(Bytes bytes, pool::Stream stream, Bytes alignment = 0) {
    auto result = pool_->allocate({bytes, alignment, stream});
    EXPECT_TRUE(result.ok()) << (result ? "" : result.error().message);
    EXPECT_EQ(pool_->reports().validate(), "");
    return result ? result.value() : DevicePtr{};
  }
  void deallocate(DevicePtr ptr, pool::Stream stream) {
    const auto result = pool_->deallocate(ptr, stream);
    EXPECT_TRUE(result.ok()) << (result ? "" : result.error().message);
    EXPECT_EQ(pool_->reports().validate(), "");
  }
  // A kernel on `stream` that writes the whole range for `duration_ns`.
  void use(DevicePtr ptr, Bytes bytes, StreamHandle stream, std::uint64_t duration_ns = 1000) {
    driver::sim::Kernel kernel;
    kernel.name = "write";
    kernel.duration_ns = duration_ns;
    kernel.accesses = {{{ptr, bytes}, driver::sim::MemoryAccess::Kind::write}};
    EXPECT_EQ(sim_.launch(kernel, stream), driver::CuResult::success);
  }
  void wait() { EXPECT_TRUE(pool_->streams().synchronize().ok()); }
  // The pool after its zombies were swept, in units of `unit` (default: pages).
  std::string picture() const { return observe::picture(pool_->reports().snapshot()); }
  observe::Statistics statistics() const { return pool_->reports().statistics(); }
  void check_hazards() {
    sim_.run_until_idle();
    EXPECT_EQ(sim_.hazard_count(), 0u)
        << (sim_.hazards().empty() ? "" : sim_.hazards().front().describe());
  }

 private:
  void check_leaks() const {
    if (is_broken_) return;
    const driver::sim::Census left = sim_.census();
    EXPECT_EQ(left.chunks, 0u);
    EXPECT_EQ(left.mappings, 0u);
    EXPECT_EQ(left.reservations, 0u);
    EXPECT_EQ(left.pool_allocations, 0u);
    EXPECT_EQ(left.events, 0u);
  }

  driver::sim::SimDriver sim_;
  driver::RecordingDriver calls_{sim_};
  driver::FaultingDriver faults_{calls_};
  bool is_broken_ = false;
  std::unique_ptr<context::Context> pool_;
};

}  // namespace vpmm::test
