// SPDX-License-Identifier: Apache-2.0
// process tests: how often one rested that waits by looking again and again.
#pragma once

#include <sys/resource.h>

namespace vpmm::process {

// Times that the process (RUSAGE_SELF) or the calling thread (RUSAGE_THREAD) gave its core away.
// Unlike its share of a core, this does not depend on what else the machine does.
inline long rests(int of) {
  rusage used{};
  getrusage(of, &used);
  return used.ru_nvcsw;
}

}  // namespace vpmm::process
