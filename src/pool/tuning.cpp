// pool: the settings as figures.
#include "pool/tuning.hpp"

#include <algorithm>
#include <bit>

namespace vpmm::pool {

namespace {

// A chunk is at least this part of the request: that bounds how many calls one request makes.
constexpr Bytes kRequestShare = 32;
// And at least this part of it on a GPU with little memory: there a request makes at most 512
// chunks, in some 40 ms.
constexpr Bytes kLeastRequestShare = 256;
// A chunk is at most this part of what the pool may have of the GPU, so that little is trapped
// where all of it is used.
constexpr Bytes kGpuShare = 4096;
constexpr Bytes kLeastChunk = 8 * kMiB;
constexpr Bytes kChunkShare = 256;
// At least this part of a page, so that few sizes are told apart.
constexpr Bytes kLeastGrain = 64 * kKiB;
constexpr Bytes kGrainShare = 32;

// Note [Grain]
// Chunks and mappings are whole pages, but an allocation begins and ends at whole grains. Where
// pages have no power of two, the addresses at which one begins have no alignment, so there the
// grain is the page.
Bytes grain_of(Bytes page_size) {
  return is_power_of_two(page_size) && page_size > kLeastGrain
             ? std::max(kLeastGrain, page_size / kGrainShare)
             : page_size;
}

}  // namespace

// Note [Size of a chunk]
// Large chunks cost few calls, and trap more: what is idle of a chunk that an allocation partly
// uses. What is trapped matters where memory is scarce, and chunks that were made before stay. So
// their size is bounded by what the pool may have from the beginning. docs/design/chunk-policy.md
// has the figures.
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
