// SPDX-License-Identifier: Apache-2.0
// cli: `vpmm info`: the driver, the devices and what they can do, the settings in force.
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/quantity.hpp"
#include "cli/options.hpp"
#include "cli/terminal.hpp"
#include "cli/verbs.hpp"
#include "context/context.hpp"
#include "context/open_driver.hpp"
#include "driver/driver_error.hpp"
#include "settings/config.hpp"

namespace vpmm::cli {
namespace {

using Json = nlohmann::ordered_json;
using driver::Call;
using driver::DeviceAttribute;

struct InfoArguments {
  std::optional<settings::DriverKind> driver;
  bool json = false;
};

struct Capability {
  const char* name;  // the key in JSON
  const char* meaning;
  DeviceAttribute attribute;
};
constexpr Capability kCapabilities[] = {
    {"virtual_memory_management", "virtual memory management (the pool needs it)",
     DeviceAttribute::virtual_memory_management_supported},
    {"memory_pools", "stream-ordered allocator (VPMM_SMALL=stream_ordered)",
     DeviceAttribute::memory_pools_supported},
    {"posix_file_descriptor", "chunks can be shared as file descriptors",
     DeviceAttribute::posix_file_descriptor_supported},
    {"gpu_direct_rdma", "RDMA from chunks", DeviceAttribute::gpu_direct_rdma_with_vmm_supported},
};

struct Device {
  std::string name;
  std::string uuid;
  Bytes total = 0;
  int compute_major = 0;
  int compute_minor = 0;
  std::vector<bool> capabilities;    // as kCapabilities
  std::optional<Bytes> granularity;  // none: no virtual memory management
};

struct DriverInfo {
  std::string name;
  int version = 0;
  bool context_events = false;
  std::vector<Device> devices;
};

std::string uuid_text(const driver::Uuid& uuid) {
  std::string out;
  for (std::size_t i = 0; i < uuid.size(); ++i) {
    if (i == 4 || i == 6 || i == 8 || i == 10) out += '-';
    out += fmt::format("{:02x}", uuid[i]);
  }
  return out;
}

Result<int> attribute_of(driver::Driver& driver, int ordinal, DeviceAttribute attribute) {
  int value = 0;
  VPMM_TRY(
      checked(Call::device_get_attribute, driver.device_get_attribute(attribute, ordinal, value)));
  return value;
}

Result<Device> describe_device(driver::Driver& driver, int ordinal) {
  Device device;
  driver::Uuid uuid{};
  VPMM_TRY(checked(Call::device_get_name, driver.device_get_name(ordinal, device.name)));
  VPMM_TRY(checked(Call::device_get_uuid, driver.device_get_uuid(ordinal, uuid)));
  VPMM_TRY(checked(Call::device_total_mem, driver.device_total_mem(ordinal, device.total)));
  VPMM_TRY_ASSIGN(device.compute_major,
                  attribute_of(driver, ordinal, DeviceAttribute::compute_capability_major));
  VPMM_TRY_ASSIGN(device.compute_minor,
                  attribute_of(driver, ordinal, DeviceAttribute::compute_capability_minor));
  device.uuid = uuid_text(uuid);
  for (const Capability& capability : kCapabilities) {
    // An attribute that this driver does not know yet is a capability that it does not have.
    const Result<int> value = attribute_of(driver, ordinal, capability.attribute);
    device.capabilities.push_back(value && value.value() != 0);
  }
  driver::ChunkProperties properties;
  properties.device = ordinal;
  Bytes granularity = 0;
  const auto got =
      driver.mem_get_allocation_granularity(properties, driver::Granularity::minimum, granularity);
  if (device.capabilities.front() && got == driver::CuResult::success)
    device.granularity = granularity;
  return device;
}

Result<DriverInfo> describe_driver(driver::Driver& driver) {
  DriverInfo info;
  int count = 0;
  info.name = driver.name();
  info.context_events = driver.has(Call::ctx_record_event);
  VPMM_TRY(checked(Call::init, driver.init()));
  VPMM_TRY(checked(Call::driver_get_version, driver.driver_get_version(info.version)));
  VPMM_TRY(checked(Call::device_get_count, driver.device_get_count(count)));
  for (int ordinal = 0; ordinal < count; ++ordinal) {
    VPMM_TRY_ASSIGN(Device device, describe_device(driver, ordinal));
    info.devices.push_back(std::move(device));
  }
  return info;
}

std::string version_text(int version) {
  return fmt::format("{}.{}", version / 1000, version % 1000 / 10);
}
const char* yes_or_no(bool yes) { return yes ? "yes" : "no"; }

std::string text_of(const Device& device, std::size_t ordinal) {
  std::string out = fmt::format("\ndevice {}: {}\n", ordinal, device.name);
  const auto add = [&out](std::string_view name, std::string_view value) {
    out += fmt::format("  {:<18}  {}\n", name, value);
  };
  add("uuid", device.uuid);
  add("compute capability", fmt::format("{}.{}", device.compute_major, device.compute_minor));
  add("memory",
      fmt::format("{:.1f} GiB", static_cast<double>(device.total) / static_cast<double>(kGiB)));
  add("page granularity", device.granularity ? format_bytes(*device.granularity) : "none");
  for (std::size_t i = 0; i < device.capabilities.size(); ++i)
    add(yes_or_no(device.capabilities[i]), kCapabilities[i].meaning);
  if (!device.granularity) out += "  every request goes to the driver's stream-ordered allocator\n";
  return out;
}

struct ShownSetting {
  settings::SettingInForce setting;
  std::string origin;
};

// All that was found out. An error does not keep the rest from being printed.
struct Answer {
  settings::Config config;
  std::vector<ShownSetting> settings;  // the pool's, then the process's
  std::optional<DriverInfo> driver;
  std::vector<std::string>
      problems;  // values that are not allowed, no driver, settings that no pool of it accepts
  std::vector<std::string> misspelt;
};

// A table, or where it is wider than the output two lines for each setting.
std::string text_of(const std::vector<ShownSetting>& shown, std::optional<std::size_t> columns) {
  std::string table;
  std::string lines;
  bool fits = true;
  for (const auto& [setting, origin] : shown) {
    const std::string row = fmt::format("  {:<31} {:<26} {:<12} {}\n", setting.name, setting.value,
                                        origin, setting.meaning);
    fits = fits && (!columns || row.size() <= *columns + 1);
    table += row;
    lines +=
        fmt::format("  {}  {}  {}\n    {}\n", setting.name, setting.value, origin, setting.meaning);
  }
  return fits ? table : lines;
}

void print_text(const Answer& answer) {
  const std::optional<std::size_t> columns = columns_of_output();
  std::string text = "vpmm " VPMM_VERSION "\n";
  if (answer.driver) {
    const DriverInfo& info = *answer.driver;
    text += fmt::format("driver {}, CUDA {}, events for a whole context: {}\n", info.name,
                        version_text(info.version), yes_or_no(info.context_events));
    for (std::size_t i = 0; i < info.devices.size(); ++i) text += text_of(info.devices[i], i);
  }
  text += fmt::format("\nsettings {}\n", answer.problems.empty() ? "in force" : "asked for");
  std::vector<ShownSetting> shown = answer.settings;  // first those that somebody has set
  std::stable_partition(shown.begin(), shown.end(),
                        [](const ShownSetting& each) { return each.origin != "default"; });
  text += text_of(shown, columns);
  fmt::print("{}", wrapped(text, columns, 4));
}

Json json_of(const Device& device) {
  Json json{
      {"name", device.name},
      {"uuid", device.uuid},
      {"compute_capability", fmt::format("{}.{}", device.compute_major, device.compute_minor)},
      {"total_bytes", device.total},
      {"granularity", device.granularity ? Json(*device.granularity) : Json(nullptr)}};
  for (std::size_t i = 0; i < device.capabilities.size(); ++i) {
    json["capabilities"][kCapabilities[i].name] = static_cast<bool>(device.capabilities[i]);
  }
  return json;
}

void print_json(const Answer& answer) {
  const DriverInfo none;
  const DriverInfo& info = answer.driver ? *answer.driver : none;
  Json json{{"version", VPMM_VERSION},
            {"driver", answer.driver ? Json(info.name) : Json(nullptr)},
            {"cuda_version", answer.driver ? Json(version_text(info.version)) : Json(nullptr)},
            {"context_events", info.context_events},
            {"devices", Json::array()},
            {"settings", Json::object()},
            {"origins", Json::object()},
            {"problems", answer.problems},
            {"misspelt", answer.misspelt}};
  for (const Device& device : info.devices) json["devices"].push_back(json_of(device));
  for (const auto& [setting, origin] : answer.settings) {
    json["settings"][setting.name] = setting.value;
    json["origins"][setting.name] = origin;
  }
  fmt::print("{}\n", json.dump(-1, ' ', false, Json::error_handler_t::replace));
}

void read_settings(const InfoArguments& options, Answer& answer) {
  const auto add = [&answer](settings::SettingInForce setting, const char* origin) {
    if (!setting.problem.empty()) answer.problems.push_back(setting.problem);
    if (!setting.problem.empty() && origin == nullptr) {
      setting.value = settings::value_of(setting.name.c_str());
      setting.is_from_environment = true;
    }
    if (origin == nullptr) origin = setting.is_from_environment ? "environment" : "default";
    answer.settings.push_back({std::move(setting), origin});
  };
  answer.config = settings::allowed_config_from_environment();
  if (options.driver) answer.config.driver = *options.driver;
  for (const settings::SettingInForce& setting : settings::list_settings(answer.config))
    add(setting, options.driver && setting.name == "VPMM_DRIVER" ? "--driver" : nullptr);
  for (const settings::SettingInForce& setting : settings::list_process_settings())
    add(setting, nullptr);
  for (const std::string& sentence : settings::misspelt_variables())
    answer.misspelt.push_back(sentence);
}

// Opens a pool on each device, which judges the settings and reserves nothing.
Result<void> ask_driver(Answer& answer) {
  VPMM_TRY_ASSIGN(const auto driver, context::open_driver(answer.config.driver));
  VPMM_TRY_ASSIGN(answer.driver, describe_driver(*driver));
  for (std::size_t i = 0; i < answer.driver->devices.size(); ++i)
    VPMM_TRY(context::Context::create(*driver, static_cast<int>(i), answer.config));
  return {};
}

int info(const InfoArguments& options) {
  Answer answer;
  read_settings(options, answer);
  if (const Result<void> asked = ask_driver(answer); !asked)
    answer.problems.push_back(asked.error().message);
  options.json ? print_json(answer) : print_text(answer);
  for (const std::string& sentence : answer.misspelt)
    fmt::print(stderr, "vpmm: warning: {}\n", sentence);
  for (const std::string& sentence : settings::idle_variables())
    fmt::print(stderr, "vpmm: warning: {}\n", sentence);
  for (const std::string& problem : answer.problems) fail(problem);
  return answer.problems.empty() ? kSuccess : kCouldNot;
}

}  // namespace

void add_info(CLI::App& app, int& exit_code) {
  CLI::App* verb =
      app.add_subcommand("info", "Devices, their capabilities, and the settings in force");
  auto options = std::make_shared<InfoArguments>();
  verb->add_option("--driver", options->driver,
                   "The driver (default: VPMM_DRIVER, else auto: a CUDA driver)")
      ->transform(driver_names())
      ->type_name("NAME");
  verb->add_flag("--json", options->json, "One JSON object");
  verb->callback([options, &exit_code] { exit_code = info(*options); });
}

}  // namespace vpmm::cli
