// fuzz tests: a program of the hunt, drawn from bytes instead of a seed.
#include <string>
#include <variant>
#include <vector>

#include "fuzz/targets.hpp"
#include "property/dice.hpp"
#include "property/world.hpp"

namespace vpmm::fuzz {

// What leaves the process, or writes files, is for the hunt alone.
void run_program(Input input) {
  constexpr std::size_t kMostOperations = 300;
  property::Dice dice(input);
  property::Scene scene = dice.scene();
  scene.sim.has_aliases = false;
  scene.has_threads = dice.takes_turns();
  std::vector<property::Operation> operations = dice.whole_program(kMostOperations);
  std::erase_if(operations, [](const property::Operation& each) {
    return std::holds_alternative<property::Fork>(each) ||
           std::holds_alternative<property::Exit>(each) ||
           std::holds_alternative<property::Record>(each);
  });
  std::string failure = property::failure_of(scene, operations);
  if (failure.empty()) return;
  failure += "\n" + property::to_code(scene);
  for (const property::Operation& each : operations) failure += property::to_code(each) + "\n";
  require(false, failure.c_str());
}

}  // namespace vpmm::fuzz
