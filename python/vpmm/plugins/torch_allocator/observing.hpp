// torch_allocator: segments, snapshots, statistics, history. Part of allocator.cpp.
#pragma once

#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>

#include <algorithm>
#include <cstdint>
#include <iterator>

#include "allocator.hpp"

namespace vpmm::torch_plugin {

// A run of mapped addresses of one kind is what PyTorch calls an expandable segment. In private
// pools each stretch is a segment of its own, because libraries that register memory need its
// borders.
struct Allocator::Mapped {
  std::size_t begin = 0;
  std::size_t bytes = 0;
  bool is_small = false;
  std::uint64_t arena = 0;
  const Stretches::Stretch* stretch = nullptr;  // null: the run is in no private pool

  static std::vector<Mapped> of(const Layout& layout, const Stretches& stretches) {
    std::vector<Mapped> runs;
    for (std::size_t i = 0; i < layout->block_count; ++i) {
      const vpmm_block& block = layout->blocks[i];
      if (block.state == VPMM_REGION_HOLE || block.state == VPMM_REGION_ZOMBIE) continue;
      // Blocks of the driver's own pool have the requested size.
      const std::size_t bytes = block.is_small != 0 ? block.bytes : round_up(block.bytes, kGrain);
      const Mapped next{reinterpret_cast<std::size_t>(block.begin), bytes, block.is_small != 0,
                        block.arena, block.arena == 0 ? nullptr : stretches.find(block.begin)};
      if (!runs.empty() && runs.back().is_continued_by(next))
        runs.back().bytes += next.bytes;
      else
        runs.push_back(next);
    }
    return runs;
  }
  bool is_continued_by(const Mapped& next) const {
    return begin + bytes == next.begin && is_small == next.is_small && arena == next.arena &&
           next.stretch == nullptr;
  }
};

// A live allocation in a snapshot.
struct Allocator::Live {
  std::size_t begin = 0;
  std::size_t bytes = 0;
  std::size_t requested = 0;
  const Block* block = nullptr;  // null: it belongs to another library

