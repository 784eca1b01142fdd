// SPDX-License-Identifier: Apache-2.0
// python: CuPy's functions to allocate and free, in C and without a Python frame.
//
// Note [CuPy's streams]
// CuPy's allocator interface has sizes and devices but no streams. So the current stream is queried
// with the functions that CuPy gives its own modules. An allocation is for the current stream, and
// is freed on that stream whichever is current then, as in CuPy's own pool. CuPy destroys a stream
// with its last Stream object, which arrays may outlive, and CUDA crashes on a destroyed stream: so
// an allocation keeps the Stream object alive. An ExternalStream keeps no stream alive: its
// allocations are freed behind all streams.
//
// CuPy calls with the GIL held. It is released while the pool may wait, because a Python callback
// may need it.
#include "cupy.hpp"

#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <mutex>
#include <new>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "errors.hpp"
#include "events.hpp"
#include "tags.hpp"
#include "vpmm/vpmm.h"

namespace vpmm::python {
namespace {

namespace nb = nanobind;
using namespace nb::literals;

struct Cupy {
  std::intptr_t (*current_stream)() = nullptr;
  nb::object out_of_memory;     // cupy.cuda.memory.OutOfMemoryError
  nb::object current;           // cupy.cuda.get_current_stream
  nb::object external_streams;  // cupy.cuda.ExternalStream
};

struct Place {
  vpmm_pool* pool = nullptr;
  vpmm_stream stream = nullptr;
  PyObject* stream_object =
      nullptr;  // a reference; null for a stream that lives as long as the process
  bool is_external = false;
};

struct Allocations {
  std::mutex mutex;
  std::unordered_map<void*, Place> live;
};

struct Pools {
  std::mutex mutex;  // another one, for it is held while memory is mapped, and frees must not wait
                     // for that
  std::vector<std::pair<int, vpmm_pool*>> used;  // by CuPy
};

// Stays for good: arrays may live until the process exits.
Cupy& cupy() {
  static auto* const the = new Cupy;
  return *the;
}
Allocations& allocations() {
  static auto* const the = new Allocations;
  return *the;
}

Pools& pools() {
  static auto* const the = new Pools;
  return *the;
}

std::intptr_t (*function_of(const nb::object& stream_module, const char* name,
                            const char* signature))() {
  const nb::object functions = stream_module.attr("__pyx_capi__");
  const nb::object capsule = functions.attr("get")(name);
  if (!PyCapsule_IsValid(capsule.ptr(), signature))
    raise(VPMM_ERROR_UNSUPPORTED,
          std::string("this CuPy has no function `") + signature + " " + name + "`");
  return reinterpret_cast<std::intptr_t (*)()>(PyCapsule_GetPointer(capsule.ptr(), signature));
}

void connect(const nb::object& stream_module, const nb::object& out_of_memory,
             const nb::object& current, const nb::object& external_streams) {
  cupy().current_stream = function_of(stream_module, "get_current_stream_ptr", "intptr_t (void)");
  cupy().out_of_memory = out_of_memory;
  cupy().current = current;
  cupy().external_streams = external_streams;
}

// CUDA's own three (null, legacy, per-thread) are never destroyed.
bool lives_forever(vpmm_stream stream) { return reinterpret_cast<std::uintptr_t>(stream) <= 2; }

// The caller owns the reference to the stream's object.
Place current_place(vpmm_pool* pool) {
  Place place{pool, reinterpret_cast<vpmm_stream>(cupy().current_stream()), nullptr, false};
  if (lives_forever(place.stream)) return place;
  nb::object stream = cupy().current();
  place.is_external = PyObject_TypeCheck(
      stream.ptr(), reinterpret_cast<PyTypeObject*>(cupy().external_streams.ptr()));
  place.stream_object = stream.release().ptr();
  return place;
}

// CuPy copies between GPUs, and lets kernels access other GPUs' arrays if the hardware can.
void let_pools_reach_each_other(int device, vpmm_pool* pool) {
  Pools& all = pools();
  const std::lock_guard<std::mutex> lock(all.mutex);
  const auto is_known = [&](const auto& each) { return each.second == pool; };
  if (std::any_of(all.used.begin(), all.used.end(), is_known)) return;
  for (const auto& [other_device, other] : all.used) {
    static_cast<void>(
        vpmm_set_peer_access(pool, other_device));  // unsupported: they cannot reach each other
    static_cast<void>(vpmm_set_peer_access(other, device));
  }
  all.used.emplace_back(device, pool);
}

vpmm_pool* pool_of(int device) {
  thread_local std::pair<int, vpmm_pool*> last{-1, nullptr};
  if (last.first == device) return last.second;
  vpmm_pool* pool = nullptr;
  call([&] {
    const vpmm_status status = vpmm_default_pool(device, &pool);
    if (status == VPMM_OK) let_pools_reach_each_other(device, pool);
    return status;
  });
  tell_children();
  last = {device, pool};
  return pool;
}

void note_live(void* ptr, const Place& place) {
  try {
    Allocations& all = allocations();
    const std::lock_guard<std::mutex> lock(all.mutex);
    all.live.insert_or_assign(ptr, place);
  } catch (const std::bad_alloc&) {  // of the process's own memory: Python's MemoryError
    const WithoutLock released;
    static_cast<void>(vpmm_deallocate(place.pool, ptr, place.stream));
    throw;
  }
}

// The `try` functions do not wait, so they are called with the GIL (pool.cpp has the reason).
void* allocate(std::size_t bytes, const Place& place) {
  void* ptr = nullptr;
  static const std::uint32_t tag = library_tag("cupy");
  if (tag != 0 || vpmm_try_allocate(place.pool, bytes, 0, place.stream, &ptr) != VPMM_OK)
    call_on(place.pool, bytes, [&](vpmm_pool* pool) {
      const vpmm_request request{sizeof request, bytes, 0, place.stream, 0, 0, tag};
      return vpmm_allocate_with(pool, &request, &ptr);
    });
  note_live(ptr, place);
  return ptr;
}

void deallocate(void* ptr, const Place& place) {
  if (!place.is_external && vpmm_try_deallocate(place.pool, ptr, place.stream) == VPMM_OK) return;
  const WithoutLock released;
  const vpmm_status status = place.is_external ? vpmm_deallocate_any_stream(place.pool, ptr)
                                               : vpmm_deallocate(place.pool, ptr, place.stream);
  if (status != VPMM_OK && status != VPMM_ERROR_PROCESS_ENDING)
    vpmm_deallocate_deferred(place.pool, ptr);
}

// CuPy's error for memory, with ours as its cause, and the first line of ours below its own text:
// the limit in that text is the pool's, and the reason may be another, such as the limit of a tag.
[[noreturn]] void raise_shortage(std::size_t bytes, int device, nb::python_error& ours) {
  vpmm_pool* pool = nullptr;
  vpmm_statistics now{};
  now.size = sizeof(now);
  std::uint64_t free_bytes = 0;
  std::uint64_t total_bytes = 0;
  if (vpmm_default_pool(device, &pool) == VPMM_OK) {
    static_cast<void>(vpmm_get_statistics(pool, &now));
    static_cast<void>(vpmm_memory_info(pool, &free_bytes, &total_bytes));
  }
  const nb::object error = cupy().out_of_memory(bytes, now.live_bytes, total_bytes);
  const nb::object first = nb::str(nb::borrow(ours.value())).attr("partition")("\n")[0];
  error.attr("args") = nb::make_tuple(nb::str("{}\n{}").format(error, first));
  PyException_SetCause(error.ptr(), nb::object(nb::borrow(ours.value())).release().ptr());
  PyErr_SetObject(cupy().out_of_memory.ptr(), error.ptr());
  throw nb::python_error();
}

// Memory for work on the current stream. Raises CuPy's OutOfMemoryError, or vpmm.Error.
std::uintptr_t cupy_allocate(std::size_t bytes, int device) {
  if (bytes == 0) return 0;
  const Event event("Alloc");
  void* ptr = nullptr;
  Place place;
  try {
    place = current_place(pool_of(device));
    ptr = allocate(bytes, place);
  } catch (nb::python_error& error) {
    Py_XDECREF(place.stream_object);
    const nb::object type = nb::module_::import_("vpmm.errors").attr("OutOfMemoryError");
    if (!error.matches(type)) throw;
    raise_shortage(bytes, device, error);
  } catch (...) {
    Py_XDECREF(place.stream_object);
    throw;
  }
  event.end(device, reinterpret_cast<std::uintptr_t>(ptr),
            reinterpret_cast<std::uintptr_t>(place.stream), bytes);
  return reinterpret_cast<std::uintptr_t>(ptr);
}

// Memory that cannot be freed in order is freed later: there is no caller to report to.
void cupy_free(std::uintptr_t address, int device) {
  Allocations& all = allocations();
  auto* const ptr = reinterpret_cast<void*>(address);
  Place place;
  {
    const std::lock_guard<std::mutex> lock(all.mutex);
    const auto found = all.live.find(ptr);
    if (found == all.live.end()) return;
    place = found->second;
    all.live.erase(found);
  }
  const Event event("Free");
  deallocate(ptr, place);
  event.end(device, address, reinterpret_cast<std::uintptr_t>(place.stream), 0);
  Py_XDECREF(place.stream_object);
}

// --- as CFunctionAllocator calls them

// CuPy turns std::bad_alloc into the Python error that is set.
void* c_allocate(void* /*argument*/, std::size_t bytes, int device) {
  try {
    return reinterpret_cast<void*>(cupy_allocate(bytes, device));
  } catch (nb::python_error& error) {
    error.restore();
  } catch (const std::bad_alloc&) {
    PyErr_NoMemory();
  } catch (const std::exception& error) {
    PyErr_SetString(PyExc_RuntimeError, error.what());
  }
  throw std::bad_alloc();
}

void c_free(void* /*argument*/, void* ptr, int device) noexcept {
  const nb::error_scope under_way;  // an array may die while an exception is
  try {
    cupy_free(reinterpret_cast<std::uintptr_t>(ptr), device);
  } catch (...) {  // NOLINT(bugprone-empty-catch): nobody can be told
    PyErr_Clear();
  }
}

}  // namespace

void bind_cupy(nb::module_& module) {
  module.def("cupy_connect", &connect, "stream_module"_a, "out_of_memory"_a, "current"_a,
             "external_streams"_a);
  module.def("cupy_allocate", &cupy_allocate, "bytes"_a, "device"_a);
  module.def("cupy_free", &cupy_free, "ptr"_a, "device"_a);
  module.def("cupy_functions", [] {
    return std::pair(reinterpret_cast<std::uintptr_t>(&c_allocate),
                     reinterpret_cast<std::uintptr_t>(&c_free));
  });
}

}  // namespace vpmm::python
