// SPDX-License-Identifier: Apache-2.0
// base: ends the process after a failed check.
#include "base/check.hpp"

#include <cstdio>
#include <cstdlib>

namespace vpmm {

void check_failed(const char* file, int line, const char* expression, const std::string& message) {
  std::fprintf(stderr, "%s:%d: check failed: %s: %s\n", file, line, expression, message.c_str());
  std::fflush(stderr);
  std::abort();
}

}  // namespace vpmm
