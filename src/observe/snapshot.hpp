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
  char kind = '*';  // ' ' allocated, '-' free, '*' hole, '~' zombie, '#' in flight
  Bytes requested =
      0;  // allocated: what the user asked for; of a page that is cut, what is live in it
  bool complete = true;  // free, zombie: nothing pending
  // free, zombie: "timeline 3 up to 17 (stream 9)"; allocated: the stream; empty: any-stream or
  // complete
  std::string stamp;
  // allocated: how many live small requests begin in it; none: it is one allocation
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
