// context: opening a device, entering and leaving it, and noticing that its CUDA context died.
#include "base/host_memory.hpp"
#include "base/message.hpp"
#include "context/config.hpp"
#include "context/neighbours.hpp"
#include "context/process_gate.hpp"
#include "context/summary.hpp"
#include "context/visit.hpp"
#include "driver/driver_error.hpp"
#include "observe/log.hpp"

namespace vpmm::context {

using driver::Call;
using driver::CuResult;
using pool::Caller;

// Bounded, so that no call stalls for others: streams that stay remembered, and all.
constexpr std::size_t kLooksPerCall = 2;
constexpr std::size_t kMostLooksPerCall = 64;
constexpr std::size_t kTimelinesAsked = 16;

Result<std::unique_ptr<Context>> Context::create(driver::Driver& driver,
                                                 driver::DeviceOrdinal device,
                                                 const Config& config) {
  VPMM_TRY(driver::checked(Call::init, driver.init()));
  int count = 0;
  VPMM_TRY(driver::checked(Call::device_get_count, driver.device_get_count(count)));
  if (device < 0 || device >= count)
    return Error{ErrorCode::invalid_argument,
                 message_of("device {} does not exist: there are {}", device, count)};
  VPMM_TRY_ASSIGN(const DeviceTraits traits, traits_of(driver, device));
  if (!traits.has_vmm && !traits.has_memory_pools)
    return Error{ErrorCode::unsupported,
                 message_of("device {} supports neither virtual memory management nor memory pools",
                            device)};
  VPMM_TRY(vpmm::context::validate(config, traits.granularity));
  VPMM_TRY_ASSIGN(const bool has_summary, wants_summary_from_environment());
  observe::set_log_level(config.log);
  auto context = std::make_unique<DeviceContext>(driver, device, config, traits,
                                                 has_summary ? AtEnd::summary : AtEnd::nothing);
  context->prepare();
  if (observe::logs(observe::LogLevel::info))
    observe::log(observe::LogLevel::info, "{}", opening(driver, device, context->config()));
  enter_neighbourhood(*context);
  return std::unique_ptr<Context>(std::move(context));
}

// What the first request would pay for otherwise. Best effort: it asks again for what failed, and
// reports it.
void DeviceContext::prepare() {
  bool is_active = false;
  if (device_.pool == nullptr) return;
  if (device_.page_size > kLargestPageCut ||
      device_.config.pages > kAddressSpace / device_.page_size)
    return;
  if (device_.driver.device_primary_ctx_get_state(device(), is_active) != CuResult::success ||
      !is_active)
    return;
  Visit visit(*this);
  if (!visit.status() || !device_.primary.noted(device_.pool->prepare(visit.lock()))) return;
  device_.small->prepare();
}

DeviceContext::DeviceContext(driver::Driver& driver, driver::DeviceOrdinal device,
                             const Config& config, const DeviceTraits& traits, AtEnd at_end)
    : device_(driver, device, config, traits),
      front_(device_, recorder_),
      captures_(device_),
      peers_(device_),
      recorder_(device_),
      footprint_(device_),
      prover_(device_, captures_, peers_),
      arenas_(device_, captures_, recorder_, prover_),
      shares_(device_, prover_, arenas_),
      allocations_(device_, captures_, arenas_, shares_, recorder_, prover_),
      slow_path_(device_, footprint_, recorder_, prover_, arenas_, allocations_),
      router_(device_, captures_, footprint_, recorder_, prover_, slow_path_),
      has_summary_(at_end == AtEnd::summary) {
  if (device_.small != nullptr) device_.small->warm_calls().heed(mutex_);
}

// Waits for the GPU, then gives everything back in the order of dependence. At exit and after a
// sticky error the driver may not be called any more; the system takes the memory back.
DeviceContext::~DeviceContext() {
  leave_neighbourhood(*this);
  if (!process_is_ending()) summarize();
  if (device_.primary.openings() == 0 || device_.primary.is_poisoned() || process_is_ending())
    return;
  if (!check_alive() || device_.primary.is_poisoned()) return;
  {
    const driver::ContextScope scope(device_.driver, device_.primary.handle());
    PoolLock lock(mutex_);
    if (scope.result() != CuResult::success || !forget_dead_others() || !peers_.find_contexts())
      return;
    if (prover_.wait_for_contexts(lock) != CuResult::success) return;
    if (device_.driver_pool != nullptr) device_.driver_pool->release_everything();
    if (device_.pool != nullptr) device_.pool->release_everything();
    device_.timelines.destroy_events();
  }
  // Not before: the thread's own context may be a peer's, and is current again only now.
  {
    const PoolLock lock(mutex_);
    peers_.release();
  }
  device_.primary.release();
}

// --- entering

// Note [A reset has nobody beside it]: who made the old context current and then waited for the
// lock enters again.
DeviceContext::Visit::Visit(DeviceContext& context) : context_(context) {
  while (!enter()) {
    lock_.reset();
    scope_.reset();
  }
}

// False: a reset came in between.
bool DeviceContext::Visit::enter() {
  if (context_.device_.primary.is_poisoned()) {
    const PoolLock lock(context_.mutex_);
    status_ = *context_.device_.primary.poison();
    return true;
  }
  // Note [Host memory in reserve]
  {
    const HostPromise opening_may_need;
    status_ = opening_may_need.is_kept() ? context_.check_alive() : no_host_memory();
  }
  if (!status_) return true;
  const std::uint64_t opening = context_.device_.primary.openings();
  scope_.emplace(context_.device_.driver, context_.device_.primary.handle());
  lock_.emplace(context_.mutex_);
  context_.visits_.wait_to_enter(*lock_);
  if (context_.device_.primary.handle() == driver::ContextHandle{} ||
      context_.device_.primary.openings() != opening)
    return false;
  promise_.emplace();  // not before: those that wait for the lock need nothing yet
  if (!promise_->is_kept()) {
    status_ = no_host_memory();
    return true;
  }
  status_ =
      context_.device_.primary.noted(driver::checked(Call::ctx_set_current, scope_->result()));
  if (status_) status_ = context_.device_.primary.noted(context_.forget_dead_others());
  is_inside_ = true;
  context_.visits_.begin();
  return true;
}

DeviceContext::Visit::~Visit() {
  if (pinned_ != nullptr) --pinned_->callers;
  if (!is_inside_) return;
  context_.visits_.end();
  context_.front_.refresh();
}

Result<Caller> DeviceContext::Visit::identify(const Stream& stream, const time::TimelineId* bound) {
  Result<Caller> caller =
      context_.device_.primary.noted(context_.captures_.identify(stream, bound));
  // So that what was cached is not pending for want of an event. Not before: the caller's stream
  // may be capturing.
  if (caller && context_.has_noticed_reset_ && context_.prover_.may_record_context_event()) {
    context_.has_noticed_reset_ = false;
    context_.prover_.prove_everything();
  }
  if (!caller || caller.value().timeline == nullptr) return caller;
  pinned_ = caller.value().timeline;
  ++pinned_->callers;
  context_.footprint_.note_peaks();
  return caller;
}

Result<void> DeviceContext::check_alive() {
  const CuResult seen = device_.primary.look();
  if (seen == CuResult::success) return {};
  const PoolLock lock(mutex_);
  Result<void> result =
      is_gone(seen) ? open() : device_.primary.noted(driver::checked(Call::ctx_get_id, seen));
  front_.refresh();
  return result;
}

// The first time, or again after a reset.
Result<void> DeviceContext::open() {
  VPMM_TRY_ASSIGN(const std::optional<time::KnownContext> found, device_.primary.retain());
  if (!found) return {};
  device_.timelines.set_primary(found->handle, found->id);
  if (device_.primary.openings() != 0) forget_dead(device_.primary.id());
  device_.primary.adopt(*found);
  return {};
}

// The old context's streams and events are gone; all work on them is over. Chunks and their
// contents are kept.
void DeviceContext::forget_dead(driver::ContextId dead) {
  observe::log(
      observe::LogLevel::info,
      "device {}: its CUDA context was reset; chunks are kept, streams and small memory are gone",
      device());
  forget_work_of(dead);
  for (const std::uint64_t capture : captures_.all()) allocations_.release_capture(capture);
  footprint_.forget_driver_pool();
  recorder_.forget_lost([this](DevicePtr begin)
                            VPMM_REQUIRES(pool_lock) { return arenas_.has(begin); });
  captures_.forget_streams();
  arenas_.forget_streams();
  has_noticed_reset_ = true;
}

void DeviceContext::forget_work_of(driver::ContextId dead) {
  device_.advance(device_.timelines.forget_context(dead));
  if (device_.small != nullptr) device_.small->flusher().retire_dead();
}

// Their events die with them, those of peers' contexts and of contexts whose streams called.
Result<void> DeviceContext::forget_dead_others() {
  VPMM_TRY_ASSIGN(const Vector<time::KnownContext> dead, peers_.dead_contexts());
  for (const time::KnownContext& context : dead) {
    forget_work_of(context.id);
    peers_.forget(context);
  }
  return {};
}

// Closes the caller's timeline when that is due: here its stream is surely alive.
void DeviceContext::leave(const Caller& caller) {
  if (front_.attend(caller) == StreamFront::Seen::before_it_was_forgotten)
    streams_kept_.came_back();
  if (recorder_.is_sample_due()) sample_figures();
  if (caller.may_queue()) {
    // Without the event the timeline stays due, and a later call tries again; the call itself has
    // done its work.
    if (device_.timelines.is_due(*caller.timeline))
      static_cast<void>(
          device_.primary.noted(device_.timelines.close(*caller.timeline, *caller.stream)));
  } else if (caller.timeline == nullptr) {
    prover_.prove_if_due();
  }
  // Those that were many stay bounded while some are forgotten.
  const bool were_many = device_.small != nullptr && device_.small->caches().are_bounded();
  const bool are_many = device_.timelines.stream_count() > kTimelinesKept / (were_many ? 2 : 1);
  if (device_.small != nullptr) device_.small->bounds().keep(are_many, caller);
  if (!are_many && device_.timelines.count() <= kTimelinesKept) return;
  sees_unproven_ = look_for_idle_streams();
}

// What many streams gave back comes to nobody before it is known to be complete. Where that is more
// than all of them use, it is worth looking, and an event of the context, one at a time, for
// streams that record none.
void DeviceContext::learn_if_much_is_pending() {
  if (device_.small == nullptr || !device_.small->caches().are_bounded()) return;
  const Bytes pending = device_.pool->pending_bytes() + device_.small->figures().pending_bytes();
  if (pending <= device_.small->bounds().live_and_cached_bytes()) return;
  if (sees_unproven_ && !device_.timelines.awaits_context_event()) prover_.prove_everything();
  static_cast<void>(prover_.learn(kTimelinesAsked));
}

// In turn, at a few that stay. What is forgotten is paid for by the call that began it. True: one
// of them has frees that no event stands for.
bool DeviceContext::look_for_idle_streams() {
  bool is_unproven = false;
  std::size_t stayed = 0;
  for (std::size_t looks = 0; looks < kMostLooksPerCall && stayed < kLooksPerCall; ++looks) {
    time::Timeline* const next = device_.timelines.next_in_turn();
    if (next == nullptr) break;
    const bool is_idle = device_.small == nullptr || device_.small->bounds().look_at(*next);
    if (!is_idle || device_.timelines.count() <= streams_kept_.most() || !is_forgotten(*next)) {
      is_unproven = is_unproven || next->provable < next->last;
      ++stayed;
    }
  }
  return is_unproven;
}

// False: something is pending on it, or needs it.
bool DeviceContext::is_forgotten(time::Timeline& timeline) {
  if (device_.small != nullptr) device_.small->bounds().give_back(timeline);
  if (!device_.timelines.may_be_forgotten(timeline)) return false;
  if (device_.small != nullptr) device_.small->bounds().retire(timeline);
  device_.timelines.forget(timeline);
  streams_kept_.is_forgotten();
  return true;
}

// The bounds of what is kept for nobody's sake but the pool's.
void DeviceContext::keep_bounds(MutexLock& lock) {
  bound_any_stream(lock);
  trim_above_threshold(lock);
}

void DeviceContext::bound_any_stream(MutexLock& lock) {
  if (!footprint_.is_cleanup_held())
    static_cast<void>(device_.primary.noted(prover_.bound_any_stream(lock)));
}

}  // namespace vpmm::context
