// small: pages of the pool that small requests are cut from, and what owns which part of them.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "base/address.hpp"
#include "base/line_allocator.hpp"
#include "pool/page_line.hpp"
#include "region/region.hpp"
#include "small/slab.hpp"

namespace vpmm::small {

struct Arena;

// What memory belongs to: nothing, a slab, an extent, an arena or an allocation of whole pages; or where that is
// written. One word, so that it is read without a lock. Of a slab it says enough to find what a block has there before
// any line of the slab has come.
class Owner {
 public:
  Owner() = default;
  // Of the slab's units the one with this number.
  Owner(const Slab& slab, std::uint64_t unit) VPMM_REQUIRES(cache_lock)
      : bits_(reinterpret_cast<std::uintptr_t>(&slab) | bits_of(Kind::slab) |
              std::uint64_t{slab.slab_class} << kClassShift | unit << kUnitShift) {}
  explicit Owner(const Extent* extent) : bits_(reinterpret_cast<std::uintptr_t>(extent) | bits_of(Kind::extent)) {}
  explicit Owner(const Arena* arena) : bits_(reinterpret_cast<std::uintptr_t>(arena) | bits_of(Kind::arena)) {}
  explicit Owner(const region::Region* pages)
      : bits_(reinterpret_cast<std::uintptr_t>(pages) | bits_of(Kind::region)) {}
  explicit Owner(const std::atomic<Owner>* place)
      : bits_(reinterpret_cast<std::uintptr_t>(place) | bits_of(Kind::place)) {}

  // Null where it is another's.
  Slab* slab() const { return as<Slab>(Kind::slab); }
  // Of a slab. Beyond 1024 units the number begins again.
  std::size_t slab_class() const { return bits_ >> kClassShift & kMostClass; }
  std::uint64_t unit() const { return bits_ >> kUnitShift; }
  Extent* extent() const { return as<Extent>(Kind::extent); }
  Arena* arena() const { return as<Arena>(Kind::arena); }
  region::Region* region() const { return as<region::Region>(Kind::region); }
  std::atomic<Owner>* place() const { return as<std::atomic<Owner>>(Kind::place); }  // where it is written instead
  bool operator==(const Owner&) const = default;

 private:
  // In the last bits, which are free: all of these are aligned to more.
  enum class Kind : std::uintptr_t { nothing, slab, extent, arena, region, place };
  static constexpr std::uintptr_t kKindBits = 7;
  // In the first bits: on x86-64 and aarch64 Linux gives addresses beyond 48 bits only to who asks mmap for one.
  static constexpr int kClassShift = 48;
  static constexpr std::uintptr_t kMostClass = 63;
  static constexpr int kUnitShift = 54;
  static constexpr std::uintptr_t kAddressBits = (std::uintptr_t{1} << kClassShift) - 1 - kKindBits;
  static_assert(kSlabClasses <= kMostClass + 1 && sizeof(std::uintptr_t) == 8);
  static constexpr std::uintptr_t bits_of(Kind kind) { return static_cast<std::uintptr_t>(kind); }
  template <typename T>
  T* as(Kind kind) const {
    return (bits_ & kKindBits) == bits_of(kind) ? reinterpret_cast<T*>(bits_ & kAddressBits) : nullptr;
  }

  std::uintptr_t bits_ = 0;
};

// What stands at a page: nothing, an arena, the extent or the slab that has all of it, or an allocation of whole pages
// that begins here.
// Beside it stands what a free needs next, so that it need not look where that is kept: the shard of the allocation,
// or who owns the units of the arena.
class PageEntry {
 public:
  void enter(const region::Region& pages, const Shard* shard) { enter(Owner(&pages), shard, Kind::shard); }
  void enter(const Slab& slab) VPMM_REQUIRES(cache_lock) { enter(Owner(slab, 0), nullptr, Kind::nothing); }
  void enter(const Extent& extent) { enter(Owner(&extent), nullptr, Kind::nothing); }
  void enter(const Arena& arena, std::size_t page);
  void leave() { owner_.store(Owner{}, std::memory_order_relaxed); }

