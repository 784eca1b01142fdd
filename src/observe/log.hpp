// observe: messages for people, by level, to one sink. A message that nobody wants is never
// formatted.
#pragma once

#include <fmt/format.h>

#include <atomic>
#include <functional>
#include <string_view>
#include <utility>

#include "observe/log_level.hpp"

namespace vpmm::observe {

// Called from any thread, perhaps several at once, without any lock of this room held. May not log.
using LogSink = std::function<void(LogLevel level, std::string_view message)>;

// For the whole process: messages above `level` are dropped. Starts at warning.
void set_log_level(LogLevel level);

// For the whole process; an empty sink brings the default back: a line "vpmm: warning: ..." on
// stderr.
void set_log_sink(LogSink sink);

// What log() calls once it knows that the message is wanted.
void write_log(LogLevel level, std::string_view message);

extern std::atomic<LogLevel> current_log_level;  // written by set_log_level only

inline bool logs(LogLevel level) {
  return level != LogLevel::quiet && level <= current_log_level.load(std::memory_order_relaxed);
}

// Never throws: a message for which the process has no memory, or whose sink throws, is lost.
template <typename... Args>
void log(LogLevel level, fmt::format_string<Args...> format, Args&&... args) noexcept {
  if (!logs(level)) return;
  try {
    write_log(level, fmt::format(format, std::forward<Args>(args)...));
  } catch (...) {  // NOLINT(bugprone-empty-catch): there is nobody to tell
  }
}

}  // namespace vpmm::observe
