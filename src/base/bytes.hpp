// SPDX-License-Identifier: Apache-2.0
// base: sizes in bytes and the arithmetic that rounds them.
#pragma once

#include <cstdint>

namespace vpmm {

// A size or offset in bytes; the type of every size in the code base.
using Bytes = std::uint64_t;

constexpr Bytes kKiB = Bytes{1} << 10;
constexpr Bytes kMiB = Bytes{1} << 20;
constexpr Bytes kGiB = Bytes{1} << 30;
constexpr Bytes kTiB = Bytes{1} << 40;

namespace literals {
constexpr Bytes operator""_B(unsigned long long n) { return Bytes{n}; }
constexpr Bytes operator""_KiB(unsigned long long n) { return Bytes{n} * kKiB; }
constexpr Bytes operator""_MiB(unsigned long long n) { return Bytes{n} * kMiB; }
constexpr Bytes operator""_GiB(unsigned long long n) { return Bytes{n} * kGiB; }
constexpr Bytes operator""_TiB(unsigned long long n) { return Bytes{n} * kTiB; }
}  // namespace literals

constexpr bool is_power_of_two(std::uint64_t n) { return n != 0 && (n & (n - 1)) == 0; }

// Rounds up to a multiple of `unit` (any unit > 0). Requires: bytes + unit does not overflow.
constexpr Bytes round_up(Bytes bytes, Bytes unit) { return (bytes + unit - 1) / unit * unit; }
constexpr Bytes round_down(Bytes bytes, Bytes unit) { return bytes / unit * unit; }
constexpr bool is_multiple(Bytes bytes, Bytes unit) { return bytes % unit == 0; }

}  // namespace vpmm
