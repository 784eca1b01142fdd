// SPDX-License-Identifier: Apache-2.0
// pool: access for a peer that is given while a request maps without the lock.
#include <chrono>
#include <future>
#include <thread>
#include <utility>

#include "driver/forwarding.hpp"
#include "pool/pool_fixture.hpp"

namespace vpmm::pool {
namespace {

using driver::CuResult;

// Calls `first_set_access` once, inside the next such call, and refuses access for the next list of
// devices if told to.
class WatchedAccess : public driver::ForwardingDriver {
 public:
  using ForwardingDriver::ForwardingDriver;
  CuResult mem_set_access(AddressRange range,
                          std::span<const driver::AccessDescriptor> access) override {
    if (++calls == refused_call || refuses_all) return CuResult::unknown;
    if (is_watching.exchange(false)) {
      first_set_access();
    } else if (access.size() > 1 && refuses_lists.exchange(false)) {
      ++refused;
      return CuResult::unknown;
    }
    return ForwardingDriver::mem_set_access(range, access);
  }
  // Reservations stand side by side from `next` on, if set.
  CuResult mem_address_reserve(Bytes size, Bytes alignment, DevicePtr hint,
                               DevicePtr& begin) override {
    if (!is_null(next)) hint = std::exchange(next, next + size);
    return ForwardingDriver::mem_address_reserve(size, alignment, hint, begin);
  }
  DevicePtr next{};
  std::atomic<int> calls{0};
  int refused_call = 0;  // its number, of `calls`
  bool refuses_all = false;
  std::function<void()> first_set_access;
  std::atomic<bool> is_watching{false};
  std::atomic<bool> refuses_lists{false};
  int refused = 0;
};

driver::sim::SimOptions many_devices() {
  driver::sim::SimOptions options;
  options.device_count = 60;
  return options;
}

class PeerAccess : public PoolFixture<WatchedAccess> {
 protected:
  PeerAccess() : PoolFixture(many_devices()) {
    open();
    driver.first_set_access = [this] { give_access_and_hold_the_lock(); };
  }
  bool is_reachable(DevicePtr ptr, Bytes pages, driver::DeviceOrdinal device) {
    const std::uint64_t before = sim.hazard_count();
    driver::ContextHandle of_device{};
    expect(sim.device_primary_ctx_retain(device, of_device));
    expect(sim.ctx_set_current(of_device));
    expect(sim.memset_d8(ptr, 7, pages * kPage));
    expect(sim.ctx_synchronize());
    expect(sim.ctx_set_current(context));
    return sim.hazard_count() == before;
  }
  // Another thread puts `peer` on the list as soon as the mapping is done, and until then, and a
  // moment longer, nobody gets the pool's lock: so most of the times the request has mapped without
  // `peer` and publishes after the walk.
  void give_access_and_hold_the_lock() {
    giver = std::thread([this] {
      MutexLock mine(mutex);
      given = pool->set_peer_access(mine, peer);
    });
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
    std::promise<void> is_held;
    holder = std::thread([this, &is_held] {
      const MutexLock held(mutex);
      is_held.set_value();
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    });
    is_held.get_future().wait();
  }
  Result<DevicePtr> allocate_meanwhile(Bytes pages) {
    driver.is_watching = true;
    Result<DevicePtr> got = allocate(pages, a);
    lock.leave();
    holder.join();
    giver.join();
    lock.enter();
    return got;
  }

