// SPDX-License-Identifier: Apache-2.0
// context: the order of searches for memory.
#include "context/slow_path.hpp"

#include <algorithm>
#include <iterator>

#include "base/message.hpp"
#include "base/quantity.hpp"
#include "base/scope_exit.hpp"
#include "observe/log.hpp"
#include "pool/grow_delay.hpp"

namespace vpmm::context {

using pool::Caller;
using pool::Effort;
using pool::Placed;

namespace {

// After this many misses without a call, a timeline asked for proof counts as gone or idle.
constexpr std::uint64_t kMissesUntilGivenUp = 8;

// Bound of each look, so that no call stalls others.
constexpr std::size_t kTimelinesAskedPerLook = 16;

// Sleep between two looks of a wait for the GPU: short at first for short waits, then longer to
// bound the cost of looks.
constexpr std::uint64_t kFirstSleepNs = 20'000;
constexpr std::uint64_t kLongestSleepNs = 160'000;

bool is_shortage(const Result<Placed>& result) {
  return !result && result.error().code == ErrorCode::out_of_memory;
}

}  // namespace

// Note [Steps in a shortage]
// The order is that of the specification (docs/architecture.md). A step returns whether it helped;
// then the request is tried again with the step's effort. Waits of the host repeat while they help.
// Neighbours and out-of-memory callbacks come after all steps (Limits::find_memory).
struct SlowPath::ShortageStep {
  const char* name;
  Result<bool> (SlowPath::*help)(const Job& job);
  Effort effort;
  bool repeats = false;
};

const SlowPath::ShortageStep SlowPath::kShortage[] = {
    {"what is on its way back", &SlowPath::await_returning, Effort::by_policy},
    {"zombies, streams' caches and every idle chunk", &SlowPath::collect_idle, Effort::move_first},
    {"chunks made anew", &SlowPath::make_room, Effort::few_mappings},
    {"the driver pool's cache", &SlowPath::give_back_caches, Effort::move_first},
    {"waits of the GPU", &SlowPath::may_queue_waits, Effort::wait_too},
    {"waits of the host", &SlowPath::wait_on_host, Effort::wait_too, true},
    {"chunks made anew, of what is complete by now", &SlowPath::make_room, Effort::few_mappings},
};

Result<Placed> SlowPath::place(const Job& job) {
  Result<Placed> result = attempt(job, Effort::by_policy);
  for (const ShortageStep* step = std::begin(kShortage);
       step != std::end(kShortage) && is_shortage(result);) {
    VPMM_TRY_ASSIGN(const bool has_helped, (this->*step->help)(job));
    if (has_helped) result = attempt(job, step->effort);
    if (!has_helped || !step->repeats) ++step;
  }
  return result;
}

// One pass: memory without mapping, also from caches of streams; then mapping.
Result<Placed> SlowPath::attempt(const Job& job, Effort effort) {
  pool::Pool& pool = *device_.pool;
  const std::uint64_t began_ns = device_.driver.now_ns();
  const bool has_own_chunks = pool.planner().has_own_chunks(job.request);
  bool has_paused = false;
  device_.small->flusher().give_back_before(job.caller, job.request.size);
  for (bool is_first = true;; is_first = false) {
    pool.planner().set_cached_bytes(device_.small->caches().cached_bytes());
    std::optional<Placed> found = pool.find(job.request, job.caller);
    while (!found && flush(job, effort)) found = pool.find(job.request, job.caller);
    if (found) return *found;
    VPMM_TRY_ASSIGN(found, pool.find_waiting(job.request, job.caller, effort));
    if (found) return *found;
    if (is_first) ++misses_;
    pool.planner().set_cached_bytes(device_.small->caches().cached_bytes());
    prepare_growth(job);
    if (has_own_chunks && effort == Effort::by_policy) {
      // After a failure the pool may still grow; only a broken context is an error.
      const Result<bool> has_given_way = pool.give_way(job.lock, job.request, job.caller);
      if (!has_given_way && has_given_way.error().code == ErrorCode::poisoned)
        return has_given_way.error();
      if (has_given_way && has_given_way.value()) continue;  // the lock was dropped
    }
    VPMM_TRY_ASSIGN(const pool::Answer answer,
                    pool.map(job.lock, job.request, job.caller, effort, began_ns));
    if (const Placed* const placed = std::get_if<Placed>(&answer)) return *placed;
    const pool::Needs& needs = std::get<pool::Needs>(answer);
    if (needs.what == pool::Needs::What::memory) {
      // Idle chunks that do not fit can only be given back.
      if (has_own_chunks && effort != Effort::by_policy) {
        VPMM_TRY_ASSIGN(const bool has_room, pool.make_room(job.lock, job.request));
        if (has_room) continue;
      }
      return Error{ErrorCode::out_of_memory,
                   message_of("{} are missing", readable_bytes(needs.missing))};
    }
    pauses_ += has_paused ? 0 : 1;
    has_paused = true;
    VPMM_TRY(wait_until(job.lock, needs.until_ns));
  }
}

// Takes memory back from caches of streams: the nearest first, then enough for pages, or everything
// in a shortage. Returns true if memory came back: search again.
bool SlowPath::flush(const Job& job, Effort effort) {
  small::SmallPool& small = *device_.small;
  // Caches hardly ever hold one chunk of the exact size; pending memory often does.
  const bool may_fit = job.request.chunks != pool::Chunks::one || effort != Effort::by_policy;
  if (may_fit && small.flusher().flush_one(job.caller, job.request.size)) return true;
  if (const Result<bool> learned = prover_.learn(kTimelinesAskedPerLook);
      learned && learned.value())
    return true;
  if (!may_fit) return false;
  small.caches().want_events(job.caller.timeline);
  // Note [Streams that work side by side]
  const bool may_grow =
      effort == Effort::by_policy && (!job.is_for_parts || small.caches().are_bounded());
  if (may_grow && small.flusher().may_grow_instead(job.request, job.caller)) return false;
  if (small.flusher().steal(job.caller, job.request.size)) return true;
  return effort == Effort::by_policy ? small.flusher().flush_for_pages(job.caller)
                                     : small.flusher().flush();
}

// Tries to spare growth: asks for proof, and trims idle memory of the driver's pool if the request
// would set a record.
void SlowPath::prepare_growth(const Job& job) {
  // Pending memory of the caller's stream seldom fits as own chunks: it is given back, and needs
  // proof, too.
  const Caller own = device_.pool->planner().has_own_chunks(job.request) ? Caller{} : job.caller;
  const bool would_set_record = device_.pool->planner().would_set_record(job.request, own);
  want_proof(own, would_set_record ? Urgency::at_once : Urgency::usual);
  if (!would_set_record || footprint_.is_cleanup_held() || device_.driver_pool == nullptr) return;
  const Bytes idle = footprint_.idle_in_driver_pool(device_.driver_pool->pending_bytes());
  if (idle >= device_.page_size) static_cast<void>(footprint_.trim_driver_pool(job.lock));
}

// Asks streams with pending memory for proof at their next call. Proves everything if a stream did
// not call, or if urgent.
void SlowPath::want_proof(const Caller& caller, Urgency urgency) {
  bool is_unanswered = false;
  device_.timelines.for_each([&](time::Timeline& timeline) VPMM_REQUIRES(pool_lock) {
    if (&timeline == caller.timeline || timeline.numbers.are_provable()) return;
    if (device_.pool->memory().index.pending_bytes(timeline.id) +
            device_.small->figures().pending_bytes(timeline.id) ==
        0)
      return;
    if (!timeline.wanted) {
      timeline.wanted = true;
      timeline.wanted_since = misses_;
    }
    is_unanswered = is_unanswered || urgency == Urgency::at_once ||
                    misses_ - timeline.wanted_since >= kMissesUntilGivenUp;
  });
  if (is_unanswered && prover_.prove_everything())
    device_.timelines.for_each([&](time::Timeline& timeline)
                                   VPMM_REQUIRES(pool_lock) { timeline.wanted_since = misses_; });
}

// Waits until memory came back, or until `until_ns`. Failed looks are dropped, except for a broken
// context.
Result<void> SlowPath::wait_until(MutexLock& lock, std::uint64_t until_ns) {
  const std::uint64_t returned = device_.pool->returned();
  const std::uint64_t began_ns = device_.driver.now_ns();
  const ScopeExit tell(
      [&]() VPMM_REQUIRES(pool_lock) { recorder_.paused(device_.driver.now_ns() - began_ns); });
  while (device_.pool->returned() == returned && device_.driver.now_ns() < until_ns) {
    {
      const Unlocked unlocked(lock);
      device_.driver.sleep_ns(pool::GrowDelay::kBetweenLooksNs);
    }
    const Result<bool> learned = prover_.learn(kTimelinesAskedPerLook);
    if (!learned && learned.error().code == ErrorCode::poisoned) return learned.error();
  }
  return {};
}

// --- requests below a page

Result<DevicePtr> SlowPath::allocate_small(MutexLock& lock, Bytes bytes, Bytes alignment,
                                           const Caller& caller) {
  small::SmallPool& small = *device_.small;
  for (bool has_flushed = false;;) {
    if (const DevicePtr begin = small.take(bytes, alignment, caller); !is_null(begin)) return begin;
    const pool::PageRequest pages = small.cut_pages().next_pages(bytes);
    if (!small.should_cut(pages, caller) && !has_flushed) {
      has_flushed = true;
      const bool is_back = small.flusher().flush_for_parts(caller);
      const Bytes own =
          caller.timeline == nullptr ? 0 : small.figures().pending_bytes(caller.timeline->id);
      if ((small.figures().pending_bytes() > own && prover_.prove_now()) || is_back) continue;
    }
    const Result<Placed> placed = place({lock, pages, caller, true});
    if (!placed) {
      if (placed.error().code != ErrorCode::out_of_memory) return placed.error();
      // Parts of pages may have come back meanwhile.
      const DevicePtr begin = small.take(bytes, alignment, caller);
      return is_null(begin) ? Result<DevicePtr>(placed.error()) : begin;
    }
    small.cut_pages().add(placed.value(), caller);
    small.cut_more(pages, caller);
  }
}

// --- requests in an arena

// Where memory is short a stretch for the request alone.
Result<Placed> SlowPath::place_stretch(MutexLock& lock, const pool::Request& request) {
  const Bytes least = arenas_.least_pages(request);
  const Bytes pages = arenas_.pages_for(request);
  if (pages > least) {
    const pool::PageRequest shared = arenas_.stretch_for(request, pages);
    Result<Placed> placed = attempt({lock, shared, Caller{}}, Effort::by_policy);
    if (!is_shortage(placed)) return placed;
  }
  const pool::PageRequest own = arenas_.stretch_for(request, least);
  return place({lock, own, Caller{}});
}

// Requests stretches without a stream, so that they are complete. Without a stretch, small requests
// may cut larger free blocks.
Result<DevicePtr> SlowPath::allocate_in_arena(MutexLock& lock, const pool::Request& request,
                                              const Caller& caller) {
  using arena::Reach;
  VPMM_TRY(arenas_.enter(request.arena, caller));
  for (bool has_proven = false;;) {
    if (const DevicePtr begin = arenas_.take(request, caller, Reach::by_size); !is_null(begin))
      return begin;
    if (!has_proven) {
      has_proven = true;
      if (arenas_.waits_for_proof(request, caller) && !prover_.knows_captures() &&
          prover_.prove_now())
        continue;
    }
    if (arenas_.external().has(request.arena)) {
      const DevicePtr begin = arenas_.take(request, caller, Reach::everywhere);
      return is_null(begin) ? Result<DevicePtr>(arenas_.external().no_room_for(request)) : begin;
    }
    const Result<Placed> stretch = place_stretch(lock, request);
    if (!stretch) {
      if (stretch.error().code != ErrorCode::out_of_memory) return stretch.error();
      VPMM_TRY_ASSIGN(const DevicePtr begin, await_block(lock, request, caller));
      if (!is_null(begin)) return begin;
      VPMM_TRY(arenas_.enter(request.arena, caller));  // the lock was dropped
      return stretch.error();
    }
    VPMM_TRY(arenas_.add(request.arena, stretch.value(), caller));
  }
}

// Takes a block of the arena, after a wait if the GPU still uses all that fit. Null: none.
Result<DevicePtr> SlowPath::await_block(MutexLock& lock, const pool::Request& request,
                                        const Caller& caller) {
  DevicePtr begin;
  const auto is_served = [&]() VPMM_REQUIRES(pool_lock) {
    begin = arenas_.take(request, caller, arena::Reach::everywhere);
    return !is_null(begin);
  };
  while (!is_served() && arenas_.waits_for_proof(request, caller)) {
    VPMM_TRY_ASSIGN(const bool has_helped, wait_for_work(lock, caller, is_served));
    if (!has_helped || !is_null(begin)) break;
  }
  return begin;
}

// --- when memory is short

Result<bool> SlowPath::await_returning(const Job& job) {
  const bool has_drained = allocations_.drain(job.lock);
  return device_.pool->wait_for_flight(job.lock) || has_drained;
}

Result<bool> SlowPath::collect_idle(const Job& job) {
  VPMM_TRY_ASSIGN(const bool is_complete, prover_.learn(device_.timelines.count()));
  VPMM_TRY_ASSIGN(const bool is_swept, device_.pool->sweep_all(job.lock));
  device_.small->flusher().flush();
  arenas_.give_back_idle(arena::Idle::chunks);
  return is_complete || is_swept || device_.pool->memory().idle_bytes() > 0;
}

Result<bool> SlowPath::make_room(const Job& job) {
  return device_.pool->make_room(job.lock, job.request);
}

Result<bool> SlowPath::give_back_caches(const Job& job) {
  const bool is_given_back = arenas_.give_back_idle(arena::Idle::chunks) > 0;
  const bool is_back = footprint_.flush_caches() || is_given_back;
  const Result<Bytes> freed = footprint_.trim_driver_pool(job.lock);
  return is_back || (freed && freed.value() > 0);
}

Result<bool> SlowPath::may_queue_waits(const Job& job) {
  return job.caller.may_queue() && device_.pool->memory().index.pending_bytes() > 0;
}

// Waits until pending memory is complete, or other memory is freed. Returns false if no memory is
// pending or came back: graphs ended, and frees were deferred, during the wait before.
Result<bool> SlowPath::wait_on_host(const Job& job) {
  const std::uint64_t returned = device_.pool->returned();
  if (allocations_.drain(job.lock) || device_.pool->returned() != returned) return true;
  if (device_.pool->memory().index.pending_bytes() + device_.small->figures().pending_bytes() == 0)
    return false;
  return wait_for_work(job.lock, job.caller, [&]() VPMM_REQUIRES(pool_lock) {
    return device_.pool->returned() != returned;
  });
}

// Waits until `is_enough`, or all work queued so far is over. Any stream may finish first, so all
// events are queried repeatedly, with the lock dropped between. Returns false if nothing can be
// waited for.
Result<bool> SlowPath::wait_for_work(MutexLock& lock, const Caller& caller,
                                     FunctionRef<bool()> is_enough) {
  const std::uint64_t began_ns = device_.driver.now_ns();
  const ScopeExit tell(
      [&]() VPMM_REQUIRES(pool_lock) { recorder_.paused(device_.driver.now_ns() - began_ns); });
  if (caller.own() && !caller.timeline->numbers.are_provable())
    VPMM_TRY(device_.timelines.close(*caller.timeline, *caller.stream));
  const bool has_events = prover_.prove_everything() || device_.timelines.outstanding_events() > 0;
  if (!has_events) return prover_.synchronize(lock);
  prover_.count_host_wait();
  for (std::uint64_t ns = kFirstSleepNs;; ns = std::min(2 * ns, kLongestSleepNs)) {
    VPMM_TRY(prover_.learn(device_.timelines.count()));
    if (is_enough() || device_.timelines.outstanding_events() == 0) return true;
    {
      const Unlocked unlocked(lock);
      device_.driver.sleep_ns(ns);
    }
    if (allocations_.drain(lock)) return true;
  }
}

}  // namespace vpmm::context
