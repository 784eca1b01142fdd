// context: learning what the GPU has finished, and making it provable.
#include <algorithm>

#include "base/host_memory.hpp"
#include "base/message.hpp"
#include "base/scope_exit.hpp"
#include "context/visit.hpp"
#include "driver/driver_error.hpp"

namespace vpmm::context {

using driver::Call;
using driver::CuResult;
using Everything = time::Timelines::Everything;

namespace {

// Bounded, so that no call stalls for others: of every call through the lock, and of one that finds no memory.
constexpr std::size_t kTimelinesAskedPerCall = 2;
constexpr std::size_t kTimelinesAskedPerMiss = 16;
constexpr Bytes kAnyStreamPendingLeast = 64 * kMiB;
constexpr Bytes kAnyStreamPendingDivisor = 5;  // 20 % of live

}  // namespace

// Phase 0 of every request: what is complete, then zombies, then frees that waited for it.
Result<void> DeviceContext::settle(MutexLock& lock) {
  VPMM_TRY(learn(kTimelinesAskedPerCall));
  if (driver_pool_ != nullptr) VPMM_TRY(driver_pool_->settle(lock));
  if (pool_ != nullptr) VPMM_TRY(pool_->settle(lock));
  return {};
}

Result<bool> DeviceContext::learn(std::size_t most) {
  Vector<time::StampPart> done;
  const Result<void> asked = timelines_.poll(most, done);
  advance(done);  // also what was learned before it failed
  VPMM_TRY(primary_.noted(asked));
  return !done.empty();
}

void DeviceContext::advance(const Vector<time::StampPart>& done) {
  if (pool_ == nullptr || done.empty()) return;
  pool_->advance(done);
  small_->advance(done);
}

bool DeviceContext::learn_for_miss() {
  const Result<bool> has_more = learn(kTimelinesAskedPerMiss);
  return has_more && has_more.value();
}

// A context-wide event breaks every capture of the context, so it is not for times of capture. Captures of blocking
// streams show on the legacy stream, whoever made them.
bool DeviceContext::may_record_context_event() {
  if (captures_.are_known()) return false;
  const auto is_capturing = [this] {
    driver::CaptureStatus status{};
    return driver_.stream_is_capturing(driver::kLegacyStream, status) != CuResult::success;
  };
  if (is_capturing() || !primary_.noted(peers_.find_contexts())) return false;
  const Vector<time::KnownContext>& others = timelines_.other_contexts();
  return std::none_of(others.begin(), others.end(), [&](const time::KnownContext& other) {
    const driver::ContextScope scope(driver_, other.handle);
    return scope.result() != CuResult::success || is_capturing();
  });
}

// Closes everything by one event in each context, as VPMM_ANY_STREAM says: `context` by one of the whole context,
// `legacy` by one on its legacy stream (which waits for blocking streams only), `park` not at all. True: something was
// closed.
bool DeviceContext::prove_everything() {
  if (!may_record_context_event() || config_.any_stream == AnyStreamOrder::park) return false;
  Everything how = Everything::context_event;
  if (config_.any_stream == AnyStreamOrder::legacy) {
    const bool needs_all = timelines_.is_every_stream_unproven() && timelines_.can_close_all();
    if (!needs_all) how = Everything::legacy_stream;
  }
  if (how == Everything::context_event && !timelines_.can_close_all()) return false;
  const Result<bool> closed = primary_.noted(timelines_.close_all(how));
  return closed && closed.value();
}

// Where the GPU has kept pace, the event is done at once. True: something became complete.
bool DeviceContext::prove_now() {
  prove_everything();
  const Result<bool> has_more = learn(timelines_.count());
  return has_more && has_more.value();
}

// For what the pool itself knows to be used by several streams: VPMM_ANY_STREAM is about memory whose streams nobody
// named.
time::Timeline& DeviceContext::all_streams() {
  if (config_.any_stream == AnyStreamOrder::legacy) return timelines_.every_stream();
  return timelines_.any_stream();
}

bool DeviceContext::is_proof_due() {
  return timelines_.is_due(timelines_.any_stream()) || timelines_.is_due(all_streams());
}

// Note [A wait for the context keeps captures from beginning]
// It would break any capture that begins before it is over, so capture_begin waits for it. It is for all contexts that
// are known.
CuResult DeviceContext::wait_for_contexts(MutexLock& lock) {
  const Vector<time::KnownContext> others = timelines_.other_contexts();
  ++context_waits_;
  CuResult result{};
  {
    const Unlocked unlocked(lock);
    const driver::RelaxedCaptureScope relaxed(driver_);  // a stream of another context may be capturing
    result = driver_.ctx_synchronize();
    for (const time::KnownContext& other : others) {
      if (result != CuResult::success) break;
      const driver::ContextScope scope(driver_, other.handle);
      result = scope.result() == CuResult::success ? driver_.ctx_synchronize() : scope.result();
    }
  }
  --context_waits_;
  context_wait_ended_.notify_all();
  return result;
}

// The last resort where events cannot prove: waits for everything that was queued before. False while anybody captures.
bool DeviceContext::synchronize_contexts(MutexLock& lock) {
  if (!may_record_context_event()) return false;
  const Vector<time::StampPart> before = timelines_.numbers_so_far();
  ++host_waits_;
  const CuResult result = wait_for_contexts(lock);
  if (!primary_.noted(driver::checked(Call::ctx_synchronize, result))) return false;
  const Vector<time::StampPart> done = timelines_.mark_complete(before);
  advance(done);
  return !done.empty();
}

// Any-stream memory waits for the whole context, so a host that runs ahead of the GPU could pile it up. Above the cap
// the oldest event is waited for, with the lock dropped. `park` promises to wait for explicit synchronisation only.
Result<void> DeviceContext::bound_any_stream(MutexLock& lock) {
  if (pool_ == nullptr || config_.any_stream == AnyStreamOrder::park || cleanup_holds_ != 0) return {};
  for (;;) {
    const time::Timeline& any = timelines_.any_stream();
    const Bytes cap = std::max(kAnyStreamPendingLeast, pool_->used_bytes() / kAnyStreamPendingDivisor);
    const auto is_within = [&]() VPMM_REQUIRES(pool_lock) {
      return pool_->pending_bytes(any.id) + small_->pending_bytes(any.id) <= cap;
    };
    if (is_within()) return {};
    VPMM_TRY(settle(lock));
    if (is_within()) return {};
    if (any.provable < any.last && !prove_everything() && !synchronize_contexts(lock)) return {};
    std::shared_ptr<time::Event> proof = timelines_.proof_of({any.id, any.complete + 1});
    if (proof == nullptr) continue;
    ++host_waits_;
    VPMM_TRY(wait_for(lock, std::move(proof)));
  }
}

Result<void> DeviceContext::wait_for(MutexLock& lock, std::shared_ptr<time::Event> proof) {
  CuResult waited{};
  {
    const Unlocked unlocked(lock);
    const driver::RelaxedCaptureScope relaxed(driver_);
    waited = driver_.event_synchronize(proof->handle());
  }
  proof.reset();  // goes back to the event pool, so under the lock
  return driver::checked(Call::event_synchronize, waited);
}

Result<void> DeviceContext::synchronize() {
  Visit visit(*this);
  VPMM_TRY(visit.status());
  MutexLock& lock = visit.lock();
  drain_deferred(lock);
  flush_caches();
  VPMM_TRY(primary_.noted(peers_.find_contexts()));
  if (!may_record_context_event()) return Error{ErrorCode::capture_active, "a stream is being captured"};
  const Vector<time::StampPart> before = timelines_.numbers_so_far();
  const CuResult result = wait_for_contexts(lock);
  VPMM_TRY(primary_.noted(driver::checked(Call::ctx_synchronize, result)));
  const Vector<time::StampPart> done = timelines_.mark_complete(before);
  advance(done);
  return primary_.noted(settle(lock));
}

Result<void> DeviceContext::wait_for_work() {
  Visit visit(*this);
  VPMM_TRY(visit.status());
  if (!may_record_context_event()) return Error{ErrorCode::capture_active, "a stream is being captured"};
  return primary_.noted(driver::checked(Call::ctx_synchronize, wait_for_contexts(visit.lock())));
}

bool DeviceContext::is_capturing() {
  Visit visit(*this);
  return visit.status() && !may_record_context_event();
}

// Waits first, so that the reset finds an idle context. Until the driver has done it nothing is given up: work that was
// queued meanwhile still runs where it refuses.
Result<void> DeviceContext::reset() {
  VPMM_TRY(synchronize());
  Visit visit(*this);
  VPMM_TRY(visit.status());
  const Visits::Alone alone(visits_, visit.lock());
  if (!may_record_context_event()) return Error{ErrorCode::capture_active, "a stream is being captured"};
  VPMM_TRY(primary_.reset());
  refresh_fast_path();
  static_cast<void>(open());  // the next call tries again, and reports it
  return {};
}

}  // namespace vpmm::context
