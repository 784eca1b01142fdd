// SPDX-License-Identifier: Apache-2.0
// driver: turns a failed driver call into an Error, in one place.
#pragma once

#include <string>

#include "base/result.hpp"
#include "driver/driver.hpp"

namespace vpmm::driver {

// Error that names call and result: poisoned if sticky, out_of_memory and unsupported for CUDA's
// own, else driver_failed.
Error driver_error(Call call, CuResult result);

inline Result<void> checked(Call call, CuResult result) {
  if (result == CuResult::success) return {};
  return driver_error(call, result);
}

}  // namespace vpmm::driver
