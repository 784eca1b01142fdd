// pool: what is tried, in order, before a request fails for lack of memory.
#include <algorithm>

#include "base/message.hpp"
#include "observe/log.hpp"
#include "pool/pool.hpp"

namespace vpmm::pool {

namespace {

// Between two looks of a wait for the GPU: little beside a wait that was short, and what looks cost beside a long one.
constexpr std::uint64_t kFirstSleepNs = 20'000;
constexpr std::uint64_t kLongestSleepNs = 160'000;

bool is_shortage(const Result<DevicePtr>& result) { return !result && result.error().code == ErrorCode::out_of_memory; }

}  // namespace

// The order of the specification of running out (docs/architecture.md): what is on its way back, zombies, every idle
// chunk, chunks made anew, caches, waits on the GPU, waits of the host. The out-of-memory callback is the context's,
// after all of these. Nothing is attempted again that no step has helped.
Result<DevicePtr> Pool::allocate_short(MutexLock& lock, const PageRequest& request, const Caller& caller,
                                       Result<DevicePtr> result) {
  const bool has_drained = relief_.drain_deferred(lock);
  if (memory_.flights.wait_for_one(lock) || has_drained) result = attempt(lock, request, caller, Effort::by_policy);
  if (!is_shortage(result)) return result;
  const Bytes held = memory_.chunks.chunk_bytes();
  const std::uint64_t mappings = memory_.chunks.mapping_count();
  VPMM_TRY_ASSIGN(bool is_back, learn(memory_.timelines.count()));
  VPMM_TRY(reclaimer_.sweep(lock, mappings));
  is_back = is_back || memory_.chunks.chunk_bytes() != held || memory_.chunks.mapping_count() != mappings;
  while (relief_.recall && relief_.recall(caller, request.size, true)) is_back = true;
  if (is_back || idle_bytes() > 0) result = attempt(lock, request, caller, Effort::move_first);
  if (!is_shortage(result)) return result;
  VPMM_TRY_ASSIGN(const bool has_room, make_room(lock, request));
  if (has_room) result = attempt(lock, request, caller, Effort::few_mappings);
  if (!is_shortage(result)) return result;
  if (relief_.give_back_caches(lock)) result = attempt(lock, request, caller, Effort::move_first);
  if (!is_shortage(result)) return result;
  if (caller.may_queue() && memory_.index.pending_bytes() > 0)
    result = attempt(lock, request, caller, Effort::wait_too);
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
  Bytes room = room_.below_capacity(memory_.claimed_bytes());
  if (driver::MemInfo info; memory_.driver.mem_get_info(info) == driver::CuResult::success)
    room = std::min(room, info.free);
  if (room >= request.size) return false;
  const Bytes missing = round_up(request.size - room, page_size());
  if (reclaimer_.releasable_bytes(missing) < missing) return false;
  VPMM_TRY_ASSIGN(const Bytes released, trim(lock, memory_.held_bytes() - missing));
  return released >= missing;
}

// Waits on the host until anything that is pending is complete, or somebody freed something. Which stream is done first
// nobody knows, so all events are asked again and again, without the lock between. False: there is nothing to wait for.
Result<bool> Pool::wait_for_any(MutexLock& lock, const Caller& caller) {
  const bool is_in_pieces = relief_.is_pending_in_pieces && relief_.is_pending_in_pieces(std::nullopt);
  if (memory_.index.pending_bytes() == 0 && !is_in_pieces) return false;
  if (caller.own() && caller.timeline->provable < caller.timeline->last)
    VPMM_TRY(memory_.timelines.close(*caller.timeline, *caller.stream));
  const bool has_events = relief_.prove_everything() || memory_.timelines.outstanding_events() > 0;
  if (!has_events) return relief_.synchronize(lock);
  ++memory_.counters.host_waits;
  const std::uint64_t returned = returned_;
  for (std::uint64_t ns = kFirstSleepNs;; ns = std::min(2 * ns, kLongestSleepNs)) {
    VPMM_TRY(learn(memory_.timelines.count()));
    if (returned_ != returned || memory_.timelines.outstanding_events() == 0) return true;
    {
      const Unlocked unlocked(lock);
      memory_.driver.sleep_ns(ns);
    }
    if (relief_.drain_deferred(lock)) return true;
  }
}

}  // namespace vpmm::pool
