// plugins: PyTorch's CUDA allocator over the pools of libvpmm. Built for one minor version of PyTorch; see torch.py.
//
// Every method of c10::cuda::CUDACachingAllocator::CUDAAllocator. The pools decide where memory lies and when it is
// used again; this file keeps what PyTorch asks about an allocation (its stream, the size asked for, the stack that
// made it), counts as PyTorch counts, and writes the events that its memory history consists of.
//
// Locks: Device::mutex (blocks, counts, arenas), then History::mutex_. Events take both under the pool's own lock, so
// no function of the pool is called under either.
#include <c10/core/impl/GPUTrace.h>
#include <c10/core/impl/PyInterpreter.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <c10/util/ApproximateClock.h>
#include <c10/util/flat_hash_map.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "vpmm/vpmm.h"

#if VPMM_TORCH_MINOR < 11
#error "PyTorch 2.11 or newer is needed"
#endif

namespace {

namespace cca = c10::cuda::CUDACachingAllocator;
using c10::DeviceIndex;
using c10::GatheredContext;
using c10::MempoolId_t;
using c10::CachingDeviceAllocator::BlockInfo;
using c10::CachingDeviceAllocator::DeviceStats;
using c10::CachingDeviceAllocator::RecordContext;
using c10::CachingDeviceAllocator::SegmentInfo;
using c10::CachingDeviceAllocator::StatArray;
using c10::CachingDeviceAllocator::StatType;
using c10::CachingDeviceAllocator::TraceEntry;
using Action = TraceEntry::Action;
using Context = std::shared_ptr<GatheredContext>;

constexpr std::size_t kGrain = 512;  // what PyTorch's own allocator rounds to, and aligns to
constexpr std::size_t kPage = std::size_t{2} << 20;
constexpr std::size_t kLargestSmall = kPage - (std::size_t{64} << 10);  // what the pool cuts from shared pages
constexpr std::size_t kExabyte = std::size_t{1} << 60;
constexpr std::size_t kMostAddresses = std::size_t{1} << 47;  // a larger request is none of the pool's
constexpr MempoolId_t kCommonPool{0, 0};

constexpr std::size_t round_up(std::size_t bytes, std::size_t unit) { return (bytes + unit - 1) / unit * unit; }

// Up to 4 KiB the pool has blocks at every multiple of 256 bytes, above only at multiples of 512.
constexpr std::size_t bytes_to_ask_for(std::size_t bytes) { return bytes < 4096 ? round_up(bytes, kGrain) : bytes; }

void check(vpmm_status status, const char* what) {
  TORCH_CHECK(status == VPMM_OK, "VPMM: ", what, ": ", vpmm_last_error());
}

// --- history --------------------------------------------------------------------------------------------------------

thread_local std::vector<std::string> compile_contexts;

// The events of the last while, and who is told of each: the profiler's viewers, NCCL. One for all devices.
class History {
 public:
  // Whether anybody wants events.
  bool is_listening() const { return is_listening_.load(std::memory_order_relaxed); }
  bool is_recording() const { return is_recording_.load(std::memory_order_relaxed); }
  // The caller's stack, where stacks of this level are kept. Takes the GIL: no lock may be held.
  Context stack(RecordContext level) const {
    if (level_.load(std::memory_order_relaxed) < level) return nullptr;
    const cca::CreateContextFn gather = gather_.load(std::memory_order_relaxed);
    return gather == nullptr ? nullptr : gather();
  }

  void start(bool is_on, cca::CreateContextFn gather, std::size_t most, RecordContext level, bool clears,
             const std::vector<std::string>& skipped) {
    const std::lock_guard<std::mutex> lock(mutex_);
    TORCH_CHECK(level == RecordContext::NEVER || gather != nullptr, "stacks are asked for without a way to take them");
    std::vector<Action> actions;
    for (const std::string& name : skipped) actions.push_back(c10::CachingDeviceAllocator::parseTraceEntryAction(name));
    skipped_ = std::move(actions);
    is_recording_ = is_on;
    gather_ = is_on ? gather : nullptr;
    level_ = is_on ? level : RecordContext::NEVER;
    most_ = std::max<std::size_t>(most, 1);
    if (!is_on || clears) rings_.clear(), annotations_.clear();
    for (std::deque<TraceEntry>& ring : rings_)
      while (ring.size() > most_) ring.pop_front();
    is_listening_ = is_on || !trackers_.empty();
  }

  void track(cca::AllocatorTraceTracker tracker) {
    const std::lock_guard<std::mutex> lock(mutex_);
    trackers_.push_back(std::move(tracker));
    is_listening_ = true;
  }

  // To trackers alone: what lies in memory that other events tell of already.
  void tell(Action action, DeviceIndex device, const void* at, std::size_t bytes, MempoolId_t pool) {
    if (!is_listening()) return;
    const TraceEntry entry(action, device, reinterpret_cast<std::size_t>(at), bytes, nullptr, pool,
                           c10::getApproximateTime());
    const std::lock_guard<std::mutex> lock(mutex_);
    for (const cca::AllocatorTraceTracker& tracker : trackers_) tracker(entry);
  }

  void record(Action action, DeviceIndex device, const void* at, std::size_t bytes, cudaStream_t stream,
              MempoolId_t pool, Context context = nullptr, const std::optional<std::string>& text = std::nullopt) {
    if (!is_listening()) return;
    if (level_.load(std::memory_order_relaxed) < RecordContext::ALLOC) context = nullptr;
    TraceEntry entry(action, device, reinterpret_cast<std::size_t>(at), bytes, stream, pool, c10::getApproximateTime(),
                     std::move(context), compile_contexts.empty() ? std::string() : compile_contexts.back());
    const std::lock_guard<std::mutex> lock(mutex_);
    entry.user_metadata_ = text.value_or(metadata_);
    for (const cca::AllocatorTraceTracker& tracker : trackers_) tracker(entry);
    if (!is_recording() || std::find(skipped_.begin(), skipped_.end(), action) != skipped_.end()) return;
    const auto index = static_cast<std::size_t>(device);
    if (rings_.size() <= index) rings_.resize(index + 1);
    if (rings_[index].size() == most_) rings_[index].pop_front();
    rings_[index].push_back(std::move(entry));
  }

  void annotate(DeviceIndex device, const std::vector<std::pair<std::string, std::string>>& pairs) {
    if (!is_recording()) return;
    c10::CachingDeviceAllocator::AnnotationEntry entry(device, c10::getApproximateTime());
    for (const auto& [name, value] : pairs) entry.recordUserMetadata(name, value);
    const std::lock_guard<std::mutex> lock(mutex_);
    if (annotations_.size() == most_) annotations_.pop_front();
    annotations_.push_back(std::move(entry));
  }

  void set_metadata(const std::string& text) {
    const std::lock_guard<std::mutex> lock(mutex_);
    metadata_ = text;
  }
  std::string metadata() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return metadata_;
  }

  // Oldest first, times in microseconds since 1970.
  void copy_to(cca::SnapshotInfo& snapshot) {
    const auto to_unix_ns = clock_.makeConverter();
    const std::lock_guard<std::mutex> lock(mutex_);
    for (std::size_t device = 0; device < std::min(rings_.size(), snapshot.device_traces.size()); ++device) {
      for (const TraceEntry& entry : rings_[device]) {
        TraceEntry& copy = snapshot.device_traces[device].emplace_back(entry);
        copy.time_.t_ = to_unix_ns(copy.time_.approx_t_) / 1000;
      }
    }
    for (const auto& entry : annotations_) {
      auto& copy = snapshot.external_annotations.emplace_back(entry);
      copy.time_.t_ = to_unix_ns(copy.time_.approx_t_) / 1000;
    }
  }

 private:
  std::mutex mutex_;
  std::atomic<bool> is_listening_{false};
  std::atomic<bool> is_recording_{false};
  std::atomic<cca::CreateContextFn> gather_{nullptr};
  std::atomic<RecordContext> level_{RecordContext::NEVER};
  std::size_t most_ = 1;
  c10::ApproximateClockToUnixTimeConverter clock_;  // the longer ago it was made, the more exact
  std::vector<std::deque<TraceEntry>> rings_;       // by device
  std::deque<c10::CachingDeviceAllocator::AnnotationEntry> annotations_;
  std::vector<Action> skipped_;
  std::vector<cca::AllocatorTraceTracker> trackers_;
  std::string metadata_;
};

