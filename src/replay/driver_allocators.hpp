// SPDX-License-Identifier: Apache-2.0
// replay: the driver's own allocators, for comparison.
#pragma once

#include "replay/trace_allocator.hpp"

namespace vpmm::replay {

// cuMemAlloc and cuMemFree. A free waits for its stream first: cuMemFree does not promise to.
Result<std::unique_ptr<TraceAllocator>> make_plain_allocator(driver::Driver& driver);
// An own pool of cuMemAllocFromPoolAsync that never gives memory back.
Result<std::unique_ptr<TraceAllocator>> make_stream_ordered_allocator(driver::Driver& driver);

}  // namespace vpmm::replay
