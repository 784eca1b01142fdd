// SPDX-License-Identifier: Apache-2.0
// capi: recordings that the environment asks for.
#pragma once

#include "context/context.hpp"

namespace vpmm::capi {

// Starts a recording of a new pool by VPMM_RECORD and related variables. Logs a failure as an
// error: the program asked for a pool and gets it.
void record_as_environment_says(context::Context& context);

}  // namespace vpmm::capi
