// SPDX-License-Identifier: Apache-2.0
// capi: frame of every C ABI function: checks, the gate, errors into statuses.
#pragma once

#include <string>
#include <string_view>
#include <utility>

#include "base/result.hpp"
#include "capi/pool.hpp"
#include "process/process_gate.hpp"
#include "vpmm/vpmm.h"

namespace vpmm::capi {

// Remembers the message for vpmm_last_error of this thread. Never throws.
vpmm_status fail(vpmm_status status, std::string_view message) noexcept;
vpmm_status fail(const Error& error) noexcept;

// Call in a handler: the status and message of the exception that is handled.
vpmm_status fail_with_exception() noexcept;

// Effect of a call once the process is ending: giving memory back has none.
enum class WhenEnding { fail, do_nothing };

// Runs `work`, which returns Result<void>. Stops every exception, also of a user's callback.
template <typename Work>
vpmm_status guarded(Work&& work) noexcept {
  try {
    const Result<void> result = std::forward<Work>(work)();
    return result ? VPMM_OK : fail(result.error());
  } catch (...) {
    return fail_with_exception();
  }
}

// Same behind the gate: for every call that takes a lock or may reach the driver.
template <typename Work>
vpmm_status gated(WhenEnding when_ending, Work&& work) noexcept {
  const process::GateEntry entry;
  if (entry.open()) return guarded(std::forward<Work>(work));
  if (when_ending == WhenEnding::do_nothing) return VPMM_OK;
  return guarded([]() -> Result<void> { return process::ending_error(); });
}

// Same on a pool: `work` gets its context.
template <typename Work>
vpmm_status with_pool(vpmm_pool* pool, Work&& work,
                      WhenEnding when_ending = WhenEnding::fail) noexcept {
  if (pool == nullptr) return fail(VPMM_ERROR_INVALID_ARGUMENT, "`pool` is null");
  return gated(when_ending, [&] { return work(*pool->context); });
}

// An enumeration of the library has the numbers of the header's.
constexpr bool mirrors(auto ours, auto public_one) {
  return static_cast<int>(ours) == static_cast<int>(public_one);
}

// For pointers that must not be null; `name` is the parameter's.
inline Result<void> require(const void* pointer, const char* name) {
  if (pointer != nullptr) return {};
  return Error{ErrorCode::invalid_argument, std::string("`") + name + "` is null"};
}

inline DevicePtr to_device_ptr(const void* ptr) {
  return DevicePtr{reinterpret_cast<std::uintptr_t>(ptr)};
}
inline void* to_pointer(DevicePtr ptr) {
  return reinterpret_cast<void*>(static_cast<std::uintptr_t>(to_integer(ptr)));
}
inline driver::StreamHandle to_stream(vpmm_stream stream) {
  return driver::StreamHandle{reinterpret_cast<std::uintptr_t>(stream)};
}

}  // namespace vpmm::capi
