// SPDX-License-Identifier: Apache-2.0
// python: memory for CuPy.
#pragma once

#include <nanobind/nanobind.h>

namespace vpmm::python {

void bind_cupy(nanobind::module_& module);

}  // namespace vpmm::python
