// SPDX-License-Identifier: Apache-2.0
// driver/sim: options, kernels, hazards and the census.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/address.hpp"
#include "base/bytes.hpp"

namespace vpmm::driver::sim {

// Moment at which queued work runs.
enum class Schedule {
  timed,   // `lag_ns` (plus its own duration) after it could start, on the virtual clock
  random,  // at each driver call, by a seeded coin; unordered work in any order
  manual,  // only in step(), run_until_idle(), host waits and sleep_ns()
};

// Costs of calls on the virtual clock (costs.hpp).
enum class Costs {
  busy,  // of a process that launches work and computes
  idle,  // of a process that does nothing else
};

struct SimOptions {
  int device_count = 1;
  Bytes capacity = 139 * kGiB;  // of each device
  Bytes used_by_others = 0;     // part of the capacity that other processes hold
  Bytes granularity = 2 * kMiB;
  Bytes address_space = 128 * kTiB;  // all reservations together
  std::uint64_t max_mappings = 60'000;
  std::uint64_t seed = 1;
  Schedule schedule = Schedule::timed;
  std::uint64_t lag_ns = 0;
  Costs costs = Costs::busy;
  std::uint64_t max_hazard_records = 1'000'000;  // memory bound of the checker, see hazards.hpp
  // False: copies and fills take their time and move no bytes, and no hazard is looked for. Every
  // call has the same result at the same time.
  bool has_contents = true;
  // False: an address keeps its bytes whichever chunk is mapped there. Mappings then need no call
  // of the operating system; two of one chunk have bytes of their own, and so have other processes.
  bool has_aliases = true;
  bool vmm_supported = true;
  bool memory_pools_supported = true;
  bool posix_file_descriptor_supported = true;
  bool peer_access_supported = true;     // between any two devices
  bool context_events_supported = true;  // cuCtxRecordEvent, drivers from 12.5
};

struct MemoryAccess {
  enum class Kind { read, write };
  AddressRange range;
  Kind kind = Kind::write;
};

// Simulated GPU work; its accesses are checked, and `body` (may be empty) runs with the kernel.
struct Kernel {
  std::string name;
  std::uint64_t duration_ns = 0;
  std::vector<MemoryAccess> accesses;
  std::function<void()> body;
};

struct Hazard {
  enum class Kind {
    unordered_accesses,
    use_before_allocate,
    use_after_free,
    unmapped_access,
    unmapped_too_early
  };
  Kind kind = Kind::unordered_accesses;
  AddressRange range;   // virtual, as the later access named it
  std::string first;    // the earlier access: kind, stream, operation number
  std::string second;   // the later one
  std::string missing;  // the missing order
  std::string describe() const;
};

// Resources still held; all zero after a clean shutdown.
struct Census {
  std::uint64_t chunks = 0;
  std::uint64_t mappings = 0;
  std::uint64_t reservations = 0;
  std::uint64_t events = 0;
  std::uint64_t streams = 0;
  std::uint64_t pool_allocations = 0;
  std::uint64_t plain_allocations = 0;  // managed ones too
  std::uint64_t imports = 0;            // memory of other processes
  std::uint64_t pinned = 0;             // host memory, allocated or registered
  Bytes physical_bytes = 0;
};

}  // namespace vpmm::driver::sim
