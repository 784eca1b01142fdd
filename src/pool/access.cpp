// pool: which other devices may use what is mapped.
#include <algorithm>

#include "base/host_memory.hpp"
#include "base/scope_exit.hpp"
#include "pool/pool.hpp"

namespace vpmm::pool {

using region::Region;
using region::RegionState;

// Note [Access carries a version]
// A device is put on the mapper's list first, which raises the version, and gets what is mapped afterwards; no lock is
// held across either. What a request maps meanwhile is not in the table yet. It was mapped under some version of the
// list and is published only when that is the current one; else it catches up. So whatever the walk below does not
// find gets access before anybody sees it. What it does find may not be unmapped before the walk is over, also where a
// plan has taken it out of the index, for an undone plan puts it back into use: sweeps and trims wait for the walk, and
// the walk waits for those that had begun. Nothing else unmaps what is in the table. Zombies are left out: work of a
// peer never saw their addresses. So are shadows, for the rest of their chunk is found.
Result<void> Pool::set_peer_access(MutexLock& lock, driver::DeviceOrdinal peer) {
  wait_for_grant(lock);
  if (std::find(peers_.begin(), peers_.end(), peer) != peers_.end()) return {};
  is_granting_ = true;
  const ScopeExit settle([this] {
    is_granting_ = false;
    access_settled_.notify_all();
  });
  access_settled_.wait(lock, [this] { return unmappings_ == 0; });
  Result<void> granted = grant(lock, peer);
  if (granted) peers_.push_back(peer);
  return granted;
}

Result<void> Pool::grant(MutexLock& lock, driver::DeviceOrdinal peer) {
  {
    const Unlocked unlocked(lock);
    mapper_.add_device(peer);
  }
  const Vector<AddressRange> runs = mapped_runs();
  const Unlocked unlocked(lock);
  Result<void> granted;
  for (const AddressRange& run : runs) {
    granted = mapper_.set_access(run, peer);
    if (!granted) break;
  }
  if (!granted) mapper_.remove_device(peer);
  return granted;
}

// Everything that is mapped but zombies, in runs of adjacent whole mappings. A chunk may lie in several regions.
Vector<AddressRange> Pool::mapped_runs() const {
  Vector<AddressRange> runs;
  index_.for_each([&](const Region& region) {
    if (region.state == RegionState::zombie || region.state == RegionState::shadow) return;
    AddressRange run;
    chunks_.for_each_around(region.range, [&](const vm::Mapping& mapping) {
      if (!runs.empty() && mapping.at < runs.back().end()) return;
      if (run.empty()) run.begin = mapping.at;
      run.size += mapping.chunk->size;
    });
    if (!run.empty()) runs.push_back(run);
  });
  return runs;
}

void Pool::wait_for_grant(MutexLock& lock) {
  if (is_granting_) access_settled_.wait(lock, [this] { return !is_granting_; });
}

}  // namespace vpmm::pool
