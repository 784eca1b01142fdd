// SPDX-License-Identifier: Apache-2.0
// replay: platform of a trace: a driver, a clock, and the findings of a simulator.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/bytes.hpp"
#include "base/result.hpp"
#include "driver/driver.hpp"

namespace vpmm::replay {

class TraceMachine {
 public:
  TraceMachine() = default;
  virtual ~TraceMachine() = default;
  TraceMachine(const TraceMachine&) = delete;
  TraceMachine& operator=(const TraceMachine&) = delete;

  virtual driver::Driver& driver() = 0;
  virtual void start() = 0;
  // Passes time until the program's next call: `program_ns` after its start by its own account,
  // with `driver_ns` spent in memory calls of the driver.
  virtual void wait_until(std::uint64_t program_ns, std::uint64_t driver_ns) = 0;
  // False: what is written is not kept, so that only times and refusals mean something.
  virtual bool has_contents() const { return true; }
  // Passes the host's time of `calls` calls that queue copies or fills; for a device without
  // contents.
  virtual void pass_copies(std::size_t /*calls*/) {}
  virtual std::optional<std::uint64_t> hazard_count() const = 0;  // nullopt: unchecked
  virtual std::vector<std::string> findings()
      const = 0;  // first few hazards and unchecked records, in words
};

// Costs of driver calls on the simulator's clock.
enum class CallCosts {
  busy,  // of a process that computes meanwhile
  idle,  // of a process that does nothing else
};

struct SimMachineOptions {
  Bytes capacity = 139 * kGiB;
  std::uint64_t lag_us = 500;  // lag of the GPU behind the host
  std::uint64_t seed = 1;
  CallCosts costs = CallCosts::busy;
  bool has_contents = true;  // false: no contents and no hazards are checked, which is faster
};
// The host clock is the program's time plus the time in memory calls, all virtual; calls of the
// replay itself fit into the program's pauses or push it back.
std::unique_ptr<TraceMachine> make_sim_machine(const SimMachineOptions& options);

enum class Pace {
  as_fast_as_possible,
  recorded,  // never ahead of the trace's clock
};
// `driver` must outlive the machine.
std::unique_ptr<TraceMachine> make_real_machine(driver::Driver& driver, Pace pace);

}  // namespace vpmm::replay
