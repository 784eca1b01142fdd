// SPDX-License-Identifier: Apache-2.0
// context: GPU memory held by a device's pool and the driver's pool: limits and peaks.
#pragma once

#include <optional>

#include "context/device.hpp"
#include "observe/statistics.hpp"

namespace vpmm::context {

// Note [Cleaning up can be put off]
// A program can hold cleanup while its calls must be short. Then the pool keeps zombies and idle
// memory, and the host does not wait; complete memory is still used again. A shortage of memory or
// mappings takes its steps all the same, and so do trim, synchronize and reset. After the last
// hold, each call catches up by a bounded amount.
class Footprint {
 public:
  explicit Footprint(Device& device)
      : device_(device),
        capacity_(device.config.limits.capacity),
        settings_capacity_(device.config.limits.capacity) {}

  Bytes held() const VPMM_REQUIRES(pool_lock);
  Bytes idle_in_driver_pool(Bytes but_for = 0) const VPMM_REQUIRES(pool_lock);
  // Updates the bytes that the driver's pool holds.
  void look_at_driver_pool() VPMM_REQUIRES(pool_lock);
  void forget_driver_pool() VPMM_REQUIRES(pool_lock);
  // Call after a change of memory beside the pool, or before one of `coming` bytes.
  void tell_pool(Bytes coming = 0) VPMM_REQUIRES(pool_lock);
  // Returns the bytes that the driver's pool gave back.
  Result<Bytes> trim_driver_pool(MutexLock& lock) VPMM_REQUIRES(pool_lock);
  // Gives back idle pages against growth of the driver's pool past the peak; failures are dropped.
  void offset_growth(MutexLock& lock) VPMM_REQUIRES(pool_lock);
  // VPMM_RELEASE_THRESHOLD: tells if idle memory should go back by itself.
  bool is_above_threshold() const VPMM_REQUIRES(pool_lock);

  std::optional<Bytes> capacity() const VPMM_REQUIRES(pool_lock) { return capacity_; }
  // The first call sets the share of VPMM_CAPACITY=80%, if the settings have one.
  void set_capacity(std::optional<Bytes> bytes) VPMM_REQUIRES(pool_lock);
  // Tells if the capacity is that of the settings, not of a later vpmm_set_capacity.
  bool is_capacity_of_settings() const VPMM_REQUIRES(pool_lock) {
    return capacity_ == settings_capacity_;
  }
  bool is_over_capacity() const VPMM_REQUIRES(pool_lock) {
    return capacity_ && held() > *capacity_;
  }

  void hold_cleanup() VPMM_REQUIRES(pool_lock);
  // Returns false if cleanup is not held.
  bool end_hold() VPMM_REQUIRES(pool_lock);
  bool is_cleanup_held() const VPMM_REQUIRES(pool_lock) { return cleanup_holds_ != 0; }

  // Note [The peak is sampled]
  void note_peaks() VPMM_REQUIRES(pool_lock);
  void reset_peaks() VPMM_REQUIRES(pool_lock);
  // Returns idle cached memory of streams to the pool. Returns true if there was any.
  bool flush_caches() VPMM_REQUIRES(pool_lock);
  // Completes the figures of the servers.
  void fill(observe::Statistics& figures) const VPMM_REQUIRES(pool_lock);

 private:
  Device& device_;
  Bytes driver_pool_bytes_ VPMM_GUARDED_BY(pool_lock) =
      0;  // held by the driver's pool at the last look
  std::optional<Bytes> capacity_
      VPMM_GUARDED_BY(pool_lock);  // most bytes of pool and driver pool together
  std::optional<Bytes> settings_capacity_ VPMM_GUARDED_BY(pool_lock);
  std::uint64_t cleanup_holds_ VPMM_GUARDED_BY(pool_lock) = 0;
  Bytes peak_mapped_ VPMM_GUARDED_BY(pool_lock) = 0;
  mutable Bytes peak_live_ VPMM_GUARDED_BY(pool_lock) = 0;  // reading it takes a sample
  std::uint64_t calls_since_sample_ VPMM_GUARDED_BY(pool_lock) = 0;
};

}  // namespace vpmm::context
