// SPDX-License-Identifier: Apache-2.0
// judge: with random programs of the hunt the pool does, call by call and address by address, what
// golden.txt says.
//
// The recorded traces of tests/replay/golden.txt have one thread and neither arenas nor captures;
// these have. A line that differs is no mistake by itself. `./dev golden` writes both files anew.
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <memory>
#include <string>

#include <fmt/format.h>

#include "judge/flaw.hpp"
#include "property/dice.hpp"
#include "support/fingerprint_driver.hpp"
#include "support/repository_path.hpp"

namespace vpmm::judge {
namespace {

constexpr std::uint64_t kGoldenPrograms = 40;
constexpr std::size_t kOperationsOfEach = 400;

// Watches what it does not break.
class Watched final : public Flaw {
 public:
  driver::Driver& driver(driver::Driver& inner) override {
    if (driver_ == nullptr) driver_ = std::make_unique<test::FingerprintDriver>(inner);
    return *driver_;
  }
  Result<DevicePtr> allocated(context::Context& /*pool*/, Result<DevicePtr> result) override {
    result ? driver_->add_address(result.value()) : driver_->add_refusal();
    driver_->take();
    return result;
  }
  std::uint64_t fingerprint() const { return driver_ == nullptr ? 0 : driver_->taken(); }

 private:
  std::unique_ptr<test::FingerprintDriver> driver_;
};

// Without faults, as the number of host allocations is the compiler's.
property::Program program_of(std::uint64_t seed) {
  property::Program program = property::Dice(seed).program_within(kOperationsOfEach);
  std::erase_if(program.operations, [](const property::Operation& each) {
    return std::holds_alternative<property::Fault>(each);
  });
  return program;
}

std::string lines_of_programs() {
  std::string lines;
  for (std::uint64_t seed = 1; seed <= kGoldenPrograms; ++seed) {
    Watched watched;
    EXPECT_EQ(
        property::failure_of(program_of(seed), {.operations_per_check = 24, .flaw = &watched}), "")
        << "seed " << seed;
    lines += fmt::format("{} {:016x}\n", seed, watched.fingerprint());
  }
  return lines;
}

// With VPMM_JUDGE_GOLDEN=FILE the file is written, and nothing compared.
TEST(JudgeGolden, lines_are_what_the_pool_does) {
  const std::string now = lines_of_programs();
  if (const char* const out = std::getenv("VPMM_JUDGE_GOLDEN")) {
    std::ofstream(out) << now;
    return;
  }
  std::ifstream file(repository_path("tests/judge/golden.txt"));
  const std::string expected{std::istreambuf_iterator<char>(file), {}};
  EXPECT_EQ(now, expected) << "if that is what was meant: ./dev golden";
}

// Else the log would say nothing of them.
TEST(JudgeGolden, programs_have_threads_arenas_and_captures) {
  std::size_t threads = 0, captures = 0, in_arenas = 0;
  for (std::uint64_t seed = 1; seed <= kGoldenPrograms; ++seed) {
    const property::Program program = program_of(seed);
    threads += program.scene.has_threads;
    for (const property::Operation& each : program.operations) {
      captures += std::holds_alternative<property::BeginCapture>(each);
      in_arenas += std::holds_alternative<property::AllocateInArena>(each);
    }
  }
  EXPECT_GE(threads, 5u);
  EXPECT_GT(captures, 50u);
  EXPECT_GT(in_arenas, 50u);
}

}  // namespace
}  // namespace vpmm::judge
