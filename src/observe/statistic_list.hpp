// SPDX-License-Identifier: Apache-2.0
// observe: figures of Statistics as a table, for code that prints, exports or documents them.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "observe/statistics.hpp"

namespace vpmm::observe {

enum class StatisticKind {
  current,  // a level
  peak,     // largest level since start or reset_peaks
  total,    // only grows
};
const char* to_string(StatisticKind kind);

struct StatisticEntry {
  std::string_view name;  // of the member of Statistics
  StatisticKind kind;
  std::string_view meaning;
  std::uint64_t Statistics::*member;
};

// In the order of statistics.def.
std::span<const StatisticEntry> statistic_list();

}  // namespace vpmm::observe
