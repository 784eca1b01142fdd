// SPDX-License-Identifier: Apache-2.0
// vm: driver calls that create, map, unmap and release; each undoes its own partial work.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>

#include "base/host_memory.hpp"
#include "base/mutex.hpp"
#include "base/result.hpp"
#include "driver/driver.hpp"

namespace vpmm::vm {

struct Placement {
  driver::ChunkHandle handle{};
  AddressRange range;
};

// Result of map_run or catch_up; after a failed undo, with the leftovers to unmap later.
struct MapOutcome {
  std::optional<Error> error;        // nullopt: everything is mapped and accessible
  Vector<Placement> still_mapped;    // on error only
  std::uint64_t access_version = 0;  // on success: of the list of devices with access
};

// Called without the pool's locks; a leaf mutex lets one thread map at a time, as concurrent
// mapping calls slow each other down in the driver.
class Mapper {
 public:
  Mapper(driver::Driver& driver, const driver::ChunkProperties& properties);

  Result<AddressRange> reserve(Bytes size, Bytes alignment);
  Result<void> free_reservation(AddressRange reservation);
  Result<driver::ChunkHandle> create(Bytes size);
  Result<void> release(driver::ChunkHandle chunk);
  // Tells if chunks are created with a file descriptor: the device claims support and never
  // refused.
  bool can_export();
  // Maps all placements, which tile `whole`, with read and write access. After a failure only
  // `still_mapped` stays mapped.
  MapOutcome map_run(AddressRange whole, const Vector<Placement>& placements);
  // Gives devices added since map_run access to its mappings, or fails as map_run does.
  MapOutcome catch_up(AddressRange whole, const Vector<Placement>& placements);
  // Requires: `range` is adjacent whole mappings with all use proven done.
  Result<void> unmap(AddressRange range);

  // Devices with access to later mappings: the chunks' own first, then peers. The version counts
  // additions: memory mapped under the current version is accessible to the whole list.
  void add_device(driver::DeviceOrdinal device);
  void remove_device(driver::DeviceOrdinal device);
  std::uint64_t access_version() const { return access_version_.load(); }
  // Requires: `range` is adjacent whole mappings, not unmapped meanwhile.
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
