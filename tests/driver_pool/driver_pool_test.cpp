// driver_pool: requests below a page over the driver's own asynchronous pool.
#include "driver_pool/driver_pool.hpp"

#include <gtest/gtest.h>

#include <functional>
#include <string>

#include "driver/faulting.hpp"
#include "driver/forwarding.hpp"
#include "driver/recording.hpp"
#include "driver/sim/sim_driver.hpp"
#include "support/sim_timelines.hpp"

namespace vpmm::driver_pool {
namespace {

using driver::Call;
using driver::CuResult;
using driver::FaultPlan;
using driver::StreamHandle;

constexpr std::uint64_t kLongNs = 100'000'000;

// Lets another thread in after a call, before it has the pool's lock again.
class Interrupted final : public driver::ForwardingDriver {
 public:
  using ForwardingDriver::ForwardingDriver;
  CuResult mem_alloc_from_pool_async(Bytes bytes, driver::MemPoolHandle pool, StreamHandle stream,
                                     DevicePtr& ptr) override {
    const CuResult result = ForwardingDriver::mem_alloc_from_pool_async(bytes, pool, stream, ptr);
    if (meanwhile) meanwhile();
    return result;
  }
  CuResult mem_free_async(DevicePtr ptr, StreamHandle stream) override {
    const CuResult result = ForwardingDriver::mem_free_async(ptr, stream);
    if (meanwhile) meanwhile();
    return result;
  }
  std::function<void()> meanwhile;
};

class DriverPoolTest : public testing::Test {
 protected:
  DriverPoolTest() {
    time::enter_primary(sim, timelines);
    expect(sim.stream_create(driver::StreamFlags::non_blocking, a));
    expect(sim.stream_create(driver::StreamFlags::non_blocking, b));
  }
  ~DriverPoolTest() override {
    EXPECT_EQ(driver_pool.validate(), "");
    EXPECT_EQ(timelines.validate(), "");
    expect(sim.ctx_synchronize());
    faults.clear_plan();
    driver_pool.release_everything();
    timelines.destroy_events();
    EXPECT_EQ(sim.census().pool_allocations, 0u);
    EXPECT_EQ(sim.hazard_count(), 0u)
        << (sim.hazards().empty() ? "" : sim.hazards().front().describe());
  }
  static void expect(CuResult result) { EXPECT_EQ(result, CuResult::success); }

  time::Timeline& of(StreamHandle stream) { return *timelines.of(stream).value(); }
  DevicePtr allocate(Bytes bytes, StreamHandle stream) {
    const auto result = driver_pool.allocate(lock, bytes, stream, &of(stream));
    EXPECT_TRUE(result.ok());
    return result ? result.value() : DevicePtr{};
  }
  void use(DevicePtr ptr, Bytes bytes, StreamHandle stream, std::uint64_t duration_ns = 1000) {
    driver::sim::Kernel kernel;
    kernel.name = "write";
    kernel.duration_ns = duration_ns;
    kernel.accesses = {{{ptr, bytes}, driver::sim::MemoryAccess::Kind::write}};
    expect(sim.launch(kernel, stream));
  }
  // A stamp that an event stands for.
  time::Stamp stamp_on(StreamHandle stream) {
    const time::StampPart part = of(stream).next(1);
    EXPECT_TRUE(timelines.close(of(stream), stream).ok());
    return time::Stamp(part);
  }
  void poll() {
    Vector<time::StampPart> done;
    ASSERT_TRUE(timelines.poll(100, done).ok());
  }
  void settle() {
    poll();
    EXPECT_TRUE(driver_pool.settle(lock).ok());
  }

  // Another library resets the context, and a call of the pool notices.
  void reset_context() {
    sim.run_until_idle();
    expect(sim.device_primary_ctx_reset(0));
    timelines.forget_context(timelines.contexts().primary.id);
    driver_pool.forget();
  }

