// SPDX-License-Identifier: Apache-2.0
// driver/sim: kernels, copies and fills: queued, checked, run; and reports of an observed
// allocator.
#include <algorithm>
#include <array>
#include <cstring>

#include "driver/sim/costs.hpp"
#include "driver/sim/machine.hpp"

namespace vpmm::driver::sim {
namespace {

void* host_pointer(std::uint64_t address) { return reinterpret_cast<void*>(address); }

std::uint64_t address(const void* host) { return reinterpret_cast<std::uint64_t>(host); }

AddressRange written(const Work& work) { return {DevicePtr{work.to}, work.size}; }
AddressRange read(const Work& work) { return {DevicePtr{work.from}, work.size}; }

// Device memory touched by the work; `buffer` holds it, except for a kernel.
std::span<const MemoryAccess> accesses_of(const Work& work, std::array<MemoryAccess, 2>& buffer) {
  using Kind = MemoryAccess::Kind;
  switch (work.kind) {
    case Work::Kind::kernel: return work.kernel->accesses;
    case Work::Kind::host_to_device:
    case Work::Kind::fill: buffer[0] = {written(work), Kind::write}; return {buffer.data(), 1};
    case Work::Kind::device_to_host:
      buffer[0] = {read(work), Kind::read};
      return {buffer.data(), 1};
    case Work::Kind::device_to_device:
      buffer = {{{read(work), Kind::read}, {written(work), Kind::write}}};
      return buffer;
    case Work::Kind::order: break;
  }
  return {};
}

std::uint64_t copy_duration_ns(const Work& work) {
  const bool crosses_bus =
      work.kind == Work::Kind::host_to_device || work.kind == Work::Kind::device_to_host;
  return work.size / (crosses_bus ? kHostCopyBytesPerNs : kDeviceBytesPerNs);
}

}  // namespace

CuResult Machine::launch(const Kernel& kernel, StreamHandle stream) {
  Slot slot = 0;
  if (const CuResult error = find_stream(stream, slot); error != CuResult::success) return error;
  Work work;
  work.kind = Work::Kind::kernel;
  work.duration_ns = kernel.duration_ns;
  work.name = kernel.name.empty() ? work_names_[0] : checker_.intern(kernel.name);
  if (Capture* capture = captures_.of_stream(slot)) {
    work.kernel = std::make_shared<const Kernel>(kernel);
    return capture_work(*capture, slot, std::move(work));
  }
  if (const CuResult error = refuse_implicit(slot); error != CuResult::success) return error;
  if (kernel.body) work.kernel = std::make_shared<const Kernel>(kernel);
  queue(slot, std::move(work), kernel.accesses);
  return CuResult::success;
}

CuResult Machine::copy(Work work, StreamHandle stream) {
  DeviceOrdinal device = 0;
  if (const CuResult error = current_device(device); error != CuResult::success) return error;
  Slot slot = 0;
  if (const CuResult error = find_stream(stream, slot); error != CuResult::success) return error;
  work.duration_ns = copy_duration_ns(work);
  work.name = work_names_[static_cast<std::size_t>(work.kind)];
  if (Capture* capture = captures_.of_stream(slot))
    return capture_work(*capture, slot, std::move(work));
  if (const CuResult error = refuse_implicit(slot); error != CuResult::success) return error;
  queue_self_described(slot, work);
  return CuResult::success;
}

// Unlike other waits it breaks only captures that the legacy stream breaks.
CuResult Machine::copy_and_wait(Work work) {
  if (const CuResult error = copy(std::move(work), kLegacyStream); error != CuResult::success)
    return error;
  timeline_.host_wait_stream(context(*caller_->current).legacy);
  return CuResult::success;
}

CuResult Machine::memcpy_host_to_device(DevicePtr to, const void* from, Bytes size) {
  return copy_and_wait(
      {Work::Kind::host_to_device, 0, {}, 0, to_integer(to), address(from), size, {}});
}

CuResult Machine::memcpy_device_to_host(void* to, DevicePtr from, Bytes size) {
  return copy_and_wait(
      {Work::Kind::device_to_host, 0, {}, 0, address(to), to_integer(from), size, {}});
}

CuResult Machine::memcpy_host_to_device_async(DevicePtr to, const void* from, Bytes size,
                                              StreamHandle stream) {
  return copy({Work::Kind::host_to_device, 0, {}, 0, to_integer(to), address(from), size, {}},
              stream);
}

CuResult Machine::memcpy_device_to_host_async(void* to, DevicePtr from, Bytes size,
                                              StreamHandle stream) {
  return copy({Work::Kind::device_to_host, 0, {}, 0, address(to), to_integer(from), size, {}},
              stream);
}

CuResult Machine::memcpy_device_to_device_async(DevicePtr to, DevicePtr from, Bytes size,
                                                StreamHandle stream) {
  return copy({Work::Kind::device_to_device, 0, {}, 0, to_integer(to), to_integer(from), size, {}},
              stream);
}

// The host does not wait for a fill.
CuResult Machine::memset_d8(DevicePtr to, std::uint8_t value, Bytes size) {
  return memset_d8_async(to, value, size, kLegacyStream);
}

CuResult Machine::memset_d8_async(DevicePtr to, std::uint8_t value, Bytes size,
                                  StreamHandle stream) {
  return copy({Work::Kind::fill, value, {}, 0, to_integer(to), 0, size, {}}, stream);
}

// Queues work that knows its own accesses.
void Machine::queue_self_described(Slot slot, Work work) {
  std::array<MemoryAccess, 2> buffer;
  const auto accesses = accesses_of(work, buffer);
  const auto kernel = work.kernel;  // keeps a kernel's accesses alive
  queue(slot, std::move(work), accesses);
}

void Machine::queue(Slot slot, Work&& work, std::span<const MemoryAccess> accesses) {
  const Actor actor = timeline_.begin(slot, work.name);
  if (options_.has_contents) {
    for (const MemoryAccess& access : accesses) check_access(access, actor, info(slot).device);
  }
  timeline_.enqueue(actor, std::move(work));
}

void Machine::check_access(const MemoryAccess& access, const Actor& actor, DeviceOrdinal device) {
  memory_.for_each_part(access.range, [&](SimMapping* mapping, AddressRange part) {
    if (mapping == nullptr || ((mapping->devices >> device) & 1) == 0) {
      if (find_pinned(part).empty()) checker_.unmapped_access(part, access.kind, actor);
      return;
    }
    note_use(*mapping, actor);
    checker_.access({mapping->chunk->shadow, part.begin - mapping->range.begin, part}, access.kind,
                    actor);
  });
}

void Machine::note_use(SimMapping& mapping, const Actor& actor) {
  constexpr std::size_t kUsesBeforeCleaning = 8;
  for (Position& use : mapping.uses) {
    if (use.slot != actor.at.slot) continue;
    use = actor.at;
    return;
  }
  if (mapping.uses.size() >= kUsesBeforeCleaning) {
    std::erase_if(mapping.uses, [this](const Position& use) { return timeline_.host_knows(use); });
  }
  mapping.uses.push_back(actor.at);
}

// Skips unreachable bytes: the hazard was reported when the work was queued.
void Machine::run(const Work& work, DeviceOrdinal device) {
  if (!options_.has_contents) return;
  switch (work.kind) {
    case Work::Kind::kernel:
      if (work.kernel && work.kernel->body && all_reachable(*work.kernel, device))
        work.kernel->body();
      return;
    case Work::Kind::fill:
      if (reachable(written(work), device))
        std::memset(host_pointer(work.to), work.value, work.size);
      return;
    case Work::Kind::host_to_device:
      if (!reachable(written(work), device)) return;
      break;
    case Work::Kind::device_to_host:
      if (!reachable(read(work), device)) return;
      break;
    case Work::Kind::device_to_device:
      if (!reachable(written(work), device) || !reachable(read(work), device)) return;
      break;
    case Work::Kind::order: return;
  }
  std::memmove(host_pointer(work.to), host_pointer(work.from), work.size);
}

bool Machine::all_reachable(const Kernel& kernel, DeviceOrdinal device) {
  return std::all_of(kernel.accesses.begin(), kernel.accesses.end(),
                     [&](const MemoryAccess& access) { return reachable(access.range, device); });
}

bool Machine::reachable(AddressRange range, DeviceOrdinal device) {
  return memory_.accessible(range, device) || !find_pinned(range).empty();
}

// Stream of an annotation; the host if the stream is gone. Default streams are those of the
// memory's device, not of the current context.
Slot Machine::annotation_slot(AddressRange range, StreamHandle stream) {
  if (stream != kNullStream && stream != kLegacyStream && stream != kPerThreadStream) {
    Slot slot = 0;
    const CuResult result = find_stream(stream, slot);
    return result == CuResult::invalid_handle ? kHostSlot : slot;
  }
  const SimMapping* mapping = memory_.find(range.begin);
  const DeviceOrdinal device =
      mapping != nullptr ? mapping->chunk->device : caller_->current.value_or(0);
  if (!context(device).is_alive) return kHostSlot;
  return stream == kPerThreadStream ? per_thread_stream(device) : context(device).legacy;
}

Actor Machine::begin_annotation(Slot slot, NameId what) {
  return slot == kHostSlot ? timeline_.begin_host(what) : timeline_.begin(slot, what);
}

template <typename F>
void Machine::for_each_piece(AddressRange range, const Actor& actor, F&& f) {
  memory_.for_each_part(range, [&](SimMapping* mapping, AddressRange part) {
    if (mapping == nullptr) {
      checker_.unmapped_annotation(part, actor);
      return;
    }
    f(HazardChecker::AccessPiece{mapping->chunk->shadow, part.begin - mapping->range.begin, part});
  });
}

// On a capturing stream only memory that the host knows to be complete may be handed out.
void Machine::on_allocate(AddressRange range, StreamHandle stream) {
  if (!options_.has_contents) return;
  const Slot slot = annotation_slot(range, stream);
  const Actor actor =
      begin_annotation(captures_.of_stream(slot) != nullptr ? kHostSlot : slot, kAllocateName);
  for_each_piece(range, actor, [&](const HazardChecker::AccessPiece& piece) {
    checker_.allocate(piece, HazardChecker::Allocator::observed, actor);
  });
}

void Machine::on_allocate_any_stream(AddressRange range) {
  if (!options_.has_contents) return;
  const Actor actor = timeline_.begin_host(kAllocateName);
  for_each_piece(range, actor, [&](const HazardChecker::AccessPiece& piece) {
    checker_.allocate(piece, HazardChecker::Allocator::observed, actor);
  });
}

// A handle may name a stream of a dead context, as of a bound stream: it runs no work, so all
// streams may have used the memory last.
void Machine::on_deallocate(AddressRange range, StreamHandle stream) {
  if (!options_.has_contents) return;
  if (is_of_dead_context(stream)) return on_deallocate_any_stream(range);
  const Slot slot = annotation_slot(range, stream);
  const bool captures = captures_.of_stream(slot) != nullptr;
  const Actor actor = begin_annotation(captures ? kHostSlot : slot, kDeallocateName);
  for_each_piece(range, actor, [&](const HazardChecker::AccessPiece& piece) {
    if (captures) {
      checker_.deallocate_in_capture(piece);
    } else {
      checker_.deallocate(piece, actor);
    }
  });
}

void Machine::on_deallocate_any_stream(AddressRange range) {
  if (!options_.has_contents) return;
  const Actor actor = timeline_.begin_host(kDeallocateName);
  for_each_piece(range, actor, [&](const HazardChecker::AccessPiece& piece) {
    checker_.deallocate_after_all(piece);
  });
}

void Machine::mark_allocated(AddressRange range, const Actor& actor) {
  if (!options_.has_contents) return;
  for_each_piece(range, actor, [&](const HazardChecker::AccessPiece& piece) {
    checker_.allocate(piece, HazardChecker::Allocator::driver, actor);
  });
}

void Machine::mark_deallocated(AddressRange range, const Actor& actor) {
  if (!options_.has_contents) return;
  for_each_piece(range, actor, [&](const HazardChecker::AccessPiece& piece) {
    checker_.deallocate(piece, actor);
  });
}

}  // namespace vpmm::driver::sim
