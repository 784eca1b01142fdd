// SPDX-License-Identifier: Apache-2.0
// time: CUDA contexts with work that may use the memory of a pool.
#pragma once

#include <algorithm>

#include "base/host_memory.hpp"
#include "base/mutex.hpp"
#include "driver/types.hpp"

namespace vpmm::time {

// CUDA context by its handle, which a later one may reuse, and its unique id.
struct KnownContext {
  driver::ContextHandle handle{};
  driver::ContextId id{};
  friend bool operator==(const KnownContext&, const KnownContext&) = default;
};

// Note [Everybody is in every known context]
// Memory without named users may be in use in the primary context and in others: those of streams
// that have called, and of devices that were given access. An event covers the streams of one
// context only. So a set of events, one in each of these contexts, proves such memory, once all are
// done. A dead context takes its event out of the sets, as its work is over, too.
struct KnownContexts {
  KnownContext primary;         // of handles 0, 1 and 2
  Vector<KnownContext> others;  // known, without the primary one

  // Declares that work in this context may use the memory of everybody from now on.
  void add(const KnownContext& context) {
    if (context.id == primary.id ||
        std::find(others.begin(), others.end(), context) != others.end())
      return;
    others.push_back(context);
  }
  void remove(driver::ContextId dead) {
    std::erase_if(others, [&](const KnownContext& other) { return other.id == dead; });
  }
};

}  // namespace vpmm::time
