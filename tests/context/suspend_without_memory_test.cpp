// SPDX-License-Identifier: Apache-2.0
// tests/context: suspends, resumes and preparations while the process itself has no memory, at any
// allocation of the calling thread: they are refused, and everything is as before.
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <new>
#include <numeric>
#include <thread>
#include <vector>

#include "base/host_memory.hpp"
#include "fault/host_faults.hpp"
#include "support/hooked_driver.hpp"
#include "support/pool_world_words.hpp"

namespace vpmm::test {
namespace {

using context::TagState;
using driver::Call;
using driver::CuResult;
using fault::HostFaults;
using fault::InsidePool;

constexpr std::uint32_t kAsleep = 7;

// A pool with a tag of two arenas, each with a copy of its own.
class TwoCopies : public ::testing::Test {
 protected:
  TwoCopies() {
    driver::ContextHandle context{};
    EXPECT_EQ(sim.init(), CuResult::success);
    EXPECT_EQ(sim.device_primary_ctx_retain(0, context), CuResult::success);
    EXPECT_EQ(sim.ctx_set_current(context), CuResult::success);
    EXPECT_EQ(sim.stream_create(StreamFlags::non_blocking, stream), CuResult::success);
    auto created = context::Context::create(driver, 0, adaptive_world().config);
    EXPECT_TRUE(created.ok()) << message_of(created);
    pool = std::move(created.value());
    keep(true);
    for (const bool one_chunk : {false, true}) {
      const auto made = pool->allocate({kBytes, 0, stream, {}, kAsleep, 0, one_chunk});
      EXPECT_TRUE(made.ok()) << message_of(made);
      live.push_back(made.value());
    }
    EXPECT_EQ(sim.stream_synchronize(stream), CuResult::success);
    std::iota(contents.begin(), contents.end(), 3);
    for (const DevicePtr ptr : live)
      EXPECT_EQ(sim.memcpy_host_to_device(ptr, contents.data(), kBytes), CuResult::success);
    pool->suspension().add_hooks({kAsleep, [this](int, std::uint32_t) { return ++told, true; },
                                  [this](int, std::uint32_t) { --told; }});
  }
  ~TwoCopies() override {
    for (const DevicePtr ptr : live) EXPECT_TRUE(pool->deallocate(ptr, stream).ok());
    pool.reset();
    EXPECT_EQ(calls.count(Call::mem_host_unregister), calls.count(Call::mem_host_register));
    EXPECT_EQ(host_reserve::used(), 0u);
    EXPECT_EQ(sim.hazard_count(), 0u);
  }
  void keep(bool keeps) {
    EXPECT_TRUE(pool->suspension().make_suspendable(kAsleep, {true, keeps}).ok());
  }
  std::vector<std::uint64_t> figures() const {
    const observe::Statistics now = pool->reports().statistics();
    return {now.live_bytes,
            now.live_allocations,
            now.allocated_bytes,
            now.suspended_bytes,
            now.host_copy_bytes,
            static_cast<std::uint64_t>(pool->suspension().info(kAsleep).state),
            static_cast<std::uint64_t>(told)};
  }
  void suspend() { EXPECT_TRUE(pool->suspension().suspend(kAsleep, {}).ok()); }
  void resume() { EXPECT_TRUE(pool->suspension().resume(kAsleep, {}).ok()); }
  void expect_contents() {
    for (const DevicePtr ptr : live) {
      std::vector<std::uint8_t> now(kBytes);
      EXPECT_EQ(sim.memcpy_device_to_host(now.data(), ptr, kBytes), CuResult::success);
      EXPECT_TRUE(now == contents);
    }
  }

