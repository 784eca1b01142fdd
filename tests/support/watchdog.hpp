// SPDX-License-Identifier: Apache-2.0
// tests: ends a run whose threads hang, with a message that says what each of them was doing.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <list>
#include <mutex>
#include <string>
#include <thread>

namespace vpmm::test {

// How long a watched thread may stay in one step. A step takes microseconds, or milliseconds on a
// busy machine.
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__) || defined(VPMM_CHECKED)
constexpr std::chrono::seconds kPatience{600};
#else
constexpr std::chrono::seconds kPatience{60};
#endif

class Watchdog {
  struct Post;

 public:
  // `run` says what to run again: a seed, for example. The running test is named anyway.
  explicit Watchdog(std::string run, std::chrono::milliseconds patience = kPatience);
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

  // Watches the thread that makes it until it is destroyed, in that thread.
  class Watched {
   public:
    Watched(Watchdog& watchdog, std::string name);
    ~Watched();
    Watched(const Watched&) = delete;
    Watched& operator=(const Watched&) = delete;

   private:
    Watchdog& watchdog_;
    std::list<Post>::iterator post_;
    Post* outer_;
  };

  // The calling thread begins a step. `what` is a literal. Does nothing in a thread that is not
  // watched.
  static void doing(const char* what);

 private:
  struct Post {
    std::string name;
    std::atomic<const char*> doing{"begin"};
    std::atomic<std::uint64_t> steps{0};
    std::uint64_t seen_steps = 0;  // by the watching thread, as is the next
    int idle_looks = 0;  // in a row; looks, not time, so that a machine that slept is no alarm
  };
  void watch();
  void look();
  [[noreturn]] void give_up(const Post& hanging);

  static thread_local Post* current_;
  const std::string run_;
  const std::chrono::milliseconds patience_;
  std::mutex mutex_;
  std::condition_variable ended_;
  bool is_ended_ = false;  // under mutex_, as the list
  std::list<Post> posts_;
  std::thread thread_;
};

}  // namespace vpmm::test
