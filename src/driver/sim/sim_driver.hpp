// SPDX-License-Identifier: Apache-2.0
// driver/sim: a GPU on the CPU behind the driver door, deterministic by seed, with a hazard
// checker.
//
// Implements the observed behaviour of the real driver, its refusals included (docs/simulator.md).
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "driver/driver.hpp"
#include "driver/sim/sim_types.hpp"

namespace vpmm::driver::sim {

class SimDriver final : public Driver {
 public:
  explicit SimDriver(const SimOptions& options = {});
  ~SimDriver() override;

  // --- simulator only ---
  CuResult launch(const Kernel& kernel, StreamHandle stream);
  void advance_host_ns(std::uint64_t ns);  // the host computes; due GPU work runs
  bool step();                             // runs one operation that could run now; false: none can
  void run_until_idle();
  std::uint64_t hazard_count() const;
  std::vector<Hazard> hazards() const;           // the first 100, in order of discovery
  std::uint64_t dropped_hazard_records() const;  // forgotten at the memory bound, so unchecked
  Census census() const;
  void set_used_by_others(DeviceOrdinal device, Bytes bytes);
  // Breaks the device's context as an illegal access would: every later call on it gives `error`.
  void break_context(DeviceOrdinal device, CuResult error);

  // --- the door ---
  const char* name() const override;
  bool has(Call call) const override;
  std::uint64_t now_ns() override;
  void sleep_ns(std::uint64_t ns) override;  // without a clock, one operation runs meanwhile
  MemoryObserver* memory_observer() override;
#define VPMM_DRIVER_METHOD(name, parameters, arguments) CuResult name parameters override;
#include "driver/methods.def"
#undef VPMM_DRIVER_METHOD

 private:
  class State;
  std::unique_ptr<State> state_;
};

}  // namespace vpmm::driver::sim
