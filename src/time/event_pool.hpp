// time: events that are used again instead of being created for every use.
#pragma once

#include <memory>

#include "base/host_memory.hpp"
#include "base/mutex.hpp"
#include "base/result.hpp"
#include "driver/driver.hpp"

namespace vpmm::time {

class EventPool;

// One event of one context, on loan from the pool; goes back when the last owner lets go.
class Event {
 public:
  Event(EventPool& pool, driver::ContextId context, driver::EventHandle handle)
      : pool_(pool), context_(context), handle_(handle) {}
  ~Event() VPMM_REQUIRES(pool_lock);
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  driver::EventHandle handle() const { return handle_; }
  driver::ContextId context() const { return context_; }

 private:
  EventPool& pool_;
  driver::ContextId context_;
  driver::EventHandle handle_;
};

class EventPool {
 public:
  explicit EventPool(driver::Driver& driver) : driver_(driver) {}

  // An event of `context`, which is made current for the call if need be.
  Result<std::shared_ptr<Event>> take(driver::ContextHandle context, driver::ContextId id)
      VPMM_REQUIRES(pool_lock);
  // The context has died and its events with it: they may not be touched any more, destroying
  // included.
  void forget_context(driver::ContextId id) VPMM_REQUIRES(pool_lock);
  // Destroys the spare events.
  void destroy_spares() VPMM_REQUIRES(pool_lock);

 private:
  friend class Event;
  void give_back(driver::ContextId context, driver::EventHandle handle) VPMM_REQUIRES(pool_lock);

  // Of one context. There is room for all of them among the spares, so that one that ends asks for
  // no memory.
  struct Events {
    Vector<driver::EventHandle> spares;
    std::size_t count = 0;  // spares, and those on loan
  };

  driver::Driver& driver_;
  HashMap<std::uint64_t, Events> events_
      VPMM_GUARDED_BY(pool_lock);  // by ContextId, live contexts only
};

}  // namespace vpmm::time
