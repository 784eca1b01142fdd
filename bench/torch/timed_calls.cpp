// SPDX-License-Identifier: Apache-2.0
// torch: how long the process is inside CUDA calls that allocate, map and free, whichever allocator
// makes them.
//
// Loaded before PyTorch (LD_PRELOAD): its calls of the runtime, and what it asks the runtime for of
// the driver's interface, come through here. VPMM loads the driver by itself and has the same
// figure as `driver_ns`. A plain cudaFree waits for the GPU; that is part of what it costs.
#include <dlfcn.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>

#define VPMM_BENCH_API extern "C" __attribute__((visibility("default")))

namespace {

using Clock = std::chrono::steady_clock;

std::atomic<std::uint64_t> calls{0};
std::atomic<std::uint64_t> total_ns{0};

// Counts from its making to its end.
class Timed {
 public:
  Timed() = default;
  Timed(const Timed&) = delete;
  Timed& operator=(const Timed&) = delete;
  ~Timed() {
    const auto ns =
        std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - began_).count();
    total_ns.fetch_add(static_cast<std::uint64_t>(ns), std::memory_order_relaxed);
    calls.fetch_add(1, std::memory_order_relaxed);
  }

 private:
  Clock::time_point began_ = Clock::now();
};

// Of the CUDA runtime that PyTorch has loaded.
void* in_runtime(const char* name) {
  for (const char* library : {"libcudart.so.13", "libcudart.so.12"})
    if (void* const handle = dlopen(library, RTLD_LAZY | RTLD_NOLOAD))
      if (void* const found = dlsym(handle, name)) return found;
  return nullptr;
}

template <typename... Parameters>
using Call = int (*)(Parameters...);

// A function of the driver that was handed out timed; one of each name.
template <std::size_t kNumber, typename... Parameters>
struct Driver {
  static inline Call<Parameters...> real = nullptr;
  static int timed(Parameters... parameters) {
    const Timed time;
    return real(parameters...);
  }
  static void* wrap(void* found) {
    real = reinterpret_cast<Call<Parameters...>>(found);
    return reinterpret_cast<void*>(&timed);
  }
};

using Address = unsigned long long;

void* timed_driver_call(const char* name, void* found) {
  const auto is = [name](const char* other) { return std::strcmp(name, other) == 0; };
  if (is("cuMemCreate")) return Driver<0, Address*, std::size_t, const void*, Address>::wrap(found);
  if (is("cuMemRelease")) return Driver<1, Address>::wrap(found);
  if (is("cuMemMap"))
    return Driver<2, Address, std::size_t, std::size_t, Address, Address>::wrap(found);
  if (is("cuMemUnmap")) return Driver<3, Address, std::size_t>::wrap(found);
  if (is("cuMemSetAccess"))
    return Driver<4, Address, std::size_t, const void*, std::size_t>::wrap(found);
  if (is("cuMemAddressReserve"))
    return Driver<5, Address*, std::size_t, std::size_t, Address, Address>::wrap(found);
  if (is("cuMemAddressFree")) return Driver<6, Address, std::size_t>::wrap(found);
  return found;
}

// `name` in the runtime, found once.
#define VPMM_RUNTIME(name, ...)                                                    \
  static const auto real = reinterpret_cast<Call<__VA_ARGS__>>(in_runtime(#name)); \
  if (real == nullptr) return kNotLoaded

constexpr int kNotLoaded = 3;  // cudaErrorInitializationError

}  // namespace

VPMM_BENCH_API int cudaMalloc(void** ptr, std::size_t bytes) {
  VPMM_RUNTIME(cudaMalloc, void**, std::size_t);
  const Timed time;
  return real(ptr, bytes);
}

VPMM_BENCH_API int cudaFree(void* ptr) {
  VPMM_RUNTIME(cudaFree, void*);
  const Timed time;
  return real(ptr);
}

VPMM_BENCH_API int cudaMallocAsync(void** ptr, std::size_t bytes, void* stream) {
  VPMM_RUNTIME(cudaMallocAsync, void**, std::size_t, void*);
  const Timed time;
  return real(ptr, bytes, stream);
}

VPMM_BENCH_API int cudaFreeAsync(void* ptr, void* stream) {
  VPMM_RUNTIME(cudaFreeAsync, void*, void*);
  const Timed time;
  return real(ptr, stream);
}

VPMM_BENCH_API int cudaMemPoolTrimTo(void* pool, std::size_t bytes) {
  VPMM_RUNTIME(cudaMemPoolTrimTo, void*, std::size_t);
  const Timed time;
  return real(pool, bytes);
}

VPMM_BENCH_API int cudaGetDriverEntryPointByVersion(const char* name, void** function,
                                                    unsigned version, unsigned long long flags,
                                                    int* status) {
  VPMM_RUNTIME(cudaGetDriverEntryPointByVersion, const char*, void**, unsigned, unsigned long long,
               int*);
  const int result = real(name, function, version, flags, status);
  if (result == 0 && function != nullptr && *function != nullptr)
    *function = timed_driver_call(name, *function);
  return result;
}

// So far, in this process.
VPMM_BENCH_API void vpmm_bench_timed_calls(std::uint64_t* count, std::uint64_t* ns) {
  *count = calls.load(std::memory_order_relaxed);
  *ns = total_ns.load(std::memory_order_relaxed);
}
