// SPDX-License-Identifier: Apache-2.0
// python: frames of Python code, for the stacks of recordings.
#pragma once

#include <nanobind/nanobind.h>

namespace vpmm::python {

// Makes the library ask for Python frames from now on, until the interpreter begins to exit.
void provide_stacks();

}  // namespace vpmm::python
