// pool: each step before a request fails, where only that step can help: at the pool's own limit, and on a GPU that
// other processes hold half of.
#include <future>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "pool/limited_pool.hpp"

namespace vpmm::pool {
namespace {

class OutOfMemorySteps : public LimitedPool, public testing::WithParamInterface<Limit> {
 protected:
  OutOfMemorySteps() : LimitedPool(GetParam()) {}
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

// No address is left but those of zombies.
TEST_P(OutOfMemorySteps, zombies_are_unmapped) {
  constexpr Bytes kLarge = kPages / 2 + 2;
  config.va_size = (kPages + kLarge) * kPage;
  open();
  const DevicePtr half = take(kPages / 2, a);
  Vector<DevicePtr> live;
  for (Bytes i = 0; i < kPages / 2; ++i) live.push_back(take(1, a));
  driver.on[Call::mem_address_reserve] = [] { return CuResult::out_of_memory; };
  for (const DevicePtr ptr : {half, live[1], live[3]}) give_back(ptr);
  give_back(take(kLarge, a));
  ASSERT_EQ(figures().zombie_bytes, kLarge * kPage);
  live.clear();
  for (Bytes i = 0; i < kLarge; ++i) live.push_back(take(1, a));
  for (std::size_t i = 0; i < live.size(); i += 2) give_back(live[i]);
  take(kLarge / 2, a);
  EXPECT_EQ(figures().chunks_moved, kLarge + kLarge / 2);
  EXPECT_EQ(figures().chunks_released, 0u);
  driver.on.clear();
}

TEST_P(OutOfMemorySteps, what_streams_keep_is_recalled) {
  DevicePtr kept{};
  relief.recall = [&](const Caller&, Bytes, bool is_short) {
    if (!is_short || is_null(kept)) return false;
    give_back(std::exchange(kept, DevicePtr{}));
    return true;
  };
  open();
  kept = take(kPages, a);
  take(kPages, a);
}

// A chunk that the driver would not take back counts until a sweep gets rid of it.
TEST_P(OutOfMemorySteps, what_the_driver_would_not_take_back_is_offered_again) {
  open();
  give_back(take(kPages, a));
  driver.on[Call::mem_release] = [] { return CuResult::unknown; };
  EXPECT_TRUE(pool->trim(lock, 0).ok());
  driver.on.clear();
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
  give_back_pending(first, b, Closed::yes);
  take(1, a);
  EXPECT_EQ(figures().gpu_waits, 1u);
  EXPECT_EQ(figures().host_waits, 0u);
}

TEST_P(OutOfMemorySteps, the_host_waits_where_the_gpu_cannot) {
  open();
  give_back_pending(take(kPages, b), b, Closed::yes);
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
  give_back_pending(take(kPages, b), b, Closed::no);
  take(kPages, a);
  EXPECT_EQ(figures().host_waits, 1u);
}

// Two streams are done, and the query for one of them fails.
TEST_P(OutOfMemorySteps, what_was_learned_before_a_query_failed_is_used) {
  open();
  const DevicePtr first = take(kPages / 2, a);
  const DevicePtr second = take(kPages / 2, b);
  give_back_pending(first, a, Closed::yes);
  give_back_pending(second, b, Closed::yes);
  sim.run_until_idle();
  driver.on[Call::event_query] = [&] {
    return driver.counts[Call::event_query] < 2 ? CuResult::success : CuResult::unknown;
  };
  EXPECT_FALSE(pool->learn(2).ok());
  EXPECT_EQ(figures().pending_bytes, kPages / 2 * kPage);
  driver.on.clear();
  EXPECT_TRUE(pool->learn(2).ok());
  EXPECT_EQ(figures().pending_bytes, 0u);
}

// What is complete by now is found before a stream is made to wait for it.
TEST_P(OutOfMemorySteps, nobody_waits_for_what_is_complete) {
  config.page_chunks = false;
  config.prefer = Prefer::latency;
  open();
  const DevicePtr freed = take(kPages - 1, a);
  take(1, a);
  give_back_pending(freed, b, Closed::yes);
  sim.run_until_idle();
  take(1, a);
  EXPECT_EQ(figures().gpu_waits, 0u);
  EXPECT_EQ(figures().host_waits, 0u);
}

class AtThePoolsLimit : public LimitedPool {
 protected:
  AtThePoolsLimit() : LimitedPool(Limit::capacity) {}
};

class OnAFullGpu : public LimitedPool {
 protected:
  OnAFullGpu() : LimitedPool(Limit::others) {}
};

// The plan of another thread has the idle pages in hand, and they come back because it fails.
TEST_F(AtThePoolsLimit, plans_in_flight_are_waited_for) {
  std::promise<void> is_short;
  relief.drain_deferred = [&, is_first = true](MutexLock&) mutable {
    if (std::exchange(is_first, false)) is_short.set_value();
    return false;
  };
  open();
  take_every_other_page();
  Result<DevicePtr> second = Error{ErrorCode::out_of_memory, {}};
  std::thread thread;
  driver.on[Call::mem_map] = [&, first = std::this_thread::get_id()] {
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
  driver.on.clear();
  EXPECT_TRUE(second.ok()) << second.error().message;
}

// The driver serves one thread at a time, so the other's plan is made while it refuses the page that the first one
// lacks.
TEST_F(OnAFullGpu, plans_in_flight_are_waited_for) {
  std::promise<void> is_short;
  relief.drain_deferred = [&](MutexLock&) {
    is_short.set_value();
    return false;
  };
  relief.recall = [](const Caller&, Bytes, bool for_shortage) {
    EXPECT_FALSE(for_shortage);
    return false;
  };
  relief.give_back_caches = [](MutexLock&) {
    ADD_FAILURE() << "plans that fail give enough";
    return false;
  };
  open();
  const Vector<DevicePtr> live = take_every_other_page();
  std::thread thread;
  driver.on[Call::mem_create] = [&] {
    if (thread.joinable()) return CuResult::success;
    {
      const MutexLock own(mutex);
      give_back(live.front());
    }
    thread = std::thread([&] {
      expect(sim.ctx_set_current(context));
      MutexLock own(mutex);
      EXPECT_FALSE(pool->allocate(own, {kPages / 2 * kPage, kPages / 2 * kPage, kPage}, b).ok());
    });
    for (bool is_in_flight = false; !is_in_flight; std::this_thread::yield()) {
      const MutexLock own(mutex);
      is_in_flight = pool->picture().find('#') != std::string::npos;
    }
    return CuResult::success;  // there is none, as the simulator says
  };
  driver.on[Call::mem_map] = [&, first = std::this_thread::get_id()] {
    if (std::this_thread::get_id() == first) return CuResult::success;
    is_short.get_future().wait();
    return CuResult::unknown;
  };
  const std::uint64_t created = driver.counts[Call::mem_create];
  take(kPages / 2 + 1, a);
  lock.unlock();
  thread.join();
  lock.lock();
  driver.on.clear();
  EXPECT_EQ(driver.counts[Call::mem_create], created + 1) << "it asked for more before the other thread was done";
}

// --- what is not tried ---------------------------------------------------------------------------------------------

TEST_P(OutOfMemorySteps, what_is_larger_than_all_there_is_creates_nothing) {
  open();
  take(1, a);
  const std::uint64_t created = driver.counts[Call::mem_create];
  EXPECT_FALSE(allocate(kPages, a).ok());
  EXPECT_FALSE(pool->preallocate(lock, (kPages + 1) * kPage).ok());
  EXPECT_LE(driver.counts[Call::mem_create], created + 2) << "each in one piece at most, and once";
  EXPECT_EQ(driver.counts[Call::mem_release], 0u);
  EXPECT_EQ(figures().failed_plans, 0u);
}

TEST_P(OutOfMemorySteps, a_plan_that_the_driver_refused_is_not_carried_out_again_when_nothing_came_back) {
  driver.on[Call::mem_create] = [] { return CuResult::out_of_memory; };
  open();
  EXPECT_FALSE(allocate(kPages / 2, a).ok());
  EXPECT_EQ(driver.counts[Call::mem_create], 1u);
  EXPECT_EQ(figures().failed_plans, 1u);
  driver.on.clear();
}

TEST_P(OutOfMemorySteps, of_several_plans_the_one_that_the_gpu_has_room_for_is_carried_out) {
  open();
  take_every_other_page();
  take(kPages / 2, a);
  EXPECT_EQ(figures().failed_plans, 0u);
  EXPECT_EQ(figures().chunks_moved, kPages / 2);
}

class DriverRoom : public PoolFixture<HookedDriver> {
 protected:
  static constexpr Bytes kGpuPages = 1000;
  DriverRoom() : PoolFixture(options()) { open(); }
  static driver::sim::SimOptions options() {
    driver::sim::SimOptions options;
    options.capacity = kGpuPages * kPage;
    return options;
  }
  bool is_held = true;  // memory that the driver would give to a call
};

TEST_F(DriverRoom, the_driver_is_asked_when_half_of_what_was_free_is_used_up) {
  for (Bytes pages = 0; pages < kGpuPages; ++pages) take(1, a);
  EXPECT_LE(driver.counts[Call::mem_get_info], 11u) << "a thousand halved ten times is nothing";
  EXPECT_GE(driver.counts[Call::mem_get_info], 2u);
}

// The driver gives what its stream-ordered pools hold unused to a call that needs it, and does not call it free.
TEST_F(DriverRoom, what_the_driver_does_not_call_free_is_tried_for_in_one_piece) {
  driver::ChunkHandle unused{};
  expect(sim.mem_create((kGpuPages - 10) * kPage, driver::ChunkProperties{}, unused));
  driver.on[Call::mem_create] = [&] {
    return std::exchange(is_held, false) ? sim.mem_release(unused) : CuResult::success;
  };
  take(20, a);
  EXPECT_EQ(figures().failed_plans, 0u);
  EXPECT_EQ(figures().chunks, 20u);
  driver.on.clear();
}

TEST_F(DriverRoom, a_try_that_the_driver_would_not_take_back_is_offered_again) {
  driver::ChunkHandle unused{};
  expect(sim.mem_create((kGpuPages - 10) * kPage, driver::ChunkProperties{}, unused));
  driver.on[Call::mem_create] = [&] {
    return std::exchange(is_held, false) ? sim.mem_release(unused) : CuResult::success;
  };
  driver.on[Call::mem_release] = [] { return CuResult::unknown; };
  EXPECT_FALSE(allocate(20, a).ok());
  EXPECT_EQ(figures().quarantined_bytes, 20 * kPage);
  EXPECT_EQ(figures().peak_mapped_bytes, 20 * kPage);
  driver.on.clear();
  take(20, a);
  EXPECT_TRUE(pool->settle(lock).ok());
  EXPECT_EQ(figures().quarantined_bytes, 0u);
}

TEST_F(DriverRoom, it_is_asked_anew_when_a_plan_has_failed) {
  take(1, a);
  driver::ChunkHandle others{};
  expect(sim.mem_create((kGpuPages - 10) * kPage, driver::ChunkProperties{}, others));
  EXPECT_FALSE(allocate(20, a).ok());
  EXPECT_EQ(figures().failed_plans, 1u) << "another process took what was free";
  EXPECT_FALSE(allocate(20, a).ok());
  EXPECT_EQ(figures().failed_plans, 1u);
  expect(sim.mem_release(others));
  take(20, a);
}

INSTANTIATE_TEST_SUITE_P(Limits, OutOfMemorySteps, every_limit(), name_of_limit);

}  // namespace
}  // namespace vpmm::pool
