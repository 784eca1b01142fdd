// SPDX-License-Identifier: Apache-2.0
// tests: asking a pool for its figures when it refuses.
#include "replay/first_shortage.hpp"

#include <memory>
#include <utility>

#include "replay/pool_allocator.hpp"

namespace vpmm::replay {
namespace {

class WatchedPool final : public PoolAllocator {
 public:
  WatchedPool(std::unique_ptr<context::Context> context,
              std::optional<observe::Statistics>& shortage)
      : PoolAllocator(std::move(context)), shortage_(shortage) {}

  Result<DevicePtr> allocate(Bytes bytes, driver::StreamHandle stream) override {
    auto ptr = PoolAllocator::allocate(bytes, stream);
    if (!ptr && !shortage_) shortage_ = statistics();
    return ptr;
  }

 private:
  std::optional<observe::Statistics>& shortage_;
};

}  // namespace

Result<ShortReplay> replay_to_first_shortage(const observe::Trace& trace, Bytes capacity) {
  SimMachineOptions gpu;
  gpu.capacity = capacity;
  const auto machine = make_sim_machine(gpu);
  ShortReplay found;
  const AllocatorRecipe recipe{
      "vpmm", [&](driver::Driver& driver) -> Result<std::unique_ptr<TraceAllocator>> {
        VPMM_TRY_ASSIGN(auto context, context::Context::create(driver, 0, {}));
        return std::unique_ptr<TraceAllocator>(
            std::make_unique<WatchedPool>(std::move(context), found.shortage));
      }};
  ReplayOptions options;
  options.on_refusal = OnRefusal::stop;
  VPMM_TRY_ASSIGN(found.result, replay(trace, *machine, recipe, options));
  return found;
}

}  // namespace vpmm::replay
