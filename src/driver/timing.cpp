// SPDX-License-Identifier: Apache-2.0
// driver: histograms of call durations.
#include "driver/timing.hpp"

#include <algorithm>

namespace vpmm::driver {

void DurationHistogram::add(std::uint64_t ns) {
  counts_[bucket_of(ns)].fetch_add(1, std::memory_order_relaxed);
  total_ns_.fetch_add(ns, std::memory_order_relaxed);
  std::uint64_t most = max_ns();
  while (most < ns && !max_ns_.compare_exchange_weak(most, ns, std::memory_order_relaxed)) {
  }
}

void DurationHistogram::clear() {
  for (auto& count : counts_) count.store(0, std::memory_order_relaxed);
  total_ns_.store(0, std::memory_order_relaxed);
  max_ns_.store(0, std::memory_order_relaxed);
}

std::uint64_t DurationHistogram::count() const {
  std::uint64_t total = 0;
  for (const auto& count : counts_) total += count.load(std::memory_order_relaxed);
  return total;
}

std::uint64_t DurationHistogram::percentile_ns(unsigned percent) const {
  const std::uint64_t total = count();
  const std::uint64_t rank = std::max<std::uint64_t>((total * percent + 99) / 100, 1);
  std::uint64_t passed = 0;
  for (std::size_t bucket = 0; bucket < kBuckets; ++bucket) {
    passed += counts_[bucket].load(std::memory_order_relaxed);
    if (passed >= rank) return std::min(last_of(bucket), max_ns());
  }
  return 0;
}

namespace {

bool has_bytes(Call call) {
  return call == Call::mem_create || call == Call::mem_map || call == Call::mem_unmap ||
         call == Call::mem_set_access;
}

}  // namespace

void TimingDriver::clear() {
  for (Kind& each : kinds_) {
    each.durations.clear();
    each.bytes.store(0, std::memory_order_relaxed);
  }
}

CallTimes TimingDriver::times_of(Call call) const {
  const Kind& kind = kinds_[static_cast<std::size_t>(call)];
  CallTimes times;
  times.call = call;
  times.count = kind.durations.count();
  times.total_ns = kind.durations.total_ns();
  times.p50_ns = kind.durations.percentile_ns(50);
  times.p90_ns = kind.durations.percentile_ns(90);
  times.p99_ns = kind.durations.percentile_ns(99);
  times.max_ns = kind.durations.max_ns();
  if (has_bytes(call)) times.bytes = kind.bytes.load(std::memory_order_relaxed);
  return times;
}

std::vector<CallTimes> TimingDriver::times() const {
  std::vector<CallTimes> out;
  for (std::size_t i = 0; i < kCallCount; ++i) {
    if (CallTimes times = times_of(static_cast<Call>(i)); times.count != 0) out.push_back(times);
  }
  std::stable_partition(out.begin(), out.end(),
                        [](const CallTimes& times) { return is_memory_call(times.call); });
  return out;
}

CuResult TimingDriver::mem_create(Bytes size, const ChunkProperties& properties,
                                  ChunkHandle& chunk) {
  add_bytes(Call::mem_create, size);
  return ForwardingDriver::mem_create(size, properties, chunk);
}

CuResult TimingDriver::mem_map(AddressRange range, Bytes offset, ChunkHandle chunk) {
  add_bytes(Call::mem_map, range.size);
  return ForwardingDriver::mem_map(range, offset, chunk);
}

CuResult TimingDriver::mem_unmap(AddressRange range) {
  add_bytes(Call::mem_unmap, range.size);
  return ForwardingDriver::mem_unmap(range);
}

CuResult TimingDriver::mem_set_access(AddressRange range,
                                      std::span<const AccessDescriptor> access) {
  add_bytes(Call::mem_set_access, range.size);
  return ForwardingDriver::mem_set_access(range, access);
}

void TimingDriver::after(Call call, CuResult /*result*/, std::uint64_t duration_ns) {
  kind(call).durations.add(duration_ns);
}

}  // namespace vpmm::driver
