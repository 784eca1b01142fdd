// ipc: the list of descriptors, and what becomes of it in a forked child.
#include "ipc/descriptor.hpp"

#include <pthread.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <mutex>
#include <set>

#include "base/check.hpp"

namespace vpmm::ipc {
namespace {

constexpr std::size_t kMostForgetters = 4;

// Leaked: threads of ours may outlive static destructors.
struct List {
  std::mutex mutex;
  std::set<int> files;
  std::array<std::atomic<void (*)()>, kMostForgetters> forgetters{};
};

List& list() {
  static List* const all = [] {
    auto* const made = new List;
    pthread_atfork([] { list().mutex.lock(); }, [] { list().mutex.unlock(); },
                   [] {
                     for (const int file : list().files) close(file);
                     list().files.clear();
                     list().mutex.unlock();
                     for (const auto& forget : list().forgetters)
                       if (forget.load() != nullptr) forget.load()();
                   });
    return made;
  }();
  return *all;
}

}  // namespace

void Descriptor::reset() noexcept {
  if (file_ < 0) return;
  const std::lock_guard guard(list().mutex);
  // In a child it was closed, and its number may be somebody else's by now.
  if (list().files.erase(file_) != 0) close(file_);
  file_ = -1;
}

Descriptor::Making::Making() { list().mutex.lock(); }
Descriptor::Making::~Making() { list().mutex.unlock(); }

Descriptor Descriptor::Making::adopt(int file) {
  if (file < 0) return {};
  const int said = errno;
  list().files.insert(file);
  errno = said;
  return Descriptor(file);
}

void when_forked(void (*forget)()) {
  for (auto& place : list().forgetters) {
    void (*expected)() = nullptr;
    if (place.compare_exchange_strong(expected, forget) || expected == forget) return;
  }
  VPMM_CHECK(false, "no place for what a forked child must forget");
}

}  // namespace vpmm::ipc
