// SPDX-License-Identifier: Apache-2.0
// bench/peers: what the pool must ask the driver about a stream that is named by its handle, and
// nothing else: the floor of its calls with raw handles. docs/walk-of-an-allocation.md says why
// both are made.
#include "peers/peer.hpp"

namespace vpmm::bench {
namespace {

class CheckingLane final : public Lane {
 public:
  CheckingLane(const Cuda& cuda, CudaStream stream) : cuda_(cuda), stream_(stream) {}

  void* allocate(std::size_t /*bytes*/) override {
    int is_capturing = 0;
    unsigned long long id = 0;
    const bool is_known = cuda_.cuStreamIsCapturing(stream_, &is_capturing) == 0 &&
                          is_capturing == 0 && cuda_.cuStreamGetId(stream_, &id) == 0;
    return is_known ? &here_ : nullptr;
  }
  void deallocate(void* /*ptr*/, std::size_t /*bytes*/) override {}

 private:
  const Cuda& cuda_;
  const CudaStream stream_;
  char here_ = 0;
};

}  // namespace
}  // namespace vpmm::bench

VPMM_BENCH_PEER vpmm::bench::Peer* vpmm_bench_open_peer(const vpmm::bench::PeerOptions& options) {
  return new vpmm::bench::LanesAlone<vpmm::bench::CheckingLane>(*options.cuda, "-");
}
