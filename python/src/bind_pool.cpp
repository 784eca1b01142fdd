// SPDX-License-Identifier: Apache-2.0
// python: the Python classes Pool, Allocation and Region, with their documentation.
//
// Note [Signatures are texts]
// Arguments arrive as Python objects. arguments.hpp converts them, so that its own messages
// describe invalid ones. The texts in nb::sig are therefore what help(), editors and type checkers
// see, and _vpmm.pyi is generated from them.
#include "bind_pool.hpp"

#include <nanobind/operators.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <charconv>
#include <cstdint>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "arguments.hpp"
#include "pool.hpp"
#include "settings.hpp"
#include "tags.hpp"

namespace vpmm::python {

namespace nb = nanobind;
using namespace nb::literals;

namespace {

// --- what a pool says ---

struct Allocation {
  std::uintptr_t begin;
  std::uint64_t requested;
  std::uint64_t usable;
  auto value() const { return std::make_tuple(begin, requested, usable); }
};

struct Region {
  std::uintptr_t begin;
  std::uint64_t bytes;
  std::uint64_t requested;
  const char* state;
  bool is_complete;
  auto value() const {
    return std::make_tuple(begin, bytes, requested, std::string(state), is_complete);
  }
};

const char* name_of(int state) {
  switch (static_cast<vpmm_region_state>(state)) {
    case VPMM_REGION_HOLE: return "hole";
    case VPMM_REGION_FREE: return "free";
    case VPMM_REGION_ALLOCATED: return "allocated";
    case VPMM_REGION_ZOMBIE: return "zombie";
    case VPMM_REGION_IN_FLIGHT: return "in flight";
    case VPMM_REGION_SUSPENDED: return "suspended";
  }
  return "unknown";
}

std::uintptr_t address(const void* ptr) { return reinterpret_cast<std::uintptr_t>(ptr); }
void* pointer_of(nb::handle ptr) { return reinterpret_cast<void*>(whole_number_of(ptr, "ptr")); }

nb::dict statistics(const Pool& pool) {
  vpmm_statistics figures{};
  figures.size = sizeof figures;
  pool.call([&](vpmm_pool* handle) { return vpmm_get_statistics(handle, &figures); });
  nb::dict result;
#define VPMM_STATISTIC(name, kind, meaning) result[#name] = figures.name;
#include "observe/statistics.def"
#undef VPMM_STATISTIC
  add_tags(pool, result);
  return result;
}

std::string dump(const Pool& pool, nb::handle json) {
  const bool as_json = switch_of(json, "json");
  char* text = nullptr;
  pool.call([&](vpmm_pool* handle) {
    return as_json ? vpmm_dump_json(handle, &text) : vpmm_dump_text(handle, &text);
  });
  const std::unique_ptr<char, decltype(&vpmm_string_free)> owner(text, vpmm_string_free);
  return text;
}

std::string explain(const Pool& pool, nb::handle number) {
  void* const at = reinterpret_cast<void*>(whole_number_of(number, "address"));
  char* text = nullptr;
  pool.call([&](vpmm_pool* handle) { return vpmm_explain(handle, at, &text); });
  const std::unique_ptr<char, decltype(&vpmm_string_free)> owner(text, vpmm_string_free);
  return text;
}

// Repeats the call while the pool grows between the two calls.
std::vector<Region> snapshot(const Pool& pool) {
  std::vector<vpmm_region> regions(64);
  for (std::size_t count = 0;; regions.resize(count)) {
    pool.call([&](vpmm_pool* handle) {
      return vpmm_snapshot(handle, regions.data(), regions.size(), &count);
    });
    if (count > regions.size()) continue;
    regions.resize(count);
    break;
  }
  std::vector<Region> result;
  for (const vpmm_region& region : regions)
    result.push_back({address(region.begin), region.bytes, region.requested, name_of(region.state),
                      region.complete != 0});
  return result;
}

Allocation query(const Pool& pool, nb::handle ptr) {
  vpmm_allocation_info info{};
  info.size = sizeof info;
  pool.call([&, at = pointer_of(ptr)](vpmm_pool* handle) { return vpmm_query(handle, at, &info); });
  return {address(info.begin), info.requested, info.usable};
}

std::size_t usable_size(const Pool& pool, nb::handle ptr) {
  std::size_t bytes = 0;
  pool.call([&, at = pointer_of(ptr)](vpmm_pool* handle) {
    return vpmm_usable_size(handle, at, &bytes);
  });
  return bytes;
}

void record_use(const Pool& pool, nb::handle ptr, nb::handle stream) {
  auto* const user = reinterpret_cast<void*>(stream_of(stream));
  pool.call([&, begin = pointer_of(ptr)](vpmm_pool* handle) {
    return vpmm_record_use(handle, begin, user);
  });
}

void wait_for_stream(const Pool& pool, nb::handle waiting, nb::handle first) {
  auto* const later = reinterpret_cast<void*>(stream_of(waiting, "waiting"));
  auto* const sooner = reinterpret_cast<void*>(stream_of(first, "first"));
  pool.call([&](vpmm_pool* handle) { return vpmm_stream_wait(handle, later, sooner); });
}

nb::object memory_info(const Pool& pool) {
  std::uint64_t free_bytes = 0;
  std::uint64_t total_bytes = 0;
  pool.call([&](vpmm_pool* handle) { return vpmm_memory_info(handle, &free_bytes, &total_bytes); });
  return nb::module_::import_("vpmm._memory_info").attr("MemoryInfo")(free_bytes, total_bytes);
}

// --- limits ---

std::size_t trim(const Pool& pool, nb::handle bytes_to_keep) {
  const std::uint64_t keep = bytes_of(bytes_to_keep, "bytes_to_keep");
  std::size_t released = 0;
  pool.call([&](vpmm_pool* handle) { return vpmm_trim(handle, keep, &released); });
  return released;
}

void preallocate(const Pool& pool, nb::handle bytes) {
  const std::uint64_t size = bytes_of(bytes, "bytes");
  pool.call([&](vpmm_pool* handle) { return vpmm_preallocate(handle, size); }, size);
}

void set_capacity(const Pool& pool, nb::handle bytes) {
  // As the setting: "none" is None.
  const bool is_none =
      bytes.is_none() || (nb::isinstance<nb::str>(bytes) && text_of(bytes, "bytes") == "none");
  const std::uint64_t most =
      is_none ? UINT64_MAX : capacity_of(bytes, "bytes", VPMM_ERROR_INVALID_ARGUMENT);
  if (most == 0)
    raise(VPMM_ERROR_INVALID_ARGUMENT, "bytes is 0: must be at least 1, or None for no limit");
  pool.call([&](vpmm_pool* handle) { return vpmm_set_capacity(handle, most); });
}

std::optional<std::uint64_t> get_capacity(const Pool& pool) {
  std::uint64_t bytes = 0;
  pool.call([&](vpmm_pool* handle) { return vpmm_get_capacity(handle, &bytes); });
  return bytes == UINT64_MAX ? std::nullopt : std::optional(bytes);
}

void set_peer_access(const Pool& pool, nb::handle device) {
  const int peer = device_of(device);
  pool.call([&](vpmm_pool* handle) { return vpmm_set_peer_access(handle, peer); });
}

// --- recordings ---

void record_start(const Pool& pool, nb::handle path, nb::handle stacks, nb::handle sample,
                  nb::handle limit, nb::handle window_ns) {
  const std::string file = path_of(path, "path");
  const std::string kinds = text_of(stacks, "stacks");
  const std::uint64_t one_in = whole_number_of(sample, "sample");
  if (one_in == 0)
    raise(VPMM_ERROR_INVALID_ARGUMENT, "sample is 0: must be at least 1, which records all");
  const vpmm_record_options options{sizeof(options),
                                    file.c_str(),
                                    kinds.c_str(),
                                    one_in,
                                    bytes_of(limit, "limit"),
                                    whole_number_of(window_ns, "window_ns")};
  pool.call([&](vpmm_pool* handle) { return vpmm_record_start_with(handle, &options); });
}

void record_mark(const Pool& pool, nb::handle text) {
  const std::string mark = text_of(text, "text");
  pool.call([&](vpmm_pool* handle) { return vpmm_record_mark(handle, mark.c_str()); });
}

// A method that calls one function of the C ABI with the pool alone.
template <vpmm_status (*function)(vpmm_pool*)>
void simply(const Pool& pool) {
  pool.call([](vpmm_pool* handle) { return function(handle); });
}

// --- the classes ---

constexpr const char* kEqual = "def __eq__(self, other: object, /) -> bool";
constexpr const char* kHash = "def __hash__(self) -> int";

template <typename Value>
void add_comparison(nb::class_<Value>& type) {
  type.def(
      "__eq__", [](const Value& a, const Value& b) { return a.value() == b.value(); },
      nb::is_operator(), nb::sig(kEqual));
  type.def(
      "__hash__", [](const Value& self) { return nb::hash(nb::cast(self.value())); },
      nb::sig(kHash));
}

std::string hexadecimal(std::uintptr_t address) {
  char digits[2 * sizeof address];
  return "0x" +
         std::string(digits, std::to_chars(std::begin(digits), std::end(digits), address, 16).ptr);
}

void bind_allocation(nb::module_& module) {
  nb::class_<Allocation> type(module, "Allocation", nb::is_final(),
                              "An allocation found by ``Pool.query``.");
  type.def_ro("begin", &Allocation::begin, "The start address, which frees take.")
      .def_ro("requested", &Allocation::requested, "Bytes requested.")
      .def_ro("usable", &Allocation::usable, "Usable bytes: the request, rounded up.")
      .def("__repr__", [](const Allocation& a) {
        return "<vpmm.Allocation at " + hexadecimal(a.begin) +
               ": requested=" + std::to_string(a.requested) +
               ", usable=" + std::to_string(a.usable) + ">";
      });
  add_comparison(type);
}

void bind_region(nb::module_& module) {
  nb::class_<Region> type(
      module, "Region", nb::is_final(),
      "A range of a pool's address space in one state, as ``Pool.snapshot`` lists them.");
  type.def_ro("begin", &Region::begin, "The start address.")
      .def_ro("bytes", &Region::bytes, "Its length in bytes.")
      .def_ro("requested", &Region::requested, "Bytes requested; 0 if the region is not allocated.")
      .def_ro(
          "state", &Region::state,
          R"("allocated", "free", "hole" (nothing is mapped), "zombie" (an old mapping of moved memory, not yet
unmapped), "in flight" or "suspended" (allocated, and not mapped).)")
      .def_ro("is_complete", &Region::is_complete,
              "Whether all work on the previous allocation there is known to be done.")
      .def("__repr__", [](const Region& r) {
        return "<vpmm.Region at " + hexadecimal(r.begin) + ": bytes=" + std::to_string(r.bytes) +
               ", requested=" + std::to_string(r.requested) + ", " + r.state +
               (r.is_complete ? ", complete>" : ">");
      });
  add_comparison(type);
}

using PoolClass = nb::class_<Pool>;

// Refuses arguments without a name behind the device: they are settings, which have names.
void require_names(const nb::args& others) {
  if (others.size() != 0)
    raise_type_error(shown(others[0]) +
                     " has no name: settings are keywords, as in capacity=\"16GiB\"");
}

void add_life(PoolClass& type) {
  // Read when they are bound, and copied then.
  const std::string parameters = Settings::parameters();
  const std::string init = "def __init__(self, device: int = 0, *, " + parameters + ") -> None";
  const std::string configure = "def configure(device: int = 0, *, " + parameters + ") -> Pool";
  const std::string settings =
      R"(

Settings that are not given come from environment variables: ``VPMM_`` and the keyword in capitals.

)" + Settings::described() +
      R"(
Sizes are bytes, as an int or a text such as ``"16GiB"``. Raises vpmm.Error
("VPMM_ERROR_BAD_CONFIGURATION") for a value that is not allowed, and TypeError for an unknown keyword or a
value of a wrong type.)";
  type.def(
          "__init__",
          [](Pool* self, nb::handle device, const nb::args& others, const nb::kwargs& given) {
            require_names(others);
            new (self) Pool(device, given);
          },
          "device"_a.none() = 0, "others"_a, "settings"_a, nb::sig(init.c_str()),
          ("Opens a private pool on the device with ordinal `device`." + settings).c_str())
      .def_static(
          "default", &Pool::open_default, "device"_a.none() = 0,
          nb::sig("def default(device: int = 0) -> Pool"),
          R"(The process-wide pool of `device`. The first call opens it with the settings of the environment.

All users of VPMM in the process share it, including C and C++ code. It is never closed. Raises vpmm.Error if
the device or the driver is missing, or a variable has a value that is not allowed.)")
      .def_static(
          "configure",
          [](nb::handle device, const nb::args& others, const nb::kwargs& given) {
            require_names(others);
            return Pool::configure_default(device, given);
          },
          "device"_a.none() = 0, "others"_a, "settings"_a, nb::sig(configure.c_str()),
          R"(Opens the process-wide pool of `device` with the settings of Pool and returns it.

Call it before anything else opens the pool. If the pool is open with other settings, vpmm.Error names the
difference.)")
      .def(
          "close",
          [](Pool& pool, nb::handle discard) { pool.close(switch_of(discard, "discard")); },
          "discard"_a.none() = false, nb::sig("def close(self, discard: bool = False) -> None"),
          R"(Closes a private pool: waits for the GPU and releases all memory. A second call does nothing.

Raises vpmm.Error, and leaves the pool open, while the pool has live allocations, while other threads are
inside its calls or a stream is captured, and for a process-wide pool. With `discard` True it also frees live
allocations; their addresses are then invalid. A pool that is not closed is destroyed with its last reference
and releases all memory.)")
      .def(
          "__enter__",
          [](nb::handle self) {
            nb::cast<const Pool&>(self).enter();
            return nb::borrow(self);
          },
          nb::sig("def __enter__(self) -> Pool"),
          "For a private pool: the end of the block closes it.")
      .def(
          "__exit__", [](Pool& pool, nb::handle kind, nb::handle, nb::handle) { pool.leave(kind); },
          "kind"_a.none(), "error"_a.none(), "trace"_a.none(),
          nb::sig("def __exit__(self, kind: type[BaseException] | None, error: BaseException | "
                  "None, trace: "
                  "types.TracebackType | None) -> None"),
          "Closes the pool. If the block raised and allocations are live, the pool is destroyed "
          "with its last "
          "reference.")
      .def_prop_ro("device", &Pool::device, "The ordinal of the pool's device.")
      .def_prop_ro("is_private", &Pool::is_private, "False for the process-wide pool of a device.")
      .def_prop_ro("is_closed", &Pool::is_closed,
                   "Whether close() was called. Every other call then raises vpmm.Error.")
      .def("__eq__", &Pool::is_same_as, nb::is_operator(), nb::sig(kEqual))
      .def("__hash__", &Pool::hash, nb::sig(kHash))
      .def("__repr__", &Pool::repr);
}

