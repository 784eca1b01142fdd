// context: docs/reference/settings.md holds exactly the settings that exist, as their list words them.
#include <gtest/gtest.h>

#include <fstream>
#include <string>
#include <vector>

#include "context/config.hpp"

namespace vpmm::context {
namespace {

std::vector<std::string> rows_of_the_page() {
  std::ifstream file(VPMM_TEST_SOURCE_DIR "/docs/reference/settings.md");
  std::vector<std::string> rows;
  for (std::string line; std::getline(file, line);) {
    if (line.rfind("| `", 0) == 0) rows.push_back(line);
  }
  return rows;
}

TEST(SettingsReference, lists_every_setting_with_its_default_in_the_lists_own_words) {
  std::vector<std::string> expected;
  for (const SettingInForce& setting : list_settings({})) {
    expected.push_back("| `" + setting.name + "` | " + setting.value + " | " + setting.allowed + " | " +
                       setting.meaning + " |");
  }
  EXPECT_EQ(rows_of_the_page(), expected);
}

}  // namespace
}  // namespace vpmm::context
