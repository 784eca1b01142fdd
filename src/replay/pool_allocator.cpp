// replay: the pool as a trace's allocator.
#include "replay/pool_allocator.hpp"

#include "context/context.hpp"

namespace vpmm::replay {
namespace {

class PoolAllocator final : public TraceAllocator {
 public:
  explicit PoolAllocator(std::unique_ptr<context::Context> context) : context_(std::move(context)) {}

  Result<DevicePtr> allocate(Bytes bytes, driver::StreamHandle stream) override {
    return context_->allocate({.bytes = bytes, .alignment = 0, .stream = stream});
  }
  Result<void> deallocate(DevicePtr ptr, driver::StreamHandle stream) override {
    return context_->deallocate(ptr, stream);
  }
  Result<Footprint> footprint() override {
    const observe::Statistics statistics = context_->statistics();
    return Footprint{statistics.peak_mapped_bytes, statistics.peak_chunks, statistics.plans};
  }

 private:
  const std::unique_ptr<context::Context> context_;
};

}  // namespace

Result<std::unique_ptr<TraceAllocator>> make_page_allocator(driver::Driver& driver, const context::Config& config) {
  if (!config.pool_enabled)
    return Error{ErrorCode::bad_configuration,
                 "VPMM_PAGE_SIZE=max switches off the pool that would have one chunk per page"};
  context::Config wanted = config;
  wanted.page_chunks = true;
  return make_pool_allocator(driver, wanted);
}

Result<std::unique_ptr<TraceAllocator>> make_pool_allocator(driver::Driver& driver, const context::Config& config) {
  VPMM_TRY_ASSIGN(auto context, context::Context::create(driver, 0, config));
  return std::unique_ptr<TraceAllocator>(std::make_unique<PoolAllocator>(std::move(context)));
}

}  // namespace vpmm::replay
