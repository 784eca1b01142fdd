// context: asking a stream whether it captures and who it is.
#include "context/callers.hpp"

#include "base/message.hpp"
#include "driver/driver_error.hpp"

namespace vpmm::context {

using driver::Call;
using driver::CuResult;
using pool::Caller;
using pool::Standing;

// Note [A capturing stream has no id]
// cuStreamGetId of a capturing stream fails and breaks the capture, in every mode; so does that of the legacy stream
// while a blocking stream captures. cuStreamIsCapturing harms nothing, so it is asked first, and a caller in a capture
// goes without a timeline: its frees of ordinary memory are complete when all streams are.
Result<Caller> Callers::identify(const Stream& stream, const time::TimelineId* bound) {
  Caller caller;
  caller.stream = stream;
  if (!stream) return caller;
  if (bound != nullptr) {
    // A reset took the stream away: its handle may not be touched any more.
    time::Timeline* timeline = timelines_.find(*bound);
    if (timeline != nullptr && timeline->is_over) timeline = nullptr;
    if (timeline == nullptr) caller.stream.reset();
    if (timeline == nullptr || !captures_.may_be_known()) {
      caller.timeline = timeline;
      return caller;
    }
  }
  driver::CaptureStatus status{};
  const CuResult result = driver_.stream_is_capturing(*stream, status);
  caller.standing = Standing::blocked;
  if (result == CuResult::stream_capture_implicit) return caller;
  if (result == CuResult::invalid_handle)
    return Error{ErrorCode::invalid_argument,
                 message_of("`stream` {:#x} is no stream: {}", static_cast<std::uint64_t>(*stream),
                            driver::driver_error(Call::stream_is_capturing, result).message)};
  VPMM_TRY(driver::checked(Call::stream_is_capturing, result));
  if (status == driver::CaptureStatus::none) {
    caller.standing = Standing::ordinary;
    captures_.saw_ordinary(*stream);
    VPMM_TRY_ASSIGN(caller.timeline, timelines_.of(*stream));
    return caller;
  }
  captures_.saw_capturing(*stream, std::nullopt);
  if (status == driver::CaptureStatus::active) VPMM_TRY(read_capture(caller));
  captures_.saw_capturing(*stream, caller.capture);
  return caller;
}

Result<void> Callers::read_capture(Caller& caller) {
  driver::CaptureInfo info;
  VPMM_TRY(driver::checked(Call::stream_get_capture_info, driver_.stream_get_capture_info(*caller.stream, info)));
  if (info.status != driver::CaptureStatus::active) return {};
  caller.standing = Standing::capturing;
  caller.capture = static_cast<std::uint64_t>(info.id);
  return captures_.keep_for(info);
}

}  // namespace vpmm::context
