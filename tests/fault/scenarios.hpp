// fault tests: short programs that together reach every driver call of the pool.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "fault/fault_world.hpp"

namespace vpmm::fault {

struct Scenario {
  std::string name;
  std::function<void(FaultWorld&)> run;  // on an open pool
  Bytes capacity = kGiB;                 // of the simulated device
  std::uint64_t max_mappings = 60'000;
  pool::SmallRequests small = pool::SmallRequests::pool;
};

std::vector<Scenario> scenarios();
Scenario random_scenario(std::uint64_t seed);

}  // namespace vpmm::fault
