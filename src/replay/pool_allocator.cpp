// SPDX-License-Identifier: Apache-2.0
// replay: the pool as a trace's allocator.
#include "replay/pool_allocator.hpp"

namespace vpmm::replay {

Result<DevicePtr> PoolAllocator::allocate(Bytes bytes, driver::StreamHandle stream) {
  return context_->allocate({.bytes = bytes, .alignment = 0, .stream = stream});
}

Result<void> PoolAllocator::deallocate(DevicePtr ptr, driver::StreamHandle stream) {
  return context_->deallocate(ptr, stream);
}

Result<TraceFootprint> PoolAllocator::footprint() {
  const observe::Statistics now = statistics();
  return TraceFootprint{now.peak_mapped_bytes, now.peak_chunks, now.plans};
}

Result<std::unique_ptr<TraceAllocator>> make_page_allocator(driver::Driver& driver,
                                                            const settings::Config& config) {
  if (!config.pool_enabled)
    return Error{ErrorCode::bad_configuration,
                 "VPMM_PAGE_SIZE=max switches off the pool that would have one chunk per page"};
  settings::Config wanted = config;
  wanted.page_chunks = true;
  return make_pool_allocator(driver, wanted);
}

Result<std::unique_ptr<TraceAllocator>> make_pool_allocator(driver::Driver& driver,
                                                            const settings::Config& config) {
  VPMM_TRY_ASSIGN(auto context, context::Context::create(driver, 0, config));
  return std::unique_ptr<TraceAllocator>(std::make_unique<PoolAllocator>(std::move(context)));
}

}  // namespace vpmm::replay
