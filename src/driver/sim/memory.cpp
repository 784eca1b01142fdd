// SPDX-License-Identifier: Apache-2.0
// driver/sim: memory files, host mappings and the rules of the mapping calls.
#include "driver/sim/memory.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/check.hpp"

namespace vpmm::driver::sim {
namespace {

constexpr Bytes kAddressUnit = kGiB;

void* host_pointer(DevicePtr ptr) { return reinterpret_cast<void*>(to_integer(ptr)); }
DevicePtr device_pointer(void* ptr) { return DevicePtr{reinterpret_cast<std::uint64_t>(ptr)}; }

int make_file() {
  const int file = memfd_create("vpmm-simulated-gpu", MFD_CLOEXEC);
  VPMM_CHECK(file >= 0, std::strerror(errno));
  // Chunks never share or reuse file offsets; the file is sparse, so its size costs nothing.
  VPMM_CHECK(ftruncate(file, static_cast<off_t>(kMemoryFileSize)) == 0, std::strerror(errno));
  return file;
}

bool make_inaccessible(AddressRange range) {
  return mmap(host_pointer(range.begin), range.size, PROT_NONE,
              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) != MAP_FAILED;
}

}  // namespace

SimMemory::SimMemory(const SimOptions& options, HazardChecker& checker)
    : options_(options),
      checker_(checker),
      devices_(static_cast<std::size_t>(options.device_count)) {
  VPMM_CHECK(is_power_of_two(options.granularity) && is_multiple(options.granularity, 4 * kKiB),
             "the granularity must be a power of two of at least 4 KiB");
  VPMM_CHECK(options.device_count >= 0 && options.device_count <= 64,
             "0 to 64 devices can be simulated");
  for (SimDevice& device : devices_) {
    device.file = make_file();
    device.used_by_others = options.used_by_others;
  }
}

SimMemory::~SimMemory() {
  for (auto& [begin, reservation] : reservations_) {
    munmap(host_pointer(begin), reservation.range.size);
    munmap(reservation.by_granule, reservation.table_bytes);
  }
  for (auto& [handle, chunk] : chunks_) {
    checker_.remove(chunk->shadow);
    if (chunk->home == SimChunk::Home::imported && chunk->has_handle) close(chunk->file);
  }
  for (SimDevice& device : devices_) close(device.file);
}

Bytes SimMemory::free(DeviceOrdinal device) const {
  const SimDevice& d = devices_[static_cast<std::size_t>(device)];
  const Bytes taken = d.used + d.used_by_others;
  return taken < options_.capacity ? options_.capacity - taken : 0;
}

void SimMemory::set_used_by_others(DeviceOrdinal device, Bytes bytes) {
  devices_[static_cast<std::size_t>(device)].used_by_others = bytes;
}

CuResult SimMemory::create(Bytes size, DeviceOrdinal device, TouchRight blank, SimChunk*& chunk) {
  if (size == 0 || !is_multiple(size, options_.granularity)) return CuResult::invalid_value;
  if (size > free(device)) return CuResult::out_of_memory;
  SimDevice& d = devices_[static_cast<std::size_t>(device)];
  const ChunkHandle handle{next_chunk_++};
  auto made = std::make_unique<SimChunk>(
      SimChunk{handle, device, d.file, d.next_offset, size, true, 0, Shadow(size, blank)});
  d.next_offset += size;
  d.used += size;
  checker_.add(made->shadow);
  chunk = made.get();
  chunks_.emplace(static_cast<std::uint64_t>(handle), std::move(made));
  return CuResult::success;
}

CuResult SimMemory::import(const SharedChunk& shared, int file, SimChunk*& chunk) {
  if (shared.size == 0 || !is_multiple(shared.size, options_.granularity))
    return CuResult::map_failed;
  const int own = fcntl(file, F_DUPFD_CLOEXEC, 0);
  if (own < 0) return CuResult::operating_system;
  const ChunkHandle handle{next_chunk_++};
  auto made = std::make_unique<SimChunk>(
      SimChunk{handle, shared.device, own, shared.offset, shared.size, true, 0,
               Shadow(shared.size, TouchRight::driver), SimChunk::Home::imported,
               SimChunk::ExportState::allowed});
  checker_.add(made->shadow);
  chunk = made.get();
  chunks_.emplace(static_cast<std::uint64_t>(handle), std::move(made));
  return CuResult::success;
}

SimChunk* SimMemory::find_chunk(ChunkHandle handle) {
  const auto found = chunks_.find(static_cast<std::uint64_t>(handle));
  return found != chunks_.end() && found->second->has_handle ? found->second.get() : nullptr;
}

void SimMemory::release(SimChunk& chunk) {
  chunk.has_handle = false;
  if (chunk.home == SimChunk::Home::imported) close(std::exchange(chunk.file, -1));
  destroy_if_unused(chunk);
}

void SimMemory::destroy_if_unused(SimChunk& chunk) {
  if (chunk.has_handle || chunk.mappings != 0) return;
  if (chunk.home == SimChunk::Home::here) {
    devices_[static_cast<std::size_t>(chunk.device)].used -= chunk.size;
    if (options_.has_aliases && chunk.sharing != SimChunk::ExportState::exported) {
      fallocate(chunk.file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                static_cast<off_t>(chunk.offset), static_cast<off_t>(chunk.size));
    }
  }
  checker_.remove(chunk.shadow);
  chunks_.erase(static_cast<std::uint64_t>(chunk.handle));
}

CuResult SimMemory::reserve_host(Bytes size, Bytes alignment, DevicePtr hint, DevicePtr& begin) {
  // Only the high bits are the system's: the low ones decide where aligned requests lie, and a
  // program must run alike each time.
  const Bytes unit = is_null(hint) ? std::max(alignment, kAddressUnit) : alignment;
  const Bytes offset = is_null(hint) ? ++reserved_so_far_ * alignment % unit : 0;
  const Bytes padded = size + offset + unit;
  const int access = options_.has_aliases ? PROT_NONE : PROT_READ | PROT_WRITE;
  void* const host =
      mmap(host_pointer(hint), padded, access, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (host == MAP_FAILED) return CuResult::out_of_memory;
  const DevicePtr got = device_pointer(host);
  begin = align_up(got, unit) + offset;
  if (begin > got) munmap(host, begin - got);
  const DevicePtr end = begin + size;
  if (got + padded > end) munmap(host_pointer(end), got + padded - end);
  return CuResult::success;
}

CuResult SimMemory::reserve(Bytes size, Bytes alignment, DevicePtr hint, ReservedFor owner,
                            DevicePtr& begin) {
  if (size == 0 || !is_multiple(size, options_.granularity)) return CuResult::invalid_value;
  if (alignment != 0 && !is_power_of_two(alignment)) return CuResult::invalid_value;
  if (owner == ReservedFor::user && size > options_.address_space - reserved_)
    return CuResult::out_of_memory;
  DevicePtr got{};
  const CuResult result = reserve_host(size, std::max(alignment, options_.granularity), hint, got);
  if (result != CuResult::success) return result;
  SimReservation reservation;
  reservation.range = {got, size};
  reservation.owner = owner;
  reservation.table_bytes = size / options_.granularity * sizeof(SimMapping*);
  void* const table = mmap(nullptr, reservation.table_bytes, PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (table == MAP_FAILED) {
    munmap(host_pointer(got), size);
    return CuResult::out_of_memory;
  }
  reservation.by_granule = static_cast<SimMapping**>(table);
  if (owner == ReservedFor::user) reserved_ += size;
  reservations_.emplace(got, std::move(reservation));
  begin = got;
  return CuResult::success;
}

CuResult SimMemory::free_reservation(AddressRange range, ReservedFor owner) {
  const auto found = reservations_.find(range.begin);
  if (found == reservations_.end()) return CuResult::invalid_value;
  SimReservation& reservation = found->second;
  if (reservation.range != range || reservation.owner != owner || !reservation.mappings.empty()) {
    return CuResult::invalid_value;
  }
  munmap(host_pointer(range.begin), range.size);
  munmap(reservation.by_granule, reservation.table_bytes);
  if (owner == ReservedFor::user) reserved_ -= range.size;
  if (last_found_ == &reservation) last_found_ = nullptr;
  reservations_.erase(found);
  return CuResult::success;
}

SimMemory::SimReservation* SimMemory::find_reservation(DevicePtr ptr) {
  if (last_found_ != nullptr && last_found_->range.contains(ptr)) return last_found_;
  auto after = reservations_.upper_bound(ptr);
  if (after == reservations_.begin()) return nullptr;
  SimReservation& reservation = std::prev(after)->second;
  if (!reservation.range.contains(ptr)) return nullptr;
  last_found_ = &reservation;
  return last_found_;
}

SimMapping* SimMemory::find(DevicePtr ptr) {
  const SimReservation* reservation = find_reservation(ptr);
  if (reservation == nullptr) return nullptr;
  return reservation->by_granule[(ptr - reservation->range.begin) / options_.granularity];
}

AddressRange SimMemory::find_user_mapping(DevicePtr ptr) {
  const SimMapping* mapping = find(ptr);
  if (mapping == nullptr || find_reservation(ptr)->owner != ReservedFor::user) return {};
  return mapping->range;
}

DevicePtr SimMemory::next_granule(DevicePtr at) const {
  return align_up(at + 1, options_.granularity);
}

void SimMemory::fill_table(SimReservation& reservation, const SimMapping& mapping,
                           SimMapping* value) {
  SimMapping** const first = reservation.by_granule +
                             (mapping.range.begin - reservation.range.begin) / options_.granularity;
  std::fill_n(first, mapping.range.size / options_.granularity, value);
}

CuResult SimMemory::map(AddressRange range, SimChunk& chunk) {
  SimReservation* reservation = find_reservation(range.begin);
  if (reservation == nullptr || !reservation->range.contains(range)) return CuResult::invalid_value;
  if (!is_aligned(range.begin, options_.granularity)) return CuResult::invalid_value;
  const auto next = reservation->mappings.lower_bound(range.begin);
  if (next != reservation->mappings.end() && next->first < range.end())
    return CuResult::invalid_value;
  if (find(range.begin) != nullptr) return CuResult::invalid_value;
  // Maps without access until mem_set_access, as on the device.
  if (options_.has_aliases &&
      mmap(host_pointer(range.begin), range.size, PROT_NONE, MAP_SHARED | MAP_FIXED, chunk.file,
           static_cast<off_t>(chunk.offset)) == MAP_FAILED) {
    return CuResult::out_of_memory;
  }
  auto mapping = std::make_unique<SimMapping>(SimMapping{range, &chunk, 0, {}});
  fill_table(*reservation, *mapping, mapping.get());
  reservation->mappings.emplace(range.begin, std::move(mapping));
  ++chunk.mappings;
  return CuResult::success;
}

bool SimMemory::whole_mappings(AddressRange range, std::vector<SimMapping*>& mappings) {
  mappings.clear();
  if (range.empty()) return false;
  for (DevicePtr at = range.begin; at < range.end();) {
    SimMapping* mapping = find(at);
    if (mapping == nullptr || mapping->range.begin != at) return false;
    mappings.push_back(mapping);
    at = mapping->range.end();
    if (at > range.end()) return false;
  }
  return true;
}

CuResult SimMemory::unmap(const std::vector<SimMapping*>& mappings) {
  for (SimMapping* mapping : mappings) {
    if (options_.has_aliases && !make_inaccessible(mapping->range)) return CuResult::out_of_memory;
    SimReservation& reservation = *find_reservation(mapping->range.begin);
    SimChunk& chunk = *mapping->chunk;
    if (mapping->devices != 0 && reservation.owner == ReservedFor::user) --accessible_mappings_;
    fill_table(reservation, *mapping, nullptr);
    reservation.mappings.erase(mapping->range.begin);
    --chunk.mappings;
    destroy_if_unused(chunk);
  }
  return CuResult::success;
}

CuResult SimMemory::set_access(const std::vector<SimMapping*>& mappings, std::uint64_t devices) {
  const bool is_counted =
      find_reservation(mappings.front()->range.begin)->owner == ReservedFor::user;
  const auto fresh = static_cast<std::uint64_t>(std::count_if(
      mappings.begin(), mappings.end(), [](const SimMapping* m) { return m->devices == 0; }));
  if (is_counted && accessible_mappings_ + fresh > options_.max_mappings)
    return CuResult::out_of_memory;
  for (SimMapping* mapping : mappings) {
    if (mapping->devices == 0) {
      if (options_.has_aliases && mprotect(host_pointer(mapping->range.begin), mapping->range.size,
                                           PROT_READ | PROT_WRITE) != 0) {
        return CuResult::out_of_memory;
      }
      if (is_counted) ++accessible_mappings_;
    }
    mapping->devices |= devices;
  }
  return CuResult::success;
}

bool SimMemory::accessible(AddressRange range, DeviceOrdinal device) {
  bool all = true;
  for_each_part(range, [&](const SimMapping* mapping, AddressRange) {
    if (mapping == nullptr || ((mapping->devices >> device) & 1) == 0) all = false;
  });
  return all;
}

CuResult SimMemory::plug(Bytes size, DeviceOrdinal device, TouchRight blank, AddressRange& range) {
  range.size = size;
  CuResult result = reserve(size, 0, DevicePtr{}, ReservedFor::driver, range.begin);
  if (result != CuResult::success) return result;
  result = plug_at(range, device, blank);
  if (result != CuResult::success) free_reservation(range, ReservedFor::driver);
  return result;
}

void SimMemory::unplug(AddressRange range) {
  unplug_at(range);
  free_reservation(range, ReservedFor::driver);
}

CuResult SimMemory::plug_at(AddressRange range, DeviceOrdinal device, TouchRight blank) {
  SimChunk* chunk = nullptr;
  CuResult result = create(range.size, device, blank, chunk);
  if (result != CuResult::success) return result;
  result = map(range, *chunk);
  if (result == CuResult::success) {
    result = set_access({find(range.begin)}, std::uint64_t{1} << device);
    if (result != CuResult::success) unmap({find(range.begin)});
  }
  release(*chunk);
  return result;
}

void SimMemory::unplug_at(AddressRange range) { unmap({find(range.begin)}); }

SharedMemory SimMemory::locate(AddressRange range) {
  SharedMemory shared;
  shared.begin = range.begin - find(range.begin)->range.begin;
  shared.size = range.size;
  std::size_t parts = 0;
  for_each_part(range, [&](const SimMapping* mapping, AddressRange) {
    VPMM_CHECK(mapping != nullptr && parts < shared.parts.size(),
               "an allocation has one chunk or two");
    shared.parts[parts++] = {mapping->chunk->offset, mapping->chunk->size};
  });
  return shared;
}

CuResult SimMemory::plug_shared(const SharedMemory& memory, int file, DeviceOrdinal device,
                                AddressRange& range) {
  const auto& [first, second] = memory.parts;
  // Made by a machine of another granularity.
  if (!is_multiple(first.size, options_.granularity) ||
      !is_multiple(second.size, options_.granularity)) {
    return CuResult::map_failed;
  }
  range.size = first.size + second.size;
  CuResult result = reserve(range.size, 0, DevicePtr{}, ReservedFor::driver, range.begin);
  if (result != CuResult::success) return result;
  DevicePtr at = range.begin;
  for (const SharedMemory::SharedPart& part : memory.parts) {
    if (part.size == 0 || result != CuResult::success) continue;
    result = plug_imported({at, part.size}, {part.offset, part.size, device}, file);
    at = at + part.size;
  }
  if (result != CuResult::success) unplug_shared(range);
  return result;
}

CuResult SimMemory::plug_imported(AddressRange range, const SharedChunk& shared, int file) {
  SimChunk* chunk = nullptr;
  CuResult result = import(shared, file, chunk);
  if (result != CuResult::success) return result;
  result = map(range, *chunk);
  if (result == CuResult::success)
    result = set_access({find(range.begin)}, std::uint64_t{1} << shared.device);
  release(*chunk);
  return result;
}

void SimMemory::unplug_shared(AddressRange range) {
  std::vector<SimMapping*> mappings;
  for_each_part(range, [&](SimMapping* mapping, AddressRange) {
    if (mapping != nullptr) mappings.push_back(mapping);
  });
  unmap(mappings);
  free_reservation(range, ReservedFor::driver);
}

void SimMemory::count(Census& census) const {
  for (const auto& [handle, chunk] : chunks_) {
    if (chunk->home == SimChunk::Home::here) census.physical_bytes += chunk->size;
  }
  std::uint64_t driver_mappings = 0;
  for (const auto& [begin, reservation] : reservations_) {
    if (reservation.owner == ReservedFor::driver) {
      driver_mappings += reservation.mappings.size();
      continue;
    }
    ++census.reservations;
    census.mappings += reservation.mappings.size();
  }
  // Every chunk of the driver has exactly one mapping.
  census.chunks = chunks_.size() - driver_mappings;
}

}  // namespace vpmm::driver::sim
