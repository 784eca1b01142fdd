// SPDX-License-Identifier: Apache-2.0
// capi tests: starts as a test or as an actor of tests/ipc; tests have a folder of sockets and
// little address space.
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <string>

#include "ipc/actor.hpp"

namespace {

constexpr const char* kFolder = "VPMM_IPC_DIR";

// The folder of the process that started this one, as death tests do, or a new one, which the
// caller removes.
bool make_folder() {
  if (std::getenv(kFolder) != nullptr) return false;
  const char* const parent = std::getenv("TMPDIR");
  std::string name =
      std::string(parent != nullptr && parent[0] == '/' ? parent : "/tmp") + "/vpmm-capi-XXXXXX";
  if (mkdtemp(name.data()) == nullptr) std::abort();
  setenv(kFolder, name.c_str(), 1);
  return true;
}

}  // namespace

int main(int argc, char** argv) {
  vpmm::ipc_test::act(argc, argv);
  testing::InitGoogleTest(&argc, argv);
  // A pool's tables take a fraction of its address space, and several pools are open at once.
  setenv("VPMM_VA_SIZE", "256GiB", 0);
  const bool is_new = make_folder();
  const int result = RUN_ALL_TESTS();
  std::error_code ignored;
  if (is_new) std::filesystem::remove_all(std::getenv(kFolder), ignored);
  return result;
}
