// torch_allocator: the call that a thread is in, for events inside the pool during that call.
#pragma once

#include <exception>

#include "history.hpp"

namespace vpmm::torch_plugin {

// A pool maps and unmaps memory in the middle of a call, under its lock. No stack can be captured
// there, so the call captures it before. No exception may be thrown there, so the call stores that
// of a tracker for later. Does nothing if events have no audience.
class Call {
 public:
  Call(const History& history, RecordContext level);
  ~Call();
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

  // Null: no stack is recorded.
  const Context& stack() const { return stack_; }
  // The first exception that a tracker threw in this call; null: none.
  const std::exception_ptr& thrown() const { return thrown_; }
  void rethrow() const;

  // The stack of the call that this thread is in; null: it is in none.
  static Context current_stack() { return current_ == nullptr ? nullptr : current_->stack_; }
  // Stores the exception that is being handled in the call that this thread is in. Outside of a
  // call, as when another library uses the pool, it becomes a warning.
  static void note_exception() noexcept;
  static void warn_of(const std::exception_ptr& thrown) noexcept;

 private:
  static inline thread_local Call* current_ = nullptr;
  bool is_on_ = false;
  Call* outer_ = nullptr;
  Context stack_;
  std::exception_ptr thrown_;
};

}  // namespace vpmm::torch_plugin
