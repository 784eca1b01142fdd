// SPDX-License-Identifier: Apache-2.0
// bench/peers: mimalloc on the host: the floor for an allocator whose memory nobody else shares.
#include <mimalloc.h>

#include "peers/peer.hpp"

namespace vpmm::bench {
namespace {

class HostLane final : public Lane {
 public:
  void* allocate(std::size_t bytes) override { return mi_malloc(bytes); }
  void deallocate(void* ptr, std::size_t /*bytes*/) override { mi_free(ptr); }
};

class Mimalloc final : public Peer {
 public:
  std::string version() const override {
    const int number = mi_version();
    return "mimalloc " + std::to_string(number / 100) + "." + std::to_string(number % 100 / 10) +
           "." + std::to_string(number % 10);
  }
  std::unique_ptr<Lane> open_lane(CudaStream /*stream*/) override {
    return std::make_unique<HostLane>();
  }
  void start_over() override { mi_collect(true); }
};

}  // namespace
}  // namespace vpmm::bench

VPMM_BENCH_PEER vpmm::bench::Peer* vpmm_bench_open_peer(const vpmm::bench::PeerOptions&) {
  return new vpmm::bench::Mimalloc();
}
