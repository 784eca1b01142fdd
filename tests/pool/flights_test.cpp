// SPDX-License-Identifier: Apache-2.0
// pool: driver calls without the lock, and the calls that wait for them: Note [Access carries a
// version].
#include "pool/flights.hpp"

#include <atomic>
#include <chrono>
#include <functional>
#include <optional>
#include <thread>
#include <variant>

#include "pool/pool_fixture.hpp"
#include "support/hooked_driver.hpp"

namespace vpmm::pool {
namespace {

using driver::Call;
using driver::CuResult;

using Work = std::function<bool(MutexLock& lock)>;

driver::sim::SimOptions three_devices() {
  driver::sim::SimOptions options;
  options.device_count = 3;
  return options;
}

class Overlap : public PoolFixture<test::HookedDriver> {
 protected:
  Overlap() : PoolFixture(three_devices()) {}

  // Runs `outer`, of which the first driver call `during` lasts some milliseconds. As soon as it
  // begins, `inner` runs on another thread. Returns true if `inner` had calls in flight before the
  // end of that call.
  bool flies(const Work& inner, Call during, const Work& outer) {
    bool has_flown = false;
    std::atomic<bool> has_lock{false};
    std::thread other;
    driver.on[during] = [&] {
      if (other.joinable()) return CuResult::success;
      other = std::thread([&] {
        expect(sim.ctx_set_current(context));
        MutexLock mine(mutex);
        has_lock = true;
        EXPECT_TRUE(inner(mine));
      });
      while (!has_lock) std::this_thread::yield();
      has_flown = flies_soon();
      return CuResult::success;
    };
    EXPECT_TRUE(outer(lock));
    lock.leave();
    other.join();
    lock.enter();
    driver.on.clear();
    return has_flown;
  }
  bool flies_soon() {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    const MutexLock mine(mutex);
    return !pool->memory().flights.empty();
  }
  Work access_for(driver::DeviceOrdinal peer) {
    return [this, peer](MutexLock& held) { return pool->set_peer_access(held, peer).ok(); };
  }
  // While access is given to the memory that the walk has found.
  bool flies_during_grant(const Work& inner, driver::DeviceOrdinal peer = 1) {
    return flies(inner, Call::mem_set_access, access_for(peer));
  }
  region::Region* own_chunks(Bytes pages) {
    PageRequest owned = request(pages);
    owned.chunks = Chunks::own;
    const Result<Answer> answer = pool->map(lock, owned, a, Effort::by_policy, 0);
    if (!answer || !std::holds_alternative<Placed>(answer.value())) return nullptr;
    return pool->memory().index.allocated_around(std::get<Placed>(answer.value()).begin);
  }
  Work suspend(region::Region* region, Suspender::Fate fate) {
    return
        [=, this](MutexLock& held) { return pool->suspender().suspend(held, {region}, fate).ok(); };
  }
};

// --- while access is given, nothing that the walk has found is unmapped

TEST_F(Overlap, zombies_stay_mapped_while_access_is_given) {
  open();
  Vector<DevicePtr> all;
  for (int i = 0; i < 4; ++i) all.push_back(take(1, a));
  give_back(all[0]);
  give_back(all[2]);
  take(2, a);
  ASSERT_EQ(figures().zombie_regions, 2u);
  EXPECT_FALSE(flies_during_grant([this](MutexLock& held) { return pool->settle(held).ok(); }));
  EXPECT_EQ(figures().zombie_regions, 0u) << "but afterwards";
}

TEST_F(Overlap, idle_memory_stays_mapped_while_access_is_given) {
  open();
  take(1, a);
  give_back(take(2, a));
  EXPECT_FALSE(flies_during_grant([this](MutexLock& held) { return pool->trim(held, 0).ok(); }));
  EXPECT_EQ(figures().mapped_bytes, kPage);
}

TEST_F(Overlap, no_request_is_planned_while_access_is_given) {
  open();
  take(1, a);
  EXPECT_FALSE(flies_during_grant([this](MutexLock& held) { return allocate(held, 2, a).ok(); }));
}

TEST_F(Overlap, allocations_stay_mapped_while_access_is_given) {
  for (const auto fate : {Suspender::Fate::stays_in_pool, Suspender::Fate::goes_to_driver}) {
    open();
    region::Region* const region = own_chunks(2);
    EXPECT_FALSE(flies_during_grant(suspend(region, fate)));
    Vector<Suspender::Refill> refills{{region, own_chunks(2)}};
    const Work resume = [&](MutexLock& held) {
      return pool->suspender().resume(held, refills).ok();
    };
    EXPECT_FALSE(flies_during_grant(resume, 2));
    EXPECT_FALSE(region->is_suspended);
  }
}

// A suspend drops the lock to reserve address space, and access may be given meanwhile.
TEST_F(Overlap, allocations_stay_mapped_when_access_is_given_while_address_space_is_reserved) {
  for (const CuResult result : {CuResult::success, CuResult::out_of_memory}) {
    config.va_size = 2 * kPage;
    open();
    region::Region* const region = own_chunks(2);
    std::atomic<bool> has_begun{false};
    std::thread giver;
    bool has_flown = false;
    driver.on[Call::mem_set_access] = [&] {
      if (!has_begun.exchange(true)) has_flown = flies_soon();
      return CuResult::success;
    };
    driver.on[Call::mem_address_reserve] = [&] {
      if (!giver.joinable())
        giver = std::thread([&] {
          MutexLock mine(mutex);
          EXPECT_TRUE(pool->set_peer_access(mine, 1).ok());
        });
      while (!has_begun) std::this_thread::yield();
      return result;
    };
    EXPECT_TRUE(suspend(region, Suspender::Fate::stays_in_pool)(lock));
    lock.leave();
    giver.join();
    lock.enter();
    driver.on.clear();
    EXPECT_FALSE(has_flown);
    EXPECT_EQ(pool->memory().validate(), "");
    pool->suspender().drop(region);
  }
}

// --- access is given after unmapping that has begun

TEST_F(Overlap, access_is_given_once_unmapping_has_ended) {
  open();
  take(1, a);
  give_back(take(2, a));
  const Work trim = [this](MutexLock& held) { return pool->trim(held, 0).ok(); };
  flies(access_for(1), Call::mem_unmap, trim);  // it fails if it finds what is unmapped
  EXPECT_TRUE(access_for(2)(lock)) << "at once, as nothing is unmapped any more";
}

// The other thread leaves the lock only where it waits, or at the end.
TEST(Grant, begins_once_flights_that_unmap_have_ended_and_waits_for_no_others) {
  using FlightWork = Flights::FlightWork;
  for (const FlightWork work : {FlightWork::maps, FlightWork::unmaps}) {
    Flights flights;
    Mutex mutex;
    MutexLock lock(mutex);
    std::atomic<bool> has_lock{false};
    std::atomic<bool> is_granted{false};
    std::thread other;
    {
      const Flights::InFlight away(flights, lock, work);
      other = std::thread([&] {
        MutexLock mine(mutex);
        has_lock = true;
        const Flights::Grant grant(flights, mine);
        is_granted = true;
      });
      while (!has_lock) std::this_thread::yield();
      const MutexLock mine(mutex);
      EXPECT_FALSE(flights.empty());
      EXPECT_EQ(is_granted, work == FlightWork::maps);
    }
    lock.leave();
    other.join();
    lock.enter();
    EXPECT_TRUE(is_granted);
    EXPECT_TRUE(flights.empty());
  }
}

// --- requests that are short of memory wait for others

TEST_F(Overlap, a_request_that_is_short_of_memory_can_wait_for_memory_that_is_on_its_way) {
  open();
  EXPECT_FALSE(pool->wait_for_flight(lock)) << "nothing is on its way";
  bool has_waited = false;
  flies(
      [&](MutexLock& held) {
        has_waited = pool->wait_for_flight(held);
        return pool->memory().flights.empty();
      },
      Call::mem_create, [this](MutexLock& held) { return allocate(held, 2, a).ok(); });
  EXPECT_TRUE(has_waited);
}

// --- what is being created counts

TEST_F(Overlap, two_requests_at_once_do_not_exceed_the_limit) {
  for (const Bytes limit : {4u, 5u}) {
    config.limits.capacity = limit * kPage;
    open();
    Bytes claimed = 0;
    std::optional<Bytes> missing;
    flies(
        [&](MutexLock& held) {
          claimed = pool->memory().claimed_bytes();
          const Result<Answer> answer = pool->map(held, request(2), b, Effort::by_policy, 0);
          if (!answer) return false;
          if (const Needs* const needs = std::get_if<Needs>(&answer.value()))
            missing = needs->missing;
          return true;
        },
        Call::mem_create, [this](MutexLock& held) { return allocate(held, 3, a).ok(); });
    EXPECT_EQ(claimed, 3 * kPage) << "though not one page of them is there yet";
    EXPECT_EQ(missing, limit == 4 ? std::optional(kPage) : std::nullopt);
    EXPECT_EQ(figures().mapped_bytes, limit == 4 ? 3 * kPage : 5 * kPage);
    EXPECT_EQ(pool->memory().claimed_bytes(), figures().mapped_bytes);
  }
}

}  // namespace
}  // namespace vpmm::pool
