// SPDX-License-Identifier: Apache-2.0
// context: captures, waits, resets.
#include "context/stream_calls.hpp"

#include <utility>

#include "base/message.hpp"
#include "base/scope_exit.hpp"
#include "driver/driver_error.hpp"

namespace vpmm::context {

using driver::Call;

// In a capture the wait becomes an edge of the graph, as with an event of the program.
Result<void> StreamCalls::make_wait(driver::StreamHandle waiting, driver::StreamHandle first) {
  if (waiting == first) return {};
  Visit visit(entrance_);
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

Result<void> StreamCalls::capture_begin() {
  PoolLock lock(parts_.mutex);
  parts_.captures.announce();
  parts_.prover.await_no_wait(lock);
  return {};
}

Result<void> StreamCalls::capture_end() {
  const PoolLock lock(parts_.mutex);
  if (parts_.captures.end_announced()) return {};
  return Error{ErrorCode::invalid_argument, "capture_end without capture_begin"};
}

Result<void> StreamCalls::capture_release(driver::CaptureId id) {
  Visit visit(entrance_);
  VPMM_TRY(visit.status());
  const auto capture = static_cast<std::uint64_t>(id);
  if (!parts_.captures.keeps(capture))
    return Error{ErrorCode::invalid_argument,
                 message_of("no memory is kept for capture {}", capture)};
  parts_.allocations.release_capture(capture);
  return {};
}

Result<void> StreamCalls::synchronize() {
  Visit visit(entrance_);
  VPMM_TRY(visit.status());
  MutexLock& lock = visit.lock();
  parts_.allocations.drain(lock);
  parts_.footprint.flush_caches();
  VPMM_TRY(device_.primary.noted(parts_.peers.find_contexts()));
  if (!parts_.prover.may_record_context_event())
    return Error{ErrorCode::capture_active, "a stream is being captured"};
  VPMM_TRY(parts_.prover.wait_for_everything(lock));
  VPMM_TRY(device_.primary.noted(parts_.prover.settle(lock)));
  return device_.primary.noted(parts_.prover.settle_guarded(lock, guard::Guarded::kAll));
}

Result<void> StreamCalls::wait_for_work() {
  Visit visit(entrance_);
  VPMM_TRY(visit.status());
  if (!parts_.prover.may_record_context_event())
    return Error{ErrorCode::capture_active, "a stream is being captured"};
  return device_.primary.noted(
      driver::checked(Call::ctx_synchronize, parts_.prover.wait_for_contexts(visit.lock())));
}

bool StreamCalls::is_capturing() {
  Visit visit(entrance_);
  if (!visit.status())  // perhaps without the lock
    return visit.status().error().code == ErrorCode::host_out_of_memory &&
           parts_.captures.may_be_known();
  return !parts_.prover.may_record_context_event();
}

// Waits first for an idle context. Gives up state only after the driver's success: if it refuses,
// work queued meanwhile still runs.
Result<void> StreamCalls::reset() {
  VPMM_TRY(synchronize());
  Visit visit(entrance_);
  VPMM_TRY(visit.status());
  visit.begin_reset();
  const ScopeExit let_in([&]() VPMM_REQUIRES(pool_lock) { visit.end_reset(); });
  if (!parts_.prover.may_record_context_event())
    return Error{ErrorCode::capture_active, "a stream is being captured"};
  VPMM_TRY(device_.primary.reset());
  static_cast<void>(entrance_.open());  // the next call tries again, and reports it
  return {};
}

}  // namespace vpmm::context
