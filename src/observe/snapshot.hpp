// SPDX-License-Identifier: Apache-2.0
// observe: a pool at one moment as plain data; filled by the context, rendered by render.hpp.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/address.hpp"
#include "observe/statistics.hpp"

namespace vpmm::observe {

struct RegionSnapshot {
  AddressRange range;
  char kind = '*';      // ' ' allocated, '-' free, '*' hole, '~' zombie, '#' in flight
  Bytes requested = 0;  // allocated: bytes the user asked for; for a cut page, the live bytes in it
  bool complete = true;  // free, zombie: no pending work
  // free, zombie: "timeline 3 up to 17 (stream 9)"; allocated: the stream; empty: any-stream or
  // complete
  std::string stamp;
  // allocated: live small requests that begin in it; nullopt: one allocation
  std::optional<std::uint64_t> small_allocations;
};

struct PoolSnapshot {
  int device = 0;
  std::string driver;  // "cuda" or "sim"
  std::string policy;  // "page" or "adaptive"
  Bytes page_size = 0;
  std::vector<AddressRange> reservations;
  std::vector<RegionSnapshot> regions;  // ascending addresses
  Statistics statistics;
};

}  // namespace vpmm::observe
