// SPDX-License-Identifier: Apache-2.0
// observe: creates a file that no other process writes.
//
// Note [Two that record to one file]
// Children, and programs side by side, may share the variable that names the file: the second would
// empty the file that the first still writes. So the writer of a regular file holds flock() on it,
// and only its holder empties the file. A file kept short is replaced by another of its name: one
// that lost its name between open and lock is opened anew, a few times. Without locks in the file
// system, or proof that the open file is the named one, there is no protection.
//
// Note [A lock that forked children share]
// A forked child inherits the descriptor, and with it the lock, which would last as long as the
// child. So the owner unlocks before it closes, and the child closes listed files at once, in case
// the owner dies; an unlock there would unlock for the owner, too. A file is listed after it was
// opened and taken off the list before it is closed, so that fork() waits for no file. A child from
// between has the descriptor, but no lock once the owner has given it up.
#include "observe/own_file.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <pthread.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "base/race_window.hpp"

namespace vpmm::observe {
namespace {

constexpr int kMostTries = 10;
constexpr mode_t kMode = 0644;  // less the umask
constexpr mode_t kPermissions = 0777;

Error not_created(const std::string& path) {
  return {ErrorCode::bad_file,
          fmt::format("{}: cannot be created: {}", path, std::strerror(errno))};
}

bool is_named(int descriptor, const std::string& path) {
  struct stat file {};
  struct stat named {};
  return ::fstat(descriptor, &file) == 0 && ::stat(path.c_str(), &named) == 0 &&
         named.st_ino == file.st_ino && named.st_dev == file.st_dev;
}

}  // namespace

constinit Mutex OwnFile::list_mutex_;
constinit OwnFile* OwnFile::first_ = nullptr;
// Installed when the library is loaded.
const int OwnFile::kForkHandlers = pthread_atfork(before_fork, in_parent, in_child);

Result<std::unique_ptr<OwnFile>> OwnFile::create(const std::string& path, Access access,
                                                 const OwnFile* like) {
  for (int tries = 1;; ++tries) {
    std::unique_ptr<OwnFile> file(new OwnFile);
    VPMM_TRY(file->open(path, access, like));
    if (!file->is_regular_) return file;
    VPMM_TRY(file->lock(path));
    if (!is_named(file->descriptor_, path) && tries < kMostTries) continue;
    if (::ftruncate(file->descriptor_, 0) != 0) return not_created(path);
    return file;
  }
}

// A file that others may not read is not replaced by one that they may: not even for a moment, in
// which they could open it.
Result<void> OwnFile::open(const std::string& path, Access access, const OwnFile* like) {
  const int how = access == Access::write ? O_WRONLY : O_RDWR;
  mode_t mode = kMode;
  if (like != nullptr) {
    struct stat status {};
    if (::fstat(like->descriptor_, &status) != 0) return not_created(path);
    mode = status.st_mode & kPermissions;
  }
  descriptor_ = ::open(path.c_str(), how | O_CREAT | O_CLOEXEC, mode);
  if (descriptor_ < 0) return not_created(path);
  {
    const MutexLock lock(list_mutex_);
    after_ = first_;
    if (first_ != nullptr) first_->before_ = this;
    first_ = this;
  }
  struct stat status {};
  if (::fstat(descriptor_, &status) != 0) return not_created(path);
  is_regular_ = S_ISREG(status.st_mode);
  const bool differs = like != nullptr && (status.st_mode & kPermissions) != mode;
  if (differs && ::fchmod(descriptor_, mode) != 0) return not_created(path);
  return {};
}

Result<void> OwnFile::lock(const std::string& path) {
  if (::flock(descriptor_, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK)
    return Error{
        ErrorCode::file_in_use,
        fmt::format("{}: cannot be created: another recording is being written to it", path)};
  VPMM_RACE_WINDOW("a file is locked, and may have lost its name");
  return {};
}

int OwnFile::release() noexcept {
  if (descriptor_ < 0) return -1;
  {
    const MutexLock lock(list_mutex_);
    (before_ == nullptr ? first_ : before_->after_) = after_;
    if (after_ != nullptr) after_->before_ = before_;
  }
  ::flock(descriptor_, LOCK_UN);
  return std::exchange(descriptor_, -1);
}

bool OwnFile::close() noexcept {
  const int descriptor = release();
  return descriptor < 0 || ::close(descriptor) == 0;
}

// --- fork()

// The analysis sees one function at a time; fork() calls the first before, and one of the others
// after.
void OwnFile::before_fork() noexcept VPMM_NO_THREAD_SAFETY_ANALYSIS { list_mutex_.lock(); }
void OwnFile::in_parent() noexcept VPMM_NO_THREAD_SAFETY_ANALYSIS { list_mutex_.unlock(); }
void OwnFile::in_child() noexcept VPMM_NO_THREAD_SAFETY_ANALYSIS {
  for (OwnFile* file = std::exchange(first_, nullptr); file != nullptr; file = file->after_)
    ::close(std::exchange(file->descriptor_, -1));
  list_mutex_.unlock();
}

}  // namespace vpmm::observe
