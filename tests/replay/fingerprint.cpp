// SPDX-License-Identifier: Apache-2.0
// tests: what an allocator hands out is added to the fingerprint.
#include "replay/fingerprint.hpp"

#include <utility>

namespace vpmm::replay {

namespace {

class Watched final : public TraceAllocator {
 public:
  Watched(std::unique_ptr<TraceAllocator> inner, test::FingerprintDriver& driver)
      : inner_(std::move(inner)), driver_(driver) {}

  Result<DevicePtr> allocate(Bytes bytes, driver::StreamHandle stream) override {
    auto ptr = inner_->allocate(bytes, stream);
    ptr ? driver_.add_address(ptr.value()) : driver_.add_refusal();
    return ptr;
  }
  Result<void> deallocate(DevicePtr ptr, driver::StreamHandle stream) override {
    return inner_->deallocate(ptr, stream);
  }
  Result<TraceFootprint> footprint() override {  // asked once, when the trace is over
    driver_.take();
    return inner_->footprint();
  }

 private:
  const std::unique_ptr<TraceAllocator> inner_;
  test::FingerprintDriver& driver_;
};

}  // namespace

AllocatorRecipe FingerprintMachine::watched(const AllocatorRecipe& recipe) {
  return {recipe.name,
          [this, recipe](driver::Driver& driver) -> Result<std::unique_ptr<TraceAllocator>> {
            VPMM_TRY_ASSIGN(auto inner, recipe.make(driver));
            return std::unique_ptr<TraceAllocator>(
                std::make_unique<Watched>(std::move(inner), driver_));
          }};
}

}  // namespace vpmm::replay
