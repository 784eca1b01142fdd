// context: the settings: read from the environment, checked, compared and listed.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/bytes.hpp"
#include "base/host_memory.hpp"
#include "base/result.hpp"
#include "observe/log_level.hpp"
#include "pool/config.hpp"

namespace vpmm::context {

enum class DriverKind { automatic, cuda, sim };
enum class SmallRequests { pool, stream_ordered };
enum class AnyStreamOrder { context, legacy, park };
// Whose work ends the use of memory that is freed without naming a stream.
enum class UnnamedFree { any_stream, allocating_stream };

// How a recording is made.
struct RecordOptions {
  std::string stacks = "none";  // of allocations: "native", "python" or "both"
  std::uint64_t sample = 1;     // one allocation in so many
  Bytes limit = 0;              // of the file; 0: none
  std::uint64_t window_ns = 0;  // how far back the file must reach; 0: to the beginning
};

// All settings, the pool's included.
struct Config : pool::Config {
  DriverKind driver = DriverKind::automatic;            // VPMM_DRIVER
  std::optional<Bytes> page_size;                       // VPMM_PAGE_SIZE; none: the device's granularity
  bool pool_enabled = true;                             // false: VPMM_PAGE_SIZE=max, everything is stream-ordered
  std::optional<Bytes> release_threshold;               // VPMM_RELEASE_THRESHOLD: idle memory above this is given back
  SmallRequests small = SmallRequests::pool;            // VPMM_SMALL
  AnyStreamOrder any_stream = AnyStreamOrder::context;  // VPMM_ANY_STREAM
  observe::LogLevel log = observe::LogLevel::warning;   // VPMM_LOG
  UnnamedFree unnamed_free = UnnamedFree::any_stream;
  bool ipc_isolate = false;  // VPMM_IPC_ISOLATE: whole pages, and chunks, for every allocation
  friend bool operator==(const Config&, const Config&) = default;
};

// "4096", "4096B", "64MiB", "2GB": a whole number and an optional unit, B, KiB to TiB (powers of 1024) or KB to TB
// (powers of 1000). Bare letters ("64M") are refused because programs disagree on what they mean.
Result<Bytes> parse_bytes(std::string_view text);
// The shortest text that parse_bytes turns into exactly `bytes`, in powers of 1024: "64MiB", "1500B".
std::string format_bytes(Bytes bytes);

const char* to_string(DriverKind kind);
const char* to_string(SmallRequests small);
const char* to_string(pool::Prefer prefer);
const char* to_string(AnyStreamOrder order);
const char* to_string(UnnamedFree rule);

// The defaults, changed by what the VPMM_ variables say. An empty variable counts as not set. VPMM_PAGES counts as 0 in
// a child of a process that mapped its pages ahead.
Result<Config> config_from_environment();
// Tells the children of this process that it has.
void note_mapped_ahead();
// Changes one setting by its variable's name, from text as the variable would hold it.
Result<void> set(Config& config, std::string_view variable, std::string_view text);
// What can only be judged with the device at hand. Whoever opens a pool calls it, wherever the settings came from.
Result<void> validate(const Config& config, Bytes granularity);
// The first setting that differs, as "VPMM_PAGES is 0, not 16"; empty when none does.
std::string difference(const Config& in_force, const Config& asked);

// VPMM_MAX_PENDING_DEALLOCS_COUNT and VPMM_MAX_PENDING_DEALLOCS_RATIO, with Numba's defaults.
struct PendingLimits {
  std::uint64_t count = 10;  // most frees that wait
  double ratio = 0.2;        // most bytes that wait, of the device's memory
};
Result<PendingLimits> pending_limits_from_environment();
// VPMM_IPC_DIR, VPMM_IPC_TIMEOUT and VPMM_IPC_GRACE.
struct IpcSettings {
  std::string folder;                 // of the sockets; empty: one of the user's own under /tmp
  std::uint64_t timeout_ms = 10'000;  // most that another process is waited for
  std::uint64_t grace_ms = 10'000;    // that a process has which is gone and cannot be watched
};
Result<IpcSettings> ipc_settings_from_environment();
// VPMM_RECORD, VPMM_RECORD_STACKS, VPMM_RECORD_SAMPLE, VPMM_RECORD_LIMIT and VPMM_RECORD_WINDOW.
struct RecordSettings {
  std::string file;  // as it was given; empty: nothing is recorded
  RecordOptions options;
};
Result<RecordSettings> record_settings_from_environment();
// VPMM_MEMORY_MANAGER: the path of a library, or the name of a memory manager of ours; empty: not set.
std::string memory_manager_from_environment();

struct SettingInForce {
  std::string name;  // the environment variable, or the field of the config struct where there is no variable
  std::string value;
  std::string allowed;
  std::string meaning;
};
Vector<SettingInForce> list_settings(const Config& config);

}  // namespace vpmm::context