  static constexpr Bytes kBytes = 3 * kPage;
  driver::sim::SimDriver sim;
  driver::RecordingDriver calls{sim};
  HookedDriver hooks{calls};
  fault::ExemptDriver driver{hooks};
  StreamHandle stream{};
  std::unique_ptr<context::Context> pool;
  std::vector<DevicePtr> live;
  std::vector<std::uint8_t> contents = std::vector<std::uint8_t>(kBytes);
  int told = 0;
};

class SuspendWithoutMemory : public TwoCopies,
                             public ::testing::WithParamInterface<HostFaults::Repeat> {
 protected:
  // Calls with each allocation of the call failing in turn. What was done all the same is undone.
  void with_each_failing(const std::function<Result<void>()>& call,
                         const std::function<void()>& undo) {
    std::uint64_t fired = 1;
    for (std::uint64_t nth = 1; fired != 0; ++nth) {
      const std::vector<std::uint64_t> before = figures();
      Result<void> done;
      {
        const InsidePool inside;
        HostFaults::arm(nth, GetParam());
        try {
          done = call();
        } catch (const std::bad_alloc&) {  // the same to the room above
          done = no_host_memory();
        }
      }
      fired = HostFaults::fired();
      HostFaults::disarm();
      EXPECT_EQ(pool->reports().validate(), "");
      if (done && fired != 0) undo();
      if (!done) {
        ++refusals;
        expect_error(done, ErrorCode::host_out_of_memory);
      }
      ASSERT_TRUE(done.ok() || fired != 0);
      if (fired != 0) {
        EXPECT_EQ(figures(), before) << "allocation " << nth;
      }
    }
  }
  int refusals = 0;
};

TEST_P(SuspendWithoutMemory, host_memory_is_prepared_for_both_arenas_or_none) {
  with_each_failing([&] { return pool->suspension().prepare(kAsleep); },
                    [&] {  // the copies end with a resume
                      keep(false);
                      suspend();
                      resume();
                      keep(true);
                    });
  EXPECT_GT(refusals, 0);
  EXPECT_EQ(pool->reports().statistics().host_copy_bytes, 2 * kBytes);
  expect_contents();
}

TEST_P(SuspendWithoutMemory, both_arenas_sleep_or_none_and_both_come_back_or_none) {
  keep(false);
  with_each_failing([&] { return pool->suspension().suspend(kAsleep, {}); }, [&] { resume(); });
  EXPECT_GT(refusals, 0);
  EXPECT_EQ(pool->suspension().info(kAsleep).state, TagState::suspended);
  with_each_failing([&] { return pool->suspension().resume(kAsleep, {}); }, [&] { suspend(); });
  EXPECT_EQ(pool->suspension().info(kAsleep).state, TagState::live);
  EXPECT_EQ(told, 0);
  expect_contents();
}

// All memory of a process without any: that of the reserve.
std::vector<void*> take_reserve() {
  std::vector<void*> taken;
  taken.reserve(4096);
  std::thread([&] {
    const InsidePool inside;
    HostFaults::arm(1, HostFaults::Repeat::from_then_on);
    for (std::size_t block = std::size_t{8} << 20; block >= 64;) {
      void* const part = taken.size() < 4096 ? host_reserve::take(block - 16, 16) : nullptr;
      if (part == nullptr)
        block /= 2;
      else
        taken.push_back(part);
    }
  }).join();
  return taken;
}

// A preparation of many arenas may need more than it is promised.
TEST_F(TwoCopies, are_prepared_without_memory_once_they_are_pinned) {
  EXPECT_TRUE(pool->suspension().prepare(kAsleep).ok());
  keep(false);
  suspend();
  resume();
  keep(true);
  ASSERT_EQ(pool->reports().statistics().host_copy_bytes, 0u);
  int pinned = 0;
  std::vector<void*> taken;
  hooks.on[Call::mem_host_register] = [&] {
    if (++pinned < 2) return CuResult::success;
    taken = take_reserve();
    HostFaults::arm(1, HostFaults::Repeat::from_then_on);
    return CuResult::success;
  };
  bool is_done = false;
  try {
    const InsidePool inside;
    is_done = pool->suspension().prepare(kAsleep).ok();
  } catch (const std::bad_alloc&) {  // then it is not done
  }
  HostFaults::disarm();
  hooks.on.clear();
  for (void* const part : taken) host_reserve::give_back(part, 16);
  EXPECT_TRUE(is_done);
  EXPECT_EQ(pinned, 2);
  EXPECT_GT(taken.size(), 0u);
  EXPECT_EQ(pool->reports().statistics().host_copy_bytes, 2 * kBytes);
  expect_contents();
}

INSTANTIATE_TEST_SUITE_P(, SuspendWithoutMemory,
                         ::testing::Values(HostFaults::Repeat::once,
                                           HostFaults::Repeat::from_then_on),
                         [](const auto& each) {
                           return each.param == HostFaults::Repeat::once ? "once" : "from_then_on";
                         });

}  // namespace
}  // namespace vpmm::test
