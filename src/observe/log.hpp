// SPDX-License-Identifier: Apache-2.0
// observe: messages for people, by level, to one sink; dropped messages are never formatted.
#pragma once

#include <fmt/format.h>

#include <atomic>
#include <functional>
#include <string_view>
#include <utility>

#include "observe/log_level.hpp"

namespace vpmm::observe {

// Called from any thread, perhaps concurrently, without a lock of this room. May not log.
using LogSink = std::function<void(LogLevel level, std::string_view message)>;

// For the whole process: drops messages above `level`. Default: warning.
void set_log_level(LogLevel level);

// For the whole process; an empty sink restores the default: a line "vpmm: warning: ..." on stderr.
void set_log_sink(LogSink sink);

// Writes regardless of the level; called by log().
void write_log(LogLevel level, std::string_view message);

extern std::atomic<LogLevel> current_log_level;  // written by set_log_level only

inline bool logs(LogLevel level) {
  return level != LogLevel::quiet && level <= current_log_level.load(std::memory_order_relaxed);
}

// Drops the message if memory is short or the sink throws.
template <typename... Args>
void log(LogLevel level, fmt::format_string<Args...> format, Args&&... args) noexcept {
  if (!logs(level)) return;
  try {
    write_log(level, fmt::format(format, std::forward<Args>(args)...));
  } catch (...) {  // NOLINT(bugprone-empty-catch): there is nobody to tell
  }
}

}  // namespace vpmm::observe
