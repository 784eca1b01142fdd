// pool: the settings as figures.
#include "pool/tuning.hpp"

#include <algorithm>
#include <bit>

namespace vpmm::pool {

namespace {

// Up to so many pages a new chunk has the exact size. Halved: small requests are made of two or three chunks each, and
// cost as many calls; doubled: more sizes, so that fewer chunks fit the next request.
constexpr Bytes kExactPages = 8;

}  // namespace

// Note [Chunk classes]
// Every allocation of a page and more owns whole chunks, so a chunk that is idle is free to move. New chunks are powers
// of two of pages, largest first, so any size is a dozen chunks or so, and what one request leaves suits another.
Vector<Bytes> Tuning::chunk_sizes(Bytes bytes) const {
  Vector<Bytes> sizes;
  const Bytes exact = std::min(kExactPages * page_size, chunk_max);
  while (bytes > 0) {
    const Bytes most = std::min(bytes, chunk_max);
    sizes.push_back(most <= exact ? most : std::bit_floor(most / page_size) * page_size);
    bytes -= sizes.back();
  }
  return sizes;
}

Tuning tuning_of(const Config& config, Bytes page_size) {
  Tuning tuning;
  tuning.page_size = page_size;
  if (config.page_chunks) {
    tuning.chunk_max = page_size;
    tuning.waiting = Tuning::Waiting::before_moves;
    tuning.order = Tuning::Order::oldest_first;
    tuning.name = "page";
    return tuning;
  }
  tuning.chunk_max = std::bit_floor(std::max<Bytes>(config.chunk_max / page_size, 1)) * page_size;
  tuning.name = "adaptive";
  switch (config.prefer) {
    case Prefer::footprint:
      tuning.slack_permille = 5;
      tuning.waiting = Tuning::Waiting::after_moves;
      tuning.delays_growth = true;
      break;
    case Prefer::balanced:
      tuning.slack_permille = 50;
      tuning.growth_permille = 80;
      tuning.delays_growth = true;
      break;
    case Prefer::latency:
      tuning.slack_permille = 200;
      tuning.growth_permille = 200;
      tuning.growth_weight = 0;
      break;
  }
  return tuning;
}

}  // namespace vpmm::pool
