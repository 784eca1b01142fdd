// SPDX-License-Identifier: Apache-2.0
// driver/sim: devices and primary contexts.
#include "driver/sim/machine.hpp"

#include <cstdlib>

namespace vpmm::driver::sim {
namespace {

constexpr int kVersion = 13000;
constexpr std::uintptr_t kContextBase = 0xC0000;
constexpr std::uintptr_t kContextStep = 0x100;
constexpr std::uint64_t kFirstStreamId = 9;  // the legacy stream's is 7

}  // namespace

Machine::Machine(const SimOptions& options)
    : options_(options),
      costs_(mapping_costs(options.costs)),
      timeline_(options, *this),
      checker_(options.max_hazard_records, timeline_.host()),
      memory_(options, checker_),
      contexts_(static_cast<std::size_t>(options.device_count)),
      stream_infos_(1),  // slot 0 is the host
      next_stream_id_(kFirstStreamId),
      small_plain_(static_cast<std::size_t>(options.device_count)) {
  timeline_.set_checker(checker_);
  for (DeviceOrdinal device = 0; device < options.device_count; ++device)
    exports_.emplace_back(memory_.file(device));
  unmap_name_ = checker_.intern("unmap");
  work_names_ = {checker_.intern("kernel"),
                 checker_.intern("copy to the device"),
                 checker_.intern("copy to the host"),
                 checker_.intern("copy"),
                 checker_.intern("fill"),
                 checker_.intern("event")};
}

Machine::~Machine() {
  for (const auto& [host, memory] : pinned_) {
    if (memory.owner == PinnedMemory::HostOwner::driver)
      std::free(reinterpret_cast<void*>(to_integer(host)));
  }
}

void Machine::enter(std::uint64_t thread, std::uint64_t cost_ns) {
  if (thread != thread_ || caller_ == nullptr) {
    thread_ = thread;
    caller_ = &threads_[thread];
  }
  timeline_.advance(cost_ns);
  timeline_.tick();
  if (!dying_execs_.empty()) bury_finished_execs();
}

CuResult Machine::device_error(DeviceOrdinal device) {
  return is_device(device) ? context(device).error : CuResult::invalid_device;
}

CuResult Machine::caller_error() {
  return caller_->current ? context(*caller_->current).error : CuResult::success;
}

CuResult Machine::current_device(DeviceOrdinal& device) {
  if (!caller_->current) return CuResult::invalid_context;
  const SimContext& current = context(*caller_->current);
  if (!current.is_alive) return CuResult::context_is_destroyed;
  if (current.error != CuResult::success) return current.error;
  device = *caller_->current;
  return CuResult::success;
}

CuResult Machine::init() {
  is_initialised_ = true;
  return CuResult::success;
}

CuResult Machine::driver_get_version(int& version) {
  version = kVersion;
  return CuResult::success;
}

CuResult Machine::device_get_count(int& count) {
  count = options_.device_count;
  return CuResult::success;
}

CuResult Machine::device_get_name(DeviceOrdinal device, std::string& name) {
  if (!is_device(device)) return CuResult::invalid_device;
  name = "Simulated GPU";
  return CuResult::success;
}

CuResult Machine::device_get_uuid(DeviceOrdinal device, Uuid& uuid) {
  if (!is_device(device)) return CuResult::invalid_device;
  uuid = {'v', 'p', 'm', 'm', '-', 's', 'i', 'm'};
  uuid.back() = static_cast<std::uint8_t>(device);
  return CuResult::success;
}

CuResult Machine::device_get_attribute(DeviceAttribute attribute, DeviceOrdinal device,
                                       int& value) {
  if (!is_device(device)) return CuResult::invalid_device;
  switch (attribute) {
    case DeviceAttribute::can_map_host_memory:
    case DeviceAttribute::unified_addressing:
    case DeviceAttribute::managed_memory: value = 1; return CuResult::success;
    case DeviceAttribute::compute_capability_major: value = 9; return CuResult::success;
    case DeviceAttribute::compute_capability_minor: value = 0; return CuResult::success;
    case DeviceAttribute::virtual_memory_management_supported:
    case DeviceAttribute::gpu_direct_rdma_with_vmm_supported:
      value = options_.vmm_supported ? 1 : 0;
      return CuResult::success;
    case DeviceAttribute::posix_file_descriptor_supported:
      value = options_.posix_file_descriptor_supported ? 1 : 0;
      return CuResult::success;
    case DeviceAttribute::memory_pools_supported:
      value = options_.memory_pools_supported ? 1 : 0;
      return CuResult::success;
    case DeviceAttribute::gpu_direct_rdma_supported: value = 1; return CuResult::success;
  }
  return CuResult::invalid_value;
}

CuResult Machine::device_total_mem(DeviceOrdinal device, Bytes& total) {
  if (!is_device(device)) return CuResult::invalid_device;
  total = options_.capacity;
  return CuResult::success;
}

CuResult Machine::device_can_access_peer(DeviceOrdinal device, DeviceOrdinal peer, bool& can) {
  if (!is_device(device) || !is_device(peer)) return CuResult::invalid_device;
  can = can_access(device, peer);
  return CuResult::success;
}

// The same before and after a reset.
ContextHandle Machine::context_handle(DeviceOrdinal device) {
  return ContextHandle{kContextBase + static_cast<std::uintptr_t>(device) * kContextStep};
}

std::optional<DeviceOrdinal> Machine::find_context(ContextHandle handle) const {
  const auto value = static_cast<std::uintptr_t>(handle);
  if (value < kContextBase || (value - kContextBase) % kContextStep != 0) return std::nullopt;
  const auto device = (value - kContextBase) / kContextStep;
  if (device >= contexts_.size() || contexts_[device].id == ContextId{}) return std::nullopt;
  return static_cast<DeviceOrdinal>(device);
}

CuResult Machine::device_primary_ctx_get_state(DeviceOrdinal device, bool& is_active) {
  if (!is_device(device)) return CuResult::invalid_device;
  is_active = context(device).is_alive;
  return CuResult::success;
}

CuResult Machine::device_primary_ctx_retain(DeviceOrdinal device, ContextHandle& handle) {
  if (!is_device(device)) return CuResult::invalid_device;
  if (context(device).error != CuResult::success) return context(device).error;
  if (!context(device).is_alive) make_context(device);
  ++context(device).retains;
  handle = context_handle(device);
  return CuResult::success;
}

CuResult Machine::device_primary_ctx_release(DeviceOrdinal device) {
  if (!is_device(device)) return CuResult::invalid_device;
  SimContext& c = context(device);
  if (!c.is_alive || c.retains == 0) return CuResult::invalid_context;
  --c.retains;
  if (c.retains == 0) destroy_context(device);
  return CuResult::success;
}

CuResult Machine::device_primary_ctx_reset(DeviceOrdinal device) {
  if (!is_device(device)) return CuResult::invalid_device;
  if (context(device).is_alive) destroy_context(device);
  return CuResult::success;
}

void Machine::make_context(DeviceOrdinal device) {
  SimContext& c = context(device);
  c.id = ContextId{next_context_id_++};
  c.is_alive = true;
  c.retains = 0;
  c.legacy = open_stream(device, StreamKind::legacy);
}

// Keeps chunks, reservations, mappings and their contents; the rest of the context is gone.
void Machine::destroy_context(DeviceOrdinal device) {
  timeline_.drop_all(device);
  captures_.end_all(device);
  for (StreamHandleEntry& entry : stream_handles_) {
    if (entry.life != Life::live || info(entry.slot).device != device) continue;
    entry.life = Life::dead;
    --live_streams_;
  }
  for (const auto& event : events_) {
    if (event->life != Life::live || event->device != device) continue;
    event->life = Life::dead;
    --live_events_;
  }
  std::erase_if(pools_,
                [device](const auto& entry) { return entry.second.pool->device() == device; });
  exports_[static_cast<std::size_t>(device)].withdraw_all();
  std::erase_if(imports_, [&](const auto& entry) {
    if (entry.second.device != device) return false;
    memory_.unplug_shared(entry.second.mapped);
    return true;
  });
  small_plain_[static_cast<std::size_t>(device)].reset();
  std::erase_if(plain_, [&](const auto& entry) {
    if (entry.second.device != device) return false;
    memory_.unplug(entry.second.range);
    return true;
  });
  SimContext& c = context(device);
  c.is_alive = false;
  c.retains = 0;
  c.error = CuResult::success;
}

void Machine::break_context(DeviceOrdinal device, CuResult error) {
  if (is_device(device)) context(device).error = error;
}

CuResult Machine::ctx_get_current(ContextHandle& handle) {
  handle = caller_->current ? context_handle(*caller_->current) : ContextHandle{};
  return CuResult::success;
}

CuResult Machine::ctx_set_current(ContextHandle handle) {
  if (handle == ContextHandle{}) {
    caller_->current.reset();
    return CuResult::success;
  }
  const auto device = find_context(handle);
  if (!device) return CuResult::invalid_context;
  if (!context(*device).is_alive) return CuResult::context_is_destroyed;
  caller_->current = *device;
  return CuResult::success;
}

CuResult Machine::ctx_get_id(ContextHandle handle, ContextId& id) {
  std::optional<DeviceOrdinal> device =
      handle == ContextHandle{} ? caller_->current : find_context(handle);
  if (!device) return CuResult::invalid_context;
  const SimContext& c = context(*device);
  if (!c.is_alive) return CuResult::context_is_destroyed;
  if (c.error != CuResult::success) return c.error;
  id = c.id;
  return CuResult::success;
}

CuResult Machine::ctx_get_device(DeviceOrdinal& device) { return current_device(device); }

CuResult Machine::ctx_synchronize() {
  DeviceOrdinal device = 0;
  if (const CuResult error = current_device(device); error != CuResult::success) return error;
  if (const CuResult error = refuse_while_any_captures(device); error != CuResult::success)
    return error;
  if (const CuResult error = refuse_unsafe_call(); error != CuResult::success) return error;
  timeline_.host_wait_device(device);
  stream_was_synchronised(device);
  return CuResult::success;
}

CuResult Machine::ctx_record_event(ContextHandle handle, EventHandle event_handle) {
  if (!options_.context_events_supported) return CuResult::not_supported;
  const auto device = find_context(handle);
  if (!device) return CuResult::invalid_context;
  if (!context(*device).is_alive) return CuResult::context_is_destroyed;
  if (context(*device).error != CuResult::success) return context(*device).error;
  SimEvent* event = nullptr;
  if (const CuResult error = find_event(event_handle, event); error != CuResult::success)
    return error;
  if (event->device != *device) return CuResult::invalid_handle;
  if (const CuResult error = refuse_while_any_captures(*device); error != CuResult::success)
    return error;
  timeline_.record_all(*device, event->recording);
  event->is_recorded = true;
  event->captured_in = CaptureId{};
  return CuResult::success;
}

Census Machine::census() const {
  Census census;
  memory_.count(census);
  census.events = live_events_;
  census.streams = live_streams_;
  for (const auto& [handle, entry] : pools_) census.pool_allocations += entry.pool->live();
  census.plain_allocations = plain_.size();
  census.imports = imports_.size();
  census.pinned = pinned_.size();
  for (const auto& pool : small_plain_) {
    if (pool) census.plain_allocations += pool->live();
  }
  return census;
}

}  // namespace vpmm::driver::sim
