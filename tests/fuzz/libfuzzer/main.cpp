// SPDX-License-Identifier: Apache-2.0
// fuzz tests: the entry points that libFuzzer calls. VPMM_FUZZ_TARGET names the target.
#include <cstdlib>
#include <string_view>

#include "fuzz/targets.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const vpmm::fuzz::Target* const target = [] {
    const char* const name = std::getenv("VPMM_FUZZ_TARGET");
    const vpmm::fuzz::Target* found = nullptr;
    for (const vpmm::fuzz::Target& each : vpmm::fuzz::targets())
      if (name != nullptr && std::string_view(each.name) == name) found = &each;
    vpmm::fuzz::require(found != nullptr, "VPMM_FUZZ_TARGET names a target");
    return found;
  }();
  target->run({data, size});
  return 0;
}
