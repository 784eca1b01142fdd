// python: what callers pass: sizes, streams, switches, texts. What is wrong with one is an error that names it.
//
// The rule for all: a wrong type is a TypeError, a value of the right type that is not allowed a vpmm.Error.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <string>
#include <vector>

#include "vpmm/vpmm.h"

namespace vpmm::python {

[[noreturn]] void raise_type_error(const std::string& message);

// `value` as an error says it: "-1", "'many'".
std::string shown(nanobind::handle value);

// A number of bytes: an int, or a text as the environment takes it ("16GiB"). `bad` is the code of a vpmm.Error.
std::uint64_t bytes_of(nanobind::handle value, const char* name, vpmm_status bad = VPMM_ERROR_INVALID_ARGUMENT);
// An int that is not negative; no bool.
std::uint64_t whole_number_of(nanobind::handle value, const char* name, vpmm_status bad = VPMM_ERROR_INVALID_ARGUMENT);
int device_of(nanobind::handle value);
// A CUstream: an int, None for the legacy default stream, or any library's stream object.
std::uintptr_t stream_of(nanobind::handle value);
// Of any iterable but a text.
std::vector<nanobind::object> items_of(nanobind::handle values, const char* name);
bool switch_of(nanobind::handle value, const char* name);
// Raises UnicodeEncodeError for half a surrogate pair.
std::string text_of(nanobind::handle value, const char* name);
// A text or an os.PathLike.
std::string path_of(nanobind::handle value, const char* name);

}  // namespace vpmm::python
