// SPDX-License-Identifier: Apache-2.0
// tests: what libraries add to PyTorch's allocator in C++: trackers of its events, and callbacks
// for shortages.
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace {

namespace cca = c10::cuda::CUDACachingAllocator;
using c10::CachingDeviceAllocator::TraceEntry;

// As probe.py has it.
struct Event {
  std::int32_t action;
  std::int32_t device;
  std::uint64_t address;
  std::uint64_t bytes;
  std::uint64_t pool[2];
};
// As the action of an event: the memory went back to the program's allocator.
constexpr std::int32_t kGivenBack = -1;

std::mutex mutex;
bool is_listening = false;
int refused = -1;  // the action of the events at which the tracker throws
int spared = 0;    // events of that action before the first
int refusals = 0;  // that are left
std::vector<Event> events;

// The next allocation waits: in probe_waiting_malloc, or between its request and its entry in
// PyTorch's books. There the history's lock is held: no event may come on another thread meanwhile.
enum class Pause { NONE, ASKED, HELD };
Pause paused = Pause::NONE;
std::condition_variable has_paused;
constexpr std::chrono::seconds kLongestPause{20};

void wait_if_asked(std::unique_lock<std::mutex>& lock) {
  if (paused != Pause::ASKED) return;
  paused = Pause::HELD;
  has_paused.notify_all();
  has_paused.wait_for(lock, kLongestPause, [] { return paused != Pause::HELD; });
}

void track(const TraceEntry& entry) {
  std::unique_lock<std::mutex> lock(mutex);
  if (entry.action_ == TraceEntry::Action::ALLOC) wait_if_asked(lock);
  if (is_listening)
    events.push_back({entry.action_,
                      entry.device_,
                      entry.addr_,
                      entry.size_,
                      {entry.mempool_.first, entry.mempool_.second}});
  if (entry.action_ != refused || refusals == 0 || spared-- > 0) return;
  --refusals;
  throw std::runtime_error("the tracker refuses it" +
                           std::string(static_cast<std::size_t>(refusals), '!'));
}

class KeepsTheLast final : public c10::WarningHandler {
 public:
  void process(const c10::Warning& warning) override { text = warning.msg(); }
  std::string text;
};

KeepsTheLast warnings;
void* hostage = nullptr;
int shortages = 0;
int foreign_asked = 0;
int foreign_made = 0;
int foreign_given_back = 0;
cudaStream_t watched = nullptr;
bool is_watched_busy = false;  // when memory came back

struct GivesHostageBack final : c10::FreeMemoryCallback {
  bool Execute() override {
    if (hostage == nullptr) return false;
    ++shortages;
    cca::raw_delete(hostage);
    hostage = nullptr;
    return true;
  }
};

// The error, or an empty text.
template <class Call>
const char* error_of(Call call) {
  static std::string error;
  try {
    call();
    error.clear();
  } catch (const c10::Error& thrown) {
    error = thrown.what_without_backtrace();
  }
  return error.c_str();
}

}  // namespace

namespace c10 {
REGISTER_FREE_MEMORY_CALLBACK("vpmm_probe", GivesHostageBack)
}  // namespace c10

#define PROBE extern "C" __attribute__((visibility("default")))

// There is no way to take a tracker away: this one is silent unless it is told to listen.
PROBE void probe_attach() {
  cca::get()->attachAllocatorTraceTracker(&track);
  c10::WarningUtils::set_warning_handler(&warnings);
}

PROBE void probe_listen(int is_on) {
  const std::lock_guard<std::mutex> lock(mutex);
  is_listening = is_on != 0;
  events.clear();
}

PROBE std::size_t probe_events(Event* to, std::size_t capacity) {
  const std::lock_guard<std::mutex> lock(mutex);
  std::copy_n(events.begin(), std::min(capacity, events.size()), to);
  return events.size();
}

PROBE void probe_refuse(int action, int after, int times) {
  const std::lock_guard<std::mutex> lock(mutex);
  refused = action;
  spared = after;
  refusals = times;
}
PROBE int probe_refusals() {
  const std::lock_guard<std::mutex> lock(mutex);
  return refusals;
}

