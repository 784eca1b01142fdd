// SPDX-License-Identifier: Apache-2.0
// tests: the simulated GPU as a world; work takes virtual time and the hazard checker watches.
#include <algorithm>

#include "driver/sim/sim_driver.hpp"
#include "support/gpu_world.hpp"

namespace vpmm::test {
namespace {

using driver::CuResult;
using driver::StreamHandle;
using driver::sim::Kernel;
using driver::sim::MemoryAccess;

// Simulated addresses are addresses of this process.
void fill_words(AddressRange range, std::uint32_t pattern) {
  auto* words = reinterpret_cast<std::uint32_t*>(to_integer(range.begin));
  std::fill_n(words, range.size / sizeof pattern, pattern);
}

class SimWorld final : public GpuWorld {
 public:
  explicit SimWorld(const driver::sim::SimOptions& options) : sim_(options) {}
  driver::Driver& driver() override { return sim_; }
  driver::ContextHandle context() const override { return context_; }
  CuResult open() {
    CuResult result = sim_.init();
    if (result == CuResult::success) result = enter(0);
    return result == CuResult::success ? sim_.ctx_get_current(context_) : result;
  }
  CuResult enter(driver::DeviceOrdinal device) override {
    driver::ContextHandle context{};
    const CuResult result = sim_.device_primary_ctx_retain(device, context);
    return result == CuResult::success ? sim_.ctx_set_current(context) : result;
  }
  CuResult launch_busy(StreamHandle stream, std::uint64_t duration_ns) override {
    return sim_.launch({"busy", duration_ns, {}, {}}, stream);
  }
  CuResult launch_fill(StreamHandle stream, AddressRange range, std::uint32_t pattern) override {
    const auto body = [range, pattern] { fill_words(range, pattern); };
    return sim_.launch({"fill", 0, {{range, MemoryAccess::Kind::write}}, body}, stream);
  }
  void settle() override { sim_.run_until_idle(); }
  std::string complaints() override {
    std::string all;
    for (const auto& hazard : sim_.hazards()) all += hazard.describe() + "\n";
    return all;
  }

 private:
  driver::sim::SimDriver sim_;
  driver::ContextHandle context_{};
};

}  // namespace

Result<std::unique_ptr<GpuWorld>> open_sim_world(int devices) {
  driver::sim::SimOptions options;
  options.device_count = devices;
  auto world = std::make_unique<SimWorld>(options);
  const CuResult result = world->open();
  if (result != CuResult::success)
    return Error{ErrorCode::driver_failed, driver::to_string(result)};
  return std::unique_ptr<GpuWorld>(std::move(world));
}

}  // namespace vpmm::test
