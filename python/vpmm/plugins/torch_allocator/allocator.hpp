// SPDX-License-Identifier: Apache-2.0
// torch_allocator: PyTorch's CUDA allocator, every method of it.
#pragma once

#include <c10/cuda/CUDACachingAllocator.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "device.hpp"

namespace vpmm::torch_plugin {

class Allocator final : public cca::CUDAAllocator {
 public:
  // --- c10::Allocator ---
  c10::DataPtr allocate(std::size_t bytes) override;
  c10::DeleterFnPtr raw_deleter() const override;
  void copy_data(void* to, const void* from, std::size_t bytes) const override;

  // --- c10::DeviceAllocator ---
  bool initialized() override { return device_count_.load() > 0; }
  void emptyCache(MempoolId_t id) override;
  DeviceStats getDeviceStats(DeviceIndex device) override;
  void resetAccumulatedStats(DeviceIndex device) override {
    device_of(device).blocks.reset_totals();
  }
  void resetPeakStats(DeviceIndex device) override;

  // --- CUDAAllocator ---
  void* raw_alloc(std::size_t bytes) override;
  void* raw_alloc_with_stream(std::size_t bytes, cudaStream_t stream) override;
  void raw_delete(void* ptr) override;
  void init(int device_count) override;
  double getMemoryFraction(DeviceIndex device) override {
    return device_of(device).pool.fraction();
  }
  void setMemoryFraction(double fraction, DeviceIndex device) override {
    device_of(device).pool.set_fraction(fraction);
  }
  std::vector<cca::StreamSegmentSize> getExpandableSegmentSizes(DeviceIndex device) override;
  void enable(bool value) override { is_enabled_ = value; }
  bool isEnabled() const override { return is_enabled_; }
  void cacheInfo(DeviceIndex device, std::size_t* largest) override;
  void* getBaseAllocation(void* ptr, std::size_t* bytes) override;
  using cca::CUDAAllocator::recordStream;
  void recordStream(const c10::DataPtr& ptr, c10::cuda::CUDAStream stream) override;
  cca::SnapshotInfo snapshot(MempoolId_t id, bool include_traces) override;
  void beginAllocateToPool(DeviceIndex device, MempoolId_t id,
                           std::function<bool(cudaStream_t)> filter) override {
    device_of(device).private_pools.begin(id, std::move(filter));
  }
  void endAllocateToPool(DeviceIndex device, MempoolId_t id) override {
    device_of(device).private_pools.end(id);
  }
  void releasePool(DeviceIndex device, MempoolId_t id) override {
    device_of(device).private_pools.release(id);
  }
  int getPoolUseCount(DeviceIndex device, MempoolId_t id) override {
    return device_of(device).private_pools.use_count(id);
  }
  void createOrIncrefPool(DeviceIndex device, MempoolId_t id,
                          std::shared_ptr<cca::CUDAAllocator> source) override {
    device_of(device).private_pools.create_or_incref(id, std::move(source));
  }
  void setUseOnOOM(DeviceIndex device, MempoolId_t id, bool value) override {
    device_of(device).private_pools.get(id, "use_on_oom")->serves_others_when_short = value;
  }
  void setNoSplit(DeviceIndex device, MempoolId_t id) override {
    device_of(device).private_pools.get(id, "no_split")->splits = false;
  }
  bool checkPoolLiveAllocations(DeviceIndex device, MempoolId_t id,
                                const std::unordered_set<void*>& expected) override;
  cca::ShareableHandle shareIpcHandle(void* ptr) override;
  std::shared_ptr<void> getIpcDevPtr(std::string handle) override;
  bool isHistoryEnabled() override { return history_.is_recording(); }
  void recordHistory(bool is_on, cca::CreateContextFn gather, std::size_t most, RecordContext level,
                     bool clears, const std::vector<std::string>& skipped) override {
    history_.start(is_on, gather, most, level, clears, skipped);
  }
  void recordAnnotation(const std::vector<std::pair<std::string, std::string>>& pairs) override;
  void pushCompileContext(std::string& name) override { compile_contexts.push_back(name); }
  void popCompileContext() override {
    if (!compile_contexts.empty()) compile_contexts.pop_back();
  }
  void setUserMetadata(const std::string& text) override { user_metadata = text; }
  std::string getUserMetadata() override { return user_metadata; }
  void attachOutOfMemoryObserver(cca::OutOfMemoryObserver observer) override {
    history_.observe_shortages(std::move(observer));
  }
  void attachAllocatorTraceTracker(cca::AllocatorTraceTracker tracker) override {
    history_.track(std::move(tracker));
  }
  void enablePeerAccess(DeviceIndex device, DeviceIndex owner) override;
  cudaError_t memcpyAsync(void* to, int to_device, const void* from, int from_device,
                          std::size_t bytes, cudaStream_t stream, bool p2p_enabled) override;
  std::shared_ptr<cca::AllocatorState> getCheckpointState(DeviceIndex device,
                                                          MempoolId_t id) override {
    return take_checkpoint(device_of(device), id);
  }
  cca::CheckpointDelta setCheckpointPoolState(DeviceIndex device,
                                              std::shared_ptr<cca::AllocatorState> state) override {
    return restore(device_of(device), state.get(), history_);
  }
  std::string name() override { return "vpmm"; }
  std::pair<std::size_t, std::size_t> getMemoryInfo(DeviceIndex device) override;
#if VPMM_TORCH_MINOR >= 12
  std::shared_ptr<GatheredContext> getContextForPointer(const void* ptr) override;
  void attachOomRejectionObserver(cca::OomRejectionObserver observer) override {
    history_.observe_rejections(std::move(observer));
  }
#endif
#if VPMM_TORCH_MINOR >= 13
  c10::DataPtr allocateWithAddress(std::size_t bytes, void* at) override;
#endif
#if VPMM_TORCH_MINOR >= 14
  bool supportsUserMetadata() override { return true; }
  void annotateMemory(const void* ptr, const std::string& text) override;
#endif

  // Returns the exception of a tracker; the memory is freed anyway.
  std::exception_ptr free(void* ptr);

 private:
  std::span<const std::unique_ptr<Device>> devices() const;
  Device& device_of(DeviceIndex index) const;

  static constexpr std::size_t kMostDevices = 128;
  std::atomic<int> device_count_{0};  // those that `devices_` has
  std::array<std::unique_ptr<Device>, kMostDevices> devices_;
  std::atomic<bool> is_enabled_{true};
  Mutex initializing_;
  History history_;
};

// Stays for good: tensors outlive every static object.
Allocator& instance();

}  // namespace vpmm::torch_plugin
