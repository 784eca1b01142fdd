// SPDX-License-Identifier: Apache-2.0
// time: events for reuse, instead of a creation for every use.
#pragma once

#include <memory>

#include "base/host_memory.hpp"
#include "base/mutex.hpp"
#include "base/result.hpp"
#include "driver/driver.hpp"
#include "time/known_contexts.hpp"

namespace vpmm::time {

class EventPool;

// One event of one context, on loan from the pool; returned by its last owner.
class Event {
 public:
  Event(EventPool& pool, driver::ContextId context, driver::EventHandle handle)
      : pool_(pool), context_(context), handle_(handle) {}
  ~Event() VPMM_REQUIRES(pool_lock);
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  driver::EventHandle handle() const { return handle_; }
  driver::ContextId context() const { return context_; }
  Result<bool> is_done() const;

 private:
  EventPool& pool_;
  driver::ContextId context_;
  driver::EventHandle handle_;
};

class EventPool {
 public:
  explicit EventPool(driver::Driver& driver) : driver_(driver) {}

  // Lends an event of `context`; makes the context current for a creation.
  Result<std::shared_ptr<Event>> take(const KnownContext& context) VPMM_REQUIRES(pool_lock);
  // Forgets the events of a dead context without a call: they died with it.
  void forget_context(driver::ContextId id) VPMM_REQUIRES(pool_lock);
  void destroy_spares() VPMM_REQUIRES(pool_lock);

 private:
  friend class Event;
  void give_back(driver::ContextId context, driver::EventHandle handle) VPMM_REQUIRES(pool_lock);

  // Events of one context. `spares` has capacity for `count`, so that a return allocates no memory.
  struct Events {
    Vector<driver::EventHandle> spares;
    std::size_t count = 0;  // spares, and those on loan
  };

  driver::Driver& driver_;
  HashMap<std::uint64_t, Events> events_
      VPMM_GUARDED_BY(pool_lock);  // by ContextId, live contexts only
};

}  // namespace vpmm::time
