// SPDX-License-Identifier: Apache-2.0
// tests: a simulated GPU that runs work in any order, and one pool on it that many threads use at
// once.
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <latch>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "context/context.hpp"
#include "driver/sim/sim_driver.hpp"
#include "support/live_ranges.hpp"
#include "support/watchdog.hpp"

namespace vpmm::stress {

using driver::CuResult;
using driver::StreamHandle;
using test::Watchdog;

class Hammer {
 public:
  // `shared_streams`: how many streams all threads share; 0: each has one of its own.
  explicit Hammer(const settings::Config& config, std::size_t shared_streams = 0,
                  const std::string& run = "")
      : watchdog_(run), sim_(options()) {
    EXPECT_EQ(sim_.init(), CuResult::success);
    EXPECT_EQ(sim_.device_primary_ctx_retain(0, context_), CuResult::success);
    EXPECT_EQ(sim_.ctx_set_current(context_), CuResult::success);
    auto created = context::Context::create(sim_, 0, config);
    EXPECT_TRUE(created.ok());
    if (created) pool_ = std::move(created).value();
    for (std::size_t i = 0; i < shared_streams; ++i) shared_streams_.push_back(stream());
  }
  // Everything is freed by now; nothing may be left, and nothing may have been handed out twice.
  ~Hammer() {
    const Watchdog::Watched main(watchdog_, "the end");
    sim_.run_until_idle();
    EXPECT_TRUE(pool_->streams().synchronize().ok());
    EXPECT_TRUE(pool_->limits().trim(0).ok());
    EXPECT_EQ(pool_->reports().validate(), "");
    EXPECT_EQ(pool_->reports().statistics().live_allocations, 0u);
    pool_.reset();
    EXPECT_EQ(sim_.census().chunks, 0u);
    EXPECT_EQ(sim_.census().reservations, 0u);
    EXPECT_EQ(sim_.hazard_count(), 0u)
        << (sim_.hazards().empty() ? "" : sim_.hazards().front().describe());
  }
  Hammer(const Hammer&) = delete;
  Hammer& operator=(const Hammer&) = delete;

  context::Context& pool() { return *pool_; }
  StreamHandle stream() {
    StreamHandle stream{};
    EXPECT_EQ(sim_.stream_create(driver::StreamFlags::non_blocking, stream), CuResult::success);
    return stream;
  }
  // For the thread of this number: where threads share streams, one of these.
  StreamHandle stream_of(std::uint64_t thread) {
    return shared_streams_.empty() ? stream() : shared_streams_[thread % shared_streams_.size()];
  }
  // A kernel that writes all of it.
  void use(DevicePtr ptr, Bytes bytes, StreamHandle stream) {
    driver::sim::Kernel kernel;
    kernel.name = "write";
    kernel.accesses = {{{ptr, bytes}, driver::sim::MemoryAccess::Kind::write}};
    EXPECT_EQ(sim_.launch(kernel, stream), CuResult::success);
  }
  // Work on `second` from now on follows the work on `first` until now.
  void order(StreamHandle first, StreamHandle second) {
    driver::EventHandle event{};
    EXPECT_EQ(sim_.event_create(event), CuResult::success);
    EXPECT_EQ(sim_.event_record(event, first), CuResult::success);
    EXPECT_EQ(sim_.stream_wait_event(second, event), CuResult::success);
    EXPECT_EQ(sim_.event_destroy(event), CuResult::success);
  }
  void destroy(StreamHandle stream) { EXPECT_EQ(sim_.stream_destroy(stream), CuResult::success); }