// --- what a device has ----------------------------------------------------------------------------------------------

// A private pool of PyTorch's: a graph's, or a MemPool. The pool's arena is made by its first allocation.
struct Arena {
  explicit Arena(MempoolId_t id_) : id(id_) {}
  const MempoolId_t id;
  vpmm_arena* handle = nullptr;
  std::uint64_t number = 0;  // the pool's name for it
  int users = 0;             // graphs and MemPools
  bool serves_others_when_short = false;
  bool splits = true;
  std::shared_ptr<cca::CUDAAllocator> source;  // where its memory comes from; null: from the device's pool
  std::unordered_set<void*> pieces;            // of that source
  std::unordered_set<void*> live;
};
using ArenaPtr = std::shared_ptr<Arena>;

// A live allocation.
struct Block {
  std::size_t requested = 0;
  std::size_t bytes = 0;  // as PyTorch counts it
  cudaStream_t stream = nullptr;
  bool is_small = false;
  bool is_exported = false;
  bool may_outlive_stream = false;  // it is not PyTorch's own, so it may be destroyed before the memory is freed
  ArenaPtr arena;                   // null: none
  Context stack;
};

struct Counts {
  StatArray allocations;
  StatArray bytes;
  StatArray requested;

  void add(const Block& block) {
    for (const StatType type : {StatType::AGGREGATE, type_of(block)}) {
      allocations.at(static_cast<std::size_t>(type)).increase(1);
      bytes.at(static_cast<std::size_t>(type)).increase(block.bytes);
      requested.at(static_cast<std::size_t>(type)).increase(block.requested);
    }
  }
  void remove(const Block& block) {
    for (const StatType type : {StatType::AGGREGATE, type_of(block)}) {
      allocations.at(static_cast<std::size_t>(type)).decrease(1);
      bytes.at(static_cast<std::size_t>(type)).decrease(block.bytes);
      requested.at(static_cast<std::size_t>(type)).decrease(block.requested);
    }
  }
  static StatType type_of(const Block& block) { return block.is_small ? StatType::SMALL_POOL : StatType::LARGE_POOL; }
};

// A stream, and whose it is. PyTorch never destroys its own, and the id of another's is the handle itself.
struct Stream {
  cudaStream_t handle = nullptr;
  bool is_foreign = false;
  static Stream current(DeviceIndex device) {
    const c10::cuda::CUDAStream stream = c10::cuda::getCurrentCUDAStream(device);
    const auto handle = reinterpret_cast<std::intptr_t>(stream.stream());
    return {stream.stream(), handle != 0 && stream.id() == static_cast<c10::StreamId>(handle)};
  }
};

// Allocations that are routed to an arena while `filter` says so of their stream.
struct Route {
  ArenaPtr arena;
  std::function<bool(cudaStream_t)> filter;
};

struct Export {
  vpmm_ipc_handle handle{};
  std::string bytes;
};

struct Device {
  DeviceIndex index = 0;
  std::atomic<vpmm_pool*> pool{nullptr};
  std::atomic<bool> has_routes{false};
  std::atomic<std::uint64_t> mapped{0};
  std::atomic<std::uint64_t> mapping_changes{0};  // to know whether what was counted still holds

  std::mutex mutex;
  ska::flat_hash_map<void*, Block> blocks;
  Counts counts;
  StatArray segments;
  StatArray reserved;
  std::uint64_t counted_at = ~std::uint64_t{0};
  std::int64_t retries = 0;
  std::int64_t failures = 0;
  double fraction = 1.0;
  std::vector<Route> routes;
  std::map<MempoolId_t, ArenaPtr> arenas;
  std::unordered_set<ArenaPtr> ending;  // nobody's any more, and memory of another allocator is still to go back
  std::unordered_map<std::uint64_t, MempoolId_t> arena_names;  // by the pool's number, of dead ones as well
  std::unordered_map<void*, Export> exports;
};

// --- sharing with other processes -----------------------------------------------------------------------------------

// What travels to the other process in place of CUDA's own handle.
struct Wire {
  static constexpr std::array<char, 8> kMagic{'V', 'P', 'M', 'M', 'I', 'P', 'C', '1'};
  std::array<char, 8> magic = kMagic;
  vpmm_ipc_handle handle{};
};

std::string to_bytes(const vpmm_ipc_handle& handle) {
  Wire wire;
  wire.handle = handle;
  std::string bytes(sizeof wire, '\0');
  std::memcpy(bytes.data(), &wire, sizeof wire);
  return bytes;
}

vpmm_ipc_handle from_bytes(const std::string& bytes) {
  Wire wire;
  const bool is_ours =
      bytes.size() == sizeof wire && std::equal(Wire::kMagic.begin(), Wire::kMagic.end(), bytes.begin());
  TORCH_CHECK(is_ours, "this CUDA tensor was shared by a process whose PyTorch does not allocate through VPMM; both ",
              "processes must (VPMM_TORCH=1)");
  std::memcpy(&wire, bytes.data(), sizeof wire);
  return wire.handle;
}

// --- the allocator --------------------------------------------------------------------------------------------------

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
  void beginAllocateToPool(DeviceIndex device, MempoolId_t id, std::function<bool(cudaStream_t)> filter) override;
  void endAllocateToPool(DeviceIndex device, MempoolId_t id) override;
  void releasePool(DeviceIndex device, MempoolId_t id) override;
  int getPoolUseCount(DeviceIndex device, MempoolId_t id) override;
  void createOrIncrefPool(DeviceIndex device, MempoolId_t id, std::shared_ptr<cca::CUDAAllocator> source) override;
  void setUseOnOOM(DeviceIndex device, MempoolId_t id, bool value) override;
  void setNoSplit(DeviceIndex device, MempoolId_t id) override;
  bool checkPoolLiveAllocations(DeviceIndex device, MempoolId_t id, const std::unordered_set<void*>& expected) override;
  cca::ShareableHandle shareIpcHandle(void* ptr) override;
  std::shared_ptr<void> getIpcDevPtr(std::string handle) override;
  bool isHistoryEnabled() override { return history_.is_recording(); }
  void recordHistory(bool is_on, cca::CreateContextFn gather, std::size_t most, RecordContext level, bool clears,
                     const std::vector<std::string>& skipped) override;
  void recordAnnotation(const std::vector<std::pair<std::string, std::string>>& pairs) override;
  void pushCompileContext(std::string& name) override { compile_contexts.push_back(name); }
  void popCompileContext() override { compile_contexts.pop_back(); }
  void setUserMetadata(const std::string& text) override { history_.set_metadata(text); }
  std::string getUserMetadata() override { return history_.metadata(); }
  void attachOutOfMemoryObserver(cca::OutOfMemoryObserver observer) override;
  void attachAllocatorTraceTracker(cca::AllocatorTraceTracker tracker) override { history_.track(std::move(tracker)); }
  void enablePeerAccess(DeviceIndex device, DeviceIndex owner) override;
  cudaError_t memcpyAsync(void* to, int to_device, const void* from, int from_device, std::size_t bytes,
                          cudaStream_t stream, bool p2p_enabled) override;
  std::shared_ptr<cca::AllocatorState> getCheckpointState(DeviceIndex device, MempoolId_t id) override;
  cca::CheckpointDelta setCheckpointPoolState(DeviceIndex device, std::shared_ptr<cca::AllocatorState> state) override;
  std::string name() override { return "vpmm"; }
#if VPMM_TORCH_MINOR >= 12
  std::shared_ptr<GatheredContext> getContextForPointer(const void* ptr) override;
  // Of requests that an option of the native allocator refuses before it asks the driver. There is no such option here.
  void attachOomRejectionObserver(cca::OomRejectionObserver) override {}
#endif
#if VPMM_TORCH_MINOR >= 13
  c10::DataPtr allocateWithAddress(std::size_t bytes, void* at) override;
#endif
#if VPMM_TORCH_MINOR >= 14
  bool supportsUserMetadata() override { return true; }
  void annotateMemory(const void* ptr, const std::string& text) override;
