// SPDX-License-Identifier: Apache-2.0
// capi: figures, snapshots and dumps of a pool.
#include <algorithm>
#include <cstring>

#include "capi/call.hpp"
#include "capi/versioned_struct.hpp"
#include "observe/render.hpp"

using namespace vpmm;
using namespace vpmm::capi;
using context::Context;

namespace {

constexpr std::uint32_t kStatisticsVersion = 1;
constexpr std::size_t kFirstStatistics = offsetof(vpmm_statistics, driver_ns) + sizeof(uint64_t);

constexpr std::size_t kFigures = 0
#define VPMM_STATISTIC(name, kind, meaning) +1
#include "observe/statistics.def"
#undef VPMM_STATISTIC
    ;
static_assert(sizeof(vpmm_statistics) ==
                  offsetof(vpmm_statistics, mapped_bytes) + kFigures * sizeof(uint64_t),
              "vpmm_statistics lists every figure of statistics.def");

vpmm_statistics to_struct(const observe::Statistics& figures) {
  vpmm_statistics out{};
  out.version = kStatisticsVersion;
#define VPMM_STATISTIC(name, kind, meaning) out.name = figures.name;
#include "observe/statistics.def"
#undef VPMM_STATISTIC
  return out;
}

vpmm_region_state state_of(char kind) {
  switch (kind) {
    case '-': return VPMM_REGION_FREE;
    case ' ': return VPMM_REGION_ALLOCATED;
    case '~': return VPMM_REGION_ZOMBIE;
    case '#': return VPMM_REGION_IN_FLIGHT;
    case '^': return VPMM_REGION_SUSPENDED;
    default: return VPMM_REGION_HOLE;
  }
}

vpmm_region to_struct(const observe::RegionSnapshot& region) {
  return {to_pointer(region.range.begin), region.range.size, region.requested,
          state_of(region.kind), region.complete};
}

char* copy_of(const std::string& text) {
  const std::size_t size = text.size() + 1;
  return static_cast<char*>(std::memcpy(new char[size], text.c_str(), size));
}

}  // namespace

vpmm_status vpmm_pool_device(vpmm_pool* pool, int* device) {
  return with_pool(pool, [&](Context& context) -> Result<void> {
    VPMM_TRY(require(device, "device"));
    *device = context.device();
    return {};
  });
}

vpmm_status vpmm_memory_info(vpmm_pool* pool, uint64_t* free_bytes, uint64_t* total_bytes) {
  return with_pool(pool, [&](Context& context) -> Result<void> {
    VPMM_TRY(require(free_bytes, "free_bytes"));
    VPMM_TRY(require(total_bytes, "total_bytes"));
    VPMM_TRY_ASSIGN(const auto info, context.limits().memory_info());
    *free_bytes = info.free;
    *total_bytes = info.total;
    return {};
  });
}

vpmm_status vpmm_get_statistics(vpmm_pool* pool, vpmm_statistics* statistics) {
  return with_pool(pool, [&](Context& context) -> Result<void> {
    VPMM_TRY(require(statistics, "statistics"));
    VPMM_TRY(check_size(statistics->size, kFirstStatistics, "vpmm_statistics"));
    copy_out(to_struct(context.reports().statistics()), statistics);
    return {};
  });
}

vpmm_status vpmm_reset_peaks(vpmm_pool* pool) {
  return with_pool(pool, [](Context& context) -> Result<void> {
    context.reports().reset_peaks();
    return {};
  });
}

vpmm_status vpmm_snapshot(vpmm_pool* pool, vpmm_region* regions, size_t capacity, size_t* count) {
  return with_pool(pool, [&](Context& context) -> Result<void> {
    VPMM_TRY(require(count, "count"));
    if (capacity != 0) VPMM_TRY(require(regions, "regions"));
    const auto snapshot = context.reports().snapshot();
    const std::size_t copied = std::min(capacity, snapshot.regions.size());
    for (std::size_t i = 0; i < copied; ++i) regions[i] = to_struct(snapshot.regions[i]);
    *count = snapshot.regions.size();
    return {};
  });
}

vpmm_status vpmm_dump_text(vpmm_pool* pool, char** text) {
  return with_pool(pool, [&](Context& context) -> Result<void> {
    VPMM_TRY(require(text, "text"));
    *text = copy_of(observe::to_text(context.reports().snapshot()));
    return {};
  });
}

vpmm_status vpmm_dump_json(vpmm_pool* pool, char** text) {
  return with_pool(pool, [&](Context& context) -> Result<void> {
    VPMM_TRY(require(text, "text"));
    *text = copy_of(observe::to_json(context.reports().snapshot()));
    return {};
  });
}

vpmm_status vpmm_explain(vpmm_pool* pool, const void* address, char** text) {
  return with_pool(pool, [&](Context& context) -> Result<void> {
    VPMM_TRY(require(text, "text"));
    VPMM_TRY_ASSIGN(const std::string found, context.reports().explain(to_device_ptr(address)));
    *text = copy_of(found);
    return {};
  });
}

void vpmm_string_free(char* text) { delete[] text; }
