// context: other devices that may use the pool's memory, and the CUDA contexts in which their work runs.
#include <algorithm>

#include "base/host_memory.hpp"
#include "base/message.hpp"
#include "context/visit.hpp"
#include "driver/driver_error.hpp"

namespace vpmm::context {

using driver::Call;
using driver::CuResult;

Result<void> DeviceContext::set_peer_access(driver::DeviceOrdinal peer) {
  if (peer == device_) return {};
  VPMM_TRY(check_peer(peer));
  Visit visit(*this);
  VPMM_TRY(visit.status());
  VPMM_TRY(noted(pool_->set_peer_access(visit.lock(), peer)));
  if (std::none_of(peers_.begin(), peers_.end(), [&](const Peer& known) { return known.device == peer; }))
    peers_.push_back({peer, std::nullopt});
  return {};
}

Result<void> DeviceContext::check_peer(driver::DeviceOrdinal peer) {
  int count = 0;
  VPMM_TRY(driver::checked(Call::device_get_count, driver_.device_get_count(count)));
  if (peer < 0 || peer >= count)
    return mistake({ErrorCode::invalid_argument, message_of("device {} does not exist: there are {}", peer, count)});
  const auto unsupported = [&](std::string_view why) {
    return Error{ErrorCode::unsupported,
                 message_of("device {} cannot use memory of device {}: {}", peer, device_, why)};
  };
  bool can_access = false;
  VPMM_TRY(driver::checked(Call::device_can_access_peer, driver_.device_can_access_peer(peer, device_, can_access)));
  if (!can_access) return unsupported("the driver reports no peer access between them");
  if (!traits_.has_vmm) return unsupported("the latter does not support virtual memory management");
  if (pool_ == nullptr) return unsupported("VPMM_PAGE_SIZE switches the virtual memory pool off");
  if (driver_pool_ == nullptr) return {};
  return unsupported(config_.small == SmallRequests::stream_ordered
                         ? "VPMM_SMALL=stream_ordered takes requests below a page from the driver's own pool"
                         : "with this VPMM_PAGE_SIZE requests below a page come from the driver's own pool");
}

// Note [A peer's context is not made for it]
// A context costs hundreds of megabytes, and a device of which nobody has made the primary context active runs nothing.
// So the pool only looks, before it proves or waits for anything. One that it finds active it retains, for its events
// must not die with somebody else's release.
Result<void> DeviceContext::find_peer_contexts() {
  for (Peer& peer : peers_) {
    bool is_active = peer.context.has_value();
    if (is_active) continue;
    VPMM_TRY(driver::checked(Call::device_primary_ctx_get_state,
                             driver_.device_primary_ctx_get_state(peer.device, is_active)));
    if (!is_active) continue;
    time::KnownContext found;
    VPMM_TRY(
        driver::checked(Call::device_primary_ctx_retain, driver_.device_primary_ctx_retain(peer.device, found.handle)));
    found.id = driver::ContextId{static_cast<std::uint64_t>(found.handle)};  // of a driver that cannot tell
    const CuResult asked = has_context_ids_ ? driver_.ctx_get_id(found.handle, found.id) : CuResult::success;
    if (asked != CuResult::success) {
      driver_.device_primary_ctx_release(peer.device);
      return driver::checked(Call::ctx_get_id, asked);
    }
    peer.context = found;
    timelines_.know(found);
  }
  return {};
}

// A peer's context, which is retained, ends with a reset only; before its events are given up for lost, the device has
// to agree.
Result<bool> DeviceContext::is_alive(const time::KnownContext& other) {
  driver::ContextId id{};
  const CuResult result = driver_.ctx_get_id(other.handle, id);
  if (result == CuResult::success) return id == other.id;
  if (!is_gone(result)) return driver::driver_error(Call::ctx_get_id, result);
  const auto peer = std::find_if(peers_.begin(), peers_.end(), [&](const Peer& p) { return p.context == other; });
  if (peer == peers_.end()) return false;
  bool is_active = false;
  VPMM_TRY(driver::checked(Call::device_primary_ctx_get_state,
                           driver_.device_primary_ctx_get_state(peer->device, is_active)));
  if (!is_active) return false;
  VPMM_TRY(driver::checked(Call::ctx_get_id, driver_.ctx_get_id(other.handle, id)));
  return id == other.id;
}

// Their events die with them, those of peers' contexts (reset by others) and of contexts whose streams called.
Result<void> DeviceContext::forget_dead_others() {
  if (!has_context_ids_ || timelines_.other_contexts().empty()) return {};
  const Vector<time::KnownContext> others = timelines_.other_contexts();
  for (const time::KnownContext& other : others) {
    VPMM_TRY_ASSIGN(const bool lives, is_alive(other));
    if (lives) continue;
    const Vector<time::StampPart> done = timelines_.forget_context(other.id);
    advance(done);
    if (small_ != nullptr) small_->retire_idle();
    for (Peer& peer : peers_)
      if (peer.context == other) peer.context.reset();
  }
  return {};
}

void DeviceContext::release_peers() {
  for (const Peer& peer : peers_)
    if (peer.context) driver_.device_primary_ctx_release(peer.device);
}

}  // namespace vpmm::context
