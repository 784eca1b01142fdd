// SPDX-License-Identifier: Apache-2.0
// context: an announced capture begins after waits of the host that would break it: Note [A wait
// for the context keeps captures from beginning].
#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <utility>

#include "process/neighbours.hpp"
#include "support/hooked_world.hpp"

namespace vpmm::test {
namespace {

using driver::Call;
using driver::CuResult;

// Announces a capture on another thread while the pool waits.
class AnnouncedMeanwhile {
 public:
  explicit AnnouncedMeanwhile(context::Context& pool) : pool_(pool) {}
  ~AnnouncedMeanwhile() {
    if (thread_.joinable()) thread_.join();
  }
  // Returns when the announcement waits as well.
  void announce() {
    if (std::exchange(has_come_, true)) return;
    thread_ = std::thread([this] {
      EXPECT_TRUE(pool_.streams().capture_begin().ok());
      has_begun_ = true;
    });
    while (!pool_.streams().is_capturing()) std::this_thread::yield();
    pool_.reports().statistics();  // takes the lock that the announcement holds until it waits
    EXPECT_FALSE(has_begun_);
  }
  // The wait is over.
  void expect_begun() {
    EXPECT_TRUE(has_come_);
    if (!has_come_) return;
    thread_.join();
    EXPECT_TRUE(has_begun_);
    EXPECT_TRUE(pool_.streams().capture_end().ok());
  }

 private:
  context::Context& pool_;
  std::atomic<bool> has_begun_{false};
  bool has_come_ = false;
  std::thread thread_;
};

TEST(WaitBeforeCapture, of_a_synchronisation_is_over_when_the_capture_begins) {
  HookedWorld world(adaptive_world());
  AnnouncedMeanwhile capture(*world.pool);
  world.deallocate(world.allocate(kPage, std::nullopt), std::nullopt);
  world.hooks.on[Call::ctx_synchronize] = [&] {
    capture.announce();
    return CuResult::success;
  };
  EXPECT_TRUE(world.pool->streams().synchronize().ok());
  capture.expect_begun();
}

TEST(WaitBeforeCapture, of_a_request_for_memory_of_neighbours_is_over_when_the_capture_begins) {
  WorldOptions options = page_world();
  options.sim.capacity = 4 * kPage;
  HookedWorld world(options);
  AnnouncedMeanwhile capture(*world.pool);
  const int neighbour = 0;
  const auto give_back = [&](Bytes) {
    capture.announce();
    return Bytes{0};
  };
  world.allocate(kPage, std::nullopt);
  process::enter_neighbourhood(&neighbour, {0, &world.pool->driver(), give_back, [] {}});
  world.sim.set_used_by_others(0, 2 * kPage);
  expect_error(world.pool->allocate({3 * kPage, 0, std::nullopt}), ErrorCode::out_of_memory);
  process::leave_neighbourhood(&neighbour);
  capture.expect_begun();
}

}  // namespace
}  // namespace vpmm::test
