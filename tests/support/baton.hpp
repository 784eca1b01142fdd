// SPDX-License-Identifier: Apache-2.0
// tests: several threads of which one runs at a time, so that a program of several threads is the
// same at every run.
#pragma once

#include <semaphore.h>

#include <cerrno>
#include <cstddef>
#include <deque>
#include <functional>
#include <thread>
#include <utility>

namespace vpmm::test {

// Thread 0 is the caller's.
class Baton {
 public:
  explicit Baton(std::size_t threads) {
    for (std::size_t i = 0; i < threads; ++i) seats_.emplace_back();
    for (std::size_t i = 1; i < threads; ++i)
      seats_[i].thread = std::thread([this, i] { serve(i); });
  }
  ~Baton() {
    for (std::size_t i = 1; i < seats_.size(); ++i) {
      seats_[i].work = nullptr;
      seats_[i].turn.release();
      seats_[i].thread.join();
    }
  }
  Baton(const Baton&) = delete;
  Baton& operator=(const Baton&) = delete;

  std::size_t size() const { return seats_.size(); }

  // Runs `work` on that thread while the caller waits; on a thread that asks for itself, at once.
  void on(std::size_t thread, const std::function<void()>& work) {
    if (thread == running_) return work();
    const std::size_t caller = std::exchange(running_, thread);
    seats_[thread].work = &work;
    seats_[thread].caller = caller;
    seats_[thread].turn.release();
    seats_[caller].turn.acquire();
  }

 private:
  // std::binary_semaphore yields the processor some times before it sleeps, which takes longer.
  class Turn {
   public:
    Turn() { sem_init(&semaphore_, 0, 0); }
    ~Turn() { sem_destroy(&semaphore_); }
    Turn(const Turn&) = delete;
    Turn& operator=(const Turn&) = delete;
    void release() { sem_post(&semaphore_); }
    void acquire() {
      while (sem_wait(&semaphore_) != 0 && errno == EINTR) {
      }
    }

   private:
    sem_t semaphore_{};
  };
  // Each thread waits for its own turn, so that a turn wakes one thread and not all of them.
  struct Seat {
    Turn turn;
    const std::function<void()>* work = nullptr;  // none: the end
    std::size_t caller = 0;
    std::thread thread;
  };

  void serve(std::size_t thread) {
    Seat& seat = seats_[thread];
    while (true) {
      seat.turn.acquire();
      if (seat.work == nullptr) return;
      (*seat.work)();
      running_ = seat.caller;
      seats_[seat.caller].turn.release();
    }
  }

  std::deque<Seat> seats_;
  std::size_t running_ = 0;  // of the thread that has the turn
};

}  // namespace vpmm::test
