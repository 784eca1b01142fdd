// SPDX-License-Identifier: Apache-2.0
// bench/workloads: a trace through an allocator as its own users call it: what it holds and how
// long it takes.
//
// One thread, in the order of the trace, as fast as it goes, each stream of the trace on a CUDA
// stream. Every allocation is written to on its stream, so that the GPU runs behind as it does in a
// program. `vpmm replay` does more: it checks contents and counts driver calls; this one asks
// libraries that it does not know.
#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "harness/clock.hpp"
#include "harness/latencies.hpp"
#include "harness/parts.hpp"
#include "harness/trace.hpp"

namespace vpmm::bench {
namespace {

constexpr std::size_t kWritten = std::size_t{1} << 20;  // at most, of each allocation

class Replay {
 public:
  Replay(Peer& peer, const Trace& trace) : peer_(peer), trace_(trace), blocks_(trace.allocations) {
    for (std::size_t i = 0; i < trace.streams; ++i) {
      streams_.push_back(std::make_unique<Stream>());
      lanes_.push_back(peer.open_lane(streams_.back()->handle()));
    }
  }

  void run() {
    for (std::size_t i = 0; i < trace_.events.size(); ++i) {
      const Event& event = trace_.events[i];
      in_second_half_ = i >= trace_.events.size() / 2;
      if (event.operation == 'a') allocate(event);
      if (event.operation == 'f') deallocate(blocks_[event.id]);
      if (event.operation == 's') must(cuda().cuCtxSynchronize(), "cuCtxSynchronize");
    }
    footprint_ = peer_.footprint();
    for (Block& block : blocks_) deallocate(block);
    must(cuda().cuCtxSynchronize(), "cuCtxSynchronize");
  }
  void report(const Samples& samples, int repeat) {
    const auto live = static_cast<double>(peak_live_);
    samples.add({trace_.name, "peak live", "bytes", live, repeat});
    if (footprint_) {
      const auto held = static_cast<double>(footprint_->peak_bytes);
      samples.add({trace_.name, "peak held", "bytes", held, repeat});
      samples.add({trace_.name, "peak held / peak live", "x", held / live, repeat});
    }
    samples.add({trace_.name, "refused", "allocations", static_cast<double>(refused_), repeat});
    latencies_.report(samples, trace_.name, 1, repeat);
    // What comes again and again costs less the second time, or should.
    samples.add({trace_.name, "allocate sum first half", "ms",
                 static_cast<double>(first_half_ns_) * 1e-6, repeat});
    samples.add({trace_.name, "allocate sum second half", "ms",
                 static_cast<double>(second_half_ns_) * 1e-6, repeat});
  }

 private:
  struct Block {
    void* ptr = nullptr;
    std::size_t bytes = 0;
    std::size_t stream = 0;
  };

  void allocate(const Event& event) {
    const auto start = Clock::now();
    void* const ptr = lanes_[event.stream]->allocate(event.bytes);
    const std::uint64_t ns = ns_since(start);
    latencies_.add(ns);
    (in_second_half_ ? second_half_ns_ : first_half_ns_) += ns;
    if (ptr == nullptr) {
      ++refused_;
      return;
    }
    blocks_[event.id] = {ptr, event.bytes, event.stream};
    live_ += event.bytes;
    peak_live_ = std::max(peak_live_, live_);
    const auto address = static_cast<DevicePtr>(reinterpret_cast<std::uintptr_t>(ptr));
    must(cuda().cuMemsetD8Async(address, 0, std::min(event.bytes, kWritten),
                                streams_[event.stream]->handle()),
         "cuMemsetD8Async");
  }
  // On the stream that allocated it, whichever the trace frees it on: not every library has a way
  // to say that.
  void deallocate(Block& block) {
    if (block.ptr == nullptr) return;
    lanes_[block.stream]->deallocate(block.ptr, block.bytes);
    live_ -= block.bytes;
    block.ptr = nullptr;
  }

  Peer& peer_;
  const Trace& trace_;
  std::vector<std::unique_ptr<Stream>> streams_;
  std::vector<std::unique_ptr<Lane>> lanes_;  // by stream
  std::vector<Block> blocks_;                 // by id
  std::size_t live_ = 0;
  std::size_t peak_live_ = 0;
  std::uint64_t refused_ = 0;
  std::optional<Footprint> footprint_;
  Latencies latencies_;
  bool in_second_half_ = false;       // of the events
  std::uint64_t first_half_ns_ = 0;   // in allocate calls
  std::uint64_t second_half_ns_ = 0;  // the same
};

}  // namespace

void run_replay(const Run& run, const ReplaySettings& settings) {
  const auto start = Clock::now();
  const Samples samples(settings.part, run.peer_name);
  for (const std::string& path : settings.traces) {
    const Trace trace = read_trace(path);
    if (seconds_since(start) > run.seconds) {
      samples.left_out(trace.name, "out of time");
      continue;
    }
    {
      Replay replay(run.peer, trace);
      replay.run();
      replay.report(samples, 0);
    }
    run.peer.start_over();
  }
}

}  // namespace vpmm::bench
