// SPDX-License-Identifier: Apache-2.0
// driver/sim: physical chunks, reservations and mappings, with real bytes behind them.
//
// Each device is one sparse memory file; a chunk is an offset range in it, never reused, so fresh
// chunks read as zero and host memory returns when a chunk dies. Mapping a chunk maps the file at
// the simulated address: two mappings of one chunk are the same bytes. Single-threaded: the
// machine's lock is held.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <unordered_map>
#include <vector>

#include "base/address.hpp"
#include "driver/sim/hazards.hpp"
#include "driver/sim/shadow.hpp"
#include "driver/sim/sharing.hpp"
#include "driver/sim/sim_types.hpp"
#include "driver/types.hpp"

namespace vpmm::driver::sim {

// Lives while has_handle or mappings != 0.
struct SimChunk {
  ChunkHandle handle{};
  DeviceOrdinal device = 0;
  int file = -1;     // the device's; of an imported chunk its own, -1 once the handle is gone
  Bytes offset = 0;  // in that file
  Bytes size = 0;
  bool has_handle = true;
  std::uint32_t mappings = 0;
  Shadow shadow;
  enum class Home { here, imported };  // imported: capacity and bytes of another machine
  Home home = Home::here;
  enum class ExportState {
    refused,
    allowed,
    exported
  };  // exported: others may have its bytes for ever
  ExportState sharing = ExportState::refused;
};

struct SimMapping {
  AddressRange range;
  SimChunk* chunk = nullptr;
  std::uint64_t devices = 0;  // bit d: device d may access
  // Last use by each stream through this mapping, as far as the host has not seen it complete.
  std::vector<Position> uses;
};

class SimMemory {
 public:
  SimMemory(const SimOptions& options, HazardChecker& checker);
  ~SimMemory();
  SimMemory(const SimMemory&) = delete;
  SimMemory& operator=(const SimMemory&) = delete;

  CuResult create(Bytes size, DeviceOrdinal device, TouchRight blank, SimChunk*& chunk);
  // Duplicates `file`. map_failed: made by a machine of another granularity. operating_system: no
  // descriptor is left. Memory of this machine is imported like that of others.
  CuResult import(const SharedChunk& shared, int file, SimChunk*& chunk);
  SimChunk* find_chunk(ChunkHandle handle);
  void release(SimChunk& chunk);

  // Reservations of the driver itself count neither in the census nor in the address space.
  enum class ReservedFor { user, driver };
  CuResult reserve(Bytes size, Bytes alignment, DevicePtr hint, ReservedFor owner,
                   DevicePtr& begin);
  CuResult free_reservation(AddressRange range, ReservedFor owner);

  CuResult map(AddressRange range, SimChunk& chunk);
  // Collects the whole, adjacent mappings that fill `range`; false for any other range.
  bool whole_mappings(AddressRange range, std::vector<SimMapping*>& mappings);
  CuResult unmap(const std::vector<SimMapping*>& mappings);
  CuResult set_access(const std::vector<SimMapping*>& mappings, std::uint64_t devices);

  // Makes a driver allocation: chunk, reservation, mapping, access. `unplug` undoes it.
  CuResult plug(Bytes size, DeviceOrdinal device, TouchRight blank, AddressRange& range);
  void unplug(AddressRange range);
  // Same inside a reservation of the driver's; the reservation stays.
  CuResult plug_at(AddressRange range, DeviceOrdinal device, TouchRight blank);
  void unplug_at(AddressRange range);

  // Describe a driver allocation for another process, and map one made by another process. `file`
  // is not needed later.
  SharedMemory locate(AddressRange range);
  CuResult plug_shared(const SharedMemory& memory, int file, DeviceOrdinal device,
                       AddressRange& range);
  void unplug_shared(AddressRange range);

  // Mapping around `ptr`; null if none.
  SimMapping* find(DevicePtr ptr);
  // Range of that mapping if it lies in a user's reservation; else empty.
  AddressRange find_user_mapping(DevicePtr ptr);
  bool accessible(AddressRange range, DeviceOrdinal device);
  // Calls f(mapping or null, part) for the parts of `range`, in order.
  template <typename F>
  void for_each_part(AddressRange range, F&& f) {
    DevicePtr at = range.begin;
    while (at < range.end()) {
      SimMapping* mapping = find(at);
      DevicePtr end = mapping != nullptr ? mapping->range.end() : next_granule(at);
      if (end > range.end()) end = range.end();
      f(mapping, AddressRange{at, end - at});
      at = end;
    }
  }

  int file(DeviceOrdinal device) const { return devices_[static_cast<std::size_t>(device)].file; }
  Bytes granularity() const { return options_.granularity; }
  Bytes used(DeviceOrdinal device) const { return devices_[static_cast<std::size_t>(device)].used; }
  Bytes free(DeviceOrdinal device) const;
  void set_used_by_others(DeviceOrdinal device, Bytes bytes);
  void count(Census& census) const;

 private:
  struct SimDevice {
    int file = -1;
    Bytes used = 0;
    Bytes used_by_others = 0;
    Bytes next_offset = 0;
  };
  struct SimReservation {
    AddressRange range;
    ReservedFor owner = ReservedFor::user;
    std::map<DevicePtr, std::unique_ptr<SimMapping>> mappings;
    SimMapping** by_granule = nullptr;  // sparse host memory, one entry per granule of the range
    Bytes table_bytes = 0;
  };
  SimReservation* find_reservation(DevicePtr ptr);
  CuResult plug_imported(AddressRange range, const SharedChunk& shared, int file);
  CuResult reserve_host(Bytes size, Bytes alignment, DevicePtr hint, DevicePtr& begin);
  void fill_table(SimReservation& reservation, const SimMapping& mapping, SimMapping* value);
  void destroy_if_unused(SimChunk& chunk);
  DevicePtr next_granule(DevicePtr at) const;

  const SimOptions options_;
  HazardChecker& checker_;
  std::vector<SimDevice> devices_;
  std::unordered_map<std::uint64_t, std::unique_ptr<SimChunk>> chunks_;  // by handle
  std::uint64_t next_chunk_ = 1;
  std::map<DevicePtr, SimReservation> reservations_;
  SimReservation* last_found_ = nullptr;  // most look-ups stay in one reservation
  Bytes reserved_ = 0;
  std::uint64_t reserved_so_far_ = 0;      // reservations
  std::uint64_t accessible_mappings_ = 0;  // outside the driver's own reservations
};

}  // namespace vpmm::driver::sim
