// SPDX-License-Identifier: Apache-2.0
// small: pages of the pool that are cut for small requests, and the owners of their parts.
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

struct PageRun;

// Owner of memory: none, a slab, a segment, a run or an allocation of whole pages; or the place
// where the owner is written. One word, so it is read without a lock. For a slab it also has class
// and unit, so that the record of a block can be fetched before the slab itself.
class Content {
 public:
  Content() = default;
  // Unit `unit` of the slab.
  Content(const Slab& slab, std::uint64_t unit) VPMM_REQUIRES(cache_lock)
      : bits_(reinterpret_cast<std::uintptr_t>(&slab) | bits_of(EntryKind::slab) |
              std::uint64_t{slab.slab_class} << kClassShift | unit << kUnitShift) {}
  explicit Content(const Segment* segment)
      : bits_(reinterpret_cast<std::uintptr_t>(segment) | bits_of(EntryKind::segment)) {}
  explicit Content(const PageRun* run)
      : bits_(reinterpret_cast<std::uintptr_t>(run) | bits_of(EntryKind::run)) {}
  explicit Content(const region::Region* pages)
      : bits_(reinterpret_cast<std::uintptr_t>(pages) | bits_of(EntryKind::region)) {}
  explicit Content(const std::atomic<Content>* place)
      : bits_(reinterpret_cast<std::uintptr_t>(place) | bits_of(EntryKind::place)) {}

  // Null if the owner is of another kind.
  Slab* slab() const { return as<Slab>(EntryKind::slab); }
  // Class and unit of a slab; units count modulo 1024.
  std::size_t slab_class() const { return bits_ >> kClassShift & kMostClass; }
  std::uint64_t unit() const { return bits_ >> kUnitShift; }
  Segment* segment() const { return as<Segment>(EntryKind::segment); }
  PageRun* run() const { return as<PageRun>(EntryKind::run); }
  region::Region* region() const { return as<region::Region>(EntryKind::region); }
  std::atomic<Content>* place() const {
    return as<std::atomic<Content>>(EntryKind::place);
  }  // where it is written instead
  bool operator==(const Content&) const = default;

 private:
  // Kept in the last bits, which the alignment leaves free.
  enum class EntryKind : std::uintptr_t { nothing, slab, segment, run, region, place };
  static constexpr std::uintptr_t kKindBits = 7;
  // Kept in the first bits: Linux gives addresses beyond 48 bits only on request (x86-64, aarch64).
  static constexpr int kClassShift = 48;
  static constexpr std::uintptr_t kMostClass = 63;
  static constexpr int kUnitShift = 54;
  static constexpr std::uintptr_t kAddressBits = (std::uintptr_t{1} << kClassShift) - 1 - kKindBits;
  static_assert(kSlabClasses <= kMostClass + 1 && sizeof(std::uintptr_t) == 8);
  static constexpr std::uintptr_t bits_of(EntryKind kind) {
    return static_cast<std::uintptr_t>(kind);
  }
  template <typename T>
  T* as(EntryKind kind) const {
    return (bits_ & kKindBits) == bits_of(kind) ? reinterpret_cast<T*>(bits_ & kAddressBits)
                                                : nullptr;
  }

  std::uintptr_t bits_ = 0;
};

// Owner of a page: none, a run, the segment or slab that has all of it, or an allocation of whole
// pages that begins here. Beside it is the word that a free reads next: the cache of the
// allocation, or the table of the run's units.
class PagemapEntry {
 public:
  void enter(const region::Region& pages, const StreamCache* cache) {
    enter(Content(&pages), cache, EntryKind::cache);
  }
  void enter(const Slab& slab) VPMM_REQUIRES(cache_lock) {
    enter(Content(slab, 0), nullptr, EntryKind::nothing);
  }
  void enter(const Segment& segment) { enter(Content(&segment), nullptr, EntryKind::nothing); }
  void enter(const PageRun& run, std::size_t page);
  void leave() { content_.store(Content{}, std::memory_order_relaxed); }

