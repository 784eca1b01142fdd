// pool: the ways in which a request can be satisfied, each a function from what there is to a plan.
#pragma once

#include "pool/plan.hpp"
#include "pool/view.hpp"

namespace vpmm::pool {

// Pure: each looks at the view, changes nothing and calls no driver. Their plans never use memory
// that the caller may not use, and never exceed the ask's bounds.

// A piece of a free region, or of neighbours that only their stamps divide. No driver call.
Decision fit(const View& view, const Ask& ask) VPMM_REQUIRES(pool_lock);
// What fit() does not find: Note [A plan].
Decision stitch(const View& view, const Ask& ask) VPMM_REQUIRES(pool_lock);
// One new chunk: where the number of mappings is at its limit.
Decision grow_in_one_chunk(const View& view, const Ask& ask) VPMM_REQUIRES(pool_lock);

}  // namespace vpmm::pool
