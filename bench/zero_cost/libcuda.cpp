// SPDX-License-Identifier: Apache-2.0
// bench/zero_cost: a libcuda.so.1 that does nothing, at once: what is left of an allocator's cost
// is its own.
//
// Made for measuring without a GPU, not for testing: no argument is checked, all work is done when
// it is queued, memory is a number that grows and is never touched. What a pool does not call is
// missing (cuGetProcAddress finds `unsupported` for it). Thread-safe, and free of locks but for the
// stream-ordered pool.
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <mutex>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace {

using Status = int;
using Handle = std::uintptr_t;
using DevicePtr = unsigned long long;

constexpr Status kSuccess = 0;
constexpr Status kNotFound = 500;
constexpr Status kNotSupported = 801;
constexpr std::size_t kPage = std::size_t{2} << 20;
constexpr std::size_t kTotal = std::size_t{139} << 30;
constexpr Handle kContext = 0x1000;

std::atomic<Handle> g_next_handle{0x10000};
std::atomic<DevicePtr> g_next_address{DevicePtr{1} << 44};
std::atomic<std::size_t> g_created{0};
thread_local Handle t_context = 0;

Handle new_handle() { return g_next_handle.fetch_add(16, std::memory_order_relaxed); }

DevicePtr new_address(std::size_t bytes) {
  const std::size_t pages = (bytes + kPage - 1) / kPage;
  return g_next_address.fetch_add(pages * kPage, std::memory_order_relaxed);
}

// --- driver, device, context ---

Status nothing() { return kSuccess; }
Status unsupported() { return kNotSupported; }

Status version(int* out) { return *out = 13000, kSuccess; }
Status device_count(int* out) { return *out = 1, kSuccess; }
Status device_name(char* out, int length, int) {
  std::strncpy(out, "no GPU, driver calls cost nothing", static_cast<std::size_t>(length));
  return out[length - 1] = '\0', kSuccess;
}
Status device_uuid(void* out, int) { return std::memset(out, 1, 16), kSuccess; }
// Virtual memory, file descriptors and memory pools; nothing else.
Status device_attribute(int* out, int attribute, int) {
  *out = attribute == 102 || attribute == 103 || attribute == 115 ? 1 : 0;
  return kSuccess;
}
Status device_total(std::size_t* out, int) { return *out = kTotal, kSuccess; }
Status can_access_peer(int* out, int, int) { return *out = 0, kSuccess; }
Status primary_state(int, unsigned* flags, int* active) {
  return *flags = 0, *active = 1, kSuccess;
}
Status retain(Handle* out, int) { return *out = kContext, kSuccess; }
Status get_current(Handle* out) { return *out = t_context, kSuccess; }
Status set_current(Handle context) { return t_context = context, kSuccess; }
Status context_id(Handle, unsigned long long* out) { return *out = 1, kSuccess; }
Status context_device(int* out) { return *out = 0, kSuccess; }

// --- virtual memory ---

Status memory_info(std::size_t* free, std::size_t* total) {
  *total = kTotal;
  *free = kTotal - g_created.load(std::memory_order_relaxed);
  return kSuccess;
}
Status granularity(std::size_t* out, const void*, int) { return *out = kPage, kSuccess; }
// Aligned to anything a pool asks for below 1 GiB.
Status reserve(DevicePtr* out, std::size_t bytes, std::size_t, DevicePtr, unsigned long long) {
  constexpr DevicePtr kRound = DevicePtr{1} << 30;
  const DevicePtr begin = g_next_address.fetch_add(bytes + kRound, std::memory_order_relaxed);
  return *out = (begin + kRound - 1) / kRound * kRound, kSuccess;
}
// A chunk's handle holds its size in pages, so that releasing it needs no table.
Status create(std::uint64_t* out, std::size_t bytes, const void*, unsigned long long) {
  if (g_created.fetch_add(bytes, std::memory_order_relaxed) + bytes > kTotal) {
    g_created.fetch_sub(bytes, std::memory_order_relaxed);
    return 2;  // out of memory
  }
  return *out = (std::uint64_t{new_handle()} << 20) | (bytes / kPage), kSuccess;
}
Status release(std::uint64_t chunk) {
  g_created.fetch_sub((chunk & 0xFFFFF) * kPage, std::memory_order_relaxed);
  return kSuccess;
}

// --- plain and stream-ordered memory ---

Status mem_alloc(DevicePtr* out, std::size_t bytes) { return *out = new_address(bytes), kSuccess; }
Status pool_create(Handle* out, const void*) { return *out = new_handle(), kSuccess; }
Status pool_attribute(Handle, int, void* value) {
  return *static_cast<std::uint64_t*>(value) = 0, kSuccess;
}

// Blocks of the same rounded size are used again, last in, first out.
struct Blocks {
  std::mutex mutex;
  std::unordered_map<std::size_t, std::vector<DevicePtr>> free;
  std::unordered_map<DevicePtr, std::size_t> size_of;
};
Blocks& blocks() {
  static auto* const all = new Blocks;
  return *all;
}
Status pool_alloc(DevicePtr* out, std::size_t bytes, Handle, Handle) {
  const std::size_t size = (bytes + 511) / 512 * 512;
  const std::lock_guard lock(blocks().mutex);
  std::vector<DevicePtr>& free = blocks().free[size];
  if (free.empty()) {
    *out = g_next_address.fetch_add(size, std::memory_order_relaxed);
    blocks().size_of.emplace(*out, size);
    return kSuccess;
  }
  *out = free.back();
  free.pop_back();
  return kSuccess;
}
Status pool_free(DevicePtr ptr, Handle) {
  const std::lock_guard lock(blocks().mutex);
  blocks().free[blocks().size_of.at(ptr)].push_back(ptr);
  return kSuccess;
}
Status host_alloc(void** out, std::size_t bytes, unsigned) {
  *out = std::malloc(bytes);
  return kSuccess;
}
Status host_free(void* host) { return std::free(host), kSuccess; }

// --- streams and events ---

Status new_object(Handle* out, unsigned) { return *out = new_handle(), kSuccess; }
Status stream_id(Handle stream, unsigned long long* out) {
  constexpr Handle kPerThread = 2;
  *out = stream < kPerThread ? 7 : 100 + stream;
  return kSuccess;
}
Status stream_context(Handle, Handle* out) { return *out = kContext, kSuccess; }
Status is_capturing(Handle, int* out) { return *out = 0, kSuccess; }
Status capture_info(Handle, int* status, std::uint64_t*, void*, void*, void*) {
  return *status = 0, kSuccess;
}
Status exchange_mode(int*) { return kSuccess; }

struct Entry {
  std::string_view symbol;
  void* function;
};
template <typename Function>
void* address_of(Function* function) {
  return reinterpret_cast<void*>(function);
}

const Entry kEntries[] = {
    {"cuInit", address_of(nothing)},
    {"cuDriverGetVersion", address_of(version)},
    {"cuDeviceGetCount", address_of(device_count)},
    {"cuDeviceGetName", address_of(device_name)},
    {"cuDeviceGetUuid", address_of(device_uuid)},
    {"cuDeviceGetAttribute", address_of(device_attribute)},
    {"cuDeviceTotalMem", address_of(device_total)},
    {"cuDeviceCanAccessPeer", address_of(can_access_peer)},
    {"cuDevicePrimaryCtxGetState", address_of(primary_state)},
    {"cuDevicePrimaryCtxRetain", address_of(retain)},
    {"cuDevicePrimaryCtxRelease", address_of(nothing)},
    {"cuCtxGetCurrent", address_of(get_current)},
    {"cuCtxSetCurrent", address_of(set_current)},
    {"cuCtxGetId", address_of(context_id)},
    {"cuCtxGetDevice", address_of(context_device)},
    {"cuCtxSynchronize", address_of(nothing)},
    {"cuCtxRecordEvent", address_of(nothing)},
    {"cuMemGetInfo", address_of(memory_info)},
    {"cuMemGetAllocationGranularity", address_of(granularity)},
    {"cuMemAddressReserve", address_of(reserve)},
    {"cuMemAddressFree", address_of(nothing)},
    {"cuMemCreate", address_of(create)},
    {"cuMemRelease", address_of(release)},
    {"cuMemMap", address_of(nothing)},
    {"cuMemUnmap", address_of(nothing)},
    {"cuMemSetAccess", address_of(nothing)},
    {"cuMemAlloc", address_of(mem_alloc)},
    {"cuMemFree", address_of(nothing)},
    {"cuMemPoolCreate", address_of(pool_create)},
    {"cuMemPoolDestroy", address_of(nothing)},
    {"cuMemPoolSetAttribute", address_of(nothing)},
    {"cuMemPoolGetAttribute", address_of(pool_attribute)},
    {"cuMemPoolTrimTo", address_of(nothing)},
    {"cuMemAllocFromPoolAsync", address_of(pool_alloc)},
    {"cuMemFreeAsync", address_of(pool_free)},
    {"cuMemHostAlloc", address_of(host_alloc)},
    {"cuMemFreeHost", address_of(host_free)},
    {"cuMemsetD8Async", address_of(nothing)},
    {"cuStreamCreate", address_of(new_object)},
    {"cuStreamDestroy", address_of(nothing)},
    {"cuStreamGetId", address_of(stream_id)},
    {"cuStreamGetCtx", address_of(stream_context)},
    {"cuStreamIsCapturing", address_of(is_capturing)},
    {"cuStreamGetCaptureInfo", address_of(capture_info)},
    {"cuStreamWaitEvent", address_of(nothing)},
    {"cuStreamQuery", address_of(nothing)},
    {"cuStreamSynchronize", address_of(nothing)},
    {"cuEventCreate", address_of(new_object)},
    {"cuEventRecord", address_of(nothing)},
    {"cuEventQuery", address_of(nothing)},
    {"cuEventSynchronize", address_of(nothing)},
    {"cuEventDestroy", address_of(nothing)},
    {"cuThreadExchangeStreamCaptureMode", address_of(exchange_mode)},
};

}  // namespace

extern "C" __attribute__((visibility("default"))) Status cuGetProcAddress_v2(const char* symbol,
                                                                             void** function, int,
                                                                             std::uint64_t, int*) {
  for (const Entry& entry : kEntries) {
    if (entry.symbol == symbol) return *function = entry.function, kSuccess;
  }
  if (std::string_view(symbol).substr(0, 2) != "cu") return kNotFound;
  return *function = address_of(unsupported), kSuccess;
}
