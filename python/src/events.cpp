// SPDX-License-Identifier: Apache-2.0
// python: reports allocations and frees to a log, and information about pools to child processes.
#include "events.hpp"

#include <unistd.h>

#include <string>

namespace vpmm::python {

namespace nb = nanobind;

namespace {

// Stays for good: finalizers may still call when the interpreter has begun to exit.
PyObject* log_callable = nullptr;

void replace(PyObject*& callable, const nb::object& next) {
  PyObject* const previous = callable;
  callable = next.is_none() ? nullptr : nb::object(next).release().ptr();
  Py_XDECREF(previous);  // last, for it may run a finalizer
}

double seconds(Clock::time_point time) {
  return std::chrono::duration<double>(time.time_since_epoch()).count();
}

}  // namespace

void tell_children() {
  const nb::object environment = nb::module_::import_("os").attr("environ");
  if (nb::len(nb::str(environment.attr("get")("VPMM_PAGES", ""))) == 0) return;
  environment.attr("setdefault")("VPMM_PAGES_PID", nb::str(std::to_string(::getpid()).c_str()));
}

bool Event::is_on() { return log_callable != nullptr; }

// Finalizers call this, too, and may run while an exception is being handled.
void Event::tell(int device, std::uintptr_t ptr, std::uintptr_t stream, std::size_t bytes) const {
  const nb::error_scope under_way;
  const nb::object log = nb::borrow(log_callable);
  try {
    log(name_, device, ptr, stream, bytes, seconds(start_), seconds(Clock::now()));
  } catch (nb::python_error& error) {
    error.restore();
    PyErr_WriteUnraisable(log.ptr());
  } catch (...) {  // a finalizer cannot report that the process is out of memory
  }
}

void bind_events(nb::module_& module) {
  module.def(
      "set_log", [](const nb::object& log) { replace(log_callable, log); }, nb::arg("log").none(),
      nb::sig("def set_log(log: collections.abc.Callable[[str, int, int, int, int, float, float], "
              "None] | None) -> None"));
}

}  // namespace vpmm::python
