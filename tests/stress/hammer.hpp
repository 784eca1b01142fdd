// tests: a simulated GPU that runs work in any order, and one pool on it that many threads use at once.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <latch>
#include <memory>
#include <thread>
#include <vector>

#include "context/context.hpp"
#include "driver/sim/sim_driver.hpp"

namespace vpmm::stress {

using driver::CuResult;
using driver::StreamHandle;

class Hammer {
 public:
  explicit Hammer(const pool::Config& config) : sim_(options()) {
    EXPECT_EQ(sim_.init(), CuResult::success);
    EXPECT_EQ(sim_.device_primary_ctx_retain(0, context_), CuResult::success);
    EXPECT_EQ(sim_.ctx_set_current(context_), CuResult::success);
    auto created = context::Context::create(sim_, 0, config);
    EXPECT_TRUE(created.ok());
    if (created) pool_ = std::move(created).value();
  }
  // Everything is freed by now; nothing may be left, and nothing may have been handed out twice.
  ~Hammer() {
    sim_.run_until_idle();
    EXPECT_TRUE(pool_->synchronize().ok());
    EXPECT_TRUE(pool_->trim(0).ok());
    EXPECT_EQ(pool_->validate(), "");
    EXPECT_EQ(pool_->statistics().live_allocations, 0u);
    pool_.reset();
    EXPECT_EQ(sim_.census().chunks, 0u);
    EXPECT_EQ(sim_.census().reservations, 0u);
    EXPECT_EQ(sim_.hazard_count(), 0u) << (sim_.hazards().empty() ? "" : sim_.hazards().front().describe());
  }
  Hammer(const Hammer&) = delete;
  Hammer& operator=(const Hammer&) = delete;

  context::Context& pool() { return *pool_; }
  StreamHandle stream() {
    StreamHandle stream{};
    EXPECT_EQ(sim_.stream_create(driver::StreamFlags::non_blocking, stream), CuResult::success);
    return stream;
  }
  // A kernel that writes all of it.
  void use(DevicePtr ptr, Bytes bytes, StreamHandle stream) {
    driver::sim::Kernel kernel;
    kernel.name = "write";
    kernel.accesses = {{{ptr, bytes}, driver::sim::MemoryAccess::Kind::write}};
    EXPECT_EQ(sim_.launch(kernel, stream), CuResult::success);
  }
  void destroy(StreamHandle stream) { EXPECT_EQ(sim_.stream_destroy(stream), CuResult::success); }

  // Runs all at once, each in a thread with the context current.
  void together(const std::vector<std::function<void()>>& works) {
    std::vector<std::thread> threads;
    std::latch all_there(static_cast<std::ptrdiff_t>(works.size()));
    for (const auto& work : works)
      threads.emplace_back([&] {
        EXPECT_EQ(sim_.ctx_set_current(context_), CuResult::success);
        all_there.arrive_and_wait();
        work();
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

  driver::sim::SimDriver sim_;
  driver::ContextHandle context_{};
  std::unique_ptr<context::Context> pool_;
};

inline pool::Config small_config(bool page_chunks) {
  pool::Config config;
  config.va_size = 2 * kGiB;
  config.page_chunks = page_chunks;
  config.chunk_max = 16 * kMiB;
  config.log = pool::LogLevel::quiet;
  return config;
}

}  // namespace vpmm::stress
