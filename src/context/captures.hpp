// context: memory that belongs to stream captures and the graphs made from them.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "base/host_memory.hpp"
#include "base/result.hpp"
#include "context/deferred.hpp"
#include "driver/driver.hpp"
#include "region/region.hpp"
#include "time/timelines.hpp"

namespace vpmm::context {

// Note [Captured memory stays with its graph]
// A graph uses the addresses it was captured with at every launch. So memory allocated during a capture and freed
// during it, or later, is parked: only the same stream in the same capture may have it again. When the graph and all
// that was made from it are destroyed (a user object says so, from a thread of the driver's, by pushing onto a list)
// the memory is freed for everybody, once work of all streams is done.
class Captures {
 public:
  explicit Captures(driver::Driver& driver) : driver_(driver), ended_(std::make_shared<DeferredList>()) {}

  // Begins to keep memory for capture `info.id`; ties the end of that to the graph's.
  Result<void> keep_for(const driver::CaptureInfo& info) VPMM_REQUIRES(pool_lock);
  bool keeps(std::uint64_t capture) const VPMM_REQUIRES(pool_lock) { return kept_.count(capture) != 0; }
  // `freed_on`: the capturing stream that freed it; none: it was freed after or outside the capture.
  void park(std::uint64_t capture, region::Region* region, std::optional<driver::StreamHandle> freed_on)
      VPMM_REQUIRES(pool_lock);
  bool is_parked(const region::Region* region) const VPMM_REQUIRES(pool_lock);
  // A parked region of at least `size` that was freed on the same stream in the same capture; the smallest. It is no
  // longer parked.
  region::Region* take_parked(std::uint64_t capture, driver::StreamHandle stream, Bytes size, Bytes alignment)
      VPMM_REQUIRES(pool_lock);
  // Forgets the capture; its parked regions are the caller's to free.
  Vector<region::Region*> release(std::uint64_t capture) VPMM_REQUIRES(pool_lock);
  // Captures whose graphs are gone since the last call.
  void take_ended(FunctionRef<void(std::uint64_t)> visit) { ended_->take_all(visit); }
  Vector<std::uint64_t> all() const VPMM_REQUIRES(pool_lock);

 private:
  struct Parked {
    region::Region* region;
    std::optional<driver::StreamHandle> freed_on;  // a capturing stream's handle is its own while the capture lasts
  };
  driver::Driver& driver_;
  std::shared_ptr<DeferredList> ended_;
  HashMap<std::uint64_t, Vector<Parked>> kept_ VPMM_GUARDED_BY(pool_lock);
};

}  // namespace vpmm::context