void add_allocating(PoolClass& type) {
  type.def(
          "allocate", &Pool::allocate, required("bytes"), required("stream"),
          "alignment"_a.none() = 0,
          nb::sig("def allocate(self, bytes: int | str, stream: vpmm._streams.StreamLike, "
                  "alignment: int | str = 0) -> "
                  "int"),
          R"(Allocates `bytes` bytes for work queued on `stream` after the call; returns the address, 0 for 0 bytes.

`bytes` is a number or a text such as ``"64MiB"``. `stream` is a CUstream as an int, None for the default
stream, or a stream object of Numba, CuPy, PyTorch or anything with ``__cuda_stream__``. The address is aligned
to 256 bytes, from 512 KiB up to 64 KiB, or to `alignment`, a power of two. Other streams may use the memory
once they are ordered behind `stream`. Waits for the GPU only if memory would otherwise run out. Raises
vpmm.OutOfMemoryError.)")
      .def(
          "allocate_any_stream", &Pool::allocate_any_stream, required("bytes"),
          "alignment"_a.none() = 0,
          nb::sig(
              "def allocate_any_stream(self, bytes: int | str, alignment: int | str = 0) -> int"),
          R"(Allocates memory that no work uses any more: work on any stream may use it at once. Returns the address.

Keeps the GIL if complete memory is available. Raises vpmm.OutOfMemoryError.)")
      .def("allocate_many", &Pool::allocate_many, required("bytes"), required("stream"),
           nb::sig("def allocate_many(self, bytes: collections.abc.Iterable[int | str], stream: "
                   "vpmm._streams.StreamLike) -> list[int]"),
           "Allocates each size as allocate() does and returns the addresses: all, or none and "
           "vpmm.OutOfMemoryError.")
      .def(
          "deallocate", &Pool::deallocate, required("ptr"), required("stream"),
          nb::sig("def deallocate(self, ptr: int, stream: vpmm._streams.StreamLike) -> None"),
          R"(Frees memory; work queued on `stream` so far is the last to use it. Address 0 does nothing.

The same stream may reuse the memory at once, other streams when that work is done. Does not wait. Raises
vpmm.Error ("VPMM_ERROR_INVALID_POINTER") if no allocation starts at `ptr`.)")
      .def("deallocate_any_stream", &Pool::deallocate_any_stream, required("ptr"),
           nb::sig("def deallocate_any_stream(self, ptr: int) -> None"),
           "Frees memory; work queued on any stream so far may still use it. Address 0 does "
           "nothing.")
      .def(
          "deallocate_deferred", &Pool::deallocate_deferred, required("ptr"),
          nb::sig("def deallocate_deferred(self, ptr: int) -> None"),
          R"(The same for finalizers and callbacks: takes no lock, makes no CUDA call, and fails for no address.

A later call, on any thread, carries the free out; mistakes are counted in ``caller_mistakes``. Does nothing
in a closed pool. A value that is not an address raises TypeError or vpmm.Error.)")
      .def("deallocate_many", &Pool::deallocate_many, required("ptrs"), required("stream"),
           nb::sig("def deallocate_many(self, ptrs: collections.abc.Iterable[int], stream: "
                   "vpmm._streams.StreamLike) -> "
                   "None"),
           "Calls deallocate() for each address. Frees all live ones; the error is the first "
           "failure's.")
      .def("record_use", &record_use, required("ptr"), required("stream"),
           nb::sig("def record_use(self, ptr: int, stream: vpmm._streams.StreamLike) -> None"),
           R"(Declares that work on `stream` uses the allocation that starts at `ptr`, too.

Its free then also waits for the work queued on `stream` by that time. Raises vpmm.Error if no allocation
starts at `ptr`; query() finds the start.)")
      .def(
          "stream_wait", &wait_for_stream, required("waiting"), required("first"),
          nb::sig("def stream_wait(self, waiting: vpmm._streams.StreamLike, first: "
                  "vpmm._streams.StreamLike) -> None"),
          R"(Makes work queued on `waiting` after the call wait, on the GPU, for the work already queued on `first`.

For memory that passes from one stream to another. Raises vpmm.Error if either is not a stream of the device.)");
}

