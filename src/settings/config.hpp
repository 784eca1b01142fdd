// settings: the settings of a pool: read from the environment, checked, compared and listed.
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
// Streams whose work ends the use of memory that is freed without a stream.
enum class UnnamedFree { any_stream, allocating_stream };

// The use that the pool makes of driver calls: VPMM_PREFER.
enum class Prefer { footprint, balanced, latency };

struct Config {
  DriverKind driver = DriverKind::automatic;  // VPMM_DRIVER
  std::uint64_t pages = 0;         // VPMM_PAGES: preallocated at the first allocation, best effort
  std::optional<Bytes> page_size;  // VPMM_PAGE_SIZE; none: the device's granularity
  bool pool_enabled = true;        // false: VPMM_PAGE_SIZE=max, everything is stream-ordered
  Bytes va_size = 8 * kTiB;        // VPMM_VA_SIZE: one reservation
  bool page_chunks = false;  // VPMM_CHUNK_MAX=page: chunks of a page, the specification's policy
  Bytes chunk_max = 256 * kMiB;         // VPMM_CHUNK_MAX: largest chunk of the adaptive policy
  bool ipc_isolate = false;             // VPMM_IPC_ISOLATE: Note [Own chunks], of every allocation
  Prefer prefer = Prefer::balanced;     // VPMM_PREFER
  std::uint64_t max_mappings = 60'000;  // VPMM_MAX_MAPPINGS
  std::optional<Bytes> capacity;  // VPMM_CAPACITY: limit of mapped bytes; none: the GPU's memory
  std::optional<Bytes> release_threshold;  // VPMM_RELEASE_THRESHOLD: idle memory above it goes back
  SmallRequests small = SmallRequests::pool;            // VPMM_SMALL
  AnyStreamOrder any_stream = AnyStreamOrder::context;  // VPMM_ANY_STREAM
  observe::LogLevel log = observe::LogLevel::warning;   // VPMM_LOG
  UnnamedFree unnamed_free = UnnamedFree::any_stream;   // of the plugin interface
  // Times by which a stream finds the lock taken more often than free before it cuts own pages.
  std::uint32_t crowded_after = 4;
  friend bool operator==(const Config&, const Config&) = default;
};

const char* to_string(DriverKind kind);
const char* to_string(SmallRequests small);
const char* to_string(Prefer prefer);
const char* to_string(AnyStreamOrder order);
const char* to_string(UnnamedFree rule);

// The defaults, changed by the VPMM_ variables. An empty variable counts as not set.
// VPMM_PAGES counts as 0 in a child of a process that mapped its pages ahead.
Result<Config> config_from_environment();
// The same, where a variable counts as not set whose value is not allowed.
Config allowed_config_from_environment();
// Tells the children of this process that it has.
void note_mapped_ahead();
// Changes one setting by its variable's name, from text as the variable would hold it.
Result<void> set(Config& config, std::string_view variable, std::string_view text);
// What can only be judged with the device at hand. Whoever opens a pool calls it, wherever the
// settings came from.
Result<void> validate(const Config& config, Bytes granularity);
// The first setting that differs, as "VPMM_PAGES is 0, not 16"; empty when none does.
std::string difference(const Config& in_force, const Config& asked);

// Of a pool with this configuration. What the environment holds is judged, too.
Vector<SettingInForce> list_settings(const Config& config);

}  // namespace vpmm::settings
