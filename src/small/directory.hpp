// small: from an address to what owns the page around it, without a lock.
#pragma once

#include <array>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>

#include "base/address.hpp"
#include "small/arena.hpp"

namespace vpmm::small {

// One table per reservation, an entry per page; entries never written cost address space only. Covers the first few
// reservations of a pool: memory elsewhere takes the way through the pool's lock.
class Directory {
 public:
  explicit Directory(Bytes page_size)
      : page_size_(page_size), shift_(is_power_of_two(page_size) ? std::countr_zero(page_size) : -1) {}

  struct Place {
    PageEntry* entry = nullptr;  // null: not covered
    Bytes offset = 0;            // from where its page begins
  };
  // Any thread, without a lock.
  Place find(DevicePtr p) const {
    const std::size_t count = count_.load(std::memory_order_acquire);
    for (std::size_t i = 0; i < count; ++i) {
      const Table& table = tables_[i];
      const Bytes offset = to_integer(p) - to_integer(table.range.begin);  // huge when p lies below
      if (offset >= table.range.size) continue;
      const std::uint64_t page = shift_ >= 0 ? offset >> shift_ : offset / page_size_;
      return {&table.entries.get()[page], offset - page * page_size_};
    }
    return {};
  }
  PageEntry* at(DevicePtr p) const { return find(p).entry; }

  // Does nothing when it is covered already, or when there is no room for another table.
  void cover(AddressRange reservation) VPMM_REQUIRES(pool_lock) {
    const std::size_t count = count_.load(std::memory_order_relaxed);
    if (count == kTables || at(reservation.begin) != nullptr) return;
    const auto pages = static_cast<std::size_t>(reservation.size / page_size_);
    auto* entries = static_cast<PageEntry*>(std::calloc(pages, sizeof(PageEntry)));
    if (entries == nullptr) throw std::bad_alloc();
    tables_[count] = {reservation, std::unique_ptr<PageEntry, Free>(entries)};
    count_.store(count + 1, std::memory_order_release);
  }

 private:
  struct Free {
    void operator()(PageEntry* entries) const { std::free(entries); }
  };
  struct Table {
    AddressRange range;
    std::unique_ptr<PageEntry, Free> entries;
  };
  static constexpr std::size_t kTables = 16;

  const Bytes page_size_;
  const int shift_;
  std::array<Table, kTables> tables_{};
  std::atomic<std::size_t> count_{0};
};

}  // namespace vpmm::small
