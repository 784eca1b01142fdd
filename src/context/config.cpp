// context: the table of settings, and the only place where the environment is read.
#include "context/config.hpp"

#include <unistd.h>

#include <array>
#include <charconv>
#include <cstdlib>
#include <limits>
#include <optional>
#include <utility>

#include "base/host_memory.hpp"
#include "base/message.hpp"

namespace vpmm::context {
namespace {

constexpr Bytes kMaxBytes = std::numeric_limits<Bytes>::max();
constexpr std::uint64_t kFewestMappings = 16;
constexpr std::uint64_t kLongestMs = 3'600'000;
constexpr Bytes kLargest = 128 * kTiB;  // all addresses that there are

template <typename Enum>
using Name = std::pair<Enum, const char*>;
constexpr std::array kDriverNames{Name<DriverKind>{DriverKind::automatic, "auto"},
                                  Name<DriverKind>{DriverKind::cuda, "cuda"}, Name<DriverKind>{DriverKind::sim, "sim"}};
constexpr std::array kSmallNames{Name<SmallRequests>{SmallRequests::pool, "pool"},
                                 Name<SmallRequests>{SmallRequests::stream_ordered, "stream_ordered"}};
constexpr std::array kPreferNames{Name<pool::Prefer>{pool::Prefer::footprint, "footprint"},
                                  Name<pool::Prefer>{pool::Prefer::balanced, "balanced"},
                                  Name<pool::Prefer>{pool::Prefer::latency, "latency"}};
constexpr std::array kAnyStreamNames{Name<AnyStreamOrder>{AnyStreamOrder::context, "context"},
                                     Name<AnyStreamOrder>{AnyStreamOrder::legacy, "legacy"},
                                     Name<AnyStreamOrder>{AnyStreamOrder::park, "park"}};
constexpr std::array kUnnamedFreeNames{Name<UnnamedFree>{UnnamedFree::any_stream, "any_stream"},
                                       Name<UnnamedFree>{UnnamedFree::allocating_stream, "allocating_stream"}};

template <typename Names, typename Enum>
const char* name_of(const Names& names, Enum value) {
  for (const auto& [candidate, name] : names) {
    if (candidate == value) return name;
  }
  return "unknown";
}

// The setters below return false when the text is not allowed; the caller knows the variable and words the error.
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

bool set_optional_bytes(std::string_view text, std::optional<Bytes>& value) {
  Bytes bytes = 0;
  if (text == "none") return value.reset(), true;
  if (!set_bytes(text, bytes)) return false;
  value = bytes;
  return true;
}

bool set_threshold(std::string_view text, std::optional<Bytes>& value) {
  if (text == "none") return value.reset(), true;
  const auto bytes = parse_bytes(text);
  if (!bytes) return false;
  value = bytes.value();  // 0 is meaningful: give everything back as soon as it is idle
  return true;
}

bool set_count(std::string_view text, std::uint64_t least, std::uint64_t& value) {
  std::uint64_t count = 0;
  const auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), count);
  if (problem != std::errc{} || end != text.data() + text.size() || count < least) return false;
  value = count;
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

std::string show_page_size(const Config& config) {
  if (!config.pool_enabled) return "max";
  return config.page_size ? format_bytes(*config.page_size) : "the device's granularity";
}

std::string show_optional(const std::optional<Bytes>& bytes) { return bytes ? format_bytes(*bytes) : "none"; }

struct Setting {
  const char* name;
  const char* allowed;  // reads well after "must be"
  const char* meaning;
  bool (*set)(Config&, std::string_view);  // null: a field of the config struct without a variable
  std::string (*show)(const Config&);
};

// Every setting, once: the environment, the error texts, `vpmm info` and comparisons derive from this list.
constexpr Setting kSettings[] = {
    {"VPMM_DRIVER", "\"cuda\", \"sim\" or \"auto\"",
     "which driver the pool talks to; auto is cuda and never silently sim",
     [](Config& c, std::string_view text) { return set_by_name(kDriverNames, text, c.driver); },
     [](const Config& c) -> std::string { return to_string(c.driver); }},
    {"VPMM_PAGE_SIZE", "a multiple of the device granularity such as 2MiB, or \"max\" to switch the pool off",
     "the rounding unit; smaller requests share pages", set_page_size, show_page_size},
    {"VPMM_PAGES", "a number of pages, 0 or more",
     "pages mapped ahead at the first allocation, as far as memory allows",
     [](Config& c, std::string_view text) { return set_count(text, 0, c.pages); },
     [](const Config& c) { return std::to_string(c.pages); }},
    {"VPMM_VA_SIZE", "a multiple of the device granularity such as 8TiB",
     "address space taken by one reservation, larger where one request needs more; no memory",
     [](Config& c, std::string_view text) { return set_bytes(text, c.va_size); },
     [](const Config& c) { return format_bytes(c.va_size); }},
    {"VPMM_CHUNK_MAX", "\"page\" or a multiple of the device granularity such as 256MiB",
     "largest piece of physical memory; page: one piece per page", set_chunk_max,
     [](const Config& c) { return c.page_chunks ? "page" : format_bytes(c.chunk_max); }},
    {"VPMM_RELEASE_THRESHOLD", "a size such as 4GiB, or \"none\"",
     "idle memory is given back while more than this is mapped; none: it is kept",
     [](Config& c, std::string_view text) { return set_threshold(text, c.release_threshold); },
     [](const Config& c) { return show_optional(c.release_threshold); }},
    {"VPMM_MAX_MAPPINGS", "a number, 16 or more",
     "mappings from which on the pool grows by single chunks instead of moving memory",
     [](Config& c, std::string_view text) { return set_count(text, kFewestMappings, c.max_mappings); },
     [](const Config& c) { return std::to_string(c.max_mappings); }},
    {"VPMM_CAPACITY", "a size such as 16GiB, or \"none\"", "most memory the pool may map; none: what the GPU has",
     [](Config& c, std::string_view text) { return set_optional_bytes(text, c.capacity); },
     [](const Config& c) { return show_optional(c.capacity); }},
    {"VPMM_SMALL", "\"pool\" or \"stream_ordered\"",
     "who serves requests below a page: size classes cut from pages, or the driver's stream-ordered allocator",
     [](Config& c, std::string_view text) { return set_by_name(kSmallNames, text, c.small); },
     [](const Config& c) -> std::string { return to_string(c.small); }},
    {"VPMM_PREFER", "\"footprint\", \"balanced\" or \"latency\"",
     "how much memory may be spent to spare driver calls: hardly any, some or much",
     [](Config& c, std::string_view text) { return set_by_name(kPreferNames, text, c.prefer); },
     [](const Config& c) -> std::string { return to_string(c.prefer); }},
    {"VPMM_ANY_STREAM", "\"context\", \"legacy\" or \"park\"",
     "what must finish before memory freed without naming a stream is used again",
     [](Config& c, std::string_view text) { return set_by_name(kAnyStreamNames, text, c.any_stream); },
     [](const Config& c) -> std::string { return to_string(c.any_stream); }},
    {"VPMM_IPC_ISOLATE", "0 or 1",
     "1: every allocation has pages and chunks of its own, so that sharing one shares no other; one piece per page",
     [](Config& c, std::string_view text) { return set_switch(text, c.ipc_isolate); },
     [](const Config& c) -> std::string { return c.ipc_isolate ? "1" : "0"; }},
    {"VPMM_LOG", "\"quiet\", \"error\", \"warning\", \"info\" or \"debug\"", "what is written to standard error",
     [](Config& c, std::string_view text) { return set_log_level(text, c.log); },
     [](const Config& c) -> std::string { return to_string(c.log); }},
    {"unnamed_free", "\"any_stream\" or \"allocating_stream\"",
     "whose work ends the use of memory freed without naming a stream", nullptr,
     [](const Config& c) -> std::string { return to_string(c.unnamed_free); }},
};

// What the user wrote, where that was in the environment: 1 and not 1B.
std::string as_given(const char* variable, Bytes bytes) {
  const char* const text = std::getenv(variable);
  const auto given = parse_bytes(text == nullptr ? "" : text);
  return given && given.value() == bytes ? text : format_bytes(bytes);
}

Error bad_setting(std::string_view name, std::string_view value, std::string_view allowed) {
  return {ErrorCode::bad_configuration, message_of("{}={}: must be {}", name, value, allowed)};
}

Result<void> set(Config& config, const Setting& setting, std::string_view text) {
  if (setting.set(config, text)) return {};
  return bad_setting(setting.name, text, setting.allowed);
}

std::optional<Bytes> unit_of(std::string_view unit) {
  constexpr std::pair<std::string_view, Bytes> kUnits[] = {
      {"", 1},       {"B", 1},      {"KiB", kKiB},     {"MiB", kMiB},         {"GiB", kGiB},
      {"TiB", kTiB}, {"KB", 1'000}, {"MB", 1'000'000}, {"GB", 1'000'000'000}, {"TB", 1'000'000'000'000}};
  for (const auto& [name, bytes] : kUnits) {
    if (name == unit) return bytes;
  }
  return std::nullopt;
}

Error bad_size(std::string_view text) {
  return {ErrorCode::invalid_argument,
          message_of("'{}' is not a size: a whole number and B, KiB, MiB, GiB, TiB, KB, MB, GB, TB or no unit", text)};
}

// Empty where the variable is not set.
std::string_view value_of(const char* variable) {
  const char* const text = std::getenv(variable);
  return text == nullptr ? std::string_view() : std::string_view(text);
}

bool set_ratio(std::string_view text, double& value) {
  double ratio = 0;
  const auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), ratio);
  if (problem != std::errc{} || end != text.data() + text.size() || !(ratio >= 0 && ratio <= 1)) return false;
  value = ratio;
  return true;
}

