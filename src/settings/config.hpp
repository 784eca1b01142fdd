// SPDX-License-Identifier: Apache-2.0
// settings: the settings of a pool: environment, checks, comparison and list.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/bytes.hpp"
#include "base/host_memory.hpp"
#include "base/result.hpp"
#include "observe/log_level.hpp"
#include "settings/variables.hpp"

namespace vpmm::settings {

enum class DriverKind { automatic, cuda, sim };
enum class SmallRequests { pool, stream_ordered };
enum class AnyStreamOrder { context, legacy, park };
// Streams with the last use of memory freed without a stream.
enum class UnnamedFree { any_stream, allocating_stream };

// VPMM_PREFER: least memory, or fewest driver calls.
enum class Prefer { footprint, balanced, latency };

struct Config {
  struct MemoryLimits {
    std::uint64_t max_mappings = 60'000;     // VPMM_MAX_MAPPINGS
    std::optional<Bytes> capacity;           // VPMM_CAPACITY; nullopt: the GPU's memory
    std::uint32_t capacity_percent = 0;      // VPMM_CAPACITY=80%: of that memory; 0: no share
    std::optional<Bytes> release_threshold;  // VPMM_RELEASE_THRESHOLD; nullopt: idle memory stays
    friend bool operator==(const MemoryLimits&, const MemoryLimits&) = default;
  };
  struct Checks {
    std::uint64_t guard_every = 0;  // VPMM_GUARD: guards one allocation in so many; 0: none
    bool fill_new = false;          // VPMM_FILL
    bool fill_freed = false;        // VPMM_FILL
    friend bool operator==(const Checks&, const Checks&) = default;
  };
  struct Streams {
    AnyStreamOrder any_stream = AnyStreamOrder::context;  // VPMM_ANY_STREAM
    UnnamedFree unnamed_free = UnnamedFree::any_stream;   // of the plugin interface
    // Times that a stream finds the lock taken, minus times free, before it cuts own pages.
    std::uint32_t crowded_after = 4;
    friend bool operator==(const Streams&, const Streams&) = default;
  };

  DriverKind driver = DriverKind::automatic;  // VPMM_DRIVER
  std::uint64_t pages = 0;         // VPMM_PAGES: preallocated at the first allocation, best effort
  std::optional<Bytes> page_size;  // VPMM_PAGE_SIZE; nullopt: the device's granularity
  bool pool_enabled = true;        // false: VPMM_PAGE_SIZE=max, all memory is stream-ordered
  Bytes va_size = 8 * kTiB;        // VPMM_VA_SIZE: one reservation
  bool page_chunks = false;  // VPMM_CHUNK_MAX=page: chunks of a page, the specification's policy
  Bytes chunk_max = 256 * kMiB;      // VPMM_CHUNK_MAX: largest chunk of the adaptive policy
  bool ipc_isolate = false;          // VPMM_IPC_ISOLATE: Note [Own chunks] for all allocations
  Prefer prefer = Prefer::balanced;  // VPMM_PREFER
  SmallRequests small = SmallRequests::pool;           // VPMM_SMALL
  observe::LogLevel log = observe::LogLevel::warning;  // VPMM_LOG
  MemoryLimits limits;
  Checks checks;
  Streams streams;
  friend bool operator==(const Config&, const Config&) = default;
};

const char* to_string(DriverKind kind);
const char* to_string(SmallRequests small);
const char* to_string(Prefer prefer);
const char* to_string(AnyStreamOrder order);
const char* to_string(UnnamedFree rule);
// The text of VPMM_FILL.
const char* fill_text(const Config& config);

// The defaults, changed by VPMM_ variables; an empty variable counts as unset. VPMM_PAGES counts as
// 0 in a child of a process that mapped pages ahead.
Result<Config> config_from_environment();
// Same; a variable with a wrong value counts as unset.
Config allowed_config_from_environment();
// Tells children of this process that it mapped pages ahead.
void note_mapped_ahead();
// Changes one setting, by the name and text of its variable.
Result<void> set(Config& config, std::string_view variable, std::string_view text);
// Checks settings that depend on the device. Call before a pool is opened.
Result<void> validate(const Config& config, Bytes granularity);
// The first difference, as "VPMM_PAGES is 0, not 16"; empty: none.
std::string difference(const Config& in_force, const Config& asked);

// Lists the settings of a pool, and problems of the environment's values.
Vector<SettingInForce> list_settings(const Config& config);

}  // namespace vpmm::settings
