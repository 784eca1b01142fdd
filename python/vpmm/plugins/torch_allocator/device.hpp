// torch_allocator: the state of a device: its pool, its live allocations, its private pools, its
// counts.
#pragma once

#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAStream.h>
#include <c10/util/flat_hash_map.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "growths.hpp"
#include "history.hpp"
#include "stretches.hpp"
#include "vpmm/vpmm.h"

namespace vpmm::torch_plugin {

constexpr std::size_t kGrain = 512;  // PyTorch's own allocator rounds and aligns to this
constexpr std::size_t kPiece =
    std::size_t{2} << 20;  // PyTorch's own requests multiples of this from another allocator
constexpr std::size_t kExabyte = std::size_t{1} << 60;
constexpr MempoolId_t kCommonPool{0, 0};

constexpr std::size_t round_up(std::size_t bytes, std::size_t unit) {
  return (bytes + unit - 1) / unit * unit;
}

// The pool has block sizes at every multiple of 256 bytes up to 4 KiB, above only at multiples of
// 512.
constexpr std::size_t bytes_to_ask_for(std::size_t bytes) {
  return bytes < 4096 ? round_up(bytes, kGrain) : bytes;
}

inline void check(vpmm_status status, const char* what) {
  TORCH_CHECK(status == VPMM_OK, "VPMM: ", what, ": ", vpmm_last_error());
}

// The layout of a pool at one moment.
class Layout {
 public:
  explicit Layout(vpmm_pool* pool) {
    layout_.size = sizeof layout_;
    check(vpmm_layout_take(pool, &layout_), "a layout");
  }
  ~Layout() { vpmm_layout_release(&layout_); }
  Layout(const Layout&) = delete;
  Layout& operator=(const Layout&) = delete;
  const vpmm_layout* operator->() const { return &layout_; }

 private:
  vpmm_layout layout_{};
};

// A private pool of PyTorch: that of a graph, or a MemPool. Its first allocation makes the pool's
// arena.
struct Arena {
  explicit Arena(MempoolId_t id_) : id(id_) {}
  const MempoolId_t id;
  std::mutex making;
  std::shared_ptr<vpmm_arena>
      handle;  // under Device::mutex; null: nothing was allocated yet, or it has ended
  std::uint64_t number = 0;  // the pool's name for it
  int users = 0;             // graphs and MemPools
  int graph_pools = 0;       // pools of graphs that use its memory: it is not released before them
  std::unordered_set<std::shared_ptr<Arena>>
      used_by_graph;  // arenas with such memory, of this graph's pool
  bool serves_others_when_short = false;
  bool splits = true;
  std::shared_ptr<cca::CUDAAllocator>
      source;  // where its memory comes from; null: from the device's pool
  std::unordered_map<void*, std::size_t>
      pieces;  // of that source, and their sizes; under Device::mutex
  std::unordered_set<void*> live;
};
using ArenaPtr = std::shared_ptr<Arena>;

// A live allocation.
struct Block {
  std::size_t requested = 0;
  std::size_t bytes = 0;  // as PyTorch counts it
  cudaStream_t stream = nullptr;
  bool is_small = false;
  bool is_exported = false;
  bool may_outlive_stream = false;  // a foreign stream may be destroyed before the memory is freed
  ArenaPtr arena;                   // null: none
  Context stack;
};

struct Counts {
  StatArray allocations;
  StatArray bytes;
  StatArray requested;

  void add(const Block& block) {
    for (const StatType type : {StatType::AGGREGATE, type_of(block)}) {
      allocations.at(static_cast<std::size_t>(type)).increase(1);
      bytes.at(static_cast<std::size_t>(type)).increase(block.bytes);
      requested.at(static_cast<std::size_t>(type)).increase(block.requested);
    }
  }
  void remove(const Block& block) {
    for (const StatType type : {StatType::AGGREGATE, type_of(block)}) {
      allocations.at(static_cast<std::size_t>(type)).decrease(1);
      bytes.at(static_cast<std::size_t>(type)).decrease(block.bytes);
      requested.at(static_cast<std::size_t>(type)).decrease(block.requested);
    }
  }
  static StatType type_of(const Block& block) {
    return block.is_small ? StatType::SMALL_POOL : StatType::LARGE_POOL;
  }
};

// A stream and its owner. PyTorch never destroys its own streams; the id of a foreign stream is its
// handle.
struct Stream {
  cudaStream_t handle = nullptr;
  bool is_foreign = false;
  static Stream current(DeviceIndex device) {
    const c10::cuda::CUDAStream stream = c10::cuda::getCurrentCUDAStream(device);
    const auto handle = reinterpret_cast<std::intptr_t>(stream.stream());
    return {stream.stream(), handle != 0 && stream.id() == static_cast<c10::StreamId>(handle)};
  }
};

// Allocations whose stream `filter` accepts are routed to an arena, unless a newer route takes
// them.
struct Route {
  ArenaPtr arena;
  std::function<bool(cudaStream_t)> filter;
  Stream opener;            // the current stream when it was opened: a capture's
  std::thread::id thread;   // that opened it
  bool is_capture = false;  // announced to the pool
  bool has_begun = false;   // the stream was seen capturing
  bool is_over = false;     // the capture has ended without endAllocateToPool
};

struct Export {
  vpmm_ipc_handle handle{};
  std::string bytes;
};

struct Device {
  DeviceIndex index = 0;
  std::atomic<vpmm_pool*> pool{nullptr};
  std::size_t largest_small =
      0;  // the largest request that the pool cuts from shared pages; set before `pool`
  std::atomic<bool> has_routes{false};
  std::atomic<bool> uses_drivers_pool{false};
  std::atomic<std::uint64_t> mapping_changes{0};
  std::atomic<std::uint64_t> noted_changes{0};  // the changes up to which the cut pages are counted

  std::mutex mutex;
  ska::flat_hash_map<void*, Block> blocks;
  Counts counts;
  StatArray reserved;
  Stretches stretches;
  std::int64_t retries = 0;
  std::int64_t failures = 0;
  double fraction = 1.0;
  std::optional<std::uint64_t> capacity;  // the pool's limit before a fraction below 1 was set
  std::vector<Route> routes;
  std::map<MempoolId_t, ArenaPtr> arenas;
  std::unordered_set<ArenaPtr>
      ending;  // unused, but memory of another allocator must still go back
  std::unordered_map<std::uint64_t, MempoolId_t>
      arena_names;  // by the pool's number, of deleted ones, too
  Growths growths;
  std::unordered_map<void*, Export> exports;

  template <class Visit>
  void for_each_stat(Visit visit) {
    for (StatArray* const array :
         {&counts.allocations, &counts.bytes, &counts.requested, &reserved, &stretches.segments,
          &stretches.inactive_split, &stretches.inactive_split_bytes})
      for (auto& stat : *array) visit(stat);
  }
  bool is_open() const { return pool.load(std::memory_order_acquire) != nullptr; }
};

}  // namespace vpmm::torch_plugin
