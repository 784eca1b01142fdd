// SPDX-License-Identifier: Apache-2.0
// settings: docs/reference/settings.md holds exactly the settings that exist, as their list words
// them.
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <string>
#include <vector>

#include "settings/config.hpp"
#include "support/repository_path.hpp"

namespace vpmm::settings {
namespace {

std::vector<std::string> rows_of_the_page() {
  std::ifstream file(repository_path("docs/reference/settings.md"));
  std::vector<std::string> rows;
  for (std::string line; std::getline(file, line);) {
    if (line.rfind("| `", 0) == 0) rows.push_back(line);
  }
  return rows;
}

TEST(SettingsReference, lists_every_setting_with_its_default_in_the_lists_own_words) {
  for (const SettingInForce& setting : list_process_settings()) unsetenv(setting.name.c_str());
  std::vector<std::string> expected;
  const auto add = [&expected](const SettingInForce& setting) {
    expected.push_back("| `" + setting.name + "` | " + setting.value + " | " + setting.allowed +
                       " | " + setting.meaning + " |");
  };
  for (const SettingInForce& setting : list_settings({})) add(setting);
  for (const SettingInForce& setting : list_process_settings()) add(setting);
  EXPECT_EQ(rows_of_the_page(), expected);
}

}  // namespace
}  // namespace vpmm::settings
