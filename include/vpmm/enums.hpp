// SPDX-License-Identifier: Apache-2.0
// vpmm: header-only C++17 over the C ABI: values of settings, tags and arenas, so that those of one
// cannot stand for another's. vpmm.hpp includes it.
#ifndef VPMM_ENUMS_HPP
#define VPMM_ENUMS_HPP

#include <cstdint>
#include <type_traits>

#include "vpmm/result.hpp"
#include "vpmm/tags.h"
#include "vpmm/vpmm.h"

namespace vpmm {

// --- settings, docs/reference/settings.md: config.prefer = text(preference::latency) ---
enum class small_requests { pool, stream_ordered };           // VPMM_SMALL
enum class any_stream_work { context, legacy, park };         // VPMM_ANY_STREAM
enum class log_level { quiet, error, warning, info, debug };  // VPMM_LOG
enum class driver_kind { cuda, sim, automatic };              // VPMM_DRIVER; automatic: "auto"
enum class preference { footprint, balanced, latency };       // VPMM_PREFER

// The text of a field of vpmm_config.
constexpr const char* text(small_requests value) noexcept {
  return value == small_requests::pool ? "pool" : "stream_ordered";
}
constexpr const char* text(any_stream_work value) noexcept {
  return value == any_stream_work::context  ? "context"
         : value == any_stream_work::legacy ? "legacy"
                                            : "park";
}
constexpr const char* text(log_level value) noexcept {
  return value == log_level::quiet     ? "quiet"
         : value == log_level::error   ? "error"
         : value == log_level::warning ? "warning"
         : value == log_level::info    ? "info"
                                       : "debug";
}
constexpr const char* text(driver_kind value) noexcept {
  return value == driver_kind::cuda ? "cuda" : value == driver_kind::sim ? "sim" : "auto";
}
constexpr const char* text(preference value) noexcept {
  return value == preference::footprint  ? "footprint"
         : value == preference::balanced ? "balanced"
                                         : "latency";
}

// --- flags, joined by | ---
enum class tag_flags : std::uint32_t {
  none = 0,  // suspended, the contents are discarded
  backup = VPMM_TAG_BACKUP,
  keep_host_copy = VPMM_TAG_KEEP_HOST_COPY
};
enum class suspend_flags : std::uint32_t {
  none = 0,  // as the tag says
  backup = VPMM_SUSPEND_BACKUP,
  discard = VPMM_SUSPEND_DISCARD,
  keep_host_copy = VPMM_SUSPEND_KEEP_HOST_COPY,
  to_driver = VPMM_SUSPEND_TO_DRIVER
};
enum class resume_flags : std::uint32_t {
  none = 0,
  zero = VPMM_RESUME_ZERO,
  without_copy = VPMM_RESUME_WITHOUT_COPY
};
enum class arena_flags : std::uint32_t {
  none = 0,
  one_chunk = VPMM_ARENA_ONE_CHUNK,
  no_split = VPMM_ARENA_NO_SPLIT,
  external = VPMM_ARENA_EXTERNAL
};

template <typename E>
inline constexpr bool are_flags =
    std::is_same_v<E, tag_flags> || std::is_same_v<E, suspend_flags> ||
    std::is_same_v<E, resume_flags> || std::is_same_v<E, arena_flags>;
template <typename E>
constexpr std::enable_if_t<are_flags<E>, std::uint32_t> bits(E flags) noexcept {
  return static_cast<std::uint32_t>(flags);
}
template <typename E>
constexpr std::enable_if_t<are_flags<E>, E> operator|(E left, E right) noexcept {
  return static_cast<E>(bits(left) | bits(right));
}

// --- tags ---
enum class tag_scope { process = VPMM_TAG_OF_PROCESS, thread = VPMM_TAG_OF_THREAD };
enum class tag_state {
  live = VPMM_TAG_LIVE,
  suspended = VPMM_TAG_SUSPENDED,
  discarded = VPMM_TAG_DISCARDED,
  changing = VPMM_TAG_CHANGING
};
inline tag_state state_of(const vpmm_tag_info& info) noexcept {
  return static_cast<tag_state>(info.state);
}

}  // namespace vpmm

#endif
