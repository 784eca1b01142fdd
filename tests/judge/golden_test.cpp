// judge: with random programs of all verbs the pool does, call by call and address by address, what
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

#include "judge/generator.hpp"
#include "judge/program.hpp"
#include "judge/trial.hpp"
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

std::string lines_of_programs() {
  std::string lines;
  for (std::uint64_t seed = 1; seed <= kGoldenPrograms; ++seed) {
    Watched watched;
    EXPECT_EQ(failure_of(random_program(seed, kOperationsOfEach), Look::sometimes, watched), "")
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
    const Program program = random_program(seed, kOperationsOfEach);
    threads += program.setting.threads > 1;
    for (const Operation& o : program.operations) {
      captures += o.verb == Verb::begin_capture;
      in_arenas += o.verb == Verb::allocate && o.arena != 0;
    }
  }
  EXPECT_GT(threads, 10u);
  EXPECT_GT(captures, 50u);
  EXPECT_GT(in_arenas, 50u);
}

}  // namespace
}  // namespace vpmm::judge
