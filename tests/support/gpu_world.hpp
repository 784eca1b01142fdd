// SPDX-License-Identifier: Apache-2.0
// tests: a GPU, simulated or real, with kernels that keep it busy and fill memory, so that one test
// body runs on both.
#pragma once

#include <cstdint>
#include <memory>
#include <ostream>
#include <string>

#include "base/address.hpp"
#include "base/result.hpp"
#include "driver/driver.hpp"

namespace vpmm::driver {

inline void PrintTo(CuResult result, std::ostream* out) {
  *out << to_string(result) << " (" << static_cast<int>(result) << ")";
}

}  // namespace vpmm::driver

namespace vpmm::test {

constexpr std::uint64_t kMilliseconds = 1'000'000;  // in nanoseconds

enum class WorldKind { sim, cuda };
const char* to_string(WorldKind kind);
inline void PrintTo(WorldKind kind, std::ostream* out) { *out << to_string(kind); }

// The primary context of device 0 is retained, and current on the thread that made the world.
class GpuWorld {
 public:
  virtual ~GpuWorld() = default;
  virtual driver::Driver& driver() = 0;
  virtual driver::ContextHandle context() const = 0;  // of device 0
  // Makes the primary context of `device` current on this thread, and ready for the two below,
  // which are for streams of the current context. It stays retained.
  virtual driver::CuResult enter(driver::DeviceOrdinal device) = 0;

  // A kernel of about this duration that touches no memory. Virtual time in the simulator.
  virtual driver::CuResult launch_busy(driver::StreamHandle stream, std::uint64_t duration_ns) = 0;
  // A kernel that writes `pattern` to each 4-byte word. Requires: `range` is a multiple of 4 bytes.
  virtual driver::CuResult launch_fill(driver::StreamHandle stream, AddressRange range,
                                       std::uint32_t pattern) = 0;
  // Waits for all work of the current context.
  virtual void settle() = 0;
  // What the world found wrong by itself; empty if nothing, and always on a real GPU.
  virtual std::string complaints() = 0;
};

// no_driver: this machine has no GPU; any other error is a failure of the machine's driver.
Result<std::unique_ptr<GpuWorld>> open_world(WorldKind kind);
Result<std::unique_ptr<GpuWorld>> open_sim_world(int devices = 1);
Result<std::unique_ptr<GpuWorld>> open_cuda_world();

// VPMM_REQUIRE_GPU=1: a test that would be skipped for want of a GPU fails.
bool gpu_is_required();

}  // namespace vpmm::test
