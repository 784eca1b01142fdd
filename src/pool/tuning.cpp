// SPDX-License-Identifier: Apache-2.0
// pool: the settings as figures.
#include "pool/tuning.hpp"

#include <algorithm>
#include <bit>

namespace vpmm::pool {

namespace {

// Least chunk = request / 32: bounds the driver calls of one request.
constexpr Bytes kRequestShare = 32;
// Least chunk on a GPU with little memory = request / 256: at most 512 chunks a request, some 40
// ms.
constexpr Bytes kLeastRequestShare = 256;
// Largest chunk = the pool's GPU memory / 4096, so that little is trapped where all is used.
constexpr Bytes kGpuShare = 4096;
constexpr Bytes kLeastChunk = 8 * kMiB;
constexpr Bytes kChunkShare = 256;
// Least grain = page / 32, so that there are few sizes.
constexpr Bytes kLeastGrain = 64 * kKiB;
constexpr Bytes kGrainShare = 32;

// Note [Grain]
// Chunks and mappings are whole pages; allocations are whole grains. Where the page size is no
// power of two, page addresses have no alignment, so the grain is the page.
Bytes grain_of(Bytes page_size) {
  return is_power_of_two(page_size) && page_size > kLeastGrain
             ? std::max(kLeastGrain, page_size / kGrainShare)
             : page_size;
}

}  // namespace

// Note [Size of a chunk]
// Large chunks cost few calls, and trap more: the idle part of a partly used chunk. Trapped memory
// matters where memory is scarce, and earlier chunks stay. So the pool's share of the GPU bounds
// their size from the beginning (docs/design/chunk-policy.md).
Bytes Tuning::chunk_size(Bytes request, Bytes mapped, Bytes all) const {
  const auto power = [](Bytes bytes) { return std::bit_floor(std::max<Bytes>(bytes, 1)); };
  Bytes size = std::max({power(request / kRequestShare), power(mapped / chunk_share), chunk_least});
  size = std::min(size, power(all / kGpuShare));
  size = std::max(size, power(request / kLeastRequestShare));
  const Bytes pages = power(size / page_size);
  return std::clamp(pages * page_size, page_size, chunk_max);
}

std::optional<Vector<Bytes>> Tuning::chunks_for(Bytes bytes, Bytes chunk, Bytes room) const {
  Vector<Bytes> sizes;
  while (bytes > 0) {
    const Bytes size = chunk <= room ? chunk : std::min(chunk, round_up(bytes, page_size));
    if (size > room) return std::nullopt;
    sizes.push_back(size);
    room -= size;
    bytes -= std::min(bytes, size);
  }
  return sizes;
}

Tuning tuning_of(const settings::Config& config, Bytes page_size) {
  Tuning tuning;
  tuning.page_size = tuning.grain = page_size;
  if (config.page_chunks) {
    tuning.chunk_max = tuning.chunk_least = page_size;
    tuning.waiting = Tuning::Waiting::before_moves;
    tuning.order = Tuning::Order::oldest_first;
    tuning.choice = Tuning::Choice::smallest;
    tuning.name = "page";
    return tuning;
  }
  tuning.chunk_max = std::bit_floor(std::max<Bytes>(config.chunk_max / page_size, 1)) * page_size;
  if (!config.ipc_isolate) tuning.grain = grain_of(page_size);
  tuning.chunk_least = kLeastChunk;
  tuning.chunk_share = kChunkShare;
  tuning.name = "adaptive";
  switch (config.prefer) {
    case settings::Prefer::footprint:
      tuning.chunk_least = page_size;
      tuning.chunk_share = 4 * kChunkShare;
      tuning.waiting = Tuning::Waiting::before_growth;
      tuning.delays_growth = true;
      break;
    case settings::Prefer::balanced:
      tuning.growth_permille = 30;
      tuning.delays_growth = true;
      break;
    case settings::Prefer::latency: tuning.growth_permille = 200; break;
  }
  return tuning;
}

}  // namespace vpmm::pool
