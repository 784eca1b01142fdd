// SPDX-License-Identifier: Apache-2.0
// driver/sim: cost of each call on the virtual clock: measured, in an idle process and in a busy
// one.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "base/bytes.hpp"
#include "driver/driver.hpp"
#include "driver/sim/sim_types.hpp"

namespace vpmm::driver::sim {

// A cost by size: linear between measured sizes, in proportion beyond the last.
struct SizedCost {
  static constexpr std::array<Bytes, 6> kSizes = {2 * kMiB,   16 * kMiB, 64 * kMiB,
                                                  256 * kMiB, kGiB,      4 * kGiB};
  std::array<std::uint64_t, 6> ns;

  constexpr SizedCost plus(std::uint64_t more_ns) const {
    SizedCost sum = *this;
    for (std::uint64_t& each : sum.ns) each += more_ns;
    return sum;
  }
  constexpr std::uint64_t at(Bytes size) const {
    if (size <= kSizes.front()) return ns.front();
    for (std::size_t i = 1; i < kSizes.size(); ++i) {
      if (size > kSizes[i]) continue;
      const double part = static_cast<double>(size - kSizes[i - 1]) /
                          static_cast<double>(kSizes[i] - kSizes[i - 1]);
      const double step = static_cast<double>(ns[i]) - static_cast<double>(ns[i - 1]);
      return static_cast<std::uint64_t>(static_cast<double>(ns[i - 1]) + part * step);
    }
    return static_cast<std::uint64_t>(static_cast<double>(ns.back()) * static_cast<double>(size) /
                                      static_cast<double>(kSizes.back()));
  }
};

// Cost of creating, mapping and giving back chunks, and of querying free memory. A call about
// several mappings costs the sum over them.
struct MappingCosts {
  SizedCost create;
  SizedCost map;
  SizedCost set_access;
  SizedCost unmap;
  SizedCost release;
  std::uint64_t mem_get_info_ns = 0;
};

// In a process that does nothing else: medians of one H200, driver 580.
constexpr MappingCosts kIdleCosts{
    // clang-format off
    //               2 MiB  16 MiB  64 MiB 256 MiB    1 GiB      4 GiB
    .create =     {{ 7'700, 11'300, 10'800, 11'600,  27'800,    63'700}},
    .map =        {{   700,  1'100,    900,    700,     900,     1'200}},
    .set_access = {{22'800, 26'900, 26'000, 38'400,  54'500,   129'000}},
    .unmap =      {{14'900, 17'800, 14'600, 20'400,  29'300,    55'800}},
    .release =    {{ 9'000, 22'000, 25'000, 80'000, 295'000, 1'714'000}},
    .mem_get_info_ns = 10'000,
    // clang-format on
};

// Added in a process that computes meanwhile, for any size: means of ten training runs on H100s of
// 80 GB, driver 580 (mixtures of experts, a U-Net, an encoder: bench/torch), less kIdleCosts for
// their chunks. A call that sets access or unmaps counts once per mapping.
constexpr MappingCosts kBusyCosts{
    .create = kIdleCosts.create.plus(13'000),  // 15 to 30 us, 22 in the mean; less 9
    .map = kIdleCosts.map.plus(8'000),         // 7 to 11, 9 in the mean; less 1
    .set_access =
        kIdleCosts.set_access.plus(20'000),      // 37 to 53 a mapping, 45 in the mean; less 25
    .unmap = kIdleCosts.unmap.plus(32'000),      // 29 to 56 a mapping, 47 in the mean; less 15
    .release = kIdleCosts.release.plus(25'000),  // 26 to 73, 46 in the mean; less 21
    .mem_get_info_ns = 62'000,                   // 58 to 70
};

constexpr const MappingCosts& mapping_costs(Costs costs) {
  return costs == Costs::idle ? kIdleCosts : kBusyCosts;
}

// Other costs are the same in both kinds of process, for want of busy measurements.
//
// 2 MiB, 64 MiB and 1 GiB were measured; the others lie on the straight lines through them.
constexpr SizedCost kExportCost{{504'000, 546'000, 692'000, 714'000, 801'000, 1'150'000}};
constexpr SizedCost kSetAccessOfImportCost{
    {544'000, 564'000, 631'000, 667'000, 810'000, 1'380'000}};
constexpr SizedCost kPlainAllocCost{{28'000, 29'000, 32'000, 42'000, 77'000, 216'000}};
constexpr SizedCost kPlainFreeCost{{24'000, 28'000, 40'000, 86'000, 271'000, 1'010'000}};

// Costs without dependence on size or process. The calls above are charged apart and have 0 here.
constexpr std::uint64_t fixed_cost_ns(Call call) {
  switch (call) {
    case Call::mem_create:
    case Call::mem_map:
    case Call::mem_set_access:
    case Call::mem_unmap:
    case Call::mem_release:
    case Call::mem_export_to_shareable_handle:
    case Call::mem_alloc:
    case Call::mem_free:
    case Call::mem_get_info: return 0;
    case Call::mem_address_reserve: return 1'000;
    case Call::mem_address_free: return 2'000;
    case Call::mem_import_from_shareable_handle: return 17'000;
    case Call::mem_alloc_from_pool_async: return 350;
    case Call::mem_free_async: return 240;
    case Call::mem_host_alloc:
    case Call::mem_free_host:
    case Call::mem_host_register:  // from here on not measured: as dear as the two above
    case Call::mem_host_unregister:
    case Call::ipc_open_mem_handle:
    case Call::ipc_close_mem_handle: return 50'000;
    case Call::memcpy_host_to_device:
    case Call::memcpy_device_to_host: return 4'000;
    case Call::memcpy_host_to_device_async:
    case Call::memcpy_device_to_host_async:
    case Call::memcpy_device_to_device_async:
    case Call::memset_d8:
    case Call::memset_d8_async: return 2'000;
    case Call::graph_launch: return 4'000;
    case Call::graph_instantiate: return 20'000;
    case Call::stream_create:
    case Call::stream_destroy: return 5'000;
    case Call::event_create: return 150;
    case Call::event_record: return 180;
    case Call::event_query: return 200;
    case Call::event_destroy: return 110;
    case Call::stream_wait_event: return 140;
    case Call::ctx_record_event: return 230;
    case Call::stream_get_id: return 16;
    case Call::stream_is_capturing:
    case Call::stream_get_capture_info: return 13;
    case Call::ctx_get_current: return 7;
    default: return 20;
  }
}
constexpr std::uint64_t kLaunchCostNs = 2'800;
// Work on the device: bytes per nanosecond.
constexpr Bytes kDeviceBytesPerNs = 4'000;
constexpr Bytes kHostCopyBytesPerNs = 50;

}  // namespace vpmm::driver::sim
