// python: frames of Python code, for the stacks of recordings.
#pragma once

#include <nanobind/nanobind.h>

namespace vpmm::python {

// From now on the library asks us for frames, until the interpreter begins to end.
void provide_stacks();

}  // namespace vpmm::python
