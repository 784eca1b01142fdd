// pool: settings that the pool reads; context/config.hpp has the others, and their sources.
#pragma once

#include <cstdint>
#include <optional>

#include "base/bytes.hpp"

namespace vpmm::pool {

enum class Prefer { footprint, balanced, latency };

struct Config {
  std::uint64_t pages = 0;   // VPMM_PAGES: preallocated at the first allocation, best effort
  Bytes va_size = 8 * kTiB;  // VPMM_VA_SIZE: size of one reservation
  bool page_chunks =
      false;  // VPMM_CHUNK_MAX=page: one chunk per page and the specification's policy
  Bytes chunk_max = 256 * kMiB;      // VPMM_CHUNK_MAX: largest chunk of the adaptive policy
  bool ipc_isolate = false;          // VPMM_IPC_ISOLATE: Note [Own chunks] for every allocation
  Prefer prefer = Prefer::balanced;  // VPMM_PREFER: goal for which the adaptive policy spends
                                     // driver calls
  std::uint64_t max_mappings = 60'000;
  std::optional<Bytes> capacity;  // VPMM_CAPACITY: most bytes mapped; nullopt: the GPU's memory
  friend bool operator==(const Config&, const Config&) = default;
};

}  // namespace vpmm::pool
