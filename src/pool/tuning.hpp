// pool: what VPMM_PREFER and VPMM_CHUNK_MAX stand for: how much memory may be spent to spare driver calls.
#pragma once

#include <cstdint>

#include "base/bytes.hpp"
#include "base/host_memory.hpp"
#include "pool/config.hpp"

namespace vpmm::pool {

// Note [One knob]
// Memory buys time in two ways: an allocation may get a little more than it asked for, so that it fits where idle
// chunks lie (slack), and a pool may grow although idle chunks could be moved (early growth). Both are bounded by a
// share of the most that ever lived at once. Slack is bounded a second time, by a share of all that the GPU has for
// this pool (GpuRoom), which is the pressure: far from the GPU's end the first bound rules, near it the second, so no
// program fails because of slack while its memory and a hundredth of the GPU fit.
// docs/design/chunk-policy.md has the figures.
struct Tuning {
  // Whether memory that other streams still use is taken, behind a wait of the GPU, while new memory is to be had.
  enum class Waiting {
    never,         // it grows
    before_moves,  // before anything is moved or created
    after_moves,   // when complete memory is not enough, and before anything is created
  };
  // In which order idle chunks of one size are moved.
  enum class Order {
    smallest_stretch_first,  // large free stretches stay whole for requests of their size
    oldest_first,            // as the specification has it
  };

  Bytes page_size = 2 * kMiB;
  Bytes chunk_max = 2 * kMiB;  // a power of two of pages
  Bytes slack_permille = 0;    // of the most that lived at once; halved: more driver calls; doubled: more memory held
  Bytes growth_permille = 0;   // likewise, for early growth
  // How often the time to create new memory counts where idle chunks could be moved instead: memory stays. At 1 a pool
  // grows early only where moving takes twice as long; at 0 where it is cheaper at once.
  std::uint64_t growth_weight = 1;
  Waiting waiting = Waiting::never;
  Order order = Order::smallest_stretch_first;
  bool delays_growth = false;  // GrowDelay
  const char* name = "";

  // Sizes of new chunks for `bytes`, whole pages, largest first. Note [Chunk classes]
  Vector<Bytes> chunk_sizes(Bytes bytes) const;
};

Tuning tuning_of(const Config& config, Bytes page_size);

}  // namespace vpmm::pool
