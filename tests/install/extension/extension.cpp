// SPDX-License-Identifier: Apache-2.0
// tests: a Python module whose one function holds memory of the process's pool, which Python's
// `vpmm` then sees.
#include <Python.h>

#include <memory>
#include <vpmm/vpmm.hpp>

namespace {

std::unique_ptr<vpmm::buffer> held;

PyObject* hold(PyObject* /*module*/, PyObject* bytes) {
  const std::size_t size = PyLong_AsSize_t(bytes);
  if (PyErr_Occurred() != nullptr) return nullptr;
  try {
    held = std::make_unique<vpmm::buffer>(vpmm::default_pool(), size, vpmm::default_stream);
  } catch (const vpmm::error& error) {
    PyErr_SetString(PyExc_RuntimeError, error.what());
    return nullptr;
  }
  return PyLong_FromVoidPtr(held->data());
}

PyMethodDef methods[] = {{"hold", hold, METH_O, "Holds that many bytes; the address."},
                         {nullptr, nullptr, 0, nullptr}};
PyModuleDef extension = {
    PyModuleDef_HEAD_INIT, "extension", nullptr, -1, methods, nullptr, nullptr, nullptr, nullptr};

}  // namespace

PyMODINIT_FUNC PyInit_extension() { return PyModule_Create(&extension); }
