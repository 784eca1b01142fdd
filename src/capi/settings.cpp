// SPDX-License-Identifier: Apache-2.0
// capi: vpmm_config to and from the pool's settings; limits.
#include "capi/settings.hpp"

#include <cstddef>
#include <limits>
#include <string>

#include "base/message.hpp"
#include "base/quantity.hpp"
#include "capi/call.hpp"
#include "capi/versioned_struct.hpp"
#include "observe/log_level.hpp"
#include "settings/config.hpp"

namespace vpmm::capi {
namespace {

constexpr std::uint64_t kUnset = std::numeric_limits<std::uint64_t>::max();
constexpr std::size_t kFirstVersion =
    offsetof(vpmm_config, unnamed_free_on_allocating_stream) + sizeof(int);

vpmm_config to_settings(const settings::Config& config) {
  vpmm_config settings{};
  settings.page_size = config.pool_enabled ? config.page_size.value_or(0) : kUnset;
  settings.pages = config.pages;
  settings.va_size = config.va_size;
  settings.chunk_max = config.page_chunks ? 0 : config.chunk_max;
  settings.release_threshold = config.limits.release_threshold.value_or(kUnset);
  settings.max_mappings = config.limits.max_mappings;
  settings.capacity = config.limits.capacity_percent == 0
                          ? config.limits.capacity.value_or(kUnset)
                          : VPMM_SHARE_OF_GPU(config.limits.capacity_percent);
  settings.small = settings::to_string(config.small);
  settings.any_stream = settings::to_string(config.streams.any_stream);
  settings.log = observe::to_string(config.log);
  settings.driver = settings::to_string(config.driver);
  settings.prefer = settings::to_string(config.prefer);
  settings.ipc_isolate = config.ipc_isolate;
  settings.guard = config.checks.guard_every;
  settings.fill = settings::fill_text(config);
  // unnamed_free_on_allocating_stream has no variable: 0.
  return settings;
}

// A number as its variable would hold it, so that both ways of setting it meet the same checks and
// error texts.
std::string text_of(std::uint64_t number, std::uint64_t special, const char* name_of_special) {
  return number == special ? name_of_special : std::to_string(number);
}

std::string text_of_capacity(std::uint64_t capacity) {
  const bool is_share = capacity >= VPMM_SHARE_OF_GPU(1000) && capacity != kUnset;
  return is_share ? std::to_string(kUnset - capacity) + "%" : text_of(capacity, kUnset, "none");
}

Result<void> set_numbers(const vpmm_config& settings, settings::Config& config) {
  if (settings.page_size != 0) {
    VPMM_TRY(settings::set(config, "VPMM_PAGE_SIZE", text_of(settings.page_size, kUnset, "max")));
  }
  VPMM_TRY(settings::set(config, "VPMM_PAGES", std::to_string(settings.pages)));
  VPMM_TRY(settings::set(config, "VPMM_VA_SIZE", std::to_string(settings.va_size)));
  VPMM_TRY(settings::set(config, "VPMM_CHUNK_MAX", text_of(settings.chunk_max, 0, "page")));
  VPMM_TRY(settings::set(config, "VPMM_RELEASE_THRESHOLD",
                         text_of(settings.release_threshold, kUnset, "none")));
  VPMM_TRY(settings::set(config, "VPMM_MAX_MAPPINGS", std::to_string(settings.max_mappings)));
  VPMM_TRY(settings::set(config, "VPMM_IPC_ISOLATE", std::to_string(settings.ipc_isolate)));
  const bool is_guarding = settings.guard != 0;
  VPMM_TRY(settings::set(config, "VPMM_GUARD",
                         is_guarding ? "1/" + std::to_string(settings.guard) : "0"));
  return settings::set(config, "VPMM_CAPACITY", text_of_capacity(settings.capacity));
}

Result<void> set_name(settings::Config& config, const char* variable, const char* name) {
  if (name == nullptr) return {};
  return settings::set(config, variable, name);
}

Result<void> set_names(const vpmm_config& settings, settings::Config& config) {
  VPMM_TRY(set_name(config, "VPMM_SMALL", settings.small));
  VPMM_TRY(set_name(config, "VPMM_ANY_STREAM", settings.any_stream));
  VPMM_TRY(set_name(config, "VPMM_LOG", settings.log));
  VPMM_TRY(set_name(config, "VPMM_DRIVER", settings.driver));
  VPMM_TRY(set_name(config, "VPMM_FILL", settings.fill));
  return set_name(config, "VPMM_PREFER", settings.prefer);
}

Result<void> set_unnamed_free(int on_allocating_stream, settings::Config& config) {
  if (on_allocating_stream != 0 && on_allocating_stream != 1) {
    return Error{
        ErrorCode::bad_configuration,
        message_of("unnamed_free_on_allocating_stream={}: must be 0 or 1", on_allocating_stream)};
  }
  config.streams.unnamed_free = on_allocating_stream == 1 ? settings::UnnamedFree::allocating_stream
                                                          : settings::UnnamedFree::any_stream;
  return {};
}

}  // namespace

Result<settings::Config> to_config(const vpmm_config* settings) {
  VPMM_TRY(require(settings, "config"));
  VPMM_TRY(check_size(settings->size, kFirstVersion, "vpmm_config"));
  settings::Config config;
  vpmm_config known = to_settings(config);
  VPMM_TRY(copy_in(settings, known, "vpmm_config"));
  // Refuses a struct that was only zeroed, before an error names a variable that nobody set.
  if (known.va_size == 0)
    return Error{ErrorCode::bad_configuration,
                 "vpmm_config.va_size is 0: call vpmm_config_init first, which sets the defaults"};
  VPMM_TRY(set_numbers(known, config));
  VPMM_TRY(set_names(known, config));
  VPMM_TRY(set_unnamed_free(known.unnamed_free_on_allocating_stream, config));
  return config;
}

Result<void> from_config(const settings::Config& config, vpmm_config* settings) {
  VPMM_TRY(require(settings, "config"));
  VPMM_TRY(check_size(settings->size, kFirstVersion, "vpmm_config"));
  copy_out(to_settings(config), settings);
  return {};
}

Result<std::optional<settings::Portion>> to_limit(std::uint64_t asked, const LimitWords& words) {
  using Limit = std::optional<settings::Portion>;
  const std::uint64_t percent = kUnset - asked;
  if (percent == 0) return Limit();
  if (percent <= 100) return Limit({.percent = static_cast<std::uint32_t>(percent)});
  if (percent >= 1000 && asked >= words.least) return Limit({.bytes = asked});
  return Error{ErrorCode::invalid_argument,
               message_of("{} {}: must be a number of bytes, {}", words.name, asked, words.others)};
}

}  // namespace vpmm::capi

using vpmm::capi::guarded;

vpmm_status vpmm_config_init(vpmm_config* config) {
  return guarded([&] { return vpmm::capi::from_config(vpmm::settings::Config{}, config); });
}

vpmm_status vpmm_config_from_environment(vpmm_config* config) {
  return guarded([&]() -> vpmm::Result<void> {
    VPMM_TRY_ASSIGN(const auto from_environment, vpmm::settings::config_from_environment());
    return vpmm::capi::from_config(from_environment, config);
  });
}

vpmm_status vpmm_parse_bytes(const char* text, uint64_t* bytes) {
  return guarded([&]() -> vpmm::Result<void> {
    VPMM_TRY(vpmm::capi::require(text, "text"));
    VPMM_TRY(vpmm::capi::require(bytes, "bytes"));
    VPMM_TRY_ASSIGN(*bytes, vpmm::parse_bytes(text));
    return {};
  });
}