#endif

  void free(void* ptr);

 private:
  struct Checkpoint;
  struct Freed {
    Device* device = nullptr;
    Block block;
    std::optional<vpmm_ipc_handle> exported;
  };

  Device& device_of(DeviceIndex index);
  vpmm_pool* pool_of(Device& device);
  void* allocate_on(DeviceIndex index, std::size_t bytes, Stream stream);
  vpmm_status request(Device& device, Arena* arena, std::size_t bytes, cudaStream_t stream, void** ptr);
  vpmm_status request_in(Device& device, Arena& arena, std::size_t bytes, cudaStream_t stream, void** ptr);
  vpmm_status make_arena(Device& device, Arena& arena);
  vpmm_status add_memory(Device& device, Arena& arena, std::size_t bytes);
  void* allocate_short(Device& device, ArenaPtr& arena, std::size_t bytes, cudaStream_t stream, vpmm_status status);
  [[noreturn]] void fail(Device& device, std::size_t bytes, const Context& stack);
  void note_allocated(Device& device, void* ptr, std::size_t bytes, Stream stream, ArenaPtr arena, Context stack);
  Freed forget(void* ptr);
  Freed forget_on(Device& device, void* ptr);
  void give_back(Device& device, void* ptr, const Block& block);
  void trim_source(Device& device, Arena& arena);
  void end_if_over(Device& device, const ArenaPtr& arena);
  void give_to_source(Device& device, Arena& arena, void* memory);
  static ArenaPtr route(Device& device, cudaStream_t stream);
  static ArenaPtr find_arena(Device& device, MempoolId_t id);
  static ArenaPtr arena_of(Device& device, MempoolId_t id, const char* what);
  void report(Device& device, void* ptr, std::int64_t bytes);
  struct Mapped;
  std::vector<SegmentInfo> segments_of(Device& device, const std::optional<MempoolId_t>& only);
  void count_segments(Device& device);
  static void on_event(void* device, const vpmm_event* event);
  static void tell_of_arena(Device& device, const vpmm_event& event);

  static constexpr std::size_t kMostDevices = 128;
  std::array<Device, kMostDevices> devices_;
  std::atomic<int> device_count_{0};
  std::atomic<bool> is_enabled_{true};
  std::mutex opening_;
  History history_;
  std::mutex observers_mutex_;
  std::vector<cca::OutOfMemoryObserver> observers_;
  std::mutex opened_mutex_;
  std::unordered_map<std::string, std::weak_ptr<void>> opened_;  // memory of other processes, by handle and device
};

// Never destroyed: tensors outlive every static object.
Allocator& instance() {
  static auto* const allocator = new Allocator;
  return *allocator;
}

void delete_memory(void* ptr) { instance().free(ptr); }
void delete_uncached(void* ptr) { C10_CUDA_CHECK_WARN(cudaFree(ptr)); }

// --- devices and their pools ----------------------------------------------------------------------------------------

void Allocator::init(int device_count) {
  TORCH_CHECK(static_cast<std::size_t>(device_count) <= kMostDevices, "VPMM: more than ", kMostDevices, " devices");
  for (int i = 0; i < device_count; ++i) devices_.at(static_cast<std::size_t>(i)).index = static_cast<DeviceIndex>(i);
  int before = device_count_.load();
  while (before < device_count && !device_count_.compare_exchange_weak(before, device_count)) {
  }
}

Device& Allocator::device_of(DeviceIndex index) {
  TORCH_CHECK(0 <= index && index < device_count_.load(), "Allocator not initialized for device ", int{index},
              ": did you call init?");
  return devices_[static_cast<std::size_t>(index)];
}

// Opened by the first call that needs it, from the settings in the environment.
vpmm_pool* Allocator::pool_of(Device& device) {
  if (vpmm_pool* const open = device.pool.load(std::memory_order_acquire)) return open;
  const std::lock_guard<std::mutex> lock(opening_);
  if (vpmm_pool* const open = device.pool.load(std::memory_order_acquire)) return open;
  vpmm_pool* pool = nullptr;
  check(vpmm_default_pool(device.index, &pool), "the pool could not be opened");
  constexpr std::uint32_t kKinds = (1U << VPMM_EVENT_MAP) | (1U << VPMM_EVENT_UNMAP) | (1U << VPMM_EVENT_ARENA_GROW) |
                                   (1U << VPMM_EVENT_ARENA_SHRINK);
  std::uint64_t id = 0;
  check(vpmm_add_event_callback(pool, kKinds, &Allocator::on_event, &device, &id), "events");
  vpmm_statistics figures{};
  figures.size = sizeof figures;
  check(vpmm_get_statistics(pool, &figures), "statistics");
  device.mapped = figures.mapped_bytes;
  device.pool.store(pool, std::memory_order_release);
  return pool;
}

// Under the pool's lock.
void Allocator::on_event(void* argument, const vpmm_event* event) {
  Device& device = *static_cast<Device*>(argument);
  if (event->arena != 0) return tell_of_arena(device, *event);
  const bool is_map = event->kind == VPMM_EVENT_MAP;
  if (is_map)
    device.mapped.fetch_add(event->bytes, std::memory_order_relaxed);
  else
    device.mapped.fetch_sub(event->bytes, std::memory_order_relaxed);
  device.mapping_changes.fetch_add(1, std::memory_order_relaxed);
  instance().history_.record(is_map ? Action::SEGMENT_MAP : Action::SEGMENT_UNMAP, device.index, event->ptr,
                             event->bytes, nullptr, kCommonPool);
}

// Who registers memory wants to know of every stretch, with the pool that it belongs to.
void Allocator::tell_of_arena(Device& device, const vpmm_event& event) {
  device.mapping_changes.fetch_add(1, std::memory_order_relaxed);
  MempoolId_t id = kCommonPool;
  {
    const std::lock_guard<std::mutex> lock(device.mutex);
    const auto name = device.arena_names.find(event.arena);
    if (name != device.arena_names.end()) id = name->second;
  }
  const Action action = event.kind == VPMM_EVENT_ARENA_GROW ? Action::SEGMENT_ALLOC : Action::SEGMENT_FREE;
  instance().history_.tell(action, device.index, event.ptr, event.bytes, id);
}

double Allocator::getMemoryFraction(DeviceIndex index) {
  Device& device = device_of(index);
  const std::lock_guard<std::mutex> lock(device.mutex);
  return device.fraction;
}

// A fraction of all that the device has; 1: no limit.
void Allocator::setMemoryFraction(double fraction, DeviceIndex index) {
  TORCH_CHECK(0 <= fraction && fraction <= 1, "invalid fraction: ", fraction, ". Please set within [0, 1].");
  Device& device = device_of(index);
  const c10::cuda::CUDAGuard guard(index);
  std::size_t free = 0;
  std::size_t total = 0;
  C10_CUDA_CHECK(cudaMemGetInfo(&free, &total));
  const auto limit = static_cast<std::uint64_t>(fraction * static_cast<double>(total));
  check(vpmm_set_capacity(pool_of(device), fraction == 1 ? UINT64_MAX : std::max<std::uint64_t>(limit, 1)),
        "the memory fraction");
  const std::lock_guard<std::mutex> lock(device.mutex);
  device.fraction = fraction;
}

// --- allocating -----------------------------------------------------------------------------------------------------

c10::DataPtr Allocator::allocate(std::size_t bytes) {
  TORCH_CHECK_WITH(OutOfMemoryError, bytes < kExabyte, "CUDA out of memory. Tried to allocate more than 1EB memory.");
  DeviceIndex device = 0;
  C10_CUDA_CHECK(c10::cuda::GetDevice(&device));
  const c10::Device where(c10::DeviceType::CUDA, device);
  if (bytes == 0) return {nullptr, nullptr, raw_deleter(), where};
  void* ptr = nullptr;
  if (is_enabled_.load(std::memory_order_relaxed)) {
    ptr = allocate_on(device, bytes, Stream::current(device));
  } else {
    C10_CUDA_CHECK(cudaMalloc(&ptr, bytes));
  }
  if (const c10::impl::PyInterpreter* const trace = c10::impl::GPUTrace::get_trace(); C10_UNLIKELY(trace != nullptr))
    (*trace)->trace_gpu_memory_allocation(c10::kCUDA, reinterpret_cast<std::uintptr_t>(ptr));
  return {ptr, ptr, raw_deleter(), where};
}

