// SPDX-License-Identifier: Apache-2.0
// bench/peers: the pool, through its C ABI: `vpmm` with stream handles, `vpmm-bound` with bound
// streams, `vpmm-page` with one chunk per page, `vpmm-latency` and `vpmm-footprint` with these
// preferences, `vpmm-recorded` and `vpmm-recorded-stacks` while a recording goes nowhere, without
// stacks and with native ones.
#include "vpmm/vpmm.h"

#include "peers/peer.hpp"

namespace vpmm::bench {
namespace {

class HandleLane final : public Lane {
 public:
  HandleLane(vpmm_pool* pool, CudaStream stream) : pool_(pool), stream_(stream) {}

  void* allocate(std::size_t bytes) override {
    void* ptr = nullptr;
    return vpmm_allocate(pool_, bytes, stream_, &ptr) == VPMM_OK ? ptr : nullptr;
  }
  void deallocate(void* ptr, std::size_t /*bytes*/) override {
    if (vpmm_deallocate(pool_, ptr, stream_) != VPMM_OK) broken(vpmm_last_error());
  }

 private:
  vpmm_pool* const pool_;
  const CudaStream stream_;
};

void check(vpmm_status status) {
  if (status != VPMM_OK) throw Unavailable(vpmm_last_error());
}

class BoundLane final : public Lane {
 public:
  BoundLane(vpmm_pool* pool, CudaStream stream) { check(vpmm_stream_bind(pool, stream, &bound_)); }
  ~BoundLane() override { vpmm_stream_unbind(bound_); }
  BoundLane(const BoundLane&) = delete;
  BoundLane& operator=(const BoundLane&) = delete;

  void* allocate(std::size_t bytes) override {
    void* ptr = nullptr;
    return vpmm_bound_allocate(bound_, bytes, 0, &ptr) == VPMM_OK ? ptr : nullptr;
  }
  void deallocate(void* ptr, std::size_t /*bytes*/) override {
    if (vpmm_bound_deallocate(bound_, ptr) != VPMM_OK) broken(vpmm_last_error());
  }

 private:
  vpmm_bound_stream* bound_ = nullptr;
};

class Pool final : public Peer {
 public:
  explicit Pool(const std::string& name) : name_(name) { open(); }
  ~Pool() override { vpmm_pool_destroy(pool_); }

  std::string version() const override { return std::string("vpmm ") + vpmm_version(); }
  std::unique_ptr<Lane> open_lane(CudaStream stream) override {
    if (name_ == "vpmm-bound") return std::make_unique<BoundLane>(pool_, stream);
    return std::make_unique<HandleLane>(pool_, stream);
  }
  std::optional<Footprint> footprint() override {
    vpmm_statistics figures{};
    figures.size = sizeof(figures);
    check(vpmm_get_statistics(pool_, &figures));
    return Footprint{figures.mapped_bytes, figures.peak_mapped_bytes};
  }
  void start_over() override {
    check(vpmm_pool_destroy(pool_));
    open();
  }

 private:
  void open() {
    vpmm_config config{};
    config.size = sizeof(config);
    check(vpmm_config_from_environment(&config));
    config.driver =
        "cuda";  // the real one or the one that costs nothing: whichever the process has open
    if (name_ == "vpmm-page") config.chunk_max = 0;
    if (name_ == "vpmm-latency") config.prefer = "latency";
    if (name_ == "vpmm-footprint") config.prefer = "footprint";
    check(vpmm_pool_create(0, &config, &pool_));
    if (name_ == "vpmm-recorded") record("none");
    if (name_ == "vpmm-recorded-stacks") record("native");
  }

  void record(const char* stacks) {
    vpmm_record_options options{};
    options.size = sizeof(options);
    options.path = "/dev/null";
    options.stacks = stacks;
    check(vpmm_record_start_with(pool_, &options));
  }

  const std::string name_;
  vpmm_pool* pool_ = nullptr;
};

}  // namespace
}  // namespace vpmm::bench

VPMM_BENCH_PEER vpmm::bench::Peer* vpmm_bench_open_peer(const vpmm::bench::PeerOptions& options) {
  return new vpmm::bench::Pool(options.name);
}
