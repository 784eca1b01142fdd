// SPDX-License-Identifier: Apache-2.0
// tests: looks at a pool, changes its limits and records it while other threads use it.
#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <optional>
#include <random>
#include <string>
#include <thread>

#include "context/context.hpp"
#include "observe/render.hpp"
#include "support/watchdog.hpp"

namespace vpmm::test {

class PoolObserver {
 public:
  PoolObserver(context::Context& pool, std::uint64_t seed)
      : pool_(pool),
        random_(seed),
        capacity_(pool.config().limits.capacity),
        recording_(fmt::format("{}vpmm_observer_{}_{}.csv.gz", ::testing::TempDir(), getpid(),
                               pool.device())) {}

  // While `busy` is not 0. Then the pool has its capacity again and records no more. What went
  // wrong; empty: nothing.
  std::string run(const std::atomic<std::uint64_t>& busy) {
    std::string wrong;
    while (busy.load() > 0 && wrong.empty()) {
      Watchdog::doing("look");
      wrong = look();
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
    pool_.limits().set_capacity(capacity_);
    if (is_recording_) wrong += switch_recording();
    std::remove(recording_.c_str());
    return wrong;
  }

 private:
  std::string look() {
    switch (random_() % 8) {
      case 0: return said(pool_.limits().trim(0));
      case 1: return said(pool_.limits().trim(random_() % 512 * kMiB));
      case 2: pool_.limits().set_capacity((64 + random_() % 512) * kMiB); return "";
      case 3: pool_.limits().set_capacity(capacity_); return "";
      case 4: return observe::to_text(pool_.reports().snapshot()).empty() ? "an empty dump" : "";
      case 5: return look_at_statistics();
      case 6: return switch_recording();
      default: return random_() % 2 == 0 ? pool_.reports().validate() : synchronize();
    }
  }
  std::string look_at_statistics() {
    const observe::Statistics now = pool_.reports().statistics();
    if (random_() % 2 == 0) pool_.reports().reset_peaks();
    return now.live_bytes <= now.peak_live_bytes ? "" : "more is live than the peak";
  }
  std::string synchronize() {
    const auto done = pool_.streams().synchronize();
    return !done && done.error().code == ErrorCode::capture_active ? "" : said(done);
  }
  std::string switch_recording() {
    is_recording_ = !is_recording_;
    return said(is_recording_ ? pool_.reports().start_recording(recording_)
                              : pool_.reports().stop_recording());
  }
  template <typename T>
  static std::string said(const Result<T>& result) {
    return result ? "" : result.error().message;
  }

  context::Context& pool_;
  std::mt19937_64 random_;
  const std::optional<Bytes> capacity_;
  const std::string recording_;
  bool is_recording_ = false;
};

}  // namespace vpmm::test
