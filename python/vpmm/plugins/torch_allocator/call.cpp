// torch_allocator: enters and leaves calls, and stores or reports exceptions of trackers.
#include "call.hpp"

#include <c10/util/Exception.h>

#include <utility>

namespace vpmm::torch_plugin {

Call::Call(const History& history, RecordContext level) {
  if (C10_LIKELY(!history.is_listening())) return;
  stack_ = history.stack(level);
  outer_ = std::exchange(current_, this);
  is_on_ = true;
}

Call::~Call() {
  if (C10_UNLIKELY(is_on_)) current_ = outer_;
}

void Call::rethrow() const {
  if (C10_UNLIKELY(thrown_ != nullptr)) std::rethrow_exception(thrown_);
}

void Call::note_exception() noexcept {
  if (current_ == nullptr) return warn_of(std::current_exception());
  if (current_->thrown_ == nullptr) current_->thrown_ = std::current_exception();
}

void Call::warn_of(const std::exception_ptr& thrown) noexcept {
  if (C10_LIKELY(thrown == nullptr)) return;
  try {
    std::rethrow_exception(thrown);
  } catch (const std::exception& error) {
    TORCH_WARN("VPMM: a tracker of memory events failed: ", error.what());
  } catch (...) {
    TORCH_WARN("VPMM: a tracker of memory events failed");
  }
}

}  // namespace vpmm::torch_plugin
