// SPDX-License-Identifier: Apache-2.0
// torch_allocator: routes requests to private pools, and makes, fills and ends their arenas.
#include "private_pools.hpp"

#include <algorithm>
#include <exception>
#include <utility>

namespace vpmm::torch_plugin {

namespace {

struct EnteredTag {
  std::uint32_t tag = 0;  // 0: none
  std::uint64_t entry = 0;
};

EnteredTag tag_of_requests(vpmm_pool* pool) {
  EnteredTag entered;
  const vpmm_status status = vpmm_tag_entered(pool, &entered.tag, &entered.entry);
  return status == VPMM_OK && entered.tag != 0 ? entered : EnteredTag{};
}

}  // namespace

// Only such a guard takes the role, so its bodies are not analysed.
class VPMM_THREAD_ATTRIBUTE(scoped_lockable) PrivatePools::Lock {
 public:
  explicit Lock(PrivatePools& pools) VPMM_ACQUIRE(private_pools_lock)
      VPMM_THREAD_ATTRIBUTE(no_thread_safety_analysis)
      : lock_(pools.mutex_) {}
  ~Lock() VPMM_RELEASE() {}
  Lock(const Lock&) = delete;
  Lock& operator=(const Lock&) = delete;

 private:
  MutexLock lock_;
};

// The id of a foreign stream is its handle.
Stream Stream::current(DeviceIndex device) {
  const c10::cuda::CUDAStream stream = c10::cuda::getCurrentCUDAStream(device);
  const auto handle = reinterpret_cast<std::intptr_t>(stream.stream());
  return {stream.stream(), handle != 0 && stream.id() == static_cast<c10::StreamId>(handle)};
}

// --- --- their lives

PrivatePoolPtr PrivatePools::create_or_incref(MempoolId_t id,
                                              std::shared_ptr<cca::CUDAAllocator> source) {
  const Lock lock(*this);
  PrivatePoolPtr& pool = pools_[id];
  TORCH_CHECK(pool == nullptr || source == nullptr,
              "a memory pool that exists cannot be given another allocator");
  if (pool == nullptr) pool = std::make_shared<PrivatePool>(id, std::move(source));
  ++pool->users;
  return pool;
}

void PrivatePools::release(MempoolId_t id) {
  std::vector<ArenaPtr> over;  // released after the lock
  const Lock lock(*this);
  const PrivatePoolPtr pool = get_locked(id, "releasePool");
  --pool->users;
  if (pool->users > 0) return;
  pools_.erase(id);
  for (const PrivatePoolPtr& used : std::exchange(pool->used_by_graph, {})) {
    --used->graph_pools;
    release_if_unused(used, over);
  }
  release_if_unused(pool, over);
}

// Ends a pool that no MemPool and no graph uses any more.
void PrivatePools::release_if_unused(const PrivatePoolPtr& pool, std::vector<ArenaPtr>& over) {
  if (pool->users > 0 || pool->graph_pools > 0) return;
  if (pool->source != nullptr)
    ending_.insert(pool);
  else if (pool->arena != nullptr)
    over.push_back(std::move(pool->arena));
}

int PrivatePools::use_count(MempoolId_t id) {
  const Lock lock(*this);
  const auto found = pools_.find(id);
  return found == pools_.end() ? 0 : found->second->users;
}

PrivatePoolPtr PrivatePools::get(MempoolId_t id, const char* purpose) {
  const Lock lock(*this);
  return get_locked(id, purpose);
}

PrivatePoolPtr PrivatePools::get_locked(MempoolId_t id, const char* purpose) {
  const auto found = pools_.find(id);
  TORCH_CHECK(found != pools_.end(), purpose, ": there is no memory pool (", id.first, ", ",
              id.second, ") on device ", int{pool_.device()});
  return found->second;
}

// --- --- routes

// A filter that does not accept the current stream yet is that of a capture about to begin. It is
// announced to the device's pool, which cannot know of the capture before a capturing stream calls
// it; an event of the whole context would break the capture.
void PrivatePools::begin(MempoolId_t id, Filter filter) {
  Route route{create_or_incref(id, nullptr), std::move(filter), Stream::current(pool_.device()),
              std::this_thread::get_id()};
  const bool is_capture = !route.filter(route.opener.handle);
  route.is_capture = is_capture;
  {
    const Lock lock(*this);
    std::erase_if(routes_, [&](const Route& open) { return open.is_over && open.pool->id == id; });
    for (const Route& open : routes_)
      TORCH_CHECK(open.pool->id != id, "beginAllocateToPool: already recording to mempool_id");
    routes_.push_back(std::move(route));
    has_routes_.store(true, std::memory_order_release);
  }
  if (is_capture) check(vpmm_capture_begin(pool_.get()), "a capture");
}

void PrivatePools::end(MempoolId_t id) {
  bool was_capture = false;
  {
    const Lock lock(*this);
    const auto found = std::find_if(routes_.begin(), routes_.end(),
                                    [&](const Route& open) { return open.pool->id == id; });
    TORCH_CHECK(found != routes_.end(), "endAllocatePool: not currently recording to mempool_id");
    was_capture = found->is_capture && !found->is_over;
    routes_.erase(found);
    has_routes_.store(!routes_.empty(), std::memory_order_release);
  }
  if (was_capture) check(vpmm_capture_end(pool_.get()), "a capture");
}

// The newest route with a filter that takes the stream; a filter may ask the driver whether it is
// captured. A graph that is captured through an older route uses the memory, too. A tag that was
// entered after the route was opened is inside it, and serves.
PrivatePoolPtr PrivatePools::route(const Stream& stream) {
  const EnteredTag entered = tag_of_requests(pool_.get());
  PrivatePoolPtr pool;
  int ended = 0;
  {
    const Lock lock(*this);
    for (auto route = routes_.rbegin(); route != routes_.rend(); ++route) {
      if (route->is_over) continue;
      if (!route->filter(stream.handle)) {
        ended += end_if_capture_is_over(*route) ? 1 : 0;
        continue;
      }
      if (pool == nullptr && entered.entry > route->tag_entries) break;
      if (pool == nullptr) pool = route->pool;
      if (!route->is_capture) continue;
      keep_for_graph(*route->pool, pool);
      if (stream.is_foreign) route->foreign.insert(stream.handle);
      break;
    }
  }
  for (; ended > 0; --ended) check(vpmm_capture_end(pool_.get()), "a capture");
  return pool;
}

bool PrivatePools::is_captured(cudaStream_t stream) {
  const Lock lock(*this);
  return std::any_of(routes_.begin(), routes_.end(), [&](const Route& open) {
    return open.is_capture && !open.is_over &&
           (open.opener.handle == stream || open.foreign.contains(stream));
  });
}

// PyTorch does not end the route of a capture that CUDA invalidated. Its stream is asked, for
// PyTorch keeps its own streams; a foreign one may be gone. Returns whether the capture's end must
// be announced.
bool PrivatePools::end_if_capture_is_over(Route& route) {
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

// Memory of another pool that a graph uses stays as long as the graph's own pool.
void PrivatePools::keep_for_graph(PrivatePool& graph, const PrivatePoolPtr& pool) {
  if (pool.get() == &graph) return;
  const auto [entry, is_new] = graph.used_by_graph.insert(pool);
  if (is_new) ++pool->graph_pools;
}

// --- --- memory

ArenaPtr PrivatePools::arena_of(const PrivatePool& pool) {
  const Lock lock(*this);
  return pool.arena;
}

ArenaPtr PrivatePools::pin(const PrivatePool& pool) {
  ArenaPtr arena = arena_of(pool);
  if (arena != nullptr) check(vpmm_arena_pin(arena.get()), "a checkpoint");
  return arena;
}

vpmm_status PrivatePools::allocate(PrivatePool& pool, std::size_t bytes, cudaStream_t stream,
                                   void** ptr) {
  ArenaPtr arena;
  vpmm_status status = make_arena(pool, arena);
  if (status != VPMM_OK) return status;
  const std::size_t rounded = round_up(bytes, kGrain);
  status = vpmm_arena_allocate(arena.get(), rounded, kGrain, stream, ptr);
  if (status != VPMM_ERROR_OUT_OF_MEMORY || pool.source == nullptr) return status;
  status = add_memory(pool, arena.get(), rounded);
  return status == VPMM_OK ? vpmm_arena_allocate(arena.get(), rounded, kGrain, stream, ptr)
                           : status;
}

// Makes it for the first allocation, because by then all options are known. An arena that is made
// inside a tag is suspended and resumed with the tag.
vpmm_status PrivatePools::make_arena(PrivatePool& pool, ArenaPtr& arena) {
  arena = arena_of(pool);
  if (arena != nullptr) return VPMM_OK;
  vpmm_pool* const of_device = pool_.get();
  const MutexLock making(pool.making);
  arena = arena_of(pool);
  if (arena != nullptr) return VPMM_OK;
  std::uint32_t flags = pool.source != nullptr ? VPMM_ARENA_EXTERNAL : VPMM_ARENA_ONE_CHUNK;
  if (!pool.splits) flags |= VPMM_ARENA_NO_SPLIT;
  vpmm_arena* made = nullptr;
  const std::uint32_t tag = tag_of_requests(of_device).tag;
  vpmm_status status = vpmm_arena_create(of_device, flags, tag != 0 ? tag : pool_.library(), &made);
  if (status != VPMM_OK) return status;
  arena = ArenaPtr(made, [](vpmm_arena* over) { vpmm_arena_release(over); });
  std::uint64_t number = 0;
  status = vpmm_arena_set_library(made, pool_.library());
  if (status == VPMM_OK) status = vpmm_arena_id(made, &number);
  if (status != VPMM_OK) return status;
  segments_.name(number, pool.id);
  const Lock lock(*this);
  pool.arena = arena;
  pool.tag = tag;
  return VPMM_OK;
}

// Takes memory from the allocator that the MemPool was made with, in multiples of the 2 MiB to
// which PyTorch's own allocator rounds, too. It is foreign code and may take locks of the program,
// so no lock of this plugin is held.
vpmm_status PrivatePools::add_memory(PrivatePool& pool, vpmm_arena* arena, std::size_t bytes) {
  constexpr std::size_t kUnit = std::size_t{2} << 20;
  const std::size_t piece = round_up(bytes, kUnit);
  void* memory = nullptr;
  try {
    memory = pool.source->raw_alloc(piece);
  } catch (const c10::OutOfMemoryError&) {
    return VPMM_ERROR_OUT_OF_MEMORY;
  }
  if (memory == nullptr) {
    (void)cudaGetLastError();  // clears the error that cudaMalloc left behind
    return VPMM_ERROR_OUT_OF_MEMORY;
  }
  {
    const Lock lock(*this);
    pool.pieces.emplace(memory, piece);
  }
  const vpmm_status status = vpmm_arena_add_memory(arena, memory, piece);
  if (status != VPMM_OK) {
    {
      const Lock lock(*this);
      pool.pieces.erase(memory);
    }
    pool.source->raw_delete(memory);
    return status;
  }
  segments_.enter_foreign(memory, piece);
  history_.record(
      {Action::SEGMENT_ALLOC, pool_.device(), memory, piece, pool.id, Call::current_stack()},
      Audience::RING);
  return VPMM_OK;
}

// Memory of a tag serves no request without it, for it may be suspended; nor the reverse.
PrivatePoolPtr PrivatePools::allocate_in_any(std::size_t bytes, cudaStream_t stream, void** ptr) {
  const std::uint32_t tag = tag_of_requests(pool_.get()).tag;
  std::vector<std::pair<PrivatePoolPtr, ArenaPtr>> servers;
  {
    const Lock lock(*this);
    for (const auto& [id, pool] : pools_)
      if (pool->serves_others_when_short && pool->arena != nullptr && pool->tag == tag)
        servers.emplace_back(pool, pool->arena);
  }
  for (const auto& [pool, arena] : servers) {
    const vpmm_status status =
        vpmm_arena_allocate(arena.get(), round_up(bytes, kGrain), kGrain, stream, ptr);
    if (status == VPMM_OK) return pool;
  }
  return nullptr;
}

void PrivatePools::trim(MempoolId_t id) {
  ArenaPtr arena;
  {
    const Lock lock(*this);
    const auto found = pools_.find(id);
    if (found != pools_.end()) arena = found->second->arena;
  }
  if (arena != nullptr) vpmm_arena_trim(arena.get(), nullptr);
}

// Memory of another allocator goes back to it in the pieces in which it came, once the pool is
// unused and nothing in a piece is live. While a stream is captured, this is left to the next call
// that empties caches. Destructors call this, too.
bool PrivatePools::end_all_over() {
  std::vector<PrivatePoolPtr> ending;
  {
    const Lock lock(*this);
    ending.assign(ending_.begin(), ending_.end());
  }
  bool has_freed = false;
  for (const PrivatePoolPtr& pool : ending) {
    has_freed |= give_back_idle_pieces(*pool);
    has_freed |= end_if_over(pool);
  }
  return has_freed;
}

bool PrivatePools::give_back_idle_pieces(PrivatePool& pool) {
  const ArenaPtr arena = arena_of(pool);
  bool has_freed = false;
  while (arena != nullptr) {
    void* piece = nullptr;
    const vpmm_status status = vpmm_arena_take_memory(arena.get(), &piece, nullptr);
    if (status != VPMM_OK || piece == nullptr) break;
    give_back_piece(pool, piece);
    has_freed = true;
  }
  return has_freed;
}

namespace {

bool may_have_live(const ArenaPtr& arena) {
  std::size_t live = 0;
  return arena != nullptr &&
         (vpmm_arena_live(arena.get(), nullptr, 0, &live) != VPMM_OK || live != 0);
}

}  // namespace

// Afterwards remain: nothing, or the pieces of a pool in which a capture allocated. A thread
// inside a request holds the arena, or the memory that it just got is live.
bool PrivatePools::end_if_over(const PrivatePoolPtr& pool) {
  if (may_have_live(arena_of(*pool)) || vpmm_synchronize(pool_.get()) != VPMM_OK) return false;
  ArenaPtr over;
  std::vector<void*> pieces;
  {
    const Lock lock(*this);
    if (pool->arena.use_count() > 1) return false;
    if (ending_.erase(pool) == 0) return false;  // another thread was faster
    over = std::move(pool->arena);
    for (const auto& [piece, bytes] : pool->pieces) pieces.push_back(piece);
  }
  if (may_have_live(over)) {
    const Lock lock(*this);
    pool->arena = std::move(over);
    ending_.insert(pool);
    return false;
  }
  over.reset();
  for (void* const piece : pieces) give_back_piece(*pool, piece);
  return !pieces.empty();
}

// An exception of the allocator becomes a warning.
void PrivatePools::give_back_piece(PrivatePool& pool, void* piece) {
  std::size_t bytes = 0;
  {
    const Lock lock(*this);
    const auto found = pool.pieces.find(piece);
    bytes = found->second;
    pool.pieces.erase(found);
  }
  history_.record(
      {Action::SEGMENT_FREE, pool_.device(), piece, bytes, pool.id, Call::current_stack()},
      Audience::RING);
  try {
    pool.source->raw_delete(piece);
  } catch (const std::exception& error) {
    TORCH_WARN("VPMM: the memory of a memory pool did not go back to its allocator: ",
               error.what());
  }
}

}  // namespace vpmm::torch_plugin
