// SPDX-License-Identifier: Apache-2.0
// driver: makes a context current for a scope and restores the previous one.
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
    // If the previous context is gone since, no better one can be made current.
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

// Lets the calling thread query events during captures: cuEventQuery on any event, even an
// unrelated one, breaks a capture in global or thread-local mode unless the querying thread's mode
// is relaxed.
class RelaxedCaptureScope {
 public:
  // If the exchange fails, the mode stays, and calls inside report their own errors.
  explicit RelaxedCaptureScope(Driver& driver) : driver_(driver) {
    exchanged_ = driver_.thread_exchange_stream_capture_mode(mode_) == CuResult::success;
  }
  ~RelaxedCaptureScope() {
    // The reverse exchange just worked; only a broken context can make this one fail.
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
