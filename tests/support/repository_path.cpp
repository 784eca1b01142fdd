// SPDX-License-Identifier: Apache-2.0
// tests: where the files of the repository lie.
#include "support/repository_path.hpp"

namespace vpmm {

std::string repository_path(const std::string& relative) {
  return std::string(VPMM_TEST_SOURCE_DIR "/") + relative;
}

}  // namespace vpmm
