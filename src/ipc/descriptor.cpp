// SPDX-License-Identifier: Apache-2.0
// ipc: the list of descriptors, and its end in a forked child.
#include "ipc/descriptor.hpp"

#include <pthread.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <bitset>
#include <cerrno>

#include "base/check.hpp"

namespace vpmm::ipc {

constinit Mutex descriptor_mutex;

namespace {

constexpr std::size_t kMostForgetters = 4;
constexpr int kMostFiles =
    1 << 20;  // 128 KiB of flags; a process with more open files, a rare one, gets EMFILE

struct List {
  std::bitset<kMostFiles> files VPMM_GUARDED_BY(descriptor_mutex);
  int end VPMM_GUARDED_BY(descriptor_mutex) = 0;  // all listed files < end
  std::array<std::atomic<void (*)()>, kMostForgetters> forgetters{};
};
constinit List list;

// The analysis sees one function at a time; fork() calls the first before, and one of the others
// after.
void before_fork() VPMM_THREAD_ATTRIBUTE(no_thread_safety_analysis) { descriptor_mutex.lock(); }
void in_parent() VPMM_THREAD_ATTRIBUTE(no_thread_safety_analysis) { descriptor_mutex.unlock(); }
void in_child() VPMM_THREAD_ATTRIBUTE(no_thread_safety_analysis) {
  for (int file = 0; file < list.end; ++file)
    if (list.files[static_cast<std::size_t>(file)]) close(file);
  list.files.reset();
  descriptor_mutex.unlock();
  for (const auto& forget : list.forgetters)
    if (forget.load() != nullptr) forget.load()();
}

void prepare_for_fork() {
  static const int prepared = pthread_atfork(before_fork, in_parent, in_child);
  static_cast<void>(prepared);
}

}  // namespace

void Descriptor::reset() noexcept {
  if (file_ < 0) return;
  const MutexLock lock(descriptor_mutex);
  // In a child the file was closed, and its number may be reused by now.
  if (list.files[static_cast<std::size_t>(file_)]) close(file_);
  list.files.reset(static_cast<std::size_t>(file_));
  file_ = -1;
}

void Descriptor::reset_unlocked() noexcept {
  if (file_ < 0) return;
  const int file = std::exchange(file_, -1);
  {
    const MutexLock lock(descriptor_mutex);
    if (!list.files[static_cast<std::size_t>(file)]) return;  // in a child
    list.files.reset(static_cast<std::size_t>(file));
  }
  close(file);
}

void Descriptor::hang_up() noexcept {
  if (file_ < 0) return;
  {
    const MutexLock lock(descriptor_mutex);
    if (list.files[static_cast<std::size_t>(file_)]) shutdown(file_, SHUT_RDWR);
  }
  reset_unlocked();
}

Descriptor::Making::Making() {
  prepare_for_fork();
  descriptor_mutex.lock();
}
Descriptor::Making::~Making() { descriptor_mutex.unlock(); }

Descriptor Descriptor::Making::adopt(int file) noexcept {
  if (file < 0) return {};
  if (file >= kMostFiles) {
    close(file);
    errno = EMFILE;
    return {};
  }
  list.files.set(static_cast<std::size_t>(file));
  list.end = std::max(list.end, file + 1);
  return Descriptor(file);
}

void when_forked(void (*forget)()) {
  prepare_for_fork();
  for (auto& place : list.forgetters) {
    void (*expected)() = nullptr;
    if (place.compare_exchange_strong(expected, forget) || expected == forget) return;
  }
  VPMM_CHECK(false, "no place for what a forked child must forget");
}

}  // namespace vpmm::ipc
