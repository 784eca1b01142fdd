// pool: the time in which a call has left the lock while what it works on is in flight.
#pragma once

#include "base/mutex.hpp"
#include "pool/pool.hpp"

namespace vpmm::pool {

// Leaves the lock for its scope. Whoever is short of memory waits until it ends, and so does a grant of access where it
// unmaps. However the scope is left, the lock is held again and nobody waits for it any more.
class Pool::InFlight {
 public:
  enum class Work { maps, unmaps };
  InFlight(Pool& pool, MutexLock& lock, Work work = Work::maps) : pool_(pool), lock_(lock), work_(work) {
    ++pool_.flights_;
    if (work_ == Work::unmaps) ++pool_.unmappings_;
    lock_.leave();
  }
  ~InFlight() {
    lock_.enter();
    --pool_.flights_;
    pool_.flight_ended_.notify_all();
    if (work_ == Work::maps) return;
    --pool_.unmappings_;
    pool_.access_settled_.notify_all();
  }
  InFlight(const InFlight&) = delete;
  InFlight& operator=(const InFlight&) = delete;

 private:
  Pool& pool_;
  MutexLock& lock_;
  const Work work_;
};

}  // namespace vpmm::pool
