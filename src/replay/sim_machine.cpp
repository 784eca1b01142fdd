// SPDX-License-Identifier: Apache-2.0
// replay: the simulated machine; the only file of the room that knows the simulator.
#include "driver/sim/costs.hpp"
#include "driver/sim/sim_driver.hpp"
#include "replay/machine.hpp"

namespace vpmm::replay {
namespace {

using driver::Call;
using driver::sim::fixed_cost_ns;
static_assert(fixed_cost_ns(Call::memcpy_host_to_device_async) ==
                  fixed_cost_ns(Call::memset_d8_async) &&
              fixed_cost_ns(Call::memcpy_device_to_host_async) ==
                  fixed_cost_ns(Call::memset_d8_async));

driver::sim::SimOptions to_sim_options(const SimMachineOptions& options) {
  driver::sim::SimOptions sim;
  sim.capacity = options.capacity;
  sim.seed = options.seed;
  sim.schedule = driver::sim::Schedule::timed;
  sim.lag_ns = options.lag_us * 1000;
  sim.has_contents = options.has_contents;
  sim.has_aliases = options.has_contents;
  sim.costs =
      options.costs == CallCosts::idle ? driver::sim::Costs::idle : driver::sim::Costs::busy;
  return sim;
}

class SimMachine final : public TraceMachine {
 public:
  explicit SimMachine(const SimMachineOptions& options)
      : has_contents_(options.has_contents), sim_(to_sim_options(options)) {}

  driver::Driver& driver() override { return sim_; }
  void start() override { start_ns_ = sim_.now_ns(); }
  void wait_until(std::uint64_t program_ns, std::uint64_t driver_ns) override {
    const std::uint64_t now_ns = sim_.now_ns();
    const std::uint64_t due_ns = start_ns_ + program_ns + driver_ns;
    if (due_ns > now_ns) sim_.advance_host_ns(due_ns - now_ns);
  }
  bool has_contents() const override { return has_contents_; }
  void pass_copies(std::size_t calls) override {
    sim_.advance_host_ns(calls * fixed_cost_ns(Call::memset_d8_async));
  }
  std::optional<std::uint64_t> hazard_count() const override {
    if (!has_contents_) return std::nullopt;
    return sim_.hazard_count();
  }
  std::vector<std::string> findings() const override {
    std::vector<std::string> out;
    for (const driver::sim::Hazard& hazard : sim_.hazards()) {
      if (out.size() == kMaxHazards) break;
      out.push_back("hazard: " + hazard.describe());
    }
    if (const std::uint64_t dropped = sim_.dropped_hazard_records(); dropped != 0) {
      out.push_back("note: the hazard checker forgot " + std::to_string(dropped) +
                    " records at its memory bound");
    }
    return out;
  }

 private:
  static constexpr std::size_t kMaxHazards = 5;
  const bool has_contents_;
  driver::sim::SimDriver sim_;
  std::uint64_t start_ns_ = 0;
};

}  // namespace

std::unique_ptr<TraceMachine> make_sim_machine(const SimMachineOptions& options) {
  return std::make_unique<SimMachine>(options);
}

}  // namespace vpmm::replay
