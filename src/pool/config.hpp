// pool: the settings of a pool. Defaults here, environment and validation in context/config.
#pragma once

#include <cstdint>
#include <optional>

#include "base/bytes.hpp"
#include "observe/log_level.hpp"

namespace vpmm::pool {

enum class DriverKind { automatic, cuda, sim };       // VPMM_DRIVER
enum class SmallRequests { pool, stream_ordered };    // VPMM_SMALL
enum class AnyStreamOrder { context, legacy, park };  // VPMM_ANY_STREAM
enum class Prefer { footprint, balanced, latency };   // VPMM_PREFER
// Whose work ends the use of memory that is freed without naming a stream.
enum class UnnamedFree { any_stream, allocating_stream };

struct Config {
  DriverKind driver = DriverKind::automatic;
  std::optional<Bytes> page_size;          // VPMM_PAGE_SIZE; none: the device's granularity
  bool pool_enabled = true;                // false: VPMM_PAGE_SIZE=max, everything is stream-ordered
  std::uint64_t pages = 0;                 // VPMM_PAGES: preallocated at the first allocation, best effort
  Bytes va_size = 8 * kTiB;                // VPMM_VA_SIZE: one reservation
  bool page_chunks = false;                // VPMM_CHUNK_MAX=page: one chunk per page and the specification's policy
  Bytes chunk_max = 256 * kMiB;            // VPMM_CHUNK_MAX: largest chunk of the adaptive policy
  Prefer prefer = Prefer::balanced;        // VPMM_PREFER: what the adaptive policy spends driver calls on
  std::optional<Bytes> release_threshold;  // VPMM_RELEASE_THRESHOLD: idle memory above this much mapped is given back
  std::uint64_t max_mappings = 60'000;     // VPMM_MAX_MAPPINGS
  SmallRequests small = SmallRequests::pool;            // VPMM_SMALL
  AnyStreamOrder any_stream = AnyStreamOrder::context;  // VPMM_ANY_STREAM
  observe::LogLevel log = observe::LogLevel::warning;   // VPMM_LOG
  UnnamedFree unnamed_free = UnnamedFree::any_stream;
  bool ipc_isolate = false;       // VPMM_IPC_ISOLATE: whole pages, and chunks, for every allocation
  std::optional<Bytes> capacity;  // most bytes the pool may map; none: what the GPU has
  friend bool operator==(const Config&, const Config&) = default;
};

}  // namespace vpmm::pool
