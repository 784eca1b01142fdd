// capi: the settings struct of the C ABI and the pool's own.
#pragma once

#include "base/result.hpp"
#include "context/config.hpp"
#include "vpmm/vpmm.h"

namespace vpmm::capi {

Result<context::Config> to_config(const vpmm_config* settings);
// Fills the caller's struct up to its size. Its texts live for ever.
Result<void> from_config(const context::Config& config, vpmm_config* settings);

}  // namespace vpmm::capi
