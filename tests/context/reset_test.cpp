// SPDX-License-Identifier: Apache-2.0
// context: vpmm_reset beside other threads, and one that the driver refuses.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <thread>
#include <utility>

#include "context/context.hpp"
#include "driver/forwarding.hpp"
#include "driver/sim/sim_driver.hpp"
#include "support/pool_world_words.hpp"
#include "support/watchdog.hpp"

namespace vpmm::test {
namespace {

using driver::Call;
using driver::CuResult;
using driver::sim::SimDriver;

// Lets a test act between two calls of the pool.
class Interrupting final : public driver::ForwardingDriver {
 public:
  using driver::ForwardingDriver::ForwardingDriver;
  std::atomic<std::optional<Call>> refuses{};  // once
  std::function<void(Call)> on_before = [](Call) {};
  std::function<void(Call)> on_after = [](Call) {};

 private:
  std::optional<CuResult> before(Call call) override {
    on_before(call);
    if (refuses.load() != call) return std::nullopt;
    refuses = std::nullopt;
    return CuResult::not_permitted;
  }
  void after(Call call, CuResult /*result*/, std::uint64_t /*duration_ns*/) override {
    on_after(call);
  }
};

// True as soon as it holds; false after a time that no test needs.
bool becomes(const std::function<bool()>& condition,
             std::chrono::milliseconds patience = std::chrono::seconds(60)) {
  const auto give_up = std::chrono::steady_clock::now() + patience;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > give_up) return false;
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
  return true;
}

class ResetBeside : public ::testing::Test {
 protected:
  ResetBeside() {
    EXPECT_EQ(sim.init(), CuResult::success);
    enter();
    auto created = context::Context::create(driver, 0, page_world().config);
    EXPECT_TRUE(created.ok());
    if (created) pool = std::move(created).value();
  }
  // What a test does between calls names its own variables.
  void TearDown() override {
    driver.on_before = driver.on_after = [](Call) {};
  }
  void enter() {
    driver::ContextHandle context{};
    EXPECT_EQ(sim.device_primary_ctx_retain(0, context), CuResult::success);
    EXPECT_EQ(sim.ctx_set_current(context), CuResult::success);
  }
  StreamHandle stream() {
    StreamHandle made{};
    EXPECT_EQ(sim.stream_create(driver::StreamFlags::non_blocking, made), CuResult::success);
    return made;
  }
  DevicePtr allocate(Bytes bytes, pool::Stream stream) {
    const auto made = pool->allocate({bytes, 0, stream});
    EXPECT_TRUE(made.ok());
    return made ? made.value() : DevicePtr{};
  }
  void write(DevicePtr ptr, Bytes bytes, StreamHandle stream) {
    driver::sim::Kernel kernel;
    kernel.name = "write";
    kernel.duration_ns = kLongNs;
    kernel.accesses = {{{ptr, bytes}, driver::sim::MemoryAccess::Kind::write}};
    EXPECT_EQ(sim.launch(kernel, stream), CuResult::success);
  }

