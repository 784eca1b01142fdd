// context: the way of a request for pages that its stream's cache cannot serve, and what is tried when memory is short.
#include <algorithm>
#include <iterator>
#include <utility>

#include "base/message.hpp"
#include "context/device_context.hpp"
#include "observe/log.hpp"
#include "pool/grow_delay.hpp"

namespace vpmm::context {

using pool::Caller;
using pool::Effort;
using pool::PageRequest;
using pool::Placed;

namespace {

// Idle memory of the driver's pool that is not worth a call: a twentieth of a per cent of what is mapped.
constexpr Bytes kIdleCacheLeast = 2 * kMiB;
constexpr Bytes kIdleCacheDivisor = 2000;

// A timeline that was asked for proof this many misses ago and has not called since will not: its stream is gone or
// idle.
constexpr std::uint64_t kMissesUntilGivenUp = 8;

// Bounded, so that no call stalls for others.
constexpr std::size_t kTimelinesAskedPerLook = 16;

// Between two looks of a wait for the GPU: little beside a wait that was short, and what looks cost beside a long one.
constexpr std::uint64_t kFirstSleepNs = 20'000;
constexpr std::uint64_t kLongestSleepNs = 160'000;

bool is_shortage(const Result<Placed>& result) { return !result && result.error().code == ErrorCode::out_of_memory; }

}  // namespace

// Note [What is tried when memory is short]
// In this order: the order of the specification of running out (docs/architecture.md). A step says whether it helped;
// then the request is tried again, as far as its effort goes. The last step is repeated as long as it helps. The
// out-of-memory callback comes after all of these (allocate_or_call_back).
struct DeviceContext::ShortageStep {
  const char* name;
  Result<bool> (DeviceContext::*help)(MutexLock& lock, const PageRequest& request, const Caller& caller);
  Effort effort;
  bool repeats = false;
};

const DeviceContext::ShortageStep DeviceContext::kShortage[] = {
    {"what is on its way back", &DeviceContext::await_returning, Effort::by_policy},
    {"zombies, streams' caches and every idle chunk", &DeviceContext::collect_idle, Effort::move_first},
    {"chunks made anew", &DeviceContext::make_room, Effort::few_mappings},
    {"the driver pool's cache", &DeviceContext::give_back_caches, Effort::move_first},
    {"waits of the GPU", &DeviceContext::may_queue_waits, Effort::wait_too},
    {"waits of the host", &DeviceContext::wait_on_host, Effort::wait_too, true},
};

Result<Placed> DeviceContext::place(MutexLock& lock, const PageRequest& request, const Caller& caller) {
  pool_->set_other_bytes(driver_pool_ == nullptr ? 0 : driver_pool_bytes_);
  Result<Placed> result = attempt(lock, request, caller, Effort::by_policy);
  for (const ShortageStep* step = std::begin(kShortage); step != std::end(kShortage) && is_shortage(result);) {
    VPMM_TRY_ASSIGN(const bool has_helped, (this->*step->help)(lock, request, caller));
    if (has_helped) result = attempt(lock, request, caller, step->effort);
    if (!has_helped || !step->repeats) ++step;
  }
  if (!is_shortage(result)) return result;
  const Bytes leased = shares_.freed_bytes();
  const std::string in_leases =
      leased == 0 ? std::string() : message_of("; freed, but leased to other processes {}", leased);
  Error error{ErrorCode::out_of_memory, message_of("out of device memory: {}{}; {}", pool_->shortage_report(request),
                                                   in_leases, result.error().message)};
  observe::log(observe::LogLevel::warning, "{}", error.message);
  return error;
}

// Down once: what needs no mapping, with what streams keep; then what does.
Result<Placed> DeviceContext::attempt(MutexLock& lock, const PageRequest& request, const Caller& caller,
                                      Effort effort) {
  const std::uint64_t began_ns = driver_.now_ns();
  bool has_paused = false;
  for (bool is_first = true;; is_first = false) {
    std::optional<Placed> found = pool_->find(request, caller);
    while (!found && flush(caller, request.size, effort)) found = pool_->find(request, caller);
    if (found) return *found;
    VPMM_TRY_ASSIGN(found, pool_->find_waiting(request, caller, effort));
    if (found) return *found;
    if (is_first) ++misses_;
    prepare_growth(lock, request, caller);
    VPMM_TRY_ASSIGN(const pool::Answer answer, pool_->map(lock, request, caller, effort, began_ns));
    if (const Placed* const placed = std::get_if<Placed>(&answer)) return *placed;
    const pool::Needs& needs = std::get<pool::Needs>(answer);
    if (needs.what == pool::Needs::What::memory)
      return Error{ErrorCode::out_of_memory, message_of("{} bytes are missing", needs.missing)};
    if (!std::exchange(has_paused, true)) ++pauses_;
    VPMM_TRY(wait_until(lock, needs.until_ns));
  }
}

// What may spare growth, where the request would probably need any.
void DeviceContext::prepare_growth(MutexLock& lock, const PageRequest& request, const Caller& caller) {
  const bool would_set_record = pool_->would_set_record(request, caller);
  want_proof(caller, would_set_record ? Urgency::at_once : Urgency::usual);
  if (would_set_record && cleanup_holds_ == 0) shrink_caches(lock);
}

// Until something came back, or until then. A look that fails has learned nothing; only a broken context is told.
Result<void> DeviceContext::wait_until(MutexLock& lock, std::uint64_t until_ns) {
  const std::uint64_t returned = pool_->returned();
  while (pool_->returned() == returned && driver_.now_ns() < until_ns) {
    {
      const Unlocked unlocked(lock);
      driver_.sleep_ns(pool::GrowDelay::kBetweenLooksNs);
    }
    const Result<bool> learned = learn(kTimelinesAskedPerLook);
    if (!learned && learned.error().code == ErrorCode::poisoned) return learned.error();
  }
  return {};
}

// Takes back what streams keep for their own next requests: what is nearest first, in the end all that is worth the
// trouble, or, when memory runs out, everything. True: something came back, so it may be asked again.
bool DeviceContext::flush(const Caller& caller, Bytes size, Effort effort) {
  if (small_->flush_one(caller, size) || learn_for_miss()) return true;
  small_->want_events(caller.timeline);
  if (small_->steal(caller, size)) return true;
  return effort == Effort::by_policy ? small_->flush_for_pages(caller) : small_->flush();
}

// False: they hold little, and the lock was never dropped.
bool DeviceContext::shrink_caches(MutexLock& lock) {
  const Bytes used = driver_pool_ == nullptr ? 0 : driver_pool_->requested_bytes() + driver_pool_->pending_bytes();
  const Bytes idle = driver_pool_bytes_ - std::min(driver_pool_bytes_, used);
  if (idle <= std::max(kIdleCacheLeast, pool_->mapped_bytes() / kIdleCacheDivisor)) return false;
  trim_driver_pool(lock);
  return true;
}

// Asks the owners of pending memory for proof at their next call; proves for those that do not call, and for all where
// it is urgent.
void DeviceContext::want_proof(const Caller& caller, Urgency urgency) {
  bool is_unanswered = false;
  timelines_.for_each([&](time::Timeline& timeline) VPMM_REQUIRES(pool_lock) {
    if (&timeline == caller.timeline || timeline.provable == timeline.last) return;
    if (pool_->pending_bytes(timeline.id) + small_->pending_bytes(timeline.id) == 0) return;
    if (!timeline.wanted) {
      timeline.wanted = true;
      timeline.wanted_since = misses_;
    }
    is_unanswered =
        is_unanswered || urgency == Urgency::at_once || misses_ - timeline.wanted_since >= kMissesUntilGivenUp;
  });
  if (is_unanswered && prove_everything())
    timelines_.for_each([&](time::Timeline& timeline) VPMM_REQUIRES(pool_lock) { timeline.wanted_since = misses_; });
}

// --- requests below a page ------------------------------------------------------------------------------------------

Result<DevicePtr> DeviceContext::allocate_small(MutexLock& lock, const Request& request, const Caller& caller) {
  for (bool has_flushed = false;;) {
    if (const DevicePtr begin = small_->take(request.bytes, request.alignment, caller); !is_null(begin)) return begin;
    if (!small_->should_cut_page(caller) && !std::exchange(has_flushed, true)) {
      const bool is_back = small_->flush_for_parts(caller);
      const Bytes own = caller.timeline == nullptr ? 0 : small_->pending_bytes(caller.timeline->id);
      if ((small_->pending_bytes() > own && prove_now()) || is_back) continue;
    }
    const Result<Placed> page = place(lock, small_->page_for(request.bytes), caller);
    if (!page) {
      if (page.error().code != ErrorCode::out_of_memory) return page.error();
      // What came back meanwhile, or was waited for in vain, may have been parts of pages.
      const DevicePtr begin = small_->take(request.bytes, request.alignment, caller);
      return is_null(begin) ? Result<DevicePtr>(page.error()) : begin;
    }
    small_->cut_page(page.value(), caller);
    small_->cut_more_pages(caller);
  }
}

// --- when memory is short -------------------------------------------------------------------------------------------

Result<bool> DeviceContext::await_returning(MutexLock& lock, const PageRequest& /*request*/, const Caller& /*caller*/) {
  const bool has_drained = drain_deferred(lock);
  return pool_->wait_for_flight(lock) || has_drained;
}

Result<bool> DeviceContext::collect_idle(MutexLock& lock, const PageRequest& /*request*/, const Caller& /*caller*/) {
  VPMM_TRY_ASSIGN(const bool is_complete, learn(timelines_.count()));
  VPMM_TRY_ASSIGN(const bool is_swept, pool_->sweep_all(lock));
  const bool is_flushed = small_->flush();
  return is_complete || is_swept || is_flushed || pool_->idle_bytes() > 0;
}

Result<bool> DeviceContext::make_room(MutexLock& lock, const PageRequest& request, const Caller& /*caller*/) {
  return pool_->make_room(lock, request);
}

Result<bool> DeviceContext::give_back_caches(MutexLock& lock, const PageRequest& /*request*/,
                                             const Caller& /*caller*/) {
  const bool is_back = flush_caches();
  return trim_driver_pool(lock) || is_back;
}

Result<bool> DeviceContext::may_queue_waits(MutexLock& /*lock*/, const PageRequest& /*request*/, const Caller& caller) {
  return caller.may_queue() && pool_->pending_bytes() > 0;
}

// Until anything that is pending is complete, or somebody freed something. Which stream is done first nobody knows, so
// all events are asked again and again, without the lock between. False: there is nothing to wait for.
Result<bool> DeviceContext::wait_on_host(MutexLock& lock, const PageRequest& /*request*/, const Caller& caller) {
  if (pool_->pending_bytes() + small_->pending_bytes() == 0) return false;
  if (caller.own() && caller.timeline->provable < caller.timeline->last)
    VPMM_TRY(timelines_.close(*caller.timeline, *caller.stream));
  const bool has_events = prove_everything() || timelines_.outstanding_events() > 0;
  if (!has_events) return synchronize_contexts(lock);
  ++host_waits_;
  const std::uint64_t returned = pool_->returned();
  for (std::uint64_t ns = kFirstSleepNs;; ns = std::min(2 * ns, kLongestSleepNs)) {
    VPMM_TRY(learn(timelines_.count()));
    if (pool_->returned() != returned || timelines_.outstanding_events() == 0) return true;
    {
      const Unlocked unlocked(lock);
      driver_.sleep_ns(ns);
    }
    if (drain_deferred(lock)) return true;
  }
}

}  // namespace vpmm::context
