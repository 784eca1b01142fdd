// observe: creating a file that nobody else writes.
//
// Note [Two that record to one file]
// Children inherit the variable that names the file, and so do programs side by side: the second would empty what the
// first still writes. So whoever writes a regular file holds flock() on it, and a file is emptied by who got that. A
// file that is kept short is replaced by another of its name: one that was opened and has no name any more is opened
// anew. Where the file system has no locks, nobody is kept out.
#include "observe/own_file.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace vpmm::observe {
namespace {

bool is_named(const struct stat& file, const std::string& path) {
  struct stat named {};
  return ::stat(path.c_str(), &named) == 0 && named.st_ino == file.st_ino && named.st_dev == file.st_dev;
}

}  // namespace

Result<OwnFile> create_own_file(const std::string& path) {
  for (;;) {
    OwnFile file{::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644)};
    const auto failed = [&](const std::string& why) {
      if (file.descriptor >= 0) ::close(file.descriptor);
      return Error{ErrorCode::bad_file, fmt::format("{}: cannot be created: {}", path, why)};
    };
    if (file.descriptor < 0) return failed(std::strerror(errno));
    struct stat status {};
    if (::fstat(file.descriptor, &status) != 0) return failed(std::strerror(errno));
    file.is_regular = S_ISREG(status.st_mode);
    if (!file.is_regular) return file;
    if (::flock(file.descriptor, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK)
      return failed("another recording is being written to it");
    if (!is_named(status, path)) {
      ::close(file.descriptor);
      continue;
    }
    if (::ftruncate(file.descriptor, 0) != 0) return failed(std::strerror(errno));
    return file;
  }
}

}  // namespace vpmm::observe
