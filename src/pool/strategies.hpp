// SPDX-License-Identifier: Apache-2.0
// pool: ways to satisfy a request, each a function from the view to a plan.
#pragma once

#include "pool/plan.hpp"
#include "pool/view.hpp"

namespace vpmm::pool {

// Pure: reads the view only, without driver calls. Plans use only memory open to the caller, within
// the ask's bounds.

// Plans a piece of a free region, or of neighbours that only their stamps divide. No driver call.
Decision fit(const View& view, const Ask& ask) VPMM_REQUIRES(pool_lock);
// Plans by Note [A plan], after fit() found no place.
Decision stitch(const View& view, const Ask& ask) VPMM_REQUIRES(pool_lock);
// Plans one new chunk, for when the number of mappings is at its limit.
Decision grow_in_one_chunk(const View& view, const Ask& ask) VPMM_REQUIRES(pool_lock);

}  // namespace vpmm::pool
