// SPDX-License-Identifier: Apache-2.0
// context: opening, checks and poisoning of the primary context.
#include "context/primary_context.hpp"

#include "base/message.hpp"
#include "driver/driver_error.hpp"
#include "observe/log.hpp"

namespace vpmm::context {

using driver::Call;
using driver::CuResult;

// Note [A reset by others is noticed before an event is touched]
// cuDevicePrimaryCtxReset ends streams and events, and leaves chunks, mappings and contents. A
// touched dead event crashes, so every call first compares the context's id with the known one.
CuResult PrimaryContext::look() const {
  const driver::ContextHandle known = handle();
  if (known == driver::ContextHandle{}) return CuResult::invalid_context;
  if (!has_ids_) return CuResult::success;
  driver::ContextId now{};
  const CuResult result = driver_.ctx_get_id(known, now);
  return result == CuResult::success && now != id() ? CuResult::context_is_destroyed : result;
}

Result<std::optional<time::KnownContext>> PrimaryContext::retain() {
  time::KnownContext found;
  VPMM_TRY(noted(driver::checked(Call::device_primary_ctx_retain,
                                 driver_.device_primary_ctx_retain(device_, found.handle))));
  const CuResult asked = has_ids_ ? driver_.ctx_get_id(found.handle, found.id) : CuResult::success;
  if (asked == CuResult::success && found != time::KnownContext{handle(), id()})
    return std::optional(found);
  release();  // another thread retained it, or ctx_get_id failed
  VPMM_TRY(noted(driver::checked(Call::ctx_get_id, asked)));
  return std::optional<time::KnownContext>();
}

void PrimaryContext::adopt(const time::KnownContext& context) {
  id_.store(static_cast<std::uint64_t>(context.id));
  handle_.store(static_cast<std::uint64_t>(context.handle));
  ++openings_;
}

Result<void> PrimaryContext::reset() {
  VPMM_TRY(noted(
      driver::checked(Call::device_primary_ctx_reset, driver_.device_primary_ctx_reset(device_))));
  handle_.store(0);
  return {};
}

void PrimaryContext::poison_with(const Error& error) {
  if (poison_) return;
  poison_ = Error{
      ErrorCode::poisoned,
      message_of("the GPU context is broken and no more driver calls are made: {}", error.message)};
  is_poisoned_.store(true);
  observe::log(observe::LogLevel::error, "device {}: {}", device_, poison_->message);
}

}  // namespace vpmm::context
