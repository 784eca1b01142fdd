// SPDX-License-Identifier: Apache-2.0
// bench/micro: what it costs to get memory that is not there yet, by size.
//
// first:  the first allocation of an allocator that holds nothing.
// grow:   the same when 2 MiB are live already.
// gather: 16 blocks of an eighth of the size are live and every second one is given back: half of
// the memory is free,
//         none of it in one piece. The request is as large as all that is free. `grown` is what the
//         allocator took from the driver for it, over the request: 0 when it made do with what it
//         had.
#include <memory>
#include <string>
#include <vector>

#include "harness/clock.hpp"
#include "harness/parts.hpp"
#include "harness/samples.hpp"

namespace vpmm::bench {
namespace {

constexpr std::size_t kMiB = std::size_t{1} << 20;
constexpr std::size_t kGiB = kMiB << 10;
constexpr std::size_t kSmallest = 2 * kMiB;

struct Size {
  const char* name;
  std::size_t bytes;
};
constexpr Size kSizes[] = {{"2 MiB", 2 * kMiB},     {"16 MiB", 16 * kMiB}, {"64 MiB", 64 * kMiB},
                           {"256 MiB", 256 * kMiB}, {"1 GiB", kGiB},       {"4 GiB", 4 * kGiB},
                           {"8 GiB", 8 * kGiB}};
constexpr std::size_t kSmallestGathered = 16 * kMiB;  // in blocks of 2 MiB

struct Timed {
  void* ptr = nullptr;
  double us = 0;
};
Timed timed_allocate(Lane& lane, std::size_t bytes) {
  const auto start = Clock::now();
  void* const ptr = lane.allocate(bytes);
  return {ptr, static_cast<double>(ns_since(start)) * 1e-3};
}

// One measurement, on a stream of its own and with an allocator that holds nothing.
class Trial {
 public:
  Trial(const Run& run, const Samples& samples, int repeat)
      : peer_(run.peer),
        samples_(samples),
        repeat_(repeat),
        lane_(peer_.open_lane(stream_.handle())) {}
  ~Trial() {
    must(cuda().cuCtxSynchronize(), "cuCtxSynchronize");
    lane_.reset();
    peer_.start_over();
  }

  void first(const Size& size) { time(std::string("first ") + size.name, size.bytes); }
  void grow(const Size& size) {
    void* const small = lane_->allocate(kSmallest);
    time(std::string("grow ") + size.name, size.bytes);
    give_back(small, kSmallest);
  }
  void gather(const Size& size) {
    constexpr std::size_t kBlocks = 16;
    const std::size_t bytes = size.bytes / (kBlocks / 2);
    std::vector<void*> blocks;
    for (std::size_t i = 0; i < kBlocks; ++i) blocks.push_back(lane_->allocate(bytes));
    for (std::size_t i = 0; i < kBlocks; i += 2) give_back(blocks[i], bytes);
    must(cuda().cuCtxSynchronize(), "cuCtxSynchronize");
    const std::string name = std::string("gather ") + size.name;
    const auto before = peer_.footprint();
    time(name, size.bytes);
    const auto after = peer_.footprint();
    if (before && after) {
      const double grown =
          static_cast<double>(after->now_bytes) - static_cast<double>(before->now_bytes);
      samples_.add({name, "grown", "x", grown / static_cast<double>(size.bytes), repeat_});
    }
    for (std::size_t i = 1; i < kBlocks; i += 2) give_back(blocks[i], bytes);
  }

 private:
  void time(const std::string& name, std::size_t bytes) {
    const Timed timed = timed_allocate(*lane_, bytes);
    if (timed.ptr == nullptr) return samples_.left_out(name, "refused");
    samples_.add({name, "time", "us", timed.us, repeat_});
    give_back(timed.ptr, bytes);
  }
  void give_back(void* ptr, std::size_t bytes) {
    if (ptr != nullptr) lane_->deallocate(ptr, bytes);
  }

  Peer& peer_;
  const Samples& samples_;
  const int repeat_;
  const Stream stream_;
  std::unique_ptr<Lane> lane_;
};

// What a process does once is not part of any figure.
void warm_up(Peer& peer) {
  {
    const Stream stream;
    const std::unique_ptr<Lane> lane = peer.open_lane(stream.handle());
    if (void* const ptr = lane->allocate(kSmallest)) lane->deallocate(ptr, kSmallest);
    must(cuda().cuCtxSynchronize(), "cuCtxSynchronize");
  }
  peer.start_over();
}

}  // namespace

void run_growth(const Run& run, const GrowthSettings& settings) {
  const auto start = Clock::now();
  const Samples samples("growth", run.peer_name);
  warm_up(run.peer);
  for (int repeat = 0; repeat < settings.repeats; ++repeat) {
    for (const Size& size : kSizes) {
      if (size.bytes > settings.largest) continue;
      if (seconds_since(start) > run.seconds)
        return samples.left_out("repeat " + std::to_string(repeat), "out of time");
      Trial(run, samples, repeat).first(size);
      Trial(run, samples, repeat).grow(size);
      if (size.bytes >= kSmallestGathered) Trial(run, samples, repeat).gather(size);
    }
  }
}

}  // namespace vpmm::bench
