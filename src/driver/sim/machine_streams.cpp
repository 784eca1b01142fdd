// SPDX-License-Identifier: Apache-2.0
// driver/sim: streams and events.
#include "base/check.hpp"
#include "driver/sim/machine.hpp"

namespace vpmm::driver::sim {
namespace {

constexpr std::uintptr_t kStreamBase = 0x5000'0000;
constexpr std::uintptr_t kStreamStep = 0x100;
constexpr StreamId kLegacyStreamId{7};

// Event handles carry a generation, so that a destroyed event is recognised even if its place is
// taken.
constexpr std::uintptr_t kEventTag = std::uintptr_t{0xE} << 60;
constexpr unsigned kEventIndexShift = 4;
constexpr unsigned kEventGenerationShift = 28;
constexpr std::uintptr_t kEventIndexMask =
    (std::uintptr_t{1} << (kEventGenerationShift - kEventIndexShift)) - 1;

EventHandle event_handle(std::size_t index, std::uint32_t generation) {
  return EventHandle{kEventTag | (std::uintptr_t{generation} << kEventGenerationShift) |
                     (index << kEventIndexShift)};
}

}  // namespace

Slot Machine::open_stream(DeviceOrdinal device, StreamKind kind) {
  const StreamId id = kind == StreamKind::legacy ? kLegacyStreamId : StreamId{next_stream_id_++};
  const Slot slot = timeline_.open(device, kind, id);
  if (slot >= stream_infos_.size()) stream_infos_.resize(slot + std::size_t{1});
  stream_infos_[slot] = {device, kind, id};
  return slot;
}

Slot Machine::per_thread_stream(DeviceOrdinal device) {
  auto& streams = caller_->per_thread_streams;
  const auto index = static_cast<std::size_t>(device);
  if (index >= streams.size()) streams.resize(index + 1);
  if (streams[index].slot == 0 || streams[index].context != context(device).id) {
    streams[index] = {context(device).id, open_stream(device, StreamKind::blocking)};
  }
  return streams[index].slot;
}

CuResult Machine::find_stream(StreamHandle handle, Slot& slot) {
  if (handle == kNullStream || handle == kLegacyStream || handle == kPerThreadStream) {
    DeviceOrdinal device = 0;
    if (const CuResult error = current_device(device); error != CuResult::success) return error;
    slot = handle == kPerThreadStream ? per_thread_stream(device) : context(device).legacy;
    return CuResult::success;
  }
  const auto value = static_cast<std::uintptr_t>(handle);
  if (value < kStreamBase || (value - kStreamBase) % kStreamStep != 0)
    return CuResult::invalid_handle;
  const std::size_t index = (value - kStreamBase) / kStreamStep;
  if (index >= stream_handles_.size()) return CuResult::invalid_handle;
  const StreamHandleEntry& entry = stream_handles_[index];
  VPMM_CHECK(entry.life != Life::dead,
             "touched a stream of a dead context: the real driver crashes here");
  VPMM_CHECK(entry.life != Life::destroyed,
             "touched a destroyed stream: the real driver crashes here");
  slot = entry.slot;
  return context(info(slot).device).error;
}

bool Machine::is_of_dead_context(StreamHandle handle) const {
  const std::size_t index = (static_cast<std::uintptr_t>(handle) - kStreamBase) / kStreamStep;
  return static_cast<std::uintptr_t>(handle) >= kStreamBase && index < stream_handles_.size() &&
         stream_handles_[index].life == Life::dead;
}

CuResult Machine::find_event(EventHandle handle, SimEvent*& event) {
  const auto value = static_cast<std::uintptr_t>(handle);
  const std::size_t index = (value >> kEventIndexShift) & kEventIndexMask;
  const auto generation = static_cast<std::uint32_t>((value ^ kEventTag) >> kEventGenerationShift);
  if (index >= events_.size() || event_handle(index, generation) != handle)
    return CuResult::invalid_handle;
  SimEvent& found = *events_[index];
  VPMM_CHECK(found.generation == generation && found.life != Life::destroyed,
             "touched a destroyed event: the real driver crashes here");
  VPMM_CHECK(found.life != Life::dead,
             "touched an event of a dead context: the real driver crashes here");
  event = &found;
  return context(found.device).error;
}

CuResult Machine::stream_create(StreamFlags flags, StreamHandle& stream) {
  DeviceOrdinal device = 0;
  if (const CuResult error = current_device(device); error != CuResult::success) return error;
  const Slot slot = open_stream(
      device, flags == StreamFlags::non_blocking ? StreamKind::non_blocking : StreamKind::blocking);
  std::size_t index = stream_handles_.size();
  if (free_stream_handles_.empty()) {
    stream_handles_.push_back({Life::live, slot});
  } else {
    index = free_stream_handles_.back();
    free_stream_handles_.pop_back();
    stream_handles_[index] = {Life::live, slot};
  }
  ++live_streams_;
  stream = StreamHandle{kStreamBase + index * kStreamStep};
  return CuResult::success;
}

CuResult Machine::stream_destroy(StreamHandle stream) {
  if (stream == kNullStream || stream == kLegacyStream || stream == kPerThreadStream)
    return CuResult::invalid_handle;
  Slot slot = 0;
  if (const CuResult error = find_stream(stream, slot); error != CuResult::success) return error;
  if (Capture* capture = captures_.of_stream(slot)) capture->invalidated = true;
  timeline_.close(slot);
  const std::size_t index = (static_cast<std::uintptr_t>(stream) - kStreamBase) / kStreamStep;
  stream_handles_[index].life = Life::destroyed;
  free_stream_handles_.push_back(index);
  --live_streams_;
  return CuResult::success;
}

CuResult Machine::stream_get_id(StreamHandle stream, StreamId& id) {
  Slot slot = 0;
  if (const CuResult error = find_stream(stream, slot); error != CuResult::success) return error;
  // A capturing stream has no id to give, and the query breaks the capture.
  if (Capture* capture = captures_.of_stream(slot)) {
    capture->invalidated = true;
    return CuResult::stream_capture_unsupported;
  }
  if (const CuResult error = refuse_implicit(slot); error != CuResult::success) return error;
  id = info(slot).id;
  return CuResult::success;
}

CuResult Machine::stream_get_ctx(StreamHandle stream, ContextHandle& handle) {
  Slot slot = 0;
  if (const CuResult error = find_stream(stream, slot); error != CuResult::success) return error;
  handle = context_handle(info(slot).device);
  return CuResult::success;
}

CuResult Machine::stream_query(StreamHandle stream) {
  Slot slot = 0;
  if (const CuResult error = find_stream(stream, slot); error != CuResult::success) return error;
  if (const CuResult error = refuse_host_wait(slot); error != CuResult::success) return error;
  if (!timeline_.idle(slot)) return CuResult::not_ready;
  timeline_.learn_stream(slot);
  return CuResult::success;
}

CuResult Machine::stream_synchronize(StreamHandle stream) {
  Slot slot = 0;
  if (const CuResult error = find_stream(stream, slot); error != CuResult::success) return error;
  if (const CuResult error = refuse_host_wait(slot); error != CuResult::success) return error;
  timeline_.host_wait_stream(slot);
  stream_was_synchronised(info(slot).device);
  return CuResult::success;
}

// Trims the driver's pools to their threshold at a synchronisation.
void Machine::stream_was_synchronised(DeviceOrdinal device) {
  for (auto& [handle, entry] : pools_) {
    if (entry.pool->device() == device) entry.pool->trim_to_threshold();
  }
}

CuResult Machine::stream_wait_event(StreamHandle stream, EventHandle waited) {
  Slot slot = 0;
  SimEvent* event = nullptr;
  if (const CuResult error = find_stream(stream, slot); error != CuResult::success) return error;
  if (const CuResult error = find_event(waited, event); error != CuResult::success) return error;
  Capture* capture = captures_.of_stream(slot);
  if (event->captured_in != CaptureId{} || capture != nullptr)
    return wait_in_capture(slot, capture, *event);
  if (const CuResult error = refuse_implicit(slot); error != CuResult::success) return error;
  if (event->is_recorded) timeline_.wait(slot, event->recording);
  return CuResult::success;
}

CuResult Machine::event_create(EventHandle& handle) {
  DeviceOrdinal device = 0;
  if (const CuResult error = current_device(device); error != CuResult::success) return error;
  std::size_t index = events_.size();
  if (free_events_.empty()) {
    events_.push_back(std::make_unique<SimEvent>());
  } else {
    index = free_events_.back();
    free_events_.pop_back();
  }
  SimEvent& event = *events_[index];
  event.life = Life::live;
  event.device = device;
  event.is_recorded = false;
  event.captured_in = CaptureId{};
  ++live_events_;
  handle = event_handle(index, event.generation);
  return CuResult::success;
}

CuResult Machine::event_record(EventHandle handle, StreamHandle stream) {
  Slot slot = 0;
  SimEvent* event = nullptr;
  if (const CuResult error = find_stream(stream, slot); error != CuResult::success) return error;
  if (const CuResult error = find_event(handle, event); error != CuResult::success) return error;
  if (event->device != info(slot).device) return CuResult::invalid_handle;
  if (Capture* capture = captures_.of_stream(slot))
    return record_in_capture(*capture, slot, *event);
  if (const CuResult error = refuse_implicit(slot); error != CuResult::success) return error;
  timeline_.record(slot, event->recording);
  event->is_recorded = true;
  event->captured_in = CaptureId{};
  return CuResult::success;
}

CuResult Machine::event_query(EventHandle handle) {
  SimEvent* event = nullptr;
  if (const CuResult error = find_event(handle, event); error != CuResult::success) return error;
  if (const CuResult error = refuse_event_wait(*event); error != CuResult::success) return error;
  if (!event->is_recorded) return CuResult::success;
  if (!timeline_.complete(event->recording)) return CuResult::not_ready;
  timeline_.learn(event->recording.clock);
  return CuResult::success;
}

CuResult Machine::event_synchronize(EventHandle handle) {
  SimEvent* event = nullptr;
  if (const CuResult error = find_event(handle, event); error != CuResult::success) return error;
  if (const CuResult error = refuse_event_wait(*event); error != CuResult::success) return error;
  if (!event->is_recorded) return CuResult::success;
  timeline_.host_wait(event->recording);
  stream_was_synchronised(event->device);
  return CuResult::success;
}

CuResult Machine::event_destroy(EventHandle handle) {
  SimEvent* event = nullptr;
  if (const CuResult error = find_event(handle, event); error != CuResult::success) return error;
  event->life = Life::destroyed;
  ++event->generation;
  free_events_.push_back((static_cast<std::uintptr_t>(handle) >> kEventIndexShift) &
                         kEventIndexMask);
  --live_events_;
  return CuResult::success;
}

}  // namespace vpmm::driver::sim
