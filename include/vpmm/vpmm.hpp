// SPDX-License-Identifier: Apache-2.0
// vpmm: header-only C++17 over the C ABI: pools, streams, arenas, buffers, guards and memory of
// other processes.
//
// allocate(...) throws, try_allocate(...) returns a vpmm::result. Every exception is a vpmm::error;
// those about memory are also std::bad_alloc. The rules of vpmm.h for streams, sizes and threads
// apply; see docs/reference/cpp.md.
#ifndef VPMM_VPMM_HPP
#define VPMM_VPMM_HPP

#include "vpmm/arena.hpp"       // IWYU pragma: export
#include "vpmm/buffer.hpp"      // IWYU pragma: export
#include "vpmm/enums.hpp"       // IWYU pragma: export
#include "vpmm/guards.hpp"      // IWYU pragma: export
#include "vpmm/ipc_handle.hpp"  // IWYU pragma: export
#include "vpmm/pool.hpp"        // IWYU pragma: export
#include "vpmm/result.hpp"      // IWYU pragma: export
#include "vpmm/stream_ref.hpp"  // IWYU pragma: export
#include "vpmm/vpmm.h"          // IWYU pragma: export

#endif
