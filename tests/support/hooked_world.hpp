// SPDX-License-Identifier: Apache-2.0
// tests: a pool on the simulator whose driver calls and sleeps a test can meet.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <thread>

#include "support/hooked_driver.hpp"
#include "support/pool_world_words.hpp"

namespace vpmm::test {

class HookedWorld {
 public:
  explicit HookedWorld(const WorldOptions& options) : sim(options.sim) {
    EXPECT_EQ(sim.init(), driver::CuResult::success);
    EXPECT_EQ(sim.device_primary_ctx_retain(0, context), driver::CuResult::success);
    EXPECT_EQ(sim.ctx_set_current(context), driver::CuResult::success);
    auto created = context::Context::create(hooks, 0, options.config);
    EXPECT_TRUE(created.ok());
    pool = std::move(created.value());
  }
  ~HookedWorld() {
    hooks.on.clear();
    faults.clear_plan();
    EXPECT_EQ(pool->reports().validate(), "");
    sim.run_until_idle();
    EXPECT_EQ(sim.hazard_count(), 0u)
        << (sim.hazards().empty() ? "" : sim.hazards().front().describe());
  }
  HookedWorld(const HookedWorld&) = delete;
  HookedWorld& operator=(const HookedWorld&) = delete;

  driver::sim::SimDriver sim;
  driver::ContextHandle context{};
  driver::FaultingDriver faults{sim};
  driver::RecordingDriver calls{faults};
  HookedDriver hooks{calls};
  std::unique_ptr<context::Context> pool;

  StreamHandle stream() {
    StreamHandle made{};
    EXPECT_EQ(sim.stream_create(StreamFlags::non_blocking, made), driver::CuResult::success);
    return made;
  }
  DevicePtr allocate(Bytes bytes, pool::Stream on) {
    auto made = pool->allocate({bytes, 0, on});
    EXPECT_TRUE(made.ok()) << message_of(made);
    return made ? made.value() : DevicePtr{};
  }
  void deallocate(DevicePtr ptr, pool::Stream on) { EXPECT_TRUE(pool->deallocate(ptr, on).ok()); }
  void use(DevicePtr ptr, Bytes bytes, StreamHandle on, std::uint64_t duration_ns) {
    driver::sim::Kernel kernel;
    kernel.name = "write";
    kernel.duration_ns = duration_ns;
    kernel.accesses = {{{ptr, bytes}, driver::sim::MemoryAccess::Kind::write}};
    EXPECT_EQ(sim.launch(kernel, on), driver::CuResult::success);
  }
  // How long an allocation took, on the virtual clock.
  std::uint64_t time_of(Bytes bytes, pool::Stream on) {
    const std::uint64_t begin = sim.now_ns();
    allocate(bytes, on);
    return sim.now_ns() - begin;
  }
  observe::Statistics statistics() const { return pool->reports().statistics(); }
  void on_another_thread(const std::function<void()>& act) {
    std::thread([&] {
      EXPECT_EQ(sim.ctx_set_current(context), driver::CuResult::success);
      act();
    }).join();
  }
};

}  // namespace vpmm::test
