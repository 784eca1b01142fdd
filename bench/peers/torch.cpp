// SPDX-License-Identifier: Apache-2.0
// bench/peers: PyTorch's caching allocator, called from C++: `torch-native`, and
// `torch-expandable`, which needs PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True in the
// environment, for PyTorch reads it while it is loaded.
#include <c10/cuda/CUDACachingAllocator.h>

#include <cstdlib>
#include <string_view>

#include "peers/peer.hpp"

namespace vpmm::bench {
namespace {

namespace caching = c10::cuda::CUDACachingAllocator;

class TorchLane final : public Lane {
 public:
  explicit TorchLane(CudaStream stream) : stream_(static_cast<cudaStream_t>(stream)) {}

  void* allocate(std::size_t bytes) override {
    try {
      return caching::raw_alloc_with_stream(bytes, stream_);
    } catch (const c10::Error&) {
      return nullptr;
    }
  }
  void deallocate(void* ptr, std::size_t /*bytes*/) override { caching::raw_delete(ptr); }

 private:
  const cudaStream_t stream_;
};

class Torch final : public Peer {
 public:
  Torch() { caching::init(1); }

  std::string version() const override { return "PyTorch " VPMM_BENCH_TORCH_VERSION; }
  std::unique_ptr<Lane> open_lane(CudaStream stream) override {
    return std::make_unique<TorchLane>(stream);
  }
  std::optional<Footprint> footprint() override {
    constexpr auto kAll = static_cast<std::size_t>(c10::CachingAllocator::StatType::AGGREGATE);
    const auto reserved = caching::getDeviceStats(0).reserved_bytes[kAll];
    return Footprint{static_cast<std::uint64_t>(reserved.current),
                     static_cast<std::uint64_t>(reserved.peak)};
  }
  void start_over() override {
    caching::emptyCache();
    caching::resetPeakStats(0);
  }
};

bool is_asked_to_expand() {
  const char* const asked = std::getenv("PYTORCH_CUDA_ALLOC_CONF");
  return asked != nullptr &&
         std::string_view(asked).find("expandable_segments:True") != std::string_view::npos;
}

}  // namespace
}  // namespace vpmm::bench

VPMM_BENCH_PEER vpmm::bench::Peer* vpmm_bench_open_peer(const vpmm::bench::PeerOptions& options) {
  if ((options.name == "torch-expandable") != vpmm::bench::is_asked_to_expand()) {
    throw vpmm::bench::Unavailable("PYTORCH_CUDA_ALLOC_CONF says otherwise");
  }
  return new vpmm::bench::Torch();
}
