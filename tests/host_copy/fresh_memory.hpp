// SPDX-License-Identifier: Apache-2.0
// host_copy tests: memory at huge pages comes fresh from the system, and nothing is accessible
// behind it.
#pragma once

#include <cstddef>

namespace vpmm::host_copy {

// Pieces of such memory that `operator new` gave and nobody deleted.
std::size_t live_pieces();

}  // namespace vpmm::host_copy
