// replay: the pool as a trace's allocator.
#pragma once

#include "replay/trace_allocator.hpp"

namespace vpmm::replay {

Result<std::unique_ptr<TraceAllocator>> make_pool_allocator(driver::Driver& driver, const context::Config& config);
// With one chunk per page, whatever `config` says. An error where the settings switch the pool off.
Result<std::unique_ptr<TraceAllocator>> make_page_allocator(driver::Driver& driver, const context::Config& config);

}  // namespace vpmm::replay