// The bytes of the last request that the option throw_on_cudamalloc_oom refused; 0: none.
PROBE std::size_t probe_rejected() {
  static std::size_t rejected = 0;
#if VPMM_TORCH_MINOR >= 12
  static const bool is_attached = [] {
    cca::get()->attachOomRejectionObserver(
        [](std::int64_t, std::size_t bytes, std::size_t allocated, std::size_t total) {
          if (bytes < total && allocated < total) rejected = bytes;
        });
    return true;
  }();
  (void)is_attached;
#endif
  return rejected;
}

PROBE const char* probe_warning() { return warnings.text.c_str(); }
PROBE void probe_hold(std::size_t bytes) { hostage = cca::raw_alloc(bytes); }
PROBE int probe_shortages() { return shortages; }
PROBE int probe_users(std::uint64_t first, std::uint64_t second) {
  return cca::getPoolUseCount(0, {first, second});
}
PROBE std::size_t probe_expandable(int device, int is_small) {
  std::size_t bytes = 0;
  for (const cca::StreamSegmentSize& segment :
       cca::get()->getExpandableSegmentSizes(static_cast<c10::DeviceIndex>(device)))
    if (segment.is_small_pool == (is_small != 0)) bytes += segment.total_size;
  return bytes;
}
PROBE const char* probe_peer(int device, int owner) {
  return error_of([&] {
    cca::get()->enablePeerAccess(static_cast<c10::DeviceIndex>(device),
                                 static_cast<c10::DeviceIndex>(owner));
  });
}
// The order in which the segment that begins there was made; -1: there is none.
PROBE int probe_order(std::size_t address) {
  for (const auto& segment : cca::get()->snapshot().segments)
    if (segment.address == address) return static_cast<int>(segment.registration_counter);
  return -1;
}
// Routes requests of streams that are captured by then to this memory pool, as a capture does.
PROBE void probe_begin_capture_route(std::uint64_t first, std::uint64_t second) {
  cca::get()->beginAllocateToPool(0, {first, second}, [](cudaStream_t stream) {
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    return cudaStreamIsCapturing(stream, &status) == cudaSuccess &&
           status == cudaStreamCaptureStatusActive;
  });
}
// So many threads allocate at the same moment, on the default stream of device 0.
PROBE void probe_allocate_at_once(void** made, std::size_t threads, std::size_t bytes) {
  std::atomic<std::size_t> waiting{threads};
  std::vector<std::thread> all;
  for (std::size_t i = 0; i < threads; ++i)
    all.emplace_back([&, i] {
      --waiting;
      while (waiting != 0) {
      }
      made[i] = cca::raw_alloc(bytes);
    });
  for (std::thread& each : all) each.join();
}
// So many threads allocate and free at the same time, so often each, on device 0.
PROBE void probe_churn(std::size_t threads, std::size_t rounds) {
  std::vector<std::thread> all;
  for (std::size_t i = 0; i < threads; ++i)
    all.emplace_back([=] {
      for (std::size_t round = 0; round < rounds; ++round)
        cca::raw_delete(cca::raw_alloc(1000 * (1 + (i + round) % 8)));
    });
  for (std::thread& each : all) each.join();
}
PROBE void probe_empty_cache(std::uint64_t first, std::uint64_t second) {
  cca::get()->emptyCache({first, second});
}
PROBE int probe_is_enabled() { return cca::isEnabled() ? 1 : 0; }
PROBE std::size_t probe_largest(int device, std::size_t least) {
  cca::get()->cacheInfo(static_cast<c10::DeviceIndex>(device), &least);
  return least;
}
PROBE void probe_pop_compile_context() { cca::get()->popCompileContext(); }
PROBE void probe_push_compile_context(const char* name) {
  std::string text = name;
  cca::get()->pushCompileContext(text);
}
PROBE void probe_annotate(const char* name, const char* value) {
  cca::get()->recordAnnotation({{name, value}});
}
PROBE const char* probe_record_stacks_without_a_way() {
  using c10::CachingDeviceAllocator::RecordContext;
  return error_of(
      [] { cca::get()->recordHistory(true, nullptr, 10, RecordContext::ALL, false, {}); });
}
PROBE const char* probe_base(void* ptr, void** begin, std::size_t* bytes) {
  return error_of([&] { *begin = cca::get()->getBaseAllocation(ptr, bytes); });
}
// The message for other processes, of which `size` bytes are there.
PROBE const char* probe_share(void* ptr, std::ptrdiff_t* offset, const char** message,
                              std::size_t* size) {
  static cca::ShareableHandle shared;
  return error_of([&] {
    shared = cca::get()->shareIpcHandle(ptr);
    *offset = shared.offset;
    *message = shared.handle.data();
    *size = shared.handle.size();
  });
}
// Opens memory of another process for the rest of this one.
PROBE const char* probe_open(const char* message, std::size_t size, void** ptr) {
  static auto* const opened = new std::vector<std::shared_ptr<void>>;
  return error_of([&] {
    opened->push_back(cca::get()->getIpcDevPtr({message, size}));
    *ptr = opened->back().get();
  });
}
PROBE const char* probe_stats(int device) {
  return error_of([&] { cca::get()->getDeviceStats(static_cast<c10::DeviceIndex>(device)); });
}
PROBE int probe_copy(void* to, int to_device, const void* from, int from_device, std::size_t bytes,
                     int has_access) {
  return cca::get()->memcpyAsync(to, to_device, from, from_device, bytes, nullptr, has_access != 0);
}
PROBE void probe_copy_data(void* to, const void* from, std::size_t bytes) {
  cca::get()->copy_data(to, from, bytes);
}
PROBE const char* probe_share_pool(std::uint64_t first, std::uint64_t second) {
  const std::shared_ptr<cca::CUDAAllocator> itself(cca::get(), [](cca::CUDAAllocator*) {});
  return error_of([&] { cca::get()->createOrIncrefPool(0, {first, second}, itself); });
}

