// SPDX-License-Identifier: Apache-2.0
// context: figures, pictures, listeners, begin and end of recordings.
#include "context/reports.hpp"

#include <utility>

#include "base/message.hpp"
#include "base/scope_exit.hpp"
#include "guard/description.hpp"
#include "process/process_gate.hpp"
#include "process/recordings.hpp"
#include "process/summary.hpp"
#include "report/tags.hpp"

namespace vpmm::context {

namespace {

constexpr Bytes kLeastLimit = 64 * kKiB;

Result<observe::StackKinds> check(const std::string& path, const settings::RecordOptions& options) {
  const std::optional<observe::StackKinds> stacks = observe::stack_kinds_of(options.stacks);
  if (!stacks)
    return Error{ErrorCode::invalid_argument,
                 message_of("stacks `{}`: must be none, native, python or both", options.stacks)};
  if (options.sample == 0 || options.sample > UINT32_MAX)
    return Error{
        ErrorCode::invalid_argument,
        message_of("a sample of {}: must be a number from 1 to {}", options.sample, UINT32_MAX)};
  if (options.limit != 0 && options.limit < kLeastLimit)
    return Error{ErrorCode::invalid_argument,
                 message_of("a limit of {} bytes: must be 0, for none, or at least {}",
                            options.limit, kLeastLimit)};
  const bool is_plain =
      !stacks->any() && options.sample == 1 && options.limit == 0 && options.window_ns == 0;
  if (!is_plain && observe::is_csv(path))
    return Error{
        ErrorCode::invalid_argument,
        message_of(
            "{}: stacks, samples, limits and windows are not for .csv files; name it otherwise",
            path)};
  return *stacks;
}

}  // namespace

std::uint64_t Reports::add_event_callback(report::EventKinds kinds,
                                          report::EventCallback callback) {
  const PoolLock lock(parts_.mutex);
  const std::uint64_t id = parts_.recorder.add_listener(kinds, std::move(callback));
  parts_.listeners_changed();
  return id;
}

Result<void> Reports::remove_event_callback(std::uint64_t id) {
  const PoolLock lock(parts_.mutex);
  const bool is_there = parts_.recorder.remove_listener(id);
  parts_.listeners_changed();
  if (is_there) return {};
  return Error{ErrorCode::invalid_argument,
               message_of("no event callback of this pool has the number {}", id)};
}

void Reports::reset_peaks() {
  const PoolLock lock(parts_.mutex);
  parts_.footprint.reset_peaks();
}

// Tries the lock: at exit a thread may be stuck in a driver call with it.
void Reports::summarize() const noexcept {
  if (!has_summary_) return;
  if (!parts_.mutex.try_lock()) return;
  try {
    const PoolLock lock(parts_.mutex, std::adopt_lock);
    const observe::Statistics now = totals_.now();
    if (now.allocations + now.failed_allocations > 0)
      process::print_summary(
          process::summary(device_.primary.device(), now, parts_.footprint.capacity()));
  } catch (...) {  // NOLINT(bugprone-empty-catch): no memory for the text
  }
}

observe::Statistics Reports::statistics() const {
  const PoolLock lock(parts_.mutex);
  return totals_.now();
}

std::optional<FiguresToTell> Reports::try_figures() const {
  FiguresToTell figures;
  static_cast<void>(device_.inner.device_get_name(device_.primary.device(), figures.device_name));
  static_cast<void>(device_.inner.device_total_mem(device_.primary.device(), figures.device_bytes));
  if (!parts_.mutex.try_lock()) return std::nullopt;
  const PoolLock lock(parts_.mutex, std::adopt_lock);
  figures.capacity = parts_.footprint.capacity();
  figures.statistics = totals_.now();
  figures.by_tag = parts_.recorder.tags().by_tag();
  figures.by_library = parts_.recorder.tags().by_library();
  return figures;
}

report::Layout Reports::layout() const {
  const PoolLock lock(parts_.mutex);
  return drawing_.layout();
}

observe::PoolSnapshot Reports::snapshot() const {
  const PoolLock lock(parts_.mutex);
  return drawing_.snapshot();
}

Result<std::string> Reports::explain(DevicePtr address) const {
  if (device_.guard == nullptr)
    return Error{ErrorCode::unsupported,
                 device_.config.checks.guard_every == 0
                     ? "VPMM_GUARD is off, so the pool keeps no table of allocations"
                     : "VPMM_GUARD needs the virtual memory pool, which is off or not supported "
                       "here: nothing is guarded"};
  const auto paragraphs = [&] {
    const PoolLock lock(parts_.mutex);
    return guard::explain(*device_.guard, address, device_.inner.now_ns());
  }();
  return guard::with_stacks(paragraphs, device_.guard->stacks());
}

std::string Reports::validate() const {
  const PoolLock lock(parts_.mutex);
  if (std::string broken = device_.timelines.validate(); !broken.empty()) return broken;
  if (std::string broken = parts_.arenas.validate(); !broken.empty()) return broken;
  if (std::string broken = parts_.shares.validate(); !broken.empty()) return broken;
  return device_.validate();
}

observe::RecordingHeader Reports::header() const {
  observe::RecordingHeader header;
  header.device = static_cast<std::uint32_t>(device_.primary.device());
  static_cast<void>(device_.inner.device_get_name(device_.primary.device(), header.device_name));
  static_cast<void>(device_.inner.device_total_mem(device_.primary.device(), header.device_bytes));
  header.page_size = device_.page_size;
  header.grain = device_.pool == nullptr ? device_.page_size : device_.pool->memory().tuning.grain;
  for (const settings::SettingInForce& setting : settings::list_settings(device_.config))
    header.settings.emplace_back(setting.name, setting.value);
  header.tag_name = &report::tag_name;
  return header;
}

// Lists live allocations after warm calls began to be recorded: an allocation may be in the list
// and in the events, which the writer corrects.
Result<void> Reports::start_recording(const std::string& path,
                                      const settings::RecordOptions& options) {
  if (process::is_ending()) return process::ending_error();
  VPMM_TRY_ASSIGN(const observe::StackKinds stacks, check(path, options));
  observe::RecordingOptions how{header(), static_cast<std::uint32_t>(options.sample), options.limit,
                                options.window_ns};
  how.header.stacks = options.stacks;
  const MutexLock one_at_a_time(starting_recordings_);
  report::CallLog* log = nullptr;
  {
    const PoolLock lock(parts_.mutex);
    // Before create() replaces a file, perhaps the one of the running recording.
    if (parts_.recorder.is_recording())
      return Error{ErrorCode::invalid_argument, "a recording is running already"};
    how.header.capacity = parts_.footprint.capacity();
    log = &parts_.recorder.provide_log();
  }
  log->set_stacks(stacks);
  const std::uint64_t now_ns = device_.driver.now_ns();
  VPMM_TRY_ASSIGN(auto created, observe::TraceWriter::create(path, now_ns, log->channel(), how));
  const std::shared_ptr<observe::TraceWriter> writer = std::move(created);
  process::finish_at_exit(writer);
  return begin_recording(writer, now_ns);
}

Result<void> Reports::begin_recording(const std::shared_ptr<observe::TraceWriter>& writer,
                                      std::uint64_t now_ns) {
  const PoolLock lock(parts_.mutex);
  bool has_begun = false;
  const ScopeExit undo([&]() VPMM_REQUIRES(pool_lock) {
    if (!has_begun) parts_.recorder.stop();
    parts_.listeners_changed();
  });
  parts_.recorder.start(writer);
  parts_.listeners_changed();
  VPMM_TRY(writer->begin(drawing_.live_allocations(), now_ns));
  has_begun = true;
  totals_.sample();
  return {};
}

// Carries out deferred frees first, for the recording; after a failed entry they stay out of it.
Result<void> Reports::stop_recording() {
  if (parts_.allocations.has_deferred()) {
    Visit visit(entrance_);
    if (visit.status()) parts_.allocations.drain(visit.lock());
  }
  std::shared_ptr<observe::TraceWriter> writer;
  {
    const PoolLock lock(parts_.mutex);
    totals_.sample();
    writer = parts_.recorder.stop();
    parts_.listeners_changed();
  }
  if (!writer) return Error{ErrorCode::invalid_argument, "no recording is running"};
  return writer->close();
}

void Reports::mark(const std::string& text) {
  if (report::CallLog* const log = parts_.front.way().log)
    log->put(observe::RecordedKind::mark, text);
}

}  // namespace vpmm::context