  // Any thread, without a lock: whoever has something live there gets what was entered; anybody else may get what was
  // there before or after, and of one the owner and of the other what stands beside it. So each of these says whether
  // it is of its kind.
  Owner owner() const { return owner_.load(std::memory_order_acquire); }
  Shard* shard() const { return static_cast<Shard*>(beside(Kind::shard)); }
  const std::atomic<Owner>* unit_owners() const { return static_cast<std::atomic<Owner>*>(beside(Kind::unit_owners)); }

 private:
  enum class Kind : std::uintptr_t { nothing, shard, unit_owners };
  static constexpr std::uintptr_t kKindMask = 7;
  void enter(Owner owner, const void* beside, Kind kind) {
    beside_.store(reinterpret_cast<std::uintptr_t>(beside) | static_cast<std::uintptr_t>(kind),
                  std::memory_order_relaxed);
    owner_.store(owner, std::memory_order_release);  // whoever reads it reads what it names as it is now
  }
  // Null: not of this kind.
  void* beside(Kind kind) const {
    const std::uintptr_t bits = beside_.load(std::memory_order_relaxed);
    return (bits & kKindMask) == static_cast<std::uintptr_t>(kind) ? reinterpret_cast<void*>(bits & ~kKindMask)
                                                                   : nullptr;
  }

  std::atomic<Owner> owner_;
  std::atomic<std::uintptr_t> beside_;  // the last bits say of which kind it is
};

// What this room keeps about an allocation of the pool: the arena it is a page of (with the last bit set), or the shard
// that keeps it. A shard writes it under its own lock, while whoever has the pool's may look.
inline void* holder_of(const region::Region& region) {
  return std::atomic_ref<void*>(const_cast<void*&>(region.holder)).load(std::memory_order_relaxed);
}
inline void set_holder(region::Region& region, void* holder) {
  std::atomic_ref<void*>(region.holder).store(holder, std::memory_order_relaxed);
}

// Null: it is not cut, or kept by a shard.
inline Arena* arena_in(const region::Region& page) {
  const auto bits = reinterpret_cast<std::uintptr_t>(holder_of(page));
  return (bits & 1) != 0 ? reinterpret_cast<Arena*>(bits & ~std::uintptr_t{1}) : nullptr;
}
inline void set_arena_in(region::Region& page, const Arena& arena) VPMM_REQUIRES(pool_lock) {
  set_holder(page, reinterpret_cast<void*>(reinterpret_cast<std::uintptr_t>(&arena) | 1));
}

// Note [Streams share no line]
// What calls write as a rule lies on lines of their stream alone, so that threads with streams of their own do not wait
// for each other's caches: shards, slabs, extents and regions begin a line, and what they keep elsewhere fills whole
// lines. The owners of an extent's units change as its stream cuts slabs and ends them. Where an extent begins or ends
// within a line of the arena's table, it has the owners of its units there itself, and the table says so once for all.
//
// One thing is shared: an entry of the directory is written when a slab begins or ends to fill its page, or is the
// first in a page of runs, once for all blocks of a page, and those of four pages stand on a line. With a line each,
// every free of a stream that has many pages would cost more.
constexpr std::uint64_t kOwnersInLine = kCacheLine / sizeof(std::atomic<Owner>);

inline Owner owner_in(const std::atomic<Owner>& entry) {
  const Owner owner = entry.load(std::memory_order_acquire);
  const std::atomic<Owner>* const place = owner.place();
  return place == nullptr ? owner : place->load(std::memory_order_acquire);
}

// Note [Small requests may cross pages]
// An arena is a stretch of address space in which the pool's pages come and go. A run may begin in one and end in the
// next: else a stream that asks for little more than half a page again and again would hold twice as much. For these
// its extents grow by whole pages that stand behind them. But a run that crosses keeps two pages from going back, and
// free pages beside it stay with the stream. So only runs of more than half a page do so, and up to a page only where
// they are three quarters of what their stream has: otherwise what they leave of their pages serves the rest. Anything
// else crosses where there is no other room. docs/design/small-requests.md has the figures.
constexpr std::size_t kMostArenaPages = pool::kPagesInLine;

// `owners` names, for every unit, the slab around it, or else the extent. Of a page that is of one extent alone, and of
// which no slab was cut yet, the directory names the extent at once: for runs, of which there may be many pages, that
// spares a look at a table that is as large as all of them. Written under the lock of the shard that has the extent,
// read under any by whoever has something live in the unit. Meanwhile the entry of its page may come to name the arena,
// once a slab is cut beside it, or the extent that was split off: so whoever reads one checks, under the lock of the
// shard that the extent says it has, that it has it and holds the unit.
struct alignas(kCacheLine) Arena {
  AddressRange range;
  Bytes page_size = 0;
  PageEntry* entries = nullptr;                          // of its pages; null: the directory does not cover them
  std::atomic<Owner>* owners = nullptr;                  // by unit; begins a line
  std::array<region::Region*, kMostArenaPages> pages{};  // allocations in the pool; null: not cut

