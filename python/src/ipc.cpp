// SPDX-License-Identifier: Apache-2.0
// python: memory of a pool in other processes.
#include "ipc.hpp"

#include <nanobind/stl/tuple.h>

#include <cstdint>
#include <cstring>
#include <string>
#include <tuple>

#include "errors.hpp"
#include "events.hpp"
#include "pool.hpp"

namespace vpmm::python {

namespace nb = nanobind;
using namespace nb::literals;

namespace {

using Handle = std::tuple<std::uint32_t, nb::bytes, std::uint64_t, std::uint64_t, nb::bytes>;

void* pointer(std::uintptr_t value) { return reinterpret_cast<void*>(value); }
std::uintptr_t address(const void* ptr) { return reinterpret_cast<std::uintptr_t>(ptr); }

template <std::size_t size>
void copy(const nb::bytes& from, unsigned char (&to)[size], const char* name) {
  if (from.size() != size)
    raise(VPMM_ERROR_INVALID_ARGUMENT, "the " + std::string(name) + " of an IPC handle has " +
                                           std::to_string(size) + " bytes, and not " +
                                           std::to_string(from.size()));
  std::memcpy(to, from.data(), size);
}

Handle from_struct(const vpmm_ipc_handle& handle) {
  return {handle.kind, nb::bytes(handle.token, sizeof handle.token), handle.bytes, handle.offset,
          nb::bytes(handle.device_uuid, sizeof handle.device_uuid)};
}

vpmm_ipc_handle to_struct(const Handle& parts) {
  vpmm_ipc_handle handle{};
  handle.kind = std::get<0>(parts);
  copy(std::get<1>(parts), handle.token, "token");
  handle.bytes = std::get<2>(parts);
  handle.offset = std::get<3>(parts);
  copy(std::get<4>(parts), handle.device_uuid, "device's UUID");
  return handle;
}

Handle ipc_export(std::uintptr_t ptr, std::size_t bytes) {
  vpmm_ipc_handle handle{};
  call([&] { return vpmm_ipc_export(pointer(ptr), bytes, &handle); });
  return from_struct(handle);
}

void ipc_export_end(const Handle& parts) {
  const vpmm_ipc_handle handle = to_struct(parts);
  call([&] { return vpmm_ipc_export_end(&handle); });
}

std::uintptr_t ipc_open(const Handle& parts, int device) {
  const vpmm_ipc_handle handle = to_struct(parts);
  void* ptr = nullptr;
  call([&] { return vpmm_ipc_open(&handle, device, &ptr); });
  return address(ptr);
}

std::uintptr_t ipc_open_staged(const Handle& parts, const Pool& pool) {
  const Event event("Alloc");
  const vpmm_ipc_handle handle = to_struct(parts);
  void* ptr = nullptr;
  pool.call([&](vpmm_pool* into) { return vpmm_ipc_open_staged(&handle, into, &ptr); });
  event.end(pool.device(), address(ptr), 0, handle.bytes);
  return address(ptr);
}

void ipc_close(std::uintptr_t ptr) {
  call([&] { return vpmm_ipc_close(pointer(ptr)); });
}

Handle ipc_read_token(const nb::bytes& token) {
  unsigned char raw[sizeof(vpmm_ipc_handle::token)];
  copy(token, raw, "token");
  vpmm_ipc_handle handle{};
  call([&] { return vpmm_ipc_read_token(raw, &handle); });
  return from_struct(handle);
}

}  // namespace

void bind_ipc(nb::module_& module) {
  module.def("ipc_export", &ipc_export, "ptr"_a, "bytes"_a);
  module.def("ipc_export_end", &ipc_export_end, "handle"_a);
  module.def("ipc_open", &ipc_open, "handle"_a, "device"_a = -1);
  module.def("ipc_open_staged", &ipc_open_staged, "handle"_a, "pool"_a);
  module.def("ipc_close", &ipc_close, "ptr"_a);
  module.def("ipc_read_token", &ipc_read_token, "token"_a);
}

}  // namespace vpmm::python
