// SPDX-License-Identifier: Apache-2.0
// tests: a page, of the simulator and of every GPU so far.
#pragma once

#include "base/bytes.hpp"

namespace vpmm {

constexpr Bytes kPage = 2 * kMiB;

}  // namespace vpmm