// Note [Children map nothing ahead]
// They inherit the environment. A program with many of them, such as the workers of a job, would take as much again for
// each, and more than there is. So a process that maps pages ahead leaves its number there, once, at its first
// allocation, and one that finds another number does not. Another thread that reads the environment at that moment is
// at the mercy of the C library, as beside any setenv.
constexpr const char* kMappedAheadBy = "VPMM_PAGES_PID";

std::optional<std::string> process_that_mapped_ahead() {
  const char* const text = std::getenv(kMappedAheadBy);
  if (text == nullptr || *text == '\0') return std::nullopt;
  return text;
}

std::string this_process() { return std::to_string(::getpid()); }

}  // namespace

Result<Bytes> parse_bytes(std::string_view text) {
  Bytes number = 0;
  const char* const end = text.data() + text.size();
  const auto [unit, problem] = std::from_chars(text.data(), end, number);
  if (problem == std::errc::result_out_of_range) {
    return Error{ErrorCode::invalid_argument, message_of("'{}' is larger than any size", text)};
  }
  if (problem != std::errc{}) return bad_size(text);
  const auto factor = unit_of(text.substr(static_cast<std::size_t>(unit - text.data())));
  if (!factor) return bad_size(text);
  if (number > kMaxBytes / *factor) {
    return Error{ErrorCode::invalid_argument, message_of("'{}' is larger than any size", text)};
  }
  return number * *factor;
}

