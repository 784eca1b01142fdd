// SPDX-License-Identifier: Apache-2.0
// tests: real GPUs as a world; its kernels are PTX that the driver compiles for whatever GPU there
// is.
#include <cstdlib>
#include <map>

#include "driver/cuda/cuda_driver.hpp"
#include "support/gpu_world.hpp"

namespace vpmm::test {
namespace {

using driver::CuResult;
using driver::StreamHandle;

constexpr const char* kKernels = R"(
.version 7.0
.target sm_70
.address_size 64

.visible .entry busy(.param .u64 duration_ns)
{
  .reg .u64 %duration, %start, %elapsed;
  .reg .pred %running;
  ld.param.u64 %duration, [duration_ns];
  mov.u64 %start, %globaltimer;
again:
  mov.u64 %elapsed, %globaltimer;
  sub.u64 %elapsed, %elapsed, %start;
  setp.lt.u64 %running, %elapsed, %duration;
  @%running bra again;
  ret;
}

.visible .entry fill(.param .u64 begin, .param .u64 words, .param .u32 pattern)
{
  .reg .u64 %at, %begin, %words, %index, %stride;
  .reg .u32 %pattern, %block, %threads, %blocks, %thread, %small;
  .reg .pred %done;
  ld.param.u64 %begin, [begin];
  ld.param.u64 %words, [words];
  ld.param.u32 %pattern, [pattern];
  mov.u32 %block, %ctaid.x;
  mov.u32 %threads, %ntid.x;
  mov.u32 %blocks, %nctaid.x;
  mov.u32 %thread, %tid.x;
  mad.lo.u32 %small, %block, %threads, %thread;
  cvt.u64.u32 %index, %small;
  mul.wide.u32 %stride, %blocks, %threads;
again:
  setp.ge.u64 %done, %index, %words;
  @%done bra end;
  shl.b64 %at, %index, 2;
  add.u64 %at, %at, %begin;
  st.global.u32 [%at], %pattern;
  add.u64 %index, %index, %stride;
  bra again;
end:
  ret;
}
)";

enum class Module : std::uintptr_t {};
enum class Function : std::uintptr_t {};
using ModuleLoadData = CuResult (*)(Module*, const void* image);
using ModuleGetFunction = CuResult (*)(Function*, Module, const char* name);
using LaunchKernel = CuResult (*)(Function, unsigned, unsigned, unsigned, unsigned, unsigned,
                                  unsigned, unsigned, StreamHandle, void** parameters,
                                  void** extra);

class CudaWorld final : public GpuWorld {
 public:
  explicit CudaWorld(std::unique_ptr<driver::Driver> driver) : driver_(std::move(driver)) {}

  driver::Driver& driver() override { return *driver_; }
  driver::ContextHandle context() const override { return context_; }

  CuResult open() {
    const CuResult result = enter(0);
    return result == CuResult::success ? driver_->ctx_get_current(context_) : result;
  }
  CuResult enter(driver::DeviceOrdinal device) override {
    driver::ContextHandle context{};
    CuResult result = driver_->device_primary_ctx_retain(device, context);
    if (result == CuResult::success) result = driver_->ctx_set_current(context);
    return result == CuResult::success && kernels_.count(device) == 0
               ? load_kernels(kernels_[device])
               : result;
  }
  CuResult launch_busy(StreamHandle stream, std::uint64_t duration_ns) override {
    // A tool that slows everything else down (compute-sanitizer) must not make busy kernels look
    // short.
    static const char* factor = std::getenv("VPMM_BUSY_FACTOR");
    if (factor != nullptr) duration_ns *= std::strtoull(factor, nullptr, 10);
    void* parameters[] = {&duration_ns};
    return launch_kernel_(current_kernels().busy, 1, 1, 1, 1, 1, 1, 0, stream, parameters, nullptr);
  }
  CuResult launch_fill(StreamHandle stream, AddressRange range, std::uint32_t pattern) override {
    std::uint64_t begin = to_integer(range.begin);
    std::uint64_t words = range.size / sizeof pattern;
    void* parameters[] = {&begin, &words, &pattern};
    return launch_kernel_(current_kernels().fill, 128, 1, 1, 256, 1, 1, 0, stream, parameters,
                          nullptr);
  }
  void settle() override { driver_->ctx_synchronize(); }
  std::string complaints() override { return {}; }

 private:
  struct Kernels {
    Function busy{};
    Function fill{};
  };
  const Kernels& current_kernels() {
    driver::DeviceOrdinal device = 0;
    driver_->ctx_get_device(device);  // 0 if none is current, where the launch says so
    return kernels_.at(device);
  }
  CuResult load_kernels(Kernels& kernels) {
    const auto& cuda = dynamic_cast<const driver::cuda::CudaDriver&>(*driver_);
    const auto module_load_data =
        reinterpret_cast<ModuleLoadData>(cuda.symbol("cuModuleLoadData", 2000));
    const auto module_get_function =
        reinterpret_cast<ModuleGetFunction>(cuda.symbol("cuModuleGetFunction", 2000));
    launch_kernel_ = reinterpret_cast<LaunchKernel>(cuda.symbol("cuLaunchKernel", 4000));
    Module module{};
    CuResult result = module_load_data(&module, kKernels);
    if (result == CuResult::success) result = module_get_function(&kernels.busy, module, "busy");
    return result == CuResult::success ? module_get_function(&kernels.fill, module, "fill")
                                       : result;
  }

  std::unique_ptr<driver::Driver> driver_;
  driver::ContextHandle context_{};
  LaunchKernel launch_kernel_ = nullptr;
  std::map<driver::DeviceOrdinal, Kernels> kernels_;
};

}  // namespace

// The context is left to the process: destroying and making it anew for each test would take longer
// than the tests.
Result<std::unique_ptr<GpuWorld>> open_cuda_world() {
  auto driver = driver::cuda::open_cuda_driver();
  if (!driver) return std::move(driver.error());
  auto world = std::make_unique<CudaWorld>(std::move(driver).value());
  const CuResult result = world->open();
  if (result != CuResult::success) {
    return Error{ErrorCode::driver_failed,
                 std::string("opening device 0 gave ") + driver::to_string(result)};
  }
  return std::unique_ptr<GpuWorld>(std::move(world));
}

}  // namespace vpmm::test
