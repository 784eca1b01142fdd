// driver/sim: what a caller sets, launches and gets back: options, kernels, hazards, the census.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/address.hpp"
#include "base/bytes.hpp"

namespace vpmm::driver::sim {

// When queued work runs.
enum class Schedule {
  timed,   // each operation ends `lag_ns` (plus its own duration) after it could start, on the
           // virtual clock
  random,  // at each driver call a seeded coin decides what, if anything, runs; unordered work in
           // any order
  manual,  // only step(), run_until_idle(), host waits and sleep_ns() run work
};

// What calls cost on the virtual clock (costs.hpp).
enum class Costs {
  busy,  // as in a process that launches work and computes
  idle,  // as in one that does nothing else
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

// Simulated GPU work; its accesses are checked, and `body` (may be empty) runs when the kernel
// does.
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
  std::string first;    // the earlier access: what, which stream, which operation number
  std::string second;   // the later one
  std::string missing;  // the order that would have made it legal
  std::string describe() const;
};

// What is still held; all zero after a clean shutdown.
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
