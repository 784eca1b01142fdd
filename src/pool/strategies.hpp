// pool: the ways in which a request can be satisfied, each a function from what there is to a plan with its price.
#pragma once

#include <span>

#include "pool/plan.hpp"
#include "pool/view.hpp"

namespace vpmm::pool {

// Pure: each looks at the view, changes nothing and calls no driver. Their plans never use memory that the caller may
// not use, never exceed the ask's bounds, and never leave a chunk to two owners.
using Strategy = Decision (*)(const View&, const Ask&);

// A window: chunks side by side in one stretch whose sum is the request, or a little more. No driver call.
Decision fit(const View& view, const Ask& ask) VPMM_REQUIRES(pool_lock);
// Idle chunks behind a kept end of a stretch; new memory only for what all idle memory together lacks.
Decision stitch(const View& view, const Ask& ask) VPMM_REQUIRES(pool_lock);
// New memory behind a kept end of a stretch, within early growth.
Decision grow(const View& view, const Ask& ask) VPMM_REQUIRES(pool_lock);
// The cheaper of the two, behind the same kept end.
Decision grow_or_stitch(const View& view, const Ask& ask) VPMM_REQUIRES(pool_lock);
// One idle chunk of just that size. No driver call.
Decision fit_one_chunk(const View& view, const Ask& ask) VPMM_REQUIRES(pool_lock);
// One new chunk: where the number of mappings is at its limit, or one is asked for.
Decision grow_in_one_chunk(const View& view, const Ask& ask) VPMM_REQUIRES(pool_lock);

// The first that costs no driver call; else the one whose price is least. Where none has a plan, the least that any
// of them misses: address space where one misses nothing else.
Decision cheapest(std::span<const Strategy> strategies, const View& view, const Ask& ask) VPMM_REQUIRES(pool_lock);

}  // namespace vpmm::pool
