// pool: each step before a request fails, where only that step can help: at the pool's own limit, and on a GPU that
// other processes hold half of.
#include <gtest/gtest.h>

#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "driver/forwarding.hpp"
#include "driver/sim/sim_driver.hpp"
#include "pool/pool.hpp"

namespace vpmm::pool {
namespace {

using driver::Call;
using driver::CuResult;

constexpr Bytes kPage = 2 * kMiB;
constexpr Bytes kPages = 40;  // all that there is
constexpr std::uint64_t kSecondNs = 1'000'000'000;

enum class Limit { capacity, others };

// Calls that a test wants to meet; what is no success is given to the pool instead of the call.
class HookedDriver final : public driver::ForwardingDriver {
 public:
  using ForwardingDriver::ForwardingDriver;
  std::function<CuResult()> on_map;
  std::function<CuResult()> on_release;

 private:
  std::optional<CuResult> before(Call call) override {
    const std::function<CuResult()>& hook = call == Call::mem_map ? on_map : on_release;
    if ((call != Call::mem_map && call != Call::mem_release) || !hook) return std::nullopt;
    const CuResult result = hook();
    return result == CuResult::success ? std::nullopt : std::optional(result);
  }
};

class OutOfMemorySteps : public testing::TestWithParam<Limit> {
 protected:
  OutOfMemorySteps() : sim(options()) {
    driver::ContextId id{};
    expect(sim.init());
    expect(sim.device_primary_ctx_retain(0, context));
    expect(sim.ctx_set_current(context));
    expect(sim.ctx_get_id(context, id));
    timelines.set_primary(context, id);
    config.page_chunks = true;
    config.va_size = kGiB;
    if (GetParam() == Limit::capacity) config.capacity = kPages * kPage;
    relief.drain_deferred = [](MutexLock&) { return false; };
    relief.give_back_caches = [](MutexLock&) { return false; };
    relief.shrink_caches = [](MutexLock&) { return false; };
    relief.prove_everything = [] { return false; };
    relief.synchronize = [](MutexLock&) { return false; };
  }
  ~OutOfMemorySteps() override {
    EXPECT_EQ(pool->validate(), "");
    lock.unlock();
    sim.run_until_idle();
    lock.lock();
    pool->release_everything();
    timelines.destroy_events();
    EXPECT_EQ(sim.census().chunks, 0u);
    EXPECT_EQ(sim.census().mappings, 0u);
  }
  static driver::sim::SimOptions options() {
    driver::sim::SimOptions options;
    options.capacity = 2 * kPages * kPage;
    if (GetParam() == Limit::others) options.used_by_others = kPages * kPage;
    return options;
  }
  static void expect(CuResult result) { EXPECT_EQ(result, CuResult::success); }

