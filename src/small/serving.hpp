// SPDX-License-Identifier: Apache-2.0
// small: the server of a request, by its size, and the memory that it takes.
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/page_unit.hpp"
#include "pool/memory.hpp"
#include "small/cached_pages.hpp"
#include "small/crowding.hpp"
#include "small/size_class.hpp"

namespace vpmm::small {

enum class BelowAPage { cut, whole_pages, driver_pool };  // requests below a page
enum class Server { blocks, spans, pages, driver_pool };

struct ServingOptions {
  BelowAPage below_a_page = BelowAPage::cut;
  bool caches_pages = true;         // whole pages may stay in a stream's cache
  bool proves_frees = false;        // an event for each page that a stream frees, for other streams
  std::uint32_t crowded_after = 4;  // Note [Streams that crowd cut their own]; 0: always
};

// Constant, so that any thread reads it without a lock.
class Serving {
 public:
  Serving(const ServingOptions& options, const pool::Memory& memory);

  static bool can_cut(Bytes page_size) {
    return is_multiple(page_size, kUnit) && page_size >= kLeastPage;
  }
  static bool is_below_a_page(Bytes bytes, Bytes alignment, Bytes page_size) {
    return std::max(span_units(bytes) * kUnit, alignment) < page_size;
  }
  // Decides the server of a request of an ordinary stream; the only place that does.
  Server server_of(Bytes bytes, Bytes alignment) const {
    // The answer for most requests. A cut page is never smaller than the largest block.
    if (bytes <= kLargestBlock && alignment <= kGrain && options_.below_a_page == BelowAPage::cut)
      return Server::blocks;
    if (bytes >= page_size()) return Server::pages;
    if (options_.below_a_page == BelowAPage::driver_pool)
      return alignment <= kGrain ? Server::driver_pool : Server::pages;
    if (options_.below_a_page == BelowAPage::whole_pages ||
        !is_below_a_page(bytes, alignment, page_size()))
      return Server::pages;
    return bytes <= kLargestBlock ? Server::blocks : Server::spans;
  }
  bool may_be_cached(Bytes bytes, Bytes alignment) const {
    return bytes <= page_sizes_.most() && alignment <= kGrain && (alignment & (alignment - 1)) == 0;
  }
  // Tells if a cache keeps whole pages of that size.
  bool keeps_pages(Bytes size) const { return options_.caches_pages && size <= page_sizes_.most(); }
  bool proves_frees() const { return options_.proves_frees; }
  // Note [Streams that crowd cut their own]
  bool cuts_pages_for(const Crowding& crowding) const VPMM_REQUIRES(cache_lock) {
    return cuts_pages_ && (options_.crowded_after == 0 || crowding.is_crowded());
  }
  void note_miss(Crowding& crowding, bool is_lock_taken) const VPMM_REQUIRES(cache_lock) {
    crowding.note(is_lock_taken, options_.crowded_after);
  }
  // Bytes of the pool's memory that a request takes.
  Bytes taken_for(Bytes bytes) const;
  // Bytes that it takes if served as pages.
  Bytes size_of_pages(Bytes bytes) const { return page_sizes_.rounded(bytes); }
  const PageSizes& page_sizes() const { return page_sizes_; }
  Bytes page_size() const { return page_unit_.bytes(); }

 private:
  const ServingOptions options_;
  const bool cuts_pages_;  // of a page and more, for streams that crowd
  const PageUnit page_unit_;
  const PageSizes page_sizes_;
};

}  // namespace vpmm::small
