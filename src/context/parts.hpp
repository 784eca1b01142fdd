// SPDX-License-Identifier: Apache-2.0
// context: the parts of a device's pool behind one lock.
#pragma once

#include <utility>

#include "arena/arenas.hpp"
#include "base/line_allocator.hpp"
#include "base/mutex.hpp"
#include "context/allocations.hpp"
#include "context/captures.hpp"
#include "context/device.hpp"
#include "context/footprint.hpp"
#include "context/host_copies.hpp"
#include "context/peers.hpp"
#include "context/prover.hpp"
#include "context/router.hpp"
#include "context/shares.hpp"
#include "context/stream_front.hpp"
#include "context/suspendable_tags.hpp"
#include "report/recorder.hpp"

namespace vpmm::context {

// Lock order: `mutex` (pool_lock), then the lock of one cache (cache_lock); the mapper's leaf mutex
// and the driver's own locks below `mutex`. A call passes gate, current context and lock in this
// order, so the driver never changes contexts under the lock.
struct Parts {
  Parts(driver::Driver& driver, driver::DeviceOrdinal ordinal, const settings::Config& config,
        const DeviceTraits& traits)
      : device(driver, ordinal, config, traits),
        front(device, recorder, tags),
        captures(device),
        peers(device),
        recorder(device.driver, ordinal),
        footprint(device),
        prover(device, captures, peers, footprint),
        arenas(device.pool.get(), device.small.get(), device.timelines, device.stamper, recorder,
               device.config.ipc_isolate),
        tags(arenas),
        shares(device, arenas),
        allocations(device, captures, arenas, shares, host_copies, recorder, prover),
        router(device, captures, footprint, recorder, prover, arenas, allocations) {
    if (device.small != nullptr) device.small->warm_calls().heed(mutex);
  }

  // Call after a change of listeners or recordings.
  void listeners_changed() VPMM_REQUIRES(pool_lock) {
    if (device.pool != nullptr)
      device.pool->set_mapping_observer(recorder.wants_mappings() ? &recorder : nullptr);
    front.refresh();
  }

  // Counts a caller's mistake, and returns its error.
  Error mistake(Error error) {
    const PoolLock lock(mutex);
    return allocations.mistake(std::move(error));
  }

  alignas(kCacheLine) mutable Mutex mutex;
  Device device;
  // Read by every call without the lock, as the end of `device`.
  StreamFront front;
  Captures captures;
  // Under `mutex`. Each part knows only parts above it.
  alignas(kCacheLine) Peers peers;
  report::Recorder recorder;
  Footprint footprint;
  Prover prover;
  arena::Arenas arenas;
  SuspendableTags tags;
  HostCopies host_copies;
  Shares shares;
  Allocations allocations;
  Router router;
};

}  // namespace vpmm::context
