// vm: the driver calls that create, map, unmap and release; each undoes its own partial work.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "base/mutex.hpp"
#include "base/result.hpp"
#include "driver/driver.hpp"

namespace vpmm::vm {

// A chunk and where it goes.
struct Placement {
  driver::ChunkHandle handle{};
  AddressRange range;
};

// What a failed map_run left behind because even the undo failed: still mapped, to be unmapped later.
struct MapOutcome {
  std::optional<Error> error;           // none: everything is mapped and accessible
  std::vector<Placement> still_mapped;  // on error only
};

// Locks: none of the pool's is held during these calls; a leaf mutex of its own lets one thread map at a time, because
// concurrent mapping calls slow each other down inside the driver.
class Mapper {
 public:
  Mapper(driver::Driver& driver, const driver::ChunkProperties& properties);

  Result<AddressRange> reserve(Bytes size, Bytes alignment);
  Result<void> free_reservation(AddressRange reservation);
  Result<driver::ChunkHandle> create(Bytes size);
  Result<void> release(driver::ChunkHandle chunk);
  // Maps all placements, which tile `whole`, and makes it readable and writable. On failure nothing stays mapped but
  // what the outcome names.
  MapOutcome map_run(AddressRange whole, const std::vector<Placement>& placements);
  // Requires: `range` is one or more adjacent whole mappings whose users are proven to be done.
  Result<void> unmap(AddressRange range);

 private:
  template <typename F>
  driver::CuResult retried(F call);
  std::vector<Placement> undo(const std::vector<Placement>& placements, std::size_t mapped);

  driver::Driver& driver_;
  Mutex mapping_;
  driver::ChunkProperties properties_;  // under mapping_
};

}  // namespace vpmm::vm
