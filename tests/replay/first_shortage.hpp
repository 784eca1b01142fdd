// SPDX-License-Identifier: Apache-2.0
// tests: the pool as a trace's allocator, and its figures at the first request that it refuses.
#pragma once

#include <optional>

#include "observe/statistics.hpp"
#include "replay/replay.hpp"

namespace vpmm::replay {

struct ShortReplay {
  ReplayResult result;
  std::optional<observe::Statistics>
      shortage;  // right after the first refusal; none: there was none
};

// Through the pool with the default settings, up to the first refusal.
Result<ShortReplay> replay_to_first_shortage(const observe::Trace& trace, Bytes capacity);

}  // namespace vpmm::replay
