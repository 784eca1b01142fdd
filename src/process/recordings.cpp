// SPDX-License-Identifier: Apache-2.0
// process: the list of open recordings.
#include "process/recordings.hpp"

#include <chrono>
#include <utility>

#include "base/host_memory.hpp"
#include "base/mutex.hpp"
#include "observe/log.hpp"

namespace vpmm::process {
namespace {

constexpr std::chrono::seconds kPatience{1};  // total wait for all files

struct OpenRecordings {
  Mutex mutex;
  Vector<std::weak_ptr<observe::TraceWriter>> writers VPMM_GUARDED_BY(mutex);
};

// Stays for good: static objects may still start recordings.
OpenRecordings& open_recordings() {
  static auto* const open = new OpenRecordings;
  return *open;
}

}  // namespace

void finish_at_exit(const std::shared_ptr<observe::TraceWriter>& recording) {
  OpenRecordings& open = open_recordings();
  const MutexLock lock(open.mutex);
  std::erase_if(open.writers, [](const auto& writer) { return writer.expired(); });
  open.writers.push_back(recording);
}

void finish_recordings() noexcept {
  try {
    OpenRecordings& open = open_recordings();
    const MutexLock lock(open.mutex);
    Vector<std::shared_ptr<observe::TraceWriter>> writers;
    for (const auto& weak : open.writers)
      if (auto writer = weak.lock()) writers.push_back(std::move(writer));
    // Lets them finish side by side.
    for (const auto& writer : writers)
      writer->begin_to_close(observe::TraceWriter::CloseReason::exit);
    const auto give_up = std::chrono::steady_clock::now() + kPatience;
    for (const auto& writer : writers) {
      const auto left = give_up - std::chrono::steady_clock::now();
      const Result<void> closed = writer->close(std::chrono::ceil<std::chrono::milliseconds>(left));
      if (!closed) observe::log(observe::LogLevel::error, "{}", closed.error().message);
    }
  } catch (...) {  // no memory for a message: exit goes on without it
  }
}

}  // namespace vpmm::process
