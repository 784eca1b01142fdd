// SPDX-License-Identifier: Apache-2.0
// driver: counts calls, and sums the time of memory calls by process and by thread.
#include "driver/recording.hpp"

#include <algorithm>
#include <utility>

namespace vpmm::driver {
namespace {

struct ThreadTime {
  std::uint64_t recorder_id;
  std::uint64_t ns;
};
// One entry per recorder that this thread has taken time from: mostly empty or one.
thread_local std::vector<ThreadTime> thread_times;

// Bytes of the thread's current memory call. Note [Thread-local variables]
[[gnu::tls_model("initial-exec")]] constinit thread_local Bytes bytes_of_call = 0;

auto find_thread_time(std::uint64_t recorder_id) {
  return std::find_if(thread_times.begin(), thread_times.end(),
                      [&](const ThreadTime& time) { return time.recorder_id == recorder_id; });
}

void add_thread_time(std::uint64_t recorder_id, std::uint64_t ns) {
  const auto entry = find_thread_time(recorder_id);
  if (entry != thread_times.end()) entry->ns += ns;
}

std::uint64_t next_recorder_id() {
  static std::atomic<std::uint64_t> next{1};
  return next.fetch_add(1, std::memory_order_relaxed);
}

template <typename Counts, typename Include>
std::uint64_t sum(const Counts& counts, Include include) {
  std::uint64_t total = 0;
  for (std::size_t i = 0; i < counts.size(); ++i) {
    if (include(static_cast<Call>(i))) total += counts[i].load(std::memory_order_relaxed);
  }
  return total;
}

}  // namespace

RecordingDriver::RecordingDriver(Driver& inner)
    : ForwardingDriver(inner), id_(next_recorder_id()) {}

std::uint64_t RecordingDriver::count(Call call) const {
  return counts_[static_cast<std::size_t>(call)].load(std::memory_order_relaxed);
}

std::uint64_t RecordingDriver::total_count() const {
  return sum(counts_, [](Call) { return true; });
}

std::uint64_t RecordingDriver::memory_call_count() const { return sum(counts_, is_memory_call); }

std::uint64_t RecordingDriver::memory_call_ns() const {
  return memory_call_ns_.load(std::memory_order_relaxed);
}

std::uint64_t RecordingDriver::take_thread_memory_ns() {
  const auto entry = find_thread_time(id_);
  if (entry != thread_times.end()) return std::exchange(entry->ns, 0);
  thread_times.push_back({id_, 0});
  return 0;
}

void RecordingDriver::start_listing() {
  MutexLock lock(mutex_);
  calls_.clear();
  listing_ = true;
}

std::vector<std::string> RecordingDriver::stop_listing() {
  MutexLock lock(mutex_);
  listing_ = false;
  return std::exchange(calls_, {});
}

CuResult RecordingDriver::mem_create(Bytes size, const ChunkProperties& properties,
                                     ChunkHandle& chunk) {
  bytes_of_call = size;
  return ForwardingDriver::mem_create(size, properties, chunk);
}

CuResult RecordingDriver::mem_map(AddressRange range, Bytes offset, ChunkHandle chunk) {
  bytes_of_call = range.size;
  return ForwardingDriver::mem_map(range, offset, chunk);
}

CuResult RecordingDriver::mem_unmap(AddressRange range) {
  bytes_of_call = range.size;
  return ForwardingDriver::mem_unmap(range);
}

CuResult RecordingDriver::mem_set_access(AddressRange range,
                                         std::span<const AccessDescriptor> access) {
  bytes_of_call = range.size;
  return ForwardingDriver::mem_set_access(range, access);
}

void RecordingDriver::after(Call call, CuResult result, std::uint64_t duration_ns) {
  counts_[static_cast<std::size_t>(call)].fetch_add(1, std::memory_order_relaxed);
  if (is_memory_call(call)) {
    memory_call_ns_.fetch_add(duration_ns, std::memory_order_relaxed);
    add_thread_time(id_, duration_ns);
    const Bytes bytes = std::exchange(bytes_of_call, 0);
    if (CallObserver* const observer = observer_.load(std::memory_order_acquire))
      observer->after_call(call, bytes, duration_ns);
  }
  if (!listing_) return;
  std::string text = to_string(call);
  if (result != CuResult::success) text.append(": ").append(to_string(result));
  MutexLock lock(mutex_);
  if (listing_) calls_.push_back(std::move(text));
}

}  // namespace vpmm::driver
