// SPDX-License-Identifier: Apache-2.0
// capi: the settings struct of the C ABI and the pool's own.
#pragma once

#include "base/result.hpp"
#include "settings/config.hpp"
#include "vpmm/vpmm.h"

namespace vpmm::capi {

Result<settings::Config> to_config(const vpmm_config* settings);
// Writes the caller's struct as far as its size goes. Its texts live for ever.
Result<void> from_config(const settings::Config& config, vpmm_config* settings);

}  // namespace vpmm::capi
