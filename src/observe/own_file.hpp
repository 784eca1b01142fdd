// SPDX-License-Identifier: Apache-2.0
// observe: files that one process at a time writes.
#pragma once

#include <memory>
#include <string>

#include "base/mutex.hpp"
#include "base/result.hpp"

namespace vpmm::observe {

// A file that no other process empties; given up by the destructor. Of one thread at a time; closed
// in a forked child.
class OwnFile {
 public:
  enum class Access { write, read_and_write };
  // Creates the file, or empties an existing one. A pipe opens for writing once it has a reader.
  // `like`: the file gets its permissions. ErrorCode::file_in_use: another process writes it;
  // bad_file: it cannot be created.
  static Result<std::unique_ptr<OwnFile>> create(const std::string& path, Access access,
                                                 const OwnFile* like = nullptr);
  ~OwnFile() { close(); }
  OwnFile(const OwnFile&) = delete;
  OwnFile& operator=(const OwnFile&) = delete;

  int descriptor() const { return descriptor_; }  // -1: given up, or closed by fork()
  bool is_regular() const { return is_regular_; }
  // Gives up and closes the file. False: error in errno.
  bool close() noexcept;
  // Gives up the file; the caller closes the returned descriptor. -1: none.
  int release() noexcept;

 private:
  OwnFile() = default;
  Result<void> open(const std::string& path, Access access, const OwnFile* like);
  Result<void> lock(const std::string& path);
  static void before_fork() noexcept;
  static void in_parent() noexcept;
  static void in_child() noexcept;

  static const int kForkHandlers;
  static Mutex list_mutex_;  // held by fork(), and never during a call that may block
  static OwnFile* first_ VPMM_GUARDED_BY(list_mutex_);
  OwnFile* before_ VPMM_GUARDED_BY(list_mutex_) = nullptr;
  OwnFile* after_ VPMM_GUARDED_BY(list_mutex_) = nullptr;
  int descriptor_ = -1;
  bool is_regular_ = false;
};

}  // namespace vpmm::observe
