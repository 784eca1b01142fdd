// context: a device's primary CUDA context: retained, noticed to have been reset by others, broken
// for good.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>

#include "base/mutex.hpp"
#include "base/result.hpp"
#include "driver/driver.hpp"
#include "time/timelines.hpp"

namespace vpmm::context {

// What the driver says of a context that was reset, released or destroyed.
inline bool is_gone(driver::CuResult result) {
  return result == driver::CuResult::context_is_destroyed ||
         result == driver::CuResult::invalid_context;
}

// What it is may be read without the lock, and changes under it.
class PrimaryContext {
 public:
  PrimaryContext(driver::Driver& driver, driver::DeviceOrdinal device)
      : driver_(driver), device_(device), has_ids_(driver.has(driver::Call::ctx_get_id)) {}

  driver::DeviceOrdinal device() const { return device_; }
  bool has_ids() const {
    return has_ids_;
  }  // the driver can tell a context from one that had its address before
  // Null: not opened yet, or reset by us and not opened again.
  driver::ContextHandle handle() const { return driver::ContextHandle{handle_.load()}; }
  driver::ContextId id() const { return driver::ContextId{id_.load()}; }
  std::uint64_t openings() const { return openings_.load(); }  // how often it was opened

  // Whether it is the one that is known: success, a result that is_gone(), or what went wrong.
  driver::CuResult look() const;
  // Retains it: the first time, or again after a reset. None: it is the one that is known.
  Result<std::optional<time::KnownContext>> retain() VPMM_REQUIRES(pool_lock);
  // The retained one is known from now on.
  void adopt(const time::KnownContext& context) VPMM_REQUIRES(pool_lock);
  Result<void> reset() VPMM_REQUIRES(pool_lock);
  // Once, however often it was opened: a reset took the retains before it away.
  void release() { driver_.device_primary_ctx_release(device_); }

  bool is_poisoned() const { return is_poisoned_.load(); }
  const std::optional<Error>& poison() const VPMM_REQUIRES(pool_lock) { return poison_; }
  // Passes `result` on; a sticky error poisons the context on the way.
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
  std::optional<Error> poison_
      VPMM_GUARDED_BY(pool_lock);  // set once; is_poisoned_ says so without the lock
};

}  // namespace vpmm::context