  // Any thread, without a lock. The entry of a live allocation does not change while it is live.
  // For a dead address the two words may be of different times, so each names its kind.
  Content content() const { return content_.load(std::memory_order_acquire); }
  StreamCache* cache() const { return static_cast<StreamCache*>(beside(EntryKind::cache)); }
  const std::atomic<Content>* unit_contents() const {
    return static_cast<std::atomic<Content>*>(beside(EntryKind::unit_contents));
  }

 private:
  enum class EntryKind : std::uintptr_t { nothing, cache, unit_contents };
  static constexpr std::uintptr_t kKindMask = 7;
  void enter(Content content, const void* beside, EntryKind kind) {
    beside_.store(reinterpret_cast<std::uintptr_t>(beside) | static_cast<std::uintptr_t>(kind),
                  std::memory_order_relaxed);
    content_.store(content, std::memory_order_release);  // its owner is written before
  }
  // Null if of another kind.
  void* beside(EntryKind kind) const {
    const std::uintptr_t bits = beside_.load(std::memory_order_relaxed);
    return (bits & kKindMask) == static_cast<std::uintptr_t>(kind)
               ? reinterpret_cast<void*>(bits & ~kKindMask)
               : nullptr;
  }

  std::atomic<Content> content_;
  std::atomic<std::uintptr_t> beside_;  // the last bits say of which kind it is
};

// Holder of an allocation of the pool: the run of the page (with the last bit set), or the cache
// that keeps it. Written under the cache's lock, read under the pool's.
inline void* holder_of(const region::Region& region) {
  return std::atomic_ref<void*>(const_cast<void*&>(region.holder)).load(std::memory_order_relaxed);
}
inline void set_holder(region::Region& region, void* holder) {
  std::atomic_ref<void*>(region.holder).store(holder, std::memory_order_relaxed);
}

// Run of the page; null if the page is not cut.
inline PageRun* run_in(const region::Region& page) {
  const auto bits = reinterpret_cast<std::uintptr_t>(holder_of(page));
  return (bits & 1) != 0 ? reinterpret_cast<PageRun*>(bits & ~std::uintptr_t{1}) : nullptr;
}
inline bool is_cut(const region::Region& page) { return run_in(page) != nullptr; }
inline bool is_cached(const region::Region& region) {
  return holder_of(region) != nullptr && !is_cut(region);
}
inline void set_run_in(region::Region& page, const PageRun& run) VPMM_REQUIRES(pool_lock) {
  set_holder(page, reinterpret_cast<void*>(reinterpret_cast<std::uintptr_t>(&run) | 1));
}

// Note [Streams share no line]
// Threads with streams of their own write no common cache line in warm calls. Caches, slabs,
// segments and regions begin a line, and their arrays fill whole lines. A stream writes the
// contents of its segment's units when it cuts or ends a slab. If a segment begins or ends within a
// line of the run's table, the segment itself has these contents, and the table names the place.
//
// Exception: four entries of the pagemap share a line. An entry is written when a slab that fills
// its page begins or ends, or when the first slab is cut in a page of spans. A line for each entry
// would make every free of a stream with many pages slower.
constexpr std::uint64_t kContentsInLine = kCacheLine / sizeof(std::atomic<Content>);

inline Content content_in(const std::atomic<Content>& entry) {
  const Content content = entry.load(std::memory_order_acquire);
  const std::atomic<Content>* const place = content.place();
  return place == nullptr ? content : place->load(std::memory_order_acquire);
}