void add_observing(PoolClass& type) {
  type.def("query", &query, required("ptr"), nb::sig("def query(self, ptr: int) -> Allocation"),
           R"(The allocation that contains an address.

Raises vpmm.Error ("VPMM_ERROR_INVALID_POINTER") if there is none.)")
      .def("usable_size", &usable_size, required("ptr"),
           nb::sig("def usable_size(self, ptr: int) -> int"),
           "Usable bytes of the allocation that contains `ptr`; 0 for address 0.")
      .def(
          "memory_info", &memory_info,
          nb::sig("def memory_info(self) -> vpmm._memory_info.MemoryInfo"),
          R"(The named tuple ``(free, total)`` in bytes: free in the driver and in the pool; total of the device.

Asks the driver.)")
      .def("statistics", &statistics, nb::sig("def statistics(self) -> vpmm._stats.Stats"),
           "The pool's statistics, a dictionary: vpmm.Stats has the names and their units.")
      .def(
          "summary",
          [](nb::handle pool) {
            return nb::module_::import_("vpmm._summary").attr("as_text")(pool);
          },
          nb::sig("def summary(self) -> str"),
          "A few lines of text: capacity, and mapped, live, idle and trapped memory with peaks.")
      .def(
          "_repr_html_",
          [](nb::handle pool) {
            return nb::module_::import_("vpmm._summary").attr("as_html")(pool);
          },
          nb::sig("def _repr_html_(self) -> str"), "The summary as a table, for notebooks.")
      .def("reset_peaks", &simply<vpmm_reset_peaks>,
           "Resets the ``peak_`` statistics to the current values.")
      .def("dump", &dump, "json"_a.none() = false,
           nb::sig("def dump(self, json: bool = False) -> str"),
           "Statistics and every region, as text or as one JSON object.")
      .def(
          "explain", &explain, required("address"),
          nb::sig("def explain(self, address: int) -> str"),
          R"(Tells which guarded allocation holds an address, ends before it or begins behind it, as text.

Its size, stream, tag, times and stacks, live or freed. With VPMM_GUARD only, also after the GPU has failed.)")
      .def("snapshot", &snapshot, "Every region of the pool's address space, in ascending order.");
}

