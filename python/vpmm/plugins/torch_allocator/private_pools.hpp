// SPDX-License-Identifier: Apache-2.0
// torch_allocator: the private pools of a device: those of graphs, and MemPools.
#pragma once

#include <c10/cuda/CUDAStream.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <thread>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "pool.hpp"

namespace vpmm::torch_plugin {

// The lock of PrivatePools, by its role: it guards fields of each private pool, too.
struct VPMM_THREAD_ATTRIBUTE(capability("role")) LockRole {};
inline LockRole private_pools_lock;

// A stream and its owner. PyTorch never destroys its own streams.
struct Stream {
  cudaStream_t handle = nullptr;
  bool is_foreign = false;
  static Stream current(DeviceIndex device);
};

using ArenaPtr = std::shared_ptr<vpmm_arena>;

struct PrivatePool {
  PrivatePool(MempoolId_t id_, std::shared_ptr<cca::CUDAAllocator> source_)
      : id(id_), source(std::move(source_)) {}
  const MempoolId_t id;
  // Allocates its memory; null: the device's pool does.
  const std::shared_ptr<cca::CUDAAllocator> source;
  std::atomic<bool> serves_others_when_short{false};
  std::atomic<bool> splits{true};
  Mutex making;  // of its arena
  // Null: nothing was allocated yet, or it has ended.
  ArenaPtr arena VPMM_GUARDED_BY(private_pools_lock);
  std::uint32_t tag VPMM_GUARDED_BY(private_pools_lock) = 0;  // of its arena
  int users VPMM_GUARDED_BY(private_pools_lock) = 0;          // graphs and MemPools
  // Pools of graphs that use its memory: it is not released before them.
  int graph_pools VPMM_GUARDED_BY(private_pools_lock) = 0;
  // Pools with memory that this graph's pool uses.
  std::unordered_set<std::shared_ptr<PrivatePool>> used_by_graph
      VPMM_GUARDED_BY(private_pools_lock);
  // Memory from `source`, and its sizes.
  std::unordered_map<void*, std::size_t> pieces VPMM_GUARDED_BY(private_pools_lock);
};
using PrivatePoolPtr = std::shared_ptr<PrivatePool>;

// Any thread.
class PrivatePools {
 public:
  using Filter = std::function<bool(cudaStream_t)>;

  PrivatePools(Pool& pool, Segments& segments, History& history)
      : pool_(pool), segments_(segments), history_(history) {}

  PrivatePoolPtr create_or_incref(MempoolId_t id, std::shared_ptr<cca::CUDAAllocator> source);
  void release(MempoolId_t id);
  int use_count(MempoolId_t id);
  // Throws if there is none.
  PrivatePoolPtr get(MempoolId_t id, const char* purpose);

  // Routes allocations to a pool if the filter accepts their stream and no newer route takes them.
  void begin(MempoolId_t id, Filter filter);
  void end(MempoolId_t id);
  bool has_routes() const { return has_routes_.load(std::memory_order_acquire); }
  // Tells if a capture that this stream began, or requested memory in, has a route. False: unknown.
  bool is_captured(cudaStream_t stream);
  // The pool for requests of this stream; null: the common one, or the tag that was entered last.
  PrivatePoolPtr route(const Stream& stream);

  // The arena of a pool; null: none.
  ArenaPtr arena_of(const PrivatePool& pool);
  // Keeps the memory of its arena where it is from now on. Returns the arena; null: none.
  ArenaPtr pin(const PrivatePool& pool);
  vpmm_status allocate(PrivatePool& pool, std::size_t bytes, cudaStream_t stream, void** ptr);
  // Allocates in a pool that serves others of its tag when memory is short; null: none could.
  PrivatePoolPtr allocate_in_any(std::size_t bytes, cudaStream_t stream, void** ptr);
  // Gives back idle memory of a pool.
  void trim(MempoolId_t id);
  // Gives back memory of other allocators in released pools. Returns whether any went back.
  bool end_all_over();

 private:
  struct Route {
    PrivatePoolPtr pool;
    Filter filter;
    Stream opener;           // the current stream when it was opened: a capture's
    std::thread::id thread;  // that opened it
    std::uint64_t tag_entries = vpmm_tag_entries();  // by then
    bool is_capture = false;                         // announced to the device's pool
    bool has_begun = false;                          // the stream was seen capturing
    bool is_over = false;                            // the capture has ended without end()
    std::unordered_set<cudaStream_t> foreign;        // that requested memory in the capture
  };
  class Lock;

  static bool end_if_capture_is_over(Route& route);
  static void keep_for_graph(PrivatePool& graph, const PrivatePoolPtr& pool)
      VPMM_REQUIRES(private_pools_lock);
  void release_if_unused(const PrivatePoolPtr& pool, std::vector<ArenaPtr>& over)
      VPMM_REQUIRES(private_pools_lock);
  PrivatePoolPtr get_locked(MempoolId_t id, const char* purpose) VPMM_REQUIRES(private_pools_lock);
  vpmm_status make_arena(PrivatePool& pool, ArenaPtr& arena);
  vpmm_status add_memory(PrivatePool& pool, vpmm_arena* arena, std::size_t bytes);
  bool give_back_idle_pieces(PrivatePool& pool);
  bool end_if_over(const PrivatePoolPtr& pool);
  void give_back_piece(PrivatePool& pool, void* piece);

  Pool& pool_;
  Segments& segments_;
  History& history_;
  std::atomic<bool> has_routes_{false};
  Mutex mutex_;
  std::vector<Route> routes_ VPMM_GUARDED_BY(private_pools_lock);
  std::map<MempoolId_t, PrivatePoolPtr> pools_ VPMM_GUARDED_BY(private_pools_lock);
  // Unused, but memory of another allocator must still go back.
  std::unordered_set<PrivatePoolPtr> ending_ VPMM_GUARDED_BY(private_pools_lock);
};

}  // namespace vpmm::torch_plugin
