// driver: makes a context current for a scope and puts back what was current before.
#pragma once

#include "driver/driver.hpp"

namespace vpmm::driver {

class ContextScope {
 public:
  ContextScope(Driver& driver, ContextHandle wanted) : driver_(driver) {
    result_ = driver_.ctx_get_current(previous_);
    if (result_ != CuResult::success || previous_ == wanted) return;
    result_ = driver_.ctx_set_current(wanted);
    changed_ = result_ == CuResult::success;
  }
  ~ContextScope() {
    // It was current a moment ago. If it is gone since, nothing better can be made current.
    if (changed_) driver_.ctx_set_current(previous_);
  }
  ContextScope(const ContextScope&) = delete;
  ContextScope& operator=(const ContextScope&) = delete;

  CuResult result() const { return result_; }  // success: the wanted context is current

 private:
  Driver& driver_;
  ContextHandle previous_{};
  CuResult result_ = CuResult::success;
  bool changed_ = false;
};

// Lets the calling thread query events while somebody captures: cuEventQuery on any event, even one
// that has nothing to do with the capture, breaks a capture in global or thread-local mode unless
// the querying thread's mode is relaxed.
class RelaxedCaptureScope {
 public:
  // Where the mode cannot be exchanged, it stays, and the calls inside report what they meet.
  explicit RelaxedCaptureScope(Driver& driver) : driver_(driver) {
    exchanged_ = driver_.thread_exchange_stream_capture_mode(mode_) == CuResult::success;
  }
  ~RelaxedCaptureScope() {
    // The call just worked the other way round; it has no reason to fail but a broken context.
    if (exchanged_) driver_.thread_exchange_stream_capture_mode(mode_);
  }
  RelaxedCaptureScope(const RelaxedCaptureScope&) = delete;
  RelaxedCaptureScope& operator=(const RelaxedCaptureScope&) = delete;

 private:
  Driver& driver_;
  CaptureMode mode_ = CaptureMode::relaxed;
  bool exchanged_ = false;
};

}  // namespace vpmm::driver
