// SPDX-License-Identifier: Apache-2.0
// python: the module vpmm._vpmm: the C ABI for the Python files beside it, which document it.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>

#include <cstdint>
#include <string>

#include "arguments.hpp"
#include "bind_pool.hpp"
#include "compression.hpp"
#include "cupy.hpp"
#include "errors.hpp"
#include "events.hpp"
#include "ipc.hpp"
#include "messages.hpp"
#include "pickles.hpp"
#include "stacks.hpp"

namespace {

using namespace nanobind::literals;

nanobind::object as_dlpack(nanobind::object owner, std::uintptr_t ptr, std::size_t size,
                           int device) {
  using Bytes = nanobind::ndarray<nanobind::array_api, std::uint8_t, nanobind::ndim<1>,
                                  nanobind::device::cuda>;
  const std::size_t shape[] = {size};
  return nanobind::cast(Bytes(reinterpret_cast<void*>(ptr), 1, shape, owner, nullptr,
                              nanobind::dtype<std::uint8_t>(), nanobind::device::cuda::value,
                              device));
}

}  // namespace

NB_MODULE(_vpmm, module) {
  // Finalizers hold pools until the interpreter is gone; nanobind would report them as leaks at
  // exit.
  nanobind::set_leak_warnings(false);
  module.doc() =
      "The compiled part: vpmm.h as classes and functions. Sizes are bytes, addresses ints.";
  module.def(
      "version", [] { return std::string(vpmm_version()); },
      "The version of the library, such as \"0.1.0\".");
  module.def(
      "device_count",
      [] {
        int count = 0;
        vpmm::python::call([&] { return vpmm_device_count(&count); });
        return count;
      },
      "The number of devices that the driver reports. Raises vpmm.Error if there is no driver.");
  module.def(
      "parse_bytes", [](nanobind::handle text) { return vpmm::python::bytes_of(text, "size"); },
      vpmm::python::required("size"), nanobind::sig("def parse_bytes(size: int | str) -> int"),
      R"(Bytes, from a number or from a text in the syntax of the variables ("16GiB"). Raises vpmm.Error otherwise.)");
  module.def(
      "record_mark",
      [](nanobind::handle text) {
        const std::string mark = vpmm::python::text_of(text, "text");
        vpmm::python::call([&] { return vpmm_record_mark(nullptr, mark.c_str()); });
      },
      vpmm::python::required("text"), nanobind::sig("def record_mark(text: str) -> None"));
  module.def(
      "as_dlpack", &as_dlpack, "owner"_a, "ptr"_a, "size"_a, "device"_a,
      nanobind::sig("def as_dlpack(owner: object, ptr: int, size: int, device: int) -> typing.Any"),
      "A ``__dlpack__`` object for bytes at an address; it keeps `owner` alive. Orders no "
      "streams.");
  vpmm::python::bind_events(module);
  vpmm::python::bind_pool(module);
  vpmm::python::bind_ipc(module);
  vpmm::python::bind_compression(module);
  vpmm::python::bind_cupy(module);
  vpmm::python::bind_messages(module);
  vpmm::python::bind_pickles(module);
  vpmm::python::provide_stacks();
}
