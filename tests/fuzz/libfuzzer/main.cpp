// SPDX-License-Identifier: Apache-2.0
// fuzz tests: the entry points that libFuzzer calls. VPMM_FUZZ_TARGET names the target.
#include <algorithm>
#include <cstdlib>
#include <string_view>

#include "fuzz/targets.hpp"

namespace {

using vpmm::fuzz::Contents;
using vpmm::fuzz::Target;

const Target& target() {
  static const Target* const chosen = [] {
    const char* const name = std::getenv("VPMM_FUZZ_TARGET");
    const Target* found = nullptr;
    for (const Target& each : vpmm::fuzz::targets())
      if (name != nullptr && std::string_view(each.name) == name) found = &each;
    vpmm::fuzz::require(found != nullptr, "VPMM_FUZZ_TARGET names a target");
    return found;
  }();
  return *chosen;
}

std::size_t put(const Contents& bytes, std::uint8_t* out) {
  std::copy(bytes.begin(), bytes.end(), out);
  return bytes.size();
}

}  // namespace

extern "C" {

std::size_t LLVMFuzzerMutate(std::uint8_t* data, std::size_t size, std::size_t most);

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  target().run({data, size});
  return 0;
}

// One of three changes is of bytes, for programs that no change of draws leads to.
std::size_t LLVMFuzzerCustomMutator(std::uint8_t* data, std::size_t size, std::size_t most,
                                    unsigned seed) {
  if (target().change == nullptr || seed % 3 == 0) return LLVMFuzzerMutate(data, size, most);
  return put(target().change({data, size}, most, seed), data);
}

// Returns 0 for targets without a crossing of their own: LLVMFuzzerMutate() has one.
std::size_t LLVMFuzzerCustomCrossOver(const std::uint8_t* one, std::size_t size,
                                      const std::uint8_t* other, std::size_t other_size,
                                      std::uint8_t* out, std::size_t most, unsigned seed) {
  if (target().cross == nullptr) return 0;
  return put(target().cross({one, size}, {other, other_size}, most, seed), out);
}

}  // extern "C"
