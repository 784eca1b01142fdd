// SPDX-License-Identifier: Apache-2.0
// python: turns statuses into Python exceptions.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "gil.hpp"
#include "vpmm/vpmm.h"

namespace vpmm::python {

// Figures of vpmm.OutOfMemoryError, in bytes.
struct Shortage {
  std::optional<std::uint64_t> requested;  // nullopt: not a request for a number of bytes
  std::optional<std::uint64_t> capacity;   // nullopt: no limit, or no pool
};

// A message as a text: bytes that are no UTF-8, of names of files and of other processes, become
// U+FFFD. Holds: the GIL.
nanobind::str text_of(const std::string& message);

// Raises vpmm.OutOfMemoryError for the two statuses about memory, vpmm.InvalidArgumentError for
// those about values, and otherwise vpmm.Error. An exception of an out-of-memory callback on this
// thread becomes its cause. Holds: the GIL.
[[noreturn]] void raise(vpmm_status status, const std::string& message,
                        const Shortage& shortage = {});

// Stores the exception of this thread's out-of-memory callback, for the raise() of the enclosing
// call. Holds: the GIL.
void keep_callback_error(nanobind::python_error& error);
// Drops the exception of a callback inside a call that cannot report it. Holds: the GIL.
void forget_callback_error();

// The exception of an error, with its traceback. Holds: the GIL.
nanobind::object exception_of(nanobind::python_error& error);
// Raises an exception that exception_of() returned. Holds: the GIL.
[[noreturn]] void raise(const nanobind::object& exception);

struct Failure {
  vpmm_status status = VPMM_OK;  // VPMM_OK: none
  std::string message;
};

// Runs `work`, which returns a vpmm_status, without the GIL: it may wait for locks, the driver or
// the GPU. The message is read before the GIL is taken again, because other code that then runs on
// this thread may call the library, too.
template <typename Work>
Failure attempt(Work&& work) {
  forget_callback_error();
  Failure failure;
  const WithoutLock released;
  failure.status = std::forward<Work>(work)();
  if (failure.status != VPMM_OK) failure.message = vpmm_last_error();
  return failure;
}

// The same, and raises an exception for an error.
template <typename Work>
void call(Work&& work) {
  const Failure failure = attempt(std::forward<Work>(work));
  if (failure.status != VPMM_OK) raise(failure.status, failure.message);
}

// Raises an exception for the error of a call on `pool`. Holds: the GIL.
[[noreturn]] void raise_on(vpmm_pool* pool, const Failure& failure,
                           std::optional<std::uint64_t> requested);

// Runs `work(pool)` as call() does; vpmm.OutOfMemoryError has `requested`, in bytes, and the
// capacity of the pool.
template <typename Work>
void call_on(vpmm_pool* pool, std::optional<std::uint64_t> requested, Work&& work) {
  const Failure failure = attempt([&] { return work(pool); });
  if (failure.status != VPMM_OK) raise_on(pool, failure, requested);
}

}  // namespace vpmm::python