c10::DeleterFnPtr Allocator::raw_deleter() const {
  return is_enabled_.load(std::memory_order_relaxed) ? &delete_memory : &delete_uncached;
}

void* Allocator::raw_alloc(std::size_t bytes) {
  if (bytes == 0) return nullptr;
  DeviceIndex device = 0;
  C10_CUDA_CHECK(c10::cuda::GetDevice(&device));
  return allocate_on(device, bytes, Stream::current(device));
}

void* Allocator::raw_alloc_with_stream(std::size_t bytes, cudaStream_t stream) {
  if (bytes == 0) return nullptr;
  DeviceIndex device = 0;
  C10_CUDA_CHECK(c10::cuda::GetDevice(&device));
  const Stream current = Stream::current(device);
  return allocate_on(device, bytes, stream == current.handle ? current : Stream{stream, true});
}

void* Allocator::allocate_on(DeviceIndex index, std::size_t bytes, Stream stream) {
  Device& device = device_of(index);
  Context stack = history_.is_listening() ? history_.stack(RecordContext::STATE) : nullptr;
  ArenaPtr arena;
  if (device.has_routes.load(std::memory_order_acquire)) arena = route(device, stream.handle);
  void* ptr = nullptr;
  const vpmm_status status = request(device, arena.get(), bytes, stream.handle, &ptr);
  if (C10_UNLIKELY(status != VPMM_OK)) {
    ptr = allocate_short(device, arena, bytes, stream.handle, status);
    if (ptr == nullptr) fail(device, bytes, stack);
  }
  note_allocated(device, ptr, bytes, stream, std::move(arena), std::move(stack));
  report(device, ptr, static_cast<std::int64_t>(round_up(bytes, kGrain)));
  return ptr;
}

vpmm_status Allocator::request(Device& device, Arena* arena, std::size_t bytes, cudaStream_t stream, void** ptr) {
  if (C10_LIKELY(arena == nullptr)) return vpmm_allocate(pool_of(device), bytes_to_ask_for(bytes), stream, ptr);
  return request_in(device, *arena, bytes, stream, ptr);
}

vpmm_status Allocator::request_in(Device& device, Arena& arena, std::size_t bytes, cudaStream_t stream, void** ptr) {
  if (const vpmm_status made = make_arena(device, arena); made != VPMM_OK) return made;
  const std::size_t rounded = round_up(bytes, kGrain);
  vpmm_status status = vpmm_arena_allocate(arena.handle, rounded, kGrain, stream, ptr);
  if (status != VPMM_ERROR_OUT_OF_MEMORY || arena.source == nullptr) return status;
  status = add_memory(device, arena, rounded);
  return status == VPMM_OK ? vpmm_arena_allocate(arena.handle, rounded, kGrain, stream, ptr) : status;
}

// By the first allocation, for by then all options are known.
vpmm_status Allocator::make_arena(Device& device, Arena& arena) {
  vpmm_pool* const pool = pool_of(device);
  const std::lock_guard<std::mutex> lock(opening_);
  if (arena.handle != nullptr) return VPMM_OK;
  std::uint32_t flags = arena.source != nullptr ? VPMM_ARENA_EXTERNAL : VPMM_ARENA_ONE_CHUNK;
  if (!arena.splits) flags |= VPMM_ARENA_NO_SPLIT;
  vpmm_arena* made = nullptr;
  std::uint64_t number = 0;
  vpmm_status status = vpmm_arena_create(pool, flags, 0, &made);
  if (status == VPMM_OK) status = vpmm_arena_id(made, &number);
  if (status != VPMM_OK) return status;
  const std::lock_guard<std::mutex> device_lock(device.mutex);
  device.arena_names[number] = arena.id;
  arena.number = number;
  arena.handle = made;
  return VPMM_OK;
}

// Of the allocator that the MemPool was made with, in the pieces in which PyTorch's own would ask for it.
vpmm_status Allocator::add_memory(Device& device, Arena& arena, std::size_t bytes) {
  const std::size_t piece = arena.splits && bytes <= kPage / 2 ? kPage : round_up(bytes, kPage);
  void* memory = nullptr;
  try {
    memory = arena.source->raw_alloc(piece);
  } catch (const c10::OutOfMemoryError&) {
    return VPMM_ERROR_OUT_OF_MEMORY;
  }
  if (memory == nullptr) {
    (void)cudaGetLastError();  // which cudaMalloc left for the next call to find
    return VPMM_ERROR_OUT_OF_MEMORY;
  }
  const std::lock_guard<std::mutex> lock(opening_);
  const vpmm_status status = vpmm_arena_add_memory(arena.handle, memory, piece);
  if (status == VPMM_OK) {
    arena.pieces.insert(memory);
    history_.record(Action::SEGMENT_ALLOC, device.index, memory, piece, nullptr, arena.id);
  } else {
    arena.source->raw_delete(memory);
  }
  return status;
}

// Everything that the pool could do by itself is done by now. What others hold back is asked for: tensors received from
// other processes, and MemPools that may serve everybody. Null: it does not help.
void* Allocator::allocate_short(Device& device, ArenaPtr& arena, std::size_t bytes, cudaStream_t stream,
                                vpmm_status status) {
  TORCH_CHECK(status == VPMM_ERROR_OUT_OF_MEMORY || bytes > kMostAddresses, "VPMM: ", vpmm_last_error());
  {
    const std::lock_guard<std::mutex> lock(device.mutex);
    ++device.retries;
  }
  bool has_freed = false;
  for (const std::string& key : c10::FreeCudaMemoryCallbacksRegistry()->Keys())
    has_freed |= c10::FreeCudaMemoryCallbacksRegistry()->Create(key)->Execute();
  void* ptr = nullptr;
  if (has_freed) {
    status = request(device, arena.get(), bytes, stream, &ptr);
    if (status == VPMM_OK) return ptr;
    TORCH_CHECK(status == VPMM_ERROR_OUT_OF_MEMORY || bytes > kMostAddresses, "VPMM: ", vpmm_last_error());
  }
  std::vector<ArenaPtr> others;
  {
    const std::lock_guard<std::mutex> lock(device.mutex);
    for (const auto& [id, other] : device.arenas)
      if (other->serves_others_when_short && other != arena) others.push_back(other);
  }
  for (const ArenaPtr& other : others) {
    if (request_in(device, *other, bytes, stream, &ptr) != VPMM_OK) continue;
    arena = other;
    return ptr;
  }
  return nullptr;
}

void Allocator::fail(Device& device, std::size_t bytes, const Context& stack) {
  using c10::CachingAllocator::format_size;
  const std::string reason = vpmm_last_error();
  const c10::cuda::CUDAGuard guard(device.index);
  std::size_t free = 0;
  std::size_t total = 0;
  C10_CUDA_CHECK(cudaMemGetInfo(&free, &total));
  std::size_t allocated = 0;
  std::size_t in_arenas = 0;
  double fraction = 1;
  {
    const std::lock_guard<std::mutex> lock(device.mutex);
    ++device.failures;
    allocated = static_cast<std::size_t>(device.counts.bytes[0].current);
    fraction = device.fraction;
    for (const auto& [id, arena] : device.arenas)
      for (void* const ptr : arena->live) in_arenas += device.blocks.at(ptr).bytes;
  }
  const std::size_t reserved = std::max<std::size_t>(device.mapped.load(), allocated);
  const auto allowed = static_cast<std::size_t>(fraction * static_cast<double>(total));
  history_.record(Action::OOM, device.index, reinterpret_cast<const void*>(free), bytes, nullptr, kCommonPool, stack);
  std::vector<cca::OutOfMemoryObserver> observers;
  {
    const std::lock_guard<std::mutex> lock(observers_mutex_);
    observers = observers_;
  }
  for (const cca::OutOfMemoryObserver& observer : observers)
    observer(device.index, bytes, fraction < 1 ? allowed : total, free);
  c10::reportOutOfMemoryToProfiler(static_cast<std::int64_t>(bytes), allocated, reserved,
                                   c10::Device(c10::DeviceType::CUDA, device.index));
  const std::string limit = fraction < 1 ? format_size(allowed) + " allowed; " : "";
  const std::string graphs =
      in_arenas != 0 ? ", with " + format_size(in_arenas) + " allocated in private pools (e.g., CUDA Graphs)" : "";
  TORCH_CHECK_WITH(OutOfMemoryError, false, "CUDA out of memory. Tried to allocate ", format_size(bytes), ". GPU ",
                   int{device.index}, " has a total capacity of ", format_size(total), " of which ", format_size(free),
                   " is free. ", limit, "Of the allocated memory ", format_size(allocated), " is allocated by PyTorch",
                   graphs, ", and ", format_size(reserved - allocated),
                   " is reserved by PyTorch but unallocated. VPMM: ", reason);
}

