// SPDX-License-Identifier: Apache-2.0
// context: contexts of peers and of foreign streams: which are retained and given back, which are
// dead, and calls that the driver refuses meanwhile.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "support/hooked_world.hpp"
#include "support/pool_world_words.hpp"

namespace vpmm::test {
namespace {

using driver::Call;
using driver::CuResult;

WorldOptions three_devices() {
  WorldOptions options = page_world();
  options.sim.device_count = 3;
  return options;
}

// The pool is on device 0; device 1 has an active context, and a stream there.
class PeerFaults : public ::testing::Test {
 protected:
  PeerFaults() {
    EXPECT_EQ(world.sim.device_primary_ctx_retain(1, far_context), CuResult::success);
    EXPECT_EQ(world.sim.ctx_set_current(far_context), CuResult::success);
    far = world.stream();
    EXPECT_EQ(world.sim.ctx_set_current(world.context), CuResult::success);
  }
  void refuse(Call call, CuResult result = CuResult::invalid_value) {
    world.hooks.on[call] = [result] { return result; };
  }
  std::uint64_t count(Call call) const { return world.calls.count(call); }
  void pair() { world.deallocate(world.allocate(4 * kPage, std::nullopt), std::nullopt); }

  HookedWorld world{three_devices()};
  driver::ContextHandle far_context{};
  StreamHandle far{};
};

TEST_F(PeerFaults, access_is_refused_with_the_call_that_failed) {
  for (const Call call : {Call::device_get_count, Call::device_can_access_peer}) {
    refuse(call);
    expect_error(world.pool->sharing().set_peer_access(1), ErrorCode::driver_failed,
                 {driver::to_string(call)});
    world.hooks.on.clear();
  }
  EXPECT_EQ(world.statistics().caller_mistakes, 0u);
  expect_error(world.pool->sharing().set_peer_access(3), ErrorCode::invalid_argument,
               {"device 3 does not exist: there are 3"});
  EXPECT_EQ(world.statistics().caller_mistakes, 1u);
  EXPECT_TRUE(world.pool->sharing().set_peer_access(1).ok());
}

// Device 2 has no context at first; a reset by others ends that of device 1 alone.
TEST_F(PeerFaults, contexts_are_retained_once_each_and_released_as_often) {
  for (const driver::DeviceOrdinal peer : {1, 2})
    ASSERT_TRUE(world.pool->sharing().set_peer_access(peer).ok());
  const std::uint64_t retained = count(Call::device_primary_ctx_retain);
  pair();
  EXPECT_EQ(count(Call::device_primary_ctx_retain), retained + 1) << "the peer's";
  driver::ContextHandle second{};
  ASSERT_EQ(world.sim.device_primary_ctx_retain(2, second), CuResult::success);
  pair();
  EXPECT_EQ(count(Call::device_primary_ctx_retain), retained + 2);
  world.sim.run_until_idle();
  ASSERT_EQ(world.sim.device_primary_ctx_reset(1), CuResult::success);
  for (int i = 0; i < 3; ++i) pair();
  EXPECT_EQ(count(Call::device_primary_ctx_retain), retained + 2) << "device 2 lives";
  ASSERT_EQ(world.sim.device_primary_ctx_retain(1, far_context), CuResult::success);
  for (int i = 0; i < 3; ++i) pair();
  EXPECT_EQ(count(Call::device_primary_ctx_retain), retained + 3) << "device 1 lives again";
}

TEST_F(PeerFaults, a_peer_without_a_context_has_none_that_the_end_of_the_pool_could_release) {
  for (const driver::DeviceOrdinal peer : {1, 2})
    ASSERT_TRUE(world.pool->sharing().set_peer_access(peer).ok());
  pair();
  WorldOptions options = three_devices();
  const std::uint64_t released = count(Call::device_primary_ctx_release);
  world.sim.run_until_idle();
  world.pool.reset();
  EXPECT_EQ(count(Call::device_primary_ctx_release), released + 2)
      << "of the pool's device and of device 1";
  world.pool = context::Context::create(world.hooks, 0, options.config).value();
}

// Events of a peer's context are needed to prove a free without a stream.
TEST_F(PeerFaults, a_context_that_cannot_be_looked_at_is_looked_for_again) {
  ASSERT_TRUE(world.pool->sharing().set_peer_access(1).ok());
  for (const Call call : {Call::device_primary_ctx_get_state, Call::device_primary_ctx_retain}) {
    SCOPED_TRACE(driver::to_string(call));
    refuse(call);
    expect_error(world.pool->streams().synchronize(), ErrorCode::driver_failed,
                 {driver::to_string(call)});
    world.hooks.on.clear();
  }
  const std::uint64_t retained = count(Call::device_primary_ctx_retain);
  EXPECT_TRUE(world.pool->streams().synchronize().ok());
  EXPECT_TRUE(world.pool->streams().synchronize().ok());
  EXPECT_EQ(count(Call::device_primary_ctx_retain), retained + 1);
}

TEST_F(PeerFaults, a_context_whose_id_is_refused_is_not_kept) {
  ASSERT_TRUE(world.pool->sharing().set_peer_access(1).ok());
  // The first question is for the pool's own.
  int asked = 0;
  world.hooks.on[Call::ctx_get_id] = [&] {
    return ++asked == 2 ? CuResult::invalid_value : CuResult::success;
  };
  const std::uint64_t retained = count(Call::device_primary_ctx_retain);
  const std::uint64_t released = count(Call::device_primary_ctx_release);
  expect_error(world.pool->streams().synchronize(), ErrorCode::driver_failed, {"ctx_get_id"});
  world.hooks.on.clear();
  EXPECT_EQ(count(Call::device_primary_ctx_retain), retained + 1);
  EXPECT_EQ(count(Call::device_primary_ctx_release), released + 1);
  EXPECT_TRUE(world.pool->streams().synchronize().ok());
}

// Retained once while it lives, again after its reset, and given back with the pool.
TEST_F(PeerFaults, contexts_of_peers_are_retained_until_they_are_reset_or_the_pool_ends) {
  for (const int peer : {1, 2, 1}) ASSERT_TRUE(world.pool->sharing().set_peer_access(peer).ok());
  const auto retained_by = [&](const auto& act) {
    const std::uint64_t before = count(Call::device_primary_ctx_retain);
    act();
    return count(Call::device_primary_ctx_retain) - before;
  };
  EXPECT_EQ(retained_by([&] { pair(), pair(); }), 1u) << "device 2 is not active";
  world.sim.run_until_idle();
  ASSERT_EQ(world.sim.device_primary_ctx_reset(1), CuResult::success);
  EXPECT_EQ(retained_by([&] { pair(); }), 0u) << "it is not active any more";
  ASSERT_EQ(world.sim.device_primary_ctx_retain(1, far_context), CuResult::success);
  EXPECT_EQ(retained_by([&] { pair(), pair(); }), 1u);
  driver::ContextHandle third{};
  ASSERT_EQ(world.sim.device_primary_ctx_retain(2, third), CuResult::success);
  EXPECT_EQ(retained_by([&] { pair(), pair(); }), 1u);
  const std::uint64_t released = count(Call::device_primary_ctx_release);
  world.pool.reset();
  EXPECT_EQ(count(Call::device_primary_ctx_release), released + 3) << "of all three";
  world.pool = context::Context::create(world.hooks, 0, page_world().config).value();
}

// Only a reset ends it, and the device must confirm that before its events count as lost.
TEST_F(PeerFaults, an_answer_that_a_context_is_gone_is_believed_if_the_device_confirms_it) {
  ASSERT_TRUE(world.pool->sharing().set_peer_access(1).ok());
  ASSERT_TRUE(world.pool->streams().synchronize().ok());
  const DevicePtr ptr = world.allocate(4 * kPage, std::nullopt);
  world.use(ptr, 4 * kPage, far, kLongNs);
  world.deallocate(ptr, std::nullopt);
  ASSERT_GT(world.statistics().pending_bytes, 0u);
  // Each call asks for the pool's own context first, then for the other, and again if that is gone.
  const auto answer = [&](int from, int to, CuResult result) {
    const auto asked = std::make_shared<int>(0);
    world.hooks.on[Call::ctx_get_id] = [=] {
      ++*asked;
      return from <= *asked && *asked <= to ? result : CuResult::success;
    };
  };
  const auto expect_refused = [&](Call call) {
    expect_error(world.pool->allocate({kPage, 0, std::nullopt}), ErrorCode::driver_failed,
                 {driver::to_string(call)});
    world.hooks.on.clear();
    EXPECT_GT(world.statistics().pending_bytes, 0u);
  };
  answer(2, 3, CuResult::context_is_destroyed);
  expect_refused(Call::ctx_get_id);
  answer(2, 2, CuResult::invalid_value);
  expect_refused(Call::ctx_get_id);
  answer(2, 2, CuResult::context_is_destroyed);
  refuse(Call::device_primary_ctx_get_state);
  expect_refused(Call::device_primary_ctx_get_state);
  answer(2, 2, CuResult::context_is_destroyed);
  world.allocate(kPage, std::nullopt);
  EXPECT_GT(world.statistics().pending_bytes, 0u) << "it is there after all";
  world.hooks.on.clear();
  world.sim.run_until_idle();
  ASSERT_EQ(world.sim.device_primary_ctx_reset(1), CuResult::success);
  world.allocate(kPage, std::nullopt);
  EXPECT_TRUE(world.pool->streams().synchronize().ok());
  EXPECT_EQ(world.statistics().pending_bytes, 0u);
}

// Of a device that nobody gave access to.
TEST_F(PeerFaults, the_context_of_a_foreign_stream_that_is_gone_is_gone) {
  const DevicePtr ptr = world.allocate(4 * kPage, far);
  world.deallocate(ptr, far);
  world.sim.run_until_idle();
  const std::uint64_t looks = count(Call::device_primary_ctx_get_state);
  ASSERT_EQ(world.sim.device_primary_ctx_reset(1), CuResult::success);
  const DevicePtr next = world.allocate(4 * kPage, std::nullopt);
  EXPECT_EQ(next, ptr);
  EXPECT_EQ(count(Call::device_primary_ctx_get_state), looks) << "it is no peer";
  world.deallocate(next, std::nullopt);
}

TEST_F(PeerFaults, a_context_that_cannot_be_entered_may_have_a_capture) {
  ASSERT_TRUE(world.pool->sharing().set_peer_access(1).ok());
  ASSERT_FALSE(world.pool->streams().is_capturing());
  bool has_asked = false;  // its own context, which comes first
  world.hooks.on[Call::stream_is_capturing] = [&] { return has_asked = true, CuResult::success; };
  world.hooks.on[Call::ctx_set_current] = [&] {
    return has_asked ? CuResult::invalid_value : CuResult::success;
  };
  EXPECT_TRUE(world.pool->streams().is_capturing());
  has_asked = false;
  expect_error(world.pool->streams().synchronize(), ErrorCode::capture_active);
}

TEST_F(PeerFaults, a_wait_that_fails_is_the_last_and_its_error_is_told) {
  ASSERT_TRUE(world.pool->sharing().set_peer_access(1).ok());
  ASSERT_TRUE(world.pool->streams().synchronize().ok());
  for (const int failing : {0, 1}) {  // its own context comes first
    int waits = 0;
    world.hooks.on[Call::ctx_synchronize] = [&] {
      return waits++ == failing ? CuResult::invalid_value : CuResult::success;
    };
    expect_error(world.pool->streams().wait_for_work(), ErrorCode::driver_failed,
                 {"ctx_synchronize failed: CUDA_ERROR_INVALID_VALUE"});
    EXPECT_EQ(waits, failing + 1);
    waits = 0;
    expect_error(world.pool->streams().synchronize(), ErrorCode::driver_failed,
                 {"ctx_synchronize failed: CUDA_ERROR_INVALID_VALUE"});
    EXPECT_EQ(waits, failing + 1);
  }
}

TEST_F(PeerFaults, a_context_that_cannot_be_entered_is_not_waited_for) {
  ASSERT_TRUE(world.pool->sharing().set_peer_access(1).ok());
  ASSERT_TRUE(world.pool->streams().synchronize().ok());
  const std::uint64_t waits = count(Call::ctx_synchronize);
  bool has_waited = false;  // for its own context, which comes first
  world.hooks.on[Call::ctx_synchronize] = [&] { return has_waited = true, CuResult::success; };
  world.hooks.on[Call::ctx_set_current] = [&] {
    return has_waited ? CuResult::invalid_value : CuResult::success;
  };
  expect_error(world.pool->streams().synchronize(), ErrorCode::driver_failed, {"ctx_synchronize"});
  world.hooks.on.clear();
  EXPECT_EQ(count(Call::ctx_synchronize), waits + 1);
  EXPECT_TRUE(world.pool->streams().synchronize().ok());
}

}  // namespace
}  // namespace vpmm::test
