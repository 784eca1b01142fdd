// SPDX-License-Identifier: Apache-2.0
// observe: the table of figures, made from statistics.def.
#include "observe/statistic_list.hpp"

namespace vpmm::observe {
namespace {

constexpr StatisticEntry kStatistics[] = {
#define VPMM_STATISTIC(name, kind, meaning) \
  {#name, StatisticKind::kind, meaning, &Statistics::name},
#include "observe/statistics.def"
#undef VPMM_STATISTIC
};

}  // namespace

const char* to_string(StatisticKind kind) {
  switch (kind) {
    case StatisticKind::current: return "current";
    case StatisticKind::peak: return "peak";
    case StatisticKind::total: return "total";
  }
  return "unknown";
}

std::span<const StatisticEntry> statistic_list() { return kStatistics; }

}  // namespace vpmm::observe
