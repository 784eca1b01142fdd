// driver: a decorator that counts calls, adds up the time of memory calls and can list what was
// called.
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

// Who is told of memory calls, after each, also of those that failed. Any thread.
class CallObserver {
 public:
  // `bytes`: that were created, mapped, unmapped or given access to; 0 for other calls.
  virtual void after_call(Call call, Bytes bytes, std::uint64_t duration_ns) noexcept = 0;

 protected:
  ~CallObserver() = default;
};

// Thread-safe. Counts are since construction and include calls that failed.
class RecordingDriver final : public ForwardingDriver {
 public:
  explicit RecordingDriver(Driver& inner);

  std::uint64_t count(Call call) const;
  std::uint64_t total_count() const;
  std::uint64_t memory_call_count() const;
  std::uint64_t memory_call_ns() const;  // all threads together

  // Time that the calling thread spent in memory calls of this recorder since it last took it; 0
  // the first time.
  std::uint64_t take_thread_memory_ns();

  // Null: nobody. Whoever is told must outlive this driver.
  void set_observer(CallObserver* observer) {
    observer_.store(observer, std::memory_order_release);
  }

  CuResult mem_create(Bytes size, const ChunkProperties& properties, ChunkHandle& chunk) override;
  CuResult mem_map(AddressRange range, Bytes offset, ChunkHandle chunk) override;
  CuResult mem_unmap(AddressRange range) override;
  CuResult mem_set_access(AddressRange range, std::span<const AccessDescriptor> access) override;

  // Starts an empty list of calls; stop_listing() ends it. No list is kept otherwise.
  void start_listing() VPMM_EXCLUDES(mutex_);
  // "mem_map", or "mem_map: CUDA_ERROR_OUT_OF_MEMORY" for one that failed, in order of return.
  std::vector<std::string> stop_listing() VPMM_EXCLUDES(mutex_);

 private:
  void after(Call call, CuResult result, std::uint64_t duration_ns) override VPMM_EXCLUDES(mutex_);

  const std::uint64_t id_;  // of this recorder, never reused: a key for what threads keep
  std::array<std::atomic<std::uint64_t>, kCallCount> counts_{};
  std::atomic<std::uint64_t> memory_call_ns_{0};
  std::atomic<CallObserver*> observer_{nullptr};
  std::atomic<bool> listing_{false};
  Mutex mutex_;
  std::vector<std::string> calls_ VPMM_GUARDED_BY(mutex_);
};

}  // namespace vpmm::driver
