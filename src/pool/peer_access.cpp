// SPDX-License-Identifier: Apache-2.0
// pool: access of other devices to mapped memory.
#include "pool/peer_access.hpp"

#include <algorithm>

#include "base/host_memory.hpp"
#include "base/scope_exit.hpp"

namespace vpmm::pool {

using region::Region;
using region::RegionState;

// Note [Access carries a version]
// A device joins the mapper's list first, which raises the version, and gets access to all later
// mappings; no lock is held across either. A mapping in progress is not in the table yet. It is
// published only under the current version; otherwise it catches up. So a mapping that the walk
// below misses gets access before its publication. Mappings found by the walk may not be unmapped
// before the walk ends, even if a plan has detached them, as an undone plan returns them to use:
// sweeps, trims and plans wait for the walk, and the walk waits for unmaps begun before. No other
// code unmaps mappings of the table. Zombies are left out: work of a peer never saw their
// addresses.
Result<void> PeerAccess::allow(MutexLock& lock, driver::DeviceOrdinal peer) {
  memory_.flights.wait_for_grant(lock);
  if (std::find(peers_.begin(), peers_.end(), peer) != peers_.end()) return {};
  const Flights::Grant grant_in_progress(memory_.flights, lock);
  Result<void> granted = grant(lock, peer);
  if (granted) peers_.push_back(peer);
  return granted;
}

Result<void> PeerAccess::grant(MutexLock& lock, driver::DeviceOrdinal peer) {
  {
    const Unlocked unlocked(lock);
    memory_.mapper.add_device(peer);
  }
  const Vector<AddressRange> runs = mapped_runs();
  const Unlocked unlocked(lock);
  Result<void> granted;
  for (const AddressRange& run : runs) {
    granted = memory_.mapper.set_access(run, peer);
    if (!granted) break;
  }
  if (!granted) memory_.mapper.remove_device(peer);
  return granted;
}

// Returns all mappings but zombies, as runs of adjacent whole mappings.
Vector<AddressRange> PeerAccess::mapped_runs() const {
  Vector<AddressRange> runs;
  memory_.index.for_each([&](const Region& region) VPMM_REQUIRES(pool_lock) {
    if (region.state == RegionState::zombie || region.state == RegionState::hole) return;
    memory_.chunks.for_each_around(region.range, [&](const vm::Mapping& mapping) {
      if (!region.range.contains(mapping.at)) return;  // counted with the region before
      const bool begins_reservation =
          region.previous == nullptr && mapping.at == region.range.begin;
      if (runs.empty() || begins_reservation || runs.back().end() != mapping.at)
        runs.push_back({mapping.at, 0});
      runs.back().size += mapping.chunk->size;
    });
  });
  return runs;
}

}  // namespace vpmm::pool
