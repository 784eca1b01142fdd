// SPDX-License-Identifier: Apache-2.0
// context: a device's primary CUDA context: retained, reset by others, or broken.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>

#include "base/mutex.hpp"
#include "base/result.hpp"
#include "driver/driver.hpp"
#include "time/timelines.hpp"

namespace vpmm::context {

// Tells if a driver's answer means a reset, released or destroyed context.
inline bool is_gone(driver::CuResult result) {
  return result == driver::CuResult::context_is_destroyed ||
         result == driver::CuResult::invalid_context;
}

// Read without the pool's lock, changed under it.
class PrimaryContext {
 public:
  PrimaryContext(driver::Driver& driver, driver::DeviceOrdinal device)
      : driver_(driver), device_(device), has_ids_(driver.has(driver::Call::ctx_get_id)) {}

  driver::DeviceOrdinal device() const { return device_; }
  bool has_ids() const { return has_ids_; }  // contexts with the same address can be told apart
  // Null: not opened yet, or not opened again after reset().
  driver::ContextHandle handle() const { return driver::ContextHandle{handle_.load()}; }
  driver::ContextId id() const { return driver::ContextId{id_.load()}; }
  std::uint64_t openings() const { return openings_.load(); }

  // Compares the context with the known one. Returns success, a result that is_gone(), or the
  // driver's error.
  driver::CuResult look() const;
  // Retains the context at first use or after a reset. Returns nullopt if it is the known one.
  Result<std::optional<time::KnownContext>> retain() VPMM_REQUIRES(pool_lock);
  // Makes the retained context the known one.
  void adopt(const time::KnownContext& context) VPMM_REQUIRES(pool_lock);
  Result<void> reset() VPMM_REQUIRES(pool_lock);
  // Call once: a reset ends all earlier retains.
  void release() { driver_.device_primary_ctx_release(device_); }

  bool is_poisoned() const { return is_poisoned_.load(); }
  const std::optional<Error>& poison() const VPMM_REQUIRES(pool_lock) { return poison_; }
  // Returns `result`; a sticky error poisons the context.
  template <typename T>
  Result<T> noted(Result<T> result) VPMM_REQUIRES(pool_lock) {
    if (!result && result.error().code == ErrorCode::poisoned) poison_with(result.error());
    return result;
  }

 private:
  void poison_with(const Error& error) VPMM_REQUIRES(pool_lock);

  driver::Driver& driver_;
  const driver::DeviceOrdinal device_;
  const bool has_ids_;
  std::atomic<std::uint64_t> handle_{0};
  std::atomic<std::uint64_t> id_{0};
  std::atomic<std::uint64_t> openings_{0};
  std::atomic<bool> is_poisoned_{false};
  std::optional<Error> poison_ VPMM_GUARDED_BY(pool_lock);  // set once, before is_poisoned_
};

}  // namespace vpmm::context
