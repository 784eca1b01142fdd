// python: statuses become Python exceptions.
#pragma once

#include <nanobind/nanobind.h>

#include <string>
#include <utility>

#include "gil.hpp"
#include "vpmm/vpmm.h"

namespace vpmm::python {

// Raises vpmm.Error, or vpmm.OutOfMemoryError for the two statuses about memory; an exception that an out-of-memory
// callback of this thread raised becomes its cause. Holds: the GIL.
[[noreturn]] void raise(vpmm_status status, const std::string& message);

// What the out-of-memory callback of this thread raised, for the raise() of the call that it was made in. Holds: the
// GIL.
void keep_callback_error(nanobind::python_error& error);
// What a callback raised inside a call of others, who cannot report it, is nobody's cause. Holds: the GIL.
void forget_callback_error();

// Runs `work`, which returns a vpmm_status, without the GIL: it may wait for locks, the driver or the GPU. The message
// is read before the GIL is taken again, for whoever runs meanwhile on this thread may call the library, too.
template <typename Work>
void call(Work&& work) {
  forget_callback_error();
  vpmm_status status = VPMM_OK;
  std::string message;
  {
    const WithoutLock released;
    status = std::forward<Work>(work)();
    if (status != VPMM_OK) message = vpmm_last_error();
  }
  if (status != VPMM_OK) raise(status, message);
}

}  // namespace vpmm::python