PROBE void probe_pause() {
  const std::lock_guard<std::mutex> lock(mutex);
  paused = Pause::ASKED;
}
// Whether an allocation waits now.
PROBE int probe_await_pause() {
  std::unique_lock<std::mutex> lock(mutex);
  return has_paused.wait_for(lock, kLongestPause, [] { return paused == Pause::HELD; }) ? 1 : 0;
}
PROBE void probe_go_on() {
  const std::lock_guard<std::mutex> lock(mutex);
  paused = Pause::NONE;
  has_paused.notify_all();
}

// Allocators of a program, as CUDAPluggableAllocator takes them.
PROBE void* probe_foreign_malloc(std::size_t bytes, int, cudaStream_t) {
  ++foreign_asked;
  void* ptr = nullptr;
  if (cudaMalloc(&ptr, bytes) != cudaSuccess) return nullptr;
  ++foreign_made;
  return ptr;
}
PROBE void probe_foreign_free(void* ptr, std::size_t bytes, int, cudaStream_t) {
  is_watched_busy |= watched != nullptr && cudaStreamQuery(watched) != cudaSuccess;
  (void)cudaGetLastError();
  cudaFree(ptr);
  ++foreign_given_back;
  const std::lock_guard<std::mutex> lock(mutex);
  if (is_listening)
    events.push_back({kGivenBack, 0, reinterpret_cast<std::uint64_t>(ptr), bytes, {}});
}
PROBE void* probe_crooked_malloc(std::size_t bytes, int device, cudaStream_t stream) {
  return static_cast<char*>(probe_foreign_malloc(bytes + 1, device, stream)) + 1;
}
PROBE void probe_crooked_free(void* ptr, std::size_t bytes, int device, cudaStream_t stream) {
  probe_foreign_free(static_cast<char*>(ptr) - 1, bytes, device, stream);
}
PROBE void* probe_waiting_malloc(std::size_t bytes, int device, cudaStream_t stream) {
  {
    std::unique_lock<std::mutex> lock(mutex);
    wait_if_asked(lock);
  }
  return probe_foreign_malloc(bytes, device, stream);
}
PROBE void* probe_empty_malloc(std::size_t, int, cudaStream_t) {
  TORCH_CHECK_WITH(OutOfMemoryError, false, "it has no memory");
}
PROBE void probe_stubborn_free(void* ptr, std::size_t bytes, int device, cudaStream_t stream) {
  probe_foreign_free(ptr, bytes, device, stream);
  throw std::runtime_error("it is stubborn");
}
// Watches this stream from now on. Returns whether the last one worked when memory came back.
PROBE int probe_watch(cudaStream_t stream) {
  watched = stream;
  return std::exchange(is_watched_busy, false) ? 1 : 0;
}
PROBE int probe_foreign_asked() { return foreign_asked; }
PROBE int probe_foreign_count(int is_given_back) {
  return is_given_back != 0 ? foreign_given_back : foreign_made;
}
