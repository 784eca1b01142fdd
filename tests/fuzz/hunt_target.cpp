// SPDX-License-Identifier: Apache-2.0
// fuzz tests: a program of the hunt, drawn from bytes instead of a seed.
#include <string>

#include "fuzz/targets.hpp"
#include "property/dice.hpp"
#include "property/world.hpp"

namespace vpmm::fuzz {

void run_program(Input input) {
  constexpr std::size_t kMostOperations = 300;
  const property::Program program = property::Dice(input).program_within(kMostOperations);
  std::string failure = property::failure_of(program.scene, program.operations);
  if (failure.empty()) return;
  failure += "\n" + property::to_code(program.scene);
  for (const property::Operation& each : program.operations)
    failure += property::to_code(each) + "\n";
  require(false, failure.c_str());
}

}  // namespace vpmm::fuzz
