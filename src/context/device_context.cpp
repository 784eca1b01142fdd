// context: public calls: requests and frees, captures, waits, sharing.
#include "context/device_context.hpp"

#include <chrono>
#include <memory>
#include <new>
#include <utility>

#include "base/host_memory.hpp"
#include "base/message.hpp"
#include "base/scope_exit.hpp"
#include "context/config.hpp"
#include "context/visit.hpp"
#include "driver/driver_error.hpp"

namespace vpmm::context {
namespace {

constexpr std::chrono::milliseconds kLongestForShortage{
    100};  // until the request that failed is in the recording

}  // namespace

using driver::Call;
using pool::Caller;

// --- a request

Result<DevicePtr> DeviceContext::allocate_slowly(const Request& request,
                                                 const time::TimelineId* bound) {
  CallLog* const log = front_.way().log;
  const std::uint32_t stack = log == nullptr ? 0 : log->capture_stack();
  if (stack == 0) return allocate_or_tell(request, bound);
  Request with_stack = request;
  with_stack.stack = stack;
  return allocate_or_tell(with_stack, bound);
}

Result<DevicePtr> DeviceContext::allocate_or_tell(const Request& request,
                                                  const time::TimelineId* bound) {
  CallLog::By by;
  Result<DevicePtr> result = allocate_or_call_back(request, bound, by);
  if (result) return result;
  const bool is_shortage = result.error().code == ErrorCode::out_of_memory;
  if (is_shortage && lacks_gpu_memory(request)) explain_shortage(request, result.error());
  std::shared_ptr<observe::TraceWriter> writer;
  {
    const PoolLock lock(mutex_);
    ++failed_allocations_;
    if (is_shortage) sample_figures();  // the recording has pending and free memory of this moment
    recorder_.failed(request, result.error(), by);
    if (is_shortage) writer = recorder_.writer();
  }
  if (writer) writer->wait_until_written(kLongestForShortage);  // for many programs end now
  return result;
}

Result<DevicePtr> DeviceContext::allocate_or_call_back(const Request& request,
                                                       const time::TimelineId* bound,
                                                       CallLog::By& by) {
  if (request.alignment != 0 && !is_power_of_two(request.alignment))
    return mistake({ErrorCode::invalid_argument,
                    message_of("alignment {} is not a power of two", request.alignment)});
  if (request.bytes > kAddressSpace)  // no callback can help
    return Error{ErrorCode::out_of_memory,
                 message_of("{} bytes is more than any address space", request.bytes)};
  if (request.alignment > kAddressSpace)
    return mistake({ErrorCode::invalid_argument,
                    message_of("alignment {} is more than any address space", request.alignment)});
  for (bool has_asked = false;;) {
    Result<DevicePtr> result = allocate_once(request, bound, by);
    if (result || result.error().code != ErrorCode::out_of_memory) return result;
    if (!std::exchange(has_asked, true) && lacks_gpu_memory(request) &&
        ask_for_idle(request.bytes) > 0)
      continue;
    if (!out_of_memory_.ask({request.bytes, device_.primary.device()})) return result;
    has_asked = false;  // they may have freed memory of theirs
  }
}

// Of a request that failed: an external arena gets none.
bool DeviceContext::lacks_gpu_memory(const Request& request) const {
  const PoolLock lock(mutex_);
  return !arenas_.is_external(request.arena);
}

Result<DevicePtr> DeviceContext::allocate_once(const Request& request,
                                               const time::TimelineId* bound, CallLog::By& by) {
  Visit visit(*this);
  VPMM_TRY(visit.status());
  MutexLock& lock = visit.lock();
  // First of all: a capture of this stream must be known before an event of the whole context might
  // break it.
  VPMM_TRY_ASSIGN(const Caller caller, visit.identify(request.stream, bound));
  by = CallLog::by(caller);
  if (bound != nullptr && caller.timeline == nullptr && !caller.stream)
    return Error{ErrorCode::invalid_argument,
                 "the bound stream is gone: its CUDA context was reset"};
  const bool has_drained = allocations_.drain(lock);
  VPMM_TRY(device_.primary.noted(prover_.settle(lock)));
  learn_if_much_is_pending();
  VPMM_TRY(device_.primary.noted(router_.preallocate_once(lock)));
  allocations_.provide();  // it may throw, so before anything is taken
  Result<DevicePtr> result = device_.primary.noted(router_.allocate(lock, request, caller));
  if (!result) return result;
  // The memory is the caller's already, so a failure from here on is not the request's; the next
  // call meets it again.
  afterwards([&]() VPMM_REQUIRES(pool_lock) {
    if (request.tag != 0) allocations_.free_through_lock(result.value());
    recorder_.allocated(result.value(), request, caller, arenas_.range_of(result.value()));
    leave(caller);
    footprint_.note_peaks();
    bound_any_stream(lock);
    if (has_drained) trim_above_threshold(lock);  // these frees could not do it themselves
  });
  return result;
}

// --- a free

Result<void> DeviceContext::deallocate_slowly(DevicePtr ptr, const Stream& stream,
                                              const time::TimelineId* bound) {
  Visit visit(*this);
  VPMM_TRY(visit.status());
  MutexLock& lock = visit.lock();
  VPMM_TRY_ASSIGN(const Caller caller, visit.identify(stream, bound));
  VPMM_TRY(device_.primary.noted(allocations_.free(lock, ptr, caller.stream, caller)));
  // The memory is freed already, so a failure from here on is not the call's.
  afterwards([&]() VPMM_REQUIRES(pool_lock) {
    leave(caller);
    keep_bounds(lock);
  });
  return {};
}

void DeviceContext::deallocate_deferred(DevicePtr ptr) noexcept {
  if (!is_null(ptr)) allocations_.defer(ptr);
}

Error DeviceContext::mistake(Error error) {
  const PoolLock lock(mutex_);
  return allocations_.mistake(std::move(error));
}

Result<void> DeviceContext::record_use(DevicePtr ptr, driver::StreamHandle stream) {
  Visit visit(*this);
  VPMM_TRY(visit.status());
  VPMM_TRY_ASSIGN(const Caller caller, visit.identify(stream));
  time::Timeline& user = caller.timeline != nullptr ? *caller.timeline : prover_.all_streams();
  VPMM_TRY(allocations_.record_use(ptr, user));
  if (recorder_.wants(EventKind::record_use) || recorder_.is_recording())
    if (const Result<AllocationInfo> info = allocations_.query(ptr))
      recorder_.used(ptr, {info.value().requested, info.value().arena}, caller, stream);
  leave(caller);
  return {};
}

// In a capture the wait becomes an edge of the graph, as with an event of the program's.
Result<void> DeviceContext::make_wait(driver::StreamHandle waiting, driver::StreamHandle first) {
  if (waiting == first) return {};
  Visit visit(*this);
  VPMM_TRY(visit.status());
  driver::Driver& driver = device_.driver;
  driver::EventHandle event{};
  VPMM_TRY(device_.primary.noted(driver::checked(Call::event_create, driver.event_create(event))));
  const auto checked = [](Call call, driver::CuResult result, const char* parameter,
                          driver::StreamHandle stream) {
    return result == driver::CuResult::invalid_handle
               ? Result<void>(no_stream(parameter, stream, call))
               : driver::checked(call, result);
  };
  Result<void> done =
      checked(Call::event_record, driver.event_record(event, first), "first", first);
  if (done)
    done = checked(Call::stream_wait_event, driver.stream_wait_event(waiting, event), "waiting",
                   waiting);
  static_cast<void>(driver.event_destroy(event));  // the wait stays
  return device_.primary.noted(std::move(done));
}

// --- putting off

void DeviceContext::defer_cleanup_begin() {
  const PoolLock lock(mutex_);
  footprint_.hold_cleanup();
}

Result<void> DeviceContext::defer_cleanup_end() {
  const PoolLock lock(mutex_);
  if (footprint_.end_hold()) return {};
  return Error{ErrorCode::invalid_argument, "defer_cleanup_end without defer_cleanup_begin"};
}

// --- captures

Result<void> DeviceContext::capture_begin() {
  PoolLock lock(mutex_);
  captures_.announce();
  prover_.await_no_wait(lock);
  return {};
}

Result<void> DeviceContext::capture_end() {
  const PoolLock lock(mutex_);
  if (captures_.end_announced()) return {};
  return Error{ErrorCode::invalid_argument, "capture_end without capture_begin"};
}

Result<void> DeviceContext::capture_release(driver::CaptureId id) {
  Visit visit(*this);
  VPMM_TRY(visit.status());
  const auto capture = static_cast<std::uint64_t>(id);
  if (!captures_.keeps(capture))
    return Error{ErrorCode::invalid_argument,
                 message_of("no memory is kept for capture {}", capture)};
  allocations_.release_capture(capture);
  return {};
}

// --- waiting

Result<void> DeviceContext::synchronize() {
  Visit visit(*this);
  VPMM_TRY(visit.status());
  MutexLock& lock = visit.lock();
  allocations_.drain(lock);
  footprint_.flush_caches();
  VPMM_TRY(device_.primary.noted(peers_.find_contexts()));
  if (!prover_.may_record_context_event())
    return Error{ErrorCode::capture_active, "a stream is being captured"};
  VPMM_TRY(prover_.wait_for_everything(lock));
  return device_.primary.noted(prover_.settle(lock));
}

Result<void> DeviceContext::wait_for_work() {
  Visit visit(*this);
  VPMM_TRY(visit.status());
  if (!prover_.may_record_context_event())
    return Error{ErrorCode::capture_active, "a stream is being captured"};
  return device_.primary.noted(
      driver::checked(Call::ctx_synchronize, prover_.wait_for_contexts(visit.lock())));
}

bool DeviceContext::is_capturing() {
  Visit visit(*this);
  return visit.status() && !prover_.may_record_context_event();
}

// Waits first, so that the reset finds an idle context. Until the driver has done it nothing is
// given up: work that was queued meanwhile still runs where it refuses.
Result<void> DeviceContext::reset() {
  VPMM_TRY(synchronize());
  Visit visit(*this);
  VPMM_TRY(visit.status());
  visits_.begin_reset();
  const ScopeExit let_in([&]() VPMM_REQUIRES(pool_lock) { visits_.end_reset(); });
  visits_.wait_alone(visit.lock());
  if (!prover_.may_record_context_event())
    return Error{ErrorCode::capture_active, "a stream is being captured"};
  VPMM_TRY(device_.primary.reset());
  front_.refresh();
  static_cast<void>(open());  // the next call tries again, and reports it
  return {};
}

// --- other processes

Result<SharedRange> DeviceContext::share(AddressRange range) {
  const PoolLock lock(mutex_);
  VPMM_TRY_ASSIGN(const AllocationInfo around, allocations_.query(range.begin));
  if (device_.primary.poison()) return *device_.primary.poison();
  const HostPromise promise;
  if (!promise.is_kept()) return no_host_memory();
  return shares_.share(around, range);
}

Result<SharedChunks> DeviceContext::lease(ShareId id, Bytes offset, Bytes size) {
  const PoolLock lock(mutex_);
  if (device_.primary.poison()) return *device_.primary.poison();
  const HostPromise promise;
  if (!promise.is_kept()) return no_host_memory();
  return shares_.lease(id, offset, size);
}

// Whoever holds the lease tries again where there is no host memory.
void DeviceContext::end_lease(ShareId id, Holder holder) {
  const HostPromise promise;
  if (!promise.is_kept()) throw std::bad_alloc();
  const PoolLock lock(mutex_);
  // Whoever used it named no stream here, so all work queued so far may be the last to use it.
  if (const auto freed = shares_.end_lease(id, holder)) allocations_.free_kept(*freed);
}

}  // namespace vpmm::context
