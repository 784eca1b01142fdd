// SPDX-License-Identifier: Apache-2.0
// bench/harness: which core a thread runs on.
#pragma once

#include <pthread.h>
#include <sched.h>

#include <cstddef>
#include <vector>

namespace vpmm::bench {

// That this process may use; at least one.
inline std::vector<std::size_t> usable_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  std::vector<std::size_t> cores;
  if (sched_getaffinity(0, sizeof(set), &set) == 0)
    for (std::size_t core = 0; core < CPU_SETSIZE; ++core)
      if (CPU_ISSET(core, &set)) cores.push_back(core);
  if (cores.empty()) cores.push_back(0);
  return cores;
}

// Moves the calling thread, best effort.
inline void run_on(std::size_t core) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(core, &set);
  static_cast<void>(pthread_setaffinity_np(pthread_self(), sizeof(set), &set));
}

}  // namespace vpmm::bench
