// SPDX-License-Identifier: Apache-2.0
// python: turns statuses into Python exceptions.
#include "errors.hpp"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

namespace vpmm::python {

namespace nb = nanobind;

namespace {

// The exception that a callback raised and that is not reported yet.
thread_local PyObject* callback_error = nullptr;

const char* name_of(vpmm_status status) {
  switch (status) {
    case VPMM_OK: return "VPMM_OK";
    case VPMM_ERROR_INVALID_ARGUMENT: return "VPMM_ERROR_INVALID_ARGUMENT";
    case VPMM_ERROR_INVALID_POINTER: return "VPMM_ERROR_INVALID_POINTER";
    case VPMM_ERROR_OUT_OF_MEMORY: return "VPMM_ERROR_OUT_OF_MEMORY";
    case VPMM_ERROR_HOST_OUT_OF_MEMORY: return "VPMM_ERROR_HOST_OUT_OF_MEMORY";
    case VPMM_ERROR_BAD_CONFIGURATION: return "VPMM_ERROR_BAD_CONFIGURATION";
    case VPMM_ERROR_UNSUPPORTED: return "VPMM_ERROR_UNSUPPORTED";
    case VPMM_ERROR_NO_DRIVER: return "VPMM_ERROR_NO_DRIVER";
    case VPMM_ERROR_DRIVER_FAILED: return "VPMM_ERROR_DRIVER_FAILED";
    case VPMM_ERROR_POISONED: return "VPMM_ERROR_POISONED";
    case VPMM_ERROR_PROCESS_ENDING: return "VPMM_ERROR_PROCESS_ENDING";
    case VPMM_ERROR_CAPTURE_ACTIVE: return "VPMM_ERROR_CAPTURE_ACTIVE";
    case VPMM_ERROR_BAD_FILE: return "VPMM_ERROR_BAD_FILE";
    case VPMM_ERROR_NOT_SHARED: return "VPMM_ERROR_NOT_SHARED";
    case VPMM_ERROR_SUSPENDED: return "VPMM_ERROR_SUSPENDED";
    case VPMM_WOULD_BLOCK: return "VPMM_WOULD_BLOCK";
  }
  return "unknown";
}

const char* type_for(vpmm_status status) {
  switch (status) {
    case VPMM_ERROR_OUT_OF_MEMORY:
    case VPMM_ERROR_HOST_OUT_OF_MEMORY: return "OutOfMemoryError";
    case VPMM_ERROR_INVALID_ARGUMENT:
    case VPMM_ERROR_INVALID_POINTER:
    case VPMM_ERROR_BAD_CONFIGURATION: return "InvalidArgumentError";
    default: return "Error";
  }
}

}  // namespace

nb::str text_of(const std::string& message) {
  PyObject* const text =
      PyUnicode_DecodeUTF8(message.data(), static_cast<Py_ssize_t>(message.size()), "replace");
  if (text == nullptr) throw nb::python_error();
  return nb::steal<nb::str>(text);
}

nb::object exception_of(nb::python_error& error) {
  nb::object value(nb::borrow(error.value()));
  if (error.traceback().is_valid()) PyException_SetTraceback(value.ptr(), error.traceback().ptr());
  return value;
}

void raise(const nb::object& exception) {
  PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(exception.ptr())), exception.ptr());
  throw nb::python_error();
}

void keep_callback_error(nb::python_error& error) {
  const nb::object previous =
      nb::steal(std::exchange(callback_error, nullptr));  // dies last: it may call a pool
  callback_error = exception_of(error).release().ptr();
}

void forget_callback_error() {
  if (callback_error != nullptr) nb::steal(std::exchange(callback_error, nullptr));
}

void raise(vpmm_status status, const std::string& message, const Shortage& shortage) {
  const bool is_memory =
      status == VPMM_ERROR_OUT_OF_MEMORY || status == VPMM_ERROR_HOST_OUT_OF_MEMORY;
  const nb::object cause = nb::steal(std::exchange(callback_error, nullptr));
  // KeyboardInterrupt and similar exceptions are no failure of the callback: they propagate
  // unchanged.
  if (cause.is_valid() && !PyObject_IsInstance(cause.ptr(), PyExc_Exception)) raise(cause);
  const nb::object type = nb::module_::import_("vpmm.errors").attr(type_for(status));
  const nb::object error =
      is_memory ? type(text_of(message), name_of(status), shortage.requested, shortage.capacity)
                : type(text_of(message), name_of(status));
  if (cause.is_valid()) PyException_SetCause(error.ptr(), nb::object(cause).release().ptr());
  PyErr_SetObject(type.ptr(), error.ptr());
  throw nb::python_error();
}

void raise_on(vpmm_pool* pool, const Failure& failure, std::optional<std::uint64_t> requested) {
  std::uint64_t capacity = UINT64_MAX;
  if (failure.status == VPMM_ERROR_OUT_OF_MEMORY) {
    const WithoutLock released;
    static_cast<void>(vpmm_get_capacity(pool, &capacity));
  }
  raise(failure.status, failure.message,
        {requested, capacity == UINT64_MAX ? std::nullopt : std::optional(capacity)});
}

}  // namespace vpmm::python
