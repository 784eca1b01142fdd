// python: the module vpmm._vpmm: the C ABI for the Python files beside it, which document it.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <string>

#include "cupy.hpp"
#include "errors.hpp"
#include "events.hpp"
#include "ipc.hpp"
#include "messages.hpp"
#include "pool.hpp"
#include "stacks.hpp"

NB_MODULE(_vpmm, module) {
  // Finalizers hold pools until the interpreter is gone: that is no leak worth a message at exit.
  nanobind::set_leak_warnings(false);
  module.attr("__version__") = vpmm_version();
  module.def("device_count", [] {
    int count = 0;
    vpmm::python::call([&] { return vpmm_device_count(&count); });
    return count;
  });
  module.def(
      "record_mark",
      [](const std::string& text) { vpmm::python::call([&] { return vpmm_record_mark(nullptr, text.c_str()); }); },
      nanobind::arg("text"));
  vpmm::python::bind_events(module);
  vpmm::python::bind_pool(module);
  vpmm::python::bind_ipc(module);
  vpmm::python::bind_cupy(module);
  vpmm::python::bind_messages(module);
  vpmm::python::provide_stacks();
}
