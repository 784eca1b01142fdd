// context: who calls, which streams capture, and memory that belongs to captures and the graphs
// made from them.
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

// Where `call` says that a handle is no stream. `parameter`: the caller's name for it.
Error no_stream(const char* parameter, driver::StreamHandle stream, driver::Call call);

// Note [Captured memory stays with its graph]
// A graph uses the addresses it was captured with at every launch. So memory allocated during a
// capture and freed during it, or later, is parked: only the same stream in the same capture may
// have it again. When the graph and all that was made from it are destroyed (a user object says so,
// from a thread of the driver's, by pushing onto a list) the memory is freed for everybody, once
// work of all streams is done.
class Captures {
 public:
  explicit Captures(Device& device) : device_(device), ended_(std::make_shared<DeferredList>()) {}

  // `bound`: the timeline of a bound stream, which is not asked who it is.
  Result<pool::Caller> identify(const pool::Stream& stream, const time::TimelineId* bound)
      VPMM_REQUIRES(pool_lock);
  void announce() VPMM_REQUIRES(pool_lock);
  // False: none is announced.
  bool end_announced() VPMM_REQUIRES(pool_lock);
  void forget_streams() VPMM_REQUIRES(pool_lock);
  // Whether any is announced, or was seen when its stream called last.
  bool are_known() const VPMM_REQUIRES(pool_lock) { return announced_ != 0 || !seen_.empty(); }
  // The same for anybody.
  bool may_be_known() const { return may_be_known_.load(std::memory_order_relaxed); }

  // --- their memory ---
  bool keeps(std::uint64_t capture) const VPMM_REQUIRES(pool_lock) {
    return kept_.count(capture) != 0;
  }
  // `freed_on`: the capturing stream that freed it; none: it was freed after or outside the
  // capture.
  void park(std::uint64_t capture, region::Region* region,
            std::optional<driver::StreamHandle> freed_on) VPMM_REQUIRES(pool_lock);
  bool is_parked(const region::Region* region) const VPMM_REQUIRES(pool_lock);
  // A parked region of at least `size` that was freed on the same stream in the same capture; the
  // smallest. It is no longer parked.
  region::Region* take_parked(std::uint64_t capture, driver::StreamHandle stream, Bytes size,
                              Bytes alignment) VPMM_REQUIRES(pool_lock);
  // Forgets the capture and its streams; its parked regions are the caller's to free.
  Vector<region::Region*> release(std::uint64_t capture) VPMM_REQUIRES(pool_lock);
  Bytes parked_bytes() const VPMM_REQUIRES(pool_lock);
  // Captures whose graphs are gone since the last call.
  void take_ended(FunctionRef<void(std::uint64_t)> visit) { ended_->take_all(visit); }
  Vector<std::uint64_t> all() const VPMM_REQUIRES(pool_lock);

 private:
  struct Parked {
    region::Region* region;
    std::optional<driver::StreamHandle>
        freed_on;  // a capturing stream's handle is its own while the capture lasts
  };
  struct Seen {
    std::uint64_t id = 0;       // of the capture; 0: not known
    bool is_announced = false;  // first seen while captures were announced: over when no more are
  };
  using HandleKey = std::pair<driver::StreamHandle, std::thread::id>;
  Result<void> read_capture(pool::Caller& caller) VPMM_REQUIRES(pool_lock);
  // Begins to keep memory for capture `info.id`; ties the end of that to the graph's.
  Result<void> keep_for(const driver::CaptureInfo& info) VPMM_REQUIRES(pool_lock);
  void refresh() VPMM_REQUIRES(pool_lock);

  Device& device_;
  std::uint64_t announced_ VPMM_GUARDED_BY(pool_lock) = 0;
  // By handle, for a later stream with it does not capture; and by thread where the handle is every
  // thread's.
  Map<HandleKey, Seen> seen_ VPMM_GUARDED_BY(pool_lock);
  std::atomic<bool> may_be_known_{false};
  std::shared_ptr<DeferredList> ended_;
  HashMap<std::uint64_t, Vector<Parked>> kept_ VPMM_GUARDED_BY(pool_lock);
};

}  // namespace vpmm::context
