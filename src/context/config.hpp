// context: the settings: read from the environment, checked, compared and listed.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/bytes.hpp"
#include "base/host_memory.hpp"
#include "base/result.hpp"
#include "context/variables.hpp"
#include "observe/log_level.hpp"
#include "pool/config.hpp"

namespace vpmm::context {

enum class DriverKind { automatic, cuda, sim };
enum class SmallRequests { pool, stream_ordered };
enum class AnyStreamOrder { context, legacy, park };
// Whose work ends the use of memory that is freed without naming a stream.
enum class UnnamedFree { any_stream, allocating_stream };

// All settings, the pool's included.
struct Config : pool::Config {
  DriverKind driver = DriverKind::automatic;  // VPMM_DRIVER
  std::optional<Bytes> page_size;             // VPMM_PAGE_SIZE; none: the device's granularity
  bool pool_enabled = true;  // false: VPMM_PAGE_SIZE=max, everything is stream-ordered
  std::optional<Bytes>
      release_threshold;  // VPMM_RELEASE_THRESHOLD: idle memory above this is given back
  SmallRequests small = SmallRequests::pool;            // VPMM_SMALL
  AnyStreamOrder any_stream = AnyStreamOrder::context;  // VPMM_ANY_STREAM
  observe::LogLevel log = observe::LogLevel::warning;   // VPMM_LOG
  UnnamedFree unnamed_free = UnnamedFree::any_stream;
  std::uint32_t crowded_after =
      4;  // how often a stream finds the lock taken before it cuts pages of its own
  friend bool operator==(const Config&, const Config&) = default;
};

const char* to_string(DriverKind kind);
const char* to_string(SmallRequests small);
const char* to_string(pool::Prefer prefer);
const char* to_string(AnyStreamOrder order);
const char* to_string(UnnamedFree rule);

// The defaults, changed by what the VPMM_ variables say. An empty variable counts as not set.
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

}  // namespace vpmm::context
