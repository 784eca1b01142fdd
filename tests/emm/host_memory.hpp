// SPDX-License-Identifier: Apache-2.0
// emm tests: the process itself out of memory, for the calling thread and a scope.
#pragma once

namespace vpmm::emm_test {

class NoHostMemory {
 public:
  NoHostMemory();
  ~NoHostMemory();
  NoHostMemory(const NoHostMemory&) = delete;
  NoHostMemory& operator=(const NoHostMemory&) = delete;
};

}  // namespace vpmm::emm_test
