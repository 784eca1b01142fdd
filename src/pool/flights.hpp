// SPDX-License-Identifier: Apache-2.0
// pool: driver calls in flight without the lock, and the requests and grants that wait for them.
#pragma once

#include <condition_variable>
#include <cstdint>

#include "base/bytes.hpp"
#include "base/mutex.hpp"

namespace vpmm::pool {

class Flights {
 public:
  enum class FlightWork { maps, unmaps };

  // Leaves the lock for its scope. Requests short of memory wait for a flight to end; so does
  // PeerAccess if the flight unmaps. The destructor re-takes the lock and wakes them, also after an
  // exception.
  class VPMM_SCOPED_LOCK InFlight {
   public:
    InFlight(Flights& flights, MutexLock& lock, FlightWork work = FlightWork::maps)
        VPMM_RELEASE(pool_lock) VPMM_NO_THREAD_SAFETY_ANALYSIS : flights_(flights),
                                                                 lock_(lock),
                                                                 work_(work) {
      ++flights_.count_;
      if (work_ == FlightWork::unmaps) ++flights_.unmapping_;
      lock_.leave();
    }
    ~InFlight() VPMM_RELEASE() VPMM_NO_THREAD_SAFETY_ANALYSIS {
      lock_.enter();
      --flights_.count_;
      flights_.ended_.notify_all();
      if (work_ == FlightWork::maps) return;
      --flights_.unmapping_;
      flights_.access_settled_.notify_all();
    }
    InFlight(const InFlight&) = delete;
    InFlight& operator=(const InFlight&) = delete;

   private:
    Flights& flights_;
    MutexLock& lock_;
    const FlightWork work_;
  };

  // Note [Access carries a version]: bars new unmapping of the table's mappings while it lives. The
  // constructor waits for unmapping flights.
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
  // Memory that flights are about to create.
  Bytes coming_bytes() const { return coming_bytes_; }
  void begin_creating(Bytes bytes) VPMM_REQUIRES(pool_lock) { coming_bytes_ += bytes; }
  void end_creating(Bytes bytes) VPMM_REQUIRES(pool_lock) { coming_bytes_ -= bytes; }
  // Waits until one flight has ended. Returns false if none is in flight.
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
  std::uint64_t unmapping_ = 0;  // flights that unmap mappings of the table; unmapping_ <= count_
  Bytes coming_bytes_ = 0;
  bool is_granting_ = false;
  std::condition_variable_any ended_;
  std::condition_variable_any access_settled_;
};

}  // namespace vpmm::pool
