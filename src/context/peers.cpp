// SPDX-License-Identifier: Apache-2.0
// context: search for contexts of peers, and for dead contexts.
#include "context/peers.hpp"

#include <algorithm>

#include "base/message.hpp"
#include "context/primary_context.hpp"
#include "driver/driver_error.hpp"

namespace vpmm::context {

using driver::Call;
using driver::CuResult;

Result<bool> Peers::can_access(driver::DeviceOrdinal peer) {
  int count = 0;
  VPMM_TRY(driver::checked(Call::device_get_count, device_.driver.device_get_count(count)));
  if (peer < 0 || peer >= count)
    return Error{ErrorCode::invalid_argument,
                 message_of("device {} does not exist: there are {}", peer, count)};
  bool can = false;
  VPMM_TRY(driver::checked(Call::device_can_access_peer, device_.driver.device_can_access_peer(
                                                             peer, device_.primary.device(), can)));
  return can;
}

void Peers::add(driver::DeviceOrdinal peer) {
  if (std::none_of(peers_.begin(), peers_.end(),
                   [&](const Peer& known) { return known.device == peer; }))
    peers_.push_back({peer, std::nullopt});
}

// Note [A peer's context is not made for it]
// A context costs hundreds of megabytes, and a device without an active primary context runs no
// work. So the pool only looks for active ones, before it proves or waits. It retains an active
// context, so that its events survive the release by others.
Result<void> Peers::find_contexts() {
  for (Peer& peer : peers_) {
    bool is_active = peer.context.has_value();
    if (is_active) continue;
    VPMM_TRY(driver::checked(Call::device_primary_ctx_get_state,
                             device_.driver.device_primary_ctx_get_state(peer.device, is_active)));
    if (!is_active) continue;
    time::KnownContext found;
    VPMM_TRY(driver::checked(Call::device_primary_ctx_retain,
                             device_.driver.device_primary_ctx_retain(peer.device, found.handle)));
    found.id =
        driver::ContextId{static_cast<std::uint64_t>(found.handle)};  // for a driver without ids
    const CuResult asked = device_.primary.has_ids()
                               ? device_.driver.ctx_get_id(found.handle, found.id)
                               : CuResult::success;
    if (asked != CuResult::success) {
      device_.driver.device_primary_ctx_release(peer.device);
      return driver::checked(Call::ctx_get_id, asked);
    }
    peer.context = found;
    device_.timelines.contexts().add(found);
  }
  return {};
}

// A retained context of a peer ends only with a reset. Before its events count as lost, the device
// must confirm that.
Result<bool> Peers::is_alive(const time::KnownContext& other) {
  driver::ContextId id{};
  const CuResult result = device_.driver.ctx_get_id(other.handle, id);
  if (result == CuResult::success) return id == other.id;
  if (!is_gone(result)) return driver::driver_error(Call::ctx_get_id, result);
  const auto peer =
      std::find_if(peers_.begin(), peers_.end(), [&](const Peer& p) { return p.context == other; });
  if (peer == peers_.end()) return false;
  bool is_active = false;
  VPMM_TRY(driver::checked(Call::device_primary_ctx_get_state,
                           device_.driver.device_primary_ctx_get_state(peer->device, is_active)));
  if (!is_active) return false;
  VPMM_TRY(driver::checked(Call::ctx_get_id, device_.driver.ctx_get_id(other.handle, id)));
  return id == other.id;
}

Result<Vector<time::KnownContext>> Peers::dead_contexts() {
  Vector<time::KnownContext> dead;
  if (device_.timelines.contexts().others.empty() || !device_.primary.has_ids()) return dead;
  for (const time::KnownContext& other : device_.timelines.contexts().others) {
    VPMM_TRY_ASSIGN(const bool lives, is_alive(other));
    if (!lives) dead.push_back(other);
  }
  return dead;
}

void Peers::forget(const time::KnownContext& dead) {
  for (Peer& peer : peers_)
    if (peer.context == dead) peer.context.reset();
}

void Peers::release() {
  for (const Peer& peer : peers_)
    if (peer.context) device_.driver.device_primary_ctx_release(peer.device);
}

}  // namespace vpmm::context
