// python: the class Pool over a vpmm_pool.
#include "pool.hpp"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "errors.hpp"
#include "events.hpp"
#include "gil.hpp"
#include "settings.hpp"

namespace vpmm::python {

namespace nb = nanobind;
using namespace nb::literals;

namespace {

void* pointer(std::uintptr_t value) { return reinterpret_cast<void*>(value); }
std::uintptr_t address(const void* ptr) { return reinterpret_cast<std::uintptr_t>(ptr); }

// --- the out-of-memory callback ---
// By pool, so that whoever replaces one leaves nothing behind that a call in progress could still point to. Leaked: an
// allocation on another thread may ask for it while the interpreter ends. Holds: the GIL.
using Callbacks = std::unordered_map<vpmm_pool*, nb::object>;
Callbacks& callbacks() {
  static auto* const all = new Callbacks;
  return *all;
}

// Called by an allocation that runs without the GIL. The pool it belongs to is the argument.
int ask_python(void* argument, int device, std::uint64_t bytes) {
  if (!nb::is_alive()) return 0;
  const WithLock acquired;
  const auto found = callbacks().find(static_cast<vpmm_pool*>(argument));
  if (found == callbacks().end()) return 0;
  const nb::object callback = found->second;
  try {
    const int answer = PyObject_IsTrue(callback(device, bytes).ptr());
    if (answer >= 0) return answer;
    throw nb::python_error();
  } catch (nb::python_error& error) {
    keep_callback_error(error);
    return 0;
  }
}

// --- what a pool says ---

struct Allocation {
  std::uintptr_t begin;
  std::uint64_t requested;
  std::uint64_t usable;
};

struct Region {
  std::uintptr_t begin;
  std::uint64_t bytes;
  std::uint64_t requested;
  const char* state;
  bool is_complete;
};

const char* name_of(int state) {
  switch (static_cast<vpmm_region_state>(state)) {
    case VPMM_REGION_HOLE: return "hole";
    case VPMM_REGION_FREE: return "free";
    case VPMM_REGION_ALLOCATED: return "allocated";
    case VPMM_REGION_ZOMBIE: return "zombie";
    case VPMM_REGION_IN_FLIGHT: return "in flight";
  }
  return "unknown";
}

nb::dict statistics(const Pool& pool) {
  vpmm_statistics figures{};
  figures.size = sizeof figures;
  call([&] { return vpmm_get_statistics(pool.handle(), &figures); });
  nb::dict result;
#define VPMM_STATISTIC(name, kind, meaning) result[#name] = figures.name;
#include "observe/statistics.def"
#undef VPMM_STATISTIC
  return result;
}

std::string dump(const Pool& pool, bool json) {
  char* text = nullptr;
  call([&] { return json ? vpmm_dump_json(pool.handle(), &text) : vpmm_dump_text(pool.handle(), &text); });
  const std::unique_ptr<char, decltype(&vpmm_string_free)> owner(text, vpmm_string_free);
  return text;
}

// Asks again while the pool grows between the two calls.
std::vector<Region> snapshot(const Pool& pool) {
  std::vector<vpmm_region> regions(64);
  for (std::size_t count = 0;; regions.resize(count)) {
    call([&] { return vpmm_snapshot(pool.handle(), regions.data(), regions.size(), &count); });
    if (count > regions.size()) continue;
    regions.resize(count);
    break;
  }
  std::vector<Region> result;
  for (const vpmm_region& region : regions)
    result.push_back(
        {address(region.begin), region.bytes, region.requested, name_of(region.state), region.complete != 0});
  return result;
}

Allocation query(const Pool& pool, std::uintptr_t ptr) {
  vpmm_allocation_info info{};
  info.size = sizeof info;
  call([&] { return vpmm_query(pool.handle(), pointer(ptr), &info); });
  return {address(info.begin), info.requested, info.usable};
}

std::size_t usable_size(const Pool& pool, std::uintptr_t ptr) {
  std::size_t bytes = 0;
  call([&] { return vpmm_usable_size(pool.handle(), pointer(ptr), &bytes); });
  return bytes;
}

std::pair<std::uint64_t, std::uint64_t> memory_info(const Pool& pool) {
  std::uint64_t free_bytes = 0;
  std::uint64_t total_bytes = 0;
  call([&] { return vpmm_memory_info(pool.handle(), &free_bytes, &total_bytes); });
  return {free_bytes, total_bytes};
}

std::size_t trim(const Pool& pool, std::size_t bytes_to_keep) {
  std::size_t released = 0;
  call([&] { return vpmm_trim(pool.handle(), bytes_to_keep, &released); });
  return released;
}

std::vector<std::uintptr_t> allocate_many(const Pool& pool, const std::vector<std::size_t>& bytes,
                                          std::uintptr_t stream) {
  const Event event("Alloc");
  std::vector<void*> ptrs(bytes.size());
  call([&] { return vpmm_allocate_many(pool.handle(), bytes.data(), bytes.size(), pointer(stream), ptrs.data()); });
  std::vector<std::uintptr_t> result;
  for (std::size_t i = 0; i < ptrs.size(); ++i) {
    result.push_back(address(ptrs[i]));
    if (ptrs[i] != nullptr) event.end(pool.device(), result.back(), stream, bytes[i]);
  }
  return result;
}

void deallocate_many(const Pool& pool, const std::vector<std::uintptr_t>& ptrs, std::uintptr_t stream) {
  const Event event("Free");
  std::vector<void*> begins;
  for (const std::uintptr_t ptr : ptrs) begins.push_back(pointer(ptr));
  call([&] { return vpmm_deallocate_many(pool.handle(), begins.data(), begins.size(), pointer(stream)); });
  for (const std::uintptr_t ptr : ptrs)
    if (ptr != 0) event.end(pool.device(), ptr, stream, 0);
}

// A method that calls one function of the C ABI with the pool alone.
template <vpmm_status (*function)(vpmm_pool*)>
void simply(const Pool& pool) {
  call([&] { return function(pool.handle()); });
}

}  // namespace

// --- the life of a pool ---

Pool::Pool(int device, const nb::kwargs& given) : device_(device), is_private_(true) {
  const Settings settings(given);
  call([&] { return vpmm_pool_create(device, settings.config(), &handle_); });
  tell_children();
}

Pool::Pool(Pool&& other) noexcept
    : handle_(std::exchange(other.handle_, nullptr)), device_(other.device_), is_private_(other.is_private_) {}

Pool::~Pool() {
  if (!is_private_ || handle_ == nullptr) return;
  const auto callback = callbacks().extract(handle_);  // dies when it is in no map any more
  const WithoutLock released;
  static_cast<void>(vpmm_pool_destroy(handle_));
}

Pool Pool::open_default(int device) {
  Pool pool(nullptr, device);
  call([&] { return vpmm_default_pool(device, &pool.handle_); });
  tell_children();
  return pool;
}

Pool Pool::configure_default(int device, const nb::kwargs& given) {
  const Settings settings(given);
  Pool pool(nullptr, device);
  call([&] { return vpmm_default_pool_open(device, settings.config(), &pool.handle_); });
  tell_children();
  return pool;
}

// --- allocating ---

// The functions that try are called with the GIL: they wait for nobody, and to give it away and take it back costs more
// than an allocation, and where other threads want it may take milliseconds.
std::uintptr_t Pool::allocate(std::size_t bytes, std::uintptr_t stream, std::size_t alignment) const {
  if (bytes == 0) return 0;
  const Event event("Alloc");
  void* ptr = nullptr;
  if (vpmm_try_allocate(handle_, bytes, alignment, pointer(stream), &ptr) != VPMM_OK)
    call([&] { return vpmm_allocate_aligned(handle_, bytes, alignment, pointer(stream), &ptr); });
  event.end(device_, address(ptr), stream, bytes);
  return address(ptr);
}

std::uintptr_t Pool::allocate_any_stream(std::size_t bytes, std::size_t alignment) const {
  if (bytes == 0) return 0;
  const Event event("Alloc");
  void* ptr = nullptr;
  if (vpmm_try_allocate_any_stream(handle_, bytes, alignment, &ptr) != VPMM_OK)
    call([&] { return vpmm_allocate_any_stream(handle_, bytes, alignment, &ptr); });
  event.end(device_, address(ptr), 0, bytes);
  return address(ptr);
}

void Pool::deallocate(std::uintptr_t ptr, std::uintptr_t stream) const {
  if (ptr == 0) return;
  const Event event("Free");
  if (vpmm_try_deallocate(handle_, pointer(ptr), pointer(stream)) != VPMM_OK)
    call([&] { return vpmm_deallocate(handle_, pointer(ptr), pointer(stream)); });
  event.end(device_, ptr, stream, 0);
}

void Pool::deallocate_any_stream(std::uintptr_t ptr) const {
  if (ptr == 0) return;
  const Event event("Free");
  call([&] { return vpmm_deallocate_any_stream(handle_, pointer(ptr)); });
  event.end(device_, ptr, 0, 0);
}

void Pool::deallocate_deferred(std::uintptr_t ptr) const noexcept {
  if (ptr == 0) return;
  const Event event("Free");
  vpmm_deallocate_deferred(handle_, pointer(ptr));
  event.end(device_, ptr, 0, 0);
}

void Pool::set_out_of_memory_callback(nb::object callback) const {
  const bool is_set = !callback.is_none();
  const auto previous = callbacks().extract(handle_);  // before others run, who may set one of their own
  if (is_set) callbacks()[handle_] = std::move(callback);
  call([&] { return vpmm_set_out_of_memory_callback(handle_, is_set ? ask_python : nullptr, handle_); });
}

// --- the callback of a private pool may refer to the pool: the collector has to see it ---

int Pool::visit_callback(PyObject* self, visitproc visit, void* arg) {
  Py_VISIT(Py_TYPE(self));
  if (!nb::inst_ready(self)) return 0;
  const Pool& pool = *nb::inst_ptr<Pool>(self);
  const auto found = pool.is_private_ ? callbacks().find(pool.handle_) : callbacks().end();
  if (found != callbacks().end()) Py_VISIT(found->second.ptr());
  return 0;
}

int Pool::clear_callback(PyObject* self) {
  if (!nb::inst_ready(self)) return 0;
  const Pool& pool = *nb::inst_ptr<Pool>(self);
  if (pool.is_private_) static_cast<void>(callbacks().extract(pool.handle_));
  return 0;
}

// --- the module ---

void bind_pool(nb::module_& module) {
  nb::class_<Allocation>(module, "Allocation")
      .def_ro("begin", &Allocation::begin)
      .def_ro("requested", &Allocation::requested)
      .def_ro("usable", &Allocation::usable);
  nb::class_<Region>(module, "Region")
      .def_ro("begin", &Region::begin)
      .def_ro("bytes", &Region::bytes)
      .def_ro("requested", &Region::requested)
      .def_ro("state", &Region::state)
      .def_ro("is_complete", &Region::is_complete);

  static PyType_Slot slots[] = {{Py_tp_traverse, reinterpret_cast<void*>(&Pool::visit_callback)},
                                {Py_tp_clear, reinterpret_cast<void*>(&Pool::clear_callback)},
                                {0, nullptr}};
  nb::class_<Pool>(module, "Pool", nb::is_weak_referenceable(), nb::type_slots(slots))
      .def(
          "__init__", [](Pool* self, int device, const nb::kwargs& settings) { new (self) Pool(device, settings); },
          "device"_a = 0, "settings"_a)
      .def_static("default", &Pool::open_default, "device"_a = 0)
      .def_static("configure", &Pool::configure_default, "device"_a = 0, "settings"_a)
      .def_prop_ro("device", &Pool::device)
      .def_prop_ro("is_private", &Pool::is_private)
      .def("allocate", &Pool::allocate, "bytes"_a, "stream"_a, "alignment"_a = 0)
      .def("allocate_any_stream", &Pool::allocate_any_stream, "bytes"_a, "alignment"_a = 0)
      .def("deallocate", &Pool::deallocate, "ptr"_a, "stream"_a)
      .def("deallocate_any_stream", &Pool::deallocate_any_stream, "ptr"_a)
      .def("deallocate_deferred", &Pool::deallocate_deferred, "ptr"_a)
      .def("allocate_many", &allocate_many, "bytes"_a, "stream"_a)
      .def("deallocate_many", &deallocate_many, "ptrs"_a, "stream"_a)
      .def(
          "record_use",
          [](const Pool& pool, std::uintptr_t ptr, std::uintptr_t stream) {
            call([&] { return vpmm_record_use(pool.handle(), pointer(ptr), pointer(stream)); });
          },
          "ptr"_a, "stream"_a)
      .def("query", &query, "ptr"_a)
      .def("usable_size", &usable_size, "ptr"_a)
      .def("memory_info", &memory_info)
      .def("statistics", &statistics)
      .def("reset_peaks", &simply<vpmm_reset_peaks>)
      .def("dump", &dump, "json"_a = false)
      .def("snapshot", &snapshot)
      .def("trim", &trim, "bytes_to_keep"_a = 0)
      .def(
          "preallocate",
          [](const Pool& pool, std::size_t bytes) { call([&] { return vpmm_preallocate(pool.handle(), bytes); }); },
          "bytes"_a)
      .def(
          "set_capacity",
          [](const Pool& pool, std::optional<std::uint64_t> bytes) {
            call([&] { return vpmm_set_capacity(pool.handle(), bytes.value_or(UINT64_MAX)); });
          },
          "bytes"_a.none())
      .def(
          "set_peer_access",
          [](const Pool& pool, int device) { call([&] { return vpmm_set_peer_access(pool.handle(), device); }); },
          "device"_a)
      .def("set_out_of_memory_callback", &Pool::set_out_of_memory_callback, "callback"_a.none())
      .def("synchronize", &simply<vpmm_synchronize>)
      .def("reset", &simply<vpmm_reset>)
      .def("defer_cleanup_begin", &simply<vpmm_defer_cleanup_begin>)
      .def("defer_cleanup_end", &simply<vpmm_defer_cleanup_end>)
      .def("capture_begin", &simply<vpmm_capture_begin>)
      .def("capture_end", &simply<vpmm_capture_end>)
      .def(
          "record_start",
          [](const Pool& pool, const std::string& path, const std::string& stacks, std::uint64_t sample,
             std::uint64_t limit, std::uint64_t window_ns) {
            const vpmm_record_options options{sizeof(options), path.c_str(), stacks.c_str(), sample, limit, window_ns};
            call([&] { return vpmm_record_start_with(pool.handle(), &options); });
          },
          "path"_a, "stacks"_a = "none", "sample"_a = 1, "limit"_a = 0, "window_ns"_a = 0)
      .def(
          "record_mark",
          [](const Pool& pool, const std::string& text) {
            call([&] { return vpmm_record_mark(pool.handle(), text.c_str()); });
          },
          "text"_a)
      .def("record_stop", &simply<vpmm_record_stop>);
}

}  // namespace vpmm::python
