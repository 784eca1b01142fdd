// SPDX-License-Identifier: Apache-2.0
// driver/sim: text of a hazard.
#include "driver/sim/sim_types.hpp"

#include <fmt/format.h>

namespace vpmm::driver::sim {
namespace {

const char* to_string(Hazard::Kind kind) {
  switch (kind) {
    case Hazard::Kind::unordered_accesses: return "unordered accesses";
    case Hazard::Kind::use_before_allocate: return "use before allocate";
    case Hazard::Kind::use_after_free: return "use after free";
    case Hazard::Kind::unmapped_access: return "access to an unmapped address";
    case Hazard::Kind::unmapped_too_early: return "unmapped while in use";
  }
  return "hazard";
}

}  // namespace

std::string Hazard::describe() const {
  return fmt::format("{}: {:#x} + {} bytes: first {}; then {}; missing: {}", to_string(kind),
                     to_integer(range.begin), range.size, first, second, missing);
}

}  // namespace vpmm::driver::sim