  SimDriver sim;
  Interrupting driver{sim};
  std::unique_ptr<context::Context> pool;
};

TEST_F(ResetBeside, that_the_driver_refuses_leaves_memory_of_running_work_alone) {
  constexpr Bytes kBytes = 8 * kPage;
  const StreamHandle busy = stream();
  const StreamHandle other = stream();
  const DevicePtr used = allocate(kBytes, busy);
  driver.refuses = Call::device_primary_ctx_reset;
  bool has_queued = false;
  driver.on_after = [&](Call call) {  // while the reset waits for the GPU, with the lock dropped
    if (call != Call::ctx_synchronize || std::exchange(has_queued, true)) return;
    std::thread([&] {
      enter();
      write(used, kBytes, busy);
      EXPECT_TRUE(pool->deallocate(used, busy).ok());
    }).join();
  };
  expect_error(pool->streams().reset(), ErrorCode::driver_failed, {"CUDA_ERROR_NOT_PERMITTED"});
  ASSERT_TRUE(has_queued);
  EXPECT_EQ(pool->reports().statistics().pending_bytes, kBytes);
  const DevicePtr next = allocate(kBytes, other);
  write(next, kBytes, other);
  sim.run_until_idle();
  EXPECT_EQ(sim.hazard_count(), 0u);
  EXPECT_EQ(pool->reports().validate(), "");
}

TEST_F(ResetBeside, that_the_driver_refuses_keeps_the_events) {
  const StreamHandle busy = stream();
  const DevicePtr used = allocate(2 * kPage, busy);
  driver.refuses = Call::device_primary_ctx_reset;
  std::uint64_t events = 0;
  driver.on_after = [&](Call call) {
    if (call != Call::ctx_synchronize || events != 0) return;
    std::thread([&] {
      enter();
      write(used, 2 * kPage, busy);
      EXPECT_TRUE(pool->deallocate(used, busy).ok());
      allocate(kPage,
               stream());  // two streams, each free of pages is closed by an event of its own
      events = pool->reports().statistics().outstanding_events;
    }).join();
  };
  EXPECT_FALSE(pool->streams().reset().ok());
  EXPECT_GT(events, 0u);
  EXPECT_EQ(pool->reports().statistics().outstanding_events, events);
}

// The thread has asked for the context's id, which is the old one's, and finds it gone when it
// makes it current. The reset opens the new one, unless the driver refuses.
TEST_F(ResetBeside, a_call_that_was_about_to_enter_enters_the_new_context) {
  Watchdog dog("");
  const Watchdog::Watched watched(dog, "a call that enters");
  for (const bool is_opened_by_the_call : {false, true}) {
    std::atomic<bool> is_entering{false};
    std::atomic<bool> is_reset{false};
    std::atomic<bool> has_entered{false};
    std::atomic<std::thread::id> other{};
    driver.on_after = [&](Call call) {
      if (std::this_thread::get_id() == other.load()) {
        const bool begins = call == Call::ctx_get_id && !is_entering.exchange(true);
        EXPECT_TRUE(!begins || becomes([&] { return is_reset.load(); }));
        if (call == Call::ctx_set_current) has_entered = true;
      } else if (call == Call::device_primary_ctx_reset) {
        if (is_opened_by_the_call) driver.refuses = Call::device_primary_ctx_retain;
        is_reset = true;
        EXPECT_TRUE(becomes([&] { return has_entered.load(); }));
      }
    };
    std::thread thread([&] {
      other = std::this_thread::get_id();
      const auto made = pool->allocate({3 * kPage, 0, std::nullopt});
      EXPECT_TRUE(made.ok()) << message_of(made);
    });
    EXPECT_TRUE(becomes([&] { return is_entering.load(); }));
    EXPECT_TRUE(pool->streams().reset().ok());
    thread.join();
    EXPECT_FALSE(driver.refuses.load().has_value());
    EXPECT_EQ(pool->reports().validate(), "");
  }
}

// The thread waits for the old context with the lock dropped.
TEST_F(ResetBeside, waits_for_calls_that_are_inside) {
  std::atomic<bool> is_inside{false};
  std::atomic<bool> is_reset{false};
  std::atomic<std::thread::id> other{};
  driver.on_before = [&](Call call) {
    if (std::this_thread::get_id() != other.load() || call != Call::ctx_synchronize ||
        is_inside.exchange(true))
      return;
    EXPECT_FALSE(becomes([&] { return is_reset.load(); }, std::chrono::milliseconds(100)));
  };
  driver.on_after = [&](Call call) {
    if (call == Call::device_primary_ctx_reset) is_reset = true;
  };
  std::thread thread([&] {
    other = std::this_thread::get_id();
    const auto done = pool->streams().synchronize();
    EXPECT_TRUE(done.ok()) << done.error().message;
  });
  EXPECT_TRUE(becomes([&] { return is_inside.load(); }));
  EXPECT_TRUE(pool->streams().reset().ok());
  thread.join();
  EXPECT_EQ(pool->reports().validate(), "");
}

// One thread is inside with the lock dropped; of another, no call ends once the reset waits for it.
TEST_F(ResetBeside, keeps_calls_out_while_it_waits_for_others) {
  std::atomic<bool> is_inside{false};
  std::atomic<bool> is_reset{false};
  std::atomic<std::uint64_t> ended{0};
  std::atomic<std::thread::id> other{};
  const auto is_still = [&] {
    const std::uint64_t before = ended.load();
    return !becomes([&] { return ended.load() != before; }, std::chrono::milliseconds(50));
  };
  driver.on_before = [&](Call call) {
    if (std::this_thread::get_id() != other.load() || call != Call::ctx_synchronize ||
        is_inside.exchange(true))
      return;
    EXPECT_TRUE(becomes(is_still, std::chrono::seconds(2)));
    EXPECT_FALSE(is_reset.load());
  };
  driver.on_after = [&](Call call) {
    if (call == Call::device_primary_ctx_reset) is_reset = true;
  };
  std::thread inside([&] {
    other = std::this_thread::get_id();
    EXPECT_TRUE(pool->streams().synchronize().ok());
  });
  EXPECT_TRUE(becomes([&] { return is_inside.load(); }));
  std::thread calling([&] {
    for (; !is_reset; ++ended) EXPECT_TRUE(pool->limits().memory_info().ok());
  });
  EXPECT_TRUE(pool->streams().reset().ok());
  calling.join();
  inside.join();
}

// It is announced while the reset waits for the GPU, and begins after the wait.
TEST_F(ResetBeside, a_capture_that_is_announced_meanwhile_refuses_it) {
  Watchdog dog("");
  const Watchdog::Watched watched(dog, "the reset");
  const DevicePtr live = allocate(3 * kPage, stream());
  std::thread capturing;
  bool is_announced = false;
  std::uint64_t resets = 0;
  driver.on_after = [&](Call call) {
    if (call == Call::device_primary_ctx_reset) ++resets;
    if (call != Call::ctx_synchronize || std::exchange(is_announced, true)) return;
    capturing = std::thread([&] { EXPECT_TRUE(pool->streams().capture_begin().ok()); });
    EXPECT_TRUE(becomes([&] { return pool->streams().is_capturing(); }));
  };
  expect_error(pool->streams().reset(), ErrorCode::capture_active, {"a stream is being captured"});
  capturing.join();
  EXPECT_EQ(resets, 0u);
  ASSERT_TRUE(pool->streams().capture_end().ok());
  EXPECT_TRUE(pool->streams().reset().ok());
  EXPECT_EQ(resets, 1u);
  EXPECT_TRUE(pool->query(live).ok());
  enter();
  EXPECT_TRUE(pool->deallocate(live, std::nullopt).ok());
}

TEST_F(ResetBeside, another_reset_is_done_after_it) {
  std::thread thread([&] {
    for (int i = 0; i < 50; ++i) EXPECT_TRUE(pool->streams().reset().ok());
  });
  for (int i = 0; i < 50; ++i) EXPECT_TRUE(pool->streams().reset().ok());
  thread.join();
  EXPECT_EQ(pool->reports().validate(), "");
}

}  // namespace
}  // namespace vpmm::test
