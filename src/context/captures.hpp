// SPDX-License-Identifier: Apache-2.0
// context: the stream of a caller, stream captures, and memory of captures and their graphs.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <thread>
#include <utility>

#include "base/host_memory.hpp"
#include "base/mutex.hpp"
#include "base/result.hpp"
#include "context/deferred.hpp"
#include "context/device.hpp"
#include "region/region.hpp"
#include "time/timelines.hpp"

namespace vpmm::context {

// Error after `call` refused a handle. `parameter`: its name in the caller's call.
Error no_stream(const char* parameter, driver::StreamHandle stream, driver::Call call);

// Note [Captured memory stays with its graph]
// A graph uses its captured addresses at every launch. So memory allocated during a capture is
// parked when it is freed, then or later: it serves only the same stream in the same capture, by
// best fit, and is divided like a free range. The
// destruction of the graph and its executables runs a user object's callback, on a thread of the
// driver, that pushes onto a list. Then the memory is freed for everybody, behind work of all
// streams.
class Captures {
 public:
  explicit Captures(Device& device) : device_(device), ended_(std::make_shared<DeferredList>()) {}

  // `bound`: timeline of a bound stream, which needs no driver call unless captures may be known.
  Result<pool::Caller> identify(const pool::Stream& stream, const time::TimelineId* bound)
      VPMM_REQUIRES(pool_lock);
  void announce() VPMM_REQUIRES(pool_lock);
  // Returns false if none is announced.
  bool end_announced() VPMM_REQUIRES(pool_lock);
  void forget_streams() VPMM_REQUIRES(pool_lock);
  // Tells if a capture is announced, or was seen at its stream's last call.
  bool are_known() const VPMM_REQUIRES(pool_lock) { return announced_ != 0 || !seen_.empty(); }
  // Same without the lock.
  bool may_be_known() const { return may_be_known_.load(std::memory_order_relaxed); }

  // --- their memory ---
  bool keeps(std::uint64_t capture) const VPMM_REQUIRES(pool_lock) {
    return kept_.count(capture) != 0;
  }
  // `freed_on`: capturing stream that freed it; nullopt: freed after or outside the capture. Joins
  // neighbours that are parked alike.
  void park(std::uint64_t capture, region::Region* region,
            std::optional<driver::StreamHandle> freed_on) VPMM_REQUIRES(pool_lock);
  bool is_parked(const region::Region* region) const VPMM_REQUIRES(pool_lock);
  // Removes the smallest parked region that can be passed on, freed on the same stream in the same
  // capture. Null: none.
  region::Region* take_parked(std::uint64_t capture, driver::StreamHandle stream,
                              const pool::PageRequest& request) VPMM_REQUIRES(pool_lock);
  // Forgets the capture and its streams. Returns its parked regions, for the caller to free.
  Vector<region::Region*> release(std::uint64_t capture) VPMM_REQUIRES(pool_lock);
  Bytes parked_bytes() const VPMM_REQUIRES(pool_lock);
  // Visits captures with graphs destroyed since the last call.
  bool has_ended() const { return !ended_->empty(); }
  void take_ended(FunctionRef<void(std::uint64_t)> visit) { ended_->take_all(visit); }
  Vector<std::uint64_t> all() const VPMM_REQUIRES(pool_lock);

 private:
  struct Parked {
    region::Region* region;
    std::optional<driver::StreamHandle> freed_on;  // handle, unique while the capture lasts
    friend bool operator==(const Parked&, const Parked&) = default;
  };
  struct Seen {
    std::uint64_t id = 0;       // of the capture; 0: unknown
    bool is_announced = false;  // first seen while captures were announced: ends with them
  };
  using HandleKey = std::pair<driver::StreamHandle, std::thread::id>;
  Result<void> read_capture(pool::Caller& caller) VPMM_REQUIRES(pool_lock);
  // Keeps memory for capture `info.id` until its graph ends.
  Result<void> keep_for(const driver::CaptureInfo& info) VPMM_REQUIRES(pool_lock);
  void refresh() VPMM_REQUIRES(pool_lock);

  Device& device_;
  std::uint64_t announced_ VPMM_GUARDED_BY(pool_lock) = 0;
  // By handle; per-thread default streams also by thread. A call of a stream outside a capture ends
  // its entry.
  Map<HandleKey, Seen> seen_ VPMM_GUARDED_BY(pool_lock);
  std::atomic<bool> may_be_known_{false};
  std::shared_ptr<DeferredList> ended_;
  HashMap<std::uint64_t, Vector<Parked>> kept_ VPMM_GUARDED_BY(pool_lock);
};

}  // namespace vpmm::context
