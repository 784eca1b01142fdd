// SPDX-License-Identifier: Apache-2.0
// fault tests: each allocation of host memory of each scenario fails in turn, once and from then
// on.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "base/host_memory.hpp"
#include "fault/scenarios.hpp"
#include "support/hooked_driver.hpp"

namespace vpmm::fault {
namespace {

// Of each scenario so many allocations fail, evenly spread; VPMM_HOST_FAULTS=all: all of them.
std::uint64_t most_runs() {
  const char* const all = std::getenv("VPMM_HOST_FAULTS");
  return all != nullptr && std::string(all) == "all" ? ~std::uint64_t{0} : 25;
}

class HostMemoryFault : public ::testing::TestWithParam<Case> {
 protected:
  void TearDown() override { HostFaults::disarm(); }

  // What went wrong; empty: nothing. `fired`: whether the allocation was reached.
  std::string run(std::uint64_t failing, HostFaults::Repeat repeat, std::uint64_t& counted) {
    FaultWorld world(options_of(GetParam()), config_of(GetParam()));
    HostFaults::arm(failing, repeat);
    world.open();
    GetParam().scenario.run(world);
    counted = HostFaults::counted();
    HostFaults::disarm();
    world.check_aftermath();
    world.close(FaultWorld::Left::nothing);
    if (world.is_poisoned()) return "the pool is poisoned, and no driver call failed";
    return world.failure();
  }
};

TEST_P(HostMemoryFault, a_failed_allocation_loses_nothing_and_leaves_a_pool_that_works) {
  std::uint64_t all = 0, counted = 0;
  // Twice: the first time some things are made that stay for the process.
  for (int i = 0; i < 2; ++i)
    ASSERT_EQ(run(0, HostFaults::Repeat::once, all), "") << "without any fault";
  ASSERT_GT(all, 0u);
  const std::uint64_t step = std::max<std::uint64_t>(all / most_runs(), 1);
  int failures = 0;
  for (std::uint64_t n = 1; n <= all && failures < 5; n += step)
    for (const auto repeat : {HostFaults::Repeat::once, HostFaults::Repeat::from_then_on}) {
      const std::string failure = run(n, repeat, counted);
      ASSERT_GE(counted, n) << "allocation " << n << " of " << all << " was not reached";
      if (failure.empty()) continue;
      ADD_FAILURE() << name_of(GetParam()) << ": allocation " << n << " of " << all << " fails "
                    << (repeat == HostFaults::Repeat::once ? "once" : "and all behind it") << ": "
                    << failure;
      ++failures;
    }
  EXPECT_EQ(host_reserve::used(), 0u) << "what the reserve gave came back";
}

INSTANTIATE_TEST_SUITE_P(Scenarios, HostMemoryFault, ::testing::ValuesIn(cases()),
                         [](const ::testing::TestParamInfo<Case>& each) {
                           return name_of(each.param);
                         });

TEST(HostFaults, do_not_strike_the_simulator_which_works_while_the_pool_sleeps) {
  driver::sim::SimDriver sim;
  ExemptDriver exempt(sim);
  driver::ContextHandle current{};
  ASSERT_EQ(sim.init(), driver::CuResult::success);
  ASSERT_EQ(sim.device_primary_ctx_retain(0, current), driver::CuResult::success);
  ASSERT_EQ(sim.ctx_set_current(current), driver::CuResult::success);
  std::unique_ptr<int> made;
  driver::sim::Kernel kernel;
  kernel.duration_ns = 1000;
  kernel.body = [&] { made = std::make_unique<int>(); };
  ASSERT_EQ(sim.launch(kernel, driver::kLegacyStream), driver::CuResult::success);
  HostFaults::disarm();
  {
    const InsidePool inside;
    exempt.sleep_ns(1'000'000);
  }
  EXPECT_NE(made, nullptr);
  EXPECT_EQ(HostFaults::counted(), 0u);
}

TEST(HostFaults, do_not_strike_what_is_exempt) {
  HostFaults::arm(1, HostFaults::Repeat::from_then_on);
  std::unique_ptr<int> made;
  {
    const InsidePool inside;
    const Exempt exempt;
    made = std::make_unique<int>();
  }
  EXPECT_EQ(HostFaults::counted(), 0u);
  HostFaults::disarm();
}

// Everything of the reserve, for as long as this lives.
class EmptyReserve {
 public:
  EmptyReserve() {
    HostFaults::arm(1, HostFaults::Repeat::from_then_on);
    const InsidePool inside;
    for (std::size_t bytes = std::size_t{1} << 20; bytes >= 64; bytes /= 2)
      while (void* const memory = host_reserve::take(bytes, 16)) taken_.push_back(memory);
  }
  ~EmptyReserve() {
    HostFaults::disarm();
    for (void* const memory : taken_) host_reserve::give_back(memory, 16);
  }

