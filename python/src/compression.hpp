// SPDX-License-Identifier: Apache-2.0
// python: blocks of recordings, compressed with zstd.
#pragma once

#include <nanobind/nanobind.h>

namespace vpmm::python {

void bind_compression(nanobind::module_& module);

}  // namespace vpmm::python