void add_limits(PoolClass& type) {
  type.def(
          "trim", &trim, "bytes_to_keep"_a.none() = 0,
          nb::sig("def trim(self, bytes_to_keep: int | str = 0) -> int"),
          R"(Releases idle memory to the device until at most `bytes_to_keep` are mapped; returns the bytes released.

Memory in use stays, and so does memory that the device may still be using.)")
      .def("preallocate", &preallocate, required("bytes"),
           nb::sig("def preallocate(self, bytes: int | str) -> None"),
           "Maps memory until at least `bytes` are mapped in all. Raises vpmm.OutOfMemoryError.")
      .def(
          "set_capacity", &set_capacity, required("bytes"),
          nb::sig("def set_capacity(self, bytes: int | str | None) -> None"),
          R"(Limits the bytes that the pool may map: a size, a share of the device's such as "80%", None: what it has.

Memory above the limit stays mapped.)")
      .def("get_capacity", &get_capacity, nb::sig("def get_capacity(self) -> int | None"),
           "The limit that was set last, at first that of the settings; None: what the device has.")
      .def(
          "set_peer_access", &set_peer_access, required("device"),
          nb::sig("def set_peer_access(self, device: int) -> None"),
          R"(Gives work on another GPU access to all present and future memory of the pool, for the life of the pool.

Raises vpmm.Error ("VPMM_ERROR_UNSUPPORTED") if the hardware does not support it.)")
      .def(
          "set_out_of_memory_callback", &Pool::set_out_of_memory_callback, required("callback"),
          nb::sig("def set_out_of_memory_callback(self, callback: collections.abc.Callable[[int, "
                  "int], object] | None) "
                  "-> None"),
          R"(Sets `callback(device, bytes)`, which is called before a request fails; None removes it.

It frees memory and returns True to have the request tried again. It runs on the allocating thread and may
call the pool. An exception in it becomes the ``__cause__`` of the request's vpmm.OutOfMemoryError.)")
      .def("synchronize", &simply<vpmm_synchronize>,
           R"(Waits for all work of the device and of devices with access. Raises vpmm.Error
("VPMM_ERROR_CAPTURE_ACTIVE") while a stream is captured.)")
      .def("reset", &simply<vpmm_reset>,
           "Waits, then resets the device's primary context; allocations survive, streams do not.")
      .def(
          "defer_cleanup_begin", &simply<vpmm_defer_cleanup_begin>,
          R"(Defers cleanup: the pool unmaps and releases nothing on its own account and does not wait on the host.

Pairs nest. The pool still releases memory rather than run out.)")
      .def("defer_cleanup_end", &simply<vpmm_defer_cleanup_end>,
           "Ends what defer_cleanup_begin() began. Raises vpmm.Error without a begin.")
      .def("capture_begin", &simply<vpmm_capture_begin>,
           "Announces a capture on a stream that is never passed to the pool. Pairs nest.")
      .def("capture_end", &simply<vpmm_capture_end>,
           "Ends the announced capture. Raises vpmm.Error if none was announced.");
}

void add_recording(PoolClass& type) {
  type.def("record_start", &record_start, required("path"), "stacks"_a.none() = "none",
           "sample"_a.none() = 1, "limit"_a.none() = 0, "window_ns"_a.none() = 0,
           nb::sig("def record_start(self, path: str | os.PathLike[str], stacks: "
                   "typing.Literal['none', 'native', "
                   "'python', 'both'] = 'none', sample: int = 1, limit: int | str = 0, window_ns: "
                   "int = 0) -> None"),
           R"(Records this pool to a file, as vpmm.record() does for a process-wide pool.

`stacks` is "none", "native", "python" or "both", `limit` is in bytes and `window_ns` in nanoseconds; 0: none.
Raises vpmm.Error if the file cannot be created, an option is invalid, or a recording is running.)")
      .def("record_mark", &record_mark, required("text"),
           nb::sig("def record_mark(self, text: str) -> None"),
           "Adds `text` to the recording, between the calls before and after it. Does nothing "
           "without a recording.")
      .def("record_stop", &simply<vpmm_record_stop>, "Ends the recording and finishes the file.");
}

}  // namespace

void bind_pool(nb::module_& module) {
  bind_allocation(module);
  bind_region(module);
  static PyType_Slot slots[] = {{Py_tp_traverse, reinterpret_cast<void*>(&Pool::visit_callback)},
                                {Py_tp_clear, reinterpret_cast<void*>(&Pool::clear_callback)},
                                {0, nullptr}};
  PoolClass type(
      module, "Pool", nb::is_weak_referenceable(), nb::type_slots(slots),
      R"(A pool of device memory: one that all libraries of a process share, or a private one.

``Pool.default()`` is the process-wide pool of a device. ``Pool(...)`` creates a private one, which ends with
close(), with its ``with`` block or with its last reference. Sizes are bytes, or texts such as ``"16GiB"``;
addresses are ints. Any thread may call any method, with any CUDA context current or none; calls that may wait
release the GIL. Errors are vpmm.Error with a ``code``; an argument of a wrong type is a TypeError. Two objects
for one process-wide pool are equal.)");
  add_life(type);
  add_allocating(type);
  add_observing(type);
  add_limits(type);
  add_recording(type);
  bind_tags(module, type);
}

}  // namespace vpmm::python
