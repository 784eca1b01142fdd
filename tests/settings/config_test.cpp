// SPDX-License-Identifier: Apache-2.0
// settings: the settings: what is accepted, what is refused and with which words.
#include "settings/config.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstddef>
#include <cstdlib>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/bytes.hpp"
#include "settings/variable.hpp"

namespace vpmm::settings {
namespace {

// Without the variables that the shell may have set.
class ConfigFromEnvironment : public testing::Test {
 protected:
  void SetUp() override {
    for (const SettingInForce& setting : list_settings(Config{})) unsetenv(setting.name.c_str());
  }
};

std::string message_of(const Result<void>& result) {
  return result ? "ok" : result.error().message;
}

std::string allowed_for(std::string_view name) {
  for (const SettingInForce& setting : list_settings(Config{})) {
    if (setting.name == name) return setting.allowed;
  }
  return "no such setting";
}

std::string shown(const Config& config, std::string_view name) {
  for (const SettingInForce& setting : list_settings(config))
    if (setting.name == name) return setting.value;
  return "no such setting";
}

TEST_F(ConfigFromEnvironment, children_of_a_process_that_mapped_pages_ahead_do_not) {
  const Variable pages("VPMM_PAGES", "7");
  {
    const Variable mine("VPMM_PAGES_PID", std::to_string(::getpid()).c_str());
    EXPECT_EQ(config_from_environment().value().pages, 7u) << "this process itself";
  }
  {
    const Variable none("VPMM_PAGES_PID", "");
    EXPECT_EQ(config_from_environment().value().pages, 7u);
    note_mapped_ahead();
    EXPECT_STREQ(std::getenv("VPMM_PAGES_PID"), std::to_string(::getpid()).c_str());
  }
  EXPECT_EQ(allowed_config_from_environment().pages, 7u);
  const Variable parent("VPMM_PAGES_PID", std::to_string(::getppid()).c_str());
  EXPECT_EQ(config_from_environment().value().pages, 0u);
  EXPECT_EQ(allowed_config_from_environment().pages, 0u);
  note_mapped_ahead();
  EXPECT_STREQ(std::getenv("VPMM_PAGES_PID"), std::to_string(::getppid()).c_str())
      << "for grandchildren";
}

TEST_F(ConfigFromEnvironment, without_variables_is_the_default) {
  const auto config = config_from_environment();
  ASSERT_TRUE(config.ok()) << config.error().message;
  EXPECT_EQ(difference(config.value(), Config{}), "");
  EXPECT_EQ(config.value(), Config{});
}

TEST_F(ConfigFromEnvironment, reads_every_variable) {
  const Variable variables[] = {
      {"VPMM_DRIVER", "sim"},      {"VPMM_PAGE_SIZE", "4MiB"},  {"VPMM_PAGES", "16"},
      {"VPMM_VA_SIZE", "1TiB"},    {"VPMM_CHUNK_MAX", "64MiB"}, {"VPMM_RELEASE_THRESHOLD", "0"},
      {"VPMM_MAX_MAPPINGS", "16"}, {"VPMM_CAPACITY", "10GB"},   {"VPMM_SMALL", "stream_ordered"},
      {"VPMM_ANY_STREAM", "park"}, {"VPMM_LOG", "debug"},       {"VPMM_PREFER", "latency"},
      {"VPMM_IPC_ISOLATE", "1"},   {"VPMM_GUARD", "1/100"},     {"VPMM_FILL", "freed,new"}};
  const auto config = config_from_environment();
  ASSERT_TRUE(config.ok()) << config.error().message;
  Config expected;
  expected.driver = DriverKind::sim;
  expected.page_size = 4 * kMiB;
  expected.pages = 16;
  expected.va_size = kTiB;
  expected.chunk_max = 64 * kMiB;
  expected.limits.release_threshold = 0;
  expected.limits.max_mappings = 16;
  expected.limits.capacity = Bytes{10'000'000'000};
  expected.small = SmallRequests::stream_ordered;
  expected.streams.any_stream = AnyStreamOrder::park;
  expected.prefer = settings::Prefer::latency;
  expected.log = observe::LogLevel::debug;
  expected.ipc_isolate = true;
  expected.checks.guard_every = 100;
  expected.checks.fill_new = expected.checks.fill_freed = true;
  EXPECT_EQ(config.value(), expected) << difference(config.value(), expected);
}

TEST_F(ConfigFromEnvironment, guards_none_all_or_one_in_several) {
  const std::pair<const char*, std::uint64_t> cases[] = {
      {"0", 0}, {"1", 1}, {"1/1", 1}, {"1/2", 2}, {"1/100", 100}};
  for (const auto& [text, every] : cases) {
    const Variable guard("VPMM_GUARD", text);
    EXPECT_EQ(config_from_environment().value().checks.guard_every, every) << text;
  }
}

TEST_F(ConfigFromEnvironment, fills_new_memory_freed_memory_or_both) {
  for (const char* text : {"none", "new", "freed", "new,freed"}) {
    const Variable fill("VPMM_FILL", text);
    EXPECT_STREQ(fill_text(config_from_environment().value()), text);
  }
  const Variable fill("VPMM_FILL", "freed,new");
  EXPECT_STREQ(fill_text(config_from_environment().value()), "new,freed");
}

TEST_F(ConfigFromEnvironment, names_a_guard_and_a_filling_that_are_not_allowed) {
  for (const char* text : {"2", "1/0", "1/", "1/x", "yes", "-1", "1/-1"}) {
    const Variable guard("VPMM_GUARD", text);
    const auto config = config_from_environment();
    ASSERT_FALSE(config.ok()) << text;
    EXPECT_NE(config.error().message.find(std::string("VPMM_GUARD=") + text), std::string::npos)
        << config.error().message;
  }
  for (const char* text : {"1", "new;freed", "new,", "old"}) {
    const Variable fill("VPMM_FILL", text);
    EXPECT_FALSE(config_from_environment().ok()) << text;
  }
}

TEST_F(ConfigFromEnvironment, takes_a_share_of_the_gpu_as_capacity) {
  const Variable share("VPMM_CAPACITY", "80%");
  const auto config = config_from_environment();
  ASSERT_TRUE(config.ok()) << config.error().message;
  Config expected;
  expected.limits.capacity_percent = 80;
  EXPECT_EQ(config.value(), expected) << difference(config.value(), expected);
}

TEST_F(ConfigFromEnvironment, names_a_capacity_that_is_no_share) {
  for (const char* text : {"0%", "101%", "%", "-1%", "1.5%", "8%0", "0", "80 %%"}) {
    const Variable share("VPMM_CAPACITY", text);
    const auto config = config_from_environment();
    ASSERT_FALSE(config.ok()) << text;
    EXPECT_NE(config.error().message.find(std::string("VPMM_CAPACITY=") + text), std::string::npos)
        << config.error().message;
    EXPECT_NE(config.error().message.find("a share of the GPU's memory such as 80%"),
              std::string::npos)
        << config.error().message;
  }
}

TEST_F(ConfigFromEnvironment, names_the_size_that_was_meant) {
  {
    const Variable capacity("VPMM_CAPACITY", "64M");
    EXPECT_EQ(
        config_from_environment().error().message,
        "VPMM_CAPACITY=64M: must be " + allowed_for("VPMM_CAPACITY") + "; did you mean 64MiB?");
  }
  const Variable pages("VPMM_PAGES", "64M");  // no size
  EXPECT_EQ(config_from_environment().error().message,
            "VPMM_PAGES=64M: must be " + allowed_for("VPMM_PAGES"));
}

TEST_F(ConfigFromEnvironment, takes_an_empty_variable_as_not_set) {
  const Variable page_size("VPMM_PAGE_SIZE", "");
  const auto config = config_from_environment();
  ASSERT_TRUE(config.ok()) << config.error().message;
  EXPECT_EQ(config.value(), Config{});
}

TEST_F(ConfigFromEnvironment, switches_the_pool_off_for_max_and_for_the_largest_number) {
  for (const char* text : {"max", "18446744073709551615"}) {
    const Variable page_size("VPMM_PAGE_SIZE", text);
    const auto config = config_from_environment();
    ASSERT_TRUE(config.ok()) << config.error().message;
    EXPECT_FALSE(config.value().pool_enabled) << text;
    EXPECT_FALSE(config.value().page_size.has_value());
  }
}

TEST_F(ConfigFromEnvironment, takes_the_huge_page_size_that_sends_every_request_to_the_driver) {
  const Variable page_size("VPMM_PAGE_SIZE", "34359738368");
  const auto config = config_from_environment();
  ASSERT_TRUE(config.ok()) << config.error().message;
  EXPECT_EQ(config.value().page_size, 32 * kGiB);
  EXPECT_TRUE(validate(config.value(), 2 * kMiB).ok());
}

TEST_F(ConfigFromEnvironment, page_chunks_are_the_word_page) {
  const Variable chunk_max("VPMM_CHUNK_MAX", "page");
  const auto config = config_from_environment();
  ASSERT_TRUE(config.ok()) << config.error().message;
  EXPECT_TRUE(config.value().page_chunks);
}

TEST_F(ConfigFromEnvironment, names_the_variable_its_value_and_what_is_allowed) {
  const std::pair<const char*, const char*> cases[] = {{"VPMM_DRIVER", "opencl"},
                                                       {"VPMM_PAGE_SIZE", "all"},
                                                       {"VPMM_PAGE_SIZE", "0"},
                                                       {"VPMM_PAGES", "-1"},
                                                       {"VPMM_PAGES", "1.5"},
                                                       {"VPMM_VA_SIZE", "0"},
                                                       {"VPMM_VA_SIZE", "lots"},
                                                       {"VPMM_CHUNK_MAX", "pages"},
                                                       {"VPMM_CHUNK_MAX", "0"},
                                                       {"VPMM_CAPACITY", "0"},
                                                       {"VPMM_RELEASE_THRESHOLD", "no"},
                                                       {"VPMM_MAX_MAPPINGS", "15"},
                                                       {"VPMM_IPC_ISOLATE", "2"},
                                                       {"VPMM_IPC_ISOLATE", "yes"},
                                                       {"VPMM_SMALL", "pages"},
                                                       {"VPMM_ANY_STREAM", "Context"},
                                                       {"VPMM_PREFER", "speed"},
                                                       {"VPMM_LOG", "verbose"},
                                                       {"VPMM_MAX_MAPPINGS", "64MiB"}};
  for (const auto& [name, value] : cases) {
    const Variable variable(name, value);
    const auto config = config_from_environment();
    ASSERT_FALSE(config.ok()) << name << "=" << value;
    EXPECT_EQ(config.error().code, ErrorCode::bad_configuration);
    EXPECT_EQ(config.error().message,
              std::string(name) + "=" + value + ": must be " + allowed_for(name));
  }
}

TEST(ConfigValidate, accepts_the_defaults) {
  EXPECT_EQ(message_of(validate(Config{}, 2 * kMiB)), "ok");
}

TEST(ConfigValidate, wants_sizes_in_multiples_of_the_granularity) {
  Config page_size;
  page_size.page_size = 3 * kMiB;
  EXPECT_EQ(message_of(validate(page_size, 2 * kMiB)),
            "VPMM_PAGE_SIZE=3MiB: must be a multiple of the device granularity (2MiB) up to "
            "128TiB, or \"max\" to switch the "
            "pool off");
  Config va_size;
  va_size.va_size = 5 * kMiB;
  EXPECT_EQ(message_of(validate(va_size, 2 * kMiB)),
            "VPMM_VA_SIZE=5MiB: must be a multiple of the device granularity (2MiB) up to 128TiB");
  Config chunk_max;
  chunk_max.chunk_max = 1500;
  EXPECT_EQ(
      message_of(validate(chunk_max, 2 * kMiB)),
      "VPMM_CHUNK_MAX=1500B: must be \"page\" or a multiple of the device granularity (2MiB)");
}

TEST(ConfigValidate, checks_all_sizes_when_the_pool_is_off) {
  Config va_size;
  va_size.pool_enabled = false;
  EXPECT_EQ(message_of(validate(va_size, 2 * kMiB)), "ok");
  Config chunk_max = va_size;
  va_size.va_size = 1;
  chunk_max.chunk_max = 1;
  EXPECT_EQ(message_of(validate(va_size, 2 * kMiB)).rfind("VPMM_VA_SIZE=1B: must be ", 0), 0u);
  EXPECT_EQ(message_of(validate(chunk_max, 2 * kMiB)).rfind("VPMM_CHUNK_MAX=1B: must be ", 0), 0u);
}

TEST(ConfigValidate, wants_pages_and_reservations_that_addresses_can_hold) {
  Config config;
  config.page_size = 128 * kTiB;
  EXPECT_EQ(message_of(validate(config, 2 * kMiB)), "ok");
  for (const Bytes bytes : {128 * kTiB + 2 * kMiB, ~Bytes{0} / (2 * kMiB) * (2 * kMiB)}) {
    Config page_size;
    Config va_size;
    page_size.page_size = va_size.va_size = bytes;
    EXPECT_EQ(message_of(validate(page_size, 2 * kMiB)).rfind("VPMM_PAGE_SIZE=", 0), 0u);
    EXPECT_EQ(message_of(validate(va_size, 2 * kMiB)).rfind("VPMM_VA_SIZE=", 0), 0u);
  }
}

TEST_F(ConfigFromEnvironment, is_named_as_it_was_given_when_the_device_refuses_it) {
  for (const char* text : {"1", "1B", "1025KiB"}) {
    const Variable chunk_max("VPMM_CHUNK_MAX", text);
    const auto config = config_from_environment();
    ASSERT_TRUE(config.ok()) << config.error().message;
    const std::string start = std::string("VPMM_CHUNK_MAX=") + text + ": must be ";
    EXPECT_EQ(message_of(validate(config.value(), 2 * kMiB)).rfind(start, 0), 0u) << text;
  }
}

TEST(ConfigValidate, checks_the_mapping_limit_that_did_not_come_from_text) {
  Config config;
  config.limits.max_mappings = 15;
  EXPECT_EQ(message_of(validate(config, 2 * kMiB)),
            "VPMM_MAX_MAPPINGS=15: must be a number, 16 or more");
}

TEST_F(ConfigFromEnvironment, takes_nothing_from_a_variable_with_the_name_of_a_field) {
  const Variable field("unnamed_free", "allocating_stream");
  EXPECT_EQ(config_from_environment().value(), Config{});
  for (const SettingInForce& setting : list_settings({})) EXPECT_EQ(setting.problem, "");
}

TEST_F(ConfigFromEnvironment, without_what_is_not_allowed_has_the_rest) {
  const Variable variables[] = {{"VPMM_PAGES", "lots"}, {"VPMM_GUARD", "1"}};
  EXPECT_FALSE(config_from_environment().ok());
  Config expected;
  expected.checks.guard_every = 1;
  EXPECT_EQ(allowed_config_from_environment(), expected);
}

TEST(ConfigValidate, has_limits_that_are_allowed_themselves) {
  Config config;
  config.limits.max_mappings = 16;
  config.va_size = 128 * kTiB;
  config.chunk_max = 2 * kMiB;
  EXPECT_EQ(message_of(validate(config, 2 * kMiB)), "ok");
  config.page_chunks = true;
  config.chunk_max = 1;
  EXPECT_EQ(message_of(validate(config, 2 * kMiB)), "ok") << "chunks are pages";
  config.page_size = 0;
  EXPECT_EQ(message_of(validate(config, 2 * kMiB)).rfind("VPMM_PAGE_SIZE=", 0), 0u);
}

// Each text replaces the one before, and is shown as it was written.
TEST(ConfigSet, replaces_what_was_set) {
  const std::pair<const char*, std::vector<const char*>> settings[] = {
      {"VPMM_DRIVER", {"cuda", "sim", "auto"}},
      {"VPMM_PAGE_SIZE", {"4MiB", "max", "6MiB"}},
      {"VPMM_PAGES", {"1", "0"}},
      {"VPMM_VA_SIZE", {"1GiB", "2GiB"}},
      {"VPMM_CHUNK_MAX", {"4MiB", "page", "8MiB"}},
      {"VPMM_RELEASE_THRESHOLD", {"4GiB", "none", "1B"}},
      {"VPMM_MAX_MAPPINGS", {"16", "17"}},
      {"VPMM_CAPACITY", {"4GiB", "1%", "none", "100%", "5GiB", "none"}},
      {"VPMM_SMALL", {"stream_ordered", "pool"}},
      {"VPMM_PREFER", {"footprint", "latency", "balanced"}},
      {"VPMM_ANY_STREAM", {"legacy", "park", "context"}},
      {"VPMM_IPC_ISOLATE", {"1", "0"}},
      {"VPMM_GUARD", {"1", "1/3", "0"}},
      {"VPMM_FILL", {"new", "freed", "new,freed", "none"}},
      {"VPMM_LOG", {"quiet", "error", "info", "debug", "warning"}}};
  std::size_t listed = 1;  // unnamed_free
  for (const auto& [name, texts] : settings) {
    ++listed;
    Config config;
    for (const char* text : texts) {
      EXPECT_EQ(message_of(set(config, name, text)), "ok") << name;
      EXPECT_EQ(shown(config, name), text) << name;
    }
    Config once;
    EXPECT_EQ(message_of(set(once, name, texts.back())), "ok");
    EXPECT_EQ(config, once) << name << ": nothing of the earlier ones is left";
  }
  EXPECT_EQ(listed, list_settings({}).size());
}

TEST(ConfigSet, forgets_a_size_of_pages_that_the_device_would_refuse_once_the_pool_is_off) {
  Config config;
  EXPECT_EQ(message_of(set(config, "VPMM_PAGE_SIZE", "3MiB")), "ok");
  EXPECT_NE(message_of(validate(config, 2 * kMiB)), "ok");
  EXPECT_EQ(message_of(set(config, "VPMM_PAGE_SIZE", "max")), "ok");
  EXPECT_EQ(message_of(validate(config, 2 * kMiB)), "ok");
}

TEST(ListSettings, has_a_word_for_values_that_are_none) {
  EXPECT_STREQ(to_string(static_cast<DriverKind>(99)), "unknown");
  EXPECT_STREQ(to_string(static_cast<SmallRequests>(99)), "unknown");
  EXPECT_STREQ(to_string(static_cast<settings::Prefer>(99)), "unknown");
  EXPECT_STREQ(to_string(static_cast<AnyStreamOrder>(99)), "unknown");
  EXPECT_STREQ(to_string(static_cast<UnnamedFree>(99)), "unknown");
}

TEST(ConfigSet, refuses_a_name_that_is_no_setting) {
  Config config;
  EXPECT_EQ(message_of(set(config, "VPMM_PAGESIZE", "2MiB")), "VPMM_PAGESIZE is not a setting");
  EXPECT_EQ(message_of(set(config, "unnamed_free", "any_stream")), "unnamed_free is not a setting");
  EXPECT_EQ(config, Config{});
}

TEST(ConfigSet, leaves_the_setting_alone_when_the_text_is_bad) {
  Config config;
  EXPECT_FALSE(set(config, "VPMM_PAGE_SIZE", "oops").ok());
  EXPECT_FALSE(set(config, "VPMM_CHUNK_MAX", "oops").ok());
  EXPECT_FALSE(set(config, "VPMM_RELEASE_THRESHOLD", "oops").ok());
  EXPECT_EQ(config, Config{});
}

TEST(ConfigDifference, names_the_first_setting_that_differs) {
  Config asked;
  asked.pages = 16;
  EXPECT_EQ(difference(Config{}, asked), "VPMM_PAGES is 0, not 16");
  asked.page_size = 4 * kMiB;
  EXPECT_EQ(difference(Config{}, asked), "VPMM_PAGE_SIZE is the device's granularity, not 4MiB");
}

TEST(ConfigDifference, sees_the_field_that_has_no_variable) {
  Config asked;
  asked.streams.unnamed_free = UnnamedFree::allocating_stream;
  EXPECT_EQ(difference(Config{}, asked), "unnamed_free is any_stream, not allocating_stream");
}

TEST(ListSettings, shows_values_as_they_are_written) {
  Config config;
  EXPECT_EQ(shown(config, "VPMM_PAGE_SIZE"), "the device's granularity");
  config.page_size = 4 * kMiB;
  EXPECT_EQ(shown(config, "VPMM_PAGE_SIZE"), "4MiB");
  config.pool_enabled = false;
  EXPECT_EQ(shown(config, "VPMM_PAGE_SIZE"), "max");
  EXPECT_EQ(shown(config, "VPMM_CAPACITY"), "none");
  config.limits.capacity_percent = 80;
  EXPECT_EQ(shown(config, "VPMM_CAPACITY"), "80%");
  config.limits.capacity_percent = 0;
  config.limits.capacity = 3 * kGiB;
  EXPECT_EQ(shown(config, "VPMM_CAPACITY"), "3GiB");
  const std::pair<std::uint64_t, const char*> guards[] = {
      {0, "0"}, {1, "1"}, {2, "1/2"}, {100, "1/100"}};
  for (const auto& [every, text] : guards) {
    config.checks.guard_every = every;
    EXPECT_EQ(shown(config, "VPMM_GUARD"), text);
  }
}

TEST(ConfigSet, changes_the_setting_of_that_name_alone) {
  Config config;
  EXPECT_EQ(message_of(set(config, "VPMM_GUARD", "1/7")), "ok");
  Config expected;
  expected.checks.guard_every = 7;
  EXPECT_EQ(config, expected);
}

TEST(ListSettings, shows_the_value_in_force_and_explains_it) {
  Config config;
  config.page_chunks = true;
  bool found = false;
  for (const SettingInForce& setting : list_settings(config)) {
    EXPECT_FALSE(setting.meaning.empty()) << setting.name;
    EXPECT_FALSE(setting.allowed.empty()) << setting.name;
    if (setting.name == "VPMM_CHUNK_MAX") found = setting.value == "page";
  }
  EXPECT_TRUE(found);
}

}  // namespace
}  // namespace vpmm::settings
