// observe: files that one process at a time writes.
#pragma once

#include <string>

#include "base/result.hpp"

namespace vpmm::observe {

struct OwnFile {
  int descriptor = -1;  // the caller's to close, which gives the file up
  bool is_regular = false;
};

// Creates the file, or empties the one there is. ErrorCode::bad_file: it cannot be created, or is being written.
Result<OwnFile> create_own_file(const std::string& path);

}  // namespace vpmm::observe
