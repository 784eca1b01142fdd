// SPDX-License-Identifier: Apache-2.0
// small: the sizes that requests take.
#include "small/serving.hpp"

namespace vpmm::small {

namespace {

// Least page that is cut above a page: spans of smaller pages have other sizes than PageSizes.
constexpr Bytes kLeastCutAbove = kMiB;

}  // namespace

static_assert(kLeastSpan < kLeastPage, "a block is smaller than any page that is cut");

Serving::Serving(const ServingOptions& options, const pool::Memory& memory)
    : options_(options),
      cuts_pages_(options.below_a_page == BelowAPage::cut && options.caches_pages &&
                  !memory.pages_stand_alone() && memory.page_size() >= kLeastCutAbove),
      page_unit_(memory.page_size()),
      page_sizes_(memory.page_size(), memory.tuning.grain) {}

Bytes Serving::taken_for(Bytes bytes) const {
  switch (server_of(bytes, 0)) {
    case Server::blocks: return kShapes[slab_class(bytes)].block;
    case Server::spans: return span_units(bytes) * kUnit;
    default: return page_sizes_.rounded(bytes);
  }
}

}  // namespace vpmm::small
