// SPDX-License-Identifier: Apache-2.0
// emm: pending deallocations, as Numba's: by count, by bytes, deferred, and what comes first when
// memory runs out.
#include <atomic>
#include <thread>
#include <vector>

#include "emm/emm_world.hpp"
#include "emm/host_memory.hpp"

namespace vpmm::emm_test {
namespace {

using driver::Call;
using driver::CuResult;
using emm::DeferCleanup;
using emm::MemoryPointer;

// Of a device's memory a fifth may wait, and ten frees.
class Deferral : public testing::Test {
 protected:
  EmmWorld world;
  std::size_t thousandth = world.driver().mem_get_info().total / 1000;  // bytes
  std::shared_ptr<emm::DefaultMemoryManager> manager = world.make<emm::DefaultMemoryManager>();

  std::uint64_t frees() {
    return world.calls().count(Call::mem_free) + world.calls().count(Call::mem_free_host);
  }
  std::uint64_t allocated() {
    return world.calls().count(Call::mem_alloc) - world.calls().count(Call::mem_free);
  }
  void allocate_and_drop(std::size_t bytes) { (void)manager->memalloc(bytes); }
};

TEST_F(Deferral, waits_until_more_than_the_count_are_pending) {
  for (int i = 0; i < 10; ++i) allocate_and_drop(16);
  EXPECT_EQ(manager->pending().count(), 10u);
  EXPECT_EQ(frees(), 0u);
  allocate_and_drop(16);
  EXPECT_EQ(manager->pending().count(), 0u);
  EXPECT_EQ(frees(), 11u);
}

TEST_F(Deferral, waits_until_more_than_the_bytes_are_pending) {
  const auto fifth =
      static_cast<std::size_t>(0.2 * static_cast<double>(world.driver().mem_get_info().total));
  allocate_and_drop(fifth);
  EXPECT_EQ(manager->pending().bytes(), fifth);
  EXPECT_EQ(frees(), 0u);
  allocate_and_drop(1);
  EXPECT_EQ(manager->pending().bytes(), 0u);
  EXPECT_EQ(frees(), 2u);
}

TEST_F(Deferral, has_one_queue_for_device_and_host_memory) {
  for (int i = 0; i < 4; ++i) {
    allocate_and_drop(16);
    (void)manager->allocate_pinned(16);
    if (i < 2) (void)manager->allocate_mapped(16);
  }
  EXPECT_EQ(manager->pending().count(), 10u);
  (void)manager->allocate_managed(16);
  EXPECT_EQ(manager->pending().count(), 0u);
  EXPECT_EQ(world.calls().count(Call::mem_free), 5u);
  EXPECT_EQ(world.calls().count(Call::mem_free_host), 6u);
}

TEST_F(Deferral, reads_its_limits_when_the_manager_is_initialized) {
  setenv("VPMM_MAX_PENDING_DEALLOCS_COUNT", "2", 1);
  setenv("VPMM_MAX_PENDING_DEALLOCS_RATIO", "0.001", 1);
  manager->initialize();
  unsetenv("VPMM_MAX_PENDING_DEALLOCS_COUNT");
  unsetenv("VPMM_MAX_PENDING_DEALLOCS_RATIO");
  allocate_and_drop(16);
  allocate_and_drop(16);
  EXPECT_EQ(frees(), 0u);
  allocate_and_drop(16);
  EXPECT_EQ(frees(), 3u);
  allocate_and_drop(2 * thousandth);
  EXPECT_EQ(frees(), 4u);
}

TEST_F(Deferral, a_limit_that_is_no_number_is_an_error_that_names_it) {
  for (const auto& [variable, value] : {std::pair{"VPMM_MAX_PENDING_DEALLOCS_COUNT", "-1"},
                                        {"VPMM_MAX_PENDING_DEALLOCS_RATIO", "1.5"},
                                        {"VPMM_MAX_PENDING_DEALLOCS_RATIO", "nan"}}) {
    setenv(variable, value, 1);
    const Thrown thrown = thrown_by([&] { manager->initialize(); });
    unsetenv(variable);
    EXPECT_EQ(thrown.status, VPMM_ERROR_BAD_CONFIGURATION);
    EXPECT_TRUE(thrown.names(variable) && thrown.names(value)) << thrown.text;
  }
  manager->initialize();
  EXPECT_EQ(manager->cuda_context(), world.context()) << "a failure can be tried again";
}

TEST_F(Deferral, frees_nothing_inside_nested_guards_and_catches_up_with_the_next_free_after_them) {
  {
    const DeferCleanup outer = manager->defer_cleanup();
    {
      const DeferCleanup inner = manager->defer_cleanup();
      for (int i = 0; i < 20; ++i) allocate_and_drop(16);
    }
    allocate_and_drop(300 * thousandth);
    EXPECT_EQ(frees(), 0u);
    EXPECT_EQ(manager->pending().count(), 21u);
  }
  EXPECT_EQ(frees(), 0u) << "the end of a guard is no place for what takes long";
  allocate_and_drop(16);
  EXPECT_EQ(frees(), 22u);
}

TEST_F(Deferral, ends_with_an_exception) {
  const auto fail_inside = [&] {
    const DeferCleanup guard = manager->defer_cleanup();
    for (int i = 0; i < 20; ++i) allocate_and_drop(16);
    throw std::runtime_error("the program's own");
  };
  EXPECT_THROW(fail_inside(), std::runtime_error);
  EXPECT_FALSE(manager->pending().is_deferred());
  allocate_and_drop(16);
  EXPECT_EQ(manager->pending().count(), 0u);
}

TEST_F(Deferral, a_moved_guard_defers_once) {
  DeferCleanup first = manager->defer_cleanup();
  DeferCleanup second = std::move(first);
  first.end();  // NOLINT(bugprone-use-after-move): a moved guard is an empty one
  EXPECT_TRUE(manager->pending().is_deferred());
  second.end();
  second.end();
  EXPECT_FALSE(manager->pending().is_deferred());
}

TEST_F(Deferral, running_out_of_memory_frees_what_waits_and_tries_once_more) {
  allocate_and_drop(200 * thousandth);
  const MemoryPointer most = manager->memalloc(600 * thousandth);
  EXPECT_EQ(frees(), 0u);
  const MemoryPointer more = manager->memalloc(300 * thousandth);
  EXPECT_TRUE(more);
  EXPECT_EQ(frees(), 1u);
}

TEST_F(Deferral, running_out_of_memory_comes_before_a_guard) {
  const DeferCleanup guard = manager->defer_cleanup();
  allocate_and_drop(600 * thousandth);
  const MemoryPointer memory = manager->memalloc(600 * thousandth);
  EXPECT_TRUE(memory);
  EXPECT_TRUE(manager->pending().is_deferred());
}

// A GPU gives managed memory no pages before it is touched.
using DeferralOnSimulator = Deferral;

TEST_F(DeferralOnSimulator, a_pool_that_runs_out_frees_what_waits_beside_it_and_tries_once_more) {
  const auto pooled = world.make<OnPool>(world.calls(), pool_config());
  const DeferCleanup guard = pooled->defer_cleanup();
  (void)pooled->allocate_managed(600 * thousandth);
  EXPECT_EQ(frees(), 0u);
  EXPECT_TRUE(pooled->memalloc(500 * thousandth));
  EXPECT_EQ(frees(), 1u);
}

TEST_F(Deferral, with_nothing_pending_running_out_is_an_error_that_says_so) {
  const Thrown thrown = thrown_by([&] { (void)manager->memalloc(2000 * thousandth); });
  EXPECT_EQ(thrown.status, VPMM_ERROR_OUT_OF_MEMORY);
  EXPECT_TRUE(thrown.names("mem_alloc")) << thrown.text;
  EXPECT_EQ(world.calls().count(Call::mem_alloc), 1u) << "there was no reason to try again";
  EXPECT_THROW((void)manager->memalloc(2000 * thousandth), std::bad_alloc);
}

TEST_F(Deferral, a_free_that_fails_is_counted_and_the_others_are_carried_out) {
  for (int i = 0; i < 10; ++i) allocate_and_drop(16);
  driver::FaultPlan plan;
  plan.calls = {Call::mem_free};
  plan.nth = 3;
  plan.result = CuResult::invalid_value;
  world.faulting().set_plan(plan);
  allocate_and_drop(16);
  world.faulting().clear_plan();
  EXPECT_EQ(manager->pending().failures(), 1u);
  EXPECT_EQ(allocated(), 0u) << "each was tried";
}

// A driver that only counts what is freed, and refuses the first.
std::atomic<int> freed = 0;
vpmm_status counted_free(const vpmm_emm_driver*, void*) {
  return ++freed == 1 ? VPMM_ERROR_DRIVER_FAILED : VPMM_OK;
}

TEST_F(Deferral, a_free_is_carried_out_at_once_when_there_is_no_host_memory_for_the_queue) {
  vpmm_emm_driver counting = *world.driver().table();
  counting.mem_free = counted_free;
  emm::PendingDeallocs queue{emm::Driver(&counting)};
  queue.set_limits(world.context(), {1000, 1.0}, 1000 * thousandth);
  freed = 0;
  {
    const NoHostMemory none;
    for (int i = 0; i < 100; ++i) queue.add(&queue, 16, &emm::Driver::mem_free);
    queue.flush();
  }
  EXPECT_EQ(freed, 100);
  EXPECT_EQ(queue.failures(), 1u);
}

// A driver whose mem_free takes long.
std::atomic<bool> is_freeing = false;
std::atomic<bool> may_free = false;
vpmm_status (*quick_free)(const vpmm_emm_driver*, void*) = nullptr;
vpmm_status slow_free(const vpmm_emm_driver* driver, void* ptr) {
  is_freeing = true;
  while (!may_free) std::this_thread::yield();
  return quick_free(driver, ptr);
}

TEST_F(Deferral, running_out_of_memory_waits_for_frees_that_another_thread_has_begun) {
  vpmm_emm_driver slow = *world.driver().table();
  quick_free = std::exchange(slow.mem_free, slow_free);
  emm::PendingDeallocs queue{emm::Driver(&slow)};
  queue.set_limits(world.context(), {10, 1.0}, 1000 * thousandth);
  queue.add(world.driver().mem_alloc(600 * thousandth), 600 * thousandth, &emm::Driver::mem_free);
  is_freeing = may_free = false;
  std::thread other([&] { queue.flush(); });
  while (!is_freeing) std::this_thread::yield();
  std::thread waker([] {
    std::this_thread::sleep_for(std::chrono::milliseconds(30));
    may_free = true;
  });
  void* memory = nullptr;
  const Thrown thrown = thrown_by(
      [&] { memory = queue.attempt([&] { return world.driver().mem_alloc(600 * thousandth); }); });
  EXPECT_EQ(thrown.status, VPMM_OK) << thrown.text;
  waker.join();
  other.join();
  if (memory != nullptr) world.driver().mem_free(memory);
}

TEST_F(Deferral, frees_from_a_thread_without_a_context) {
  std::vector<MemoryPointer> memory;
  for (int i = 0; i < 11; ++i) memory.push_back(manager->memalloc(16));
  std::thread([&] {
    memory.clear();
    EXPECT_EQ(world.driver().ctx_get_current(), nullptr) << "left as it was";
  }).join();
  EXPECT_EQ(manager->pending().failures(), 0u);
  EXPECT_EQ(allocated(), 0u);
}

TEST_F(Deferral, eight_threads_lose_no_free) {
  std::vector<std::thread> threads;
  for (int thread = 0; thread < 8; ++thread)
    threads.emplace_back([this] {
      world.driver().ctx_set_current(world.context());
      for (int i = 0; i < 300; ++i) {
        if (i % 50 == 0) {
          const DeferCleanup guard = manager->defer_cleanup();
          allocate_and_drop(64);
        }
        allocate_and_drop(16);
        (void)manager->allocate_pinned(16);
      }
    });
  for (std::thread& thread : threads) thread.join();
  manager->reset();
  EXPECT_EQ(manager->pending().count(), 0u);
  EXPECT_EQ(manager->pending().failures(), 0u);
  EXPECT_EQ(allocated(), 0u);
  EXPECT_EQ(frees(), 8u * (300 * 2 + 6));
}

TEST_F(Deferral, a_reset_inside_a_guard_leaves_what_waits_until_later) {
  MemoryPointer memory = manager->memalloc(16);
  {
    const DeferCleanup guard = manager->defer_cleanup();
    manager->reset();
    EXPECT_EQ(manager->pending().count(), 1u);
  }
  manager->reset();
  EXPECT_EQ(frees(), 1u);
}

TEST_F(Deferral, a_range_that_cannot_be_unpinned_is_counted) {
  std::vector<char> pages(2 * 4096);
  emm::PinnedMemory pinned = manager->pin(nullptr, {pages.data(), pages.size()});
  driver::FaultPlan plan;
  plan.calls = {Call::mem_host_unregister};
  plan.result = CuResult::invalid_value;
  world.faulting().set_plan(plan);
  pinned.reset();
  world.faulting().clear_plan();
  EXPECT_EQ(manager->pending().failures(), 1u);
  world.driver().mem_host_unregister(pages.data());
}

TEST_F(Deferral, unpins_at_once_and_inside_a_guard_so_that_the_range_can_be_pinned_again) {
  std::vector<char> pages(3 * 4096);
  const emm::HostSpan span{pages.data(), pages.size()};
  const DeferCleanup guard = manager->defer_cleanup();
  for (int i = 0; i < 3; ++i) {
    const emm::PinnedMemory pinned = manager->pin(nullptr, span);
    EXPECT_NE(thrown_by([&] { (void)manager->pin_mapped(nullptr, span); }).status, VPMM_OK);
  }
  for (int i = 0; i < 3; ++i)
    EXPECT_NE(manager->pin_mapped(nullptr, span).device_pointer(), nullptr);
  EXPECT_EQ(world.calls().count(Call::mem_host_unregister), 6u);
  EXPECT_EQ(manager->pending().failures(), 0u);
  EXPECT_EQ(manager->pending().count(), 0u);
}

}  // namespace
}  // namespace vpmm::emm_test