  BlockInfo info() const {
    BlockInfo info;
    info.size = bytes;
    info.requested_size = requested;
    info.allocated = info.active = true;
    if (block != nullptr) info.context_when_allocated = block->stack;
    return info;
  }
};

// By address. An allocation that PyTorch does not know belongs to another library, or another
// thread of PyTorch is making or freeing it. Holds: Device::mutex.
std::vector<Allocator::Live> Allocator::live_of_others(const Device& device, const Layout& layout) {
  std::vector<Live> live;
  for (std::size_t i = 0; i < layout->block_count; ++i) {
    const vpmm_block& block = layout->blocks[i];
    if (block.state == VPMM_REGION_ALLOCATED &&
        device.blocks.find(block.begin) == device.blocks.end())
      live.push_back({reinterpret_cast<std::size_t>(block.begin), block.bytes, block.requested});
  }
  return live;
}

std::size_t Allocator::bytes_of_others(const Device& device, const Layout& layout) {
  std::size_t bytes = 0;
  for (const Live& live : live_of_others(device, layout)) bytes += live.bytes;
  return bytes;
}

std::vector<Allocator::Live> Allocator::live_of_all(const Device& device, const Layout& layout) {
  std::vector<Live> live = live_of_others(device, layout);
  live.reserve(live.size() + device.blocks.size());
  for (const auto& [ptr, block] : device.blocks)
    live.push_back({reinterpret_cast<std::size_t>(ptr), block.bytes, block.requested, &block});
  std::sort(live.begin(), live.end(),
            [](const Live& a, const Live& b) { return a.begin < b.begin; });
  return live;
}

// The live blocks in it from `next` on, and the gaps between them.
void Allocator::tile(SegmentInfo& segment, std::vector<Live>::const_iterator& next,
                     std::vector<Live>::const_iterator last) {
  std::size_t at = segment.address;
  const std::size_t end = segment.address + segment.total_size;
  const auto add_idle = [&](std::size_t until) {
    if (until == at) return;
    BlockInfo idle;
    idle.size = until - at;
    segment.blocks.push_back(std::move(idle));
  };
  for (; next != last && next->begin < end; ++next) {
    if (next->begin < at || next->begin + next->bytes > end)
      continue;  // the layout is of another moment
    add_idle(next->begin);
    segment.blocks.push_back(next->info());
    segment.allocated_size += next->bytes;
    segment.active_size += next->bytes;
    segment.requested_size += next->requested;
    if (segment.stream == nullptr && next->block != nullptr) segment.stream = next->block->stream;
    at = next->begin + next->bytes;
  }
  add_idle(end);
}

std::vector<SegmentInfo> Allocator::segments_of(Device& device,
                                                const std::optional<MempoolId_t>& only) {
  const Layout layout(pool_of(device));
  const std::lock_guard<std::mutex> lock(device.mutex);
  const std::vector<Live> live = live_of_all(device, layout);
  std::vector<SegmentInfo> segments;
  auto next = live.begin();
  for (const Mapped& run : Mapped::of(layout, device.stretches)) {
    SegmentInfo segment;
    segment.device = device.index;
    segment.address = run.begin;
    segment.total_size = run.bytes;
    segment.is_large = !run.is_small;
    segment.is_expandable = run.stretch == nullptr;
    segment.registration_counter = run.stretch == nullptr ? 0 : run.stretch->order;
    segment.context_when_allocated = device.growths.stack_in(run.begin, run.bytes);
    const auto name = device.arena_names.find(run.arena);
    if (run.arena != 0 && name != device.arena_names.end())
      segment.owner_private_pool_id = name->second;
    tile(segment, next, live.end());
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

// Events report how much is mapped, but not which pages the pool cuts for small requests. So the
// pool is asked for these whenever memory was mapped or unmapped. Null: the pool does not report
// it.
std::optional<vpmm_statistics> Allocator::note_mapped(Device& device) {
  device.noted_changes = device.mapping_changes.load();
  vpmm_statistics figures{};
  figures.size = sizeof figures;
  if (vpmm_get_statistics(pool_of(device), &figures) != VPMM_OK) return std::nullopt;
  const std::lock_guard<std::mutex> lock(device.mutex);
  const std::int64_t all = device.reserved.at(kAll).current;
  const auto small = static_cast<std::int64_t>(figures.small_bytes);
  set(device.reserved.at(kSmall), small);
  set(device.reserved.at(kLarge), std::max<std::int64_t>(all - small, 0));
  return figures;
}

// No event reports memory of the driver's own pool.
void Allocator::note_drivers_pool(Device& device) {
  const Layout layout(pool_of(device));
  const std::lock_guard<std::mutex> lock(device.mutex);
  std::int64_t all = 0;
  for (const Mapped& run : Mapped::of(layout, device.stretches))
    all += static_cast<std::int64_t>(run.bytes);
  set(device.reserved.at(kAll), all);
}

vpmm_statistics Allocator::count(Device& device) {
  std::optional<vpmm_statistics> figures = note_mapped(device);
  if (figures && figures->stream_ordered_bytes != 0) device.uses_drivers_pool = true;
  if (figures && device.uses_drivers_pool) {
    note_drivers_pool(device);
    figures = note_mapped(device);
  }
  TORCH_CHECK(figures, "VPMM: statistics: ", vpmm_last_error());
  return *figures;
}

// For a device that PyTorch does not use, no pool is opened: all figures are zero.
DeviceStats Allocator::getDeviceStats(DeviceIndex index) {
  Device& device = device_of(index);
  DeviceStats stats;
  stats.max_split_size = -1;
  if (!device.is_open()) return stats;
  const vpmm_statistics figures = count(device);
  const std::lock_guard<std::mutex> lock(device.mutex);
  stats.allocation = stats.active = device.counts.allocations;
  stats.allocated_bytes = stats.active_bytes = device.counts.bytes;
  stats.requested_bytes = device.counts.requested;
  stats.segment = device.stretches.segments;
  stats.inactive_split = device.stretches.inactive_split;
  stats.inactive_split_bytes = device.stretches.inactive_split_bytes;
  stats.reserved_bytes = device.reserved;
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
  device.for_each_stat([](c10::CachingAllocator::Stat& stat) { stat.reset_accumulated(); });
  device.retries = device.failures = 0;
}

void Allocator::resetPeakStats(DeviceIndex index) {
  Device& device = device_of(index);
  if (!device.is_open()) return;
  count(device);
  const std::lock_guard<std::mutex> lock(device.mutex);
  device.for_each_stat([](c10::CachingAllocator::Stat& stat) { stat.reset_peak(); });
}

std::vector<cca::StreamSegmentSize> Allocator::getExpandableSegmentSizes(DeviceIndex index) {
  std::vector<cca::StreamSegmentSize> sizes;
  Device& device = device_of(index);
  if (!device.is_open()) return sizes;
  for (const SegmentInfo& segment : segments_of(device, std::nullopt))
    if (segment.is_expandable)
      sizes.emplace_back(static_cast<cudaStream_t>(segment.stream), !segment.is_large,
                         segment.total_size);
  return sizes;
}

// The largest piece that needs no new memory. A caller that starts with 0 asks for the largest that
// is possible.
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
    vpmm_pool* const pool =
        devices_[static_cast<std::size_t>(i)].pool.load(std::memory_order_acquire);
    if (pool == nullptr) continue;
    vpmm_allocation_info info{};
    info.size = sizeof info;
    if (vpmm_query(pool, ptr, &info) != VPMM_OK) continue;
    if (bytes != nullptr) *bytes = info.usable;
    return info.begin;
  }
  TORCH_CHECK(false, "invalid device pointer: ", ptr);
}

void Allocator::recordHistory(bool is_on, cca::CreateContextFn gather, std::size_t most,
                              RecordContext level, bool clears,
                              const std::vector<std::string>& skipped) {
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
