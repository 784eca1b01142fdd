// SPDX-License-Identifier: Apache-2.0
// region: begins and ends of regions at the pages of one reservation.
#pragma once

#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <new>
#include <optional>

#include "base/zeroed_array.hpp"
#include "region/page_set.hpp"
#include "region/region.hpp"

namespace vpmm::region {

// One entry and four bits a page, in a single calloc: a reservation of 8 TiB has four million
// pages, and those never written cost address space only. A region is noted at its begin and end,
// so that large ones cost no more than small ones; the bits of one page share a cache line.
class PageTable {
 public:
  explicit PageTable(std::uint64_t pages)
      : entries_(allocate(pages)),
        groups_(static_cast<Group*>(static_cast<void*>(entries_.get() + pages))),
        with_owners_(static_cast<std::uint64_t*>(static_cast<void*>(groups_ + groups(pages))),
                     groups(pages)),
        with_junctions_(static_cast<std::uint64_t*>(static_cast<void*>(groups_ + groups(pages))) +
                            PageSet::words(groups(pages)),
                        groups(pages)) {
    // Faults in the memory that the first region needs.
    std::atomic_ref<Region*>(entries_[0]).store(nullptr, std::memory_order_relaxed);
    with_owners_.add(0);
    with_owners_.remove(0);
    with_junctions_.add(0);
    with_junctions_.remove(0);
    std::atomic_ref<std::uint64_t>(groups_[0].owners).store(0, std::memory_order_relaxed);
  }

  // Allocated region that begins at `page`; if no region is entered there, the last allocated one
  // before it. Null if none, or if a free region is entered there.
  Region* owner(std::uint64_t page) const {
    if (Region* const begins = entries_[page])
      return begins->state == RegionState::allocated ? begins : nullptr;
    std::uint64_t group = page / 64;
    std::uint64_t before = groups_[group].owners & (bit(page) - 1);
    if (before == 0) {
      const std::optional<std::uint64_t> last =
          group == 0 ? std::nullopt : with_owners_.last_up_to(group - 1);
      if (!last) return nullptr;
      group = *last;
      before = groups_[group].owners;
    }
    return entries_[group * 64 + 63 - static_cast<std::uint64_t>(std::countl_zero(before))];
  }
  void add_owner(std::uint64_t page, Region* owner) {
    add(page, owner, &Group::owners, with_owners_);
  }
  void remove_owner(std::uint64_t page) { remove(page, &Group::owners, with_owners_); }

  // Marks or unmarks a free region from page `begin` to `end`. So a region learns of free
  // neighbours without a read of their nodes, which are likely in no cache.
  void flip_free(std::uint64_t begin, std::uint64_t end) {
    groups_[begin / 64].free_begins ^= bit(begin);
    groups_[end / 64].free_ends ^= bit(end);
  }
  bool free_begins_at(std::uint64_t page) const {
    return (groups_[page / 64].free_begins & bit(page)) != 0;
  }
  bool free_ends_at(std::uint64_t page) const {
    return (groups_[page / 64].free_ends & bit(page)) != 0;
  }

  // Junction: the page where two free regions touch; `behind` is the second of them.
  bool is_junction(std::uint64_t page) const {
    return (groups_[page / 64].junctions & bit(page)) != 0;
  }
  bool has_junctions() const { return !with_junctions_.empty(); }
  void add_junction(std::uint64_t page, Region* behind) {
    add(page, behind, &Group::junctions, with_junctions_);
  }
  void remove_junction(std::uint64_t page) { remove(page, &Group::junctions, with_junctions_); }
  // Region behind the first junction from `page` on; null if none.
  Region* first_behind_junction(std::uint64_t page) const {
    std::uint64_t group = page / 64;
    std::uint64_t found = groups_[group].junctions & (~std::uint64_t{0} << page % 64);
    if (found == 0) {
      const std::optional<std::uint64_t> next = with_junctions_.first_from(group + 1);
      if (!next) return nullptr;
      group = *next;
      found = groups_[group].junctions;
    }
    return entries_[group * 64 + static_cast<std::uint64_t>(std::countr_zero(found))];
  }

  // --- for validate() ---
  Region* entry(std::uint64_t page) const { return entries_[page]; }
  bool is_owned_from(std::uint64_t page) const {
    return (groups_[page / 64].owners & bit(page)) != 0;
  }
  std::uint64_t owners() const {
    return count(with_owners_, [](const Group& group) { return group.owners; });
  }
  std::uint64_t junctions() const {
    return count(with_junctions_, [](const Group& group) { return group.junctions; });
  }

 private:
  // Bits of 64 pages.
  struct Group {
    std::uint64_t free_begins = 0;  // a free region begins at the page
    std::uint64_t free_ends = 0;    // a free region ends at the page
    std::uint64_t owners = 0;       // an allocated region begins at the page
    std::uint64_t junctions = 0;    // a free region begins at the page, and another ends there
  };

  static std::uint64_t bit(std::uint64_t page) { return std::uint64_t{1} << page % 64; }
  // One page more than the reservation: a region may end behind the last.
  static std::uint64_t groups(std::uint64_t pages) { return pages / 64 + 1; }
  static ZeroedArray<Region*> allocate(std::uint64_t pages) {
    static_assert(sizeof(Region*) == sizeof(std::uint64_t) && alignof(Group) <= sizeof(Region*),
                  "one piece for all");
    const std::size_t extra =
        groups(pages) * sizeof(Group) + 2 * PageSet::words(groups(pages)) * sizeof(std::uint64_t);
    auto entries = zeroed_array<Region*>(pages, extra);
    if (entries == nullptr) throw std::bad_alloc();
    return entries;
  }
  // `of`: groups with a bit of `bits` set.
  void add(std::uint64_t page, Region* region, std::uint64_t Group::*bits, PageSet& of) {
    entries_[page] = region;
    std::uint64_t& group = groups_[page / 64].*bits;
    if (group == 0) of.add(page / 64);
    group |= bit(page);
  }
  void remove(std::uint64_t page, std::uint64_t Group::*bits, PageSet& of) {
    entries_[page] = nullptr;
    std::uint64_t& group = groups_[page / 64].*bits;
    group &= ~bit(page);
    if (group == 0) of.remove(page / 64);
  }
  template <typename Bits>
  std::uint64_t count(const PageSet& of, const Bits& bits) const {
    std::uint64_t all = 0;
    for (auto group = of.first_from(0); group; group = of.first_from(*group + 1))
      all += static_cast<std::uint64_t>(std::popcount(bits(groups_[*group])));
    return all;
  }

  // The region that begins at a page, if allocated or behind a junction.
  ZeroedArray<Region*> entries_;
  Group* groups_;
  PageSet with_owners_;
  PageSet with_junctions_;
};

}  // namespace vpmm::region
