// torch_allocator: opening a device's pool, allocating and freeing. Part of allocator.cpp.
#pragma once

#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>

#include <algorithm>
#include <cstdint>

#include "allocator.hpp"

namespace vpmm::torch_plugin {

// --- devices and their pools

void Allocator::init(int device_count) {
  TORCH_CHECK(static_cast<std::size_t>(device_count) <= kMostDevices, "VPMM: more than ",
              kMostDevices, " devices");
  for (int i = 0; i < device_count; ++i)
    devices_.at(static_cast<std::size_t>(i)).index = static_cast<DeviceIndex>(i);
  int before = device_count_.load();
  while (before < device_count && !device_count_.compare_exchange_weak(before, device_count)) {
  }
}

Device& Allocator::device_of(DeviceIndex index) {
  TORCH_CHECK(0 <= index && index < device_count_.load(), "Allocator not initialized for device ",
              int{index}, ": did you call init?");
  return devices_[static_cast<std::size_t>(index)];
}

// Opened by the first call that needs it, from the settings in the environment.
vpmm_pool* Allocator::pool_of(Device& device) {
  if (vpmm_pool* const open = device.pool.load(std::memory_order_acquire)) return open;
  const std::lock_guard<std::mutex> lock(opening_);
  if (vpmm_pool* const open = device.pool.load(std::memory_order_acquire)) return open;
  vpmm_pool* pool = nullptr;
  check(vpmm_default_pool(device.index, &pool), "the pool could not be opened");
  device.largest_small = Layout(pool)->largest_small;
  constexpr std::uint32_t kKinds = (1U << VPMM_EVENT_MAP) | (1U << VPMM_EVENT_UNMAP) |
                                   (1U << VPMM_EVENT_ARENA_GROW) | (1U << VPMM_EVENT_ARENA_SHRINK);
  std::uint64_t id = 0;
  check(vpmm_add_event_callback(pool, kKinds, &Allocator::on_event, &device, &id), "events");
  const vpmm_status status = begin_counting(device, pool);
  if (status != VPMM_OK) vpmm_remove_event_callback(pool, id);  // the next attempt adds it again
  check(status, "statistics");
  device.pool.store(pool, std::memory_order_release);
  return pool;
}

// Other libraries may map memory of the pool meanwhile, which its events report, too: then the
// figures are taken anew.
vpmm_status Allocator::begin_counting(Device& device, vpmm_pool* pool) {
  vpmm_statistics figures{};
  figures.size = sizeof figures;
  for (;;) {
    const std::uint64_t changes = device.mapping_changes.load();
    if (const vpmm_status status = vpmm_get_statistics(pool, &figures); status != VPMM_OK)
      return status;
    const std::lock_guard<std::mutex> lock(device.mutex);
    if (device.mapping_changes.load() != changes) continue;
    set(device.reserved.at(kAll), static_cast<std::int64_t>(figures.mapped_bytes));
    return VPMM_OK;
  }
}

// Under the pool's lock.
void Allocator::on_event(void* argument, const vpmm_event* event) {
  Device& device = *static_cast<Device*>(argument);
  if (event->arena != 0) return tell_of_arena(device, *event);
  const bool is_map = event->kind == VPMM_EVENT_MAP;
  {
    const std::lock_guard<std::mutex> lock(device.mutex);
    if (is_map)
      device.reserved.at(kAll).increase(event->bytes);
    else
      device.reserved.at(kAll).decrease(event->bytes);
    device.mapping_changes.fetch_add(1, std::memory_order_relaxed);
  }
  instance().tell_of_segment(device, is_map ? Action::SEGMENT_MAP : Action::SEGMENT_UNMAP, *event,
                             kCommonPool);
}

// A stretch of a private pool has the stack of the call that added it, and keeps that stack when it
// is released.
void Allocator::note_growth(Device& device, const vpmm_event& event, Context stack) {
  const auto begin = reinterpret_cast<std::size_t>(event.ptr);
  const std::lock_guard<std::mutex> lock(device.mutex);
  if (event.kind == VPMM_EVENT_UNMAP)
    device.growths.remove(begin, event.bytes);
  else if (event.kind != VPMM_EVENT_ARENA_SHRINK)
    device.growths.add(begin, event.bytes, std::move(stack));
}

// Exceptions of trackers must not pass through the pool. The ring has no entries for stretches of
// private pools: it already has the memory that they lie in.
void Allocator::tell_of_segment(Device& device, Action action, const vpmm_event& event,
                                MempoolId_t id) {
  const Context stack = Call::current_stack();
  try {
    note_growth(device, event, stack);
    if (event.arena == 0)
      history_.record(action, device.index, event.ptr, event.bytes, nullptr, id, stack);
    else
      history_.tell(action, device.index, event.ptr, event.bytes, id, stack);
  } catch (...) {
    Call::note_exception();
  }
}

// Libraries that register memory are told of every stretch, and which pool it belongs to.
void Allocator::tell_of_arena(Device& device, const vpmm_event& event) {
  device.mapping_changes.fetch_add(1, std::memory_order_relaxed);
  const bool has_grown = event.kind == VPMM_EVENT_ARENA_GROW;
  MempoolId_t id = kCommonPool;
  {
    const std::lock_guard<std::mutex> lock(device.mutex);
    const auto name = device.arena_names.find(event.arena);
    if (name != device.arena_names.end()) id = name->second;
    if (has_grown)
      device.stretches.add(event.ptr, event.bytes);
    else
      device.reserved.at(kAll).decrease(device.stretches.remove(event.ptr));
  }
  const Action action = has_grown ? Action::SEGMENT_ALLOC : Action::SEGMENT_FREE;
  instance().tell_of_segment(device, action, event, id);
}

// As the driver tells it, but free memory is within the pool's limit. As natively, idle memory of
// the pool is not free: it is reserved. The total is the device's, because a memory fraction is a
// share of it.
std::pair<std::size_t, std::size_t> Allocator::getMemoryInfo(DeviceIndex index) {
  Device& device = device_of(index);
  auto [free, total] = cca::CUDAAllocator::getMemoryInfo(index);
  std::uint64_t capacity = 0;
  check(vpmm_get_capacity(pool_of(device), &capacity), "the limit");
  vpmm_statistics figures{};
  figures.size = sizeof figures;
  check(vpmm_get_statistics(pool_of(device), &figures), "statistics");
  const std::uint64_t left = capacity - std::min(capacity, figures.mapped_bytes);
  return {std::min<std::uint64_t>(free, left), total};
}

double Allocator::getMemoryFraction(DeviceIndex index) {
  Device& device = device_of(index);
  const std::lock_guard<std::mutex> lock(device.mutex);
  return device.fraction;
}

// A fraction of the device's memory, but at most the pool's own limit (VPMM_CAPACITY). 1: as if it
// was never set.
void Allocator::setMemoryFraction(double fraction, DeviceIndex index) {
  TORCH_CHECK(0 <= fraction && fraction <= 1, "invalid fraction: ", fraction,
              ". Please set within [0, 1].");
  Device& device = device_of(index);
  if (fraction == 1) {
    std::optional<std::uint64_t> before;
    {
      const std::lock_guard<std::mutex> lock(device.mutex);
      device.fraction = 1;
      std::swap(before, device.capacity);
    }
    if (before) check(vpmm_set_capacity(pool_of(device), *before), "the memory fraction");
    return;
  }
  const c10::cuda::CUDAGuard guard(index);
  std::size_t free = 0;
  std::size_t total = 0;
  C10_CUDA_CHECK(cudaMemGetInfo(&free, &total));
  std::uint64_t capacity = 0;
  check(vpmm_get_capacity(pool_of(device), &capacity), "the memory fraction");
  auto limit =
      std::max<std::uint64_t>(static_cast<std::uint64_t>(fraction * static_cast<double>(total)), 1);
  {
    const std::lock_guard<std::mutex> lock(device.mutex);
    device.fraction = fraction;
    if (!device.capacity) device.capacity = capacity;
    limit = std::min(limit, *device.capacity);
  }
  check(vpmm_set_capacity(pool_of(device), limit), "the memory fraction");
}

// --- allocating

c10::DataPtr Allocator::allocate(std::size_t bytes) {
  DeviceIndex device = 0;
  C10_CUDA_CHECK(c10::cuda::GetDevice(&device));
  const c10::Device where(c10::DeviceType::CUDA, device);
  if (bytes == 0) return {nullptr, nullptr, raw_deleter(), where};
  void* ptr = nullptr;
  if (is_enabled_.load(std::memory_order_relaxed)) {
    ptr = allocate_on(device, bytes, Stream::current(device));
  } else {
    C10_CUDA_CHECK(cudaMalloc(&ptr, bytes));
    trace_allocation(ptr);
  }
  return {ptr, ptr, raw_deleter(), where};
}

c10::DeleterFnPtr Allocator::raw_deleter() const {
  return is_enabled_.load(std::memory_order_relaxed) ? &delete_memory : &delete_uncached;
}

void* Allocator::raw_alloc(std::size_t bytes) {
  if (bytes == 0) return nullptr;
  DeviceIndex device = 0;
  C10_CUDA_CHECK(c10::cuda::GetDevice(&device));
  return allocate_on(device, bytes, Stream::current(device));
}

void* Allocator::raw_alloc_with_stream(std::size_t bytes, cudaStream_t stream) {
  if (bytes == 0) return nullptr;
  DeviceIndex device = 0;
  C10_CUDA_CHECK(c10::cuda::GetDevice(&device));
  const Stream current = Stream::current(device);
  return allocate_on(device, bytes, stream == current.handle ? current : Stream{stream, true});
}

void* Allocator::allocate_on(DeviceIndex index, std::size_t bytes, Stream stream) {
  TORCH_CHECK_WITH(OutOfMemoryError, bytes < kExabyte,
                   "CUDA out of memory. Tried to allocate more than 1EB memory.");
  Device& device = device_of(index);
  const Call call(history_, RecordContext::STATE);
  ArenaPtr arena;
  if (device.has_routes.load(std::memory_order_acquire)) arena = route(device, stream.handle);
  void* ptr = nullptr;
  const vpmm_status status = request(device, arena.get(), bytes, stream.handle, &ptr);
  if (C10_UNLIKELY(status != VPMM_OK)) {
    std::string reason = vpmm_last_error();
    ptr = allocate_short(device, arena, bytes, stream.handle, status, reason);
    if (ptr == nullptr) {
      call.rethrow();
      fail(device, bytes, call.stack(), reason);
    }
  }
  if (device.mapping_changes.load(std::memory_order_relaxed) !=
      device.noted_changes.load(std::memory_order_relaxed))
    note_mapped(device);
  note_allocated(device, ptr, bytes, stream, std::move(arena), call);
  report(device, ptr, static_cast<std::int64_t>(round_up(bytes, kGrain)));
  trace_allocation(ptr);
  return ptr;
}

vpmm_status Allocator::request(Device& device, Arena* arena, std::size_t bytes, cudaStream_t stream,
                               void** ptr) {
  if (C10_LIKELY(arena == nullptr))
    return vpmm_allocate(pool_of(device), bytes_to_ask_for(bytes), stream, ptr);
  return request_in(device, *arena, bytes, stream, ptr);
}

vpmm_status Allocator::request_in(Device& device, Arena& arena, std::size_t bytes,
                                  cudaStream_t stream, void** ptr) {
  std::shared_ptr<vpmm_arena> handle = handle_of(device, arena);
  if (handle == nullptr)
    if (const vpmm_status made = make_arena(device, arena, handle); made != VPMM_OK) return made;
  const std::size_t rounded = round_up(bytes, kGrain);
  vpmm_status status = vpmm_arena_allocate(handle.get(), rounded, kGrain, stream, ptr);
  if (status != VPMM_ERROR_OUT_OF_MEMORY || arena.source == nullptr) return status;
  status = add_memory(device, arena, handle.get(), rounded);
  return status == VPMM_OK ? vpmm_arena_allocate(handle.get(), rounded, kGrain, stream, ptr)
                           : status;
}

// Called by the first allocation, because by then all options are known.
vpmm_status Allocator::make_arena(Device& device, Arena& arena,
                                  std::shared_ptr<vpmm_arena>& handle) {
  vpmm_pool* const pool = pool_of(device);
  const std::lock_guard<std::mutex> making(arena.making);
  if (handle = handle_of(device, arena); handle != nullptr) return VPMM_OK;
  std::uint32_t flags = arena.source != nullptr ? VPMM_ARENA_EXTERNAL : VPMM_ARENA_ONE_CHUNK;
  if (!arena.splits) flags |= VPMM_ARENA_NO_SPLIT;
  vpmm_arena* made = nullptr;
  if (const vpmm_status status = vpmm_arena_create(pool, flags, 0, &made); status != VPMM_OK)
    return status;
  handle = std::shared_ptr<vpmm_arena>(made, [](vpmm_arena* over) { vpmm_arena_release(over); });
  std::uint64_t number = 0;
  if (const vpmm_status status = vpmm_arena_id(made, &number); status != VPMM_OK) return status;
  const std::lock_guard<std::mutex> lock(device.mutex);
  device.arena_names[number] = arena.id;
  arena.number = number;
  arena.handle = handle;
  return VPMM_OK;
}

// Takes memory from the allocator that the MemPool was made with, in the sizes that PyTorch's own
// allocator would request. It is foreign code and may take locks of the program, so no lock of this
// plugin is held.
vpmm_status Allocator::add_memory(Device& device, Arena& arena, vpmm_arena* handle,
                                  std::size_t bytes) {
  const std::size_t piece = arena.splits && bytes <= kPiece / 2 ? kPiece : round_up(bytes, kPiece);
  void* memory = nullptr;
  try {
    memory = arena.source->raw_alloc(piece);
  } catch (const c10::OutOfMemoryError&) {
    return VPMM_ERROR_OUT_OF_MEMORY;
  }
  if (memory == nullptr) {
    (void)cudaGetLastError();  // clears the error that cudaMalloc left behind
    return VPMM_ERROR_OUT_OF_MEMORY;
  }
  {
    const std::lock_guard<std::mutex> lock(device.mutex);
    arena.pieces.emplace(memory, piece);
  }
  const vpmm_status status = vpmm_arena_add_memory(handle, memory, piece);
  if (status == VPMM_OK) {
    note_foreign(device, memory, piece);
    history_.note(Action::SEGMENT_ALLOC, device.index, memory, piece, arena.id,
                  Call::current_stack());
    return status;
  }
  {
    const std::lock_guard<std::mutex> lock(device.mutex);
    arena.pieces.erase(memory);
  }
  arena.source->raw_delete(memory);
  return status;
}

// The pool reports no MAP event for memory of another allocator.
void Allocator::note_foreign(Device& device, const void* memory, std::size_t bytes) {
  const std::lock_guard<std::mutex> lock(device.mutex);
  device.stretches.set_foreign(memory);
  device.reserved.at(kAll).increase(bytes);
  device.mapping_changes.fetch_add(1, std::memory_order_relaxed);
}

// The pool has already done everything that it can do by itself. This releases what others hold:
// tensors received from other processes, memory of other allocators in deleted MemPools, and
// MemPools that may serve every request. Null: it did not help.
void* Allocator::allocate_short(Device& device, ArenaPtr& arena, std::size_t bytes,
                                cudaStream_t stream, vpmm_status status, std::string& reason) {
  TORCH_CHECK(status == VPMM_ERROR_OUT_OF_MEMORY, "VPMM: ",
              arena == nullptr ? "" : "in a memory pool (MemPool or CUDA graph): ", reason);
  {
    const std::lock_guard<std::mutex> lock(device.mutex);
    ++device.retries;
  }
  bool has_freed = false;
  for (const std::string& key : c10::FreeCudaMemoryCallbacksRegistry()->Keys())
    has_freed |= c10::FreeCudaMemoryCallbacksRegistry()->Create(key)->Execute();
  has_freed |= end_all_over(device);
  void* ptr = nullptr;
  if (has_freed) {
    status = request(device, arena.get(), bytes, stream, &ptr);
    if (status == VPMM_OK) return ptr;
    reason = vpmm_last_error();
    TORCH_CHECK(status == VPMM_ERROR_OUT_OF_MEMORY, "VPMM: ", reason);
  }
  if (arena != nullptr) return nullptr;  // a graph's memory must be in its own pool
  std::vector<ArenaPtr> others;
  {
    const std::lock_guard<std::mutex> lock(device.mutex);
    for (const auto& [id, other] : device.arenas)
      if (other->serves_others_when_short && other != arena) others.push_back(other);
  }
  for (const ArenaPtr& other : others) {
    const std::shared_ptr<vpmm_arena> handle =
        handle_of(device, *other);  // null: empty, or deleted meanwhile
    if (handle == nullptr) continue;
    if (vpmm_arena_allocate(handle.get(), round_up(bytes, kGrain), kGrain, stream, &ptr) != VPMM_OK)
      continue;
    arena = other;
    return ptr;
  }
  return nullptr;
}

void Allocator::fail(Device& device, std::size_t bytes, const Context& stack,
                     const std::string& reason) {
  using c10::CachingAllocator::format_size;
  const c10::cuda::CUDAGuard guard(device.index);
  std::size_t free = 0;
  std::size_t total = 0;
  C10_CUDA_CHECK(cudaMemGetInfo(&free, &total));
  std::size_t allocated = 0;
  std::size_t reserved = 0;
  std::size_t in_arenas = 0;
  std::size_t of_others = 0;
  std::uint64_t allowed = 0;
  check(vpmm_get_capacity(pool_of(device), &allowed), "the limit");
  allowed = std::min<std::uint64_t>(allowed, total);
  {
    const Layout layout(pool_of(device));
    const std::lock_guard<std::mutex> lock(device.mutex);
    ++device.failures;
    of_others = bytes_of_others(device, layout);
    allocated = static_cast<std::size_t>(device.counts.bytes[0].current);
    reserved =
        std::max(static_cast<std::size_t>(device.reserved.at(kAll).current), allocated + of_others);
    for (const auto& [id, arena] : device.arenas)
      for (void* const ptr : arena->live) in_arenas += device.blocks.at(ptr).bytes;
  }
  history_.record(Action::OOM, device.index, reinterpret_cast<const void*>(free), bytes, nullptr,
                  kCommonPool, stack);
  std::vector<cca::OutOfMemoryObserver> observers;
  {
    const std::lock_guard<std::mutex> lock(observers_mutex_);
    observers = observers_;
  }
  for (const cca::OutOfMemoryObserver& observer : observers)
    observer(device.index, bytes, allowed, free);
  c10::reportOutOfMemoryToProfiler(static_cast<std::int64_t>(bytes), allocated, reserved,
                                   c10::Device(c10::DeviceType::CUDA, device.index));
  const std::string limit = allowed < total ? format_size(allowed) + " allowed; " : "";
  const std::string graphs = in_arenas != 0 ? ", with " + format_size(in_arenas) +
                                                  " allocated in private pools (e.g., CUDA Graphs)"
                                            : "";
  const std::string others =
      of_others != 0 ? ", " + format_size(of_others) + " by other libraries in the same pool" : "";
  TORCH_CHECK_WITH(OutOfMemoryError, false, "CUDA out of memory. Tried to allocate ",
                   format_size(bytes), ". GPU ", int{device.index}, " has a total capacity of ",
                   format_size(total), " of which ", format_size(free), " is free. ", limit,
                   "Of the allocated memory ", format_size(allocated), " is allocated by PyTorch",
                   graphs, others, ", and ", format_size(reserved - allocated - of_others),
                   " is reserved by PyTorch but unallocated. VPMM: ", reason);
}

void Allocator::note_allocated(Device& device, void* ptr, std::size_t bytes, Stream stream,
                               ArenaPtr arena, const Call& call) {
  Block block;
  block.requested = bytes;
  block.bytes = round_up(bytes, kGrain);
  block.stream = stream.handle;
  block.may_outlive_stream = stream.is_foreign;
  block.is_small = arena == nullptr && bytes <= device.largest_small;
  block.stack = call.stack();
  block.arena = std::move(arena);
  if (C10_UNLIKELY(history_.is_listening())) tell_of_allocation(device, ptr, block, call);
  const std::lock_guard<std::mutex> lock(device.mutex);
  device.counts.add(block);
  if (block.arena != nullptr) {
    block.arena->live.insert(ptr);
    device.stretches.enter(ptr, block.bytes);
  }
  device.blocks.insert_or_assign(ptr, std::move(block));
}

// If a tracker throws at an allocation or its segment, the memory goes back to the pool and the
// program gets the exception.
void Allocator::tell_of_allocation(Device& device, void* ptr, const Block& block,
                                   const Call& call) {
  const MempoolId_t id = block.arena == nullptr ? kCommonPool : block.arena->id;
  try {
    call.rethrow();
    history_.record(Action::ALLOC, device.index, ptr, block.requested, block.stream, id,
                    block.stack);
  } catch (...) {
    give_back(device, ptr, block);
    throw;
  }
}

void Allocator::report(Device& device, void* ptr, std::int64_t bytes) {
  if (C10_LIKELY(!c10::memoryProfilingEnabled())) return;
  std::size_t allocated = 0;
  std::size_t reserved = 0;
  {
    const std::lock_guard<std::mutex> lock(device.mutex);
    allocated = static_cast<std::size_t>(device.counts.bytes[0].current);
    reserved = static_cast<std::size_t>(device.reserved.at(kAll).current);
  }
  c10::reportMemoryUsageToProfiler(ptr, bytes, allocated, reserved,
                                   c10::Device(c10::DeviceType::CUDA, device.index));
}

// --- freeing

void Allocator::raw_delete(void* ptr) {
  if (const std::exception_ptr thrown = free(ptr); thrown != nullptr)
    std::rethrow_exception(thrown);
}

std::exception_ptr Allocator::free(void* ptr) {
  if (ptr == nullptr) return nullptr;
  const Call call(history_, RecordContext::ALL);
  Freed freed = forget(ptr);
  TORCH_CHECK(freed.device != nullptr, "invalid device pointer: ", ptr);
  Device& device = *freed.device;
  const Block& block = freed.block;
  if (C10_UNLIKELY(history_.is_listening())) tell_of_free(device, ptr, block, call);
  trace_deallocation(ptr);
  if (freed.exported) vpmm_ipc_export_end(&*freed.exported);
  give_back(device, ptr, block);
  report(device, ptr, -static_cast<std::int64_t>(block.bytes));
  return call.thrown();
}

// A tracker may throw; the memory is freed anyway.
void Allocator::tell_of_free(const Device& device, const void* ptr, const Block& block,
                             const Call& call) {
  const MempoolId_t id = block.arena == nullptr ? kCommonPool : block.arena->id;
  try {
    for (const Action action : {Action::FREE_REQUESTED, Action::FREE_COMPLETED})
      history_.record(action, device.index, ptr, block.requested, block.stream, id, call.stack());
  } catch (...) {
    Call::note_exception();
  }
}

// Looks on the device of the last free first: most programs use one.
Allocator::Freed Allocator::forget(void* ptr) {
  thread_local std::size_t last = 0;
  const auto count = static_cast<std::size_t>(device_count_.load());
  for (std::size_t i = 0; i < count; ++i) {
    const std::size_t index = (last + i) % count;
    Freed freed = forget_on(devices_[index], ptr);
    if (freed.device == nullptr) continue;
    last = index;
    return freed;
  }
  return {};
}

Allocator::Freed Allocator::forget_on(Device& device, void* ptr) {
  const std::lock_guard<std::mutex> lock(device.mutex);
  const auto found = device.blocks.find(ptr);
  if (found == device.blocks.end()) return {};
  Freed freed{&device, std::move(found->second), std::nullopt};
  device.blocks.erase(found);
  device.counts.remove(freed.block);
  if (freed.block.arena != nullptr) {
    freed.block.arena->live.erase(ptr);
    device.stretches.leave(ptr, freed.block.bytes);
  }
  if (C10_UNLIKELY(freed.block.is_exported)) {
    const auto exported = device.exports.find(ptr);
    freed.exported = exported->second.handle;
    device.exports.erase(exported);
  }
  return freed;
}

// Deleters must not throw: an error of the pool is reported once, and at worst the memory is lost.
// While memory pools are open, a foreign stream may be the one that is captured; then it exists.
void Allocator::give_back(Device& device, void* ptr, const Block& block) {
  vpmm_pool* const pool = device.pool.load(std::memory_order_acquire);
  const bool names_stream =
      !block.may_outlive_stream || (block.arena != nullptr && device.has_routes.load());
  vpmm_status status = names_stream ? vpmm_deallocate(pool, ptr, block.stream)
                                    : vpmm_deallocate_any_stream(pool, ptr);
  if (status == VPMM_ERROR_INVALID_ARGUMENT)
    status = vpmm_deallocate_any_stream(pool, ptr);  // no such stream now
  if (C10_LIKELY(status == VPMM_OK)) return;
  if (status == VPMM_ERROR_HOST_OUT_OF_MEMORY) {
    vpmm_deallocate_deferred(pool, ptr);
  } else {
    TORCH_WARN_ONCE("VPMM: a free failed: ", vpmm_last_error());
  }
}

void Allocator::recordStream(const c10::DataPtr& ptr, c10::cuda::CUDAStream stream) {
  // Memory from elsewhere, such as a tensor that another process sent, has another deleter.
  if (ptr.get() == nullptr || ptr.get_deleter() != &delete_memory) return;
  const auto count = static_cast<std::size_t>(device_count_.load());
  for (std::size_t i = 0; i < count; ++i) {
    Device& device = devices_[i];
    {
      const std::lock_guard<std::mutex> lock(device.mutex);
      const auto found = device.blocks.find(ptr.get());
      if (found == device.blocks.end()) continue;
      if (found->second.stream == stream.stream()) return;
    }
    check(vpmm_record_use(pool_of(device), ptr.get(), stream.stream()), "record_stream");
    return;
  }
  TORCH_CHECK(false, "No allocated block can be found for ", ptr.get());
}

// Releases memory of one memory pool: arenas that are no longer used, and idle memory. The
// destructors of memory pools call this, so it does not throw.
void Allocator::emptyCache(MempoolId_t id) {
  const Call call(history_, RecordContext::ALL);
  const int count = device_count_.load();
  for (int i = 0; i < count; ++i) {
    Device& device = devices_[static_cast<std::size_t>(i)];
    vpmm_pool* const pool = device.pool.load(std::memory_order_acquire);
    if (pool == nullptr) continue;
    end_all_over(device);
    if (id != kCommonPool) {
      std::shared_ptr<vpmm_arena> handle;
      {
        const std::lock_guard<std::mutex> lock(device.mutex);
        if (const ArenaPtr arena = find_arena(device, id)) handle = arena->handle;
      }
      if (handle != nullptr) vpmm_arena_trim(handle.get(), nullptr);
      continue;
    }
    vpmm_statistics figures{};
    figures.size = sizeof figures;
    // Memory that the GPU may still use is released, too, after a wait, as with cudaFree; but not
    // in a capture.
    if (vpmm_get_statistics(pool, &figures) == VPMM_OK && figures.pending_bytes != 0)
      vpmm_synchronize(pool);
    check(vpmm_trim(pool, 0, nullptr), "empty_cache");
    note_mapped(device);
  }
  if (id == kCommonPool)
    call.rethrow();
  else
    Call::warn_of(call.thrown());
}

void Allocator::copy_data(void* to, const void* from, std::size_t bytes) const {
  C10_CUDA_CHECK(cudaMemcpy(to, from, bytes, cudaMemcpyDeviceToDevice));
}

}  // namespace vpmm::torch_plugin
