// python: what CuPy calls to allocate and free, in C and without a frame of Python.
//
// Note [CuPy's streams]
// CuPy's interface for allocators knows sizes and devices and no streams, so the current stream is asked for, by the
// functions that CuPy gives its own modules. An allocation is for the stream that is current when it is made, and is
// freed on that stream whichever is current then, as in CuPy's own pool. Where the stream is gone, the pool waits for
// all work of the GPU instead.
//
// CuPy calls with the interpreter's lock. It is let go of while the pool works: a callback of Python's may want it.
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
#include "vpmm/vpmm.h"

namespace vpmm::python {
namespace {

namespace nb = nanobind;
using namespace nb::literals;

struct Cupy {
  std::intptr_t (*current_stream)() = nullptr;
  nb::object out_of_memory;  // cupy.cuda.memory.OutOfMemoryError
};

struct Place {
  vpmm_pool* pool;
  vpmm_stream stream;
};

struct Allocations {
  std::mutex mutex;
  std::unordered_map<void*, Place> live;
  std::vector<std::pair<int, vpmm_pool*>> pools;  // that CuPy has used
};

// Never destroyed: arrays may live as long as the process.
Cupy& cupy() {
  static auto* const the = new Cupy;
  return *the;
}
Allocations& allocations() {
  static auto* const the = new Allocations;
  return *the;
}

std::intptr_t (*function_of(const nb::object& stream_module, const char* name, const char* signature))() {
  const nb::object functions = stream_module.attr("__pyx_capi__");
  const nb::object capsule = functions.attr("get")(name);
  if (!PyCapsule_IsValid(capsule.ptr(), signature))
    raise(VPMM_ERROR_UNSUPPORTED, std::string("this CuPy has no function `") + signature + " " + name + "`");
  return reinterpret_cast<std::intptr_t (*)()>(PyCapsule_GetPointer(capsule.ptr(), signature));
}

void connect(const nb::object& stream_module, const nb::object& out_of_memory) {
  cupy().current_stream = function_of(stream_module, "get_current_stream_ptr", "intptr_t (void)");
  cupy().out_of_memory = out_of_memory;
}

// CuPy copies between GPUs, and lets kernels reach other GPUs' arrays where the hardware can.
void let_pools_reach_each_other(int device, vpmm_pool* pool) {
  Allocations& all = allocations();
  const std::lock_guard<std::mutex> lock(all.mutex);
  const auto is_known = [&](const auto& each) { return each.second == pool; };
  if (std::any_of(all.pools.begin(), all.pools.end(), is_known)) return;
  for (const auto& [other_device, other] : all.pools) {
    static_cast<void>(vpmm_set_peer_access(pool, other_device));  // unsupported: they cannot reach each other
    static_cast<void>(vpmm_set_peer_access(other, device));
  }
  all.pools.emplace_back(device, pool);
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
  note_opened(device);
  last = {device, pool};
  return pool;
}

// Without the interpreter's lock.
vpmm_status allocate(vpmm_pool* pool, std::size_t bytes, vpmm_stream stream, void** ptr) {
  if (const vpmm_status status = vpmm_allocate(pool, bytes, stream, ptr); status != VPMM_OK) return status;
  try {
    Allocations& all = allocations();
    const std::lock_guard<std::mutex> lock(all.mutex);
    all.live.insert_or_assign(*ptr, Place{pool, stream});
    return VPMM_OK;
  } catch (const std::bad_alloc&) {
    static_cast<void>(vpmm_deallocate(pool, *ptr, stream));
    return VPMM_ERROR_HOST_OUT_OF_MEMORY;
  }
}

// CuPy's error for memory, with ours as its cause.
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
  PyException_SetCause(error.ptr(), nb::object(nb::borrow(ours.value())).release().ptr());
  PyErr_SetObject(cupy().out_of_memory.ptr(), error.ptr());
  throw nb::python_error();
}

// For work on the current stream. Raises CuPy's OutOfMemoryError, or vpmm.Error.
std::uintptr_t cupy_allocate(std::size_t bytes, int device) {
  if (bytes == 0) return 0;
  const Event event("Alloc");
  const auto handle = static_cast<std::uintptr_t>(cupy().current_stream());
  void* ptr = nullptr;
  try {
    vpmm_pool* const pool = pool_of(device);
    call([&] { return allocate(pool, bytes, reinterpret_cast<vpmm_stream>(handle), &ptr); });
  } catch (nb::python_error& error) {
    const nb::object type = nb::module_::import_("vpmm.errors").attr("OutOfMemoryError");
    if (!error.matches(type)) throw;
    raise_shortage(bytes, device, error);
  }
  event.end(device, reinterpret_cast<std::uintptr_t>(ptr), handle, bytes);
  return reinterpret_cast<std::uintptr_t>(ptr);
}

// What cannot be freed in order is freed later: nobody can be told.
void cupy_free(std::uintptr_t address, int device) {
  Allocations& all = allocations();
  auto* const ptr = reinterpret_cast<void*>(address);
  Place place{};
  {
    const std::lock_guard<std::mutex> lock(all.mutex);
    const auto found = all.live.find(ptr);
    if (found == all.live.end()) return;
    place = found->second;
    all.live.erase(found);
  }
  const Event event("Free");
  {
    const WithoutLock released;
    vpmm_status status = vpmm_deallocate(place.pool, ptr, place.stream);
    if (status == VPMM_ERROR_INVALID_ARGUMENT) status = vpmm_deallocate_any_stream(place.pool, ptr);  // it is gone
    if (status != VPMM_OK && status != VPMM_ERROR_PROCESS_ENDING) vpmm_deallocate_deferred(place.pool, ptr);
  }
  event.end(device, address, reinterpret_cast<std::uintptr_t>(place.stream), 0);
}

// --- as CFunctionAllocator calls them -------------------------------------------------------------------------------

// CuPy turns std::bad_alloc into the error of Python that is set.
void* c_allocate(void* /*argument*/, std::size_t bytes, int device) {
  try {
    return reinterpret_cast<void*>(cupy_allocate(bytes, device));
  } catch (nb::python_error& error) {
    error.restore();
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
  module.def("cupy_connect", &connect, "stream_module"_a, "out_of_memory"_a);
  module.def("cupy_allocate", &cupy_allocate, "bytes"_a, "device"_a);
  module.def("cupy_free", &cupy_free, "ptr"_a, "device"_a);
  module.def("cupy_functions", [] {
    return std::pair(reinterpret_cast<std::uintptr_t>(&c_allocate), reinterpret_cast<std::uintptr_t>(&c_free));
  });
}

}  // namespace vpmm::python
