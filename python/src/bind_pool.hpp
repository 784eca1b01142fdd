// SPDX-License-Identifier: Apache-2.0
// python: the Python classes Pool, Allocation and Region, with their documentation.
#pragma once

#include <nanobind/nanobind.h>

namespace vpmm::python {

void bind_pool(nanobind::module_& module);

}  // namespace vpmm::python
