// context: looking for the contexts of peers, and for those that died.
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
// A context costs hundreds of megabytes, and a device of which nobody has made the primary context
// active runs nothing. So the pool only looks, before it proves or waits for anything. One that it
// finds active it retains, for its events must not die with somebody else's release.
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
    found.id = driver::ContextId{
        static_cast<std::uint64_t>(found.handle)};  // of a driver that cannot tell
    const CuResult asked = device_.primary.has_ids()
                               ? device_.driver.ctx_get_id(found.handle, found.id)
                               : CuResult::success;
    if (asked != CuResult::success) {
      device_.driver.device_primary_ctx_release(peer.device);
      return driver::checked(Call::ctx_get_id, asked);
    }
    peer.context = found;
    device_.timelines.know(found);
  }
  return {};
}

// A peer's context, which is retained, ends with a reset only; before its events are given up for
// lost, the device has to agree.
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
  if (device_.timelines.other_contexts().empty() || !device_.primary.has_ids()) return dead;
  for (const time::KnownContext& other : device_.timelines.other_contexts()) {
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
