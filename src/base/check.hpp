// SPDX-License-Identifier: Apache-2.0
// base: VPMM_CHECK, for our own bugs only: prints the broken condition and aborts.
#pragma once

#include <string>

namespace vpmm {

// Prints "file:line: check failed: expression: message" to stderr and aborts.
[[noreturn]] void check_failed(const char* file, int line, const char* expression,
                               const std::string& message);

}  // namespace vpmm

// Always on. `message` is evaluated only on failure; pass a dump of the structure.
#define VPMM_CHECK(expression, message)                                                  \
  do {                                                                                   \
    if (!(expression)) ::vpmm::check_failed(__FILE__, __LINE__, #expression, (message)); \
  } while (false)
