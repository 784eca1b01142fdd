// SPDX-License-Identifier: Apache-2.0
// fault tests: short programs that together reach every driver call of the pool.
#pragma once

#include <functional>
#include <ostream>
#include <string>
#include <vector>

#include "fault/fault_world.hpp"

namespace vpmm::fault {

struct Scenario {
  std::string name;
  std::function<void(FaultWorld&)> run;  // on an open pool
  Bytes capacity = kGiB;                 // of the simulated device
  std::uint64_t max_mappings = 60'000;
  settings::SmallRequests small = settings::SmallRequests::pool;
  bool ipc_isolate = false;
  std::uint32_t crowded_after = settings::Config{}.streams.crowded_after;
  std::uint64_t guard_every = 0;
  bool fills = false;
};

std::vector<Scenario> scenarios();
Scenario random_scenario(std::uint64_t seed);

// A scenario under one chunk policy.
struct Case {
  Scenario scenario;
  bool page_chunks = false;
};

std::vector<Case> cases();  // every scenario, and some random ones, under both
std::string name_of(const Case& c);
std::ostream& operator<<(std::ostream& out, const Case& c);
driver::sim::SimOptions options_of(const Case& c);
settings::Config config_of(const Case& c);

}  // namespace vpmm::fault
