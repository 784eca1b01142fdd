// SPDX-License-Identifier: Apache-2.0
// torch_allocator: requests memory, frees it, and counts as PyTorch counts.
#include "blocks.hpp"

#include <c10/core/impl/GPUTrace.h>
#include <c10/core/impl/PyInterpreter.h>
#include <c10/cuda/CUDAGuard.h>

#include <algorithm>
#include <exception>
#include <utility>

#include "sharing.hpp"

namespace vpmm::torch_plugin {

void trace_allocation(const void* ptr) {
  const c10::impl::PyInterpreter* const trace = c10::impl::GPUTrace::get_trace();
  if (C10_UNLIKELY(trace != nullptr))
    (*trace)->trace_gpu_memory_allocation(c10::kCUDA, address(ptr));
}

void trace_deallocation(const void* ptr) {
  const c10::impl::PyInterpreter* const trace = c10::impl::GPUTrace::get_trace();
  if (C10_UNLIKELY(trace != nullptr))
    (*trace)->trace_gpu_memory_deallocation(c10::kCUDA, address(ptr));
}

// --- --- counts

void Blocks::Counts::change(const Block& block, StatChange change) {
  for (const std::size_t type : {kAll, block.is_small ? kSmall : kLarge}) {
    (allocations.at(type).*change)(1);
    (bytes.at(type).*change)(block.bytes);
    (requested.at(type).*change)(block.requested);
  }
}

void Blocks::copy_to(DeviceStats& stats) {
  const MutexLock lock(mutex_);
  stats.allocation = stats.active = counts_.allocations;
  stats.allocated_bytes = stats.active_bytes = counts_.bytes;
  stats.requested_bytes = counts_.requested;
  stats.num_alloc_retries = counts_.retries;
  stats.num_ooms = counts_.failures;
#if VPMM_TORCH_MINOR >= 12
  stats.num_oom_rejections = counts_.rejections;
#endif
  segments_.copy_to(stats);
}

void Blocks::reset_peaks() {
  const MutexLock lock(mutex_);
  reset(&Stat::reset_peak);
}

void Blocks::reset_totals() {
  const MutexLock lock(mutex_);
  counts_.retries = counts_.failures = counts_.rejections = 0;
  reset(&Stat::reset_accumulated);
}

void Blocks::reset(StatReset reset) {
  for (StatArray* const array : {&counts_.allocations, &counts_.bytes, &counts_.requested})
    for (auto& stat : *array) (stat.*reset)();
  segments_.reset(reset);
}

void Blocks::report(void* ptr, std::int64_t bytes) {
  if (C10_LIKELY(!c10::memoryProfilingEnabled())) return;
  std::size_t allocated = 0;
  std::size_t reserved = 0;
  {
    const MutexLock lock(mutex_);
    allocated = static_cast<std::size_t>(counts_.bytes.at(kAll).current);
    reserved = segments_.reserved();
  }
  c10::reportMemoryUsageToProfiler(ptr, bytes, allocated, reserved,
                                   c10::Device(c10::kCUDA, pool_.device()));
}

// --- --- allocating

void* Blocks::allocate(std::size_t bytes, Stream stream) {
  constexpr std::size_t kExabyte = std::size_t{1} << 60;
  TORCH_CHECK_WITH(OutOfMemoryError, bytes < kExabyte,
                   "CUDA out of memory. Tried to allocate more than 1EB memory.");
  const Call call(history_, RecordContext::STATE);
  PrivatePoolPtr pool;
  if (private_pools_.has_routes()) pool = private_pools_.route(stream);
  void* ptr = nullptr;
  const vpmm_status status = request(pool.get(), bytes, stream.handle, &ptr);
  if (C10_UNLIKELY(status != VPMM_OK)) {
    std::string reason = vpmm_last_error();
    const bool rejects = status == VPMM_ERROR_OUT_OF_MEMORY && is_rejected(bytes);
    if (!rejects) ptr = request_again(pool, bytes, stream.handle, status, reason);
    if (ptr == nullptr) {
      call.rethrow();
      if (rejects) reject(bytes);
      fail(bytes, call.stack(), reason);
    }
  }
  segments_.note_changes(pool_.get());
  enter(ptr, bytes, stream, std::move(pool), call);
  report(ptr, static_cast<std::int64_t>(round_up(bytes, kGrain)));
  trace_allocation(ptr);
  return ptr;
}

void Blocks::allocate_at(void* at, std::size_t bytes, Stream stream, PrivatePoolPtr pool,
                         vpmm_arena* arena, const Call& call, const char* purpose) {
  check(vpmm_arena_allocate_at(arena, at, round_up(bytes, kGrain), stream.handle), purpose);
  enter(at, bytes, stream, std::move(pool), call);
}

// The pool has block sizes at every multiple of 256 bytes up to 4 KiB, above only at multiples of
// 512.
vpmm_status Blocks::request(PrivatePool* pool, std::size_t bytes, cudaStream_t stream, void** ptr) {
  if (C10_UNLIKELY(pool != nullptr)) return private_pools_.allocate(*pool, bytes, stream, ptr);
  if (bytes < 4096) bytes = round_up(bytes, kGrain);
  vpmm_pool* const of_device = pool_.get();
  if (C10_LIKELY(pool_.library() == 0)) return vpmm_allocate(of_device, bytes, stream, ptr);
  const vpmm_request request{sizeof request, bytes, 0, stream, 0, 0, pool_.library()};
  return vpmm_allocate_with(of_device, &request, ptr);
}

// The device's pool has already done everything that it can do by itself. This releases memory that
// others hold: tensors received from other processes, memory of other allocators in deleted
// MemPools, and MemPools that may serve every request. Null: it did not help.
void* Blocks::request_again(PrivatePoolPtr& pool, std::size_t bytes, cudaStream_t stream,
                            vpmm_status status, std::string& reason) {
  TORCH_CHECK(status == VPMM_ERROR_OUT_OF_MEMORY, "VPMM: ",
              pool == nullptr ? "" : "in a memory pool (MemPool or CUDA graph): ", reason);
  {
    const MutexLock lock(mutex_);
    ++counts_.retries;
  }
  bool has_freed = false;
  for (const std::string& key : c10::FreeCudaMemoryCallbacksRegistry()->Keys())
    has_freed |= c10::FreeCudaMemoryCallbacksRegistry()->Create(key)->Execute();
  has_freed |= private_pools_.end_all_over();
  void* ptr = nullptr;
  if (has_freed) {
    status = request(pool.get(), bytes, stream, &ptr);
    if (status == VPMM_OK) return ptr;
    reason = vpmm_last_error();
    TORCH_CHECK(status == VPMM_ERROR_OUT_OF_MEMORY, "VPMM: ", reason);
  }
  if (pool != nullptr) return nullptr;  // a graph's memory must be in its own pool
  pool = private_pools_.allocate_in_any(bytes, stream, &ptr);
  return ptr;
}

#if VPMM_TORCH_MINOR >= 12
// Tells if PyTorch's option throw_on_cudamalloc_oom applies: then a request that exceeds the memory
// fraction fails without a retry. The pool has failed it, so its idle memory does not help.
bool Blocks::is_rejected(std::size_t bytes) {
  return cca::CUDAAllocatorConfig::throw_on_cudamalloc_oom() && pool_.fraction() < 1 &&
         pool_.figures().live_bytes + bytes > pool_.capacity();
}

void Blocks::reject(std::size_t bytes) {
  const c10::cuda::CUDAGuard guard(pool_.device());
  std::size_t free = 0;
  std::size_t total = 0;
  C10_CUDA_CHECK(cudaMemGetInfo(&free, &total));
  std::size_t allocated = 0;
  {
    const MutexLock lock(mutex_);
    ++counts_.rejections;
    allocated = static_cast<std::size_t>(counts_.bytes.at(kAll).current);
  }
  history_.tell_of_rejection(pool_.device(), bytes, allocated, total);
}
#else
bool Blocks::is_rejected(std::size_t) { return false; }
void Blocks::reject(std::size_t) {}
#endif

void Blocks::fail(std::size_t bytes, const Context& stack, const std::string& reason) {
  using c10::CachingAllocator::format_size;
  const DeviceIndex device = pool_.device();
  const c10::cuda::CUDAGuard guard(device);
  std::size_t free = 0;
  std::size_t total = 0;
  C10_CUDA_CHECK(cudaMemGetInfo(&free, &total));
  const std::size_t allowed = std::min<std::size_t>(pool_.capacity(), total);
  std::size_t allocated = 0;
  std::size_t reserved = 0;
  std::size_t private_bytes = 0;
  std::size_t foreign_bytes = 0;
  {
    const Layout layout(pool_.get());
    const MutexLock lock(mutex_);
    ++counts_.failures;
    for (const Live& live : of_others(layout)) foreign_bytes += live.bytes;
    for (const auto& [ptr, block] : blocks_)
      if (block.pool != nullptr) private_bytes += block.bytes;
    allocated = static_cast<std::size_t>(counts_.bytes.at(kAll).current);
    reserved = std::max(segments_.reserved(), allocated + foreign_bytes);
  }
  history_.record(
      {Action::OOM, device, reinterpret_cast<const void*>(free), bytes, kCommonPool, stack});
  history_.tell_of_shortage(device, bytes, allowed, free);
  c10::reportOutOfMemoryToProfiler(static_cast<std::int64_t>(bytes), allocated, reserved,
                                   c10::Device(c10::kCUDA, device));
  const std::string limit = allowed < total ? format_size(allowed) + " allowed; " : "";
  const std::string graphs = private_bytes == 0
                                 ? ""
                                 : ", with " + format_size(private_bytes) +
                                       " allocated in private pools (e.g., CUDA Graphs)";
  const std::string others = foreign_bytes == 0 ? ""
                                                : ", " + format_size(foreign_bytes) +
                                                      " by other libraries in the same pool";
  TORCH_CHECK_WITH(OutOfMemoryError, false, "CUDA out of memory. Tried to allocate ",
                   format_size(bytes), ". GPU ", int{device}, " has a total capacity of ",
                   format_size(total), " of which ", format_size(free), " is free. ", limit,
                   "Of the allocated memory ", format_size(allocated), " is allocated by PyTorch",
                   graphs, others, ", and ", format_size(reserved - allocated - foreign_bytes),
                   " is reserved by PyTorch but unallocated. VPMM: ", reason);
}

// If a tracker throws at an allocation or its segment, the memory goes back to the pool and the
// program gets the exception.
void Blocks::enter(void* ptr, std::size_t bytes, Stream stream, PrivatePoolPtr pool,
                   const Call& call) {
  const bool may_be_tagged = pool_.library() != 0 || vpmm_tag_entries() != 0;
  const bool is_in_stretch = pool != nullptr || (may_be_tagged && segments_.is_in_stretch(ptr));
  const bool is_small = !is_in_stretch && bytes <= pool_.largest_small();
  Block block{bytes,         round_up(bytes, kGrain), stream,      is_small,
              is_in_stretch, std::move(pool),         call.stack()};
  if (C10_UNLIKELY(history_.is_listening())) tell_of_allocation(ptr, block, call);
  const MutexLock lock(mutex_);
  counts_.change(block, &Stat::increase);
  if (block.is_in_stretch) segments_.enter(ptr, block.bytes);
  blocks_.insert_or_assign(ptr, std::move(block));
}

void Blocks::tell_of_allocation(void* ptr, const Block& block, const Call& call) {
  try {
    call.rethrow();
    history_.record({Action::ALLOC, pool_.device(), ptr, block.requested, block.pool_id(),
                     block.stack, block.stream.handle});
  } catch (...) {
    give_back(ptr, block);
    throw;
  }
}

// --- --- freeing

bool Blocks::free(void* ptr, const Call& call) {
  std::optional<Taken> taken = take(ptr);
  if (!taken) return false;
  const Block& block = taken->block;
  if (C10_UNLIKELY(history_.is_listening())) tell_of_free(ptr, block, call);
  trace_deallocation(ptr);
  if (taken->exported) vpmm_ipc_export_end(&*taken->exported);
  give_back(ptr, block);
  report(ptr, -static_cast<std::int64_t>(block.bytes));
  return true;
}

std::optional<Blocks::Taken> Blocks::take(void* ptr) {
  const MutexLock lock(mutex_);
  const auto found = blocks_.find(ptr);
  if (found == blocks_.end()) return std::nullopt;
  Taken taken{std::move(found->second), std::nullopt};
  blocks_.erase(found);
  counts_.change(taken.block, &Stat::decrease);
  if (taken.block.is_in_stretch) segments_.leave(ptr, taken.block.bytes);
  if (C10_UNLIKELY(!exports_.empty())) {
    const auto exported = exports_.extract(ptr);
    if (!exported.empty()) taken.exported = exported.mapped().handle;
  }
  return taken;
}

// A tracker may throw; the memory is freed anyway.
void Blocks::tell_of_free(const void* ptr, const Block& block, const Call& call) {
  try {
    for (const Action action : {Action::FREE_REQUESTED, Action::FREE_COMPLETED})
      history_.record({action, pool_.device(), ptr, block.requested, block.pool_id(), call.stack(),
                       block.stream.handle});
  } catch (...) {
    Call::note_exception();
  }
}

// Deleters must not throw: an error of the pool is reported once, and at worst the memory is lost.
// A foreign stream may be destroyed before the memory is freed. Those of a capture exist.
void Blocks::give_back(void* ptr, const Block& block) {
  vpmm_pool* const pool = pool_.if_open();
  const bool names_stream =
      !block.stream.is_foreign ||
      (block.pool != nullptr && private_pools_.is_captured(block.stream.handle));
  vpmm_status status = names_stream ? vpmm_deallocate(pool, ptr, block.stream.handle)
                                    : vpmm_deallocate_any_stream(pool, ptr);
  if (status == VPMM_ERROR_INVALID_ARGUMENT)
    status = vpmm_deallocate_any_stream(pool, ptr);  // no such stream now
  if (C10_LIKELY(status == VPMM_OK)) return;
  if (status == VPMM_ERROR_HOST_OUT_OF_MEMORY)
    vpmm_deallocate_deferred(pool, ptr);
  else
    TORCH_WARN_ONCE("VPMM: a free failed: ", vpmm_last_error());
}

// --- --- answers

std::optional<Block> Blocks::find(const void* ptr) {
  const MutexLock lock(mutex_);
  const auto found = blocks_.find(ptr);
  if (found == blocks_.end()) return std::nullopt;
  return found->second;
}

std::optional<std::string> Blocks::share(void* begin, std::size_t bytes) {
  const MutexLock sharing(sharing_);
  {
    const MutexLock lock(mutex_);
    const auto known = exports_.find(begin);
    if (known != exports_.end()) return known->second.message;
    if (blocks_.find(begin) == blocks_.end()) return std::nullopt;
  }
  vpmm_ipc_handle handle{};
  check(vpmm_ipc_export(begin, bytes, &handle), "sharing a tensor");
  const MutexLock lock(mutex_);
  return exports_.emplace(begin, Export{handle, message_of(handle)}).first->second.message;
}

std::vector<Placed> Blocks::in(const PrivatePool& pool) {
  std::vector<Placed> all;
  const MutexLock lock(mutex_);
  for (const auto& [ptr, block] : blocks_)
    if (block.pool.get() == &pool)
      all.push_back({const_cast<void*>(ptr), block.requested, block.stream});
  return all;
}

// An allocation that PyTorch does not know belongs to another library, or another thread of PyTorch
// is making or freeing it.
std::vector<Live> Blocks::of_others(const Layout& layout) {
  std::vector<Live> all;
  for (std::size_t i = 0; i < layout->block_count; ++i) {
    const vpmm_block& block = layout->blocks[i];
    if (block.state == VPMM_REGION_ALLOCATED && blocks_.find(block.begin) == blocks_.end())
      all.push_back({address(block.begin), block.bytes, block.requested});
  }
  return all;
}

std::vector<Live> Blocks::list(const Layout& layout) {
  const MutexLock lock(mutex_);
  std::vector<Live> all = of_others(layout);
  for (const auto& [ptr, block] : blocks_)
    all.push_back({address(ptr), block.bytes, block.requested, block.stream.handle, block.stack});
  std::sort(all.begin(), all.end(), [](const Live& a, const Live& b) { return a.begin < b.begin; });
  return all;
}

}  // namespace vpmm::torch_plugin
