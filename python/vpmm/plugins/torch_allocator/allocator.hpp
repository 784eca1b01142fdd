// torch_allocator: PyTorch's CUDA allocator, every method of it.
#pragma once

#include <c10/core/impl/GPUTrace.h>
#include <c10/core/impl/PyInterpreter.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAException.h>
#include <cuda_runtime_api.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "call.hpp"
#include "device.hpp"
#include "history.hpp"
#include "vpmm/vpmm.h"

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
  void resetAccumulatedStats(DeviceIndex device) override;
  void resetPeakStats(DeviceIndex device) override;

  // --- CUDAAllocator ---
  void* raw_alloc(std::size_t bytes) override;
  void* raw_alloc_with_stream(std::size_t bytes, cudaStream_t stream) override;
  void raw_delete(void* ptr) override;
  void init(int device_count) override;
  double getMemoryFraction(DeviceIndex device) override;
  void setMemoryFraction(double fraction, DeviceIndex device) override;
  std::vector<cca::StreamSegmentSize> getExpandableSegmentSizes(DeviceIndex device) override;
  void enable(bool value) override { is_enabled_ = value; }
  bool isEnabled() const override { return is_enabled_; }
  void cacheInfo(DeviceIndex device, std::size_t* largest) override;
  void* getBaseAllocation(void* ptr, std::size_t* bytes) override;
  using cca::CUDAAllocator::recordStream;
  void recordStream(const c10::DataPtr& ptr, c10::cuda::CUDAStream stream) override;
  cca::SnapshotInfo snapshot(MempoolId_t id, bool include_traces) override;
  void beginAllocateToPool(DeviceIndex device, MempoolId_t id,
                           std::function<bool(cudaStream_t)> filter) override;
  void endAllocateToPool(DeviceIndex device, MempoolId_t id) override;
  void releasePool(DeviceIndex device, MempoolId_t id) override;
  int getPoolUseCount(DeviceIndex device, MempoolId_t id) override;
  void createOrIncrefPool(DeviceIndex device, MempoolId_t id,
                          std::shared_ptr<cca::CUDAAllocator> source) override;
  void setUseOnOOM(DeviceIndex device, MempoolId_t id, bool value) override;
  void setNoSplit(DeviceIndex device, MempoolId_t id) override;
  bool checkPoolLiveAllocations(DeviceIndex device, MempoolId_t id,
                                const std::unordered_set<void*>& expected) override;
  cca::ShareableHandle shareIpcHandle(void* ptr) override;
  std::shared_ptr<void> getIpcDevPtr(std::string handle) override;
  bool isHistoryEnabled() override { return history_.is_recording(); }
  void recordHistory(bool is_on, cca::CreateContextFn gather, std::size_t most, RecordContext level,
                     bool clears, const std::vector<std::string>& skipped) override;
  void recordAnnotation(const std::vector<std::pair<std::string, std::string>>& pairs) override;
  void pushCompileContext(std::string& name) override { compile_contexts.push_back(name); }
  void popCompileContext() override {
    if (!compile_contexts.empty()) compile_contexts.pop_back();
  }
  void setUserMetadata(const std::string& text) override { user_metadata = text; }
  std::string getUserMetadata() override { return user_metadata; }
  void attachOutOfMemoryObserver(cca::OutOfMemoryObserver observer) override;
  void attachAllocatorTraceTracker(cca::AllocatorTraceTracker tracker) override {
    history_.track(std::move(tracker));
  }
  void enablePeerAccess(DeviceIndex device, DeviceIndex owner) override;
  cudaError_t memcpyAsync(void* to, int to_device, const void* from, int from_device,
                          std::size_t bytes, cudaStream_t stream, bool p2p_enabled) override;
  std::shared_ptr<cca::AllocatorState> getCheckpointState(DeviceIndex device,
                                                          MempoolId_t id) override;
  cca::CheckpointDelta setCheckpointPoolState(DeviceIndex device,
                                              std::shared_ptr<cca::AllocatorState> state) override;
  std::string name() override { return "vpmm"; }
  std::pair<std::size_t, std::size_t> getMemoryInfo(DeviceIndex device) override;
