// SPDX-License-Identifier: Apache-2.0
// context: opening of a device, entry and exit.
#include "context/entrance.hpp"

#include "context/owners.hpp"
#include "driver/driver_error.hpp"
#include "observe/log.hpp"

namespace vpmm::context {

using driver::Call;
using driver::CuResult;

// Looks of one call: at streams that stay remembered, and at all streams.
constexpr std::size_t kLooksPerCall = 2;
constexpr std::size_t kMostLooksPerCall = 64;
constexpr std::size_t kTimelinesAsked = 16;

// --- a visit

// Note [A reset has nobody beside it]: a call that made the old context current and then waited for
// the lock enters again.
Visit::Visit(Entrance& entrance) : entrance_(entrance), parts_(entrance.parts_) {
  while (!enter()) {
    lock_.reset();
    scope_.reset();
  }
}

// Returns false if a reset came in between.
bool Visit::enter() {
  if (parts_.device.primary.is_poisoned()) {
    const PoolLock lock(parts_.mutex);
    status_ = *parts_.device.primary.poison();
    return true;
  }
  // Note [Host memory in reserve]
  {
    const HostPromise opening_may_need;
    status_ = opening_may_need.is_kept() ? entrance_.check_alive() : no_host_memory();
  }
  if (!status_) return true;
  const std::uint64_t opening = parts_.device.primary.openings();
  scope_.emplace(parts_.device.driver, parts_.device.primary.handle());
  lock_.emplace(parts_.mutex);
  entrance_.visits_.wait_to_enter(*lock_);
  if (parts_.device.primary.handle() == driver::ContextHandle{} ||
      parts_.device.primary.openings() != opening)
    return false;
  promise_.emplace();  // after the lock: waiting calls need no host memory
  if (!promise_->is_kept()) {
    status_ = no_host_memory();
    return true;
  }
  status_ = parts_.device.primary.noted(driver::checked(Call::ctx_set_current, scope_->result()));
  if (status_) status_ = parts_.device.primary.noted(entrance_.forget_dead_others());
  is_inside_ = true;
  entrance_.visits_.begin();
  return true;
}

Visit::~Visit() {
  if (pinned_ != nullptr) --pinned_->references;
  if (!is_inside_) return;
  entrance_.visits_.end();
  parts_.front.refresh();
  entrance_.is_visit_due_.store(!entrance_.is_quiet(), std::memory_order_relaxed);
}

Result<pool::Caller> Visit::identify(const pool::Stream& stream, const time::TimelineId* bound) {
  Result<pool::Caller> caller =
      parts_.device.primary.noted(parts_.captures.identify(stream, bound));
  // Gives cached memory an event, after a reset. Only now: the caller's stream may have been
  // capturing.
  if (caller && entrance_.has_noticed_reset_ && parts_.prover.may_record_context_event()) {
    entrance_.has_noticed_reset_ = false;
    parts_.prover.prove_everything();
  }
  if (!caller || caller.value().timeline == nullptr) return caller;
  pinned_ = caller.value().timeline;
  ++pinned_->references;
  // Counts its warm calls before the pool's index changes.
  parts_.footprint.note_peaks();
  return caller;
}

void Visit::begin_reset() {
  entrance_.visits_.begin_reset();
  entrance_.visits_.wait_alone(lock());
}

// Note [A hit needs no visit]
// A call that takes a free range, or frees one, and whose stream is known makes no driver call, so
// it does not need the device's context. The stream's id, asked for at each call, tells of a reset;
// calls of bound streams look for one. A visit does more: it looks at events, unmaps zombies,
// records events that are due for other streams, ends captures that are over, and keeps bounds. If
// none of these is due, the call of a program's only stream goes without one, with the same result.
time::Timeline* Entrance::timeline_without_visit(const StreamFront::Client& client) {
  if (client.cache == nullptr || !is_quiet()) return nullptr;
  if (client.cache->service.stream != static_cast<std::uint64_t>(client.id) ||
      client.cache->wants_attention)
    return nullptr;
  const std::optional<time::TimelineId> id = client.cache->timeline_now();
  time::Timeline* const timeline = id ? device_.timelines.find(*id) : nullptr;
  return timeline != nullptr && !device_.timelines.is_due(*timeline) ? timeline : nullptr;
}

bool Entrance::is_quiet() const {
  const settings::Config& config = device_.config;
  const StreamFront::Way way = parts_.front.way();
  return way.serves && way.log == nullptr && device_.timelines.stream_count() == 1 &&
         device_.timelines.outstanding_events() == 0 &&
         !device_.pool->memory().index.has_zombies() && !has_noticed_reset_ &&
         !parts_.captures.are_known() && !parts_.captures.has_ended() &&
         !parts_.allocations.has_deferred() && parts_.router.has_preallocated() &&
         device_.guard == nullptr && device_.driver_pool == nullptr && !config.page_chunks &&
         !config.limits.release_threshold;
}

// --- the CUDA context

Result<void> Entrance::check_alive() {
  const CuResult seen = device_.primary.look();
  if (seen == CuResult::success) return {};
  const PoolLock lock(parts_.mutex);
  Result<void> result =
      is_gone(seen) ? open() : device_.primary.noted(driver::checked(Call::ctx_get_id, seen));
  parts_.front.refresh();
  return result;
}

// At first use, or after a reset.
Result<void> Entrance::open() {
  VPMM_TRY_ASSIGN(const std::optional<time::KnownContext> found, device_.primary.retain());
  if (!found) return {};
  device_.timelines.contexts().primary = *found;
  if (device_.primary.openings() != 0) forget_dead(device_.primary.id());
  device_.primary.adopt(*found);
  return {};
}

// After the end of the old context's streams, events and work. Keeps chunks and their contents.
void Entrance::forget_dead(driver::ContextId dead) {
  observe::log(
      observe::LogLevel::info,
      "device {}: its CUDA context was reset; chunks are kept, streams and small memory are gone",
      device_.primary.device());
  forget_work_of(dead);
  for (const std::uint64_t capture : parts_.captures.all())
    parts_.allocations.release_capture(capture);
  parts_.footprint.forget_driver_pool();
  if (device_.guard != nullptr) device_.guard->forget_context();
  parts_.recorder.forget_unless([this](DevicePtr begin) VPMM_REQUIRES(pool_lock) {
    return !std::holds_alternative<Foreign>(Owners(device_, parts_.arenas).of(begin));
  });
  parts_.captures.forget_streams();
  parts_.arenas.forget_streams();
  has_noticed_reset_ = true;
}

void Entrance::forget_work_of(driver::ContextId dead) {
  device_.advance(device_.timelines.forget_context(dead));
  if (device_.small != nullptr) device_.small->flusher().retire_dead();
}

// Forgets contexts of peers and of streams that called: their events died with them.
Result<void> Entrance::forget_dead_others() {
  VPMM_TRY_ASSIGN(const Vector<time::KnownContext> dead, parts_.peers.dead_contexts());
  for (const time::KnownContext& context : dead) {
    forget_work_of(context.id);
    parts_.peers.forget(context);
  }
  return {};
}

void Entrance::leave(const pool::Caller& caller) {
  if (parts_.front.attend(caller) == StreamFront::Seen::before_it_was_forgotten)
    streams_kept_.came_back();
  if (parts_.recorder.is_sample_due()) totals_.sample();
  if (caller.may_queue()) {
    // Drops a failure: the timeline stays due, and a later call tries again.
    if (device_.timelines.is_due(*caller.timeline))
      static_cast<void>(
          device_.primary.noted(device_.timelines.close(*caller.timeline, *caller.stream)));
  } else {
    parts_.prover.prove_if_due();
  }
  // Hysteresis: bounded caches stay bounded until half as many streams are left.
  const bool were_many = device_.small != nullptr && device_.small->caches().are_bounded();
  const bool are_many = device_.timelines.stream_count() > kTimelinesKept / (were_many ? 2 : 1);
  if (device_.small != nullptr) device_.small->bounds().keep(are_many, caller);
  if (!are_many && device_.timelines.count() <= kTimelinesKept) return;
  sees_unproven_ = look_for_idle_streams();
}

// Memory freed by many streams serves others only once it is proven complete. If more is pending
// than in use, queries events, and records one context-wide event at a time for streams without own
// events.
void Entrance::learn_if_much_is_pending() {
  if (device_.small == nullptr || !device_.small->caches().are_bounded()) return;
  const Bytes pending =
      device_.pool->memory().index.pending_bytes() + device_.small->figures().pending_bytes();
  if (pending <= device_.small->bounds().live_and_cached_bytes()) return;
  if (sees_unproven_ && !device_.timelines.awaits_context_event()) parts_.prover.prove_everything();
  static_cast<void>(parts_.prover.learn(kTimelinesAsked));
}

// Looks at streams in turn until a few stay remembered; idle ones may be forgotten. Returns true if
// a stream that stays has frees without an event.
bool Entrance::look_for_idle_streams() {
  bool is_unproven = false;
  std::size_t stayed = 0;
  for (std::size_t looks = 0; looks < kMostLooksPerCall && stayed < kLooksPerCall; ++looks) {
    time::Timeline* const next = device_.timelines.next_in_turn();
    if (next == nullptr) break;
    const bool is_idle = device_.small == nullptr || device_.small->bounds().look_at(*next);
    if (!is_idle || device_.timelines.count() <= streams_kept_.most() || !is_forgotten(*next)) {
      is_unproven = is_unproven || !next->numbers.are_provable();
      ++stayed;
    }
  }
  return is_unproven;
}

// Forgets a timeline. Returns false if frees are pending on it, or an allocation or call needs it.
bool Entrance::is_forgotten(time::Timeline& timeline) {
  if (device_.small != nullptr) device_.small->bounds().give_back(timeline);
  if (!device_.timelines.may_be_forgotten(timeline)) return false;
  if (device_.small != nullptr) device_.small->bounds().retire(timeline);
  device_.timelines.forget(timeline);
  streams_kept_.is_forgotten();
  return true;
}

// Bounds memory that only the pool keeps.
void Entrance::keep_bounds(MutexLock& lock) {
  static_cast<void>(
      device_.primary.noted(parts_.prover.settle_guarded(lock, guard::Guarded::kPerCall)));
  bound_any_stream(lock);
  trim_above_threshold(lock);
}

void Entrance::bound_any_stream(MutexLock& lock) {
  if (!parts_.footprint.is_cleanup_held())
    static_cast<void>(device_.primary.noted(parts_.prover.bound_any_stream(lock)));
}

// Drops a failure: the next call tries again.
void Entrance::trim_above_threshold(MutexLock& lock) {
  if (!parts_.footprint.is_above_threshold()) return;
  parts_.footprint.flush_caches();
  parts_.arenas.give_back_idle(arena::Idle::stretches);
  if (device_.pool->memory().idle_bytes() == 0 ||
      !device_.primary.noted(parts_.prover.settle(lock)))
    return;
  const Result<Bytes> released =
      device_.primary.noted(device_.pool->trim(lock, *device_.config.limits.release_threshold));
  if (released && released.value() > 0) parts_.recorder.trimmed(released.value());
}

}  // namespace vpmm::context
