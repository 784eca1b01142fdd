// pool: calls that have left the lock while what they work on is in flight, and who waits for them.
#pragma once

#include <condition_variable>
#include <cstdint>

#include "base/mutex.hpp"

namespace vpmm::pool {

class Flights {
 public:
  enum class Work { maps, unmaps };

  // Leaves the lock for its scope. Whoever is short of memory waits until it ends, and so does a
  // grant of access where it unmaps. However the scope is left, the lock is held again and nobody
  // waits for it any more.
  class VPMM_SCOPED_LOCK InFlight {
   public:
    InFlight(Flights& flights, MutexLock& lock, Work work = Work::maps)
        VPMM_RELEASE(pool_lock) VPMM_NO_THREAD_SAFETY_ANALYSIS : flights_(flights),
                                                                 lock_(lock),
                                                                 work_(work) {
      ++flights_.count_;
      if (work_ == Work::unmaps) ++flights_.unmapping_;
      lock_.leave();
    }
    ~InFlight() VPMM_RELEASE() VPMM_NO_THREAD_SAFETY_ANALYSIS {
      lock_.enter();
      --flights_.count_;
      flights_.ended_.notify_all();
      if (work_ == Work::maps) return;
      --flights_.unmapping_;
      flights_.access_settled_.notify_all();
    }
    InFlight(const InFlight&) = delete;
    InFlight& operator=(const InFlight&) = delete;

   private:
    Flights& flights_;
    MutexLock& lock_;
    const Work work_;
  };

  // Note [Access carries a version]: while it lives nobody begins to unmap what is in the table.
  // Waits for those that have begun.
  class Grant {
   public:
    Grant(Flights& flights, MutexLock& lock) VPMM_REQUIRES(pool_lock) : flights_(flights) {
      flights_.is_granting_ = true;
      flights_.access_settled_.wait(lock, [this] { return flights_.unmapping_ == 0; });
    }
    ~Grant() {
      flights_.is_granting_ = false;
      flights_.access_settled_.notify_all();
    }
    Grant(const Grant&) = delete;
    Grant& operator=(const Grant&) = delete;

   private:
    Flights& flights_;
  };

  bool empty() const { return count_ == 0; }
  // Until one of those in flight has ended. False: there are none.
  bool wait_for_one(MutexLock& lock) VPMM_REQUIRES(pool_lock) {
    if (count_ == 0) return false;
    const std::uint64_t at_most = count_;
    ended_.wait(lock, [&] { return count_ < at_most; });
    return true;
  }
  void wait_for_grant(MutexLock& lock) VPMM_REQUIRES(pool_lock) {
    if (is_granting_) access_settled_.wait(lock, [this] { return !is_granting_; });
  }

 private:
  std::uint64_t count_ = 0;
  std::uint64_t unmapping_ = 0;  // of these, those that unmap what is in the table
  bool is_granting_ = false;
  std::condition_variable_any ended_;
  std::condition_variable_any access_settled_;
};

}  // namespace vpmm::pool
