// SPDX-License-Identifier: Apache-2.0
// context: begin and end of a pool, and requests and frees under its lock.
#include "context/context.hpp"

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/host_memory.hpp"
#include "base/message.hpp"
#include "base/scope_exit.hpp"
#include "driver/driver_error.hpp"
#include "observe/log.hpp"
#include "process/neighbours.hpp"
#include "process/process_gate.hpp"
#include "process/summary.hpp"

namespace vpmm::context {

using driver::Call;
using driver::CuResult;

namespace {

// Longest wait until the failed request is in the recording.
constexpr std::chrono::milliseconds kLongestForShortage{100};

// Error of a request that no memory can serve.
Result<void> check(const pool::Request& request) {
  if (request.alignment != 0 && !is_power_of_two(request.alignment))
    return Error{ErrorCode::invalid_argument,
                 message_of("alignment {} is not a power of two", request.alignment)};
  if (request.bytes > pool::kAddressSpace)
    return Error{ErrorCode::out_of_memory,
                 message_of("{} bytes is more than any address space", request.bytes)};
  if (request.alignment > pool::kAddressSpace)
    return Error{ErrorCode::invalid_argument,
                 message_of("alignment {} is more than any address space", request.alignment)};
  return {};
}

}  // namespace

// --- opening and ending

Result<std::unique_ptr<Context>> Context::create(driver::Driver& driver,
                                                 driver::DeviceOrdinal device,
                                                 const settings::Config& config) {
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
  VPMM_TRY(vpmm::settings::validate(config, traits.granularity));
  VPMM_TRY_ASSIGN(const bool has_summary, settings::wants_summary_from_environment());
  VPMM_TRY_ASSIGN(const auto tag_limits, settings::tag_limits_from_environment());
  VPMM_TRY(settings::is_library_tagged(""));  // reports a wrong variable now, not to a library
  observe::set_log_level(config.log);
  auto context = std::make_unique<Context>(driver, device, config, traits,
                                           has_summary ? AtEnd::summary : AtEnd::nothing);
  if (config.limits.capacity_percent != 0)
    VPMM_TRY(context->limits_.set_share_of_gpu(config.limits.capacity_percent));
  for (const settings::NamedLimit& each : tag_limits)
    context->limits_.set_tag_limit(report::tag_with_name(each.tag.c_str()), each.limit);
  context->prepare();
  if (observe::logs(observe::LogLevel::info))
    observe::log(observe::LogLevel::info, "{}",
                 process::opening(driver, device, context->config()));
  context->join_neighbourhood();
  return std::unique_ptr<Context>(std::move(context));
}

// Does work that the first request would pay for. Drops failures: the first request meets and
// reports them.
void Context::prepare() {
  bool is_active = false;
  if (device_.pool == nullptr) return;
  if (device_.page_size > kLargestPageCut ||
      device_.config.pages > pool::kAddressSpace / device_.page_size)
    return;
  if (device_.driver.device_primary_ctx_get_state(device(), is_active) != CuResult::success ||
      !is_active)
    return;
  Visit visit(entrance_);
  if (!visit.status() || !device_.primary.noted(device_.pool->prepare(visit.lock()))) return;
  device_.small->prepare();
}

// A pool without mapped memory gives back none, without opening the GPU. Drops errors of a trim:
// the pool's own users meet them.
void Context::join_neighbourhood() {
  const auto give_back = [this](Bytes most) {
    const Bytes mapped = reports_.statistics().mapped_bytes;
    if (mapped == 0) return Bytes{0};
    const Result<Bytes> released = limits_.trim(mapped - std::min(mapped, most));
    return released ? released.value() : Bytes{0};
  };
  process::enter_neighbourhood(&parts_,
                               {device(), &driver(), give_back, [this] { reports_.summarize(); }});
}

Context::Context(driver::Driver& driver, driver::DeviceOrdinal device,
                 const settings::Config& config, const DeviceTraits& traits, AtEnd at_end)
    : parts_(driver, device, config, traits),
      device_(parts_.device),
      totals_(parts_),
      drawing_(parts_, totals_),
      entrance_(parts_, totals_),
      hits_(parts_, entrance_),
      shortages_(parts_, entrance_, totals_, drawing_),
      arena_calls_(parts_, entrance_, limits_),
      stream_calls_(parts_, entrance_),
      limits_(parts_, entrance_, totals_),
      reports_(parts_, entrance_, totals_, drawing_, at_end),
      sharing_(parts_, entrance_),
      suspension_(parts_, entrance_, limits_, shortages_) {}

// Gives everything back in the order of dependence. At exit and after a sticky error the driver
// must not be called; the system takes the memory back.
Context::~Context() {
  process::leave_neighbourhood(&parts_);
  if (!process::is_ending()) reports_.summarize();
  if (device_.primary.openings() == 0 || device_.primary.is_poisoned() || process::is_ending())
    return;
  if (!entrance_.check_alive() || device_.primary.is_poisoned()) return;
  {
    const driver::ContextScope scope(device_.driver, device_.primary.handle());
    PoolLock lock(parts_.mutex);
    if (scope.result() != CuResult::success || !entrance_.forget_dead_others() ||
        !parts_.peers.find_contexts())
      return;
    if (parts_.prover.wait_for_contexts(lock) != CuResult::success) return;
    suspension_.release_host_memory();
    if (device_.driver_pool != nullptr) device_.driver_pool->release_everything();
    if (device_.guard != nullptr) device_.guard->release_everything();
    if (device_.pool != nullptr) device_.pool->release_everything();
    device_.timelines.destroy_events();
  }
  // After the scope: the thread's own context may be a peer's, and is current again only now.
  {
    const PoolLock lock(parts_.mutex);
    parts_.peers.release();
  }
  device_.primary.release();
}

// --- a request

// Repeats a request that ran out of memory while neighbours or callbacks help.
Result<DevicePtr> Context::allocate_slowly(pool::Request request, const time::TimelineId* bound) {
  if (device_.guard != nullptr) {
    const bool was_seen_by_cache =
        parts_.front.way().serves && request.stream && request.is_plain() &&
        device_.small->serving().may_be_cached(request.bytes, request.alignment);
    request.is_guarded = device_.guard->sampler().is_to_guard(was_seen_by_cache);
    if (request.is_guarded) request.guard_stack = device_.guard->capture_stack();
  }
  if (report::CallLog* const log = parts_.front.way().log) request.stack = log->capture_stack();
  report::CallLog::By by;
  for (Limits::Asked asked;;) {
    Result<DevicePtr> result = attempt(request, bound, asked, by);
    if (result) return result;
    if (result.error().code == ErrorCode::out_of_memory && request.bytes <= pool::kAddressSpace &&
        limits_.find_memory(request, asked))
      continue;
    tell_failure(request, result.error(), asked, by);
    return result;
  }
}

// `by`: out, the calling stream once known; so is the tag of `routed`.
Result<DevicePtr> Context::attempt(pool::Request& routed, const time::TimelineId* bound,
                                   Limits::Asked& asked, report::CallLog::By& by) {
  pool::Request request = routed;
  asked.is_over_tag_limit = false;
  if (const Result<void> possible = check(request); !possible)
    return possible.error().code == ErrorCode::invalid_argument ? parts_.mistake(possible.error())
                                                                : possible.error();
  Visit visit(entrance_);
  VPMM_TRY(visit.status());
  MutexLock& lock = visit.lock();
  // First, as a context-wide event would break an unknown capture of this stream.
  VPMM_TRY_ASSIGN(const pool::Caller caller, visit.identify(request.stream, bound));
  by = report::CallLog::by(caller);
  if (bound != nullptr && caller.timeline == nullptr && !caller.stream)
    return Error{ErrorCode::invalid_argument,
                 "the bound stream is gone: its CUDA context was reset"};
  const bool has_drained = parts_.allocations.drain(lock);
  VPMM_TRY(device_.primary.noted(parts_.prover.settle(lock)));
  entrance_.learn_if_much_is_pending();
  VPMM_TRY(device_.primary.noted(parts_.router.preallocate_once(lock)));
  parts_.tags.route(request);
  routed.tag = request.tag;
  const Result<void> allowed = limits_.check_tag(request);
  asked.is_over_tag_limit = !allowed;
  VPMM_TRY(allowed);
  parts_.allocations.provide();  // may throw, so before memory is taken
  limits_.begin_tagged(request);
  ScopeExit uncount([&]() VPMM_REQUIRES(pool_lock) { limits_.end_tagged(request); });
  Result<DevicePtr> result = device_.primary.noted(parts_.router.allocate(lock, request, caller));
  if (!result) return result;
  // The caller has the memory: later failures are dropped, and the next call meets them.
  Entrance::afterwards([&]() VPMM_REQUIRES(pool_lock) {
    const DevicePtr begin = result.value();
    if (request.tag != 0) parts_.allocations.free_through_lock(begin);
    parts_.recorder.allocated(parts_.allocations.range_to_tell(begin, request.bytes), begin,
                              request, caller);
    if (device_.config.checks.fill_new) {
      static_cast<void>(device_.primary.noted(parts_.allocations.fill(begin, caller)));
      // There a free without a stream would not wait for the fill.
      const bool is_legacy = device_.config.streams.any_stream == settings::AnyStreamOrder::legacy;
      if (is_legacy && caller.timeline != nullptr)
        static_cast<void>(parts_.allocations.record_use(begin, *caller.timeline));
    }
    limits_.end_tagged(request);  // it is live now, and the rest may drop the lock
    uncount.dismiss();
    entrance_.leave(caller);
    parts_.footprint.note_peaks();
    entrance_.bound_any_stream(lock);
    // For the drained frees.
    if (has_drained) entrance_.trim_above_threshold(lock);
  });
  return result;
}

void Context::tell_failure(const pool::Request& request, Error& error, const Limits::Asked& asked,
                           const report::CallLog::By& by) {
  const bool is_shortage = error.code == ErrorCode::out_of_memory;
  if (is_shortage && asked.is_over_tag_limit)
    shortages_.add_holders_to(request.tag, error);
  else if (is_shortage && limits_.lacks_gpu_memory(request, asked))
    shortages_.explain(request, error);
  std::shared_ptr<observe::TraceWriter> writer;
  {
    const PoolLock lock(parts_.mutex);
    totals_.count_failure();
    if (is_shortage) totals_.sample();  // records pending and free memory of this moment
    parts_.recorder.failed(request, error, by);
    if (is_shortage) writer = parts_.recorder.writer();
  }
  if (writer)
    writer->wait_until_written(kLongestForShortage);  // many programs end after a shortage
}

// --- a free

Result<void> Context::deallocate_slowly(DevicePtr ptr, const pool::Stream& stream,
                                        const time::TimelineId* bound) {
  // Also by exceptions. Note [A repeated free may lack its stream]
  ScopeExit refused([&] {
    if (stream) device_.stamper.note_refused();
  });
  const bool is_guarded = device_.guard != nullptr && device_.guard->may_hold(ptr);
  const std::uint32_t stack = is_guarded ? device_.guard->capture_stack() : 0;
  Visit visit(entrance_);
  VPMM_TRY(visit.status());
  MutexLock& lock = visit.lock();
  VPMM_TRY_ASSIGN(pool::Caller caller, visit.identify(stream, bound));
  caller.guard_stack = stack;
  const Result<void> freed =
      device_.primary.noted(parts_.allocations.free(lock, ptr, caller.stream, caller));
  if (freed || freed.error().code == ErrorCode::invalid_pointer) refused.dismiss();
  VPMM_TRY(freed);
  // The memory is freed: later failures are dropped.
  Entrance::afterwards([&]() VPMM_REQUIRES(pool_lock) {
    entrance_.leave(caller);
    entrance_.keep_bounds(lock);
  });
  return {};
}

void Context::deallocate_deferred(DevicePtr ptr) noexcept {
  if (!is_null(ptr)) parts_.allocations.defer(ptr);
}

Result<void> Context::record_use(DevicePtr ptr, driver::StreamHandle stream) {
  Visit visit(entrance_);
  VPMM_TRY(visit.status());
  VPMM_TRY_ASSIGN(const pool::Caller caller, visit.identify(stream));
  time::Timeline& user =
      caller.timeline != nullptr ? *caller.timeline : device_.stamper.all_streams();
  VPMM_TRY(parts_.allocations.record_use(ptr, user));
  if (parts_.recorder.wants(report::EventKind::record_use) || parts_.recorder.is_recording())
    if (const Result<AllocationInfo> info = parts_.allocations.query(ptr))
      parts_.recorder.used(ptr, {info.value().requested, info.value().arena}, caller, stream);
  entrance_.leave(caller);
  return {};
}

Result<AllocationInfo> Context::query(DevicePtr ptr) const {
  const PoolLock lock(parts_.mutex);
  return parts_.allocations.query(ptr);
}

}  // namespace vpmm::context
