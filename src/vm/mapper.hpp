// vm: the driver calls that create, map, unmap and release; each undoes its own partial work.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>

#include "base/host_memory.hpp"
#include "base/mutex.hpp"
#include "base/result.hpp"
#include "driver/driver.hpp"

namespace vpmm::vm {

// A chunk and where it goes.
struct Placement {
  driver::ChunkHandle handle{};
  AddressRange range;
};

// What a failed map_run or catch_up left behind because even the undo failed: still mapped, to be
// unmapped later.
struct MapOutcome {
  std::optional<Error> error;        // none: everything is mapped and accessible
  Vector<Placement> still_mapped;    // on error only
  std::uint64_t access_version = 0;  // on success: of the list of devices that got access
};

// Locks: none of the pool's is held during these calls; a leaf mutex of its own lets one thread map
// at a time, because concurrent mapping calls slow each other down inside the driver.
class Mapper {
 public:
  Mapper(driver::Driver& driver, const driver::ChunkProperties& properties);

  Result<AddressRange> reserve(Bytes size, Bytes alignment);
  Result<void> free_reservation(AddressRange reservation);
  Result<driver::ChunkHandle> create(Bytes size);
  Result<void> release(driver::ChunkHandle chunk);
  // Whether chunks are created with a file descriptor: the device says that it can, and it was
  // never refused.
  bool can_export();
  // Maps all placements, which tile `whole`, and makes it readable and writable. On failure nothing
  // stays mapped but what the outcome names.
  MapOutcome map_run(AddressRange whole, const Vector<Placement>& placements);
  // Gives what map_run mapped to the devices that were added to the list since, or fails as map_run
  // does.
  MapOutcome catch_up(AddressRange whole, const Vector<Placement>& placements);
  // Requires: `range` is one or more adjacent whole mappings whose users are proven to be done.
  Result<void> unmap(AddressRange range);

  // The devices that may use what is mapped from here on: the chunks' own first, then peers. The
  // version counts the additions, so memory that was mapped under the current one is accessible to
  // every device of the list.
  void add_device(driver::DeviceOrdinal device);
  void remove_device(driver::DeviceOrdinal device);
  std::uint64_t access_version() const { return access_version_.load(); }
  // Requires: `range` is one or more adjacent whole mappings, which nobody unmaps meanwhile.
  Result<void> set_access(AddressRange range, driver::DeviceOrdinal device);

 private:
  template <typename F>
  driver::CuResult retried(F call);
  MapOutcome set_access_or_undo(AddressRange whole, const Vector<Placement>& placements)
      VPMM_REQUIRES(mapping_);
  Vector<Placement> undo(const Vector<Placement>& placements, std::size_t mapped)
      VPMM_REQUIRES(mapping_);

  driver::Driver& driver_;
  Mutex mapping_;
  driver::ChunkProperties properties_ VPMM_GUARDED_BY(mapping_);
  Vector<driver::AccessDescriptor> access_ VPMM_GUARDED_BY(mapping_);
  std::atomic<std::uint64_t> access_version_{0};  // changes under mapping_
};

}  // namespace vpmm::vm
