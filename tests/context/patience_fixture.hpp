// context: a world in which calls pause before new memory is created, on the simulator.
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <thread>

#include "driver/forwarding.hpp"
#include "support/pool_world_words.hpp"

namespace vpmm::testing {

using driver::Call;
using driver::FaultPlan;

inline constexpr std::uint64_t kMicrosecond = 1'000;
inline constexpr std::uint64_t kMillisecond = 1'000'000;
inline constexpr std::uint64_t kPatience =
    12 * kMillisecond;  // for growth by 128 MiB and more, while 4 GiB are mapped at most
inline constexpr std::uint64_t kGrowth = kMillisecond;  // the driver's calls for what these tests create take less

// Does something while a call pauses.
class Interlude final : public driver::ForwardingDriver {
 public:
  using ForwardingDriver::ForwardingDriver;
  void sleep_ns(std::uint64_t ns) override {
    if (std::this_thread::get_id() == held_up) return std::this_thread::sleep_for(std::chrono::microseconds(100));
    ++looks;
    ForwardingDriver::sleep_ns(ns);
    if (between_looks) std::exchange(between_looks, {})();
  }
  int looks = 0;
  std::atomic<std::thread::id> held_up;  // for this thread no time passes
  std::function<void()> between_looks;   // once; on the thread that pauses, without the pool's lock
};

// Two streams; `other` has half of what is live.
class Patience : public ::testing::Test {
 protected:
  static constexpr Bytes kHalf = 256 * kMiB;
  struct World {
    explicit World(const context::Config& config = adaptive_world().config) {
      EXPECT_EQ(sim.init(), driver::CuResult::success);
      EXPECT_EQ(sim.device_primary_ctx_retain(0, context), driver::CuResult::success);
      EXPECT_EQ(sim.ctx_set_current(context), driver::CuResult::success);
      auto created = context::Context::create(interlude, 0, config);
      EXPECT_TRUE(created.ok());
      pool = std::move(created.value());
      own = stream();
      other = stream();
      allocate(kHalf, other);
      deallocate(allocate(kPage, own), own);
    }
    ~World() {
      faults.clear_plan();
      EXPECT_EQ(pool->validate(), "");
      sim.run_until_idle();
      EXPECT_EQ(sim.hazard_count(), 0u) << (sim.hazards().empty() ? "" : sim.hazards().front().describe());
    }
    World(const World&) = delete;
    World& operator=(const World&) = delete;

    driver::sim::SimDriver sim;
    driver::ContextHandle context{};
    driver::FaultingDriver faults{sim};
    driver::RecordingDriver calls{faults};
    Interlude interlude{calls};
    std::unique_ptr<context::Context> pool;
    StreamHandle own{}, other{};

    StreamHandle stream() {
      StreamHandle made{};
      EXPECT_EQ(sim.stream_create(StreamFlags::non_blocking, made), driver::CuResult::success);
      return made;
    }
    DevicePtr allocate(Bytes bytes, context::Stream on) {
      auto made = pool->allocate({bytes, 0, on});
      EXPECT_TRUE(made.ok()) << message_of(made);
      return made ? made.value() : DevicePtr{};
    }
    void deallocate(DevicePtr ptr, context::Stream on) { EXPECT_TRUE(pool->deallocate(ptr, on).ok()); }
    void use(DevicePtr ptr, Bytes bytes, StreamHandle on, std::uint64_t duration_ns) {
      driver::sim::Kernel kernel;
      kernel.name = "write";
      kernel.duration_ns = duration_ns;
      kernel.accesses = {{{ptr, bytes}, driver::sim::MemoryAccess::Kind::write}};
      EXPECT_EQ(sim.launch(kernel, on), driver::CuResult::success);
    }
    void free_behind_a_kernel(std::uint64_t duration_ns) { free_behind_a_kernel(duration_ns, allocate(kHalf, other)); }
    void free_behind_a_kernel(std::uint64_t duration_ns, DevicePtr held) {
      use(held, kHalf, other, duration_ns);
      deallocate(held, other);
    }
    std::uint64_t time_of(Bytes bytes) {
      const std::uint64_t begin = sim.now_ns();
      allocate(bytes, own);
      return sim.now_ns() - begin;
    }
    Bytes mapped() const { return pool->statistics().mapped_bytes; }
    void on_another_thread(const std::function<void()>& act) const {
      std::thread([&] {
        EXPECT_EQ(const_cast<driver::sim::SimDriver&>(sim).ctx_set_current(context), driver::CuResult::success);
        act();
      }).join();
    }
  };
  static context::Config preferring(pool::Prefer prefer) {
    context::Config config = adaptive_world().config;
    config.prefer = prefer;
    return config;
  }

  static constexpr Bytes kMuch = 128 * kMiB;
  static std::uint64_t patience(Bytes stake) { return stake * kPatience / kMuch; }

  // Calls for 128 MiB, one of them of another stream and on another thread so long after the other began to look, while
  // nothing comes back: what each took, and how many pauses were counted.
  struct TwoCalls {
    std::uint64_t first_ns = 0;
    std::uint64_t second_ns = 0;
    std::uint64_t pauses = 0;
  };
  static TwoCalls two_calls(std::uint64_t apart_ns) {
    World world;
    TwoCalls calls;
    const StreamHandle third = world.stream();
    world.deallocate(world.allocate(256, third), third);
    world.free_behind_a_kernel(100 * kMillisecond);
    world.interlude.between_looks = [&] {
      world.on_another_thread([&] {
        world.sim.advance_host_ns(apart_ns);
        const std::uint64_t begin = world.sim.now_ns();
        world.allocate(kMuch, third);
        calls.second_ns = world.sim.now_ns() - begin;
      });
    };
    const std::uint64_t before = world.pool->statistics().pauses;
    calls.first_ns = world.time_of(kMuch);
    calls.pauses = world.pool->statistics().pauses - before;
    return calls;
  }
};

}  // namespace vpmm::testing
