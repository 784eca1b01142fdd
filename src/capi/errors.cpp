// SPDX-License-Identifier: Apache-2.0
// capi: versions, statuses and the calling thread's last error.
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <new>
#include <stdexcept>
#include <utility>

#include "capi/call.hpp"
#include "capi/callback.hpp"

namespace vpmm::capi {
namespace {

// By Note [Thread-local variables] only pointers are the thread's. Trivial types, for static
// destructors get here too, after the end of the thread's objects.
constexpr std::size_t kLongestMessage = 4096;
constinit thread_local char* message_buffer = nullptr;  // from a thread's first error on
constinit thread_local const char* last_error = "";

struct BufferRelease {
  ~BufferRelease() {
    last_error = "";
    std::free(std::exchange(message_buffer, nullptr));
  }
};

// Null: the process is out of memory.
char* buffer_of_this_thread() noexcept {
  if (message_buffer != nullptr) return message_buffer;
  message_buffer = static_cast<char*>(std::malloc(kLongestMessage));
  if (message_buffer == nullptr) return nullptr;
  thread_local const BufferRelease at_thread_end;
  static_cast<void>(at_thread_end);
  return message_buffer;
}

static_assert(mirrors(ErrorCode::invalid_argument, VPMM_ERROR_INVALID_ARGUMENT));
static_assert(mirrors(ErrorCode::invalid_pointer, VPMM_ERROR_INVALID_POINTER));
static_assert(mirrors(ErrorCode::out_of_memory, VPMM_ERROR_OUT_OF_MEMORY));
static_assert(mirrors(ErrorCode::host_out_of_memory, VPMM_ERROR_HOST_OUT_OF_MEMORY));
static_assert(mirrors(ErrorCode::bad_configuration, VPMM_ERROR_BAD_CONFIGURATION));
static_assert(mirrors(ErrorCode::unsupported, VPMM_ERROR_UNSUPPORTED));
static_assert(mirrors(ErrorCode::no_driver, VPMM_ERROR_NO_DRIVER));
static_assert(mirrors(ErrorCode::driver_failed, VPMM_ERROR_DRIVER_FAILED));
static_assert(mirrors(ErrorCode::poisoned, VPMM_ERROR_POISONED));
static_assert(mirrors(ErrorCode::process_ending, VPMM_ERROR_PROCESS_ENDING));
static_assert(mirrors(ErrorCode::capture_active, VPMM_ERROR_CAPTURE_ACTIVE));
static_assert(mirrors(ErrorCode::bad_file, VPMM_ERROR_BAD_FILE));
static_assert(mirrors(ErrorCode::not_shared, VPMM_ERROR_NOT_SHARED));
static_assert(mirrors(ErrorCode::suspended, VPMM_ERROR_SUSPENDED));

}  // namespace

vpmm_status fail(vpmm_status status, std::string_view message) noexcept {
  char* const buffer = buffer_of_this_thread();
  last_error = buffer != nullptr ? buffer : "no memory was left for the message";
  if (buffer == nullptr) return status;
  const std::size_t length = std::min(message.size(), kLongestMessage - 1);
  std::memcpy(buffer, message.data(), length);
  buffer[length] = '\0';
  return status;
}

vpmm_status fail(const Error& error) noexcept {
  const ErrorCode code = error.code == ErrorCode::file_in_use ? ErrorCode::bad_file : error.code;
  return fail(static_cast<vpmm_status>(code), error.message);
}

vpmm_status fail_with_exception() noexcept {
  try {
    throw;
  } catch (const CallbackFailure& failure) {
    return fail(failure.status, failure.text);
  } catch (const std::bad_alloc&) {
    return fail(VPMM_ERROR_HOST_OUT_OF_MEMORY, "the process itself is out of memory");
  } catch (const std::exception& exception) {
    return fail(VPMM_ERROR_DRIVER_FAILED, exception.what());
  } catch (...) {
    return fail(VPMM_ERROR_DRIVER_FAILED, kUnknownException);
  }
}

}  // namespace vpmm::capi

#define VPMM_TEXT_INNER(x) #x
#define VPMM_TEXT(x) VPMM_TEXT_INNER(x)

const char* vpmm_version(void) {
  return VPMM_TEXT(VPMM_VERSION_MAJOR) "." VPMM_TEXT(VPMM_VERSION_MINOR) "." VPMM_TEXT(
      VPMM_VERSION_PATCH);
}

const char* vpmm_last_error(void) { return vpmm::capi::last_error; }

vpmm_status vpmm_callback_fail(vpmm_status status, const char* text) {
  using namespace vpmm;
  return capi::guarded([&]() -> Result<void> {
    VPMM_TRY(capi::require(text, "text"));
    if (status == VPMM_OK || status == VPMM_WOULD_BLOCK)
      return Error{ErrorCode::invalid_argument, "`status` is no error"};
    if (capi::callback_failure == nullptr)
      return Error{ErrorCode::invalid_argument, "no callback of a call runs on this thread"};
    capi::callback_failure->status = status;  // stays where there is no memory for the text
    capi::callback_failure->text = text;
    return {};
  });
}

const char* vpmm_status_string(vpmm_status status) {
  if (status == VPMM_OK) return "ok";
  if (status == VPMM_WOULD_BLOCK) return "would block";
  const auto code = static_cast<vpmm::ErrorCode>(status);
  return code == vpmm::ErrorCode::file_in_use ? "unknown error"
                                              : vpmm::to_string(code);  // not a status
}
