// SPDX-License-Identifier: Apache-2.0
// python: messages of the library, for Python's logging.
#pragma once

#include <nanobind/nanobind.h>

namespace vpmm::python {

void bind_messages(nanobind::module_& module);

}  // namespace vpmm::python