void Allocator::note_allocated(Device& device, void* ptr, std::size_t bytes, Stream stream, ArenaPtr arena,
                               Context stack) {
  const MempoolId_t id = arena == nullptr ? kCommonPool : arena->id;
  if (C10_UNLIKELY(history_.is_listening()))
    history_.record(Action::ALLOC, device.index, ptr, bytes, stream.handle, id, stack);
  Block block;
  block.requested = bytes;
  block.bytes = round_up(bytes, kGrain);
  block.stream = stream.handle;
  block.may_outlive_stream = stream.is_foreign && arena == nullptr;
  block.is_small = arena == nullptr && bytes <= kLargestSmall;
  block.stack = std::move(stack);
  const std::lock_guard<std::mutex> lock(device.mutex);
  device.counts.add(block);
  if (arena != nullptr) arena->live.insert(ptr);
  block.arena = std::move(arena);
  device.blocks.insert_or_assign(ptr, std::move(block));
}

void Allocator::report(Device& device, void* ptr, std::int64_t bytes) {
  if (C10_LIKELY(!c10::memoryProfilingEnabled())) return;
  std::size_t allocated = 0;
  {
    const std::lock_guard<std::mutex> lock(device.mutex);
    allocated = static_cast<std::size_t>(device.counts.bytes[0].current);
  }
  c10::reportMemoryUsageToProfiler(ptr, bytes, allocated, device.mapped.load(),
                                   c10::Device(c10::DeviceType::CUDA, device.index));
}

// --- freeing --------------------------------------------------------------------------------------------------------

void Allocator::raw_delete(void* ptr) { free(ptr); }

void Allocator::free(void* ptr) {
  if (ptr == nullptr) return;
  const Context stack = history_.is_listening() ? history_.stack(RecordContext::ALL) : nullptr;
  Freed freed = forget(ptr);
  TORCH_CHECK(freed.device != nullptr, "invalid device pointer: ", ptr);
  Device& device = *freed.device;
  const Block& block = freed.block;
  const MempoolId_t id = block.arena == nullptr ? kCommonPool : block.arena->id;
  if (C10_UNLIKELY(history_.is_listening())) {
    history_.record(Action::FREE_REQUESTED, device.index, ptr, block.requested, block.stream, id, stack);
    history_.record(Action::FREE_COMPLETED, device.index, ptr, block.requested, block.stream, id, stack);
  }
  if (const c10::impl::PyInterpreter* const trace = c10::impl::GPUTrace::get_trace(); C10_UNLIKELY(trace != nullptr))
    (*trace)->trace_gpu_memory_deallocation(c10::kCUDA, reinterpret_cast<std::uintptr_t>(ptr));
  if (freed.exported) vpmm_ipc_export_end(&*freed.exported);
  give_back(device, ptr, block);
  report(device, ptr, -static_cast<std::int64_t>(block.bytes));
}

// Looks on the device of the last free first: most programs use one.
Allocator::Freed Allocator::forget(void* ptr) {
  thread_local std::size_t last = 0;
  const auto count = static_cast<std::size_t>(device_count_.load());
  for (std::size_t i = 0; i < count; ++i) {
    const std::size_t index = (last + i) % count;
    Freed freed = forget_on(devices_[index], ptr);
    if (freed.device == nullptr) continue;
    last = index;
    return freed;
  }
  return {};
}

Allocator::Freed Allocator::forget_on(Device& device, void* ptr) {
  const std::lock_guard<std::mutex> lock(device.mutex);
  const auto found = device.blocks.find(ptr);
  if (found == device.blocks.end()) return {};
  Freed freed{&device, std::move(found->second), std::nullopt};
  device.blocks.erase(found);
  device.counts.remove(freed.block);
  if (freed.block.arena != nullptr) freed.block.arena->live.erase(ptr);
  if (C10_UNLIKELY(freed.block.is_exported)) {
    const auto exported = device.exports.find(ptr);
    freed.exported = exported->second.handle;
    device.exports.erase(exported);
  }
  return freed;
}

// Deleters must not throw: what the pool refuses is said once, and memory is lost at worst.
void Allocator::give_back(Device& device, void* ptr, const Block& block) {
  vpmm_pool* const pool = device.pool.load(std::memory_order_acquire);
  const vpmm_status status =
      block.may_outlive_stream ? vpmm_deallocate_any_stream(pool, ptr) : vpmm_deallocate(pool, ptr, block.stream);
  if (C10_UNLIKELY(status != VPMM_OK)) {
    if (status == VPMM_ERROR_HOST_OUT_OF_MEMORY) {
      vpmm_deallocate_deferred(pool, ptr);
    } else {
      TORCH_WARN_ONCE("VPMM: a free failed: ", vpmm_last_error());
    }
  }
  if (block.arena != nullptr && block.arena->source != nullptr) end_if_over(device, block.arena);
}

void Allocator::recordStream(const c10::DataPtr& ptr, c10::cuda::CUDAStream stream) {
  // Memory that came from elsewhere, as of a tensor that another process sent, has another deleter.
  if (ptr.get() == nullptr || ptr.get_deleter() != &delete_memory) return;
  const auto count = static_cast<std::size_t>(device_count_.load());
  for (std::size_t i = 0; i < count; ++i) {
    Device& device = devices_[i];
    {
      const std::lock_guard<std::mutex> lock(device.mutex);
      const auto found = device.blocks.find(ptr.get());
      if (found == device.blocks.end()) continue;
      if (found->second.stream == stream.stream()) return;
    }
    check(vpmm_record_use(pool_of(device), ptr.get(), stream.stream()), "record_stream");
    return;
  }
  TORCH_CHECK(false, "No allocated block can be found for ", ptr.get());
}

void Allocator::emptyCache(MempoolId_t id) {
  const int count = device_count_.load();
  for (int i = 0; i < count; ++i) {
    Device& device = devices_[static_cast<std::size_t>(i)];
    vpmm_pool* const pool = device.pool.load(std::memory_order_acquire);
    if (pool == nullptr) continue;
    std::vector<ArenaPtr> arenas;
    std::vector<ArenaPtr> ending;
    {
      const std::lock_guard<std::mutex> lock(device.mutex);
      ending.assign(device.ending.begin(), device.ending.end());
      for (const auto& [name, arena] : device.arenas)
        if (arena->handle != nullptr && (id == kCommonPool || id == name)) arenas.push_back(arena);
    }
    for (const ArenaPtr& arena : ending) end_if_over(device, arena);
    for (const ArenaPtr& arena : arenas) {
      trim_source(device, *arena);
      vpmm_arena_trim(arena->handle, nullptr);
    }
    vpmm_statistics figures{};
    figures.size = sizeof figures;
    // What the GPU may still use goes back as well, as cudaFree would make it: but no wait may break a capture.
    if (vpmm_get_statistics(pool, &figures) == VPMM_OK && figures.pending_bytes != 0) vpmm_synchronize(pool);
    check(vpmm_trim(pool, 0, nullptr), "empty_cache");
  }
}

void Allocator::copy_data(void* to, const void* from, std::size_t bytes) const {
  C10_CUDA_CHECK(cudaMemcpy(to, from, bytes, cudaMemcpyDeviceToDevice));
}

// --- private pools --------------------------------------------------------------------------------------------------

ArenaPtr Allocator::find_arena(Device& device, MempoolId_t id) {
  const auto found = device.arenas.find(id);
  return found == device.arenas.end() ? nullptr : found->second;
}

ArenaPtr Allocator::arena_of(Device& device, MempoolId_t id, const char* what) {
  ArenaPtr arena = find_arena(device, id);
  TORCH_CHECK(arena != nullptr, what, ": there is no memory pool (", id.first, ", ", id.second, ") on device ",
              int{device.index});
  return arena;
}

