// SPDX-License-Identifier: Apache-2.0
// bench/peers: the driver's own allocators: `cuda-async`, a pool of its that keeps all it has, and
// `cuda`, cuMemAlloc.
#include <limits>

#include "peers/peer.hpp"

namespace vpmm::bench {
namespace {

void* to_pointer(DevicePtr ptr) {
  return reinterpret_cast<void*>(static_cast<std::uintptr_t>(ptr));
}
DevicePtr to_device_ptr(void* ptr) { return reinterpret_cast<std::uintptr_t>(ptr); }

class PoolLane final : public Lane {
 public:
  PoolLane(const Cuda& cuda, void* pool, CudaStream stream)
      : cuda_(cuda), pool_(pool), stream_(stream) {}

  void* allocate(std::size_t bytes) override {
    DevicePtr ptr = 0;
    return cuda_.cuMemAllocFromPoolAsync(&ptr, bytes, pool_, stream_) == 0 ? to_pointer(ptr)
                                                                           : nullptr;
  }
  void deallocate(void* ptr, std::size_t /*bytes*/) override {
    if (cuda_.cuMemFreeAsync(to_device_ptr(ptr), stream_) != 0) broken("cuMemFreeAsync");
  }

 private:
  const Cuda& cuda_;
  void* const pool_;
  const CudaStream stream_;
};

class DriverPool final : public Peer {
 public:
  explicit DriverPool(const Cuda& cuda) : cuda_(cuda) { open(); }
  ~DriverPool() override { cuda_.cuMemPoolDestroy(pool_); }

  std::string version() const override { return "the driver's"; }
  std::unique_ptr<Lane> open_lane(CudaStream stream) override {
    return std::make_unique<PoolLane>(cuda_, pool_, stream);
  }
  std::optional<Footprint> footprint() override {
    return Footprint{attribute(PoolAttribute::reserved_now),
                     attribute(PoolAttribute::reserved_high)};
  }
  void start_over() override {
    cuda_.cuMemPoolDestroy(pool_);
    open();
  }

 private:
  void open() {
    const CudaPoolProperties properties;
    if (cuda_.cuMemPoolCreate(&pool_, &properties) != 0)
      throw Unavailable("cuMemPoolCreate failed");
    std::uint64_t keep_all = std::numeric_limits<std::uint64_t>::max();
    cuda_.cuMemPoolSetAttribute(pool_, PoolAttribute::release_threshold, &keep_all);
  }
  std::uint64_t attribute(PoolAttribute which) const {
    std::uint64_t value = 0;
    cuda_.cuMemPoolGetAttribute(pool_, which, &value);
    return value;
  }

  const Cuda& cuda_;
  void* pool_ = nullptr;
};

class PlainLane final : public Lane {
 public:
  PlainLane(const Cuda& cuda, CudaStream stream) : cuda_(cuda), stream_(stream) {}

  void* allocate(std::size_t bytes) override {
    DevicePtr ptr = 0;
    return cuda_.cuMemAlloc(&ptr, bytes) == 0 ? to_pointer(ptr) : nullptr;
  }
  void deallocate(void* ptr, std::size_t /*bytes*/) override {
    cuda_.cuStreamSynchronize(stream_);
    if (cuda_.cuMemFree(to_device_ptr(ptr)) != 0) broken("cuMemFree");
  }

 private:
  const Cuda& cuda_;
  const CudaStream stream_;
};

}  // namespace
}  // namespace vpmm::bench

VPMM_BENCH_PEER vpmm::bench::Peer* vpmm_bench_open_peer(const vpmm::bench::PeerOptions& options) {
  using namespace vpmm::bench;
  if (options.name == "cuda") return new LanesAlone<PlainLane>(*options.cuda, "the driver's");
  return new DriverPool(*options.cuda);
}