#if VPMM_TORCH_MINOR >= 12
  std::shared_ptr<GatheredContext> getContextForPointer(const void* ptr) override;
  // For requests that an option of the native allocator refuses before it asks the driver. This
  // allocator has no such option.
  void attachOomRejectionObserver(cca::OomRejectionObserver) override {}
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
  struct Checkpoint;
  struct Freed {
    Device* device = nullptr;
    Block block;
    std::optional<vpmm_ipc_handle> exported;
  };

  Device& device_of(DeviceIndex index);
  vpmm_pool* pool_of(Device& device);
  static vpmm_status begin_counting(Device& device, vpmm_pool* pool);
  void* allocate_on(DeviceIndex index, std::size_t bytes, Stream stream);
  vpmm_status request(Device& device, Arena* arena, std::size_t bytes, cudaStream_t stream,
                      void** ptr);
  vpmm_status request_in(Device& device, Arena& arena, std::size_t bytes, cudaStream_t stream,
                         void** ptr);
  vpmm_status make_arena(Device& device, Arena& arena, std::shared_ptr<vpmm_arena>& handle);
  vpmm_status add_memory(Device& device, Arena& arena, vpmm_arena* handle, std::size_t bytes);
  void* allocate_short(Device& device, ArenaPtr& arena, std::size_t bytes, cudaStream_t stream,
                       vpmm_status status, std::string& reason);
  [[noreturn]] void fail(Device& device, std::size_t bytes, const Context& stack,
                         const std::string& reason);
  void note_allocated(Device& device, void* ptr, std::size_t bytes, Stream stream, ArenaPtr arena,
                      const Call& call);
  void tell_of_allocation(Device& device, void* ptr, const Block& block, const Call& call);
  void tell_of_free(const Device& device, const void* ptr, const Block& block, const Call& call);
  Freed forget(void* ptr);
  Freed forget_on(Device& device, void* ptr);
  void give_back(Device& device, void* ptr, const Block& block);
  static std::shared_ptr<vpmm_arena> handle_of(Device& device, const Arena& arena);
  bool end_all_over(Device& device);
  bool give_back_idle_pieces(Device& device, Arena& arena);
  bool end_if_over(Device& device, const ArenaPtr& arena);
  void give_back_piece(Device& device, Arena& arena, void* piece);
  static std::shared_ptr<Checkpoint> checkpoint_of(Device& device, const ArenaPtr& arena);
  void place(Device& device, const ArenaPtr& arena, vpmm_arena* handle, const Checkpoint& wanted);
  ArenaPtr route(Device& device, cudaStream_t stream);
  static bool end_if_capture_is_over(Route& route);
  static void keep_for_graph(Arena& graph, const ArenaPtr& arena);
  static void release_if_unused(Device& device, const ArenaPtr& arena,
                                std::vector<std::shared_ptr<vpmm_arena>>& over);
  static ArenaPtr find_arena(Device& device, MempoolId_t id);
  static ArenaPtr arena_of(Device& device, MempoolId_t id, const char* what);
  void report(Device& device, void* ptr, std::int64_t bytes);
  struct Mapped;
  struct Live;
  static std::vector<Live> live_of_others(const Device& device, const Layout& layout);
  static std::size_t bytes_of_others(const Device& device, const Layout& layout);
  static void tile(SegmentInfo& segment, std::vector<Live>::const_iterator& next,
                   std::vector<Live>::const_iterator last);
  static std::vector<Live> live_of_all(const Device& device, const Layout& layout);
  std::vector<SegmentInfo> segments_of(Device& device, const std::optional<MempoolId_t>& only);
  std::optional<vpmm_statistics> note_mapped(Device& device);
  void note_drivers_pool(Device& device);
  vpmm_statistics count(Device& device);
  static void note_foreign(Device& device, const void* memory, std::size_t bytes);
  static void on_event(void* device, const vpmm_event* event);
  static void tell_of_arena(Device& device, const vpmm_event& event);
  static void note_growth(Device& device, const vpmm_event& event, Context stack);
  void tell_of_segment(Device& device, Action action, const vpmm_event& event, MempoolId_t id);

  static constexpr std::size_t kMostDevices = 128;
  std::array<Device, kMostDevices> devices_;
  std::atomic<int> device_count_{0};
  std::atomic<bool> is_enabled_{true};
  std::mutex opening_;
  History history_;
  std::mutex observers_mutex_;
  std::vector<cca::OutOfMemoryObserver> observers_;
  std::mutex opened_mutex_;
  std::unordered_map<std::string, std::weak_ptr<void>>
      opened_;  // memory of other processes, by handle and device
};

// Never destroyed: tensors outlive every static object.
inline Allocator& instance() {
  static auto* const allocator = new Allocator;
  return *allocator;
}

// Calls Python's observers of GPU memory, such as the sanitizer; they do not throw.
inline void trace_allocation(void* ptr) {
  if (const c10::impl::PyInterpreter* const trace = c10::impl::GPUTrace::get_trace();
      C10_UNLIKELY(trace != nullptr))
    (*trace)->trace_gpu_memory_allocation(c10::kCUDA, reinterpret_cast<std::uintptr_t>(ptr));
}
inline void trace_deallocation(void* ptr) {
  if (const c10::impl::PyInterpreter* const trace = c10::impl::GPUTrace::get_trace();
      C10_UNLIKELY(trace != nullptr))
    (*trace)->trace_gpu_memory_deallocation(c10::kCUDA, reinterpret_cast<std::uintptr_t>(ptr));
}

// Destructors call this, so an exception of a tracker becomes a warning.
inline void delete_memory(void* ptr) { Call::warn_of(instance().free(ptr)); }
inline void delete_uncached(void* ptr) {
  trace_deallocation(ptr);
  C10_CUDA_CHECK_WARN(cudaFree(ptr));
}

}  // namespace vpmm::torch_plugin
