// torch_allocator: segments, snapshots, statistics, history. Part of allocator.cpp.
#pragma once

#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>

#include <algorithm>
#include <cstdint>
#include <iterator>

#include "allocator.hpp"

namespace vpmm::torch_plugin {

// A run of mapped addresses of one kind and one arena is what PyTorch calls a segment.
struct Allocator::Mapped {
  std::size_t begin = 0;
  std::size_t bytes = 0;
  bool is_small = false;
  std::uint64_t arena = 0;

  // In private pools each chunk, and each piece of another allocator, is one of its own: those who register memory want
  // to know its borders. `pieces`: where pieces begin, ascending.
  static std::vector<Mapped> of(vpmm_pool* pool, const std::vector<std::size_t>& pieces) {
    const Layout layout(pool);
    std::vector<Mapped> runs;
    const auto is_border = [&](std::size_t at) {
      const auto* const end = layout->chunks + layout->chunk_count;
      const auto* const chunk =
          std::lower_bound(layout->chunks, end, at, [](const vpmm_chunk& each, std::size_t address) {
            return reinterpret_cast<std::size_t>(each.begin) < address;
          });
      return (chunk != end && reinterpret_cast<std::size_t>(chunk->begin) == at) ||
             std::binary_search(pieces.begin(), pieces.end(), at);
    };
    for (std::size_t i = 0; i < layout->block_count; ++i) {
      const vpmm_block& block = layout->blocks[i];
      if (block.state == VPMM_REGION_HOLE || block.state == VPMM_REGION_ZOMBIE) continue;
      const Mapped next{reinterpret_cast<std::size_t>(block.begin), block.bytes, block.is_small != 0, block.arena};
      if (!runs.empty() && runs.back().is_continued_by(next) && (next.arena == 0 || !is_border(next.begin)))
        runs.back().bytes += next.bytes;
      else
        runs.push_back(next);
    }
    return runs;
  }
  bool is_continued_by(const Mapped& next) const {
    return begin + bytes == next.begin && is_small == next.is_small && arena == next.arena;
  }
};

std::vector<std::size_t> Allocator::pieces_of(Device& device) {
  const std::lock_guard<std::mutex> lock(device.mutex);
  std::vector<std::size_t> begins;
  const auto add = [&](const Arena& arena) {
    for (const auto& [memory, bytes] : arena.pieces) begins.push_back(reinterpret_cast<std::size_t>(memory));
  };
  for (const auto& [id, arena] : device.arenas) add(*arena);
  for (const ArenaPtr& arena : device.ending) add(*arena);
  std::sort(begins.begin(), begins.end());
  return begins;
}

// Tiles each segment with the live blocks in it and what lies between them.
std::vector<SegmentInfo> Allocator::segments_of(Device& device, const std::optional<MempoolId_t>& only) {
  std::vector<Mapped> runs = Mapped::of(pool_of(device), pieces_of(device));
  const std::lock_guard<std::mutex> lock(device.mutex);
  std::vector<std::pair<std::size_t, const Block*>> live;
  live.reserve(device.blocks.size());
  for (const auto& [ptr, block] : device.blocks) live.emplace_back(reinterpret_cast<std::size_t>(ptr), &block);
  std::sort(live.begin(), live.end());
  std::vector<SegmentInfo> segments;
  auto next = live.begin();
  for (const Mapped& run : runs) {
    SegmentInfo segment;
    segment.device = device.index;
    segment.address = run.begin;
    segment.total_size = run.bytes;
    segment.is_large = !run.is_small;
    segment.is_expandable = run.arena == 0;
    segment.context_when_allocated = device.growths.stack_in(run.begin, run.bytes);
    const auto name = device.arena_names.find(run.arena);
    if (run.arena != 0 && name != device.arena_names.end()) segment.owner_private_pool_id = name->second;
    const auto order = device.order_of_stretches.find(reinterpret_cast<const void*>(run.begin));
    segment.registration_counter = order == device.order_of_stretches.end() ? 0 : order->second;
    while (next != live.end() && next->first < run.begin) ++next;
    std::size_t at = run.begin;
    const std::size_t end = run.begin + run.bytes;
    const auto add_idle = [&](std::size_t until) {
      if (until == at) return;
      BlockInfo idle;
      idle.size = until - at;
      segment.blocks.push_back(std::move(idle));
    };
    for (; next != live.end() && next->first + next->second->bytes <= end; ++next) {
      const Block& block = *next->second;
      add_idle(next->first);
      BlockInfo info;
      info.size = block.bytes;
      info.requested_size = block.requested;
      info.allocated = info.active = true;
      info.context_when_allocated = block.stack;
      segment.blocks.push_back(std::move(info));
      segment.allocated_size += block.bytes;
      segment.active_size += block.bytes;
      segment.requested_size += block.requested;
      if (segment.stream == nullptr) segment.stream = block.stream;
      at = next->first + block.bytes;
    }
    add_idle(end);
    if (!only || segment.owner_private_pool_id == *only) segments.push_back(std::move(segment));
  }
  return segments;
}

cca::SnapshotInfo Allocator::snapshot(MempoolId_t id, bool include_traces) {
  cca::SnapshotInfo snapshot;
  const int count = device_count_.load();
  snapshot.device_traces.resize(static_cast<std::size_t>(count));
  for (int i = 0; i < count; ++i) {
    Device& device = devices_[static_cast<std::size_t>(i)];
    if (!device.is_open()) continue;
    std::vector<SegmentInfo> segments =
        segments_of(device, id == kCommonPool ? std::nullopt : std::optional<MempoolId_t>(id));
    std::size_t active = 0;
    for (const SegmentInfo& segment : segments) active += segment.active_size;
    history_.record(Action::SNAPSHOT, device.index, nullptr, active, nullptr, kCommonPool);
    std::move(segments.begin(), segments.end(), std::back_inserter(snapshot.segments));
  }
  if (include_traces) history_.copy_to(snapshot);
  snapshot.config_metadata.garbage_collection_threshold = 0;
  snapshot.config_metadata.max_split_size = SIZE_MAX;
  snapshot.config_metadata.pinned_num_register_threads = 1;
  snapshot.config_metadata.expandable_segments = true;
  snapshot.config_metadata.release_lock_on_malloc = false;
  snapshot.config_metadata.pinned_use_host_register = false;
  snapshot.config_metadata.graph_capture_record_stream_reuse = false;
  snapshot.config_metadata.last_allocator_settings = "backend:vpmm";
  return snapshot;
}

// Segments are counted anew when something was mapped or unmapped since, or other pages are cut.
void Allocator::count_segments(Device& device, std::uint64_t cut_bytes) {
  const std::pair<std::uint64_t, std::uint64_t> changes{device.mapping_changes.load(), cut_bytes};
  {
    const std::lock_guard<std::mutex> lock(device.mutex);
    if (device.counted_at == changes) return;
  }
  const std::vector<Mapped> runs = Mapped::of(pool_of(device), pieces_of(device));
  const std::lock_guard<std::mutex> lock(device.mutex);
  device.counted_at = changes;
  std::array<std::int64_t, 3> segments{};
  std::array<std::int64_t, 3> bytes{};
  for (const Mapped& run : runs) {
    const StatType type = run.is_small ? StatType::SMALL_POOL : StatType::LARGE_POOL;
    for (const auto i : {StatType::AGGREGATE, type}) {
      ++segments.at(static_cast<std::size_t>(i));
      bytes.at(static_cast<std::size_t>(i)) += static_cast<std::int64_t>(run.bytes);
    }
  }
  const auto set = [](c10::CachingAllocator::Stat& stat, std::int64_t now) {
    if (now > stat.current)
      stat.increase(static_cast<std::size_t>(now - stat.current));
    else
      stat.decrease(static_cast<std::size_t>(stat.current - now));
  };
  for (std::size_t i = 0; i < segments.size(); ++i) {
    set(device.segments.at(i), segments.at(i));
    set(device.reserved.at(i), bytes.at(i));
  }
}

// Of a device that PyTorch does not use, nothing is opened to answer: all is zero.
DeviceStats Allocator::getDeviceStats(DeviceIndex index) {
  Device& device = device_of(index);
  DeviceStats stats;
  stats.max_split_size = -1;
  if (!device.is_open()) return stats;
  vpmm_statistics figures{};
  figures.size = sizeof figures;
  check(vpmm_get_statistics(pool_of(device), &figures), "statistics");
  count_segments(device, figures.small_bytes);
  const std::lock_guard<std::mutex> lock(device.mutex);
  stats.allocation = stats.active = device.counts.allocations;
  stats.allocated_bytes = stats.active_bytes = device.counts.bytes;
  stats.requested_bytes = device.counts.requested;
  stats.segment = device.segments;
  stats.reserved_bytes = device.reserved;
  auto& peak = stats.reserved_bytes.at(0).peak;
  peak = std::max(peak, static_cast<std::int64_t>(figures.peak_mapped_bytes));
  for (std::size_t i = 0; i < stats.inactive_split_bytes.size(); ++i)
    stats.inactive_split_bytes.at(i).current = stats.reserved_bytes.at(i).current - stats.active_bytes.at(i).current;
  stats.num_alloc_retries = device.retries;
  stats.num_ooms = device.failures;
  stats.num_sync_all_streams = static_cast<std::int64_t>(figures.host_waits);
  stats.num_device_alloc = static_cast<std::int64_t>(figures.chunks_created);
  stats.num_device_free = static_cast<std::int64_t>(figures.chunks_released);
  return stats;
}

void Allocator::resetAccumulatedStats(DeviceIndex index) {
  Device& device = device_of(index);
  const std::lock_guard<std::mutex> lock(device.mutex);
  for (StatArray* const array :
       {&device.counts.allocations, &device.counts.bytes, &device.counts.requested, &device.segments, &device.reserved})
    for (auto& stat : *array) stat.reset_accumulated();
  device.retries = device.failures = 0;
}

void Allocator::resetPeakStats(DeviceIndex index) {
  Device& device = device_of(index);
  if (!device.is_open()) return;
  static_cast<void>(getDeviceStats(index));  // counts what is there now
  check(vpmm_reset_peaks(pool_of(device)), "peaks");
  const std::lock_guard<std::mutex> lock(device.mutex);
  for (StatArray* const array :
       {&device.counts.allocations, &device.counts.bytes, &device.counts.requested, &device.segments, &device.reserved})
    for (auto& stat : *array) stat.reset_peak();
}

std::vector<cca::StreamSegmentSize> Allocator::getExpandableSegmentSizes(DeviceIndex index) {
  std::vector<cca::StreamSegmentSize> sizes;
  Device& device = device_of(index);
  if (!device.is_open()) return sizes;
  for (const SegmentInfo& segment : segments_of(device, std::nullopt))
    if (segment.is_expandable)
      sizes.emplace_back(static_cast<cudaStream_t>(segment.stream), !segment.is_large, segment.total_size);
  return sizes;
}

// The largest piece that needs no new memory. A caller that starts with 0 wants to know what may be had at all.
void Allocator::cacheInfo(DeviceIndex index, std::size_t* largest) {
  Device& device = device_of(index);
  if (*largest == 0) {
    const c10::cuda::CUDAGuard guard(index);
    std::size_t total = 0;
    C10_CUDA_CHECK(cudaMemGetInfo(largest, &total));
  }
  if (!device.is_open()) return;
  vpmm_statistics figures{};
  figures.size = sizeof figures;
  check(vpmm_get_statistics(pool_of(device), &figures), "statistics");
  *largest = std::max<std::size_t>(*largest, figures.largest_free_bytes);
}

void* Allocator::getBaseAllocation(void* ptr, std::size_t* bytes) {
  const int count = device_count_.load();
  for (int i = 0; i < count; ++i) {
    vpmm_pool* const pool = devices_[static_cast<std::size_t>(i)].pool.load(std::memory_order_acquire);
    if (pool == nullptr) continue;
    vpmm_allocation_info info{};
    info.size = sizeof info;
    if (vpmm_query(pool, ptr, &info) != VPMM_OK) continue;
    if (bytes != nullptr) *bytes = info.usable;
    return info.begin;
  }
  TORCH_CHECK(false, "invalid device pointer: ", ptr);
}

void Allocator::recordHistory(bool is_on, cca::CreateContextFn gather, std::size_t most, RecordContext level,
                              bool clears, const std::vector<std::string>& skipped) {
  history_.start(is_on, gather, most, level, clears, skipped);
}

void Allocator::recordAnnotation(const std::vector<std::pair<std::string, std::string>>& pairs) {
  if (!history_.is_recording()) return;
  DeviceIndex device = 0;
  C10_CUDA_CHECK(c10::cuda::GetDevice(&device));
  history_.annotate(device, pairs);
}

void Allocator::attachOutOfMemoryObserver(cca::OutOfMemoryObserver observer) {
  const std::lock_guard<std::mutex> lock(observers_mutex_);
  observers_.push_back(std::move(observer));
}

}  // namespace vpmm::torch_plugin
