// SPDX-License-Identifier: Apache-2.0
// bench/peers: no allocator at all: what the benchmark itself takes, which every other figure
// includes.
#include "peers/peer.hpp"

namespace vpmm::bench {
namespace {

class NoLane final : public Lane {
 public:
  void* allocate(std::size_t /*bytes*/) override { return &here_; }
  void deallocate(void* /*ptr*/, std::size_t /*bytes*/) override {}

 private:
  char here_ = 0;
};

class NoPeer final : public Peer {
 public:
  std::string version() const override { return "-"; }
  std::unique_ptr<Lane> open_lane(CudaStream /*stream*/) override {
    return std::make_unique<NoLane>();
  }
  void start_over() override {}
};

}  // namespace
}  // namespace vpmm::bench

VPMM_BENCH_PEER vpmm::bench::Peer* vpmm_bench_open_peer(const vpmm::bench::PeerOptions&) {
  return new vpmm::bench::NoPeer();
}
