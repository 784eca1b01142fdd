// SPDX-License-Identifier: Apache-2.0
// capi: settings and limits of the C ABI and the pool's own.
#pragma once

#include <optional>

#include "base/result.hpp"
#include "settings/config.hpp"
#include "settings/portion.hpp"
#include "vpmm/vpmm.h"

namespace vpmm::capi {

Result<settings::Config> to_config(const vpmm_config* settings);
// Writes the caller's struct as far as its size goes. Its texts live for ever.
Result<void> from_config(const settings::Config& config, vpmm_config* settings);

// Words of a limit for its error: its name, the least number of bytes, and the other values.
struct LimitWords {
  const char* name;
  Bytes least;
  const char* others;
};
// VPMM_SHARE_OF_GPU and VPMM_SHARE_OF_CAPACITY are the numbers below UINT64_MAX, which is none.
Result<std::optional<settings::Portion>> to_limit(std::uint64_t asked, const LimitWords& words);

}  // namespace vpmm::capi
