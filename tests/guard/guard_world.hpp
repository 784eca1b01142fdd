// SPDX-License-Identifier: Apache-2.0
// guard tests: guarded allocations on a simulated GPU, without a pool around them.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <vector>

#include "base/message.hpp"
#include "driver/faulting.hpp"
#include "driver/recording.hpp"
#include "driver/sim/sim_driver.hpp"
#include "guard/description.hpp"
#include "guard/guarded.hpp"
#include "support/hooked_driver.hpp"
#include "support/page_size.hpp"
#include "support/sim_timelines.hpp"
#include "support/told.hpp"

namespace vpmm::guard {

using driver::Call;
using driver::CuResult;
using driver::FaultPlan;
using driver::StreamHandle;

constexpr std::uint64_t kSecondNs = 1'000'000'000;

// Memory that the observer was told of, and by which stream; none: any.
struct Announced {
  AddressRange range;
  pool::Stream stream;
  friend bool operator==(const Announced&, const Announced&) = default;
};

// Notes what the observer of the driver below is told.
class ObservedDriver final : public driver::ForwardingDriver, private driver::MemoryObserver {
 public:
  explicit ObservedDriver(driver::Driver& inner)
      : ForwardingDriver(inner), checker_(*inner.memory_observer()) {}
  driver::MemoryObserver* memory_observer() override { return is_observed ? this : nullptr; }
  bool is_observed = true;
  std::vector<Announced> announced;

 private:
  void on_allocate(AddressRange range, StreamHandle stream) override {
    announced.push_back({range, stream});
    checker_.on_allocate(range, stream);
  }
  void on_allocate_any_stream(AddressRange range) override {
    announced.push_back({range, std::nullopt});
    checker_.on_allocate_any_stream(range);
  }
  void on_deallocate(AddressRange, StreamHandle) override {}
  void on_deallocate_any_stream(AddressRange) override {}

  driver::MemoryObserver& checker_;
};

// Calls take microseconds and work of a test takes a second, so that it ends only when a test lets
// it.
class GuardedTest : public testing::Test {
 protected:
  explicit GuardedTest(const Options& options = {kPage, 64 * kGiB})
      : context(time::enter_primary(sim, timelines)),
        guarded(observed, driver::ChunkProperties{}, timelines, options) {}
  ~GuardedTest() override {
    faults.clear_plan();
    hooks.on.clear();
    wait();
    if (!is_broken) {
      const PoolLock lock(mutex);
      if (!is_over) {
        EXPECT_EQ(guarded.validate(), "");
        guarded.release_everything();
      }
      timelines.destroy_events();
      for (const StreamHandle each : streams)
        EXPECT_EQ(sim.stream_destroy(each), CuResult::success);
      const driver::sim::Census left = sim.census();
      EXPECT_EQ(left.chunks, 0u);
      EXPECT_EQ(left.mappings, 0u);
      EXPECT_EQ(left.reservations, 0u);
      EXPECT_EQ(left.streams, 0u);
    }
    EXPECT_EQ(sim.hazard_count(), 0u)
        << (sim.hazards().empty() ? "" : sim.hazards().front().describe());
  }

