// SPDX-License-Identifier: Apache-2.0
// examples: a third-party memory manager as a plugin: an arena that cuts device memory from large
// slabs.
//
// Host memory (pinned, mapped, registered) comes from the base class. There is no IPC and no
// managed memory, as capabilities() tells callers.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <map>
#include <mutex>
#include <new>
#include <string>
#include <vpmm/emm.hpp>

namespace {

using vpmm::emm::Block;
using vpmm::emm::Capabilities;
using vpmm::emm::MemoryInfo;

constexpr std::size_t kAlignment = 256;  // the minimum of emm.h
constexpr std::size_t kSlabUnit = std::size_t{2} << 20;
constexpr std::size_t kSlabBytes = std::size_t{64} << 20;

constexpr std::size_t round_up(std::size_t bytes, std::size_t unit) {
  return (bytes + unit - 1) / unit * unit;
}

// Queued work may still use memory that is released, so the arena waits for the GPU before it
// reuses it: a piece goes free -> used -> released -> settling -> free. The arena waits when a
// request finds no free piece, once for all pieces released so far.
//
// While cleanup is deferred the arena grows instead of waiting, until memory runs out. It gives
// slabs back only then, at reset() and at the end, so nothing else needs deferring.
class Arena final : public vpmm::emm::HostOnlyMemoryManager {
 public:
  using HostOnlyMemoryManager::HostOnlyMemoryManager;
  // For a manager without a reset() before. HostOnlyMemoryManager does the same for host memory.
  ~Arena() override {
    if (pieces_.empty() || driver().process_is_ending()) return;
    const vpmm::emm::CurrentContext current(driver(), cuda_context(), std::nothrow);
    give_slabs_back(pieces_);
  }
  Capabilities capabilities() const noexcept override {
    Capabilities has = HostOnlyMemoryManager::capabilities();
    has.memory_info = true;
    return has;
  }

 private:
  enum class State {
    free,
    used,
    released,  // the GPU may still use it
    settling,  // the same, but released before the current wait began
  };
  struct Piece {
    std::size_t bytes;
    State state;
    bool begins_slab;  // never merged into the piece before it, which is part of another slab
  };
  // All slabs, divided into pieces without gaps.
  using Pieces = std::map<unsigned char*, Piece>;

  Block do_allocate(std::size_t bytes) override {
    if (bytes > SIZE_MAX / 2)
      vpmm::throw_error(VPMM_ERROR_OUT_OF_MEMORY, "no GPU has " + std::to_string(bytes) + " bytes");
    const std::size_t size = round_up(bytes, kAlignment);
    Block block{};
    block.pointer = take(size);
    if (block.pointer == nullptr) block.pointer = make_room_and_take(size);
    return block;
  }

  // Any thread, any context. Calls no driver and allocates nothing, so it cannot fail.
  void do_release_device(const Block& block) noexcept override {
    const std::lock_guard<std::mutex> lock(mutex_);
    pieces_.find(static_cast<unsigned char*>(block.pointer))->second.state = State::released;
  }

  // Released memory counts as free: the next request can use it.
  MemoryInfo do_get_memory_info() override {
    MemoryInfo info = driver().mem_get_info();
    const std::lock_guard<std::mutex> lock(mutex_);
    for (const auto& [begin, piece] : pieces_) {
      if (piece.state != State::used) info.free += piece.bytes;
    }
    return info;
  }

  // All blocks have been released.
  void do_reset() override {
    Pieces all;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      all.swap(pieces_);
    }
    give_slabs_back(all);
  }

  // The first free piece that is large enough, or null. First fit looks at every piece, which is
  // enough for an example; a manager for programs with many pieces would keep an index by size.
  void* take(std::size_t size) {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (auto place = pieces_.begin(); place != pieces_.end(); ++place) {
      if (place->second.state == State::free && place->second.bytes >= size)
        return cut(place, size);
    }
    return nullptr;
  }

  // Holds: mutex_.
  void* cut(Pieces::iterator place, std::size_t size) {
    auto& [begin, piece] = *place;
    if (piece.bytes > size)  // first, because it may throw
      pieces_.emplace_hint(std::next(place), begin + size,
                           Piece{piece.bytes - size, State::free, false});
    piece.bytes = size;
    piece.state = State::used;
    return begin;
  }

  void* make_room_and_take(std::size_t size) {
    const std::lock_guard<std::mutex> slow(slow_mutex_);
    if (void* const found = take(size)) return found;  // another thread made room meanwhile
    if (!pending().is_deferred()) {
      settle();
      if (void* const found = take(size)) return found;
    }
    const std::size_t least = round_up(size, kSlabUnit);
    try {
      return grow_and_take(std::max(least, kSlabBytes), size);
    } catch (const vpmm::out_of_memory&) {
      settle();
      if (void* const found = take(size)) return found;
      give_empty_slabs_back();
    }
    // If this fails, attempt() carries out pending frees of host memory and tries again.
    return deallocations().attempt([&] { return grow_and_take(least, size); });
  }

  void* grow_and_take(std::size_t slab_bytes, std::size_t size) {
    auto* const slab = static_cast<unsigned char*>(driver().mem_alloc(slab_bytes));
    const std::lock_guard<std::mutex> lock(mutex_);
    Pieces::iterator place;
    try {
      place = pieces_.emplace(slab, Piece{slab_bytes, State::free, true}).first;
    } catch (...) {
      (void)driver().table()->mem_free(driver().table(), slab);
      throw;
    }
    return cut(place, size);
  }

  // Waits for the GPU, then makes the memory free that was released before. Holds slow_mutex_, but
  // not mutex_ during the wait: the wait may be for a GPU callback that releases memory.
  void settle() {
    if (!replace(State::released, State::settling)) return;
    driver().ctx_synchronize();  // when it throws, a later call settles these pieces
    replace(State::settling, State::free);
    const std::lock_guard<std::mutex> lock(mutex_);
    for (auto place = pieces_.begin(); place != pieces_.end(); ++place) {
      auto next = std::next(place);
      while (place->second.state == State::free && next != pieces_.end() &&
             next->second.state == State::free && !next->second.begins_slab) {
        place->second.bytes += next->second.bytes;
        next = pieces_.erase(next);
      }
    }
  }
  bool replace(State before, State after) {
    const std::lock_guard<std::mutex> lock(mutex_);
    bool has_any = false;
    for (auto& [begin, piece] : pieces_) {
      if (piece.state != before) continue;
      piece.state = after;
      has_any = true;
    }
    return has_any;
  }

  void give_empty_slabs_back() {
    Pieces empty;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      for (auto place = pieces_.begin(); place != pieces_.end();) {
        const auto next = std::next(place);
        const bool ends_slab = next == pieces_.end() || next->second.begins_slab;
        if (place->second.begins_slab && place->second.state == State::free && ends_slab)
          empty.insert(pieces_.extract(place));
        place = next;
      }
    }
    give_slabs_back(empty);
  }
  // cuMemFree waits for all work that may use the memory.
  void give_slabs_back(const Pieces& pieces) const noexcept {
    for (const auto& [begin, piece] : pieces) {
      if (piece.begins_slab) (void)driver().table()->mem_free(driver().table(), begin);
    }
  }

  std::mutex slow_mutex_;  // one thread at a time waits for the GPU or grows; locked before mutex_
  std::mutex mutex_;       // guards pieces_; never held during a driver call
  Pieces pieces_;
};

}  // namespace

VPMM_EMM_EXPORT_PLUGIN(Arena, "arena");
