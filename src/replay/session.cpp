// SPDX-License-Identifier: Apache-2.0
// replay: device 0's context, current on this thread, and one stream for each stream of a trace.
#include "replay/session.hpp"

#include "driver/driver_error.hpp"

namespace vpmm::replay {

using driver::Call;

Result<std::unique_ptr<Session>> Session::open(driver::Driver& driver, std::size_t stream_count) {
  std::unique_ptr<Session> session(new Session(driver));
  VPMM_TRY(session->enter());
  VPMM_TRY(session->make_streams(stream_count));
  return session;
}

Session::~Session() {
  if (!retained_) return;
  // Ignores failures at the end: resources of a broken context end with the process.
  driver_.ctx_synchronize();
  for (const driver::StreamHandle stream : streams_) driver_.stream_destroy(stream);
  driver_.ctx_set_current(previous_);
  driver_.device_primary_ctx_release(0);
}

Result<void> Session::enter() {
  VPMM_TRY(checked(Call::init, driver_.init()));
  VPMM_TRY(checked(Call::ctx_get_current, driver_.ctx_get_current(previous_)));
  driver::ContextHandle context{};
  VPMM_TRY(checked(Call::device_primary_ctx_retain, driver_.device_primary_ctx_retain(0, context)));
  retained_ = true;
  return checked(Call::ctx_set_current, driver_.ctx_set_current(context));
}

Result<void> Session::make_streams(std::size_t count) {
  streams_.reserve(count);
  for (std::size_t i = 0; i < count; ++i) {
    driver::StreamHandle stream{};
    VPMM_TRY(checked(Call::stream_create,
                     driver_.stream_create(driver::StreamFlags::non_blocking, stream)));
    streams_.push_back(stream);
  }
  return {};
}

Result<void> Session::order(StreamOrder order) {
  driver::EventHandle event{};
  VPMM_TRY(checked(Call::event_create, driver_.event_create(event)));
  auto result = checked(Call::event_record, driver_.event_record(event, stream(order.before)));
  if (result)
    result =
        checked(Call::stream_wait_event, driver_.stream_wait_event(stream(order.after), event));
  // A waiting stream keeps its part of the event. An undestroyed event costs a few bytes.
  driver_.event_destroy(event);
  return result;
}

}  // namespace vpmm::replay
