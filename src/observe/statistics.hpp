// SPDX-License-Identifier: Apache-2.0
// observe: the figures of a pool at one moment.
#pragma once

#include <cstdint>

namespace vpmm::observe {

struct Statistics {
#define VPMM_STATISTIC(name, kind, meaning) std::uint64_t name = 0;
#include "observe/statistics.def"
#undef VPMM_STATISTIC
};

}  // namespace vpmm::observe
