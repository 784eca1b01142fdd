// region: from a page number of one reservation to the allocated region around it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>

#include "region/region.hpp"

namespace vpmm::region {

// An entry a page, zero by calloc: a reservation of 8 TiB has four million, and those never written cost address space
// only, no memory.
class OwnerTable {
 public:
  explicit OwnerTable(std::uint64_t pages)
      : entries_(static_cast<Region**>(std::calloc(static_cast<std::size_t>(pages), sizeof(Region*)))) {
    if (!entries_) throw std::bad_alloc();
  }

  Region* at(std::uint64_t page) const { return entries_[page]; }
  void set(std::uint64_t first, std::uint64_t count, Region* owner) {
    for (std::uint64_t page = first; page < first + count; ++page) entries_[page] = owner;
    owned_pages_ += count;
  }
  void clear(std::uint64_t first, std::uint64_t count) {
    for (std::uint64_t page = first; page < first + count; ++page) {
      if (entries_[page] == nullptr) continue;
      entries_[page] = nullptr;
      --owned_pages_;
    }
  }
  // Entries that are not null, so that validate() need not read them all. Requires: set() covers null entries only.
  std::uint64_t owned_pages() const { return owned_pages_; }

 private:
  struct Free {
    void operator()(Region** entries) const { std::free(entries); }
  };
  std::unique_ptr<Region*[], Free> entries_;
  std::uint64_t owned_pages_ = 0;
};

}  // namespace vpmm::region
