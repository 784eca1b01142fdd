// SPDX-License-Identifier: Apache-2.0
// observe: the level and the sink of the process.
#include "observe/log.hpp"

#include <pthread.h>

#include <cstdio>
#include <memory>
#include <string>

#include "base/mutex.hpp"

namespace vpmm::observe {
namespace {

struct SinkHolder {
  Mutex mutex;
  std::shared_ptr<const LogSink> sink VPMM_GUARDED_BY(mutex);
};

// Stays for good: a pool that ends with the process may still log.
SinkHolder& sink_holder() {
  static auto* const holder = new SinkHolder;
  return *holder;
}

std::shared_ptr<const LogSink> current_sink() {
  SinkHolder& holder = sink_holder();
  MutexLock lock(holder.mutex);
  return holder.sink;
}

// Holds the lock over fork(), so that the child finds it free. No other lock is taken under it.
void before_fork() noexcept VPMM_NO_THREAD_SAFETY_ANALYSIS { sink_holder().mutex.lock(); }
void after_fork() noexcept VPMM_NO_THREAD_SAFETY_ANALYSIS { sink_holder().mutex.unlock(); }
[[maybe_unused]] const int kForkHandlers = pthread_atfork(before_fork, after_fork, after_fork);

// Writes once, so that lines of several threads do not mix.
void write_to_stderr(LogLevel level, std::string_view message) {
  const std::string line = fmt::format("vpmm: {}: {}\n", to_string(level), message);
  std::fwrite(line.data(), 1, line.size(), stderr);
}

}  // namespace

std::atomic<LogLevel> current_log_level{LogLevel::warning};

const char* to_string(LogLevel level) {
  switch (level) {
    case LogLevel::quiet: return "quiet";
    case LogLevel::error: return "error";
    case LogLevel::warning: return "warning";
    case LogLevel::info: return "info";
    case LogLevel::debug: return "debug";
  }
  return "unknown";
}

void set_log_level(LogLevel level) { current_log_level.store(level, std::memory_order_relaxed); }

void set_log_sink(LogSink sink) {
  auto shared = sink ? std::make_shared<const LogSink>(std::move(sink)) : nullptr;
  SinkHolder& holder = sink_holder();
  MutexLock lock(holder.mutex);
  holder.sink.swap(shared);
}

void write_log(LogLevel level, std::string_view message) {
  if (const auto sink = current_sink()) {
    (*sink)(level, message);
  } else {
    write_to_stderr(level, message);
  }
}

}  // namespace vpmm::observe
