// SPDX-License-Identifier: Apache-2.0
// context: opens the real driver or the simulator.
#include "context/open_driver.hpp"

#include <utility>

#include "base/mutex.hpp"
#include "driver/cuda/cuda_driver.hpp"
#include "driver/sim/sim_driver.hpp"
#include "process/process_gate.hpp"

namespace vpmm::context {
namespace {

struct ProcessDriver {
  driver::Driver* driver = nullptr;
  bool is_behind_gate = false;
};

// Leaked: pools and threads may outlive static destruction.
struct ProcessDrivers {
  Mutex mutex;
  ProcessDriver cuda VPMM_GUARDED_BY(mutex);
  ProcessDriver sim VPMM_GUARDED_BY(mutex);
};

ProcessDrivers& process_drivers() {
  static auto* const drivers = new ProcessDrivers;
  return *drivers;
}

Result<std::unique_ptr<driver::Driver>> open_sim() {
  return std::unique_ptr<driver::Driver>(std::make_unique<driver::sim::SimDriver>());
}

}  // namespace

Result<std::unique_ptr<driver::Driver>> open_driver(settings::DriverKind kind,
                                                    OnMissingCuda on_missing) {
  if (kind == settings::DriverKind::sim) return open_sim();
  auto cuda = driver::cuda::open_cuda_driver();
  const bool missing = !cuda && cuda.error().code == ErrorCode::no_driver;
  if (missing && kind == settings::DriverKind::automatic && on_missing == OnMissingCuda::simulate)
    return open_sim();
  return cuda;
}

Result<driver::Driver*> process_driver(settings::DriverKind kind) {
  ProcessDrivers& drivers = process_drivers();
  const MutexLock lock(drivers.mutex);
  ProcessDriver& slot = kind == settings::DriverKind::sim ? drivers.sim : drivers.cuda;
  if (slot.driver == nullptr) {
    VPMM_TRY_ASSIGN(auto opened, open_driver(kind));
    slot.driver = opened.release();
  }
  // CUDA registers its exit handlers when loaded and in its first cuInit, none later. Handlers run
  // last in, first out, so ours is registered after these. Users of the driver call init() again,
  // and report its error.
  if (!slot.is_behind_gate && slot.driver->init() == driver::CuResult::success) {
    process::close_gate_at_exit();
    slot.is_behind_gate = true;
  }
  return slot.driver;
}

}  // namespace vpmm::context