  std::uint64_t unit_of(DevicePtr p) const { return (p - range.begin) / kUnit; }
  std::size_t page_of(DevicePtr p) const { return static_cast<std::size_t>((p - range.begin) / page_size); }
  void set_owner(DevicePtr begin, std::uint64_t units, const Extent& owner) VPMM_REQUIRES(cache_lock) {
    set_owners(begin, units, [&](std::uint64_t) { return Owner(&owner); });
    if (PageEntry* const entry = entry_of({begin, units * kUnit})) entry->enter(*this, page_of(begin));
  }
  void set_owner(const Slab& owner) VPMM_REQUIRES(cache_lock) {
    set_owners(owner.begin, owner.units,
               [&](std::uint64_t unit) VPMM_REQUIRES(cache_lock) { return Owner(owner, unit); });
    if (entries == nullptr) return;
    if (PageEntry* const entry = entry_of({owner.begin, owner.bytes()})) return entry->enter(owner);
    for (std::size_t page = page_of(owner.begin); page <= page_of(owner.begin + (owner.bytes() - 1)); ++page)
      if (entries[page].owner().extent() != nullptr) entries[page].enter(*this, page);
  }
  // Entries of the pages that lie in it as a whole, with their numbers.
  template <typename Visit>
  void for_each_entry(AddressRange part, Visit&& visit) const {
    if (entries == nullptr) return;
    const Bytes first = (part.begin - range.begin + page_size - 1) / page_size;
    const Bytes end = (part.end() - range.begin) / page_size;
    for (Bytes page = first; page < end; ++page) visit(entries[page], static_cast<std::size_t>(page));
  }
  bool is_page(AddressRange part) const {
    return part.size == page_size && range.begin + page_of(part.begin) * page_size == part.begin;
  }

 private:
  template <typename OwnerOf>
  void set_owners(DevicePtr begin, std::uint64_t units, OwnerOf&& owner_of) VPMM_REQUIRES(cache_lock) {
    for (std::uint64_t unit = 0; unit < units; ++unit) {
      std::atomic<Owner>& entry = owners[unit_of(begin) + unit];
      std::atomic<Owner>* const place = entry.load(std::memory_order_relaxed).place();
      (place == nullptr ? entry : *place).store(owner_of(unit), std::memory_order_release);
    }
  }
  // Null: the part is no page, or the directory does not cover it.
  PageEntry* entry_of(AddressRange part) const {
    return entries == nullptr || !is_page(part) ? nullptr : &entries[page_of(part.begin)];
  }
};
inline void PageEntry::enter(const Arena& arena, std::size_t page) {
  enter(Owner(&arena), arena.owners + page * (arena.page_size / kUnit), Kind::unit_owners);
}

}  // namespace vpmm::small
