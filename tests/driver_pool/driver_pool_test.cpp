// SPDX-License-Identifier: Apache-2.0
// driver_pool: requests below a page over the driver's own asynchronous pool.
#include "driver_pool/driver_pool.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <string>
#include <utility>
#include <vector>

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
using driver::MemPoolAttribute;
using driver::StreamHandle;

constexpr std::uint64_t kLongNs = 100'000'000;

// Lets another thread in after a call, before it has the pool's lock again. Keeps the driver's
// pool.
class Interrupted final : public driver::ForwardingDriver {
 public:
  using ForwardingDriver::ForwardingDriver;
  CuResult mem_pool_create(driver::DeviceOrdinal device, driver::MemPoolHandle& pool) override {
    const CuResult result = ForwardingDriver::mem_pool_create(device, pool);
    made = pool;
    return result;
  }
  std::function<void()> meanwhile;
  driver::MemPoolHandle made{};

 private:
  void after(Call call, CuResult /*result*/, std::uint64_t /*duration_ns*/) override {
    const bool is_without_lock = call == Call::mem_alloc_from_pool_async ||
                                 call == Call::mem_free_async || call == Call::mem_pool_trim_to;
    if (is_without_lock && meanwhile) std::exchange(meanwhile, {})();
  }
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
  // A failed call of `failing`, as the caller is told; the next one works.
  template <typename Failing>
  std::string told(Call call, CuResult result, const Failing& failing) {
    faults.set_plan({{call}, 1, result, FaultPlan::Repeat::once});
    const auto outcome = failing();
    faults.clear_plan();
    return outcome ? "" : outcome.error().message;
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

  // Runs `work` as another thread does: with the pool's lock, which the next driver call left.
  template <typename Work>
  void meanwhile(const Work& work) {
    interrupted.meanwhile = [this, work] {
      lock.lock();
      work();
      lock.unlock();
    };
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

TEST_F(DriverPoolTest, lets_no_stream_wait_for_another_and_keeps_memory_until_it_is_trimmed) {
  allocate(100, a);
  std::uint64_t value = 1;
  expect(sim.mem_pool_get_attribute(interrupted.made,
                                    MemPoolAttribute::reuse_allow_internal_dependencies, value));
  EXPECT_EQ(value, 0u);
  expect(sim.mem_pool_get_attribute(interrupted.made, MemPoolAttribute::release_threshold, value));
  EXPECT_EQ(value, std::numeric_limits<std::uint64_t>::max());
}

TEST_F(DriverPoolTest, a_pool_that_cannot_be_made_leaves_none_and_is_tried_again) {
  struct Step {
    Call call;
    std::uint64_t nth;
    std::uint64_t destroyed;  // pools
  };
  for (const auto& [call, nth, destroyed] :
       {Step{Call::mem_pool_create, 1, 0}, Step{Call::mem_pool_set_attribute, 1, 1},
        Step{Call::mem_pool_set_attribute, 2, 1}, Step{Call::stream_create, 1, 1}}) {
    const std::uint64_t before = calls.count(Call::mem_pool_destroy);
    faults.set_plan({{call}, nth, CuResult::invalid_value, FaultPlan::Repeat::once});
    const auto refused = driver_pool.allocate(lock, 100, a, &of(a));
    ASSERT_FALSE(refused.ok()) << driver::to_string(call);
    EXPECT_EQ(refused.error().message,
              std::string(driver::to_string(call)) + " failed: CUDA_ERROR_INVALID_VALUE (1)");
    EXPECT_EQ(calls.count(Call::mem_pool_destroy) - before, destroyed) << driver::to_string(call);
    EXPECT_EQ(sim.census().streams, 2u);
    EXPECT_EQ(driver_pool.allocations(), 0u);
  }
  allocate(100, a);
}

TEST_F(DriverPoolTest, counts_and_shows_what_lives) {
  EXPECT_EQ(driver_pool.allocations(), 0u);
  EXPECT_EQ(driver_pool.deallocations(), 0u);
  const DevicePtr first = allocate(1000, a);
  const DevicePtr second = allocate(500, b);
  const auto any = driver_pool.allocate(lock, 200, std::nullopt, nullptr);
  ASSERT_TRUE(any.ok());
  std::vector<std::string> shown;
  driver_pool.for_each_block([&](const PoolBlock& block) {
    const bool is_of_a = block.timeline == of(a).id;
    const char* const stream = is_of_a ? " a" : block.timeline == of(b).id ? " b" : " any";
    shown.push_back(std::to_string(block.requested) + (block.timeline ? stream : " any"));
  });
  EXPECT_THAT(shown, testing::UnorderedElementsAre("1000 a", "500 b", "200 any"));
  EXPECT_EQ(driver_pool.requested_bytes(), 1700u);
  EXPECT_EQ(driver_pool.live_allocations(), 3u);
  EXPECT_EQ(driver_pool.allocations(), 3u);
  expect(sim.ctx_synchronize());
  EXPECT_TRUE(driver_pool.deallocate_on(lock, driver_pool.block_around(first), a).ok());
  EXPECT_TRUE(driver_pool.deallocate_after(lock, driver_pool.block_around(second), {}).ok());
  EXPECT_EQ(driver_pool.requested_bytes(), 200u);
  EXPECT_EQ(driver_pool.live_allocations(), 1u);
  EXPECT_EQ(driver_pool.allocations(), 3u);
  EXPECT_EQ(driver_pool.deallocations(), 2u);
}

TEST_F(DriverPoolTest, a_refused_request_leaves_nothing) {
  allocate(100, a);
  EXPECT_EQ(told(Call::mem_alloc_from_pool_async, CuResult::out_of_memory,
                 [&] { return driver_pool.allocate(lock, 100, b, &of(b)); }),
            "mem_alloc_from_pool_async failed: CUDA_ERROR_OUT_OF_MEMORY (2)");
  EXPECT_EQ(of(b).references, 0u);
  const std::uint64_t frees = calls.count(Call::mem_free_async);
  EXPECT_EQ(told(Call::stream_synchronize, CuResult::invalid_value,
                 [&] { return driver_pool.allocate(lock, 100, std::nullopt, nullptr); }),
            "stream_synchronize failed: CUDA_ERROR_INVALID_VALUE (1)");
  EXPECT_EQ(calls.count(Call::mem_free_async) - frees, 1u) << "nobody knows of the memory";
  EXPECT_EQ(sim.census().pool_allocations, 1u);
  EXPECT_EQ(driver_pool.allocations(), 1u);
  EXPECT_EQ(driver_pool.live_allocations(), 1u);
  EXPECT_EQ(driver_pool.requested_bytes(), 100u);
}

// The pool works on `a` while `b` captures in one of the strict modes.
TEST_F(DriverPoolTest, leaves_captures_alone) {
  for (const driver::CaptureMode mode :
       {driver::CaptureMode::global, driver::CaptureMode::thread_local_mode}) {
    const DevicePtr early = allocate(1000, a);
    const time::Stamp done = stamp_on(a);
    sim.run_until_idle();
    poll();
    expect(sim.stream_begin_capture(b, mode));
    const DevicePtr late = allocate(1000, a);
    EXPECT_TRUE(driver_pool.deallocate_on(lock, driver_pool.block_around(late), a).ok());
    EXPECT_TRUE(driver_pool.deallocate_after(lock, driver_pool.block_around(early), done).ok());
    EXPECT_EQ(driver_pool.pending_bytes(), 0u);
    EXPECT_EQ(driver_pool.reserved_bytes(), 2 * kMiB);
    EXPECT_TRUE(driver_pool.trim(lock).ok());
    driver::GraphHandle graph{};
    EXPECT_EQ(sim.stream_end_capture(b, graph), CuResult::success) << "the capture was broken";
    expect(sim.graph_destroy(graph));
  }
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
  EXPECT_EQ(driver_pool.deallocations(), 0u);
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

// Of three: one still in use, one that the driver refuses at first, and one that works.
TEST_F(DriverPoolTest, late_frees_do_not_wait_for_each_other) {
  const DevicePtr first = allocate(1000, a);
  const DevicePtr second = allocate(200, a);
  const DevicePtr busy = allocate(30, a);
  const time::Stamp early = stamp_on(a);
  expect(sim.ctx_synchronize());
  use(busy, 30, b, kLongNs);
  const time::Stamp late = stamp_on(b);
  EXPECT_TRUE(driver_pool.deallocate_after(lock, driver_pool.block_around(busy), late).ok());
  const auto free_early = [&](DevicePtr ptr) {
    EXPECT_TRUE(driver_pool.deallocate_after(lock, driver_pool.block_around(ptr), early).ok());
  };
  free_early(first);
  free_early(second);
  EXPECT_EQ(driver_pool.pending_bytes(), 1230u) << "nobody looked yet";
  faults.set_plan({{Call::mem_free_async}, 1, CuResult::invalid_value, FaultPlan::Repeat::once});
  settle();
  EXPECT_EQ(calls.count(Call::mem_free_async), 1u);
  EXPECT_EQ(driver_pool.pending_bytes(), 1030u);
  settle();
  EXPECT_EQ(driver_pool.pending_bytes(), 30u);
  const std::uint64_t before = calls.total_count();
  EXPECT_TRUE(driver_pool.settle(lock).ok());
  EXPECT_EQ(calls.total_count(), before) << "nothing is complete";
  sim.advance_host_ns(kLongNs);
  settle();
  EXPECT_EQ(calls.count(Call::mem_free_async), 3u);
  EXPECT_EQ(driver_pool.pending_bytes(), 0u);
  EXPECT_EQ(driver_pool.deallocations(), 3u);
}

TEST_F(DriverPoolTest, a_late_free_tells_that_the_context_is_broken) {
  const DevicePtr ptr = allocate(1000, a);
  ASSERT_TRUE(driver_pool.deallocate_after(lock, driver_pool.block_around(ptr), stamp_on(a)).ok());
  sim.run_until_idle();
  poll();
  EXPECT_EQ(told(Call::mem_free_async, CuResult::illegal_address,
                 [&] { return driver_pool.settle(lock); }),
            "mem_free_async failed: CUDA_ERROR_ILLEGAL_ADDRESS (700)");
  EXPECT_EQ(driver_pool.pending_bytes(), 1000u);
  settle();
  EXPECT_EQ(driver_pool.pending_bytes(), 0u);
}

// The driver hands the address out again before the free has the pool's lock.
TEST_F(DriverPoolTest, memory_may_be_anothers_before_its_free_returns) {
  const DevicePtr ptr = allocate(1000, a);
  meanwhile([&] { EXPECT_EQ(allocate(900, a), ptr); });
  ASSERT_TRUE(driver_pool.deallocate_on(lock, driver_pool.block_around(ptr), a).ok());
  ASSERT_NE(driver_pool.block_around(ptr), nullptr);
  EXPECT_EQ(driver_pool.requested_bytes(), 900u);
}

TEST_F(DriverPoolTest, a_pool_that_was_never_used_has_nothing_to_give_back) {
  const std::uint64_t before = calls.total_count();
  EXPECT_EQ(driver_pool.trim(lock).value(), 0u);
  EXPECT_EQ(driver_pool.reserved_bytes(), 0u);
  EXPECT_TRUE(driver_pool.settle(lock).ok());
  driver_pool.release_everything();
  EXPECT_EQ(calls.total_count(), before);
}

TEST_F(DriverPoolTest, what_it_holds_is_what_it_handed_out_where_the_driver_does_not_say) {
  allocate(1000, a);
  const DevicePtr other = allocate(500, b);
  use(other, 500, b, kLongNs);
  ASSERT_TRUE(
      driver_pool.deallocate_after(lock, driver_pool.block_around(other), stamp_on(b)).ok());
  faults.set_plan(
      {{Call::mem_pool_get_attribute}, 1, CuResult::invalid_value, FaultPlan::Repeat::once});
  EXPECT_EQ(driver_pool.reserved_bytes(), 1500u);
  EXPECT_EQ(driver_pool.reserved_bytes(), 2 * kMiB);
}

TEST_F(DriverPoolTest, trim_tells_that_the_driver_failed) {
  allocate(1000, a);
  EXPECT_EQ(
      told(Call::mem_pool_trim_to, CuResult::invalid_value, [&] { return driver_pool.trim(lock); }),
      "mem_pool_trim_to failed: CUDA_ERROR_INVALID_VALUE (1)");
}

TEST_F(DriverPoolTest, trim_gives_nothing_back_where_others_take_more_meanwhile) {
  allocate(1000, a);
  meanwhile([&] { allocate(3 * kMiB, a); });
  EXPECT_EQ(driver_pool.trim(lock).value(), 0u);
  EXPECT_EQ(driver_pool.live_allocations(), 2u);
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

TEST_F(DriverPoolTest, the_end_gives_everything_back_once_the_frees_are_done) {
  const Bytes before = sim.census().physical_bytes;
  allocate(1000, a);
  const DevicePtr other = allocate(500, b);
  use(other, 500, b, kLongNs);
  ASSERT_TRUE(
      driver_pool.deallocate_after(lock, driver_pool.block_around(other), stamp_on(b)).ok());
  expect(sim.ctx_synchronize());
  calls.start_listing();
  driver_pool.release_everything();
  std::vector<std::string> list = calls.stop_listing();
  std::erase(list, "thread_exchange_stream_capture_mode");
  EXPECT_THAT(list, testing::ElementsAre("mem_free_async", "mem_free_async", "stream_synchronize",
                                         "stream_destroy", "mem_pool_destroy"));
  EXPECT_EQ(sim.census().pool_allocations, 0u);
  EXPECT_EQ(sim.census().physical_bytes, before);
  EXPECT_EQ(sim.census().streams, 2u);
  EXPECT_EQ(driver_pool.live_allocations(), 0u);
  EXPECT_EQ(driver_pool.requested_bytes(), 0u);
  EXPECT_EQ(driver_pool.pending_bytes(), 0u);
  EXPECT_EQ(of(a).references, 0u);
  const std::uint64_t done = calls.total_count();
  driver_pool.release_everything();
  EXPECT_EQ(calls.total_count(), done) << "once";
  allocate(100, a);
  EXPECT_EQ(calls.count(Call::mem_pool_create), 2u) << "a new one";
}

TEST_F(DriverPoolTest, a_request_that_failed_in_a_context_that_is_gone_says_so) {
  allocate(1000, a);
  meanwhile([this] { reset_context(); });
  const auto refused = driver_pool.allocate(lock, 1000 * kTiB, a, &of(a));
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, ErrorCode::driver_failed);
  EXPECT_EQ(refused.error().message, "the CUDA context was reset meanwhile");
  EXPECT_EQ(driver_pool.live_allocations(), 0u);
  time::enter_primary(sim, timelines);
}

TEST_F(DriverPoolTest, a_reset_during_a_call_leaves_no_block_of_the_dead_context) {
  enum class During { allocate, free, late_free };
  for (const During during : {During::allocate, During::free, During::late_free}) {
    const DevicePtr ptr = allocate(1000, a);
    const time::Stamp stamp = stamp_on(a);
    sim.run_until_idle();
    poll();
    meanwhile([this] { reset_context(); });
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
