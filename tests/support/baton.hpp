// tests: several threads of which one runs at a time, so that a program of several threads is the
// same at every run.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace vpmm::test {

// Thread 0 is the caller's.
class Baton {
 public:
  explicit Baton(std::size_t threads) {
    for (std::size_t i = 1; i < threads; ++i) threads_.emplace_back([this, i] { serve(i); });
  }
  ~Baton() {
    hand_to(kEnd);
    for (std::thread& each : threads_) each.join();
  }
  Baton(const Baton&) = delete;
  Baton& operator=(const Baton&) = delete;

  std::size_t size() const { return threads_.size() + 1; }

  // Runs `work` on that thread while the caller waits; on a thread that asks for itself, at once.
  void on(std::size_t thread, const std::function<void()>& work) {
    std::unique_lock lock(mutex_);
    if (thread == running_) return lock.unlock(), work();
    const std::size_t caller = running_;
    work_ = &work;
    running_ = thread;
    changed_.notify_all();
    changed_.wait(lock, [&] { return running_ == caller; });
  }

 private:
  static constexpr std::size_t kEnd = ~std::size_t{0};

  void hand_to(std::size_t thread) {
    const std::lock_guard lock(mutex_);
    running_ = thread;
    changed_.notify_all();
  }

  void serve(std::size_t thread) {
    while (true) {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return running_ == thread || running_ == kEnd; });
      if (running_ == kEnd) return;
      const std::function<void()>& work = *work_;
      lock.unlock();
      work();
      hand_to(0);
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::size_t running_ = 0;
  const std::function<void()>* work_ = nullptr;
  std::vector<std::thread> threads_;
};

}  // namespace vpmm::test