std::string format_bytes(Bytes bytes) {
  constexpr std::pair<Bytes, const char*> kUnits[] = {{kTiB, "TiB"}, {kGiB, "GiB"}, {kMiB, "MiB"}, {kKiB, "KiB"}};
  for (const auto& [unit, name] : kUnits) {
    if (bytes != 0 && is_multiple(bytes, unit)) return message_of("{}{}", bytes / unit, name);
  }
  return message_of("{}B", bytes);
}

const char* to_string(DriverKind kind) { return name_of(kDriverNames, kind); }
const char* to_string(SmallRequests small) { return name_of(kSmallNames, small); }
const char* to_string(pool::Prefer prefer) { return name_of(kPreferNames, prefer); }
const char* to_string(AnyStreamOrder order) { return name_of(kAnyStreamNames, order); }
const char* to_string(UnnamedFree rule) { return name_of(kUnnamedFreeNames, rule); }

Result<Config> config_from_environment() {
  Config config;
  for (const Setting& setting : kSettings) {
    if (setting.set == nullptr) continue;
    const char* const text = std::getenv(setting.name);
    if (text == nullptr || *text == '\0') continue;
    VPMM_TRY(set(config, setting, text));
  }
  if (const std::optional<std::string> ahead = process_that_mapped_ahead(); ahead && *ahead != this_process())
    config.pages = 0;
  return config;
}

void note_mapped_ahead() {
  if (!process_that_mapped_ahead()) ::setenv(kMappedAheadBy, this_process().c_str(), 1);
}

