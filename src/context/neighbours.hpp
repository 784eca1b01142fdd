// context: the pools of one GPU in this process give each other what they hold idle.
#pragma once

#include "context/context.hpp"

namespace vpmm::context {

// Note [Neighbours give back what they hold idle]
// What one pool holds idle must not be why another of the same GPU and driver runs out of memory.
// So a pool that would report a shortage of the GPU first has the others give back what is idle and
// complete, as Context::trim does. Their memory is the GPU's again and nobody's, so whoever is
// faster gets it.
//
// One mutex guards the list, and nobody calls the driver under it. A pool that is being trimmed is
// pinned: whoever destroys it waits, and everybody else opens and destroys pools meanwhile. Two
// pools that are short at once trim each other side by side, for neither holds its own lock. A trim
// asks for no memory, so it never comes back here.

// From now on `pool` is asked by others.
void enter_neighbourhood(Context& pool);
// Never again, and no longer, when this returns. Does nothing when it did not enter, and while the
// process ends.
void leave_neighbourhood(Context& pool) noexcept;
// Has each pool that there is print its summary: for exit, when the gate is closed. Waits for no
// lock.
void summarize_all() noexcept;
// Has the others give back `bytes`, or as much as they have. Returns what they gave back.
Bytes ask_neighbours(Context& asking, Bytes bytes);

}  // namespace vpmm::context
