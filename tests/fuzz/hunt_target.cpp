// SPDX-License-Identifier: Apache-2.0
// fuzz tests: a program of the hunt, drawn from bytes instead of a seed.
#include <unistd.h>

#include <cstdio>
#include <string>
#include <variant>
#include <vector>

#include "fuzz/program_mutator.hpp"
#include "fuzz/targets.hpp"
#include "property/dice.hpp"
#include "property/script.hpp"
#include "property/world.hpp"

namespace vpmm::fuzz {

void run_program(Input input) {
  property::Program program = property::Dice(input).program_within(kMostSteps);
  // A broken context leaves host memory on purpose, which the address sanitizer takes for lost.
  std::erase_if(program.operations, [](const property::Operation& each) {
    return std::holds_alternative<property::Break>(each);
  });
  std::string failure = property::failure_of(program.scene, program.operations);
  if (failure.empty()) return;
  const std::string what = failure;
  failure += "\n" + property::to_code(program.scene);
  for (const property::Operation& each : program.operations)
    failure += property::to_code(each) + "\n";
  static_cast<void>(std::fprintf(stderr, "%s\nin C:\n", failure.c_str()));
  property::Script script(STDERR_FILENO);
  property::failure_of(program, {.operations_per_check = 1, .script = &script});
  script.end(what);
  require(false, what.c_str());
}

}  // namespace vpmm::fuzz
