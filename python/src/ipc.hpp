// SPDX-License-Identifier: Apache-2.0
// python: memory of a pool in other processes.
#pragma once

#include <nanobind/nanobind.h>

namespace vpmm::python {

// A handle is a tuple here: kind, token, bytes, offset, UUID of the device. vpmm/_ipc.py turns it
// into a class.
void bind_ipc(nanobind::module_& module);

}  // namespace vpmm::python
