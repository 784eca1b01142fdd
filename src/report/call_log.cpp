// SPDX-License-Identifier: Apache-2.0
// report: events of a recording, made from calls.
#include "report/call_log.hpp"

#include <new>

namespace vpmm::report {
namespace {

using driver::Call;

// Number in recordings.
std::uint16_t number_of(Call call) {
  switch (call) {
    case Call::mem_create: return 1;
    case Call::mem_map: return 2;
    case Call::mem_set_access: return 3;
    case Call::mem_unmap: return 4;
    case Call::mem_release: return 5;
    default: return 6;
  }
}

// Null: no host memory.
std::unique_ptr<std::string> kept(const std::string& text) noexcept {
  try {
    return std::make_unique<std::string>(text);
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}

}  // namespace

observe::QueuedEvent CallLog::event(RecordedKind kind, AddressRange range,
                                    const By& by) const noexcept {
  observe::QueuedEvent event;
  event.kind = kind;
  event.thread = thread_number();
  event.address = range.begin;
  event.bytes = range.size;
  event.stream = by.stream;
  event.stream_handle = by.handle;
  event.time_ns = driver_.now_ns();
  return event;
}

void CallLog::freed(Claim place, DevicePtr ptr, const By& by) noexcept {
  place.publish(event(RecordedKind::free, {ptr, 0}, by));
}

void CallLog::allocated(DevicePtr begin, const pool::Request& request, Bytes taken,
                        const By& by) noexcept {
  Claim place = claim();
  observe::QueuedEvent allocated = event(RecordedKind::allocate, {begin, request.bytes}, by);
  allocated.value = taken;
  allocated.tag = request.tag;
  allocated.library = request.library;
  allocated.stack = request.stack;
  allocated.arena = static_cast<std::uint64_t>(request.arena);
  place.publish(std::move(allocated));
}

void CallLog::failed(const pool::Request& request, const Error& error, const By& by) noexcept {
  const bool is_shortage = error.code == ErrorCode::out_of_memory;
  if (is_shortage) fail(RecordedKind::out_of_memory, request, error, by);
  fail(RecordedKind::allocate_failed, request, error, by);
}

void CallLog::fail(RecordedKind kind, const pool::Request& request, const Error& error,
                   const By& by) noexcept {
  Claim place = claim();
  observe::QueuedEvent failed = event(kind, {DevicePtr{}, request.bytes}, by);
  failed.tag = request.tag;
  failed.stack = request.stack;
  failed.arena = static_cast<std::uint64_t>(request.arena);
  failed.text = kept(error.message);
  if (error.code != ErrorCode::out_of_memory) failed.flags = observe::kNotForWantOfMemory;
  place.publish(std::move(failed));
}

void CallLog::put(RecordedKind kind, AddressRange range, std::uint64_t value,
                  std::uint64_t arena) noexcept {
  Claim place = claim();
  observe::QueuedEvent happened = event(kind, range, By());
  happened.value = value;
  happened.arena = arena;
  place.publish(std::move(happened));
}

void CallLog::put(RecordedKind kind, const std::string& text) noexcept {
  Claim place = claim();
  observe::QueuedEvent said = event(kind, {}, By());
  said.text = kept(text);
  place.publish(std::move(said));
}

void CallLog::used(AddressRange allocation, const By& by) noexcept {
  Claim place = claim();
  place.publish(event(RecordedKind::record_use, allocation, by));
}

void CallLog::after_call(Call call, Bytes bytes, std::uint64_t duration_ns) noexcept {
  Claim place = claim();
  observe::QueuedEvent called = event(RecordedKind::driver, {DevicePtr{}, bytes}, By());
  called.value = duration_ns;
  called.flags = number_of(call);
  place.publish(std::move(called));
}

}  // namespace vpmm::report