 private:
  struct Room : std::vector<void*> {
    Room() { reserve(100'000); }
  };
  Room taken_;
};

TEST(HostReserve, gives_what_the_process_cannot_and_is_whole_again_when_all_is_back) {
  {
    HostFaults::arm(1, HostFaults::Repeat::from_then_on);
    const InsidePool inside;
    Vector<int> numbers;
    for (int i = 0; i < 1000; ++i) numbers.push_back(i);
    EXPECT_EQ(numbers[999], 999);
    EXPECT_GT(host_reserve::used(), 1000 * sizeof(int));
    HostFaults::disarm();
  }
  EXPECT_EQ(host_reserve::used(), 0u);
}

TEST(HostReserve, memory_from_it_has_the_alignment_that_was_asked_for) {
  HostFaults::arm(1, HostFaults::Repeat::from_then_on);
  {
    const InsidePool inside;
    for (const std::size_t alignment :
         {std::size_t{8}, std::size_t{16}, std::size_t{64}, std::size_t{4096}}) {
      void* const memory = host_reserve::take(100, alignment);
      ASSERT_NE(memory, nullptr);
      EXPECT_EQ(reinterpret_cast<std::uintptr_t>(memory) % alignment, 0u);
      host_reserve::give_back(memory, alignment);
    }
  }
  HostFaults::disarm();
  EXPECT_EQ(host_reserve::used(), 0u);
}

TEST(HostReserve, without_it_a_call_fails_before_it_changes_anything) {
  driver::sim::SimOptions options;
  settings::Config config;
  config.va_size = kGiB;
  config.log = observe::LogLevel::quiet;
  FaultWorld world(options, config);
  world.open();
  const auto live = world.allocate(20 * kMiB, world.stream(1));
  const auto before = world.pool()->reports().statistics();
  const DevicePtr ptr = world.address(live);
  {
    const EmptyReserve empty;
    const InsidePool inside;
    const Result<DevicePtr> more = world.pool()->allocate({30 * kMiB, 0, world.stream(2)});
    ASSERT_FALSE(more);
    EXPECT_EQ(more.error().code, ErrorCode::host_out_of_memory);
    const Result<void> freed = world.pool()->deallocate(ptr, world.stream(2));
    ASSERT_FALSE(freed);
    EXPECT_EQ(freed.error().code, ErrorCode::host_out_of_memory);
    EXPECT_EQ(world.pool()->reports().statistics().live_bytes, before.live_bytes);
    EXPECT_EQ(world.pool()->reports().statistics().mapped_bytes, before.mapped_bytes);
  }
  world.check_aftermath();
  world.close(FaultWorld::Left::nothing);
  EXPECT_EQ(world.failure(), "");
}

// Promises all of the reserve, while the process has no memory either.
class PromisedReserve {
 public:
  PromisedReserve() {
    for (std::size_t bytes = std::size_t{1} << 20; bytes >= 64; bytes /= 2)
      while (promise(bytes)) ++count_;
  }

 private:
  bool promise(std::size_t bytes) {
    std::optional<HostPromise>& next = promises_.at(count_);
    next.emplace(bytes);
    if (next->is_kept()) return true;
    next.reset();
    return false;
  }

  std::array<std::optional<HostPromise>, 64> promises_;
  std::size_t count_ = 0;
};

TEST(HostReserve, without_a_promise_a_stretch_is_not_divided) {
  driver::sim::SimDriver sim;
  ExemptDriver exempt(sim);
  test::HookedDriver hooks(exempt);
  driver::StreamHandle stream{};
  driver::ContextHandle current{};
  ASSERT_EQ(sim.init(), driver::CuResult::success);
  ASSERT_EQ(sim.device_primary_ctx_retain(0, current), driver::CuResult::success);
  ASSERT_EQ(sim.ctx_set_current(current), driver::CuResult::success);
  ASSERT_EQ(sim.stream_create(driver::StreamFlags::non_blocking, stream),
            driver::CuResult::success);
  settings::Config config;
  config.va_size = kGiB;
  config.page_chunks = true;
  const auto pool = context::Context::create(hooks, 0, config).value();
  const pool::ArenaId arena = pool->arenas().create({false, false}).value();
  const auto allocate = [&](Bytes bytes) {
    return pool->allocate({bytes, 0, stream, arena}).value();
  };
  const DevicePtr ptr = allocate(14 * kMiB);
  ASSERT_TRUE(pool->deallocate(ptr, stream).ok());
  ASSERT_EQ(allocate(14 * kMiB), ptr);  // `hooks` needs memory for the first call of each kind
  ASSERT_TRUE(pool->deallocate(ptr, stream).ok());
  std::optional<PromisedReserve> all;  // but for the call's own promise
  hooks.on[driver::Call::stream_get_id] = [&] {
    HostFaults::arm(1, HostFaults::Repeat::from_then_on);
    if (!all) all.emplace();
    return driver::CuResult::success;
  };
  {
    const InsidePool inside;
    EXPECT_EQ(allocate(8 * kMiB), ptr);
  }
  HostFaults::disarm();
  all.reset();
  hooks.on.clear();
  EXPECT_EQ(pool->query(ptr).value().usable, 14 * kMiB);
  ASSERT_TRUE(pool->deallocate(ptr, stream).ok());
  EXPECT_EQ(allocate(8 * kMiB), ptr);
  EXPECT_EQ(pool->query(ptr).value().usable, 8 * kMiB);
  EXPECT_EQ(pool->reports().validate(), "");
}

}  // namespace
}  // namespace vpmm::fault
