// SPDX-License-Identifier: Apache-2.0
// context: events and waits that prove the end of GPU work.
#include "context/prover.hpp"

#include <algorithm>
#include <utility>

#include "base/host_memory.hpp"
#include "driver/context_scope.hpp"
#include "driver/driver_error.hpp"

namespace vpmm::context {

using driver::Call;
using driver::CuResult;
using Everything = time::Timelines::Everything;

namespace {

// Bound of one call, so that it does not stall others.
constexpr std::size_t kTimelinesAskedPerCall = 2;
constexpr Bytes kAnyStreamPendingLeast = 64 * kMiB;
constexpr Bytes kAnyStreamPendingDivisor = 5;  // 20 % of allocated bytes

}  // namespace

Result<void> Prover::settle(MutexLock& lock) {
  VPMM_TRY(learn(kTimelinesAskedPerCall));
  if (device_.driver_pool != nullptr) VPMM_TRY(device_.driver_pool->settle(lock));
  if (device_.pool != nullptr) VPMM_TRY(device_.pool->settle(lock));
  return settle_guarded(lock, guard::Guarded::kPerCall);
}

Result<void> Prover::settle_guarded(MutexLock& lock, std::size_t most) {
  if (device_.guard == nullptr || !device_.guard->has_freed()) return {};
  Result<void> settled = device_.guard->settle(lock, most);
  if (device_.guard->takes_lack_of_proof()) prove_everything();
  footprint_.tell_pool();
  return settled;
}

Result<bool> Prover::learn(std::size_t most) {
  Vector<time::StampPart> done;
  const Result<void> asked = device_.timelines.poll(most, done);
  device_.advance(done);  // also completions before a failure
  VPMM_TRY(device_.primary.noted(asked));
  return !done.empty();
}

// Captures of blocking streams show on the legacy stream, also those of the program.
bool Prover::may_record_context_event() {
  if (captures_.are_known()) return false;
  const auto is_capturing = [this] {
    driver::CaptureStatus status{};
    return device_.driver.stream_is_capturing(driver::kLegacyStream, status) != CuResult::success;
  };
  if (is_capturing() || !device_.primary.noted(peers_.find_contexts())) return false;
  const Vector<time::KnownContext>& others = device_.timelines.contexts().others;
  return std::none_of(others.begin(), others.end(), [&](const time::KnownContext& other) {
    const driver::ContextScope scope(device_.driver, other.handle);
    return scope.result() != CuResult::success || is_capturing();
  });
}

// Records one event in each context, by VPMM_ANY_STREAM: `context` of the whole context, `legacy`
// on its legacy stream (which waits for blocking streams only), `park` none.
bool Prover::prove_everything() {
  if (!may_record_context_event() ||
      device_.config.streams.any_stream == settings::AnyStreamOrder::park)
    return false;
  Everything how = Everything::context_event;
  if (device_.config.streams.any_stream == settings::AnyStreamOrder::legacy) {
    const bool needs_all =
        device_.timelines.is_every_stream_unproven() && device_.driver.has(Call::ctx_record_event);
    if (!needs_all) how = Everything::legacy_stream;
  }
  if (how == Everything::context_event && !device_.driver.has(Call::ctx_record_event)) return false;
  const Result<bool> closed = device_.primary.noted(device_.timelines.close_all(how));
  return closed && closed.value();
}

bool Prover::prove_now() {
  prove_everything();
  const Result<bool> has_more = learn(device_.timelines.count());
  return has_more && has_more.value();
}

void Prover::prove_if_due() {
  if (device_.timelines.is_due(device_.timelines.any_stream()) ||
      device_.timelines.is_due(device_.stamper.all_streams()))
    prove_everything();
}

void Prover::end_wait() {
  --waits_;
  wait_ended_.notify_all();
}

void Prover::await_no_wait(MutexLock& lock) {
  wait_ended_.wait(lock, [this]() VPMM_REQUIRES(pool_lock) { return waits_ == 0; });
}

// Note [A wait for the context keeps captures from beginning]
// A wait breaks any capture that begins before its end, so capture_begin waits for it. It covers
// all known contexts.
CuResult Prover::wait_for_contexts(MutexLock& lock) {
  const Vector<time::KnownContext> others = device_.timelines.contexts().others;
  begin_wait();
  CuResult result{};
  {
    const Unlocked unlocked(lock);
    const driver::RelaxedCaptureScope relaxed(
        device_.driver);  // streams of other contexts may be capturing
    result = device_.driver.ctx_synchronize();
    for (const time::KnownContext& other : others) {
      if (result != CuResult::success) break;
      const driver::ContextScope scope(device_.driver, other.handle);
      result =
          scope.result() == CuResult::success ? device_.driver.ctx_synchronize() : scope.result();
    }
  }
  end_wait();
  return result;
}

Result<bool> Prover::wait_for_everything(MutexLock& lock) {
  const Vector<time::StampPart> before = device_.timelines.numbers_so_far();
  VPMM_TRY(device_.primary.noted(driver::checked(Call::ctx_synchronize, wait_for_contexts(lock))));
  const Vector<time::StampPart> done = device_.timelines.mark_complete(before);
  device_.advance(done);
  return !done.empty();
}

bool Prover::synchronize(MutexLock& lock) {
  if (!may_record_context_event()) return false;
  ++host_waits_;
  const Result<bool> has_more = wait_for_everything(lock);
  return has_more && has_more.value();
}

// Any-stream memory waits for the whole context, so a host that runs ahead of the GPU could pile it
// up. Above the cap, waits for the oldest event with the lock dropped. `park` promises waits only
// in explicit synchronisation.
Result<void> Prover::bound_any_stream(MutexLock& lock) {
  if (device_.pool == nullptr ||
      device_.config.streams.any_stream == settings::AnyStreamOrder::park)
    return {};
  for (;;) {
    const time::Timeline& any = device_.timelines.any_stream();
    const Bytes cap = std::max(kAnyStreamPendingLeast,
                               device_.pool->memory().used_bytes() / kAnyStreamPendingDivisor);
    const auto is_within = [&]() VPMM_REQUIRES(pool_lock) {
      return device_.pool->memory().index.pending_bytes(any.id) +
                 device_.small->figures().pending_bytes(any.id) <=
             cap;
    };
    if (is_within()) return {};
    VPMM_TRY(settle(lock));
    if (is_within()) return {};
    if (!any.numbers.are_provable() && !prove_everything() && !synchronize(lock)) return {};
    std::shared_ptr<time::Event> proof =
        device_.timelines.proof_of({any.id, any.numbers.complete + 1});
    if (proof == nullptr) continue;
    ++host_waits_;
    VPMM_TRY(wait_for(lock, std::move(proof)));
  }
}

Result<void> Prover::wait_for(MutexLock& lock, std::shared_ptr<time::Event> proof) {
  CuResult waited{};
  {
    const Unlocked unlocked(lock);
    const driver::RelaxedCaptureScope relaxed(device_.driver);
    waited = device_.driver.event_synchronize(proof->handle());
  }
  proof.reset();  // under the lock: the event goes back to the event pool
  return driver::checked(Call::event_synchronize, waited);
}

}  // namespace vpmm::context
