// SPDX-License-Identifier: Apache-2.0
// small: from an address to the owner of the page around it, without a lock.
#pragma once

#include <array>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include "base/address.hpp"
#include "base/host_memory.hpp"
#include "base/zeroed_array.hpp"
#include "small/page_run.hpp"

namespace vpmm::small {

// One table per reservation, an entry per page; entries never written cost address space only.
// Reservations are large, so that there are few: they are looked through in the order in which they
// came, sixteen at a time.
class Pagemap {
 public:
  explicit Pagemap(Bytes page_size)
      : page_size_(page_size),
        shift_(is_power_of_two(page_size) ? std::countr_zero(page_size) : -1) {}

  struct Place {
    PagemapEntry* entry = nullptr;  // null: not covered
    Bytes offset = 0;               // from where its page begins
  };
  // Any thread, without a lock.
  Place find(DevicePtr p) const {
    for (const CoveredSpace* tables = &first_; tables != nullptr;
         tables = tables->next.load(std::memory_order_acquire)) {
      const std::size_t count = tables->count.load(std::memory_order_acquire);
      for (std::size_t i = 0; i < count; ++i) {
        const Covered& table = tables->each[i];
        const Bytes offset =
            to_integer(p) - to_integer(table.range.begin);  // huge when p lies below
        if (offset >= table.range.size) continue;
        const std::uint64_t page = shift_ >= 0 ? offset >> shift_ : offset / page_size_;
        return {&table.entries[page], offset - page * page_size_};
      }
    }
    return {};
  }
  PagemapEntry* at(DevicePtr p) const { return find(p).entry; }

  // Adds a table for the reservation; no effect if it is covered.
  void cover(AddressRange reservation) VPMM_REQUIRES(pool_lock) {
    if (at(reservation.begin) != nullptr) return;
    const auto pages = static_cast<std::size_t>(reservation.size / page_size_);
    auto entries = zeroed_array<PagemapEntry>(pages);
    if (entries == nullptr) return;  // calls for memory there take the pool's lock
    if (last_->count.load(std::memory_order_relaxed) == kTables) {
      more_.push_back(std::make_unique<CoveredSpace>());
      last_->next.store(more_.back().get(), std::memory_order_release);
      last_ = more_.back().get();
    }
    const std::size_t count = last_->count.load(std::memory_order_relaxed);
    last_->each[count] = {reservation, std::move(entries)};
    last_->count.store(count + 1, std::memory_order_release);
  }

 private:
  struct Covered {
    AddressRange range;
    ZeroedArray<PagemapEntry> entries;
  };
  static constexpr std::size_t kTables = 16;
  struct CoveredSpace : FromHostMemory {
    std::array<Covered, kTables> each{};
    std::atomic<std::size_t> count{0};
    std::atomic<const CoveredSpace*> next{nullptr};
  };

  const Bytes page_size_;
  const int shift_;
  CoveredSpace first_;
  CoveredSpace* last_ = &first_;
  Vector<std::unique_ptr<CoveredSpace>> more_;
};

}  // namespace vpmm::small
