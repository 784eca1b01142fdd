// SPDX-License-Identifier: Apache-2.0
// torch_allocator: the mapped memory of a device, which snapshots show as segments.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <unordered_map>
#include <vector>

#include "history.hpp"
#include "stretches.hpp"
#include "vpmm/vpmm.h"

namespace vpmm::torch_plugin {

constexpr std::size_t kGrain = 512;  // PyTorch's own allocator rounds and aligns to this

constexpr std::size_t round_up(std::size_t bytes, std::size_t unit) {
  return (bytes + unit - 1) / unit * unit;
}

// Both throw for a failure.
void check(vpmm_status status, const char* purpose);
vpmm_statistics figures_of(vpmm_pool* pool);

// The layout of a pool at one moment.
class Layout {
 public:
  explicit Layout(vpmm_pool* pool);
  ~Layout() { vpmm_layout_release(&layout_); }
  Layout(const Layout&) = delete;
  Layout& operator=(const Layout&) = delete;
  const vpmm_layout* operator->() const { return &layout_; }

 private:
  vpmm_layout layout_{};
};

using StatReset = void (Stat::*)();
using StatChange = void (Stat::*)(std::size_t);

// A live allocation in a snapshot.
struct Live {
  std::size_t begin = 0;
  std::size_t bytes = 0;
  std::size_t requested = 0;
  cudaStream_t stream = nullptr;  // null, too: it belongs to another library
  Context stack = nullptr;
};

// Follows the pool's events. Any thread.
class Segments {
 public:
  Segments(DeviceIndex device, History& history) : device_(device), history_(history) {}

  // For vpmm_add_event_callback. Stores the exception of a tracker in the call.
  static void on_event(void* segments, const vpmm_event* event);
  // Takes the first figures.
  void begin(vpmm_pool* pool);
  // Names the private pool that an arena belongs to, for good.
  void name(std::uint64_t arena, MempoolId_t pool);
  // Memory of another allocator, for which the pool reports a stretch but no mapping.
  void enter_foreign(const void* memory, std::size_t bytes);
  // Tells if an address is in a stretch of a private pool or of a tag.
  bool is_in_stretch(const void* ptr);
  // An allocation in a stretch begins and ends. Under the lock of Blocks.
  void enter(const void* ptr, std::size_t bytes);
  void leave(const void* ptr, std::size_t bytes);

  // Counts anew the pages that the pool cuts for small requests, if memory was mapped since.
  void note_changes(vpmm_pool* pool) noexcept;
  vpmm_statistics note_mapped(vpmm_pool* pool);
  // Brings all counts up to date.
  vpmm_statistics count(vpmm_pool* pool);
  std::size_t reserved();
  void copy_to(DeviceStats& stats);
  void reset(StatReset reset);
  // `live` by address. `only`: those of this private pool.
  std::vector<SegmentInfo> list(const Layout& layout, const std::vector<Live>& live,
                                const std::optional<MempoolId_t>& only);

 private:
  void note(const vpmm_event& event);
  Action follow(const vpmm_event& event, const Context& stack) VPMM_REQUIRES(mutex_);
  MempoolId_t pool_of(std::uint64_t arena) VPMM_REQUIRES(mutex_);
  vpmm_statistics ask(vpmm_pool* pool);
  void note_layout(vpmm_pool* pool);

  const DeviceIndex device_;
  History& history_;
  std::atomic<bool> has_untold_memory_{false};
  std::atomic<std::uint64_t> changes_{0};  // of mapped memory; increased under the lock
  std::atomic<std::uint64_t> noted_{0};    // the changes up to which the cut pages are counted
  Mutex mutex_;
  StatArray reserved_ VPMM_GUARDED_BY(mutex_);
  Stretches stretches_ VPMM_GUARDED_BY(mutex_);
  Growths growths_ VPMM_GUARDED_BY(mutex_);
  std::unordered_map<std::uint64_t, MempoolId_t> pools_ VPMM_GUARDED_BY(mutex_);  // by arena
};

}  // namespace vpmm::torch_plugin
