// SPDX-License-Identifier: Apache-2.0
// stress tests: threads that suspend, resume, allocate and free the same tags, while others trim,
// limit, look, record, share, enter tags and reset the device. No work is queued: what a call may
// answer is all that is judged, and what is left at the end.
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <functional>
#include <initializer_list>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "support/pool_world_words.hpp"
#include "support/stress_seconds.hpp"
#include "support/watchdog.hpp"

namespace vpmm::stress {
namespace {

using context::TagScope;
using driver::CuResult;
using test::Watchdog;

constexpr std::uint32_t kTags[] = {51, 52, 53};

class Sleepers {
 public:
  Sleepers() {
    driver::sim::SimOptions options;
    options.device_count = 2;
    options.capacity = kGiB;
    sim_ = std::make_unique<driver::sim::SimDriver>(options);
    EXPECT_EQ(sim_->init(), CuResult::success);
    settings::Config config;
    config.va_size = 8 * kGiB;
    config.log = observe::LogLevel::quiet;
    auto made = context::Context::create(*sim_, 0, config);
    EXPECT_TRUE(made.ok()) << test::message_of(made);
    pool_ = std::move(made).value();
    for (const std::uint32_t tag : kTags)
      EXPECT_TRUE(pool_->suspension().make_suspendable(tag, {tag != 52, tag == 53}).ok());
    pool_->suspension().add_hooks({51, [](int, std::uint32_t) { return true; }, {}});
  }

  void run() {
    std::vector<std::thread> threads;
    const std::vector<std::function<void(std::mt19937_64&)>> works = {
        [this](auto& random) { allocate(random); }, [this](auto& random) { allocate(random); },
        [this](auto& random) { sleep(random); },    [this](auto& random) { sleep(random); },
        [this](auto& random) { look(random); },     [this](auto& random) { disturb(random); }};
    for (std::size_t i = 0; i < works.size(); ++i)
      threads.emplace_back([this, i, work = works[i]] {
        const Watchdog::Watched watched(watchdog_, "thread " + std::to_string(i));
        std::mt19937_64 random(i);
        while (std::chrono::steady_clock::now() < end_ && !has_failed_) work(random);
      });
    for (std::thread& thread : threads) thread.join();
    for (int tries = 0; tries < 3; ++tries) {
      const auto done = pool_->suspension().resume(0, {});
      EXPECT_TRUE(done.ok()) << test::message_of(done);
    }
    EXPECT_EQ(pool_->reports().validate(), "");
    const observe::Statistics now = pool_->reports().statistics();
    EXPECT_EQ(now.suspended_bytes, 0u);
    EXPECT_EQ(now.live_bytes, 0u);
    EXPECT_EQ(now.live_allocations, 0u);
    EXPECT_EQ(now.leased_bytes, 0u);
    pool_.reset();
    EXPECT_EQ(sim_->hazard_count(), 0u)
        << (sim_->hazards().empty() ? "" : sim_->hazards().front().describe());
    const driver::sim::Census left = sim_->census();
    EXPECT_EQ(left.chunks | left.mappings | left.reservations, 0u);
  }

 private:
  static std::uint32_t tag_of(std::mt19937_64& random) { return kTags[random() % 3]; }
  // Of the codes, if it is an error.
  template <typename T>
  bool expect(const Result<T>& result, std::initializer_list<ErrorCode> codes) {
    if (result) return true;
    for (const ErrorCode code : codes)
      if (result.error().code == code) return false;
    has_failed_ = true;
    ADD_FAILURE() << result.error().message;
    return false;
  }

  void allocate(std::mt19937_64& random) {
    Watchdog::doing("allocate and free");
    std::vector<DevicePtr> mine;
    for (std::uint64_t i = 0; i <= random() % 6; ++i) {
      pool::Request request;
      request.bytes = random() % 2 == 0 ? 1 + random() % (256 * kKiB) : (1 + random() % 5) * kMiB;
      if (random() % 4 != 0) request.tag = tag_of(random);
      request.one_chunk = random() % 8 == 0;
      const auto made = pool_->allocate(request);
      if (expect(made, {ErrorCode::suspended, ErrorCode::out_of_memory}))
        mine.push_back(made.value());
    }
    for (const DevicePtr ptr : mine) {
      const std::uint64_t what = random() % 8;
      if (what == 0) {
        const auto shared = pool_->sharing().share({ptr, 1});
        if (expect(shared, {ErrorCode::suspended}))
          pool_->sharing().end_lease(shared.value().share, context::Holder::handle);
      }
      if (what == 1)
        pool_->deallocate_deferred(ptr);
      else
        expect(pool_->deallocate(ptr, std::nullopt), {});
    }
  }