// The first route whose filter takes the stream; a filter may ask the driver whether it is captured.
ArenaPtr Allocator::route(Device& device, cudaStream_t stream) {
  const std::lock_guard<std::mutex> lock(device.mutex);
  for (const Route& candidate : device.routes)
    if (candidate.filter(stream)) return candidate.arena;
  return nullptr;
}

void Allocator::createOrIncrefPool(DeviceIndex index, MempoolId_t id, std::shared_ptr<cca::CUDAAllocator> source) {
  Device& device = device_of(index);
  const std::lock_guard<std::mutex> lock(device.mutex);
  ArenaPtr& arena = device.arenas[id];
  if (arena == nullptr) {
    arena = std::make_shared<Arena>(id);
    arena->source = std::move(source);
  } else {
    TORCH_CHECK(source == nullptr, "a memory pool that exists cannot be given another allocator");
  }
  ++arena->users;
}

void Allocator::setUseOnOOM(DeviceIndex index, MempoolId_t id, bool value) {
  Device& device = device_of(index);
  const std::lock_guard<std::mutex> lock(device.mutex);
  arena_of(device, id, "use_on_oom")->serves_others_when_short = value;
}

void Allocator::setNoSplit(DeviceIndex index, MempoolId_t id) {
  Device& device = device_of(index);
  const std::lock_guard<std::mutex> lock(device.mutex);
  arena_of(device, id, "no_split")->splits = false;
}

int Allocator::getPoolUseCount(DeviceIndex index, MempoolId_t id) {
  Device& device = device_of(index);
  const std::lock_guard<std::mutex> lock(device.mutex);
  const ArenaPtr arena = find_arena(device, id);
  return arena == nullptr ? 0 : arena->users;
}

void Allocator::beginAllocateToPool(DeviceIndex index, MempoolId_t id, std::function<bool(cudaStream_t)> filter) {
  createOrIncrefPool(index, id, nullptr);
  Device& device = device_of(index);
  const std::lock_guard<std::mutex> lock(device.mutex);
  for (const Route& open : device.routes)
    TORCH_CHECK(open.arena->id != id, "beginAllocateToPool: already recording to mempool_id");
  device.routes.push_back({arena_of(device, id, "beginAllocateToPool"), std::move(filter)});
  device.has_routes.store(true, std::memory_order_release);
}

void Allocator::endAllocateToPool(DeviceIndex index, MempoolId_t id) {
  Device& device = device_of(index);
  const std::lock_guard<std::mutex> lock(device.mutex);
  const auto found =
      std::find_if(device.routes.begin(), device.routes.end(), [&](const Route& open) { return open.arena->id == id; });
  TORCH_CHECK(found != device.routes.end(), "endAllocatePool: not currently recording to mempool_id");
  device.routes.erase(found);
  device.has_routes.store(!device.routes.empty(), std::memory_order_release);
}

void Allocator::releasePool(DeviceIndex index, MempoolId_t id) {
  Device& device = device_of(index);
  ArenaPtr last;
  {
    const std::lock_guard<std::mutex> lock(device.mutex);
    const ArenaPtr arena = arena_of(device, id, "releasePool");
    if (--arena->users > 0) return;
    last = arena;
    device.arenas.erase(id);
    if (last->source != nullptr && last->handle != nullptr) device.ending.insert(last);
  }
  if (last->source != nullptr) return end_if_over(device, last);
  if (last->handle != nullptr) check(vpmm_arena_release(last->handle), "releasePool");
}

// Memory of another allocator goes back to it as far as it is idle.
void Allocator::trim_source(Device& device, Arena& arena) {
  const std::lock_guard<std::mutex> lock(opening_);
  if (arena.source == nullptr || arena.handle == nullptr) return;
  void* memory = nullptr;
  while (vpmm_arena_take_memory(arena.handle, &memory, nullptr) == VPMM_OK && memory != nullptr)
    give_to_source(device, arena, memory);
}

// When nobody uses the pool any more and nothing in it lives. A pinned arena gives nothing before its end.
void Allocator::end_if_over(Device& device, const ArenaPtr& arena) {
  {
    const std::lock_guard<std::mutex> lock(device.mutex);
    if (arena->users != 0 || !arena->live.empty()) return;
  }
  const std::lock_guard<std::mutex> lock(opening_);
  if (arena->handle == nullptr) return;
  if (vpmm_synchronize(device.pool.load()) != VPMM_OK) return;  // not while a stream is captured: emptyCache asks again
  check(vpmm_arena_release(arena->handle), "a memory pool's end");
  arena->handle = nullptr;
  {
    const std::lock_guard<std::mutex> device_lock(device.mutex);
    device.ending.erase(arena);
  }
  while (!arena->pieces.empty()) give_to_source(device, *arena, *arena->pieces.begin());
}

void Allocator::give_to_source(Device& device, Arena& arena, void* memory) {
  arena.pieces.erase(memory);
  history_.record(Action::SEGMENT_FREE, device.index, memory, 0, nullptr, arena.id);
  arena.source->raw_delete(memory);
}

bool Allocator::checkPoolLiveAllocations(DeviceIndex index, MempoolId_t id, const std::unordered_set<void*>& expected) {
  Device& device = device_of(index);
  const std::lock_guard<std::mutex> lock(device.mutex);
  return arena_of(device, id, "checkPoolLiveAllocations")->live == expected;
}

// --- checkpoints: what a graph tree goes back to --------------------------------------------------------------------

struct Allocator::Checkpoint final : cca::AllocatorState {
  struct Live {
    void* ptr;
    std::size_t bytes;
    Stream stream;
  };
  MempoolId_t id{};
  std::vector<Live> live;
};

#if VPMM_TORCH_MINOR >= 12
std::shared_ptr<GatheredContext> Allocator::getContextForPointer(const void* ptr) {
  for (Device& device : devices_) {
    const std::lock_guard<std::mutex> lock(device.mutex);
    const auto found = device.blocks.find(const_cast<void*>(ptr));
    if (found != device.blocks.end()) return found->second.stack;
  }
  return nullptr;
}
#endif

#if VPMM_TORCH_MINOR >= 13
// In the memory pool that the current stream is routed to, where the address is free.
c10::DataPtr Allocator::allocateWithAddress(std::size_t bytes, void* at) {
  DeviceIndex index = 0;
  C10_CUDA_CHECK(c10::cuda::GetDevice(&index));
  Device& device = device_of(index);
  const Stream stream = Stream::current(index);
  ArenaPtr arena = route(device, stream.handle);
  TORCH_CHECK(arena != nullptr && arena->handle != nullptr,
              "an allocation at an address needs a memory pool: ", "use torch.cuda.use_mem_pool");
  check(vpmm_arena_allocate_at(arena->handle, at, round_up(bytes, kGrain), stream.handle), "allocateWithAddress");
  note_allocated(device, at, bytes, stream, std::move(arena), history_.stack(RecordContext::STATE));
  return {at, at, &delete_memory, c10::Device(c10::kCUDA, index)};
}
#endif

#if VPMM_TORCH_MINOR >= 14
void Allocator::annotateMemory(const void* ptr, const std::string& text) {
  for (Device& device : devices_) {
    Block block;
    {
      const std::lock_guard<std::mutex> lock(device.mutex);
      const auto found = device.blocks.find(const_cast<void*>(ptr));
      if (found == device.blocks.end()) continue;
      block = found->second;
    }
    const MempoolId_t id = block.arena == nullptr ? kCommonPool : block.arena->id;
    history_.record(Action::ANNOTATE, device.index, ptr, block.requested, block.stream, id, nullptr, text);
    return;
  }
}
#endif

std::shared_ptr<cca::AllocatorState> Allocator::getCheckpointState(DeviceIndex index, MempoolId_t id) {
  Device& device = device_of(index);
  const std::lock_guard<std::mutex> lock(device.mutex);
  auto state = std::make_shared<Checkpoint>();
  state->id = id;
  for (void* const ptr : arena_of(device, id, "getCheckpointState")->live) {
    const Block& block = device.blocks.at(ptr);
    state->live.push_back({ptr, block.requested, {block.stream, false}});
  }
  return state;
}

