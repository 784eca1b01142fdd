// torch_allocator: the call that a thread is in, for what happens inside of the pool meanwhile.
#pragma once

#include <c10/util/Exception.h>

#include <exception>
#include <utility>

#include "history.hpp"

namespace vpmm::torch_plugin {

// A pool maps and unmaps memory in the middle of a call, under its lock. There no stack can be taken, so the call takes
// it before, and nothing may be thrown, so the call has what a tracker threw afterwards. Does nothing where nobody
// wants events.
class Call {
 public:
  Call(const History& history, RecordContext level) {
    if (C10_LIKELY(!history.is_listening())) return;
    stack_ = history.stack(level);
    outer_ = std::exchange(current_, this);
    is_on_ = true;
  }
  ~Call() {
    if (C10_UNLIKELY(is_on_)) current_ = outer_;
  }
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

  // Null: no stack is kept.
  const Context& stack() const { return stack_; }
  // What the first tracker threw that threw in this call; null: none.
  const std::exception_ptr& thrown() const { return thrown_; }
  void rethrow() const {
    if (C10_UNLIKELY(thrown_ != nullptr)) std::rethrow_exception(thrown_);
  }

  // Of the call that this thread is in; null: it is in none.
  static Context current_stack() { return current_ == nullptr ? nullptr : current_->stack_; }
  // Of the exception that is handled: the call that this thread is in has it; where there is none, as when another
  // library uses the pool, it is a warning.
  static void note_exception() noexcept {
    if (current_ == nullptr) return warn_of(std::current_exception());
    if (current_->thrown_ == nullptr) current_->thrown_ = std::current_exception();
  }
  static void warn_of(const std::exception_ptr& thrown) noexcept {
    if (C10_LIKELY(thrown == nullptr)) return;
    try {
      std::rethrow_exception(thrown);
    } catch (const std::exception& error) {
      TORCH_WARN("VPMM: a tracker of memory events failed: ", error.what());
    } catch (...) {
      TORCH_WARN("VPMM: a tracker of memory events failed");
    }
  }

 private:
  static inline thread_local Call* current_ = nullptr;
  bool is_on_ = false;
  Call* outer_ = nullptr;
  Context stack_;
  std::exception_ptr thrown_;
};

}  // namespace vpmm::torch_plugin
