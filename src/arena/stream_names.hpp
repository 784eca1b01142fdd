// SPDX-License-Identifier: Apache-2.0
// arena: keys of the streams that call.
#pragma once

#include <cstdint>
#include <thread>
#include <utility>

#include "arena/arena_table.hpp"

namespace vpmm::arena {

std::uint64_t stream_id_of(StreamKey key);  // 0: no known stream

class StreamNames {
 public:
  explicit StreamNames(ArenaTable& table) : table_(table) {}

  StreamKey key_of(const pool::Caller& caller) VPMM_REQUIRES(pool_lock);
  void clear() VPMM_REQUIRES(pool_lock) { names_.clear(); }

 private:
  // The thread tells per-thread default streams apart: they share one handle.
  using NamedStream = std::pair<driver::StreamHandle, std::thread::id>;
  void drop_unused() VPMM_REQUIRES(pool_lock);

  ArenaTable& table_;
  Map<NamedStream, StreamKey> names_
      VPMM_GUARDED_BY(pool_lock);  // Note [A capturing stream goes by its handle]
  std::uint64_t last_unknown_ VPMM_GUARDED_BY(pool_lock) = 0;
};

}  // namespace vpmm::arena
