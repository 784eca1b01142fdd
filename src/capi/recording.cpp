// SPDX-License-Identifier: Apache-2.0
// capi: recordings of a pool, started by the program or by the environment.
#include "capi/recording.hpp"

#include <unistd.h>

#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "base/message.hpp"
#include "base/mutex.hpp"
#include "capi/call.hpp"
#include "capi/versioned_struct.hpp"
#include "observe/log.hpp"
#include "observe/stack_table.hpp"
#include "settings/config.hpp"

using namespace vpmm;
using namespace vpmm::capi;
using context::Context;

namespace vpmm::capi {
namespace {

constexpr std::size_t kFirstOptions = offsetof(vpmm_record_options, window_ns) + sizeof(uint64_t);

// `%p`: the process; `%d`: the device; `%%`: a percent sign.
Result<std::string> expanded(const std::string& pattern, int device) {
  std::string path;
  for (std::size_t i = 0; i < pattern.size(); ++i) {
    if (pattern[i] != '%') {
      path += pattern[i];
      continue;
    }
    const char what = pattern[++i];  // 0 behind the last
    if (what == 'p')
      path += std::to_string(::getpid());
    else if (what == 'd')
      path += std::to_string(device);
    else if (what == '%')
      path += '%';
    else
      return Error{
          ErrorCode::bad_configuration,
          message_of("VPMM_RECORD={}: a % stands before p (process), d (device) or another %",
                     pattern)};
  }
  return path;
}

// trace.csv.gz as the second of its name: trace.2.csv.gz.
std::string numbered(const std::string& path, int number) {
  const std::size_t name = path.find_last_of('/') + 1;  // 0 without a slash
  const std::size_t suffix = std::min(path.find('.', name + 1), path.size());
  return path.substr(0, suffix) + "." + std::to_string(number) + path.substr(suffix);
}

// Number of pools of the process that have begun a file of this name.
int count_of(const std::string& path) {
  static Mutex mutex;
  static auto* const counts =
      new std::map<std::string, int>;  // never destroyed: static objects may open pools
  const MutexLock lock(mutex);
  return ++(*counts)[path];
}

// Marks made before the first pool, for the next recording that the environment starts.
class EarlyMarks {
 public:
  static EarlyMarks& of_process() {
    static auto* const marks = new EarlyMarks;  // never destroyed: static objects may open pools
    return *marks;
  }
  // Keeps the latest kMost.
  void keep(const char* text) {
    const MutexLock lock(mutex_);
    if (texts_.size() == kMost) texts_.erase(texts_.begin());
    texts_.emplace_back(text);
  }
  std::vector<std::string> take() {
    const MutexLock lock(mutex_);
    return std::exchange(texts_, {});
  }

 private:
  static constexpr std::size_t kMost = 100;
  Mutex mutex_;
  std::vector<std::string> texts_ VPMM_GUARDED_BY(mutex_);
};

bool is_asked_for_by_environment() {
  const Result<settings::RecordSettings> settings = settings::record_settings_from_environment();
  return settings && !settings.value().file.empty();
}

// Marks all recordings. Opens no pool, which would take GPU memory for a text.
void mark_everywhere(const char* text) {
  bool is_heard = false;
  for_each_pool([&](vpmm_pool& each) {
    each.context->reports().mark(text);
    is_heard = true;
    return true;
  });
  if (!is_heard && is_asked_for_by_environment()) EarlyMarks::of_process().keep(text);
}

Result<void> start_from_environment(Context& context) {
  VPMM_TRY_ASSIGN(const settings::RecordSettings settings,
                  settings::record_settings_from_environment());
  if (settings.file.empty()) return {};
  VPMM_TRY_ASSIGN(const std::string path, expanded(settings.file, context.device()));
  const int count = count_of(path);
  const std::string wanted = count == 1 ? path : numbered(path, count);
  Result<void> started = context.reports().start_recording(wanted, settings.options);
  if (started || started.error().code != ErrorCode::file_in_use) return started;
  const std::string own =
      numbered(wanted, ::getpid());  // others of the same environment may record to it
  if (!context.reports().start_recording(own, settings.options)) return started;
  observe::log(observe::LogLevel::warning, "recording to {}, for {}", own, started.error().message);
  return {};
}

}  // namespace

void record_as_environment_says(Context& context) {
  const Result<void> started = start_from_environment(context);
  if (started)
    for (const std::string& text : EarlyMarks::of_process().take()) context.reports().mark(text);
  else
    observe::log(observe::LogLevel::error, "nothing is recorded: {}", started.error().message);
}

}  // namespace vpmm::capi

vpmm_status vpmm_record_start(vpmm_pool* pool, const char* path) {
  vpmm_record_options options{};
  options.size = sizeof(options);
  options.path = path;
  return vpmm_record_start_with(pool, &options);
}

vpmm_status vpmm_record_start_with(vpmm_pool* pool, const vpmm_record_options* options) {
  return with_pool(pool, [&](Context& context) -> Result<void> {
    VPMM_TRY(require(options, "options"));
    VPMM_TRY(check_size(options->size, kFirstOptions, "vpmm_record_options"));
    vpmm_record_options asked{};
    VPMM_TRY(copy_in(options, asked, "vpmm_record_options"));
    VPMM_TRY(require(asked.path, "path"));
    if (*asked.path == '\0') return Error{ErrorCode::invalid_argument, "`path` is empty"};
    settings::RecordOptions how;
    if (asked.stacks != nullptr) how.stacks = asked.stacks;
    if (asked.sample != 0) how.sample = asked.sample;
    how.limit = asked.limit;
    how.window_ns = asked.window_ns;
    return context.reports().start_recording(asked.path, how);
  });
}

vpmm_status vpmm_record_stop(vpmm_pool* pool) {
  return with_pool(pool, [](Context& context) { return context.reports().stop_recording(); });
}

vpmm_status vpmm_record_mark(vpmm_pool* pool, const char* text) {
  return gated(WhenEnding::fail, [&]() -> Result<void> {
    VPMM_TRY(require(text, "text"));
    if (pool != nullptr)
      pool->context->reports().mark(text);
    else
      mark_everywhere(text);
    return {};
  });
}

vpmm_status vpmm_set_stack_callback(vpmm_stack_capture capture, vpmm_stack_describe describe,
                                    void* argument) {
  return guarded([&]() -> Result<void> {
    if ((capture == nullptr) != (describe == nullptr))
      return Error{ErrorCode::invalid_argument,
                   "`capture` and `describe` come together, or both are null"};
    observe::set_stack_provider({capture, describe, argument});
    return {};
  });
}
