// SPDX-License-Identifier: Apache-2.0
// bench/workloads: RMM's multi_stream_allocations, from its published parameters: for each of 4
// kernels, in turn on 1, 2 or 4 streams: allocate 8 bytes, run one thread for a million clocks,
// give the bytes back right after the launch; then wait for the device. An allocator that makes
// streams wait for each other takes longer than the kernels alone.
#include <memory>
#include <string>
#include <vector>

#include "harness/clock.hpp"
#include "harness/parts.hpp"
#include "harness/samples.hpp"

namespace vpmm::bench {
namespace {

constexpr int kKernels = 4;
constexpr std::uint64_t kClocks = 1'000'000;
constexpr std::size_t kBytes = 8;

constexpr const char* kSpin = R"(
.version 7.0
.target sm_75
.address_size 64
.visible .entry spin(.param .u64 clocks, .param .u64 result) {
  .reg .u64 %clocks, %result, %start, %now;
  .reg .pred %more;
  ld.param.u64 %clocks, [clocks];
  ld.param.u64 %result, [result];
  mov.u64 %start, %clock64;
again:
  mov.u64 %now, %clock64;
  sub.u64 %now, %now, %start;
  setp.lt.u64 %more, %now, %clocks;
  @%more bra again;
  cvta.to.global.u64 %result, %result;
  st.global.u64 [%result], %now;
  ret;
}
)";

class Spinner {
 public:
  Spinner() {
    void* module = nullptr;
    if (cuda().cuModuleLoadData(&module, kSpin) != 0) return;
    must(cuda().cuModuleGetFunction(&function_, module, "spin"), "cuModuleGetFunction");
  }
  bool works() const { return function_ != nullptr; }
  void launch(CudaStream stream, void* result) const {
    std::uint64_t clocks = kClocks;
    void* arguments[] = {&clocks, &result};
    must(cuda().cuLaunchKernel(function_, 1, 1, 1, 1, 1, 1, 0, stream, arguments, nullptr),
         "cuLaunchKernel");
  }

 private:
  void* function_ = nullptr;
};

class Streams {
 public:
  Streams(Peer& peer, const Spinner& spinner, std::size_t count) : spinner_(spinner) {
    for (std::size_t i = 0; i < count; ++i) {
      streams_.push_back(std::make_unique<Stream>());
      lanes_.push_back(peer.open_lane(streams_.back()->handle()));
    }
  }

  void prewarm() {
    for (const auto& lane : lanes_) lane->deallocate(lane->allocate(kBytes), kBytes);
    must(cuda().cuCtxSynchronize(), "cuCtxSynchronize");
  }
  void allocating() {
    for (std::size_t i = 0; i < kKernels; ++i) {
      Lane& lane = *lanes_[i % lanes_.size()];
      void* const ptr = lane.allocate(kBytes);
      if (ptr == nullptr) broken("8 bytes were refused");
      spinner_.launch(streams_[i % lanes_.size()]->handle(), ptr);
      lane.deallocate(ptr, kBytes);
    }
    must(cuda().cuCtxSynchronize(), "cuCtxSynchronize");
  }
  void kernels_alone(void* result) {
    for (std::size_t i = 0; i < kKernels; ++i)
      spinner_.launch(streams_[i % lanes_.size()]->handle(), result);
    must(cuda().cuCtxSynchronize(), "cuCtxSynchronize");
  }

 private:
  const Spinner& spinner_;
  std::vector<std::unique_ptr<Stream>> streams_;
  std::vector<std::unique_ptr<Lane>> lanes_;
};

template <typename Iteration>
double us_per_iteration(int iterations, Iteration&& iteration) {
  const auto start = Clock::now();
  for (int i = 0; i < iterations; ++i) iteration();
  return static_cast<double>(ns_since(start)) * 1e-3 / iterations;
}

}  // namespace

void run_multi_stream(const Run& run, const MultiStreamSettings& settings) {
  const Samples samples("multi_stream", run.peer_name);
  const Spinner spinner;
  if (!spinner.works()) return samples.left_out("all", "nothing here runs kernels");
  DevicePtr place = 0;
  must(cuda().cuMemAlloc(&place, kBytes), "cuMemAlloc");
  void* const result = reinterpret_cast<void*>(static_cast<std::uintptr_t>(place));
  for (const std::size_t count : settings.streams) {
    for (const bool is_prewarmed : {false, true}) {
      const std::string name =
          std::to_string(count) + (is_prewarmed ? " streams, prewarmed" : " streams");
      {
        Streams streams(run.peer, spinner, count);
        if (is_prewarmed) streams.prewarm();
        for (int repeat = 0; repeat < settings.repeats; ++repeat) {
          const double us = us_per_iteration(settings.iterations, [&] { streams.allocating(); });
          samples.add({name, "time", "us", us, repeat});
          const double alone =
              us_per_iteration(settings.iterations, [&] { streams.kernels_alone(result); });
          samples.add({name, "over the kernels alone", "x", us / alone, repeat});
        }
      }
      run.peer.start_over();
    }
  }
  must(cuda().cuMemFree(place), "cuMemFree");
}

}  // namespace vpmm::bench
