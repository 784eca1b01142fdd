// observe: files that one process at a time writes.
#pragma once

#include <memory>
#include <string>

#include "base/mutex.hpp"
#include "base/result.hpp"

namespace vpmm::observe {

// A file that nobody else empties. Its end gives it up. Of one thread at a time; in a forked child
// it is closed already.
class OwnFile {
 public:
  enum class Access { write, read_and_write };
  // Creates the file, or empties the one there is. A pipe is opened for writing once somebody reads
  // it, for both at once. ErrorCode::file_in_use: it is being written; bad_file: it cannot be
  // created.
  static Result<std::unique_ptr<OwnFile>> create(const std::string& path, Access access);
  ~OwnFile() { close(); }
  OwnFile(const OwnFile&) = delete;
  OwnFile& operator=(const OwnFile&) = delete;

  int descriptor() const {
    return descriptor_;
  }  // -1: given up, or of the process that this one was forked from
  bool is_regular() const { return is_regular_; }
  // Gives it up, and closes it. False: errno says why.
  bool close() noexcept;
  // Gives it up, and leaves its descriptor to the caller to close. -1: there is none.
  int release() noexcept;

 private:
  OwnFile() = default;
  Result<void> open(const std::string& path, Access access);
  Result<void> lock(const std::string& path);
  static void before_fork() noexcept;
  static void in_parent() noexcept;
  static void in_child() noexcept;

  static const int fork_handlers_;
  static Mutex list_mutex_;  // held by fork(), and for no call that may block
  static OwnFile* first_ VPMM_GUARDED_BY(list_mutex_);
  OwnFile* before_ VPMM_GUARDED_BY(list_mutex_) = nullptr;
  OwnFile* after_ VPMM_GUARDED_BY(list_mutex_) = nullptr;
  int descriptor_ = -1;
  bool is_regular_ = false;
};

}  // namespace vpmm::observe
