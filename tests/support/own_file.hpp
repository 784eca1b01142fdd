// SPDX-License-Identifier: Apache-2.0
// tests: the program's file, as stacks name it.
#pragma once

#include <dlfcn.h>

#include <string>

namespace vpmm::test {

inline std::string own_file() {
  Dl_info found{};
  dladdr(reinterpret_cast<void*>(&own_file), &found);
  return found.dli_fname;
}

}  // namespace vpmm::test
