// tests: what libraries add to PyTorch's allocator in C++: trackers of its events, and callbacks
// for shortages.
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <stdexcept>
#include <string>
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

std::mutex mutex;
bool is_listening = false;
int refused = -1;  // the action of the next event at which the tracker throws
int spared = 0;    // events of that action before it
std::vector<Event> events;

void track(const TraceEntry& entry) {
  const std::lock_guard<std::mutex> lock(mutex);
  if (is_listening)
    events.push_back({entry.action_,
                      entry.device_,
                      entry.addr_,
                      entry.size_,
                      {entry.mempool_.first, entry.mempool_.second}});
  if (entry.action_ != refused || spared-- > 0) return;
  refused = -1;
  throw std::runtime_error("the tracker refuses it");
}

class KeepsTheLast final : public c10::WarningHandler {
 public:
  void process(const c10::Warning& warning) override { text = warning.msg(); }
  std::string text;
};

KeepsTheLast warnings;
void* hostage = nullptr;
int shortages = 0;

struct GivesHostageBack final : c10::FreeMemoryCallback {
  bool Execute() override {
    if (hostage == nullptr) return false;
    ++shortages;
    cca::raw_delete(hostage);
    hostage = nullptr;
    return true;
  }
};

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

PROBE void probe_refuse(int action, int after) {
  const std::lock_guard<std::mutex> lock(mutex);
  refused = action;
  spared = after;
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
PROBE std::size_t probe_expandable(int is_small) {
  std::size_t bytes = 0;
  for (const cca::StreamSegmentSize& segment : cca::get()->getExpandableSegmentSizes(0))
    if (segment.is_small_pool == (is_small != 0)) bytes += segment.total_size;
  return bytes;
}
// The error, or an empty text.
PROBE const char* probe_peer(int device, int owner) {
  static std::string error;
  try {
    cca::get()->enablePeerAccess(static_cast<c10::DeviceIndex>(device),
                                 static_cast<c10::DeviceIndex>(owner));
    error.clear();
  } catch (const c10::Error& thrown) {
    error = thrown.what_without_backtrace();
  }
  return error.c_str();
}
PROBE void probe_empty_cache(std::uint64_t first, std::uint64_t second) {
  cca::get()->emptyCache({first, second});
}
PROBE std::size_t probe_largest(std::size_t least) {
  cca::get()->cacheInfo(0, &least);
  return least;
}
PROBE void probe_pop_compile_context() { cca::get()->popCompileContext(); }
