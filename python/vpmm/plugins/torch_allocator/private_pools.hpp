// torch_allocator: memory pools of graphs and of programs, and their checkpoints. Part of
// allocator.cpp.
#pragma once

#include <c10/cuda/CUDAFunctions.h>

#include <algorithm>
#include <exception>

#include "allocator.hpp"

namespace vpmm::torch_plugin {

ArenaPtr Allocator::find_arena(Device& device, MempoolId_t id) {
  const auto found = device.arenas.find(id);
  return found == device.arenas.end() ? nullptr : found->second;
}

ArenaPtr Allocator::arena_of(Device& device, MempoolId_t id, const char* what) {
  ArenaPtr arena = find_arena(device, id);
  TORCH_CHECK(arena != nullptr, what, ": there is no memory pool (", id.first, ", ", id.second,
              ") on device ", int{device.index});
  return arena;
}

// The newest route whose filter takes the stream; a filter may ask the driver whether it is
// captured. A graph that is captured through an older route uses the memory, too.
ArenaPtr Allocator::route(Device& device, cudaStream_t stream) {
  ArenaPtr arena;
  int ended = 0;
  {
    const std::lock_guard<std::mutex> lock(device.mutex);
    for (auto route = device.routes.rbegin(); route != device.routes.rend(); ++route) {
      if (route->is_over) continue;
      if (!route->filter(stream)) {
        ended += end_if_capture_is_over(*route) ? 1 : 0;
      } else {
        if (arena == nullptr) arena = route->arena;
        if (!route->is_capture) continue;
        keep_for_graph(*route->arena, arena);
        break;
      }
    }
  }
  for (; ended > 0; --ended) check(vpmm_capture_end(pool_of(device)), "a capture");
  return arena;
}

// PyTorch does not end the route of a capture that CUDA invalidated. Its stream is asked, for
// PyTorch keeps its own streams; a foreign one may be gone. Returns whether the capture's end must
// be announced. Holds: Device::mutex.
bool Allocator::end_if_capture_is_over(Route& route) {
  if (!route.is_capture || route.opener.is_foreign) return false;
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  if (cudaStreamIsCapturing(route.opener.handle, &status) != cudaSuccess) {
    (void)cudaGetLastError();
    return false;
  }
  route.has_begun |= status != cudaStreamCaptureStatusNone;
  // The thread that opens the route begins the capture before it allocates again.
  route.is_over = status == cudaStreamCaptureStatusNone &&
                  (route.has_begun || route.thread == std::this_thread::get_id());
  return route.is_over;
}

// Memory of another pool that a graph uses stays as long as the graph's own pool. Holds:
// Device::mutex.
void Allocator::keep_for_graph(Arena& graph, const ArenaPtr& arena) {
  if (arena.get() != &graph && graph.used_by_graph.insert(arena).second) ++arena->graph_pools;
}

std::shared_ptr<vpmm_arena> Allocator::handle_of(Device& device, const Arena& arena) {
  const std::lock_guard<std::mutex> lock(device.mutex);
  return arena.handle;
}

void Allocator::createOrIncrefPool(DeviceIndex index, MempoolId_t id,
                                   std::shared_ptr<cca::CUDAAllocator> source) {
  Device& device = device_of(index);
  const std::lock_guard<std::mutex> lock(device.mutex);
  ArenaPtr& arena = device.arenas[id];
  if (arena == nullptr) {
    arena = std::make_shared<Arena>(id);
    arena->source = std::move(source);
  } else {
    TORCH_CHECK(source == nullptr, "a memory pool that exists cannot be given another allocator");
  }
  ++arena->users;
}

void Allocator::setUseOnOOM(DeviceIndex index, MempoolId_t id, bool value) {
  Device& device = device_of(index);
  const std::lock_guard<std::mutex> lock(device.mutex);
  arena_of(device, id, "use_on_oom")->serves_others_when_short = value;
}

void Allocator::setNoSplit(DeviceIndex index, MempoolId_t id) {
  Device& device = device_of(index);
  const std::lock_guard<std::mutex> lock(device.mutex);
  arena_of(device, id, "no_split")->splits = false;
}

int Allocator::getPoolUseCount(DeviceIndex index, MempoolId_t id) {
  Device& device = device_of(index);
  const std::lock_guard<std::mutex> lock(device.mutex);
  const ArenaPtr arena = find_arena(device, id);
  return arena == nullptr ? 0 : arena->users;
}

// A filter that does not accept the current stream yet is that of a capture about to begin. It is
// announced to the pool, which cannot know of the capture before a capturing stream calls it; an
// event of the whole context would break the capture.
void Allocator::beginAllocateToPool(DeviceIndex index, MempoolId_t id,
                                    std::function<bool(cudaStream_t)> filter) {
  createOrIncrefPool(index, id, nullptr);
  Device& device = device_of(index);
  const Stream opener = Stream::current(index);
  const bool is_capture = !filter(opener.handle);
  {
    const std::lock_guard<std::mutex> lock(device.mutex);
    std::erase_if(device.routes,
                  [&](const Route& open) { return open.is_over && open.arena->id == id; });
    for (const Route& open : device.routes)
      TORCH_CHECK(open.arena->id != id, "beginAllocateToPool: already recording to mempool_id");
    Route route{arena_of(device, id, "beginAllocateToPool"), std::move(filter), opener,
                std::this_thread::get_id()};
    route.is_capture = is_capture;
    device.routes.push_back(std::move(route));
    device.has_routes.store(true, std::memory_order_release);
  }
  if (is_capture) check(vpmm_capture_begin(pool_of(device)), "a capture");
}

void Allocator::endAllocateToPool(DeviceIndex index, MempoolId_t id) {
  Device& device = device_of(index);
  bool was_capture = false;
  {
    const std::lock_guard<std::mutex> lock(device.mutex);
    const auto found = std::find_if(device.routes.begin(), device.routes.end(),
                                    [&](const Route& open) { return open.arena->id == id; });
    TORCH_CHECK(found != device.routes.end(),
                "endAllocatePool: not currently recording to mempool_id");
    was_capture = found->is_capture && !found->is_over;
    device.routes.erase(found);
    device.has_routes.store(!device.routes.empty(), std::memory_order_release);
  }
  if (was_capture) check(vpmm_capture_end(pool_of(device)), "a capture");
}

void Allocator::releasePool(DeviceIndex index, MempoolId_t id) {
  Device& device = device_of(index);
  std::vector<std::shared_ptr<vpmm_arena>> over;  // released after the lock
  const std::lock_guard<std::mutex> lock(device.mutex);
  const ArenaPtr arena = arena_of(device, id, "releasePool");
  if (--arena->users > 0) return;
  device.arenas.erase(id);
  for (const ArenaPtr& used : std::exchange(arena->used_by_graph, {})) {
    --used->graph_pools;
    release_if_unused(device, used, over);
  }
  release_if_unused(device, arena, over);
}

// Neither a MemPool nor a graph uses it any more. Holds: Device::mutex.
void Allocator::release_if_unused(Device& device, const ArenaPtr& arena,
                                  std::vector<std::shared_ptr<vpmm_arena>>& over) {
  if (arena->users > 0 || arena->graph_pools > 0) return;
  if (arena->source != nullptr)
    device.ending.insert(arena);
  else if (arena->handle != nullptr)
    over.push_back(std::move(arena->handle));
}

// Memory of another allocator goes back to it in the pieces in which it came, once the pool is
// unused and nothing in a piece is live. While a stream is captured, this is left to the next call
// that empties caches. Destructors call this, too. Returns whether anything went back.
bool Allocator::end_all_over(Device& device) {
  std::vector<ArenaPtr> ending;
  {
    const std::lock_guard<std::mutex> lock(device.mutex);
    ending.assign(device.ending.begin(), device.ending.end());
  }
  bool has_freed = false;
  for (const ArenaPtr& arena : ending) {
    has_freed |= give_back_idle_pieces(device, *arena);
    has_freed |= end_if_over(device, arena);
  }
  return has_freed;
}

bool Allocator::give_back_idle_pieces(Device& device, Arena& arena) {
  const std::shared_ptr<vpmm_arena> handle = handle_of(device, arena);
  bool has_freed = false;
  void* piece = nullptr;
  while (handle != nullptr && vpmm_arena_take_memory(handle.get(), &piece, nullptr) == VPMM_OK &&
         piece != nullptr) {
    give_back_piece(device, arena, piece);
    has_freed = true;
  }
  return has_freed;
}

// What remains afterwards: nothing, or the pieces of a pool in which a capture allocated. A thread
// inside a request holds the handle, or the memory that it just got is live.
bool Allocator::end_if_over(Device& device, const ArenaPtr& arena) {
  {
    const std::lock_guard<std::mutex> lock(device.mutex);
    if (!arena->live.empty()) return false;
  }
  if (vpmm_synchronize(pool_of(device)) != VPMM_OK) return false;
  std::shared_ptr<vpmm_arena> over;
  std::vector<void*> pieces;
  {
    const std::lock_guard<std::mutex> lock(device.mutex);
    if (arena->handle.use_count() > 1 || device.ending.erase(arena) == 0) return false;
    over = std::move(arena->handle);
    for (const auto& [piece, bytes] : arena->pieces) pieces.push_back(piece);
  }
  std::size_t live = 0;
  if (over != nullptr && vpmm_arena_live(over.get(), nullptr, 0, &live) == VPMM_OK && live != 0) {
    const std::lock_guard<std::mutex> lock(device.mutex);
    arena->handle = std::move(over);
    device.ending.insert(arena);
    return false;
  }
  over.reset();
  for (void* const piece : pieces) give_back_piece(device, *arena, piece);
  return !pieces.empty();
}

// An exception of the allocator becomes a warning.
void Allocator::give_back_piece(Device& device, Arena& arena, void* piece) {
  std::size_t bytes = 0;
  {
    const std::lock_guard<std::mutex> lock(device.mutex);
    const auto found = arena.pieces.find(piece);
    bytes = found->second;
    arena.pieces.erase(found);
    device.growths.remove(reinterpret_cast<std::size_t>(piece), bytes);
  }
  history_.note(Action::SEGMENT_FREE, device.index, piece, bytes, arena.id, Call::current_stack());
  try {
    arena.source->raw_delete(piece);
  } catch (const std::exception& error) {
    TORCH_WARN("VPMM: the memory of a memory pool did not go back to its allocator: ",
               error.what());
  }
}

bool Allocator::checkPoolLiveAllocations(DeviceIndex index, MempoolId_t id,
                                         const std::unordered_set<void*>& expected) {
  Device& device = device_of(index);
  const std::lock_guard<std::mutex> lock(device.mutex);
  return arena_of(device, id, "checkPoolLiveAllocations")->live == expected;
}

// --- checkpoints: states that a graph tree returns to

struct Allocator::Checkpoint final : cca::AllocatorState {
  struct Live {
    void* ptr;
    std::size_t bytes;
    Stream stream;
  };
  MempoolId_t id{};
  std::vector<Live> live;
};

#if VPMM_TORCH_MINOR >= 12
std::shared_ptr<GatheredContext> Allocator::getContextForPointer(const void* ptr) {
  for (Device& device : devices_) {
    const std::lock_guard<std::mutex> lock(device.mutex);
    const auto found = device.blocks.find(const_cast<void*>(ptr));
    if (found != device.blocks.end()) return found->second.stack;
  }
  return nullptr;
}
#endif

#if VPMM_TORCH_MINOR >= 13
// Allocates in the memory pool that the current stream is routed to, at this address if it is free.
c10::DataPtr Allocator::allocateWithAddress(std::size_t bytes, void* at) {
  DeviceIndex index = 0;
  C10_CUDA_CHECK(c10::cuda::GetDevice(&index));
  Device& device = device_of(index);
  const Stream stream = Stream::current(index);
  const Call call(history_, RecordContext::STATE);
  ArenaPtr arena = route(device, stream.handle);
  const std::shared_ptr<vpmm_arena> handle = arena == nullptr ? nullptr : handle_of(device, *arena);
  TORCH_CHECK(handle != nullptr,
              "an allocation at an address needs a memory pool: use torch.cuda.use_mem_pool");
  check(vpmm_arena_allocate_at(handle.get(), at, round_up(bytes, kGrain), stream.handle),
        "allocateWithAddress");
  note_allocated(device, at, bytes, stream, std::move(arena), call);
  return {at, at, &delete_memory, c10::Device(c10::kCUDA, index)};
}
#endif

#if VPMM_TORCH_MINOR >= 14
void Allocator::annotateMemory(const void* ptr, const std::string& text) {
  for (Device& device : devices_) {
    Block block;
    {
      const std::lock_guard<std::mutex> lock(device.mutex);
      const auto found = device.blocks.find(const_cast<void*>(ptr));
      if (found == device.blocks.end()) continue;
      block = found->second;
    }
    const MempoolId_t id = block.arena == nullptr ? kCommonPool : block.arena->id;
    history_.record(Action::ANNOTATE, device.index, ptr, block.requested, block.stream, id, nullptr,
                    text);
    return;
  }
}
#endif

std::shared_ptr<Allocator::Checkpoint> Allocator::checkpoint_of(Device& device,
                                                                const ArenaPtr& arena) {
  auto state = std::make_shared<Checkpoint>();
  state->id = arena->id;
  const std::lock_guard<std::mutex> lock(device.mutex);
  for (void* const ptr : arena->live) {
    const Block& block = device.blocks.at(ptr);
    state->live.push_back({ptr, block.requested, {block.stream, block.may_outlive_stream}});
  }
  return state;
}

// From now on the pool's memory stays where it is, because a restore brings back the same
// addresses.
std::shared_ptr<cca::AllocatorState> Allocator::getCheckpointState(DeviceIndex index,
                                                                   MempoolId_t id) {
  Device& device = device_of(index);
  ArenaPtr arena;
  {
    const std::lock_guard<std::mutex> lock(device.mutex);
    arena = arena_of(device, id, "getCheckpointState");
  }
  if (const auto handle = handle_of(device, *arena); handle != nullptr)
    check(vpmm_arena_pin(handle.get()), "a checkpoint");
  return checkpoint_of(device, arena);
}

// The pool's live allocations become those of the state, at the same addresses; if that fails, they
// stay as before.
cca::CheckpointDelta Allocator::setCheckpointPoolState(DeviceIndex index,
                                                       std::shared_ptr<cca::AllocatorState> state) {
  const auto* const wanted = dynamic_cast<const Checkpoint*>(state.get());
  TORCH_CHECK(wanted != nullptr, "the checkpoint is another allocator's");
  Device& device = device_of(index);
  ArenaPtr arena;
  {
    const std::lock_guard<std::mutex> lock(device.mutex);
    arena = arena_of(device, wanted->id, "setCheckpointPoolState");
  }
  const std::shared_ptr<vpmm_arena> handle = handle_of(device, *arena);
  TORCH_CHECK(handle != nullptr || wanted->live.empty(),
              "the memory pool of the checkpoint is over");
  if (handle != nullptr)
    check(vpmm_arena_pin(handle.get()), "a checkpoint");  // what is freed here stays for now
  const std::shared_ptr<Checkpoint> before = checkpoint_of(device, arena);
  for (const Checkpoint::Live& block : before->live) delete_memory(block.ptr);
  try {
    place(device, arena, handle.get(), *wanted);
  } catch (...) {
    place(device, arena, handle.get(), *before);
    throw;
  }
  cca::CheckpointDelta delta;
  for (const Checkpoint::Live& block : before->live) delta.ptrs_freed.push_back(block.ptr);
  for (const Checkpoint::Live& block : wanted->live)
    delta.dataptrs_allocd.emplace_back(block.ptr, block.ptr, &delete_memory,
                                       c10::Device(c10::kCUDA, index));
  return delta;
}

// All of them, or none.
void Allocator::place(Device& device, const ArenaPtr& arena, vpmm_arena* handle,
                      const Checkpoint& wanted) {
  const Call call(history_, RecordContext::STATE);
  auto next = wanted.live.begin();
  try {
    for (; next != wanted.live.end(); ++next) {
      check(vpmm_arena_allocate_at(handle, next->ptr, round_up(next->bytes, kGrain),
                                   next->stream.handle),
            "a checkpoint could not be restored");
      note_allocated(device, next->ptr, next->bytes, next->stream, arena, call);
    }
  } catch (...) {
    while (next != wanted.live.begin()) delete_memory((--next)->ptr);
    throw;
  }
}

}  // namespace vpmm::torch_plugin
