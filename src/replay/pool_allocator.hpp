// SPDX-License-Identifier: Apache-2.0
// replay: the pool as a trace's allocator.
#pragma once

#include <memory>
#include <utility>

#include "context/context.hpp"
#include "replay/trace_allocator.hpp"

namespace vpmm::replay {

class PoolAllocator : public TraceAllocator {
 public:
  explicit PoolAllocator(std::unique_ptr<context::Context> context)
      : context_(std::move(context)) {}

  Result<DevicePtr> allocate(Bytes bytes, driver::StreamHandle stream) override;
  Result<void> deallocate(DevicePtr ptr, driver::StreamHandle stream) override;
  Result<TraceFootprint> footprint() override;
  observe::Statistics statistics() { return context_->reports().statistics(); }

 private:
  const std::unique_ptr<context::Context> context_;
};

Result<std::unique_ptr<TraceAllocator>> make_pool_allocator(driver::Driver& driver,
                                                            const settings::Config& config);
// With one chunk per page, whatever `config` says. An error where the settings switch the pool off.
Result<std::unique_ptr<TraceAllocator>> make_page_allocator(driver::Driver& driver,
                                                            const settings::Config& config);

}  // namespace vpmm::replay
