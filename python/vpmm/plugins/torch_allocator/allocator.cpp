// SPDX-License-Identifier: Apache-2.0
// torch_allocator: PyTorch's calls, passed on to the parts of the device that they concern.
#include "allocator.hpp"

#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>

#include <algorithm>
#include <cstdint>
#include <iterator>

#include "sharing.hpp"

namespace vpmm::torch_plugin {
namespace {

using c10::cuda::current_device;

void delete_uncached(void* ptr) {
  trace_deallocation(ptr);
  C10_CUDA_CHECK_WARN(cudaFree(ptr));
}

std::vector<SegmentInfo> segments_of(Device& device, MempoolId_t id) {
  const Layout layout(device.pool.get());
  return device.segments.list(layout, device.blocks.list(layout),
                              id == kCommonPool ? std::nullopt : std::optional<MempoolId_t>(id));
}

}  // namespace

Allocator& instance() {
  static auto* const allocator = new Allocator;
  return *allocator;
}

void delete_memory(void* ptr) { Call::warn_of(instance().free(ptr)); }

std::span<const std::unique_ptr<Device>> Allocator::devices() const {
  return {devices_.data(), static_cast<std::size_t>(device_count_.load())};
}

Device& Allocator::device_of(DeviceIndex index) const {
  TORCH_CHECK(0 <= index && index < device_count_.load(), "Allocator not initialized for device ",
              int{index}, ": did you call init?");
  return *devices_[static_cast<std::size_t>(index)];
}

// Looks on the device of the last free first: most programs use one.
std::exception_ptr Allocator::free(void* ptr) {
  thread_local std::size_t last = 0;
  if (ptr == nullptr) return nullptr;
  const Call call(history_, RecordContext::ALL);
  const auto all = devices();
  for (std::size_t i = 0; i < all.size(); ++i) {
    const std::size_t index = (last + i) % all.size();
    const bool is_freed = all[index]->blocks.free(ptr, call);
    if (!is_freed) continue;
    last = index;
    return call.thrown();
  }
  TORCH_CHECK(false, "invalid device pointer: ", ptr);
}

// --- --- c10::Allocator

c10::DataPtr Allocator::allocate(std::size_t bytes) {
  const c10::Device where(c10::kCUDA, current_device());
  void* ptr = nullptr;
  if (is_enabled_.load(std::memory_order_relaxed)) {
    ptr = raw_alloc(bytes);
  } else if (bytes != 0) {
    C10_CUDA_CHECK(cudaMalloc(&ptr, bytes));
    trace_allocation(ptr);
  }
  return {ptr, ptr, raw_deleter(), where};
}

c10::DeleterFnPtr Allocator::raw_deleter() const {
  return is_enabled_.load(std::memory_order_relaxed) ? &delete_memory : &delete_uncached;
}

void Allocator::copy_data(void* to, const void* from, std::size_t bytes) const {
  C10_CUDA_CHECK(cudaMemcpy(to, from, bytes, cudaMemcpyDeviceToDevice));
}

// --- --- c10::DeviceAllocator

// Releases memory of one private pool, or of all: arenas that are no longer used, and idle memory.
// The destructors of private pools call this, so it does not throw for them.
void Allocator::emptyCache(MempoolId_t id) {
  const Call call(history_, RecordContext::ALL);
  for (const auto& device : devices()) {
    vpmm_pool* const pool = device->pool.if_open();
    if (pool == nullptr) continue;
    device->private_pools.end_all_over();
    if (id != kCommonPool) {
      device->private_pools.trim(id);
      continue;
    }
    // Memory that the GPU may still use is released, too, after a wait, as with cudaFree; but not
    // in a capture.
    if (figures_of(pool).pending_bytes != 0) vpmm_synchronize(pool);
    check(vpmm_trim(pool, 0, nullptr), "empty_cache");
    device->segments.note_mapped(pool);
  }
  if (id == kCommonPool)
    call.rethrow();
  else
    Call::warn_of(call.thrown());
}

// For a device that PyTorch does not use, no pool is opened: all figures are zero.
DeviceStats Allocator::getDeviceStats(DeviceIndex index) {
  Device& device = device_of(index);
  DeviceStats stats;
  stats.max_split_size = -1;
  vpmm_pool* const pool = device.pool.if_open();
  if (pool == nullptr) return stats;
  const vpmm_statistics figures = device.segments.count(pool);
  device.blocks.copy_to(stats);
  stats.num_sync_all_streams = static_cast<std::int64_t>(figures.host_waits);
  stats.num_device_alloc = static_cast<std::int64_t>(figures.chunks_created);
  stats.num_device_free = static_cast<std::int64_t>(figures.chunks_released);
  return stats;
}

void Allocator::resetPeakStats(DeviceIndex index) {
  Device& device = device_of(index);
  vpmm_pool* const pool = device.pool.if_open();
  if (pool == nullptr) return;
  device.segments.count(pool);
  device.blocks.reset_peaks();
}

// --- --- CUDAAllocator

void* Allocator::raw_alloc(std::size_t bytes) {
  if (bytes == 0) return nullptr;
  const DeviceIndex device = current_device();
  return device_of(device).blocks.allocate(bytes, Stream::current(device));
}

void* Allocator::raw_alloc_with_stream(std::size_t bytes, cudaStream_t stream) {
  if (bytes == 0) return nullptr;
  const DeviceIndex device = current_device();
  const Stream current = Stream::current(device);
  return device_of(device).blocks.allocate(
      bytes, stream == current.handle ? current : Stream{stream, true});
}

void Allocator::raw_delete(void* ptr) {
  const std::exception_ptr thrown = free(ptr);
  if (thrown != nullptr) std::rethrow_exception(thrown);
}

void Allocator::init(int device_count) {
  TORCH_CHECK(static_cast<std::size_t>(device_count) <= kMostDevices, "VPMM: more than ",
              kMostDevices, " devices");
  const MutexLock lock(initializing_);
  for (int i = device_count_; i < device_count; ++i) {
    devices_.at(static_cast<std::size_t>(i)) =
        std::make_unique<Device>(static_cast<DeviceIndex>(i), history_);
    device_count_ = i + 1;
  }
}

std::vector<cca::StreamSegmentSize> Allocator::getExpandableSegmentSizes(DeviceIndex index) {
  Device& device = device_of(index);
  if (device.pool.if_open() == nullptr) return {};
  std::vector<cca::StreamSegmentSize> sizes;
  for (const SegmentInfo& segment : segments_of(device, kCommonPool))
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
  if (device.pool.if_open() == nullptr) return;
  *largest = std::max<std::size_t>(*largest, device.pool.figures().largest_free_bytes);
}

void* Allocator::getBaseAllocation(void* ptr, std::size_t* bytes) {
  for (const auto& device : devices()) {
    vpmm_pool* const pool = device->pool.if_open();
    if (pool == nullptr) continue;
    vpmm_allocation_info info{};
    info.size = sizeof info;
    if (vpmm_query(pool, ptr, &info) != VPMM_OK) continue;
    if (bytes != nullptr) *bytes = info.usable;
    return info.begin;
  }
  TORCH_CHECK(false, "invalid device pointer: ", ptr);
}

void Allocator::recordStream(const c10::DataPtr& ptr, c10::cuda::CUDAStream stream) {
  // Memory from elsewhere, such as a tensor that another process sent, has another deleter.
  if (ptr.get() == nullptr || ptr.get_deleter() != &delete_memory) return;
  for (const auto& device : devices()) {
    const std::optional<Block> block = device->blocks.find(ptr.get());
    if (!block) continue;
    // In a capture the pool would take it for any other stream's use.
    if (block->stream.handle == stream.stream()) return;
    check(vpmm_record_use(device->pool.get(), ptr.get(), stream.stream()), "record_stream");
    return;
  }
  TORCH_CHECK(false, "No allocated block can be found for ", ptr.get());
}

cca::SnapshotInfo Allocator::snapshot(MempoolId_t id, bool include_traces) {
  cca::SnapshotInfo snapshot{};
  snapshot.device_traces.resize(devices().size());
  for (const auto& device : devices()) {
    if (device->pool.if_open() == nullptr) continue;
    std::vector<SegmentInfo> segments = segments_of(*device, id);
    std::size_t active = 0;
    for (const SegmentInfo& segment : segments) active += segment.active_size;
    history_.record({Action::SNAPSHOT, device->pool.device(), nullptr, active});
    std::move(segments.begin(), segments.end(), std::back_inserter(snapshot.segments));
  }
  if (include_traces) history_.copy_to(snapshot);
  auto& config = snapshot.config_metadata;  // all that is not named is 0
  config.max_split_size = SIZE_MAX;
  config.pinned_num_register_threads = 1;
  config.expandable_segments = true;
#if VPMM_TORCH_MINOR >= 13
  config.max_round_threshold = config.max_cached_size = SIZE_MAX;
#endif
  config.last_allocator_settings = "backend:vpmm";
  return snapshot;
}

bool Allocator::checkPoolLiveAllocations(DeviceIndex index, MempoolId_t id,
                                         const std::unordered_set<void*>& expected) {
  Device& device = device_of(index);
  const PrivatePoolPtr pool = device.private_pools.get(id, "checkPoolLiveAllocations");
  const std::vector<Placed> live = device.blocks.in(*pool);
  return live.size() == expected.size() &&
         std::all_of(live.begin(), live.end(),
                     [&](const Placed& block) { return expected.contains(block.ptr); });
}

// One export for the life of an allocation, so that a receiver knows by the bytes that it has the
// memory open already.
cca::ShareableHandle Allocator::shareIpcHandle(void* ptr) {
  std::size_t bytes = 0;
  void* const begin = getBaseAllocation(ptr, &bytes);
  const auto offset = static_cast<char*>(ptr) - static_cast<char*>(begin);
  for (const auto& device : devices()) {
    const std::optional<std::string> message = device->blocks.share(begin, bytes);
    if (message) return {offset, *message};
  }
  TORCH_CHECK(false, "invalid device pointer: ", ptr);
}

std::shared_ptr<void> Allocator::getIpcDevPtr(std::string handle) {
  return open_shared(handle, current_device());
}

void Allocator::recordAnnotation(const std::vector<std::pair<std::string, std::string>>& pairs) {
  if (history_.is_recording()) history_.annotate(current_device(), pairs);
}

// The pool's memory, and memory that programs have of cudaMalloc.
void Allocator::enablePeerAccess(DeviceIndex device, DeviceIndex owner) {
  check(vpmm_set_peer_access(device_of(owner).pool.get(), device), "peer access");
  const c10::cuda::CUDAGuard guard(device);
  const cudaError_t enabled = cudaDeviceEnablePeerAccess(owner, 0);
  if (enabled == cudaErrorPeerAccessAlreadyEnabled)
    (void)cudaGetLastError();
  else
    C10_CUDA_CHECK(enabled);
}

cudaError_t Allocator::memcpyAsync(void* to, int to_device, const void* from, int from_device,
                                   std::size_t bytes, cudaStream_t stream, bool p2p_enabled) {
  if (p2p_enabled || to_device == from_device)
    return cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream);
  return cudaMemcpyPeerAsync(to, to_device, from, from_device, bytes, stream);
}

