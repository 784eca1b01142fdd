// SPDX-License-Identifier: Apache-2.0
// driver: decorator that counts calls, sums the time of memory calls and can list calls.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/mutex.hpp"
#include "driver/forwarding.hpp"

namespace vpmm::driver {

// Called after each memory call, also a failed one, on its thread.
class CallObserver {
 public:
  // `bytes`: created, mapped, unmapped or given access to; 0 for other calls.
  virtual void after_call(Call call, Bytes bytes, std::uint64_t duration_ns) noexcept = 0;

 protected:
  ~CallObserver() = default;
};

// Thread-safe. Counts are since construction and include failed calls.
class RecordingDriver final : public ForwardingDriver {
 public:
  explicit RecordingDriver(Driver& inner);

  std::uint64_t count(Call call) const;
  std::uint64_t total_count() const;
  std::uint64_t memory_call_count() const;
  std::uint64_t memory_call_ns() const;  // all threads together

  // Time that the calling thread spent in memory calls of this recorder since its last take; 0 the
  // first time.
  std::uint64_t take_thread_memory_ns();

  // Null: no observer. The observer must outlive this driver.
  void set_observer(CallObserver* observer) {
    observer_.store(observer, std::memory_order_release);
  }

  CuResult mem_create(Bytes size, const ChunkProperties& properties, ChunkHandle& chunk) override;
  CuResult mem_map(AddressRange range, Bytes offset, ChunkHandle chunk) override;
  CuResult mem_unmap(AddressRange range) override;
  CuResult mem_set_access(AddressRange range, std::span<const AccessDescriptor> access) override;

  // Starts an empty list of calls; stop_listing() ends it.
  void start_listing() VPMM_EXCLUDES(mutex_);
  // "mem_map", or after a failure "mem_map: CUDA_ERROR_OUT_OF_MEMORY", in order of return.
  std::vector<std::string> stop_listing() VPMM_EXCLUDES(mutex_);

 private:
  void after(Call call, CuResult result, std::uint64_t duration_ns) override VPMM_EXCLUDES(mutex_);

  const std::uint64_t id_;  // never reused: key of the per-thread times
  std::array<std::atomic<std::uint64_t>, kCallCount> counts_{};
  std::atomic<std::uint64_t> memory_call_ns_{0};
  std::atomic<CallObserver*> observer_{nullptr};
  std::atomic<bool> listing_{false};
  Mutex mutex_;
  std::vector<std::string> calls_ VPMM_GUARDED_BY(mutex_);
};

}  // namespace vpmm::driver