// Note [Small requests may cross pages]
// A run is a stretch of address space in which the pool's pages come and go. A span may begin in
// one page and end in the next: otherwise a stream that asks for little more than half a page again
// and again would hold twice as much. For such spans a segment grows by the whole pages behind it.
// But a span that crosses keeps two pages from going back, and free pages beside it stay with the
// stream. So only spans of more than half a page cross, and up to a page only where they are three
// quarters of what their stream has; otherwise smaller requests use the rest of their pages. Spans
// of several pages always cross, and other requests where there is no other room.
// docs/design/small-requests.md has the figures.
constexpr std::size_t kMostRunPages = pool::kPagesInLine;

// `contents` names the slab around each unit, or else the segment. Where one segment has all of a
// page and no slab was cut there, the pagemap names the segment directly: this spares frees of
// spans a look at a large table. Contents are written under the lock of the segment's cache, and
// read without it. A reader takes that lock and checks that the segment still has the cache and the
// unit, because a segment may be split, and its page's entry may come to name the run.
struct alignas(kCacheLine) PageRun {
  AddressRange range;
  Bytes page_size = 0;
  PagemapEntry* entries = nullptr;           // of its pages; null: the pagemap does not cover them
  std::atomic<Content>* contents = nullptr;  // by unit; begins a line
  std::array<region::Region*, kMostRunPages> pages{};  // allocations in the pool; null: not cut

  std::uint64_t unit_of(DevicePtr p) const { return (p - range.begin) / kUnit; }
  std::size_t page_of(DevicePtr p) const {
    return static_cast<std::size_t>((p - range.begin) / page_size);
  }
  void set_content(DevicePtr begin, std::uint64_t units, const Segment& content)
      VPMM_REQUIRES(cache_lock) {
    set_contents(begin, units, [&](std::uint64_t) { return Content(&content); });
    if (PagemapEntry* const entry = entry_of({begin, units * kUnit}))
      entry->enter(*this, page_of(begin));
  }
  void set_content(const Slab& content) VPMM_REQUIRES(cache_lock) {
    set_contents(content.begin, content.units, [&](std::uint64_t unit) VPMM_REQUIRES(cache_lock) {
      return Content(content, unit);
    });
    if (entries == nullptr) return;
    if (PagemapEntry* const entry = entry_of({content.begin, content.bytes()}))
      return entry->enter(content);
    for (std::size_t page = page_of(content.begin);
         page <= page_of(content.begin + (content.bytes() - 1)); ++page)
      if (entries[page].content().segment() != nullptr) entries[page].enter(*this, page);
  }
  // Visits the entries of the pages that lie wholly in `part`, with their numbers.
  template <typename Visit>
  void for_each_entry(AddressRange part, Visit&& visit) const {
    if (entries == nullptr) return;
    const Bytes first = (part.begin - range.begin + page_size - 1) / page_size;
    const Bytes end = (part.end() - range.begin) / page_size;
    for (Bytes page = first; page < end; ++page)
      visit(entries[page], static_cast<std::size_t>(page));
  }
  bool is_page(AddressRange part) const {
    return part.size == page_size && range.begin + page_of(part.begin) * page_size == part.begin;
  }

 private:
  template <typename ContentOf>
  void set_contents(DevicePtr begin, std::uint64_t units, ContentOf&& content_of)
      VPMM_REQUIRES(cache_lock) {
    for (std::uint64_t unit = 0; unit < units; ++unit) {
      std::atomic<Content>& entry = contents[unit_of(begin) + unit];
      std::atomic<Content>* const place = entry.load(std::memory_order_relaxed).place();
      (place == nullptr ? entry : *place).store(content_of(unit), std::memory_order_release);
    }
  }
  // Entry of the page `part`; null if `part` is no page, or is not in the pagemap.
  PagemapEntry* entry_of(AddressRange part) const {
    return entries == nullptr || !is_page(part) ? nullptr : &entries[page_of(part.begin)];
  }
};
inline void PagemapEntry::enter(const PageRun& run, std::size_t page) {
  enter(Content(&run), run.contents + page * (run.page_size / kUnit), EntryKind::unit_contents);
}

}  // namespace vpmm::small
