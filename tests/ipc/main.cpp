// SPDX-License-Identifier: Apache-2.0
// ipc tests: starts as a test or as an actor; a test has a folder of sockets of its own.
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <string>

#include "ipc/actor.hpp"

namespace {

std::string new_folder() {
  const char* const parent = std::getenv("TMPDIR");
  std::string name =
      std::string(parent != nullptr && parent[0] == '/' ? parent : "/tmp") + "/vpmm-ipc-XXXXXX";
  if (mkdtemp(name.data()) == nullptr) std::abort();
  return name;
}

}  // namespace

int main(int argc, char** argv) {
  vpmm::ipc_test::act(argc, argv);
  testing::InitGoogleTest(&argc, argv);
  const std::string folder = new_folder();
  setenv("VPMM_IPC_DIR", folder.c_str(), 1);
  setenv("VPMM_TOP", "0", 1);  // tests count sockets and threads
  const int result = RUN_ALL_TESTS();
  std::error_code ignored;
  std::filesystem::remove_all(folder, ignored);
  return result;
}