// As the driver tells it, but free memory is within the pool's limit. As natively, idle memory of
// the pool is not free: it is reserved. The total is the device's, because a memory fraction is a
// share of it.
std::pair<std::size_t, std::size_t> Allocator::getMemoryInfo(DeviceIndex index) {
  Pool& pool = device_of(index).pool;
  const auto [free, total] = cca::CUDAAllocator::getMemoryInfo(index);
  const std::uint64_t capacity = pool.capacity();
  const std::uint64_t left = capacity - std::min(capacity, pool.figures().mapped_bytes);
  return {std::min<std::uint64_t>(free, left), total};
}

#if VPMM_TORCH_MINOR >= 12
std::shared_ptr<GatheredContext> Allocator::getContextForPointer(const void* ptr) {
  for (const auto& device : devices()) {
    const std::optional<Block> block = device->blocks.find(ptr);
    if (block) return block->stack;
  }
  return nullptr;
}
#endif

#if VPMM_TORCH_MINOR >= 13
// Allocates in the private pool that the current stream is routed to, at this address if it is
// free.
c10::DataPtr Allocator::allocateWithAddress(std::size_t bytes, void* at) {
  const DeviceIndex index = current_device();
  Device& device = device_of(index);
  const Stream stream = Stream::current(index);
  const Call call(history_, RecordContext::STATE);
  PrivatePoolPtr pool = device.private_pools.route(stream);
  const ArenaPtr arena = pool == nullptr ? nullptr : device.private_pools.arena_of(*pool);
  TORCH_CHECK(arena != nullptr,
              "an allocation at an address needs a memory pool: use torch.cuda.use_mem_pool");
  device.blocks.allocate_at(at, bytes, stream, std::move(pool), arena.get(), call,
                            "allocateWithAddress");
  return {at, at, &delete_memory, c10::Device(c10::kCUDA, index)};
}
#endif

#if VPMM_TORCH_MINOR >= 14
void Allocator::annotateMemory(const void* ptr, const std::string& text) {
  for (const auto& device : devices()) {
    const std::optional<Block> block = device->blocks.find(ptr);
    if (!block) continue;
    history_.record({Action::ANNOTATE, device->pool.device(), ptr, block->requested,
                     block->pool_id(), nullptr, block->stream.handle},
                    Audience::ALL, text);
    return;
  }
}
#endif

}  // namespace vpmm::torch_plugin
