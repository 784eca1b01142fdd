// SPDX-License-Identifier: Apache-2.0
// context: sums of the statistics of the parts.
#include "context/totals.hpp"

namespace vpmm::context {

observe::Statistics Totals::now() const {
  observe::Statistics figures;
  device_.fill(figures);
  parts_.footprint.fill(figures);
  figures.free_bytes += parts_.arenas.free_bytes();
  figures.pending_bytes += parts_.arenas.pending_bytes();
  figures.host_copy_bytes = parts_.host_copies.bytes();
  figures.leased_bytes = parts_.shares.freed_bytes();
  figures.timelines = device_.timelines.stream_count();
  figures.outstanding_events = device_.timelines.outstanding_events();
  figures.events_recorded = device_.timelines.events_recorded();
  figures.failed_allocations = failed_allocations_;
  figures.caller_mistakes = parts_.allocations.mistakes();
  figures.host_waits += parts_.prover.host_waits();
  figures.pauses = parts_.router.slow_path().pauses();
  figures.driver_calls = device_.driver.memory_call_count();
  figures.driver_ns = device_.driver.memory_call_ns();
  return figures;
}

Bytes Totals::movable_bytes() const {
  const Set<Bytes> used_pages = device_.small->figures().used_pages();
  return device_.pool->memory().movable_bytes(
      [&](const region::Region& region, AddressRange part) VPMM_REQUIRES(pool_lock) {
        if (small::is_cut(region))
          return !used_pages.contains(to_integer(region.range.begin) / device_.page_size);
        return small::is_cached(region) || parts_.arenas.is_idle(part);
      });
}

void Totals::sample() {
  if (!parts_.recorder.is_recording()) return;
  const observe::Statistics figures = now();
  parts_.recorder.sample(figures.mapped_bytes, figures.pending_bytes, figures.free_bytes);
}

}  // namespace vpmm::context
