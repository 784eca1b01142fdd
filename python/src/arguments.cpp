// SPDX-License-Identifier: Apache-2.0
// python: conversion of arguments: sizes, streams, switches, texts.
#include "arguments.hpp"

#include <charconv>
#include <limits>
#include <string_view>

#include "errors.hpp"

namespace vpmm::python {

namespace nb = nanobind;

namespace {

bool is_int(nb::handle value) { return PyLong_Check(value.ptr()) && !PyBool_Check(value.ptr()); }

std::uint64_t number_of(nb::handle value, const char* name, const char* allowed, vpmm_status bad,
                        vpmm_status too_large) {
  if (PyBool_Check(value.ptr()) || PyIndex_Check(value.ptr()) == 0)
    raise_wrong_type(value, name, allowed);
  const nb::object number = nb::steal(PyNumber_Index(value.ptr()));
  if (!number.is_valid()) throw nb::python_error();
  const std::uint64_t result = PyLong_AsUnsignedLongLong(number.ptr());
  if (PyErr_Occurred() == nullptr) return result;
  PyErr_Clear();
  const bool is_negative = number < nb::int_(0);
  raise(is_negative ? bad : too_large,
        std::string(name) + " is " + shown(number) +
            (is_negative ? ": must not be negative" : ": more than 64 bits hold"));
}

}  // namespace

void raise_type_error(const std::string& message) {
  PyErr_SetString(PyExc_TypeError, message.c_str());
  throw nb::python_error();
}

// Stays for good: functions refer to it until the interpreter is gone.
nb::handle missing() {
  static PyObject* const the = PyObject_CallNoArgs(reinterpret_cast<PyObject*>(&PyBaseObject_Type));
  return the;
}

void raise_wrong_type(nb::handle value, const char* name, const char* allowed) {
  const std::string given = value.is(missing()) ? "missing" : shown(value);
  raise_type_error(std::string(name) + " is " + given + ": must be " + allowed);
}

std::string shown(nb::handle value) {
  constexpr std::size_t kLongest = 80;
  std::string text = nb::repr(value).c_str();
  return text.size() <= kLongest ? text : text.substr(0, kLongest) + "...";
}

std::uint64_t whole_number_of(nb::handle value, const char* name, vpmm_status bad) {
  return number_of(value, name, "a whole number", bad, bad);
}

namespace {

std::uint64_t bytes_of(nb::handle value, const char* name, vpmm_status bad, vpmm_status too_large) {
  if (!PyUnicode_Check(value.ptr()))
    return number_of(value, name, "a whole number of bytes, or a text such as \"4GiB\"", bad,
                     too_large);
  std::uint64_t bytes = 0;
  const Failure failure =
      attempt([&, text = text_of(value, name)] { return vpmm_parse_bytes(text.c_str(), &bytes); });
  if (failure.status != VPMM_OK) raise(bad, std::string(name) + ": " + failure.message);
  return bytes;
}

}  // namespace

std::uint64_t request_of(nb::handle value) {
  return bytes_of(value, "bytes", VPMM_ERROR_INVALID_ARGUMENT, VPMM_ERROR_OUT_OF_MEMORY);
}

std::uint64_t bytes_of(nb::handle value, const char* name, vpmm_status bad) {
  return bytes_of(value, name, bad, bad);
}

std::uint64_t capacity_of(nb::handle value, const char* name, vpmm_status bad) {
  if (!nb::isinstance<nb::str>(value)) return bytes_of(value, name, bad);
  const std::string text = text_of(value, name);
  if (!text.ends_with('%')) return bytes_of(value, name, bad);
  unsigned percent = 0;
  const char* const end = text.data() + text.size() - 1;
  const auto [parsed, error] = std::from_chars(text.data(), end, percent);
  if (error != std::errc() || parsed != end || percent < 1 || percent > 100)
    raise(bad, std::string(name) + "=" + text + ": a share is 1% to 100%");
  return VPMM_SHARE_OF_GPU(percent);
}

int device_of(nb::handle value) {
  const std::uint64_t device = whole_number_of(value, "device");
  if (device <= static_cast<std::uint64_t>(std::numeric_limits<int>::max()))
    return static_cast<int>(device);
  raise(VPMM_ERROR_INVALID_ARGUMENT, "device " + std::to_string(device) + " does not exist");
}

std::uintptr_t stream_of(nb::handle value, const char* name) {
  if (value.is_none()) return 0;
  if (is_int(value)) {
    const std::uintptr_t handle = PyLong_AsUnsignedLongLong(value.ptr());
    if (PyErr_Occurred() == nullptr) return handle;
    PyErr_Clear();  // stream_handle() words it
  }
  if (value.is(missing()))
    raise_wrong_type(value, name,
                     "a CUstream as an int, None for the default stream, or a stream object");
  return nb::cast<std::uintptr_t>(
      nb::module_::import_("vpmm._streams").attr("stream_handle")(value));
}

std::vector<nb::object> items_of(nb::handle values, const char* name) {
  if (PyUnicode_Check(values.ptr()) || !nb::hasattr(values, "__iter__"))
    raise_wrong_type(values, name, "a list, or anything else to iterate over");
  std::vector<nb::object> items;
  for (const nb::handle value : nb::iter(values)) items.push_back(nb::borrow(value));
  return items;
}

bool switch_of(nb::handle value, const char* name) {
  if (!PyBool_Check(value.ptr())) raise_wrong_type(value, name, "True or False");
  return value.ptr() == Py_True;
}

std::string text_of(nb::handle value, const char* name) {
  if (!PyUnicode_Check(value.ptr())) raise_wrong_type(value, name, "a text");
  Py_ssize_t size = 0;
  const char* const begin = PyUnicode_AsUTF8AndSize(value.ptr(), &size);
  if (begin == nullptr) throw nb::python_error();
  return {begin, static_cast<std::size_t>(size)};
}

std::string path_of(nb::handle value, const char* name) {
  if (!PyUnicode_Check(value.ptr()) && !nb::hasattr(value, "__fspath__"))
    raise_wrong_type(value, name, "a text or an os.PathLike");
  const nb::object path = nb::steal(PyOS_FSPath(value.ptr()));
  if (!path.is_valid()) throw nb::python_error();
  return text_of(path, name);
}

}  // namespace vpmm::python