  void open() {
    pool = std::make_unique<Pool>(driver, driver::ChunkProperties{}, config, kPage, timelines, relief);
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
  Result<DevicePtr> allocate(Bytes pages, const Caller& caller) {
    return pool->allocate(lock, {pages * kPage, pages * kPage, kPage}, caller);
  }
  DevicePtr take(Bytes pages, const Caller& caller) {
    auto result = allocate(pages, caller);
    EXPECT_TRUE(result.ok()) << (result ? "" : result.error().message);
    return result ? result.value() : DevicePtr{};
  }
  // All pages are mapped, half of them idle and none next to another.
  void take_every_other_page() {
    std::vector<DevicePtr> live;
    for (Bytes i = 0; i < kPages; ++i) live.push_back(take(1, a));
    for (std::size_t i = 0; i < live.size(); i += 2) give_back(live[i]);
  }
  void give_back(DevicePtr ptr) { pool->deallocate(pool->owner(ptr), {}); }
  // Freed behind a second of work, with an event.
  void give_back_pending(DevicePtr ptr, const Caller& caller) {
    expect(sim.launch({"work", kSecondNs, {}, {}}, *caller.stream));
    region::Region* region = pool->owner(ptr);
    pool->deallocate(region, time::Stamp(timelines.next(*caller.timeline, region->range.size)));
    EXPECT_TRUE(timelines.close(*caller.timeline, *caller.stream).ok());
  }
  observe::Statistics figures() {
    observe::Statistics figures;
    pool->fill(figures);
    return figures;
  }

  driver::sim::SimDriver sim;
  HookedDriver driver{sim};
  time::Timelines timelines{driver, {}};
  driver::ContextHandle context{};
  Config config;
  Relief relief;
  std::unique_ptr<Pool> pool;
  Mutex mutex;
  MutexLock lock{mutex};
  Caller a;
  Caller b;
};

TEST_P(OutOfMemorySteps, deferred_frees_are_carried_out) {
  DevicePtr dropped{};
  relief.drain_deferred = [&](MutexLock&) {
    if (is_null(dropped)) return false;
    give_back(std::exchange(dropped, DevicePtr{}));
    return true;
  };
  open();
  dropped = take(kPages, a);
  take(kPages, a);
}

// At the pool's own limit only: the driver is busy with the first thread's call, so it could not refuse the second's.
class OutOfMemoryThreads : public OutOfMemorySteps {};

// The plan of another thread has the idle pages in hand, and they come back because it fails.
TEST_P(OutOfMemoryThreads, plans_in_flight_are_waited_for) {
  std::promise<void> is_short;
  relief.drain_deferred = [&, is_first = true](MutexLock&) mutable {
    if (std::exchange(is_first, false)) is_short.set_value();
    return false;
  };
  open();
  take_every_other_page();
  Result<DevicePtr> second = Error{ErrorCode::out_of_memory, {}};
  std::thread thread;
  driver.on_map = [&, first = std::this_thread::get_id()] {
    if (std::this_thread::get_id() != first) return CuResult::success;
    if (!thread.joinable()) {
      thread = std::thread([&] {
        expect(sim.ctx_set_current(context));
        MutexLock own(mutex);
        second = pool->allocate(own, {kPage, kPage, kPage}, b);
      });
      is_short.get_future().wait();
    }
    return CuResult::out_of_memory;
  };
  EXPECT_FALSE(allocate(kPages / 2, a).ok());
  lock.unlock();
  thread.join();
  lock.lock();
  driver.on_map = nullptr;
  EXPECT_TRUE(second.ok()) << second.error().message;
}

// A chunk that the driver would not take back counts until a sweep gets rid of it.
TEST_P(OutOfMemorySteps, what_the_driver_would_not_take_back_is_offered_again) {
  open();
  give_back(take(kPages, a));
  driver.on_release = [] { return CuResult::unknown; };
  EXPECT_TRUE(pool->trim(lock, 0).ok());
  driver.on_release = nullptr;
  ASSERT_EQ(figures().quarantined_bytes, kPages * kPage);
  take(kPages, a);
  EXPECT_EQ(figures().quarantined_bytes, 0u);
}

// Within its budget the adaptive policy would rather grow.
TEST_P(OutOfMemorySteps, every_idle_chunk_moves_whatever_the_policy_says) {
  config.page_chunks = false;
  config.prefer = Prefer::latency;
  open();
  take_every_other_page();
  take(2, a);
  EXPECT_EQ(figures().chunks_moved, 2u);
  EXPECT_EQ(figures().chunks_released, 0u);
}

// The number of mappings is at its limit, so nothing can move.
TEST_P(OutOfMemorySteps, idle_chunks_are_given_back_to_make_one_that_fits) {
  config.max_mappings = kPages;
  open();
  take_every_other_page();
  take(kPages / 2, a);
  EXPECT_EQ(figures().chunks_moved, 0u);
  EXPECT_EQ(figures().chunks_released, kPages / 2);
  EXPECT_EQ(figures().mappings, kPages / 2 + 1);
}

TEST_P(OutOfMemorySteps, idle_chunks_that_would_not_be_enough_are_kept) {
  config.max_mappings = kPages;
  open();
  take_every_other_page();
  EXPECT_FALSE(allocate(kPages / 2 + 1, a).ok());
  EXPECT_EQ(figures().chunks_released, 0u);
}

TEST_P(OutOfMemorySteps, caches_are_given_back) {
  driver::ChunkHandle cached{};
  relief.give_back_caches = [&](MutexLock&) {
    expect(sim.mem_release(cached));
    pool->set_other_bytes(0);
    return true;
  };
  open();
  expect(sim.mem_create(kPages * kPage, driver::ChunkProperties{}, cached));
  pool->set_other_bytes(kPages * kPage);
  take(kPages, a);
}

TEST_P(OutOfMemorySteps, the_gpu_waits_for_other_streams_before_the_host_does) {
  config.page_chunks = false;  // within its budget it grows rather than waits
  config.prefer = Prefer::latency;
  open();
  const DevicePtr first = take(kPages - 1, a);
  take(1, a);
  give_back_pending(first, b);
  take(1, a);
  EXPECT_EQ(figures().gpu_waits, 1u);
  EXPECT_EQ(figures().host_waits, 0u);
}

TEST_P(OutOfMemorySteps, the_host_waits_where_the_gpu_cannot) {
  open();
  give_back_pending(take(kPages, b), b);
  take(kPages, Caller{});
  EXPECT_EQ(figures().gpu_waits, 0u);
  EXPECT_EQ(figures().host_waits, 1u);
}

TEST_P(OutOfMemorySteps, memory_that_no_event_covers_gets_one_of_the_whole_context) {
  relief.prove_everything = [&] {
    const auto closed = timelines.close_all(time::Timelines::Everything::context_event);
    return closed.ok() && closed.value();
  };
  open();
  const DevicePtr ptr = take(kPages, b);
  expect(sim.launch({"work", kSecondNs, {}, {}}, *b.stream));
  pool->deallocate(pool->owner(ptr), time::Stamp(timelines.next(*b.timeline, kPages * kPage)));
  take(kPages, a);
  EXPECT_EQ(figures().host_waits, 1u);
}

INSTANTIATE_TEST_SUITE_P(Limits, OutOfMemorySteps, testing::Values(Limit::capacity, Limit::others),
                         [](const auto& tested) { return tested.param == Limit::capacity ? "capacity" : "others"; });

INSTANTIATE_TEST_SUITE_P(Limits, OutOfMemoryThreads, testing::Values(Limit::capacity));

}  // namespace
}  // namespace vpmm::pool
