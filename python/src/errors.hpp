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

struct Failure {
  vpmm_status status = VPMM_OK;  // VPMM_OK: none
  std::string message;
};

// Runs `work`, which returns a vpmm_status, without the GIL: it may wait for locks, the driver or the GPU. The message
// is read before the GIL is taken again, for whoever runs meanwhile on this thread may call the library, too.
template <typename Work>
Failure attempt(Work&& work) {
  forget_callback_error();
  Failure failure;
  const WithoutLock released;
  failure.status = std::forward<Work>(work)();
  if (failure.status != VPMM_OK) failure.message = vpmm_last_error();
  return failure;
}

// The same, and raises what went wrong.
template <typename Work>
void call(Work&& work) {
  const Failure failure = attempt(std::forward<Work>(work));
  if (failure.status != VPMM_OK) raise(failure.status, failure.message);
}

}  // namespace vpmm::python
