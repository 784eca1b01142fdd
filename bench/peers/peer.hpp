// SPDX-License-Identifier: Apache-2.0
// bench/peers: an allocator to be measured, behind the smallest interface that fits all of them.
//
// Each library is known to one file of this folder, which becomes a shared object of its own: what
// is not installed here is missing there, and everything else still builds and runs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>

#include "harness/cuda.hpp"

namespace vpmm::bench {

// A peer that cannot be measured here, and why.
class Unavailable : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// For a peer that refuses to take its own memory back: no figure after that means anything.
[[noreturn]] inline void broken(const char* what) {
  std::fprintf(stderr, "broken: %s\n", what);
  std::_Exit(1);
}

// One stream's way to the allocator, for one thread at a time. Its thread has entered the CUDA
// context.
class Lane {
 public:
  virtual ~Lane() = default;
  // For work queued on the lane's stream after the call. Null: refused.
  virtual void* allocate(std::size_t bytes) = 0;
  // Work queued on the lane's stream before the call is the last to use `ptr`, which this lane
  // allocated.
  virtual void deallocate(void* ptr, std::size_t bytes) = 0;
};

struct Footprint {  // device memory that the allocator holds, used or not
  std::uint64_t now_bytes = 0;
  std::uint64_t peak_bytes = 0;  // since it was opened or started over
};

class Peer {
 public:
  virtual ~Peer() = default;
  virtual std::string version() const = 0;
  virtual std::unique_ptr<Lane> open_lane(CudaStream stream) = 0;
  virtual std::optional<Footprint> footprint() { return std::nullopt; }  // none: it cannot say
  // Gives all memory back and forgets its peaks. Requires: no lane is open, nothing is allocated,
  // the GPU is idle.
  virtual void start_over() = 0;
};

// For what keeps nothing of its own: all is in the lanes, which are made of the driver and a
// stream.
template <typename L>
class LanesAlone final : public Peer {
 public:
  LanesAlone(const Cuda& cuda, std::string version) : cuda_(cuda), version_(std::move(version)) {}

  std::string version() const override { return version_; }
  std::unique_ptr<Lane> open_lane(CudaStream stream) override {
    return std::make_unique<L>(cuda_, stream);
  }
  void start_over() override {}

 private:
  const Cuda& cuda_;
  const std::string version_;
};

struct PeerOptions {
  std::string name;
  const Cuda* cuda = nullptr;  // outlives the peer; its context is current
  std::optional<std::uint64_t>
      pool_bytes;  // to begin with, where the peer wants to know; none: as little as it can
};

// What each shared object exports as `vpmm_bench_open_peer`. The caller owns the peer. Throws
// Unavailable.
using OpenPeer = Peer* (*)(const PeerOptions& options);
#define VPMM_BENCH_PEER extern "C" __attribute__((visibility("default")))

}  // namespace vpmm::bench
