// SPDX-License-Identifier: Apache-2.0
// pool: the stamp of a free: the work that may be the last to use the memory.
#pragma once

#include <atomic>
#include <optional>

#include "base/bytes.hpp"
#include "base/host_memory.hpp"
#include "base/mutex.hpp"
#include "pool/request.hpp"
#include "settings/config.hpp"
#include "time/stamp.hpp"
#include "time/timelines.hpp"

namespace vpmm::pool {

class Stamper {
 public:
  Stamper(time::Timelines& timelines, const settings::Config& config)
      : timelines_(timelines),
        any_stream_(config.streams.any_stream),
        unnamed_free_(config.streams.unnamed_free) {}

  // The streams whose work may use memory that is freed.
  struct Uses {
    std::optional<time::TimelineId> owner;   // the stream of the allocation
    const Vector<time::TimelineId>& others;  // named by record_use
    Bytes bytes;
    // True if the caller's stream is the only one.
    bool are_of(const Caller& caller) const {
      return others.empty() && caller.timeline != nullptr &&
             (!owner || owner == caller.timeline->id);
    }
  };
  // Note [Free on which stream]
  time::Stamp stamp_of(const Uses& uses, const Caller& caller) VPMM_REQUIRES(pool_lock);
  // Behind everything that is queued on any stream.
  time::Stamp stamp_of_all(Bytes bytes) VPMM_REQUIRES(pool_lock);
  // Call after the refusal of a free that named a stream. Any thread, no lock.
  // Note [A repeated free may lack its stream]
  void note_refused() { has_refused_.store(true, std::memory_order_relaxed); }
  // The timeline of memory that the pool itself knows to be used by several streams.
  // VPMM_ANY_STREAM is about memory freed without a stream.
  time::Timeline& all_streams() VPMM_REQUIRES(pool_lock);

 private:
  time::Timelines& timelines_;
  const settings::AnyStreamOrder any_stream_;
  const settings::UnnamedFree unnamed_free_;
  std::atomic<bool> has_refused_{false};
};

}  // namespace vpmm::pool
