// SPDX-License-Identifier: Apache-2.0
// python: conversion of arguments: sizes, streams, switches, texts. An error names the invalid
// argument.
//
// The rule for all: a wrong type is a TypeError; a value of the right type that is not allowed is a
// vpmm.InvalidArgumentError.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <string>
#include <vector>

#include "vpmm/vpmm.h"

namespace vpmm::python {

[[noreturn]] void raise_type_error(const std::string& message);
// "stream is missing: must be ..." for a parameter that was left out, and otherwise "stream is 'x':
// must be ...".
[[noreturn]] void raise_wrong_type(nanobind::handle value, const char* name, const char* allowed);

// Stands for what a call leaves out.
nanobind::handle missing();
// A parameter without a default. For nanobind it has one, a value that every conversion below
// refuses: so a call that leaves it out has a message as short as others, where nanobind lists
// types and signatures. It costs no call anything; an overload for what fits no signature would
// cost each call some 8 ns.
inline auto required(const char* name) { return nanobind::arg(name).none() = missing(); }

// `value` as errors show it: "-1", "'many'".
std::string shown(nanobind::handle value);

// A number of bytes: an int, or a text in the environment's syntax ("16GiB"). `bad` is the code of
// a vpmm.Error.
std::uint64_t bytes_of(nanobind::handle value, const char* name,
                       vpmm_status bad = VPMM_ERROR_INVALID_ARGUMENT);
// The size of a request: more than 64 bits hold is out of memory.
std::uint64_t request_of(nanobind::handle value);
// A non-negative int, but no bool.
std::uint64_t whole_number_of(nanobind::handle value, const char* name,
                              vpmm_status bad = VPMM_ERROR_INVALID_ARGUMENT);
// Bytes, or a share of the GPU's memory such as "80%", as the C ABI has it.
std::uint64_t capacity_of(nanobind::handle value, const char* name, vpmm_status bad);
int device_of(nanobind::handle value);
// A CUstream: an int, None for the legacy default stream, or any library's stream object.
std::uintptr_t stream_of(nanobind::handle value, const char* name = "stream");
// Accepts any iterable except a text.
std::vector<nanobind::object> items_of(nanobind::handle values, const char* name);
bool switch_of(nanobind::handle value, const char* name);
// Raises UnicodeEncodeError for half a surrogate pair.
std::string text_of(nanobind::handle value, const char* name);
// A text or an os.PathLike.
std::string path_of(nanobind::handle value, const char* name);

}  // namespace vpmm::python