  StreamHandle stream() {
    StreamHandle made{};
    EXPECT_EQ(sim.stream_create(driver::StreamFlags::non_blocking, made), CuResult::success);
    streams.push_back(made);
    return made;
  }
  time::Timeline& of(StreamHandle stream) { return *timelines.of(stream).value(); }
  std::uint64_t id_of(StreamHandle stream) {
    driver::StreamId id{};
    EXPECT_EQ(sim.stream_get_id(stream, id), CuResult::success);
    return static_cast<std::uint64_t>(id);
  }
  pool::Caller caller(pool::Stream on, std::uint32_t stack = 0) {
    pool::Caller made;
    made.stream = on;
    if (on) made.timeline = &of(*on);
    made.guard_stack = stack;
    return made;
  }
  // --- an allocation ---
  Result<DevicePtr> try_allocate(const pool::Request& request) {
    PoolLock lock(mutex);
    return guarded.allocate(lock, request, caller(request.stream));
  }
  DevicePtr allocate(Bytes bytes, pool::Stream on = std::nullopt, Bytes alignment = 0) {
    const auto made = try_allocate({bytes, alignment, on});
    EXPECT_TRUE(made.ok()) << (made ? "" : made.error().message);
    return made ? made.value() : DevicePtr{};
  }
  void free(DevicePtr ptr, pool::Stream on = std::nullopt, std::uint32_t stack = 0) {
    const PoolLock lock(mutex);
    Block* const block = guarded.live_around(ptr);
    ASSERT_NE(block, nullptr);
    time::Timeline& timeline = on ? of(*on) : timelines.any_stream();
    guarded.free(*block, time::Stamp(timeline.next(block->range.size)), caller(on, stack));
  }
  Result<void> try_settle(std::size_t most = Guarded::kAll) {
    PoolLock lock(mutex);
    return guarded.settle(lock, most);
  }
  void settle(std::size_t most = Guarded::kAll) {
    const auto done = try_settle(most);
    EXPECT_TRUE(done.ok()) << (done ? "" : done.error().message);
  }
  // Work of `on` that ends only with prove().
  void work(StreamHandle on) {
    EXPECT_EQ(sim.launch({"work", kSecondNs, {}, {}}, on), CuResult::success);
  }
  void wait() { EXPECT_EQ(sim.ctx_synchronize(), CuResult::success); }
  // All work so far ends, and the pool has seen it.
  void prove() {
    const PoolLock lock(mutex);
    EXPECT_TRUE(timelines.close_all(time::Timelines::Everything::context_event).ok());
    sim.run_until_idle();
    Vector<time::StampPart> done;
    EXPECT_TRUE(timelines.poll(100, done).ok());
  }
  // From the free to the unmapped memory.
  void end(DevicePtr ptr, pool::Stream on = std::nullopt) {
    free(ptr, on);
    prove();
    settle();
  }
  void poke(DevicePtr ptr, Bytes bytes, StreamHandle on) {
    EXPECT_EQ(sim.memset_d8_async(ptr, 0x11, bytes, on), CuResult::success);
  }

  // --- what can be seen ---
  const Block* around(DevicePtr ptr) {
    const PoolLock lock(mutex);
    return guarded.known_around(ptr);
  }
  bool is_mapped(DevicePtr ptr) {
    AddressRange range;
    return sim.mem_get_address_range(ptr, range) == CuResult::success;
  }
  std::string figures() {
    const PoolLock lock(mutex);
    const GuardFigures& now = guarded.figures();
    EXPECT_EQ(now.allocated % kPage, 0u);
    EXPECT_EQ(now.mapped % kPage, 0u);
    return message_of(
        "{} of {} live, {} bytes in {} KiB; {} KiB in {} mappings, {} chunks of {} released; {} "
        "unguarded, {} damaged",
        now.live, now.allocations, now.requested, now.allocated / kKiB, now.mapped / kKiB,
        now.mappings, now.chunks_released, now.chunks_created, now.unguarded, now.damaged);
  }
  // Fails as the driver's error of this call.
  template <typename T>
  static void expect_failed(const Result<T>& result, ErrorCode code, const std::string& call) {
    ASSERT_FALSE(result.ok());
    EXPECT_EQ(result.error().code, code) << result.error().message;
    EXPECT_THAT(result.error().message, testing::HasSubstr(call + " failed"));
  }
  void fail(Call call, std::uint64_t nth = 1, CuResult result = CuResult::invalid_value,
            FaultPlan::Repeat repeat = FaultPlan::Repeat::once) {
    faults.set_plan({{call}, nth, result, repeat});
  }

  driver::sim::SimDriver sim;
  driver::FaultingDriver faults{sim};
  driver::RecordingDriver calls{faults};
  test::HookedDriver hooks{calls};
  ObservedDriver observed{hooks};
  time::Timelines timelines{observed, {}};
  driver::ContextHandle context;
  Mutex mutex;
  Guarded guarded;
  std::vector<StreamHandle> streams;
  bool is_over = false;    // everything was released
  bool is_broken = false;  // nothing can be given back
};

}  // namespace vpmm::guard
