// SPDX-License-Identifier: Apache-2.0
// tests: docs/reference/statistics.md explains exactly the figures that exist, in their order.
#include <gtest/gtest.h>

#include <fstream>
#include <string>
#include <vector>

#include "observe/statistic_list.hpp"
#include "support/repository_path.hpp"

namespace vpmm::observe {
namespace {

std::vector<std::string> rows_of_the_reference() {
  std::ifstream file(repository_path("docs/reference/statistics.md"));
  std::vector<std::string> rows;
  for (std::string line; std::getline(file, line);) {
    if (line.rfind("| `", 0) == 0) rows.push_back(line);
  }
  return rows;
}

TEST(StatisticsReference, has_one_row_for_each_figure_in_order) {
  std::vector<std::string> expected;
  for (const StatisticEntry& entry : statistic_list()) {
    expected.push_back("| `" + std::string(entry.name) + "` | " + to_string(entry.kind) + " |");
  }
  std::vector<std::string> found = rows_of_the_reference();
  for (std::string& row : found) row = row.substr(0, row.find('|', row.find('|', 1) + 1) + 1);
  EXPECT_EQ(found, expected);
}

}  // namespace
}  // namespace vpmm::observe
