// SPDX-License-Identifier: Apache-2.0
// python: pickles as data.
#pragma once

#include <nanobind/nanobind.h>

namespace vpmm::python {

void bind_pickles(nanobind::module_& module);

}  // namespace vpmm::python
