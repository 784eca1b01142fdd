// context: which recordings are open.
#include "context/recordings.hpp"

#include <chrono>

#include "base/host_memory.hpp"
#include "base/mutex.hpp"
#include "observe/log.hpp"

namespace vpmm::context {
namespace {

constexpr std::chrono::seconds kPatience{1};  // with a thread that is writing to a disk that hangs

struct OpenRecordings {
  Mutex mutex;
  Vector<std::weak_ptr<observe::TraceWriter>> writers VPMM_GUARDED_BY(mutex);
};

// Never destroyed: static objects may still start recordings.
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
    for (const auto& weak : open.writers) {
      const auto writer = weak.lock();
      if (writer == nullptr) continue;
      if (const Result<void> closed = writer->close_within(kPatience); !closed)
        observe::log(observe::LogLevel::error, "{}", closed.error().message);
    }
  } catch (...) {  // no memory for a message: exit goes on without it
  }
}

}  // namespace vpmm::context
