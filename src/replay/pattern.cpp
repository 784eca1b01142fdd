// SPDX-License-Identifier: Apache-2.0
// replay: spots and the words written there.
#include "replay/pattern.hpp"

#include <algorithm>
#include <cstring>

namespace vpmm::replay {
namespace {

// The finaliser of splitmix64: every bit of the input reaches every bit of the result.
std::uint64_t mix(std::uint64_t x) {
  x += 0x9e3779b97f4a7c15ULL;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}

}  // namespace

Spots::Spots(Bytes bytes, std::uint64_t seed) {
  if (bytes == 0) return;
  add({0, std::min(bytes, kSpotBytes)});
  if (bytes <= kSpotBytes) return;
  const Bytes last = std::max(bytes - kSpotBytes, kSpotBytes);
  const std::uint64_t pages = last > kSpotBytes ? (last - kSpotBytes) / kSpotPage : 0;
  const std::uint64_t wanted = std::min<std::uint64_t>(pages, kMaxPageSpots);
  for (std::uint64_t i = 0; i < wanted; ++i) {
    // Page starts are numbered from 1; each spot draws from an equal share of them.
    const std::uint64_t first = 1 + pages * i / wanted;
    const std::uint64_t end = 1 + pages * (i + 1) / wanted;
    if (first < end) add({(first + mix(seed + i) % (end - first)) * kSpotPage, kSpotBytes});
  }
  add({last, bytes - last});
}

std::uint64_t seed_of(std::uint64_t run_seed, std::size_t allocation) {
  return mix(mix(run_seed) + allocation);
}

void fill(std::span<std::byte> bytes, std::uint64_t seed, Bytes offset) {
  for (std::size_t at = 0; at < bytes.size(); at += sizeof(std::uint64_t)) {
    // The lowest bit is 0 and that of kLastUseByte is 1.
    const std::uint64_t word = mix(seed ^ mix(offset + at)) & ~std::uint64_t{1};
    std::memcpy(bytes.data() + at, &word, std::min(sizeof word, bytes.size() - at));
  }
}

bool holds(std::span<const std::byte> bytes, std::uint64_t seed, Bytes offset) {
  std::byte expected[kSpotBytes];
  fill(std::span(expected, bytes.size()), seed, offset);
  return std::memcmp(expected, bytes.data(), bytes.size()) == 0;
}

}  // namespace vpmm::replay
