// SPDX-License-Identifier: Apache-2.0
// settings: the process's own settings, and variables that are none.
#include "settings/variables.hpp"

#include <gtest/gtest.h>

#include <cstdlib>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "observe/log.hpp"
#include "settings/config.hpp"
#include "settings/portion.hpp"
#include "settings/variable.hpp"

namespace vpmm::settings {
namespace {

// Without the variables that the shell may have set.
class Variables : public testing::Test {
 protected:
  void SetUp() override {
    for (const SettingInForce& setting : list_process_settings()) unsetenv(setting.name.c_str());
  }
};

std::vector<std::string> misspelt() {
  const auto sentences = misspelt_variables();
  return {sentences.begin(), sentences.end()};
}

SettingInForce setting_called(const std::string& name) {
  for (const SettingInForce& setting : list_process_settings())
    if (setting.name == name) return setting;
  for (const SettingInForce& setting : list_settings(allowed_config_from_environment()))
    if (setting.name == name) return setting;
  return {};
}

TEST_F(Variables, reads_what_ipc_is_told) {
  const auto unset = ipc_settings_from_environment();
  ASSERT_TRUE(unset.ok()) << unset.error().message;
  EXPECT_EQ(unset.value().folder, "");
  EXPECT_EQ(unset.value().timeout_ms, 10'000U);
  EXPECT_EQ(unset.value().grace_ms, 10'000U);
  const Variable variables[] = {
      {"VPMM_IPC_DIR", "/run/mine"}, {"VPMM_IPC_TIMEOUT", "1"}, {"VPMM_IPC_GRACE", "0"}};
  const auto set = ipc_settings_from_environment();
  ASSERT_TRUE(set.ok()) << set.error().message;
  EXPECT_EQ(set.value().folder, "/run/mine");
  EXPECT_EQ(set.value().timeout_ms, 1U);
  EXPECT_EQ(set.value().grace_ms, 0U);
}

TEST_F(Variables, refuses_times_of_ipc_that_are_none) {
  for (const char* text : {"0", "soon", "3600001", "1s", "-1"}) {
    const Variable timeout("VPMM_IPC_TIMEOUT", text);
    const auto settings = ipc_settings_from_environment();
    ASSERT_FALSE(settings.ok()) << text;
    EXPECT_EQ(settings.error().code, ErrorCode::bad_configuration);
    EXPECT_EQ(settings.error().message, std::string("VPMM_IPC_TIMEOUT=") + text +
                                            ": must be a number of milliseconds from 1 to 3600000");
  }
  const Variable grace("VPMM_IPC_GRACE", "never");
  EXPECT_FALSE(ipc_settings_from_environment().ok());
}

// The limits of each number and length, and the next beyond.
TEST_F(Variables, have_limits_that_are_allowed_themselves) {
  const std::string longest = "/" + std::string(64, 'd');
  const std::tuple<const char*, std::string, bool> cases[] = {
      {"VPMM_IPC_TIMEOUT", "1", true},
      {"VPMM_IPC_TIMEOUT", "3600000", true},
      {"VPMM_IPC_GRACE", "0", true},
      {"VPMM_IPC_GRACE", "3600000", true},
      {"VPMM_IPC_GRACE", "3600001", false},
      {"VPMM_IPC_DIR", longest, true},
      {"VPMM_IPC_DIR", longest + "d", false},
      {"VPMM_RECORD_WINDOW", "1", true},
      {"VPMM_RECORD_WINDOW", "3600000", true},
      {"VPMM_RECORD_WINDOW", "0", false},
      {"VPMM_RECORD_WINDOW", "3600001", false},
      {"VPMM_RECORD_SAMPLE", "1", true},
      {"VPMM_RECORD_SAMPLE", "18446744073709551615", true},
      {"VPMM_RECORD_SAMPLE", "18446744073709551616", false},
      {"VPMM_MAX_PENDING_DEALLOCS_RATIO", "0", true},
      {"VPMM_MAX_PENDING_DEALLOCS_RATIO", "0.5", true},
      {"VPMM_MAX_PENDING_DEALLOCS_RATIO", "", true},
      {"VPMM_LIMITS", "cupy=1%", true},
      {"VPMM_LIMITS", "cupy=100%", true},
      {"VPMM_LIMITS", "cupy=0%", false},
      {"VPMM_LIMITS", "cupy=101%", false},
      {"VPMM_MEMORY_MANAGER", "?", true},
      {"VPMM_RECORD", "?", true},
      {"VPMM_CACHE_DIR", "?", true},
      {"VPMM_PAGES_PID", "?", true},
      {"VPMM_TAG_LIBRARIES", "1", true},
      {"VPMM_TAG_LIBRARIES", "2", false}};
  for (const auto& [name, text, is_allowed] : cases) {
    const Variable variable(name, text.c_str());
    EXPECT_EQ(setting_called(name).problem.empty(), is_allowed) << name << "=" << text;
  }
}

TEST_F(Variables, name_the_memory_manager_of_other_programs) {
  EXPECT_EQ(memory_manager_from_environment(), "");
  const Variable manager("VPMM_MEMORY_MANAGER", "/lib/mine.so");
  EXPECT_EQ(memory_manager_from_environment(), "/lib/mine.so");
}

TEST_F(Variables, say_whether_a_summary_is_wanted) {
  EXPECT_FALSE(wants_summary_from_environment().value());
  {
    const Variable stats("VPMM_STATS", "1");
    EXPECT_TRUE(wants_summary_from_environment().value());
  }
  const Variable stats("VPMM_STATS", "yes");
  const auto bad = wants_summary_from_environment();
  ASSERT_FALSE(bad.ok());
  EXPECT_EQ(bad.error().message, "VPMM_STATS=yes: must be 0 or 1");
}

TEST_F(Variables, say_whether_top_may_ask) {
  EXPECT_TRUE(answers_top_from_environment().value());
  {
    const Variable top("VPMM_TOP", "0");
    EXPECT_FALSE(answers_top_from_environment().value());
  }
  const Variable top("VPMM_TOP", "off");
  const auto bad = answers_top_from_environment();
  ASSERT_FALSE(bad.ok());
  EXPECT_EQ(bad.error().message, "VPMM_TOP=off: must be 0 or 1");
}

TEST_F(Variables, read_the_limits_of_pending_frees) {
  const PendingLimits usual = pending_limits_from_environment().value();
  EXPECT_EQ(usual.count, 10u);
  EXPECT_DOUBLE_EQ(usual.ratio, 0.2);
  {
    const Variable variables[] = {{"VPMM_MAX_PENDING_DEALLOCS_COUNT", "0"},
                                  {"VPMM_MAX_PENDING_DEALLOCS_RATIO", "1"}};
    const PendingLimits set = pending_limits_from_environment().value();
    EXPECT_EQ(set.count, 0u);
    EXPECT_DOUBLE_EQ(set.ratio, 1.0);
  }
  for (const char* text : {"1.1", "-0.1", "half", "0.5x", "nan"}) {
    const Variable ratio("VPMM_MAX_PENDING_DEALLOCS_RATIO", text);
    EXPECT_FALSE(pending_limits_from_environment().ok()) << text;
  }
  {
    const Variable ratio("VPMM_MAX_PENDING_DEALLOCS_RATIO", "0");
    EXPECT_DOUBLE_EQ(pending_limits_from_environment().value().ratio, 0);
  }
  const Variable ratio("VPMM_MAX_PENDING_DEALLOCS_RATIO", "0.25");
  EXPECT_DOUBLE_EQ(pending_limits_from_environment().value().ratio, 0.25);
  EXPECT_EQ(pending_limits_from_environment().value().count, 10u);
  const Variable count("VPMM_MAX_PENDING_DEALLOCS_COUNT", "few");
  EXPECT_FALSE(pending_limits_from_environment().ok());
}

TEST_F(Variables, say_how_to_record) {
  const RecordSettings unset = record_settings_from_environment().value();
  EXPECT_EQ(unset.file, "");
  EXPECT_EQ(unset.options.stacks, "none");
  EXPECT_EQ(unset.options.sample, 1u);
  EXPECT_EQ(unset.options.limit, 0u);
  EXPECT_EQ(unset.options.window_ns, 0u);
  const Variable stacks("VPMM_RECORD_STACKS", "all");
  {
    const Variable none("VPMM_RECORD", "none");
    EXPECT_EQ(record_settings_from_environment().value().file, "") << "and the stacks are idle";
  }
  const Variable record("VPMM_RECORD", "run.vpmm");
  EXPECT_FALSE(record_settings_from_environment().ok());
  {
    const Variable none("VPMM_RECORD_STACKS", "");
    const RecordSettings usual = record_settings_from_environment().value();
    EXPECT_EQ(usual.file, "run.vpmm");
    EXPECT_EQ(usual.options.stacks, "none");
    EXPECT_EQ(usual.options.sample, 1u);
    EXPECT_EQ(usual.options.limit, 0u);
    EXPECT_EQ(usual.options.window_ns, 0u);
  }
  const Variable variables[] = {{"VPMM_RECORD_STACKS", "python"},
                                {"VPMM_RECORD_SAMPLE", "5"},
                                {"VPMM_RECORD_LIMIT", "3GiB"},
                                {"VPMM_RECORD_WINDOW", "60"}};
  const RecordOptions options = record_settings_from_environment().value().options;
  EXPECT_EQ(options.stacks, "python");
  EXPECT_EQ(options.sample, 5u);
  EXPECT_EQ(options.limit, 3 * kGiB);
  EXPECT_EQ(options.window_ns, 60'000'000'000u);
  for (const char* how : {"STACKS", "SAMPLE", "LIMIT", "WINDOW"}) {
    const std::string name = std::string("VPMM_RECORD_") + how;
    const std::string before = std::getenv(name.c_str());
    setenv(name.c_str(), "?", 1);
    const auto bad = record_settings_from_environment();
    ASSERT_FALSE(bad.ok()) << name;
    EXPECT_EQ(bad.error().message.rfind(name + "=?: must be ", 0), 0u);
    setenv(name.c_str(), before.c_str(), 1);
  }
  const Variable all[] = {{"VPMM_RECORD_LIMIT", "none"}, {"VPMM_RECORD_WINDOW", "none"}};
  EXPECT_EQ(record_settings_from_environment().value().options.limit, 0u);
  EXPECT_EQ(record_settings_from_environment().value().options.window_ns, 0u);
}

TEST_F(Variables, say_which_libraries_are_tagged) {
  EXPECT_FALSE(is_library_tagged("torch").value());
  {
    const Variable limits("VPMM_LIMITS", " cupy = 8GiB,rmm=25%");
    EXPECT_TRUE(is_library_tagged("cupy").value());
    EXPECT_FALSE(is_library_tagged("torch").value());
    const auto list = tag_limits_from_environment().value();
    ASSERT_EQ(list.size(), 2u);
    EXPECT_EQ(list[0].tag, "cupy");
    EXPECT_EQ(list[0].limit.of(1), 8 * kGiB);
    EXPECT_EQ(list[1].limit.of(1000), 250u);
  }
  const Variable all("VPMM_TAG_LIBRARIES", "1");
  EXPECT_TRUE(is_library_tagged("torch").value());
}

TEST_F(Variables, limit_tags_with_any_name_of_their_own) {
  {
    const Variable limits("VPMM_LIMITS", "a=b = 1GiB,\t kv cache\t=\t5% ");
    const auto list = tag_limits_from_environment().value();
    ASSERT_EQ(list.size(), 2u);
    EXPECT_EQ(list[0].tag, "a=b");
    EXPECT_EQ(list[0].limit, (Portion{kGiB, 0}));
    EXPECT_EQ(list[1].tag, "kv cache");
    EXPECT_EQ(list[1].limit, (Portion{0, 5}));
  }
  for (const char* text : {"", "none"}) {
    const Variable limits("VPMM_LIMITS", text);
    EXPECT_TRUE(tag_limits_from_environment().value().empty());
  }
}

TEST_F(Variables, say_which_part_of_the_limits_is_wrong) {
  const std::pair<const char*, const char*> cases[] = {
      {"rmm=25%,cupy", "('cupy' is not NAME=LIMIT)"},
      {"rmm=25%,", "('' is not NAME=LIMIT)"},
      {"=25%", "('=25%' is not NAME=LIMIT)"},
      {" \t=25%", "(' \t=25%' is not NAME=LIMIT)"},
      {"rmm=25%,cupy=1GiB,rmm=1GiB", "(rmm has two limits)"},
      {"rmm=0%", "(0% is no share: 1% to 100% are)"},
      {"rmm=101%", "(101% is no share: 1% to 100% are)"},
      {"rmm=x%", "(x% is no share: 1% to 100% are)"}};
  for (const auto& [text, fault] : cases) {
    const Variable limits("VPMM_LIMITS", text);
    const std::string problem = setting_called("VPMM_LIMITS").problem;
    EXPECT_EQ(problem, std::string("VPMM_LIMITS=") + text +
                           ": must be limits such as cupy=8GiB,rmm=25%, or \"none\" " + fault);
    const auto limits_there = tag_limits_from_environment();
    ASSERT_FALSE(limits_there.ok());
    EXPECT_EQ(limits_there.error().message, problem);
    EXPECT_FALSE(is_library_tagged("rmm").ok());
  }
  const Variable all("VPMM_TAG_LIBRARIES", "some");
  EXPECT_EQ(is_library_tagged("rmm").error().message, "VPMM_TAG_LIBRARIES=some: must be 0 or 1");
}

TEST_F(Variables, name_libraries_in_any_case_with_blanks_and_commas) {
  for (const char* text :
       {"none", "torch", "torch,cupy,rmm,numba", " Torch ,\tcuPY", "torch,,cupy,", ","}) {
    const Variable use("VPMM_USE", text);
    EXPECT_EQ(setting_called("VPMM_USE").problem, "") << text;
  }
  for (const char* text :
       {"jax", "jax,torch", "torch,jax", "torch cupy", "torch;cupy", "none,torch"}) {
    const Variable use("VPMM_USE", text);
    EXPECT_EQ(setting_called("VPMM_USE").problem,
              std::string("VPMM_USE=") + text +
                  ": must be none, or names of libraries, separated by commas: torch, cupy, "
                  "rmm, numba");
  }
}

TEST(Portion, of_a_whole_is_its_share_without_overflow_and_rounded_down) {
  EXPECT_EQ((Portion{7, 0}).of(100), 7u);
  EXPECT_EQ((Portion{0, 25}).of(1001), 250u);
  EXPECT_EQ((Portion{0, 33}).of(250), 82u);
  EXPECT_EQ((Portion{0, 100}).of(~Bytes{0}), ~Bytes{0});
  EXPECT_EQ((Portion{0, 1}).of(99), 0u);
}

TEST_F(Variables, that_answer_take_one_word) {
  for (const char* text : {"1", "yes", "Require", "off", " on "}) {
    const Variable torch("VPMM_TORCH", text);
    EXPECT_EQ(setting_called("VPMM_TORCH").problem, "") << text;
  }
  for (const char* text : {"require,1", "1,1", "enabled", "require,require"}) {
    const Variable torch("VPMM_TORCH", text);
    EXPECT_NE(setting_called("VPMM_TORCH").problem, "") << text;
  }
}

TEST_F(Variables, name_the_size_that_was_meant_if_it_would_be_allowed) {
  const Variable limit("VPMM_RECORD_LIMIT", "3G");
  EXPECT_NE(setting_called("VPMM_RECORD_LIMIT").problem.find("did you mean 3GiB?"),
            std::string::npos);
  const Variable stats("VPMM_STATS", "3G");
  EXPECT_EQ(setting_called("VPMM_STATS").problem, "VPMM_STATS=3G: must be 0 or 1");
}

TEST_F(Variables, are_listed_with_what_they_hold_and_where_it_came_from) {
  EXPECT_EQ(setting_called("VPMM_IPC_GRACE").value, "10000");
  EXPECT_FALSE(setting_called("VPMM_IPC_GRACE").is_from_environment);
  const Variable variables[] = {{"VPMM_IPC_GRACE", "7"}, {"VPMM_PAGES", "3"}};
  for (const char* name : {"VPMM_IPC_GRACE", "VPMM_PAGES", "VPMM_PREFER", "VPMM_TOP"})
    EXPECT_EQ(setting_called(name).problem, "");
  EXPECT_EQ(setting_called("VPMM_IPC_GRACE").value, "7");
  EXPECT_TRUE(setting_called("VPMM_IPC_GRACE").is_from_environment);
  EXPECT_EQ(setting_called("VPMM_PAGES").value, "3");
  EXPECT_TRUE(setting_called("VPMM_PAGES").is_from_environment);
  EXPECT_FALSE(setting_called("VPMM_PREFER").is_from_environment);
}

TEST_F(Variables, stand_at_their_defaults_where_what_they_hold_is_not_allowed) {
  const std::pair<const char*, const char*> bad[] = {{"VPMM_IPC_DIR", "here"},
                                                     {"VPMM_IPC_TIMEOUT", "0"},
                                                     {"VPMM_MAX_PENDING_DEALLOCS_COUNT", "-1"},
                                                     {"VPMM_MAX_PENDING_DEALLOCS_RATIO", "1.5"},
                                                     {"VPMM_RECORD_STACKS", "all"},
                                                     {"VPMM_RECORD_LIMIT", "all"},
                                                     {"VPMM_RECORD_SAMPLE", "0"},
                                                     {"VPMM_RECORD_WINDOW", "long"},
                                                     {"VPMM_NUMBA_KERNEL_ARGUMENTS", "no"},
                                                     {"VPMM_PAGES", "lots"}};
  for (const auto& [name, value] : bad) {
    const SettingInForce usual = setting_called(name);
    const Variable variable(name, value);
    const SettingInForce setting = setting_called(name);
    EXPECT_EQ(setting.problem, std::string(name) + "=" + value + ": must be " + setting.allowed);
    EXPECT_EQ(setting.value, usual.value) << name;
    EXPECT_FALSE(setting.is_from_environment) << name;
  }
}

TEST_F(Variables, that_are_none_are_named_with_the_one_that_was_meant) {
  EXPECT_EQ(misspelt(), std::vector<std::string>{});
  const std::pair<const char*, const char*> cases[] = {
      {"VPMM_PAGE_SZE", "VPMM_PAGE_SIZE"},
      {"VPMM_PAGESIZE", "VPMM_PAGE_SIZE"},
      {"VPMM_MAX_CAPACITY", "VPMM_CAPACITY"},
      {"VPMM_LGO", "VPMM_LOG"},
      {"VPMM_RECRD", "VPMM_RECORD"},
      {"VPMM_IPC_TIMOUT", "VPMM_IPC_TIMEOUT"},
      {"VPMM_PREFXX", "VPMM_PREFER"},                                         // two of six letters
      {"VPMM_MAX_PENDING_DEALLOCS_COUN", "VPMM_MAX_PENDING_DEALLOCS_COUNT"},  // and _RATIO, less so
      {"VPMM_ERCORD_STACSK", "VPMM_RECORD_STACKS"}};
  for (const auto& [name, meant] : cases) {
    const Variable variable(name, "1");
    EXPECT_EQ(misspelt(),
              std::vector{std::string(name) + " is not a setting; did you mean " + meant + "?"});
  }
  for (const char* name : {"VPMM_HEAP", "VPMM_LGOX", "VPMM_PREFXXX"}) {
    const Variable strange(name, "1");
    EXPECT_EQ(misspelt(), std::vector{std::string(name) +
                                      " is not a setting; `vpmm info` lists all that there are"});
  }
}

TEST_F(Variables, that_limit_a_tag_which_is_nearly_a_librarys_name_it) {
  const std::pair<const char*, const char*> cases[] = {
      {"cupi", "cupy"},   {"CuPy", "cupy"}, {"pytorch", "torch"}, {"rrm", "rmm"},
      {"nmuba", "numba"}, {"upy", "cupy"},  {"orch", "torch"},    {"ucpy", "cupy"},
      {"otrch", "torch"}, {"umba", "numba"}};
  for (const auto& [tag, meant] : cases) {
    const Variable limits("VPMM_LIMITS", (std::string("torch=1GiB,") + tag + "=25%").c_str());
    EXPECT_EQ(misspelt(), std::vector{std::string("VPMM_LIMITS limits the tag ") + tag +
                                      ", which is no library's; did you mean " + meant + "?"});
  }
  for (const char* list :
       {"torch=1GiB,cupy=2GiB,rmm=1%,numba=1%,kv-cache=5%,cudf=3%",
        "h=1%,py=1%,kvrmm=1%,myowncupy=1%,cuxp=1%,cuyx=1%", "cupi is no limit"}) {
    const Variable limits("VPMM_LIMITS", list);
    EXPECT_EQ(misspelt(), std::vector<std::string>{}) << list;
  }
}

TEST_F(Variables, of_tests_and_empty_ones_and_ours_are_not_misspelt) {
  const Variable variables[] = {{"VPMM_SEED", "7"},    {"VPMM_BUILD_FOLDER", "x"},
                                {"VPMM_PAGE_SZE", ""}, {"VPMM_PAGES_PID", "12"},
                                {"VPMM_TORCH", "1"},   {"VPMM", "1"}};
  EXPECT_EQ(misspelt(), std::vector<std::string>{});
}

TEST_F(Variables, that_say_how_to_record_are_idle_where_none_says_to_what_file) {
  const auto idle = [] {
    const auto sentences = idle_variables();
    return std::vector<std::string>(sentences.begin(), sentences.end());
  };
  EXPECT_EQ(idle(), std::vector<std::string>{});
  const Variable stacks("VPMM_RECORD_STACKS", "python");
  const std::vector<std::string> expected{
      "VPMM_RECORD_STACKS has no effect without VPMM_RECORD, the path of a file"};
  EXPECT_EQ(idle(), expected);
  {
    const Variable variables[] = {
        {"VPMM_RECORD", "none"}, {"VPMM_RECORD_SAMPLE", "1"}, {"VPMM_RECORD_LIMIT", "none"}};
    EXPECT_EQ(idle(), expected) << "defaults as info prints them ask for nothing";
  }
  const Variable record("VPMM_RECORD", "run.vpmm");
  EXPECT_EQ(idle(), std::vector<std::string>{});
}

TEST_F(Variables, that_are_none_or_idle_are_warned_of_once) {
  const Variable variables[] = {{"VPMM_PAGE_SZE", "4MiB"}, {"VPMM_RECORD_WINDOW", "60"}};
  std::vector<std::string> messages;
  observe::set_log_sink(
      [&](observe::LogLevel, std::string_view message) { messages.emplace_back(message); });
  warn_of_variables();
  warn_of_variables();
  observe::set_log_sink({});
  EXPECT_EQ(messages,
            (std::vector<std::string>{
                "VPMM_PAGE_SZE is not a setting; did you mean VPMM_PAGE_SIZE?",
                "VPMM_RECORD_WINDOW has no effect without VPMM_RECORD, the path of a file"}));
}

}  // namespace
}  // namespace vpmm::settings
