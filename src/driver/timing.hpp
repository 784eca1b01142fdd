// SPDX-License-Identifier: Apache-2.0
// driver: decorator that measures every call: durations by kind, as a histogram, and bytes.
#pragma once

#include <array>
#include <atomic>
#include <bit>
#include <cstdint>
#include <limits>
#include <vector>

#include "driver/forwarding.hpp"

namespace vpmm::driver {

// Durations in buckets of at most a sixteenth of their value, from 1 ns to eighteen minutes; longer
// ones are in the last. Takes 5 KiB and allocates no memory. Thread-safe.
class DurationHistogram {
 public:
  void add(std::uint64_t ns);
  void clear();  // a concurrently added duration may be in part of the figures

  std::uint64_t count() const;
  std::uint64_t total_ns() const { return total_ns_.load(std::memory_order_relaxed); }
  std::uint64_t max_ns() const { return max_ns_.load(std::memory_order_relaxed); }
  // Percentile by nearest rank: the largest duration of its bucket, max_ns() at most, so 0 to 1/16
  // too large. 0 if empty. Requires: percent <= 100.
  std::uint64_t percentile_ns(unsigned percent) const;

 private:
  // Bucket i < kSteps is the duration i; beyond, each power of two has kSteps buckets.
  static constexpr unsigned kStepBits = 4;
  static constexpr std::uint64_t kSteps = std::uint64_t{1} << kStepBits;
  static constexpr unsigned kLargestBits = 40;
  static constexpr std::size_t kBuckets = (kLargestBits - kStepBits + 1) * kSteps;

  static constexpr std::size_t bucket_of(std::uint64_t ns) {
    if (ns < kSteps) return ns;
    if (ns >> kLargestBits != 0) return kBuckets - 1;
    const auto shift = static_cast<unsigned>(std::bit_width(ns)) - 1 - kStepBits;
    return shift * kSteps + (ns >> shift);
  }
  static constexpr std::uint64_t last_of(std::size_t bucket) {
    if (bucket < kSteps) return bucket;
    if (bucket == kBuckets - 1) return std::numeric_limits<std::uint64_t>::max();
    const std::size_t shift = bucket / kSteps - 1;
    return ((kSteps + bucket % kSteps + 1) << shift) - 1;
  }

  std::array<std::atomic<std::uint64_t>, kBuckets> counts_{};
  std::atomic<std::uint64_t> total_ns_{0};
  std::atomic<std::uint64_t> max_ns_{0};
};

// Durations of calls of one kind, failed ones included.
struct CallTimes {
  Call call{};
  std::uint64_t count = 0;
  std::uint64_t total_ns = 0;
  std::uint64_t p50_ns = 0;  // percentiles by percentile_ns()
  std::uint64_t p90_ns = 0;
  std::uint64_t p99_ns = 0;
  std::uint64_t max_ns = 0;
  // Ranges and chunks created, mapped, unmapped or given access to; nullopt for other calls.
  std::optional<Bytes> bytes;
};

// Measures the inner driver's call by now_ns(). Several hundred KiB: not for a stack.
class TimingDriver final : public ForwardingDriver {
 public:
  using ForwardingDriver::ForwardingDriver;

  void clear();  // as DurationHistogram::clear()
  // Calls that were made, memory calls first, in the order of calls.def.
  std::vector<CallTimes> times() const;

  CuResult mem_create(Bytes size, const ChunkProperties& properties, ChunkHandle& chunk) override;
  CuResult mem_map(AddressRange range, Bytes offset, ChunkHandle chunk) override;
  CuResult mem_unmap(AddressRange range) override;
  CuResult mem_set_access(AddressRange range, std::span<const AccessDescriptor> access) override;

 private:
  struct Kind {
    DurationHistogram durations;
    std::atomic<Bytes> bytes{0};
  };

  bool is_timed(Call /*call*/) const override { return true; }
  void after(Call call, CuResult result, std::uint64_t duration_ns) override;
  Kind& kind(Call call) { return kinds_[static_cast<std::size_t>(call)]; }
  void add_bytes(Call call, Bytes bytes) {
    kind(call).bytes.fetch_add(bytes, std::memory_order_relaxed);
  }
  CallTimes times_of(Call call) const;

  std::array<Kind, kCallCount> kinds_;
};

}  // namespace vpmm::driver
