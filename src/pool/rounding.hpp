// pool: which sizes requests of a page and more are rounded to.
#pragma once

#include "base/bytes.hpp"
#include "pool/config.hpp"
#include "region/page_unit.hpp"

namespace vpmm::pool {

// Note [The rest of the last page]
// Chunks are whole pages, and so are many requests: sizes that are nearly alike become the same, and one fits where
// another was. But what is left of a request's last page is lost as long as it lives. Where that is more than a 32nd of
// the request, its last page is cut at an eighth of a page, a slice, and the next allocation may begin there. Nothing
// takes less than a page while there are pages, so of what stays in hand no two begin in the same one, which the
// directory of the small path relies on. What takes less (Note [Parts of pages when there are no pages]) is not listed
// there.
// docs/design/chunk-policy.md has the figures.
class Rounding {
 public:
  static constexpr Bytes kSlicesPerPage = 8;
  static constexpr Bytes kRestDivisor = 32;
  // Where pages are cut, so many lie side by side in the same way wherever the system reserves address space.
  static constexpr Bytes kPagesInLine = 16;

  Rounding(const Config& config, Bytes page_size) : page_(page_size), slice_(slice_size(config, page_size)) {}

  Bytes page_size() const { return page_.bytes(); }
  // What all sizes and addresses are multiples of.
  Bytes slice_size() const { return slice_.bytes(); }
  bool cuts_pages() const { return slice_.bytes() < page_.bytes(); }
  std::uint64_t slices(Bytes bytes) const { return slice_.pages(bytes); }
  // `cuts_second_page`: where two pages would do, too (Note [Requests of one to two pages]).
  Bytes rounded(Bytes bytes, bool cuts_second_page) const {
    const Bytes whole = page_.pages_up(bytes) * page_.bytes();
    const Bytes saved = slice_.pages(whole - bytes) * slice_.bytes();
    return whole > (cuts_second_page ? 1 : 2) * page_.bytes() && saved * kRestDivisor > bytes ? whole - saved : whole;
  }

 private:
  // A slice is a power of two, so that addresses are aligned to it.
  static Bytes slice_size(const Config& config, Bytes page_size) {
    static_cast<void>(config);
    return page_size;
  }

  region::PageUnit page_;
  region::PageUnit slice_;
};

}  // namespace vpmm::pool
