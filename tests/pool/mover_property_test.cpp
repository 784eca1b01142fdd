// SPDX-License-Identifier: Apache-2.0
// pool: random programs of requests, frees and failing calls; after each step everything is where
// it should be.
#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <random>
#include <string>
#include <vector>

#include "pool/mover_world.hpp"

namespace vpmm::pool {
namespace {

using driver::Call;
using driver::CuResult;
using driver::FaultPlan;

// Its steps print themselves as calls.
class Program {
 public:
  explicit Program(std::uint64_t seed) : random_(seed) {}

  // What is wrong after a step; empty: nothing.
  std::string step() {
    switch (below(8)) {
      case 0:
      case 1:
      case 2: take(); break;
      case 3: take_with_fault(); break;
      case 4:
      case 5: give_back(); break;
      case 6:
        say("finish_work();");
        world_.finish_work();
        break;
      default: reclaim(); break;
    }
    return world_.broken();
  }
  const std::string& code() const { return code_; }

 private:
  std::uint64_t below(std::uint64_t n) {
    return std::uniform_int_distribution<std::uint64_t>(0, n - 1)(random_);
  }
  bool one_in(std::uint64_t n) { return below(n) == 0; }
  template <typename... T>
  void say(fmt::format_string<const T&...> format, const T&... values) {
    code_ += "  " + fmt::format(format, values...) + "\n";
  }

  void take() {
    const Bytes grain = world_.memory.tuning.grain;
    Ask ask = world_.ask(one_in(2) ? 1 + below(8) : 1 + below(60));
    if (one_in(2)) ask.size += below(32) * grain;
    if (one_in(4)) ask.alignment = kPage << below(3);
    ask.chunk = kPage << below(5);
    if (one_in(3)) {
      ask.chunks = one_in(3) ? Chunks::one : Chunks::own;
      ask.size = round_up(ask.size, kPage);
    }
    if (ask.chunks == Chunks::one) ask.chunk = ask.size;
    ask.early_growth = one_in(3) ? below(100) * kPage : 0;
    const Bytes room = 200 * kPage;
    ask.growth_room = room - std::min(room, world_.memory.held_bytes());
    Decision decision = fit(world_.memory.view(), ask);
    if (std::holds_alternative<NoPlan>(decision)) decision = stitch(world_.memory.view(), ask);
    static constexpr const char* kChunks[] = {"shared", "own", "one"};
    say("take({}, {}, {}, {}, {});", ask.size / grain, ask.alignment / grain, ask.chunk / kPage,
        ask.early_growth / kPage, kChunks[static_cast<int>(ask.chunks)]);
    const Plan* const plan = std::get_if<Plan>(&decision);
    if (plan == nullptr) return;
    say("// {}", to_string(*plan, kPage));
    const Result<region::Region*> taken = world_.carry_out(*plan);
    if (!taken) return;
    taken.value()->has_own_chunks = ask.chunks != Chunks::shared;
    world_.use(taken.value());
  }
  void take_with_fault() {
    static constexpr Call kCalls[] = {Call::mem_create, Call::mem_release, Call::mem_map,
                                      Call::mem_unmap, Call::mem_set_access};
    FaultPlan fault;
    fault.nth = 1 + below(8);
    fault.result = one_in(2) ? CuResult::invalid_value : CuResult::illegal_address;
    fault.repeat = one_in(2) ? FaultPlan::Repeat::once : FaultPlan::Repeat::from_then_on;
    if (one_in(2)) fault.calls = {kCalls[below(5)]};
    say("fail({}, {}, {}, {});",
        fault.calls.empty() ? "any call" : driver::to_string(fault.calls[0]), fault.nth,
        driver::to_string(fault.result),
        fault.repeat == FaultPlan::Repeat::once ? "once" : "from then on");
    world_.faults.set_plan(fault);
    take();
    world_.faults.clear_plan();
  }
  void give_back() {
    if (world_.lives.empty()) return;
    const std::size_t number = below(world_.lives.size());
    const AddressRange range = world_.lives[number].range;
    const bool is_used = one_in(2);
    say("give_back({}{});", number, is_used ? ", in use" : "");
    // Its contents were read by the host, so nothing else still uses it.
    world_.give_back(number, is_used ? world_.pending(range) : time::Stamp());
  }
  void reclaim() {
    if (one_in(3)) {
      const Bytes keep = below(100);
      say("trim({});", keep);
      EXPECT_TRUE(world_.reclaimer.trim(world_.lock, keep * kPage).ok());
      return;
    }
    const std::uint64_t mappings = 1 + below(20);
    say("sweep({});", mappings);
    EXPECT_TRUE(world_.reclaimer.sweep(world_.lock, mappings).ok());
  }

  std::mt19937_64 random_;
  MoverWorld world_;
  std::string code_;
};

constexpr int kSteps = 60;

// A failure tells what is broken, the command that replays its seed, and the steps.
testing::AssertionResult nothing_breaks(std::uint64_t seed) {
  std::string code;
  std::string broken;
  {
    Program program(seed);
    for (int i = 0; i < kSteps && broken.empty(); ++i) broken = program.step();
    code = program.code();
  }
  if (broken.empty() && !testing::Test::HasFailure()) return testing::AssertionSuccess();
  return testing::AssertionFailure()
         << broken << "\nReplay: VPMM_SEED=" << seed << " " << program_invocation_name
         << " --gtest_filter=MoverProperty.*\n"
         << code;
}

TEST(MoverProperty, nothing_is_lost_whatever_is_asked_for_and_fails) {
  if (const char* const seed = std::getenv("VPMM_SEED")) {
    EXPECT_TRUE(nothing_breaks(std::strtoull(seed, nullptr, 10)));
    return;
  }
  for (std::uint64_t seed = 1; seed <= 400; ++seed) ASSERT_TRUE(nothing_breaks(seed));
}

}  // namespace
}  // namespace vpmm::pool
