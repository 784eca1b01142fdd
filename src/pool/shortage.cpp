// pool: what is tried, in order, before a request fails for lack of memory.
#include <algorithm>

#include "base/message.hpp"
#include "observe/log.hpp"
#include "pool/pool.hpp"

namespace vpmm::pool {

namespace {

// A timeline that was asked for proof this many misses ago and has not called since will not: its stream is gone or
// idle.
constexpr std::uint64_t kMissesUntilGivenUp = 8;

// Between two looks of a wait for the GPU: little beside a wait that was short, and what looks cost beside a long one.
constexpr std::uint64_t kFirstSleepNs = 20'000;
constexpr std::uint64_t kLongestSleepNs = 160'000;

bool is_shortage(const Result<DevicePtr>& result) { return !result && result.error().code == ErrorCode::out_of_memory; }

}  // namespace

// Asks the owners of pending memory for proof at their next call; proves for those that do not call, and for all when
// the footprint would grow past its budget meanwhile.
void Pool::want_proof(const PageRequest& request, const Caller& caller) {
  const Need need = need_of(request, caller);
  const bool is_urgent = policy_->wants_proof_now(need.demand(need.size));
  bool is_unanswered = false;
  timelines_.for_each([&](time::Timeline& timeline) {
    if (&timeline == caller.timeline || timeline.provable == timeline.last) return;
    const bool is_in_pieces = relief_.is_pending_in_pieces && relief_.is_pending_in_pieces(timeline.id);
    if (index_.pending_bytes(timeline.id) == 0 && !is_in_pieces) return;
    if (!timeline.wanted) {
      timeline.wanted = true;
      timeline.wanted_since = misses_;
    }
    is_unanswered = is_unanswered || is_urgent || misses_ - timeline.wanted_since >= kMissesUntilGivenUp;
  });
  if (is_unanswered && relief_.prove_everything()) {
    timelines_.for_each([&](time::Timeline& timeline) { timeline.wanted_since = misses_; });
  }
}

// The order of the specification of running out (docs/architecture.md): what is on its way back, zombies, every idle
// chunk, chunks made anew, caches, waits on the GPU, waits of the host. The out-of-memory callback is the context's,
// after all of these. Nothing is attempted again that no step has helped.
Result<DevicePtr> Pool::allocate_short(MutexLock& lock, const PageRequest& request, const Caller& caller,
                                       Result<DevicePtr> result) {
  const bool has_drained = relief_.drain_deferred(lock);
  if (wait_for_flights(lock) || has_drained) result = attempt(lock, request, caller, Effort::by_policy);
  if (!is_shortage(result)) return result;
  const Bytes held = chunks_.chunk_bytes();
  const std::uint64_t mappings = chunks_.mapping_count();
  VPMM_TRY_ASSIGN(bool is_back, learn(timelines_.count()));
  VPMM_TRY(sweep(lock, mappings));
  is_back = is_back || chunks_.chunk_bytes() != held || chunks_.mapping_count() != mappings;
  while (relief_.recall && relief_.recall(caller, request.size, true)) is_back = true;
  if (is_back || idle_bytes() > 0) result = attempt(lock, request, caller, Effort::move_first);
  if (!is_shortage(result)) return result;
  VPMM_TRY_ASSIGN(const bool has_room, make_room(lock, request));
  if (has_room) result = attempt(lock, request, caller, Effort::grow_only);
  if (!is_shortage(result)) return result;
  if (relief_.give_back_caches(lock)) result = attempt(lock, request, caller, Effort::move_first);
  if (!is_shortage(result)) return result;
  if (caller.may_queue() && index_.pending_bytes() > 0) result = attempt(lock, request, caller, Effort::wait_too);
  while (is_shortage(result)) {
    VPMM_TRY_ASSIGN(const bool has_waited, wait_for_any(lock, caller));
    if (!has_waited) break;
    result = attempt(lock, request, caller, caller.may_queue() ? Effort::wait_too : Effort::move_first);
  }
  if (!is_shortage(result)) return result;
  Error error{ErrorCode::out_of_memory,
              message_of("out of device memory: {}; {}", shortage_report(request), result.error().message)};
  observe::log(observe::LogLevel::warning, "{}", error.message);
  return error;
}

// Note [Chunks are made anew]
// Where the number of mappings is at its limit, ours or the driver's, idle chunks cannot move although they are enough.
// Given back, they make room for one chunk that needs one mapping. Only if they are enough: else they would be lost for
// nothing.
Result<bool> Pool::make_room(MutexLock& lock, const PageRequest& request) {
  Bytes room = growth_room();
  if (driver::MemInfo info; driver_.mem_get_info(info) == driver::CuResult::success) room = std::min(room, info.free);
  if (room >= request.size) return false;
  const Bytes missing = round_up(request.size - room, page_size());
  Bytes idle = 0;
  index_.for_each_free_by_age([&](region::Region* free) {
    idle += releasable(*free, missing).size;
    return idle < missing;
  });
  if (idle < missing) return false;
  VPMM_TRY_ASSIGN(const Bytes released, trim(lock, chunks_.chunk_bytes() + other_bytes_ - missing));
  return released >= missing;
}

bool Pool::wait_for_flights(MutexLock& lock) {
  if (flights_ == 0) return false;
  const std::uint64_t at_most = flights_;
  flight_ended_.wait(lock, [&] { return flights_ < at_most; });
  return true;
}

// Waits on the host until anything that is pending is complete, or somebody freed something. Which stream is done first
// nobody knows, so all events are asked again and again, without the lock between. False: there is nothing to wait for.
Result<bool> Pool::wait_for_any(MutexLock& lock, const Caller& caller) {
  const bool is_in_pieces = relief_.is_pending_in_pieces && relief_.is_pending_in_pieces(std::nullopt);
  if (index_.pending_bytes() == 0 && !is_in_pieces) return false;
  if (caller.own() && caller.timeline->provable < caller.timeline->last)
    VPMM_TRY(timelines_.close(*caller.timeline, *caller.stream));
  const bool has_events = relief_.prove_everything() || timelines_.outstanding_events() > 0;
  if (!has_events) return relief_.synchronize(lock);
  ++counters_.host_waits;
  const std::uint64_t returned = returned_;
  for (std::uint64_t ns = kFirstSleepNs;; ns = std::min(2 * ns, kLongestSleepNs)) {
    VPMM_TRY(learn(timelines_.count()));
    if (returned_ != returned || timelines_.outstanding_events() == 0) return true;
    {
      const Unlocked unlocked(lock);
      driver_.sleep_ns(ns);
    }
    if (relief_.drain_deferred(lock)) return true;
  }
}

}  // namespace vpmm::pool
