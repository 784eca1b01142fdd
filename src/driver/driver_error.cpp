// SPDX-License-Identifier: Apache-2.0
// driver: error code of a driver result.
#include "driver/driver_error.hpp"

#include "base/message.hpp"

namespace vpmm::driver {

namespace {

ErrorCode code_of(CuResult result) {
  if (is_sticky(result)) return ErrorCode::poisoned;
  if (result == CuResult::out_of_memory) return ErrorCode::out_of_memory;
  if (result == CuResult::not_supported) return ErrorCode::unsupported;
  return ErrorCode::driver_failed;
}

}  // namespace

Error driver_error(Call call, CuResult result) {
  return {code_of(result), message_of("{} failed: {} ({})", to_string(call), to_string(result),
                                      static_cast<int>(result))};
}

}  // namespace vpmm::driver