// The pool's live allocations become those of the state, at the same addresses.
cca::CheckpointDelta Allocator::setCheckpointPoolState(DeviceIndex index, std::shared_ptr<cca::AllocatorState> state) {
  const auto* const wanted = dynamic_cast<const Checkpoint*>(state.get());
  TORCH_CHECK(wanted != nullptr, "the checkpoint is another allocator's");
  Device& device = device_of(index);
  ArenaPtr arena;
  std::vector<void*> live;
  {
    const std::lock_guard<std::mutex> lock(device.mutex);
    arena = arena_of(device, wanted->id, "setCheckpointPoolState");
    live.assign(arena->live.begin(), arena->live.end());
  }
  cca::CheckpointDelta delta;
  for (void* const ptr : live) {
    free(ptr);
    delta.ptrs_freed.push_back(ptr);
  }
  for (const Checkpoint::Live& block : wanted->live) {
    check(vpmm_arena_allocate_at(arena->handle, block.ptr, round_up(block.bytes, kGrain), block.stream.handle),
          "a checkpoint could not be restored");
    note_allocated(device, block.ptr, block.bytes, block.stream, arena, history_.stack(RecordContext::STATE));
    delta.dataptrs_allocd.emplace_back(block.ptr, block.ptr, &delete_memory, c10::Device(c10::kCUDA, index));
  }
  return delta;
}

// --- looking at it --------------------------------------------------------------------------------------------------

// A run of mapped addresses of one kind and one arena is what PyTorch calls a segment.
struct Allocator::Mapped {
  std::size_t begin = 0;
  std::size_t bytes = 0;
  bool is_small = false;
  std::uint64_t arena = 0;

  static std::vector<Mapped> of(vpmm_pool* pool) {
    vpmm_layout layout{};
    layout.size = sizeof layout;
    check(vpmm_layout_take(pool, &layout), "snapshot");
    std::vector<Mapped> runs;
    for (std::size_t i = 0; i < layout.block_count; ++i) {
      const vpmm_block& block = layout.blocks[i];
      if (block.state == VPMM_REGION_HOLE || block.state == VPMM_REGION_ZOMBIE) continue;
      const Mapped next{reinterpret_cast<std::size_t>(block.begin), block.bytes, block.is_small != 0, block.arena};
      if (!runs.empty() && runs.back().is_continued_by(next))
        runs.back().bytes += next.bytes;
      else
        runs.push_back(next);
    }
    vpmm_layout_release(&layout);
    return runs;
  }
  bool is_continued_by(const Mapped& next) const {
    return begin + bytes == next.begin && is_small == next.is_small && arena == next.arena;
  }
};

// Tiles each segment with the live blocks in it and what lies between them.
std::vector<SegmentInfo> Allocator::segments_of(Device& device, const std::optional<MempoolId_t>& only) {
  std::vector<Mapped> runs = Mapped::of(pool_of(device));
  const std::lock_guard<std::mutex> lock(device.mutex);
  std::vector<std::pair<std::size_t, const Block*>> live;
  live.reserve(device.blocks.size());
  for (const auto& [ptr, block] : device.blocks) live.emplace_back(reinterpret_cast<std::size_t>(ptr), &block);
  std::sort(live.begin(), live.end());
  std::vector<SegmentInfo> segments;
  auto next = live.begin();
  for (const Mapped& run : runs) {
    SegmentInfo segment;
    segment.device = device.index;
    segment.address = run.begin;
    segment.total_size = run.bytes;
    segment.is_large = !run.is_small;
    segment.is_expandable = run.arena == 0;
    const auto name = device.arena_names.find(run.arena);
    if (run.arena != 0 && name != device.arena_names.end()) segment.owner_private_pool_id = name->second;
    while (next != live.end() && next->first < run.begin) ++next;
    std::size_t at = run.begin;
    const std::size_t end = run.begin + run.bytes;
    const auto add_idle = [&](std::size_t until) {
      if (until == at) return;
      BlockInfo idle;
      idle.size = until - at;
      segment.blocks.push_back(std::move(idle));
    };
    for (; next != live.end() && next->first + next->second->bytes <= end; ++next) {
      const Block& block = *next->second;
      add_idle(next->first);
      BlockInfo info;
      info.size = block.bytes;
      info.requested_size = block.requested;
      info.allocated = info.active = true;
      info.context_when_allocated = block.stack;
      segment.blocks.push_back(std::move(info));
      segment.allocated_size += block.bytes;
      segment.active_size += block.bytes;
      segment.requested_size += block.requested;
      if (segment.stream == nullptr) segment.stream = block.stream;
      at = next->first + block.bytes;
    }
    add_idle(end);
    if (!only || segment.owner_private_pool_id == *only) segments.push_back(std::move(segment));
  }
  return segments;
}

cca::SnapshotInfo Allocator::snapshot(MempoolId_t id, bool include_traces) {
  cca::SnapshotInfo snapshot;
  const int count = device_count_.load();
  snapshot.device_traces.resize(static_cast<std::size_t>(count));
  for (int i = 0; i < count; ++i) {
    Device& device = devices_[static_cast<std::size_t>(i)];
    if (device.pool.load(std::memory_order_acquire) == nullptr) continue;
    std::vector<SegmentInfo> segments =
        segments_of(device, id == kCommonPool ? std::nullopt : std::optional<MempoolId_t>(id));
    std::size_t active = 0;
    for (const SegmentInfo& segment : segments) active += segment.active_size;
    history_.record(Action::SNAPSHOT, device.index, nullptr, active, nullptr, kCommonPool);
    std::move(segments.begin(), segments.end(), std::back_inserter(snapshot.segments));
  }
  if (include_traces) history_.copy_to(snapshot);
  snapshot.config_metadata.garbage_collection_threshold = 0;
  snapshot.config_metadata.max_split_size = SIZE_MAX;
  snapshot.config_metadata.pinned_num_register_threads = 1;
  snapshot.config_metadata.expandable_segments = true;
  snapshot.config_metadata.release_lock_on_malloc = false;
  snapshot.config_metadata.pinned_use_host_register = false;
  snapshot.config_metadata.graph_capture_record_stream_reuse = false;
  snapshot.config_metadata.last_allocator_settings = "backend:vpmm";
  return snapshot;
}

// Segments are counted anew when something was mapped or unmapped since.
void Allocator::count_segments(Device& device) {
  const std::uint64_t changes = device.mapping_changes.load();
  {
    const std::lock_guard<std::mutex> lock(device.mutex);
    if (device.counted_at == changes) return;
  }
  const std::vector<Mapped> runs = Mapped::of(pool_of(device));
  const std::lock_guard<std::mutex> lock(device.mutex);
  device.counted_at = changes;
  std::array<std::int64_t, 3> segments{};
  std::array<std::int64_t, 3> bytes{};
  for (const Mapped& run : runs) {
    const StatType type = run.is_small ? StatType::SMALL_POOL : StatType::LARGE_POOL;
    for (const auto i : {StatType::AGGREGATE, type}) {
      ++segments.at(static_cast<std::size_t>(i));
      bytes.at(static_cast<std::size_t>(i)) += static_cast<std::int64_t>(run.bytes);
    }
  }
  const auto set = [](c10::CachingAllocator::Stat& stat, std::int64_t now) {
    if (now > stat.current)
      stat.increase(static_cast<std::size_t>(now - stat.current));
    else
      stat.decrease(static_cast<std::size_t>(stat.current - now));
  };
  for (std::size_t i = 0; i < segments.size(); ++i) {
    set(device.segments.at(i), segments.at(i));
    set(device.reserved.at(i), bytes.at(i));
  }
}

DeviceStats Allocator::getDeviceStats(DeviceIndex index) {
  Device& device = device_of(index);
  vpmm_statistics figures{};
  figures.size = sizeof figures;
  check(vpmm_get_statistics(pool_of(device), &figures), "statistics");
  count_segments(device);
  const std::lock_guard<std::mutex> lock(device.mutex);
  DeviceStats stats;
  stats.allocation = stats.active = device.counts.allocations;
  stats.allocated_bytes = stats.active_bytes = device.counts.bytes;
  stats.requested_bytes = device.counts.requested;
  stats.segment = device.segments;
  stats.reserved_bytes = device.reserved;
  auto& peak = stats.reserved_bytes.at(0).peak;
  peak = std::max(peak, static_cast<std::int64_t>(figures.peak_mapped_bytes));
  for (std::size_t i = 0; i < stats.inactive_split_bytes.size(); ++i)
    stats.inactive_split_bytes.at(i).current = stats.reserved_bytes.at(i).current - stats.active_bytes.at(i).current;
  stats.num_alloc_retries = device.retries;
  stats.num_ooms = device.failures;
  stats.num_sync_all_streams = static_cast<std::int64_t>(figures.host_waits);
  stats.num_device_alloc = static_cast<std::int64_t>(figures.chunks_created);
  stats.num_device_free = static_cast<std::int64_t>(figures.chunks_released);
  stats.max_split_size = -1;
  return stats;
}

