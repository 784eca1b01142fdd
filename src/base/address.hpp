// SPDX-License-Identifier: Apache-2.0
// base: device addresses and half-open address ranges.
#pragma once

#include <compare>
#include <cstdint>
#include <functional>

#include "base/bytes.hpp"

namespace vpmm {

// A device virtual address (the value of a CUdeviceptr). DevicePtr{} is the null address.
enum class DevicePtr : std::uint64_t {};

constexpr std::uint64_t to_integer(DevicePtr p) { return static_cast<std::uint64_t>(p); }
constexpr bool is_null(DevicePtr p) { return p == DevicePtr{}; }
constexpr DevicePtr operator+(DevicePtr p, Bytes n) { return DevicePtr{to_integer(p) + n}; }
constexpr DevicePtr operator-(DevicePtr p, Bytes n) { return DevicePtr{to_integer(p) - n}; }
// Distance from `b` up to `a`. Requires: a >= b.
constexpr Bytes operator-(DevicePtr a, DevicePtr b) { return to_integer(a) - to_integer(b); }
constexpr DevicePtr align_up(DevicePtr p, Bytes alignment) {
  return DevicePtr{round_up(to_integer(p), alignment)};
}
constexpr DevicePtr align_down(DevicePtr p, Bytes alignment) {
  return DevicePtr{round_down(to_integer(p), alignment)};
}
constexpr bool is_aligned(DevicePtr p, Bytes alignment) { return to_integer(p) % alignment == 0; }

// [begin, begin + size), half open.
struct AddressRange {
  DevicePtr begin{};
  Bytes size = 0;

  constexpr DevicePtr end() const { return begin + size; }
  constexpr bool empty() const { return size == 0; }
  constexpr bool contains(DevicePtr p) const { return p >= begin && p < end(); }
  constexpr bool contains(const AddressRange& r) const {
    return r.begin >= begin && r.end() <= end();
  }
  constexpr bool overlaps(const AddressRange& r) const {
    return begin < r.end() && r.begin < end();
  }
  friend constexpr bool operator==(const AddressRange&, const AddressRange&) = default;
};

}  // namespace vpmm