  driver::sim::SimDriver sim;
  driver::RecordingDriver calls{sim};
  driver::FaultingDriver faults{calls};
  time::Timelines timelines{faults, {}};
  Mutex mutex;
  MutexLock lock{mutex};
  Interrupted interrupted{faults};
  DriverPool driver_pool{interrupted, 0, timelines};
  StreamHandle a{};
  StreamHandle b{};
};

TEST_F(DriverPoolTest, makes_its_pool_at_the_first_request_only) {
  EXPECT_EQ(calls.count(Call::mem_pool_create), 0u);
  EXPECT_EQ(driver_pool.reserved_bytes(), 0u);
  allocate(100, a);
  allocate(100, a);
  EXPECT_EQ(calls.count(Call::mem_pool_create), 1u);
}

TEST_F(DriverPoolTest, a_pool_that_cannot_be_made_is_tried_again) {
  for (const Call call :
       {Call::mem_pool_create, Call::mem_pool_set_attribute, Call::stream_create}) {
    faults.set_plan({{call}, 1, CuResult::out_of_memory, FaultPlan::Repeat::once});
    EXPECT_FALSE(driver_pool.allocate(lock, 100, a, &of(a)).ok()) << driver::to_string(call);
  }
  allocate(100, a);
}

TEST_F(DriverPoolTest, finds_the_block_around_an_address) {
  const DevicePtr ptr = allocate(1000, a);
  ASSERT_NE(driver_pool.block_around(ptr + 999), nullptr);
  EXPECT_EQ(driver_pool.block_around(ptr + 999)->begin, ptr);
  EXPECT_EQ(driver_pool.block_around(ptr + 1000), nullptr);
  EXPECT_EQ(driver_pool.block_around(ptr - 1), nullptr);
}

TEST_F(DriverPoolTest, a_free_on_the_named_stream_is_left_to_the_driver) {
  const DevicePtr ptr = allocate(1000, a);
  use(ptr, 1000, a, kLongNs);
  ASSERT_TRUE(driver_pool.deallocate_on(lock, driver_pool.block_around(ptr), a).ok());
  EXPECT_EQ(calls.count(Call::mem_free_async), 1u);
  EXPECT_EQ(driver_pool.pending_bytes(), 0u);
  use(allocate(1000, a), 1000, a);
}

TEST_F(DriverPoolTest, a_free_behind_a_stamp_waits_here_until_it_is_complete) {
  const DevicePtr ptr = allocate(1000, a);
  expect(sim.stream_synchronize(a));
  use(ptr, 1000, b, kLongNs);
  ASSERT_TRUE(driver_pool.deallocate_after(lock, driver_pool.block_around(ptr), stamp_on(b)).ok());
  EXPECT_EQ(driver_pool.pending_bytes(), 1000u);
  EXPECT_EQ(driver_pool.live_allocations(), 0u);
  settle();
  EXPECT_EQ(calls.count(Call::mem_free_async), 0u);
  sim.advance_host_ns(kLongNs);
  settle();
  EXPECT_EQ(calls.count(Call::mem_free_async), 1u);
  EXPECT_EQ(driver_pool.pending_bytes(), 0u);
}

TEST_F(DriverPoolTest, memory_for_no_stream_is_ready_for_every_stream) {
  const auto ptr = driver_pool.allocate(lock, 1000, std::nullopt, nullptr);
  ASSERT_TRUE(ptr.ok());
  use(ptr.value(), 1000, b);
}

TEST_F(DriverPoolTest, a_failed_free_keeps_the_block) {
  const DevicePtr ptr = allocate(1000, a);
  time::add_use(driver_pool.block_around(ptr)->other_uses, of(b));
  faults.set_plan({{Call::mem_free_async}, 1, CuResult::invalid_value, FaultPlan::Repeat::once});
  EXPECT_FALSE(driver_pool.deallocate_on(lock, driver_pool.block_around(ptr), a).ok());
  ASSERT_NE(driver_pool.block_around(ptr), nullptr);
  EXPECT_EQ(driver_pool.live_allocations(), 1u);
  EXPECT_EQ(driver_pool.requested_bytes(), 1000u);
  EXPECT_EQ(of(a).references, 1u);
  EXPECT_EQ(of(b).references, 1u);
  EXPECT_TRUE(driver_pool.deallocate_on(lock, driver_pool.block_around(ptr), a).ok());
  EXPECT_EQ(of(a).references, 0u);
  EXPECT_EQ(of(b).references, 0u);
}

TEST_F(DriverPoolTest, a_late_free_that_fails_is_tried_again_and_is_no_error_of_the_call_at_work) {
  const DevicePtr ptr = allocate(1000, a);
  const time::Stamp stamp = stamp_on(a);
  sim.run_until_idle();
  faults.set_plan({{Call::mem_free_async}, 1, CuResult::invalid_value, FaultPlan::Repeat::once});
  poll();
  EXPECT_TRUE(driver_pool.deallocate_after(lock, driver_pool.block_around(ptr), stamp).ok());
  EXPECT_EQ(driver_pool.pending_bytes(), 1000u);
  settle();
  EXPECT_EQ(driver_pool.pending_bytes(), 0u);
}

TEST_F(DriverPoolTest, trim_gives_back_what_is_unused) {
  const DevicePtr ptr = allocate(1000, a);
  ASSERT_TRUE(driver_pool.deallocate_on(lock, driver_pool.block_around(ptr), a).ok());
  expect(sim.stream_synchronize(a));
  const Bytes reserved = driver_pool.reserved_bytes();
  ASSERT_GT(reserved, 0u);
  const auto freed = driver_pool.trim(lock);
  ASSERT_TRUE(freed.ok());
  EXPECT_EQ(freed.value(), reserved);
  EXPECT_EQ(driver_pool.reserved_bytes(), 0u);
}

TEST_F(DriverPoolTest, memory_is_kept_when_a_stream_is_synchronised) {
  const DevicePtr ptr = allocate(1000, a);
  ASSERT_TRUE(driver_pool.deallocate_on(lock, driver_pool.block_around(ptr), a).ok());
  const Bytes reserved = driver_pool.reserved_bytes();
  expect(sim.stream_synchronize(a));
  EXPECT_EQ(driver_pool.reserved_bytes(), reserved);
}

TEST_F(DriverPoolTest, forgets_every_pointer_of_a_dead_context_without_a_driver_call) {
  const DevicePtr ptr = allocate(1000, a);
  const DevicePtr other = allocate(500, a);
  ASSERT_TRUE(
      driver_pool.deallocate_after(lock, driver_pool.block_around(other), stamp_on(a)).ok());
  const time::TimelineId id = of(a).id;
  sim.run_until_idle();
  expect(sim.device_primary_ctx_reset(0));
  const std::uint64_t before = calls.total_count();
  timelines.forget_context(timelines.contexts().primary.id);
  driver_pool.forget();
  EXPECT_EQ(calls.total_count(), before);
  EXPECT_EQ(driver_pool.block_around(ptr), nullptr);
  EXPECT_EQ(driver_pool.live_allocations(), 0u);
  EXPECT_EQ(driver_pool.pending_bytes(), 0u);
  EXPECT_EQ(timelines.find(id)->references, 0u);
  driver::ContextHandle again{};
  expect(sim.device_primary_ctx_retain(0, again));
}

TEST_F(DriverPoolTest, a_reset_during_a_call_leaves_no_block_of_the_dead_context) {
  enum class During { allocate, free, late_free };
  for (const During during : {During::allocate, During::free, During::late_free}) {
    const DevicePtr ptr = allocate(1000, a);
    const time::Stamp stamp = stamp_on(a);
    sim.run_until_idle();
    poll();
    interrupted.meanwhile = [this] { reset_context(); };
    faults.set_plan({{Call::mem_free_async}, 1, CuResult::invalid_value, FaultPlan::Repeat::once});
    switch (during) {
      case During::allocate:
        EXPECT_EQ(driver_pool.block_around(driver_pool.allocate(lock, 1000, a, &of(a)).value()),
                  nullptr);
        break;
      case During::free:
        EXPECT_TRUE(driver_pool.deallocate_on(lock, driver_pool.block_around(ptr), a).ok());
        break;
      case During::late_free:
        EXPECT_TRUE(driver_pool.deallocate_after(lock, driver_pool.block_around(ptr), stamp).ok());
        break;
    }
    interrupted.meanwhile = {};
    faults.clear_plan();
    EXPECT_EQ(driver_pool.live_allocations(), 0u);
    EXPECT_EQ(driver_pool.pending_bytes(), 0u);
    EXPECT_EQ(driver_pool.validate(), "");
    time::enter_primary(sim, timelines);
    expect(sim.stream_create(driver::StreamFlags::non_blocking, a));
  }
}

}  // namespace
}  // namespace vpmm::driver_pool
