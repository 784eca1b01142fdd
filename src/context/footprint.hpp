// context: how much of the GPU's memory a device's pool and the driver's pool hold, its limits and
// its peaks.
#pragma once

#include <optional>

#include "context/device.hpp"
#include "observe/statistics.hpp"

namespace vpmm::context {

// Note [Cleaning up can be put off]
// A program may have a moment in which no call should take long. While it says so, the pool lets
// zombies and idle memory be, and the host does not wait; what is complete is used again all the
// same. Running out of memory, or of mappings, comes first: the steps of a shortage are always
// taken. So does what the caller asks for itself (trim, synchronize, reset). When the last hold
// ends, the calls that follow catch up, each a bounded amount.
class Footprint {
 public:
  explicit Footprint(Device& device) : device_(device), capacity_(device.config.capacity) {}

  Bytes held() const VPMM_REQUIRES(pool_lock);
  Bytes idle_in_driver_pool(Bytes but_for = 0) const VPMM_REQUIRES(pool_lock);
  // Asks the driver's pool how much it holds. True: more than before.
  bool look_at_driver_pool() VPMM_REQUIRES(pool_lock);
  void forget_driver_pool() VPMM_REQUIRES(pool_lock);
  // How much the driver's pool gave back.
  Result<Bytes> trim_driver_pool(MutexLock& lock) VPMM_REQUIRES(pool_lock);
  // Growth of the driver's pool past the peak is paid with idle pages, as far as that works.
  void offset_growth(MutexLock& lock) VPMM_REQUIRES(pool_lock);
  // VPMM_RELEASE_THRESHOLD: whether idle memory is to go back without being asked for.
  bool is_above_threshold() const VPMM_REQUIRES(pool_lock);

  std::optional<Bytes> capacity() const VPMM_REQUIRES(pool_lock) { return capacity_; }
  void set_capacity(std::optional<Bytes> bytes) VPMM_REQUIRES(pool_lock);
  bool is_over_capacity() const VPMM_REQUIRES(pool_lock) {
    return capacity_ && held() > *capacity_;
  }

  void hold_cleanup() VPMM_REQUIRES(pool_lock);
  // False: it is not held.
  bool end_hold() VPMM_REQUIRES(pool_lock);
  bool is_cleanup_held() const VPMM_REQUIRES(pool_lock) { return cleanup_holds_ != 0; }

  // Of what is live it takes a sample: Note [The peak is sampled].
  void note_peaks() VPMM_REQUIRES(pool_lock);
  void reset_peaks() VPMM_REQUIRES(pool_lock);
  // What streams have cached and nobody uses goes back to the pool. True: something did.
  bool flush_caches() VPMM_REQUIRES(pool_lock);
  // Over what the servers filled in.
  void fill(observe::Statistics& figures) const VPMM_REQUIRES(pool_lock);

 private:
  Device& device_;
  Bytes driver_pool_bytes_ VPMM_GUARDED_BY(pool_lock) =
      0;  // what the driver's pool held when last asked
  std::optional<Bytes> capacity_
      VPMM_GUARDED_BY(pool_lock);  // most bytes of pool and driver pool together
  std::uint64_t cleanup_holds_ VPMM_GUARDED_BY(pool_lock) = 0;
  Bytes peak_mapped_ VPMM_GUARDED_BY(pool_lock) = 0;
  mutable Bytes peak_live_ VPMM_GUARDED_BY(pool_lock) = 0;  // reading it takes a sample
  std::uint64_t calls_since_sample_ VPMM_GUARDED_BY(pool_lock) = 0;
};

}  // namespace vpmm::context
