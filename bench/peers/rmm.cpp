// SPDX-License-Identifier: Apache-2.0
// bench/peers: RMM: `rmm-pool`, `rmm-arena` and `rmm-async` over cudaMalloc, as its own benchmarks
// set them up, and `rmm-vpmm`, the pool behind RMM's interface.
#include "vpmm/rmm_mr.hpp"

#include <cuda_runtime_api.h>

#include <rmm/cuda_stream_view.hpp>
#include <rmm/mr/arena_memory_resource.hpp>
#include <rmm/mr/cuda_async_memory_resource.hpp>
#include <rmm/mr/cuda_memory_resource.hpp>
#include <rmm/mr/pool_memory_resource.hpp>
#include <rmm/mr/statistics_resource_adaptor.hpp>

#include <limits>
#include <optional>

#include "peers/peer.hpp"

namespace vpmm::bench {
namespace {

using Resource = cuda::mr::any_resource<cuda::mr::device_accessible>;
constexpr std::size_t kAlignment = 256;

class RmmLane final : public Lane {
 public:
  RmmLane(Resource& resource, CudaStream stream)
      : resource_(resource), stream_(static_cast<cudaStream_t>(stream)) {}

  void* allocate(std::size_t bytes) override {
    try {
      return resource_.allocate(stream_, bytes, kAlignment);
    } catch (const std::bad_alloc&) {
      return nullptr;
    }
  }
  void deallocate(void* ptr, std::size_t bytes) override {
    resource_.deallocate(stream_, ptr, bytes, kAlignment);
  }

 private:
  Resource& resource_;
  const cuda::stream_ref stream_;
};

// What pool and arena take from cudaMalloc is counted below them.
class Rmm final : public Peer {
 public:
  explicit Rmm(const PeerOptions& options) : options_(options) { open(); }

  std::string version() const override { return "RMM " VPMM_BENCH_RMM_VERSION; }
  std::unique_ptr<Lane> open_lane(CudaStream stream) override {
    return std::make_unique<RmmLane>(*resource_, stream);
  }
  std::optional<Footprint> footprint() override {
    if (pool_) {
      const vpmm_statistics figures = pool_->statistics();
      return Footprint{figures.mapped_bytes, figures.peak_mapped_bytes};
    }
    if (!counted_) return std::nullopt;
    const auto bytes = counted_->get_bytes_counter();
    return Footprint{static_cast<std::uint64_t>(bytes.value),
                     static_cast<std::uint64_t>(bytes.peak)};
  }
  void start_over() override { open(); }

 private:
  void open() {
    resource_.reset();
    counted_.reset();
    pool_.reset();
    if (options_.name == "rmm-vpmm") {
      vpmm_config settings = settings_from_environment();
      settings.driver =
          "cuda";  // the real one or the one that costs nothing: whichever the process has open
      pool_.emplace(0, settings);
      resource_.emplace(rmm_memory_resource(*pool_));
      return;
    }
    if (options_.name == "rmm-async") {
      resource_.emplace(rmm::mr::cuda_async_memory_resource(
          std::nullopt, std::numeric_limits<std::size_t>::max()));
      return;
    }
    counted_.emplace(Resource(rmm::mr::cuda_memory_resource()));
    if (options_.name == "rmm-pool") {
      resource_.emplace(rmm::mr::pool_memory_resource(*counted_, options_.pool_bytes.value_or(0)));
    } else if (options_.name == "rmm-arena") {
      resource_.emplace(rmm::mr::arena_memory_resource(*counted_, arena_bytes()));
    } else {
      throw Unavailable("RMM has no " + options_.name);
    }
  }
  // None: RMM takes half of what is free.
  std::optional<std::size_t> arena_bytes() const { return options_.pool_bytes; }

  const PeerOptions options_;
  std::optional<rmm::mr::statistics_resource_adaptor> counted_;
  std::optional<memory_pool> pool_;
  std::optional<Resource> resource_;
};

}  // namespace
}  // namespace vpmm::bench

VPMM_BENCH_PEER vpmm::bench::Peer* vpmm_bench_open_peer(const vpmm::bench::PeerOptions& options) {
  return new vpmm::bench::Rmm(options);
}
