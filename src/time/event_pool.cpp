// SPDX-License-Identifier: Apache-2.0
// time: lends events and takes them back.
#include "time/event_pool.hpp"

#include "base/host_memory.hpp"
#include "driver/context_scope.hpp"
#include "driver/driver_error.hpp"

namespace vpmm::time {

using driver::Call;

Event::~Event() { pool_.give_back(context_, handle_); }

Result<bool> Event::is_done() const {
  const driver::CuResult result = pool_.driver_.event_query(handle_);
  if (result == driver::CuResult::success) return true;
  if (result == driver::CuResult::not_ready) return false;
  return driver::driver_error(Call::event_query, result);
}

Result<std::shared_ptr<Event>> EventPool::take(const KnownContext& context) {
  Events& events = events_[static_cast<std::uint64_t>(context.id)];
  driver::EventHandle handle{};
  if (!events.spares.empty()) {
    handle = events.spares.back();
    events.spares.pop_back();
  } else {
    events.spares.reserve(events.count + 1);
    const driver::ContextScope scope(driver_, context.handle);
    VPMM_TRY(driver::checked(Call::ctx_set_current, scope.result()));
    VPMM_TRY(driver::checked(Call::event_create, driver_.event_create(handle)));
    ++events.count;
  }
  return std::allocate_shared<Event>(HostAllocator<Event>{}, *this, context.id, handle);
}

void EventPool::give_back(driver::ContextId context, driver::EventHandle handle) {
  const auto found = events_.find(static_cast<std::uint64_t>(context));
  if (found != events_.end()) found->second.spares.push_back(handle);
}

void EventPool::forget_context(driver::ContextId id) {
  events_.erase(static_cast<std::uint64_t>(id));
}

void EventPool::destroy_spares() {
  // An event that the driver refuses to destroy stays a spare, and ends with its context.
  for (auto& [context, events] : events_)
    events.count -= std::erase_if(events.spares, [&](driver::EventHandle spare) {
      return driver_.event_destroy(spare) == driver::CuResult::success;
    });
}

}  // namespace vpmm::time
