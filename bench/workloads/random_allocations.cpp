// SPDX-License-Identifier: Apache-2.0
// bench/workloads: RMM's random_allocations, from its published parameters: one thread, one stream,
// sizes uniform in [1, max]; 2 N steps, each an allocation with a chance of 73 in 100 while fewer
// than N are live and they stay below 16000 MiB, or below a share of the GPU's memory, else the
// deallocation of a random one. A refused allocation counts as a deallocation step.
#include <algorithm>
#include <cmath>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "harness/clock.hpp"
#include "harness/parts.hpp"
#include "harness/samples.hpp"

namespace vpmm::bench {
namespace {

constexpr std::size_t kMiB = std::size_t{1} << 20;
constexpr std::size_t kMostLive = 16'000 * kMiB;
constexpr int kAllocatePercent = 73;

struct Limits {
  std::size_t count;  // N
  std::size_t size;   // of one
  std::size_t live;   // of all together
};

class Loop {
 public:
  Loop(Lane& lane, const Limits& limits)
      : lane_(lane), count_(limits.count), most_live_(limits.live), size_(1, limits.size) {}

  // Steps done, out of 2 N, before `seconds` were over.
  std::size_t run(double seconds) {
    const auto start = Clock::now();
    for (std::size_t step = 0; step < 2 * count_; ++step) {
      if (step % 256 == 0 && seconds_since(start) > seconds) return step;
      const std::size_t bytes = size_(engine_);
      const bool wants_more = chance_(engine_) < kAllocatePercent;
      const bool may_have_more = blocks_.size() < count_ && live_ + bytes < most_live_;
      if (!(wants_more && may_have_more && allocate(bytes))) deallocate_any();
    }
    return 2 * count_;
  }
  std::size_t peak_live_bytes() const { return peak_live_; }
  // False: not all of it in `seconds`.
  bool finish(double seconds) {
    const auto start = Clock::now();
    while (!blocks_.empty() && seconds_since(start) < seconds) deallocate_any();
    return blocks_.empty();
  }

 private:
  struct Block {
    void* ptr;
    std::size_t bytes;
  };

  bool allocate(std::size_t bytes) {
    void* const ptr = lane_.allocate(bytes);
    if (ptr == nullptr) return false;
    blocks_.push_back({ptr, bytes});
    live_ += bytes;
    peak_live_ = std::max(peak_live_, live_);
    return true;
  }
  void deallocate_any() {
    if (blocks_.empty()) return;
    std::uniform_int_distribution<std::size_t> index(0, blocks_.size() - 1);
    Block& victim = blocks_[index(engine_)];
    lane_.deallocate(victim.ptr, victim.bytes);
    live_ -= victim.bytes;
    victim = blocks_.back();
    blocks_.pop_back();
  }

  Lane& lane_;
  const std::size_t count_;
  const std::size_t most_live_;
  std::default_random_engine engine_;
  std::uniform_int_distribution<std::size_t> size_;
  std::uniform_int_distribution<int> chance_{0, 99};
  std::vector<Block> blocks_;
  std::size_t live_ = 0;
  std::size_t peak_live_ = 0;
};

// False: the process is of no more use.
bool measure(const Run& run, const Samples& samples, const std::string& name,
             const RandomAllocationsSettings& settings, const Limits& limits) {
  const Stream stream;
  const std::unique_ptr<Lane> lane = run.peer.open_lane(stream.handle());
  Loop loop(*lane, limits);
  const auto start = Clock::now();
  const std::size_t done = loop.run(settings.loop_seconds);
  const double ms = seconds_since(start) * 1e3;
  if (done == 2 * limits.count) {
    samples.add({name, "time", "ms", ms});
    if (const std::optional<Footprint> footprint = run.peer.footprint()) {
      const auto held = static_cast<double>(footprint->peak_bytes);
      samples.add(
          {name, "peak held / peak live", "x", held / static_cast<double>(loop.peak_live_bytes())});
    }
  } else {
    samples.left_out(name, std::to_string(done) + " of " + std::to_string(2 * limits.count) +
                               " steps took " + std::to_string(static_cast<int>(ms)) + " ms");
  }
  return loop.finish(settings.loop_seconds);
}

std::size_t share_of_gpu(double share) {
  std::size_t free = 0, total = 0;
  must(cuda().cuMemGetInfo(&free, &total), "cuMemGetInfo");
  return static_cast<std::size_t>(share * static_cast<double>(total));
}

std::string case_name(std::size_t count, std::size_t mib, double share) {
  const std::string name = std::to_string(count) + " x <= " + std::to_string(mib) + " MiB";
  if (share == 0) return name;
  return name + " in " + std::to_string(std::lround(share * 100)) + " % of the GPU";
}

}  // namespace

void run_random_allocations(const Run& run, const RandomAllocationsSettings& settings) {
  const auto start = Clock::now();
  const Samples samples("random_allocations", run.peer_name);
  const std::size_t most_live = settings.share == 0 ? kMostLive : share_of_gpu(settings.share);
  for (const std::size_t count : settings.counts) {
    for (const std::size_t mib : settings.sizes_mib) {
      const std::string name = case_name(count, mib, settings.share);
      if (seconds_since(start) > run.seconds) {
        samples.left_out(name, "out of time");
      } else if (!measure(run, samples, name, settings, {count, mib * kMiB, most_live})) {
        samples.left_out("all after " + name, "giving memory back took too long");
        std::_Exit(0);
      } else {
        must(cuda().cuCtxSynchronize(), "cuCtxSynchronize");
        run.peer.start_over();
      }
    }
  }
}

}  // namespace vpmm::bench
