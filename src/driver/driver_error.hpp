// driver: turns a failed driver call into an Error, in one place.
#pragma once

#include <string>

#include "base/result.hpp"
#include "driver/driver.hpp"

namespace vpmm::driver {

// out_of_memory for CUDA's, poisoned for sticky errors, driver_failed for the rest; names the call
// and the result.
Error driver_error(Call call, CuResult result);

inline Result<void> checked(Call call, CuResult result) {
  if (result == CuResult::success) return {};
  return driver_error(call, result);
}

}  // namespace vpmm::driver