  driver::DeviceOrdinal peer = 0;
  Result<void> given;
  std::thread giver;
  std::thread holder;
};

TEST_F(PeerAccess, what_was_mapped_under_an_older_version_catches_up_before_it_is_published) {
  for (peer = 1; peer <= 20; ++peer) {
    const Result<DevicePtr> got = allocate_meanwhile(3);
    ASSERT_TRUE(got.ok() && given.ok());
    EXPECT_TRUE(is_reachable(got.value(), 3, peer));
    EXPECT_EQ(pool->memory().validate(), "");
  }
}

TEST_F(PeerAccess, a_failed_catch_up_fails_the_request_and_loses_nothing) {
  for (peer = 1; peer < 60 && driver.refused == 0; ++peer) {
    const Bytes mapped = pool->memory().mapped_bytes();
    driver.refuses_lists = true;
    const Result<DevicePtr> got = allocate_meanwhile(3);
    ASSERT_TRUE(given.ok());
    EXPECT_EQ(pool->memory().validate(), "");
    if (got) continue;
    EXPECT_EQ(got.error().code, ErrorCode::driver_failed);
    EXPECT_EQ(pool->memory().mapped_bytes(), mapped);
    EXPECT_EQ(sim.census().mappings * kPage, mapped);
  }
  EXPECT_EQ(driver.refused, 1);
  EXPECT_TRUE(allocate(4, a).ok());
}

TEST_F(PeerAccess, that_the_driver_refused_is_not_given_to_later_memory_either) {
  take(2, a);
  driver.refuses_all = true;
  EXPECT_FALSE(pool->set_peer_access(lock, 1).ok());
  driver.refuses_all = false;
  const DevicePtr later = take(2, a);
  EXPECT_FALSE(is_reachable(later, 2, 1));
  ASSERT_TRUE(pool->set_peer_access(lock, 1).ok());
  EXPECT_TRUE(is_reachable(later, 2, 1));
}

TEST_F(PeerAccess, is_given_once_for_all_mappings_that_stand_side_by_side_in_one_reservation) {
  config.va_size = 8 * kPage;
  expect(sim.mem_address_reserve(64 * kPage, kPage, DevicePtr{}, driver.next));
  expect(sim.mem_address_free({driver.next, 64 * kPage}));
  open();
  const DevicePtr first = take(4, a);
  for (const Bytes pages : {2u, 2u, 8u}) take(pages, a);
  ASSERT_EQ(pool->memory().index.picture(kPage), "[4][2][2][8]");
  ASSERT_EQ(pool->memory().reservations[1].begin, first + 8 * kPage);
  driver.calls = 0;
  ASSERT_TRUE(pool->set_peer_access(lock, 2).ok());
  EXPECT_EQ(driver.calls, 2);
  ASSERT_TRUE(pool->set_peer_access(lock, 2).ok());
  EXPECT_EQ(driver.calls, 2) << "it has it";
  EXPECT_TRUE(is_reachable(first, 16, 2));
}

TEST_F(PeerAccess, is_given_to_each_run_of_mappings_and_not_to_zombies) {
  const DevicePtr first = take(4, a);
  take(1, a);
  give_back(first);
  give_back(take(6, a));
  take(9, a);  // the idle pages move and leave zombies
  const std::string before = pool->memory().index.picture(kPage);
  ASSERT_NE(before.find('~'), std::string::npos) << before;
  ASSERT_TRUE(pool->set_peer_access(lock, 1).ok());
  EXPECT_EQ(pool->memory().index.picture(kPage), before);
  pool->memory().index.for_each([&](const region::Region& region) {
    const bool is_zombie = region.state == region::RegionState::zombie;
    if (region.state == region::RegionState::hole) return;
    EXPECT_EQ(is_reachable(region.range.begin, region.range.size / kPage, 1), !is_zombie) << before;
  });
}

// Access to the others would be of no use, and is not asked for.
TEST_F(PeerAccess, that_the_driver_refuses_to_one_of_several_runs_is_refused) {
  const DevicePtr first = take(2, a), between = take(1, a), last = take(3, a);
  give_back(between);
  ASSERT_TRUE(pool->trim(lock, 0).ok());
  ASSERT_EQ(pool->memory().index.picture(kPage), "[2][*1][3]");
  for (driver.refused_call = 1; driver.refused_call <= 2; ++driver.refused_call) {
    driver.calls = 0;
    const Result<void> refused = pool->set_peer_access(lock, 1);
    ASSERT_FALSE(refused.ok());
    EXPECT_EQ(refused.error().code, ErrorCode::driver_failed);
    EXPECT_EQ(driver.calls, driver.refused_call);
  }
  driver.refused_call = 0;
  ASSERT_TRUE(pool->set_peer_access(lock, 1).ok());
  EXPECT_TRUE(is_reachable(first, 2, 1));
  EXPECT_TRUE(is_reachable(last, 3, 1));
}

}  // namespace
}  // namespace vpmm::pool