  // The pool's calls, for memory that must not be handed out twice. `bound`, where there is one, is
  // of `stream`.
  Result<DevicePtr> allocate(Bytes bytes, pool::Stream stream,
                             context::BoundStream* bound = nullptr) {
    Watchdog::doing("allocate");
    auto made = bound != nullptr ? bound->allocate(bytes, 0) : pool_->allocate({bytes, 0, stream});
    if (made) add(made.value(), bytes);
    return made;
  }
  Result<void> allocate_many(const std::vector<Bytes>& sizes, StreamHandle stream,
                             std::vector<DevicePtr>& made) {
    Watchdog::doing("allocate_many");
    auto result = pool_->allocate_many(sizes, stream, made);
    for (std::size_t i = 0; result && i < sizes.size(); ++i) add(made[i], sizes[i]);
    return result;
  }
  void deallocate(DevicePtr ptr, pool::Stream stream, context::BoundStream* bound = nullptr) {
    Watchdog::doing("deallocate");
    live_.remove(ptr);
    const auto freed = bound != nullptr ? bound->deallocate(ptr) : pool_->deallocate(ptr, stream);
    if (!freed) fail(freed.error().message);
  }
  // As a caller that may not wait: the ordinary call comes only where it must.
  void try_deallocate(DevicePtr ptr, StreamHandle stream) {
    Watchdog::doing("try_deallocate");
    live_.remove(ptr);
    if (pool_->deallocate_if_ready(ptr, stream)) return;
    const auto freed = pool_->deallocate(ptr, stream);
    if (!freed) fail(freed.error().message);
  }
  void deallocate_many(const std::vector<DevicePtr>& pointers, StreamHandle stream) {
    Watchdog::doing("deallocate_many");
    for (const DevicePtr ptr : pointers) live_.remove(ptr);
    const auto freed = pool_->deallocate_many(pointers, stream);
    if (!freed) fail(freed.error().message);
  }
  void deallocate_deferred(DevicePtr ptr) {
    Watchdog::doing("deallocate_deferred");
    live_.remove(ptr);
    pool_->deallocate_deferred(ptr);
  }

  // False when memory was handed out twice or a free was refused: what follows would only bury the
  // cause.
  bool goes_on() const { return !has_failed_.load(std::memory_order_relaxed); }

  // Runs all at once, each in a watched thread with the context current.
  void together(const std::vector<std::function<void()>>& works) {
    std::vector<std::thread> threads;
    std::latch all_there(static_cast<std::ptrdiff_t>(works.size()));
    for (std::size_t i = 0; i < works.size(); ++i)
      threads.emplace_back([&, i] {
        const Watchdog::Watched watched(watchdog_, "thread " + std::to_string(i));
        EXPECT_EQ(sim_.ctx_set_current(context_), CuResult::success);
        all_there.arrive_and_wait();
        works[i]();
      });
    for (std::thread& thread : threads) thread.join();
  }

 private:
  static driver::sim::SimOptions options() {
    driver::sim::SimOptions options;
    options.capacity = kGiB;
    options.schedule = driver::sim::Schedule::random;
    return options;
  }
  void add(DevicePtr ptr, Bytes bytes) {
    const std::string overlap = live_.add({ptr, bytes});
    if (!overlap.empty()) fail(overlap);
  }
  void fail(const std::string& what) {
    has_failed_ = true;
    ADD_FAILURE() << what;
  }

  Watchdog watchdog_;
  driver::sim::SimDriver sim_;
  driver::ContextHandle context_{};
  std::unique_ptr<context::Context> pool_;
  std::vector<StreamHandle> shared_streams_;
  test::LiveRanges live_;
  std::atomic<bool> has_failed_{false};
};

inline settings::Config small_config(bool page_chunks) {
  settings::Config config;
  config.va_size = 2 * kGiB;
  config.page_chunks = page_chunks;
  config.chunk_max = 16 * kMiB;
  config.log = observe::LogLevel::quiet;
  return config;
}

// A third of the runs of each test has all threads on one stream.
struct Run {
  bool page_chunks = false;
  std::size_t shared_streams = 0;
  bool crowds = false;  // every stream, from the beginning
};
inline Hammer hammer_for(const Run& run) {
  settings::Config config = small_config(run.page_chunks);
  if (run.crowds) config.streams.crowded_after = 0;
  return Hammer(config, run.shared_streams);
}
inline auto runs() {
  return ::testing::Values(Run{true, 0}, Run{false, 0}, Run{false, 1}, Run{false, 0, true});
}
inline std::string run_name(const ::testing::TestParamInfo<Run>& info) {
  return std::string(info.param.page_chunks ? "pages" : "adaptive") +
         (info.param.shared_streams != 0 ? "_shared" : "") + (info.param.crowds ? "_crowding" : "");
}

}  // namespace vpmm::stress
