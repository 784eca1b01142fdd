// SPDX-License-Identifier: Apache-2.0
// observe: thread that writes a recording, with its beginning and end.
#include "observe/trace_writer.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <condition_variable>
#include <exception>
#include <thread>
#include <utility>

#include "base/mutex.hpp"
#include "base/quiet_thread.hpp"
#include "observe/log.hpp"

namespace vpmm::observe {
namespace {

constexpr std::chrono::seconds kLongestUnflushed{1};
constexpr std::chrono::milliseconds kBetweenHints{2};
constexpr std::chrono::microseconds kBetweenLooks{
    50};  // for events that are claimed and not yet published

}  // namespace

bool is_csv(const std::string& path) { return path.ends_with(".csv") || path.ends_with(".csv.gz"); }

struct TraceWriter::Shared {
  Shared(std::string path_of_file, std::shared_ptr<RecordingChannel> used)
      : path(std::move(path_of_file)), channel(std::move(used)) {}
  bool is_forked() const { return getpid() != owner; }
  void write_until_closed(const std::vector<LiveAllocation>& live, std::uint64_t now_ns) noexcept
      VPMM_EXCLUDES(mutex);
  bool write_some() noexcept VPMM_EXCLUDES(mutex);
  void finish() noexcept VPMM_EXCLUDES(mutex);
  Result<void> result() const;

  const pid_t owner = getpid();
  const std::string path;
  const std::shared_ptr<RecordingChannel> channel;
  std::atomic<bool> is_exit{false};
  Mutex mutex;
  std::condition_variable_any progress;
  bool is_finished VPMM_GUARDED_BY(mutex) = false;
  std::uint64_t written VPMM_GUARDED_BY(mutex) = 0;  // of the queue's claims
  // --- the thread's, and anybody's once it has finished ---
  std::unique_ptr<RecordingSink> sink;
  std::uint64_t lost = 0;  // events that are not in the file
};

// --- the thread

// Returns false after the last event.
bool TraceWriter::Shared::write_some() noexcept {
  const bool goes_on = channel->queue.take([this](const QueuedEvent& event) {
    try {
      sink->write(event);
    } catch (const std::exception&) {  // no memory for it
      ++lost;
    }
  });
  lost += sink->flush();
  const MutexLock lock(mutex);
  written = channel->queue.taken();
  progress.notify_all();
  return goes_on;
}

void TraceWriter::Shared::write_until_closed(const std::vector<LiveAllocation>& live,
                                             std::uint64_t now_ns) noexcept {
  try {
    sink->begin(live, now_ns);
  } catch (const std::exception&) {  // no memory for all of them
    lost += live.size();
  }
  while (write_some()) {
    channel->queue.wait(kLongestUnflushed);
    if (!channel->queue.is_open()) std::this_thread::sleep_for(kBetweenLooks);
  }
  finish();
}

void TraceWriter::Shared::finish() noexcept {
  lost += channel->queue.lost();
  sink->close(lost, is_exit.load());
  channel->is_in_use.store(false);
  const MutexLock lock(mutex);
  is_finished = true;
  progress.notify_all();
}

// --- beginning and end

Result<std::unique_ptr<TraceWriter>> TraceWriter::create(const std::string& path,
                                                         std::uint64_t now_ns,
                                                         std::shared_ptr<RecordingChannel> channel,
                                                         const RecordingOptions& options) {
  auto shared = std::make_shared<Shared>(path, std::move(channel));
  Result<std::unique_ptr<RecordingSink>> sink =
      is_csv(path) ? make_csv_sink(path, now_ns)
                   : make_block_sink(path, now_ns, options, shared->channel->stacks);
  if (!sink) return std::move(sink.error());
  shared->sink = std::move(sink).value();
  std::unique_ptr<TraceWriter> writer(new TraceWriter(std::move(shared)));
  writer->shared_->channel->is_in_use.store(true);
  writer->shared_->channel->queue.open();
  return writer;
}

TraceWriter::TraceWriter(std::shared_ptr<Shared> shared) : shared_(std::move(shared)) {}

const std::string& TraceWriter::path() const noexcept { return shared_->path; }

Result<void> TraceWriter::begin(std::vector<LiveAllocation> live, std::uint64_t now_ns) {
  Result<void> started =
      start_quiet_thread("vpmm-record", [shared = shared_, live = std::move(live), now_ns] {
        shared->write_until_closed(live, now_ns);
      });
  has_begun_ = started.ok();
  return started;
}

TraceWriter::~TraceWriter() {
  if (shared_->is_forked()) return;
  if (!has_begun_) {
    shared_->channel->queue.close();
    shared_->channel->queue.take([](const QueuedEvent&) {});  // do not belong to the next recording
    shared_->channel->is_in_use.store(false);
    return;
  }
  if (is_reported_) return;
  try {
    if (const Result<void> closed = close(); !closed)
      log(LogLevel::error, "{}", closed.error().message);
  } catch (const std::exception&) {  // no memory for a message
  }
}

// Polls, as other threads may fill places that they claimed before.
void TraceWriter::wait_until_written(std::chrono::milliseconds patience) noexcept try {
  const std::uint64_t wanted = shared_->channel->queue.claimed();
  const auto give_up = std::chrono::steady_clock::now() + patience;
  MutexLock lock(shared_->mutex);
  while (shared_->written < wanted && !shared_->is_finished &&
         std::chrono::steady_clock::now() < give_up) {
    shared_->channel->queue.let_on();
    shared_->progress.wait_for(lock, kBetweenHints);
  }
} catch (const std::exception&) {  // NOLINT(bugprone-empty-catch): of a wait
}

void TraceWriter::begin_to_close(CloseReason reason) noexcept {
  if (reason == CloseReason::exit) shared_->is_exit.store(true);
  shared_->channel->queue.close();
}

Result<void> TraceWriter::close(std::chrono::milliseconds patience) {
  begin_to_close();
  MutexLock lock(shared_->mutex);
  const bool is_finished = shared_->progress.wait_for(
      lock, patience, [this]() VPMM_REQUIRES(shared_->mutex) { return shared_->is_finished; });
  is_reported_ = true;
  if (is_finished) return shared_->result();
  return Error{ErrorCode::bad_file,
               fmt::format("{}: not finished, for it takes no bytes", shared_->path)};
}

Result<void> TraceWriter::Shared::result() const {
  std::string what = sink->error();
  if (!what.empty()) what = "cannot be written: " + what;
  if (lost != 0) what += fmt::format("{}{} calls are not in it", what.empty() ? "" : "; ", lost);
  if (what.empty()) return {};
  return Error{ErrorCode::bad_file, fmt::format("{}: {}", path, what)};
}

}  // namespace vpmm::observe
