// SPDX-License-Identifier: Apache-2.0
// conformance: the page about `vpmm emm-check` describes the checks that there are, in their order.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <string>
#include <vector>

#include "conformance/conformance.hpp"
#include "support/repository_path.hpp"

namespace vpmm::conformance {
namespace {

TEST(EmmCheckReference, describes_each_check_in_the_order_of_the_suite) {
  std::ifstream page(repository_path("docs/reference/emm-check.md"));
  std::vector<std::string> described;
  const std::string start = "| `";
  for (std::string line; std::getline(page, line);) {
    const std::size_t end = line.find("` |", start.size());
    if (!line.starts_with(start + "--") && line.starts_with(start) && end != std::string::npos)
      described.push_back(line.substr(start.size(), end - start.size()));
  }
  std::vector<std::string> checks;
  for (const Check& check : all_checks()) checks.emplace_back(check.name);
  EXPECT_THAT(described, testing::ElementsAreArray(checks));
}

}  // namespace
}  // namespace vpmm::conformance
