// SPDX-License-Identifier: Apache-2.0
// tests: what happens in another thread while one stands at a place where a race would be lost.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <string>
#include <thread>
#include <utility>

#include "base/race_window.hpp"

namespace vpmm::test {

// The first thread that comes to the place waits there until `meanwhile` is over in another thread,
// or is itself kept waiting, by a lock that the first one holds: then both go on after a while. One
// at a time.
class Held {
 public:
  Held(std::string place, std::function<void()> meanwhile,
       std::chrono::milliseconds most = kUsually)
      : place_(std::move(place)), meanwhile_(std::move(meanwhile)), most_(most) {
    present = this;
    race_window.store([](const char* name) { present.load()->hold(name); });
  }
  ~Held() { end(); }
  Held(const Held&) = delete;
  Held& operator=(const Held&) = delete;

  // Whether a thread came there; all is over then.
  bool end() {
    race_window.store(nullptr);
    if (thread_.joinable()) thread_.join();
    return has_come_;
  }
  bool is_over() const { return is_over_; }  // before the one that was held went on

 private:
  static constexpr std::chrono::milliseconds kUsually{300};
  inline static std::atomic<Held*> present{nullptr};

  void hold(const char* name) {
    if (name != place_ || has_come_.exchange(true)) return;
    thread_ = std::thread([this] {
      meanwhile_();
      is_done_ = true;
    });
    const auto end = std::chrono::steady_clock::now() + most_;
    while (!is_done_ && std::chrono::steady_clock::now() < end) std::this_thread::yield();
    is_over_ = is_done_.load();
  }

  const std::string place_;
  const std::function<void()> meanwhile_;
  const std::chrono::milliseconds most_;
  std::thread thread_;
  std::atomic<bool> has_come_{false};
  std::atomic<bool> is_done_{false};
  std::atomic<bool> is_over_{false};
};

}  // namespace vpmm::test
