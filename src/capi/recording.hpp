// capi: recordings that the environment asks for.
#pragma once

#include "context/context.hpp"

namespace vpmm::capi {

// VPMM_RECORD and those beside it, of a pool that was just opened. What is wrong is an error in the
// log: the program asked for a pool and gets it.
void record_as_environment_says(context::Context& context);

}  // namespace vpmm::capi
