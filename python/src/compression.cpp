// SPDX-License-Identifier: Apache-2.0
// python: blocks of recordings, compressed with zstd.
#include "compression.hpp"

#include <zstd.h>

#include <cstddef>
#include <string>
#include <vector>

#include "errors.hpp"
#include "gil.hpp"

namespace vpmm::python {

namespace nb = nanobind;
using namespace nb::literals;

namespace {

constexpr int kLevel = 3;  // zstd's default

void check(std::size_t result, const char* failed) {
  if (ZSTD_isError(result) != 0)
    raise(VPMM_ERROR_BAD_FILE, std::string(failed) + ": " + ZSTD_getErrorName(result));
}

nb::bytes compress(const nb::bytes& data) {
  std::vector<char> frame;
  std::size_t size = 0;
  {
    const WithoutLock released;
    frame.resize(ZSTD_compressBound(data.size()));
    size = ZSTD_compress(frame.data(), frame.size(), data.data(), data.size(), kLevel);
  }
  check(size, "the block cannot be compressed");
  return nb::bytes(frame.data(), size);
}

// Allocates no more than `size`, whatever the frame says.
nb::bytes decompress(const nb::bytes& frame, std::size_t size) {
  nb::object content = nb::steal(PyBytes_FromStringAndSize(nullptr, static_cast<Py_ssize_t>(size)));
  if (!content.is_valid()) throw nb::python_error();
  char* const into = PyBytes_AsString(content.ptr());
  std::size_t done = 0;
  {
    const WithoutLock released;
    done = ZSTD_decompress(into, size, frame.data(), frame.size());
  }
  check(done, "the block cannot be decompressed");
  if (done != size) raise(VPMM_ERROR_BAD_FILE, "the block is not as long as it says");
  return nb::cast<nb::bytes>(content);
}

}  // namespace

void bind_compression(nb::module_& module) {
  module.def("compress", &compress, "data"_a, "A zstd frame with the bytes. Releases the GIL.");
  module.def("decompress", &decompress, "frame"_a, "size"_a,
             "The `size` bytes of a zstd frame. Releases the GIL. Raises vpmm.Error "
             "(\"VPMM_ERROR_BAD_FILE\") if it is damaged or has another size.");
}

}  // namespace vpmm::python
