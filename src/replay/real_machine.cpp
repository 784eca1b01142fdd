// SPDX-License-Identifier: Apache-2.0
// replay: a real GPU, at full speed or at the pace of the trace.
#include <chrono>
#include <thread>

#include "replay/machine.hpp"

namespace vpmm::replay {
namespace {

class RealMachine final : public TraceMachine {
 public:
  RealMachine(driver::Driver& driver, Pace pace) : driver_(driver), pace_(pace) {}

  driver::Driver& driver() override { return driver_; }
  void start() override { start_ = Clock::now(); }
  // Ignores the driver's time: on a real clock it has passed already.
  void wait_until(std::uint64_t program_ns, std::uint64_t /*driver_ns*/) override {
    if (pace_ == Pace::recorded)
      std::this_thread::sleep_until(start_ + std::chrono::nanoseconds(program_ns));
  }
  std::optional<std::uint64_t> hazard_count() const override { return std::nullopt; }
  std::vector<std::string> findings() const override { return {}; }

 private:
  using Clock = std::chrono::steady_clock;
  driver::Driver& driver_;
  const Pace pace_;
  Clock::time_point start_ = Clock::now();
};

}  // namespace

std::unique_ptr<TraceMachine> make_real_machine(driver::Driver& driver, Pace pace) {
  return std::make_unique<RealMachine>(driver, pace);
}

}  // namespace vpmm::replay