Result<PendingLimits> pending_limits_from_environment() {
  constexpr const char* kCount = "VPMM_MAX_PENDING_DEALLOCS_COUNT";
  constexpr const char* kRatio = "VPMM_MAX_PENDING_DEALLOCS_RATIO";
  PendingLimits limits;
  const std::string_view count = value_of(kCount);
  if (!count.empty() && !set_count(count, 0, limits.count)) return bad_setting(kCount, count, "a number, 0 or more");
  const std::string_view ratio = value_of(kRatio);
  if (!ratio.empty() && !set_ratio(ratio, limits.ratio)) return bad_setting(kRatio, ratio, "a number from 0 to 1");
  return limits;
}

Result<IpcSettings> ipc_settings_from_environment() {
  constexpr const char* kTimeout = "VPMM_IPC_TIMEOUT";
  constexpr const char* kGrace = "VPMM_IPC_GRACE";
  IpcSettings settings;
  settings.folder = value_of("VPMM_IPC_DIR");
  const std::string_view timeout = value_of(kTimeout);
  const auto is_bad = [](std::string_view text, std::uint64_t least, std::uint64_t& ms) {
    return !text.empty() && (!set_count(text, least, ms) || ms > kLongestMs);
  };
  if (is_bad(timeout, 1, settings.timeout_ms))
    return bad_setting(kTimeout, timeout, "a number of milliseconds from 1 to 3600000");
  const std::string_view grace = value_of(kGrace);
  if (is_bad(grace, 0, settings.grace_ms))
    return bad_setting(kGrace, grace, "a number of milliseconds from 0 to 3600000");
  return settings;
}

Result<RecordSettings> record_settings_from_environment() {
  constexpr const char* kSample = "VPMM_RECORD_SAMPLE";
  constexpr const char* kLimit = "VPMM_RECORD_LIMIT";
  constexpr const char* kWindow = "VPMM_RECORD_WINDOW";
  RecordSettings settings;
  settings.file = value_of("VPMM_RECORD");
  if (settings.file.empty()) return settings;
  RecordOptions& options = settings.options;
  if (const std::string_view stacks = value_of("VPMM_RECORD_STACKS"); !stacks.empty()) options.stacks = stacks;
  const std::string_view sample = value_of(kSample);
  if (!sample.empty() && !set_count(sample, 1, options.sample))
    return bad_setting(kSample, sample, "a number, 1 or more");
  const std::string_view limit = value_of(kLimit);
  if (!limit.empty() && !set_bytes(limit, options.limit)) return bad_setting(kLimit, limit, "a size such as 256MiB");
  const std::string_view window = value_of(kWindow);
  std::uint64_t seconds = 0;
  if (!window.empty() && (!set_count(window, 1, seconds) || seconds > kLongestMs))
    return bad_setting(kWindow, window, "a number of seconds from 1 to 3600000");
  options.window_ns = seconds * 1'000'000'000;
  return settings;
}

std::string memory_manager_from_environment() { return std::string(value_of("VPMM_MEMORY_MANAGER")); }

Result<void> set(Config& config, std::string_view variable, std::string_view text) {
  for (const Setting& setting : kSettings) {
    if (setting.set != nullptr && setting.name == variable) return set(config, setting, text);
  }
  return Error{ErrorCode::bad_configuration, message_of("{} is not a setting", variable)};
}

Result<void> validate(const Config& config, Bytes granularity) {
  const std::string unit = format_bytes(granularity);
  if (config.max_mappings < kFewestMappings) {
    return bad_setting("VPMM_MAX_MAPPINGS", std::to_string(config.max_mappings), "a number, 16 or more");
  }
  const auto is_bad = [&](Bytes bytes) { return bytes == 0 || !is_multiple(bytes, granularity); };
  const Bytes page = config.page_size.value_or(granularity);
  if (is_bad(page) || page > kLargest) {
    return bad_setting(
        "VPMM_PAGE_SIZE", as_given("VPMM_PAGE_SIZE", page),
        message_of("a multiple of the device granularity ({}) up to {}, or \"max\" to switch the pool off", unit,
                   format_bytes(kLargest)));
  }
  if (is_bad(config.va_size) || config.va_size > kLargest) {
    return bad_setting("VPMM_VA_SIZE", as_given("VPMM_VA_SIZE", config.va_size),
                       message_of("a multiple of the device granularity ({}) up to {}", unit, format_bytes(kLargest)));
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
    list.push_back({setting.name, setting.show(config), setting.allowed, setting.meaning});
  }
  return list;
}

}  // namespace vpmm::context
