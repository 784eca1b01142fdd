// SPDX-License-Identifier: Apache-2.0
// torch: the pool behind PyTorch's pluggable allocator, with what its driver calls took. No
// product: it has no statistics, no graphs' pools and no recovery, for the pluggable interface has
// none.
#include <sys/types.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <mutex>
#include <unordered_map>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "context/context.hpp"
#include "context/open_driver.hpp"
#include "driver/timing.hpp"
#include "settings/config.hpp"

#define VPMM_BENCH_API extern "C" __attribute__((visibility("default")))

namespace vpmm {
namespace {

[[noreturn]] void give_up(const Error& error) {
  fmt::print(stderr, "{}\n", error.message);
  std::fflush(stderr);
  _exit(3);  // the interface has no way to say it
}

template <typename T>
T value_of(Result<T> result) {
  if (!result) give_up(result.error());
  return std::move(result.value());
}

// Never destroyed: PyTorch frees when static objects are gone.
struct Pool {
  std::unique_ptr<driver::Driver> cuda = value_of(context::open_driver(settings::DriverKind::cuda));
  std::unique_ptr<driver::TimingDriver> timing = std::make_unique<driver::TimingDriver>(*cuda);
  std::unique_ptr<context::Context> context =
      value_of(context::Context::create(*timing, 0, value_of(settings::config_from_environment())));
  std::mutex mutex;  // of what follows
  std::unordered_map<void*, Bytes> rounded;
  Bytes live = 0;  // requests of a page and more rounded up to pages
  Bytes peak_live = 0;

  static Pool& the() {
    static auto* const pool = new Pool;
    return *pool;
  }
};

Bytes rounded_to_pages(Bytes bytes) {
  constexpr Bytes kPage = 2 * kMiB;
  return bytes < kPage ? bytes : round_up(bytes, kPage);
}

}  // namespace

VPMM_BENCH_API void* vpmm_bench_torch_allocate(ssize_t bytes, int /*device*/, void* stream) {
  if (bytes <= 0) return nullptr;
  Pool& pool = Pool::the();
  const auto size = static_cast<Bytes>(bytes);
  const driver::StreamHandle on{reinterpret_cast<std::uintptr_t>(stream)};
  void* const begin =
      reinterpret_cast<void*>(to_integer(value_of(pool.context->allocate({size, 0, on}))));
  const std::lock_guard lock(pool.mutex);
  pool.rounded[begin] = rounded_to_pages(size);
  pool.live += rounded_to_pages(size);
  pool.peak_live = std::max(pool.peak_live, pool.live);
  return begin;
}

VPMM_BENCH_API void vpmm_bench_torch_deallocate(void* ptr, ssize_t /*bytes*/, int /*device*/,
                                                void* stream) {
  if (ptr == nullptr) return;
  Pool& pool = Pool::the();
  {
    const std::lock_guard lock(pool.mutex);
    const auto found = pool.rounded.find(ptr);
    if (found != pool.rounded.end()) {
      pool.live -= found->second;
      pool.rounded.erase(found);
    }
  }
  const driver::StreamHandle on{reinterpret_cast<std::uintptr_t>(stream)};
  const Result<void> freed =
      pool.context->deallocate(DevicePtr{reinterpret_cast<std::uintptr_t>(ptr)}, on);
  if (!freed) give_up(freed.error());
}

// What happened so far, as JSON into a file.
VPMM_BENCH_API void vpmm_bench_torch_report(const char* path) {
  Pool& pool = Pool::the();
  const observe::Statistics figures = pool.context->reports().statistics();
  nlohmann::json report{
      {"page_rounded_live_bytes", pool.peak_live}, {"live_bytes", figures.peak_live_bytes},
      {"held_bytes", figures.peak_mapped_bytes},   {"driver_ms", figures.driver_ns / 1'000'000},
      {"allocations", figures.allocations},        {"mappings_at_the_end", figures.mappings}};
  for (const driver::CallTimes& call : pool.timing->times()) {
    if (!driver::is_memory_call(call.call)) continue;
    report["calls"][driver::to_string(call.call)] = {
        {"count", call.count},   {"total_us", call.total_ns / 1000},
        {"p50_ns", call.p50_ns}, {"p90_ns", call.p90_ns},
        {"p99_ns", call.p99_ns}, {"max_ns", call.max_ns}};
  }
  if (std::FILE* const file = std::fopen(path, "w")) {
    fmt::print(file, "{}\n", report.dump(1));
    std::fclose(file);
  }
}

}  // namespace vpmm