  void sleep(std::mt19937_64& random) {
    Watchdog::doing("suspend and resume");
    context::SuspendHow how;
    how.to_driver = random() % 2 == 0;
    how.keeps_host_copy = random() % 4 == 0;
    const std::uint32_t tag = random() % 3 == 0 ? 0 : tag_of(random);
    if (random() % 2 == 0)
      expect(pool_->suspension().suspend(tag, how),
             {ErrorCode::suspended, ErrorCode::not_shared, ErrorCode::capture_active});
    else
      expect(pool_->suspension().resume(tag, {random() % 2 == 0, random() % 4 != 0}),
             {ErrorCode::suspended, ErrorCode::out_of_memory, ErrorCode::capture_active});
  }

  void look(std::mt19937_64& random) {
    Watchdog::doing("look");
    switch (random() % 7) {
      case 0:
        if (const std::string broken = pool_->reports().validate(); !broken.empty()) {
          has_failed_ = true;
          ADD_FAILURE() << broken;
        }
        break;
      case 1: static_cast<void>(pool_->reports().layout()); break;
      case 2: static_cast<void>(pool_->reports().statistics()); break;
      case 3: expect(pool_->limits().memory_info(), {}); break;
      case 4:
        for (const std::uint32_t tag : kTags) static_cast<void>(pool_->suspension().info(tag));
        break;
      case 5: static_cast<void>(pool_->reports().snapshot()); break;
      default:
        if (std::exchange(is_recording_, !is_recording_))
          expect(pool_->reports().stop_recording(), {});
        else
          expect(pool_->reports().start_recording(recording_), {});
    }
  }

  void disturb(std::mt19937_64& random) {
    Watchdog::doing("trim, limit, reset, enter, release");
    switch (random() % 7) {
      case 0: expect(pool_->limits().trim(0), {}); break;
      case 1: pool_->limits().set_capacity((16 + random() % 64) * kMiB); break;
      case 2: pool_->limits().set_capacity(std::nullopt); break;
      case 3: expect(pool_->streams().reset(), {ErrorCode::capture_active}); break;
      case 4: expect(pool_->sharing().set_peer_access(1), {}); break;
      case 5: {
        const std::uint32_t tag = tag_of(random);
        expect(pool_->suspension().enter(tag, TagScope::process), {});
        std::this_thread::yield();
        expect(pool_->suspension().leave(tag, TagScope::process), {});
        break;
      }
      default: {
        arena::ArenaOptions options;
        options.tag = tag_of(random);
        const auto arena = pool_->arenas().create(options);
        if (!expect(arena, {})) return;
        const auto made = pool_->allocate({3 * kMiB, 0, std::nullopt, arena.value()});
        expect(made, {ErrorCode::suspended, ErrorCode::out_of_memory});
        std::this_thread::yield();
        expect(pool_->arenas().release(arena.value()), {});
        if (made) expect(pool_->deallocate(made.value(), std::nullopt), {});
      }
    }
  }

  Watchdog watchdog_{"sleepers"};
  const std::chrono::steady_clock::time_point end_ = test::end_of_stress(std::chrono::seconds(2));
  std::atomic<bool> has_failed_{false};
  std::unique_ptr<driver::sim::SimDriver> sim_;
  std::unique_ptr<context::Context> pool_;
  bool is_recording_ = false;
  const std::string recording_ =
      ::testing::TempDir() + "vpmm_sleepers_" + std::to_string(getpid()) + ".vpmmrec";
};

TEST(SuspendStress, threads_that_suspend_the_same_tags_leave_nothing_half_done) {
  Sleepers().run();
  std::remove(
      (::testing::TempDir() + "vpmm_sleepers_" + std::to_string(getpid()) + ".vpmmrec").c_str());
}

}  // namespace
}  // namespace vpmm::stress