void Allocator::resetAccumulatedStats(DeviceIndex index) {
  Device& device = device_of(index);
  const std::lock_guard<std::mutex> lock(device.mutex);
  for (StatArray* const array :
       {&device.counts.allocations, &device.counts.bytes, &device.counts.requested, &device.segments, &device.reserved})
    for (auto& stat : *array) stat.reset_accumulated();
  device.retries = device.failures = 0;
}

void Allocator::resetPeakStats(DeviceIndex index) {
  Device& device = device_of(index);
  check(vpmm_reset_peaks(pool_of(device)), "peaks");
  const std::lock_guard<std::mutex> lock(device.mutex);
  for (StatArray* const array :
       {&device.counts.allocations, &device.counts.bytes, &device.counts.requested, &device.segments, &device.reserved})
    for (auto& stat : *array) stat.reset_peak();
}

std::vector<cca::StreamSegmentSize> Allocator::getExpandableSegmentSizes(DeviceIndex index) {
  std::vector<cca::StreamSegmentSize> sizes;
  for (const SegmentInfo& segment : segments_of(device_of(index), std::nullopt))
    if (segment.is_expandable)
      sizes.emplace_back(static_cast<cudaStream_t>(segment.stream), !segment.is_large, segment.total_size);
  return sizes;
}

// The largest piece that needs no new memory. A caller that starts with 0 wants to know what may be had at all.
void Allocator::cacheInfo(DeviceIndex index, std::size_t* largest) {
  Device& device = device_of(index);
  if (*largest == 0) {
    const c10::cuda::CUDAGuard guard(index);
    std::size_t total = 0;
    C10_CUDA_CHECK(cudaMemGetInfo(largest, &total));
  }
  vpmm_statistics figures{};
  figures.size = sizeof figures;
  check(vpmm_get_statistics(pool_of(device), &figures), "statistics");
  *largest = std::max<std::size_t>(*largest, figures.largest_free_bytes);
}

void* Allocator::getBaseAllocation(void* ptr, std::size_t* bytes) {
  const int count = device_count_.load();
  for (int i = 0; i < count; ++i) {
    vpmm_pool* const pool = devices_[static_cast<std::size_t>(i)].pool.load(std::memory_order_acquire);
    if (pool == nullptr) continue;
    vpmm_allocation_info info{};
    info.size = sizeof info;
    if (vpmm_query(pool, ptr, &info) != VPMM_OK) continue;
    if (bytes != nullptr) *bytes = info.usable;
    return info.begin;
  }
  TORCH_CHECK(false, "invalid device pointer: ", ptr);
}

void Allocator::recordHistory(bool is_on, cca::CreateContextFn gather, std::size_t most, RecordContext level,
                              bool clears, const std::vector<std::string>& skipped) {
  history_.start(is_on, gather, most, level, clears, skipped);
}

void Allocator::recordAnnotation(const std::vector<std::pair<std::string, std::string>>& pairs) {
  if (!history_.is_recording()) return;
  DeviceIndex device = 0;
  C10_CUDA_CHECK(c10::cuda::GetDevice(&device));
  history_.annotate(device, pairs);
}

void Allocator::attachOutOfMemoryObserver(cca::OutOfMemoryObserver observer) {
  const std::lock_guard<std::mutex> lock(observers_mutex_);
  observers_.push_back(std::move(observer));
}

// --- other devices, other processes ---------------------------------------------------------------------------------

// cudaDeviceEnablePeerAccess has no effect on this memory, so it is not called.
void Allocator::enablePeerAccess(DeviceIndex device, DeviceIndex owner) {
  check(vpmm_set_peer_access(pool_of(device_of(owner)), device), "peer access");
}

cudaError_t Allocator::memcpyAsync(void* to, int to_device, const void* from, int from_device, std::size_t bytes,
                                   cudaStream_t stream, bool p2p_enabled) {
  if (p2p_enabled || to_device == from_device)
    return cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream);
  return cudaMemcpyPeerAsync(to, to_device, from, from_device, bytes, stream);
}

// One export for the life of an allocation, so that a receiver knows by the bytes that it has the memory open already.
cca::ShareableHandle Allocator::shareIpcHandle(void* ptr) {
  std::size_t bytes = 0;
  void* const begin = getBaseAllocation(ptr, &bytes);
  const auto offset = static_cast<char*>(ptr) - static_cast<char*>(begin);
  const int count = device_count_.load();
  for (int i = 0; i < count; ++i) {
    Device& device = devices_[static_cast<std::size_t>(i)];
    {
      const std::lock_guard<std::mutex> lock(device.mutex);
      if (const auto known = device.exports.find(begin); known != device.exports.end())
        return {offset, known->second.bytes};
      if (device.blocks.find(begin) == device.blocks.end()) continue;
    }
    vpmm_ipc_handle handle{};
    check(vpmm_ipc_export(begin, bytes, &handle), "sharing a tensor");
    const std::lock_guard<std::mutex> lock(device.mutex);
    const auto [entry, is_new] = device.exports.try_emplace(begin, Export{handle, to_bytes(handle)});
    if (is_new)
      device.blocks.at(begin).is_exported = true;
    else
      vpmm_ipc_export_end(&handle);  // another thread was faster
    return {offset, entry->second.bytes};
  }
  TORCH_CHECK(false, "invalid device pointer: ", ptr);
}

// The same memory is opened once for each device. It is closed when its last tensor goes.
std::shared_ptr<void> Allocator::getIpcDevPtr(std::string bytes) {
  const vpmm_ipc_handle handle = from_bytes(bytes);
  DeviceIndex device = 0;
  C10_CUDA_CHECK(c10::cuda::GetDevice(&device));
  bytes.push_back(static_cast<char>(device));
  const std::lock_guard<std::mutex> lock(opened_mutex_);
  if (const auto known = opened_.find(bytes); known != opened_.end())
    if (std::shared_ptr<void> memory = known->second.lock()) return memory;
  void* ptr = nullptr;
  check(vpmm_ipc_open(&handle, device, &ptr), "a tensor of another process");
  std::shared_ptr<void> memory(ptr, [this, bytes](void* opened) {
    {
      const std::lock_guard<std::mutex> closing(opened_mutex_);
      const auto known = opened_.find(bytes);
      if (known != opened_.end() && known->second.expired()) opened_.erase(known);
    }
    vpmm_ipc_close_deferred(opened);
  });
  opened_[bytes] = memory;
  return memory;
}

// Python compares these with its own before it installs anything.
std::string last_error;

}  // namespace

#define VPMM_TORCH_EXPORT extern "C" __attribute__((visibility("default")))

VPMM_TORCH_EXPORT int vpmm_torch_minor() { return VPMM_TORCH_MINOR; }

VPMM_TORCH_EXPORT const char* vpmm_torch_last_error() { return last_error.c_str(); }

// Makes PyTorch allocate CUDA memory here from now on. 0: done, or done before. Not thread-safe: call it before the
// first CUDA tensor.
VPMM_TORCH_EXPORT int vpmm_torch_install() {
  try {
    cca::CUDAAllocator* const before = cca::allocator.load();
    if (before == &instance()) return 0;
    TORCH_CHECK(before != nullptr, "PyTorch has no CUDA allocator: is this a build without CUDA?");
    TORCH_CHECK(!before->initialized(),
                "PyTorch has initialized CUDA already: switch VPMM on before the first CUDA call");
    cca::allocator.store(&instance());
    c10::SetAllocator(c10::DeviceType::CUDA, &instance(), 0);
    return 0;
  } catch (const c10::Error& error) {
    last_error = error.what_without_backtrace();
  } catch (const std::exception& error) {
    last_error = error.what();
  }
  return 1;
}
