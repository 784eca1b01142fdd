// SPDX-License-Identifier: Apache-2.0
// settings: the table of a pool's settings.
#include "settings/config.hpp"

#include <unistd.h>

#include <array>
#include <cstdlib>
#include <limits>
#include <optional>
#include <utility>

#include "base/host_memory.hpp"
#include "base/message.hpp"
#include "base/quantity.hpp"
#include "settings/portion.hpp"
#include "settings/variables.hpp"

namespace vpmm::settings {
namespace {

constexpr Bytes kMaxBytes = std::numeric_limits<Bytes>::max();
constexpr std::uint64_t kFewestMappings = 16;
constexpr Bytes kLargest = 128 * kTiB;  // the whole address space

template <typename Enum>
using NameOf = std::pair<Enum, const char*>;
constexpr std::array kDriverNames{NameOf<DriverKind>{DriverKind::automatic, "auto"},
                                  NameOf<DriverKind>{DriverKind::cuda, "cuda"},
                                  NameOf<DriverKind>{DriverKind::sim, "sim"}};
constexpr std::array kSmallNames{
    NameOf<SmallRequests>{SmallRequests::pool, "pool"},
    NameOf<SmallRequests>{SmallRequests::stream_ordered, "stream_ordered"}};
constexpr std::array kPreferNames{
    NameOf<settings::Prefer>{settings::Prefer::footprint, "footprint"},
    NameOf<settings::Prefer>{settings::Prefer::balanced, "balanced"},
    NameOf<settings::Prefer>{settings::Prefer::latency, "latency"}};
constexpr std::array kAnyStreamNames{NameOf<AnyStreamOrder>{AnyStreamOrder::context, "context"},
                                     NameOf<AnyStreamOrder>{AnyStreamOrder::legacy, "legacy"},
                                     NameOf<AnyStreamOrder>{AnyStreamOrder::park, "park"}};
constexpr std::array kUnnamedFreeNames{
    NameOf<UnnamedFree>{UnnamedFree::any_stream, "any_stream"},
    NameOf<UnnamedFree>{UnnamedFree::allocating_stream, "allocating_stream"}};

template <typename Names, typename Enum>
const char* name_of(const Names& names, Enum value) {
  for (const auto& [candidate, name] : names) {
    if (candidate == value) return name;
  }
  return "unknown";
}

// The setters below return false if the text is not allowed; the caller words the error.
template <typename Names, typename Enum>
bool set_by_name(const Names& names, std::string_view text, Enum& value) {
  for (const auto& [candidate, name] : names) {
    if (text != name) continue;
    value = candidate;
    return true;
  }
  return false;
}

bool set_log_level(std::string_view text, observe::LogLevel& value) {
  for (const observe::LogLevel level : observe::kLogLevels) {
    if (text != observe::to_string(level)) continue;
    value = level;
    return true;
  }
  return false;
}

bool set_bytes(std::string_view text, Bytes& value) {
  const auto bytes = parse_bytes(text);
  if (!bytes || bytes.value() == 0) return false;
  value = bytes.value();
  return true;
}

bool set_capacity(Config& config, std::string_view text) {
  Portion portion;
  if (text != "none") {
    const Result<Portion> parsed = parse_portion(text);
    if (!parsed || parsed.value() == Portion{}) return false;
    portion = parsed.value();
  }
  config.limits.capacity_percent = portion.percent;
  config.limits.capacity = portion.bytes == 0 ? std::nullopt : std::optional(portion.bytes);
  return true;
}

bool set_threshold(std::string_view text, std::optional<Bytes>& value) {
  if (text == "none") return value.reset(), true;
  const auto bytes = parse_bytes(text);
  if (!bytes) return false;
  value = bytes.value();  // 0: all idle memory goes back at once
  return true;
}

bool set_count(std::string_view text, std::uint64_t least, std::uint64_t& value) {
  const std::optional<std::uint64_t> count = parse_count(text);
  if (!count || *count < least) return false;
  value = *count;
  return true;
}

bool set_switch(std::string_view text, bool& value) {
  if (text != "0" && text != "1") return false;
  value = text == "1";
  return true;
}

bool set_page_size(Config& config, std::string_view text) {
  Bytes bytes = kMaxBytes;
  if (text != "max" && !set_bytes(text, bytes)) return false;
  config.pool_enabled = bytes != kMaxBytes;
  config.page_size.reset();
  if (config.pool_enabled) config.page_size = bytes;
  return true;
}

bool set_chunk_max(Config& config, std::string_view text) {
  if (text == "page") return config.page_chunks = true;
  if (!set_bytes(text, config.chunk_max)) return false;
  config.page_chunks = false;
  return true;
}

bool set_guard(std::string_view text, std::uint64_t& every) {
  constexpr std::string_view kOneIn = "1/";
  if (text == "0" || text == "1") return every = text == "1" ? 1 : 0, true;
  if (!text.starts_with(kOneIn)) return false;
  return set_count(text.substr(kOneIn.size()), 1, every);
}

bool set_fill(Config& config, std::string_view text) {
  const bool is_new = text == "new" || text == "new,freed" || text == "freed,new";
  const bool is_freed = text == "freed" || text == "new,freed" || text == "freed,new";
  if (!is_new && !is_freed && text != "none") return false;
  config.checks.fill_new = is_new;
  config.checks.fill_freed = is_freed;
  return true;
}

std::string show_guard(const Config& config) {
  if (config.checks.guard_every <= 1) return std::to_string(config.checks.guard_every);
  return "1/" + std::to_string(config.checks.guard_every);
}

std::string show_page_size(const Config& config) {
  if (!config.pool_enabled) return "max";
  return config.page_size ? format_bytes(*config.page_size) : "the device's granularity";
}

std::string show_optional(const std::optional<Bytes>& bytes) {
  return bytes ? format_bytes(*bytes) : "none";
}

std::string show_capacity(const Config& config) {
  if (config.limits.capacity_percent != 0)
    return std::to_string(config.limits.capacity_percent) + "%";
  return show_optional(config.limits.capacity);
}

struct Setting {
  const char* name;
  const char* allowed;  // reads well after "must be"
  const char* meaning;
  bool (*set)(Config&, std::string_view);  // null: a field without a variable
  std::string (*show)(const Config&);
};

// All settings: environment, error texts, `vpmm info` and comparisons derive from this list.
constexpr Setting kSettings[] = {
    {"VPMM_DRIVER", "\"cuda\", \"sim\" or \"auto\"",
     "the driver that the pool uses; auto is cuda and never silently sim",
     [](Config& c, std::string_view text) { return set_by_name(kDriverNames, text, c.driver); },
     [](const Config& c) -> std::string { return to_string(c.driver); }},
    {"VPMM_PAGE_SIZE",
     "a multiple of the device granularity such as 2MiB, or \"max\" to switch the pool off",
     "the unit of chunks and mappings; smaller requests share pages", set_page_size,
     show_page_size},
    {"VPMM_PAGES", "a number of pages, 0 or more",
     "pages mapped ahead at the first allocation, as far as memory allows",
     [](Config& c, std::string_view text) { return set_count(text, 0, c.pages); },
     [](const Config& c) { return std::to_string(c.pages); }},
    {"VPMM_VA_SIZE", "a multiple of the device granularity such as 8TiB",
     "address space of one reservation, larger if one request needs more; costs no memory",
     [](Config& c, std::string_view text) { return set_bytes(text, c.va_size); },
     [](const Config& c) { return format_bytes(c.va_size); }},
    {"VPMM_CHUNK_MAX", "\"page\" or a multiple of the device granularity such as 256MiB",
     "size of the largest chunk of physical memory; page: one chunk per page", set_chunk_max,
     [](const Config& c) { return c.page_chunks ? "page" : format_bytes(c.chunk_max); }},
    {"VPMM_RELEASE_THRESHOLD", "a size such as 4GiB, or \"none\"",
     "idle memory is released while more than this is mapped; none: it is kept",
     [](Config& c, std::string_view text) {
       return set_threshold(text, c.limits.release_threshold);
     },
     [](const Config& c) { return show_optional(c.limits.release_threshold); }},
    {"VPMM_MAX_MAPPINGS", "a number, 16 or more",
     "number of mappings above which the pool grows by single chunks instead of moving memory",
     [](Config& c, std::string_view text) {
       return set_count(text, kFewestMappings, c.limits.max_mappings);
     },
     [](const Config& c) { return std::to_string(c.limits.max_mappings); }},
    {"VPMM_CAPACITY", "a size such as 16GiB, a share of the GPU's memory such as 80%, or \"none\"",
     "most memory the pool may map; none: what the GPU has", set_capacity, show_capacity},
    {"VPMM_SMALL", "\"pool\" or \"stream_ordered\"",
     "the allocator for requests below a page: size classes cut from pages, or the driver's "
     "stream-ordered allocator",
     [](Config& c, std::string_view text) { return set_by_name(kSmallNames, text, c.small); },
     [](const Config& c) -> std::string { return to_string(c.small); }},
    {"VPMM_PREFER", "\"footprint\", \"balanced\" or \"latency\"",
     "how much memory the pool may spend to save driver calls: hardly any, some or much",
     [](Config& c, std::string_view text) { return set_by_name(kPreferNames, text, c.prefer); },
     [](const Config& c) -> std::string { return to_string(c.prefer); }},
    {"VPMM_ANY_STREAM", "\"context\", \"legacy\" or \"park\"",
     "the work that must finish before memory freed without a stream is reused",
     [](Config& c, std::string_view text) {
       return set_by_name(kAnyStreamNames, text, c.streams.any_stream);
     },
     [](const Config& c) -> std::string { return to_string(c.streams.any_stream); }},
    {"VPMM_IPC_ISOLATE", "0 or 1",
     "1: every allocation has its own chunks and whole pages, so that sharing one exposes no other",
     [](Config& c, std::string_view text) { return set_switch(text, c.ipc_isolate); },
     [](const Config& c) -> std::string { return c.ipc_isolate ? "1" : "0"; }},
    {"VPMM_GUARD", "0, 1, or 1/N for one allocation in N, such as 1/100",
     "allocations get pages of their own between unmapped addresses, so that a kernel that leaves "
     "its memory, or uses freed memory, faults",
     [](Config& c, std::string_view text) { return set_guard(text, c.checks.guard_every); },
     show_guard},
    {"VPMM_FILL", "\"new\", \"freed\", \"new,freed\" or \"none\"",
     "memory that is filled with bytes 0xFF, which are NaN in every floating-point type: new "
     "memory, or memory that is freed",
     set_fill, [](const Config& c) -> std::string { return fill_text(c); }},
    {"VPMM_LOG", "\"quiet\", \"error\", \"warning\", \"info\" or \"debug\"",
     "which messages are written; to standard error unless the program sets a callback",
     [](Config& c, std::string_view text) { return set_log_level(text, c.log); },
     [](const Config& c) -> std::string { return to_string(c.log); }},
    {"unnamed_free", "\"any_stream\" or \"allocating_stream\"",
     "the stream order of a free that names no stream", nullptr,
     [](const Config& c) -> std::string { return to_string(c.streams.unnamed_free); }},
};

// Returns the environment's text if it set the value: 1, not 1B.
std::string as_given(const char* variable, Bytes bytes) {
  const std::string_view text = value_of(variable);
  const auto given = parse_bytes(text);
  return given && given.value() == bytes ? std::string(text) : format_bytes(bytes);
}

// Requires: the setting has a variable.
Result<void> set(Config& config, const Setting& setting, std::string_view text) {
  if (setting.set(config, text)) return {};
  const std::string meant = size_meant_by(text);
  Config other = config;
  const bool is_meant = setting.set(other, meant);
  return bad_setting(setting.name, text, setting.allowed, is_meant ? meant : std::string_view());
}

Result<void> set_from_environment(Config& config, const Setting& setting) {
  const std::string_view text =
      setting.set == nullptr ? std::string_view() : value_of(setting.name);
  return text.empty() ? Result<void>() : set(config, setting, text);
}

// Note [Children map nothing ahead]
// Children inherit the environment. Many of them, such as the workers of a job, would each map the
// same bytes again, beyond the GPU's memory. So a process that maps pages ahead writes its number
// into the environment, once, at its first allocation; a process that finds another number maps
// none. Threads that read the environment meanwhile depend on the C library, as beside any setenv.
constexpr const char* kMappedAheadBy = "VPMM_PAGES_PID";

std::optional<std::string> process_that_mapped_ahead() {
  const std::string_view text = value_of(kMappedAheadBy);
  return text.empty() ? std::optional<std::string>() : std::string(text);
}

std::string this_process() { return std::to_string(::getpid()); }

void forget_pages_mapped_by_a_parent(Config& config) {
  const std::optional<std::string> ahead = process_that_mapped_ahead();
  if (ahead && *ahead != this_process()) config.pages = 0;
}

}  // namespace

const char* to_string(DriverKind kind) { return name_of(kDriverNames, kind); }
const char* to_string(SmallRequests small) { return name_of(kSmallNames, small); }
const char* to_string(settings::Prefer prefer) { return name_of(kPreferNames, prefer); }
const char* to_string(AnyStreamOrder order) { return name_of(kAnyStreamNames, order); }
const char* to_string(UnnamedFree rule) { return name_of(kUnnamedFreeNames, rule); }

const char* fill_text(const Config& config) {
  if (config.checks.fill_new) return config.checks.fill_freed ? "new,freed" : "new";
  return config.checks.fill_freed ? "freed" : "none";
}

Result<Config> config_from_environment() {
  Config config;
  for (const Setting& setting : kSettings) VPMM_TRY(set_from_environment(config, setting));
  forget_pages_mapped_by_a_parent(config);
  return config;
}

Config allowed_config_from_environment() {
  Config config;
  for (const Setting& setting : kSettings) static_cast<void>(set_from_environment(config, setting));
  forget_pages_mapped_by_a_parent(config);
  return config;
}

void note_mapped_ahead() {
  if (!process_that_mapped_ahead()) ::setenv(kMappedAheadBy, this_process().c_str(), true);
}

Result<void> set(Config& config, std::string_view variable, std::string_view text) {
  for (const Setting& setting : kSettings) {
    if (setting.set != nullptr && setting.name == variable) return set(config, setting, text);
  }
  return Error{ErrorCode::bad_configuration, message_of("{} is not a setting", variable)};
}

Result<void> validate(const Config& config, Bytes granularity) {
  const std::string unit = format_bytes(granularity);
  if (config.limits.max_mappings < kFewestMappings) {
    return bad_setting("VPMM_MAX_MAPPINGS", std::to_string(config.limits.max_mappings),
                       "a number, 16 or more");
  }
  const auto is_bad = [&](Bytes bytes) { return bytes == 0 || !is_multiple(bytes, granularity); };
  const Bytes page = config.page_size.value_or(granularity);
  if (is_bad(page) || page > kLargest) {
    return bad_setting(
        "VPMM_PAGE_SIZE", as_given("VPMM_PAGE_SIZE", page),
        message_of(
            "a multiple of the device granularity ({}) up to {}, or \"max\" to switch the pool off",
            unit, format_bytes(kLargest)));
  }
  if (is_bad(config.va_size) || config.va_size > kLargest) {
    return bad_setting("VPMM_VA_SIZE", as_given("VPMM_VA_SIZE", config.va_size),
                       message_of("a multiple of the device granularity ({}) up to {}", unit,
                                  format_bytes(kLargest)));
  }
  if (!config.page_chunks && is_bad(config.chunk_max)) {
    return bad_setting("VPMM_CHUNK_MAX", as_given("VPMM_CHUNK_MAX", config.chunk_max),
                       message_of("\"page\" or a multiple of the device granularity ({})", unit));
  }
  return {};
}

std::string difference(const Config& in_force, const Config& asked) {
  for (const Setting& setting : kSettings) {
    const std::string is = setting.show(in_force);
    const std::string wanted = setting.show(asked);
    if (is != wanted) return message_of("{} is {}, not {}", setting.name, is, wanted);
  }
  return {};
}

Vector<SettingInForce> list_settings(const Config& config) {
  Vector<SettingInForce> list;
  for (const Setting& setting : kSettings) {
    Config scratch;
    const bool is_set = setting.set != nullptr && !value_of(setting.name).empty();
    const Result<void> judged = set_from_environment(scratch, setting);
    list.push_back({setting.name, setting.show(config), setting.allowed, setting.meaning,
                    is_set && judged, judged ? std::string() : judged.error().message});
  }
  return list;
}

}  // namespace vpmm::settings
