// SPDX-License-Identifier: Apache-2.0
// base: errors, and the names of their codes.
#include "base/result.hpp"

#include "base/message.hpp"

namespace vpmm {

Error::Error(ErrorCode code_of_it, const char* text) noexcept : code(code_of_it) {
  try {
    if (text != nullptr) message = text;
  } catch (...) {
    message = kNoMemoryForMessage;
  }
}

const char* to_string(ErrorCode code) {
  switch (code) {
    case ErrorCode::invalid_argument: return "invalid argument";
    case ErrorCode::invalid_pointer: return "invalid pointer";
    case ErrorCode::out_of_memory: return "out of device memory";
    case ErrorCode::host_out_of_memory: return "out of host memory";
    case ErrorCode::bad_configuration: return "bad configuration";
    case ErrorCode::unsupported: return "unsupported";
    case ErrorCode::no_driver: return "no CUDA driver";
    case ErrorCode::driver_failed: return "driver call failed";
    case ErrorCode::poisoned: return "GPU context is broken";
    case ErrorCode::process_ending: return "process is ending";
    case ErrorCode::capture_active: return "stream capture is active";
    case ErrorCode::bad_file: return "bad file";
    case ErrorCode::not_shared: return "memory is not shared";
    case ErrorCode::suspended: return "suspended";
    case ErrorCode::file_in_use: return "file in use";
  }
  return "unknown error";
}

}  // namespace vpmm
