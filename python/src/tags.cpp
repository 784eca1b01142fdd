// SPDX-License-Identifier: Apache-2.0
// python: tags of a pool: entering them, suspend and resume, hooks.
//
// Note [Hooks that raise]
// Hooks run on the thread that suspends or resumes. If that call came from Python, the first
// exception of its hooks is raised from the call once the library has returned, instead of the
// library's error. Exceptions that no call can raise are reported as unraisable.
#include "tags.hpp"

#include <nanobind/stl/string.h>

#include <algorithm>
#include <iterator>
#include <limits>
#include <map>
#include <string>
#include <utility>

#include "arguments.hpp"
#include "errors.hpp"
#include "gil.hpp"

namespace vpmm::python {

namespace nb = nanobind;
using namespace nb::literals;

namespace {

// --- arguments ---

std::uint32_t tag_of(nb::handle value) {
  std::uint32_t tag = 0;
  if (PyUnicode_Check(value.ptr())) {
    const std::string name = text_of(value, "tag");
    call([&] { return vpmm_tag_with_name(name.c_str(), &tag); });
    return tag;
  }
  if (value.is(missing()) || PyBool_Check(value.ptr()) || PyIndex_Check(value.ptr()) == 0)
    raise_wrong_type(value, "tag", "a name, or a number of 1 and more");
  const std::uint64_t number = whole_number_of(value, "tag");
  if (number == 0 || number > std::numeric_limits<std::uint32_t>::max())
    raise(VPMM_ERROR_INVALID_ARGUMENT, "tag is " + shown(value) + ": must be from 1 to 4294967295");
  return static_cast<std::uint32_t>(number);
}

// Reads a tag; None: all suspendable tags.
std::uint32_t tag_or_all(nb::handle value) { return value.is_none() ? 0 : tag_of(value); }

// The name that a program gave a tag.
nb::object name_of(std::uint32_t tag) {
  const std::string name = vpmm_tag_name(tag);
  return name.empty() ? nb::object(nb::int_(tag)) : nb::object(text_of(name));
}

vpmm_tag_scope scope_of(nb::handle thread) {
  return switch_of(thread, "thread") ? VPMM_TAG_OF_THREAD : VPMM_TAG_OF_PROCESS;
}

std::uint32_t flag(nb::handle value, const char* name, std::uint32_t bit) {
  return switch_of(value, name) ? bit : 0;
}

void* pointer_of(nb::handle ptr) { return reinterpret_cast<void*>(whole_number_of(ptr, "ptr")); }

// --- hooks ---

// By the argument that the library passes, a number that is used once. Leaked: another thread may
// look one up while the interpreter exits. Holds: the GIL.
using AllHooks = std::map<std::uintptr_t, SuspendHooks>;
AllHooks& all_hooks() {
  static auto* const all = new AllHooks;
  return *all;
}

// A call that runs hooks, and the exception of the first that raised. A call of another language
// has none: its error is the exception's text. Holds: the GIL, at its beginning and end.
class HookedCall {
 public:
  HookedCall() : outer_(std::exchange(innermost, this)) {}
  ~HookedCall() { innermost = outer_; }
  HookedCall(const HookedCall&) = delete;
  HookedCall& operator=(const HookedCall&) = delete;

  static void keep(nb::python_error& error, const nb::object& hook) {
    if (innermost != nullptr && !innermost->exception_.is_valid()) {
      innermost->exception_ = exception_of(error);
      return;
    }
    if (innermost == nullptr)
      static_cast<void>(vpmm_callback_fail(VPMM_ERROR_DRIVER_FAILED, error.what()));
    error.restore();
    PyErr_WriteUnraisable(hook.ptr());
  }
  void raise_if_kept() {
    if (exception_.is_valid()) raise(exception_);
  }

 private:
  static thread_local HookedCall* innermost;

  HookedCall* const outer_;
  nb::object exception_;
};

thread_local HookedCall* HookedCall::innermost = nullptr;

template <typename Work>
void call_with_hooks(const Pool& pool, Work&& work) {
  HookedCall hooked;
  try {
    pool.call(std::forward<Work>(work));
  } catch (nb::python_error&) {
    hooked.raise_if_kept();
    throw;
  }
  hooked.raise_if_kept();
}

// Returns 1 if the hook raised.
template <nb::object SuspendHooks::*which>
int call_hook(void* argument, int device, std::uint32_t tag) {
  if (!nb::is_alive()) return 0;
  const WithLock acquired;
  const auto found = all_hooks().find(reinterpret_cast<std::uintptr_t>(argument));
  if (found == all_hooks().end()) return 0;
  const nb::object hook = found->second.*which;
  try {
    hook(device, name_of(tag));
    return 0;
  } catch (nb::python_error& error) {
    HookedCall::keep(error, hook);
    return 1;
  }
}

void require_hook(const nb::object& hook, const char* name) {
  if (!hook.is_none() && PyCallable_Check(hook.ptr()) == 0)
    raise_wrong_type(hook, name, "callable, or None");
}

std::uint64_t add_suspend_hooks(const Pool& pool, nb::handle tag, nb::object before_unmap,
                                nb::object after_map) {
  const std::uint32_t number = tag_of(tag);
  require_hook(before_unmap, "before_unmap");
  require_hook(after_map, "after_map");
  vpmm_suspend_hook const before =
      before_unmap.is_none() ? nullptr : &call_hook<&SuspendHooks::before_unmap>;
  vpmm_suspend_hook const after =
      after_map.is_none() ? nullptr : &call_hook<&SuspendHooks::after_map>;
  static std::uintptr_t last = 0;
  const std::uintptr_t key = ++last;
  all_hooks()[key] = {nullptr, 0, std::move(before_unmap), std::move(after_map)};
  std::uint64_t id = 0;
  try {
    pool.call([&](vpmm_pool* handle) {
      return vpmm_add_suspend_hooks(handle, number, before, after, reinterpret_cast<void*>(key),
                                    &id);
    });
  } catch (...) {
    const auto hooks = all_hooks().extract(key);
    throw;
  }
  all_hooks()[key].pool = pool.handle();
  all_hooks()[key].id = id;
  return id;
}

void remove_suspend_hooks(const Pool& pool, nb::handle id) {
  const std::uint64_t number = whole_number_of(id, "id");
  pool.call([&](vpmm_pool* handle) { return vpmm_remove_suspend_hooks(handle, number); });
  AllHooks& all = all_hooks();
  for (auto each = all.begin(); each != all.end(); ++each) {
    if (each->second.pool != pool.handle() || each->second.id != number) continue;
    const auto hooks = all.extract(each);  // dies when it is in no map any more
    return;
  }
}

// --- tags ---

void make_suspendable(const Pool& pool, nb::handle tag, nb::handle backup,
                      nb::handle keep_host_copy) {
  const std::uint32_t number = tag_of(tag);
  const std::uint32_t flags = flag(backup, "backup", VPMM_TAG_BACKUP) |
                              flag(keep_host_copy, "keep_host_copy", VPMM_TAG_KEEP_HOST_COPY);
  pool.call([&](vpmm_pool* handle) { return vpmm_tag_make_suspendable(handle, number, flags); });
}

void tag_enter(const Pool& pool, nb::handle tag, nb::handle thread) {
  const std::uint32_t number = tag_of(tag);
  const vpmm_tag_scope scope = scope_of(thread);
  pool.call([&](vpmm_pool* handle) { return vpmm_tag_enter(handle, number, scope); });
}

void tag_leave(const Pool& pool, nb::handle tag, nb::handle thread) {
  const std::uint32_t number = tag_of(tag);
  const vpmm_tag_scope scope = scope_of(thread);
  pool.call([&](vpmm_pool* handle) { return vpmm_tag_leave(handle, number, scope); });
}

nb::object tag_entered(const Pool& pool) {
  std::uint32_t tag = 0;
  pool.call([&](vpmm_pool* handle) { return vpmm_tag_entered(handle, &tag, nullptr); });
  return tag == 0 ? nb::object(nb::none()) : name_of(tag);
}

void suspend(const Pool& pool, nb::handle tag, nb::handle backup, nb::handle keep_host_copy,
             nb::handle to_driver, nb::handle stream) {
  const std::uint32_t number = tag_or_all(tag);
  std::uint32_t flags = flag(keep_host_copy, "keep_host_copy", VPMM_SUSPEND_KEEP_HOST_COPY) |
                        flag(to_driver, "to_driver", VPMM_SUSPEND_TO_DRIVER);
  if (!backup.is_none())
    flags |= switch_of(backup, "backup") ? VPMM_SUSPEND_BACKUP : VPMM_SUSPEND_DISCARD;
  vpmm_stream after = nullptr;
  if (!stream.is(nb::ellipsis())) {
    flags |= VPMM_SUSPEND_AFTER_STREAM;
    after = reinterpret_cast<vpmm_stream>(stream_of(stream));
  }
  call_with_hooks(pool,
                  [&](vpmm_pool* handle) { return vpmm_suspend(handle, number, flags, after); });
}

void prepare_suspend(const Pool& pool, nb::handle tag) {
  const std::uint32_t number = tag_or_all(tag);
  pool.call([&](vpmm_pool* handle) { return vpmm_prepare_suspend(handle, number); });
}

void resume(const Pool& pool, nb::handle tag, nb::handle zero, nb::handle copy) {
  const std::uint32_t number = tag_or_all(tag);
  const std::uint32_t flags = flag(zero, "zero", VPMM_RESUME_ZERO) |
                              (switch_of(copy, "copy") ? 0 : VPMM_RESUME_WITHOUT_COPY);
  call_with_hooks(pool, [&](vpmm_pool* handle) { return vpmm_resume(handle, number, flags); });
}

// For plugins in Python: memory with the tag of vpmm_library_tag.
std::uintptr_t allocate_tagged(const Pool& pool, nb::handle bytes, std::uint32_t library,
                               nb::handle stream) {
  vpmm_request request{};
  request.size = sizeof request;
  request.bytes = bytes_of(bytes, "bytes");
  if (stream.is_none())
    request.flags = VPMM_ALLOCATE_ANY_STREAM;
  else
    request.stream = reinterpret_cast<vpmm_stream>(stream_of(stream));
  request.library = library;
  if (request.bytes == 0) return 0;
  void* ptr = nullptr;
  pool.call([&](vpmm_pool* handle) { return vpmm_allocate_with(handle, &request, &ptr); },
            request.bytes);
  return reinterpret_cast<std::uintptr_t>(ptr);
}

// --- what they are ---

const char* name_of_state(int state) {
  switch (static_cast<vpmm_tag_state>(state)) {
    case VPMM_TAG_LIVE: return "live";
    case VPMM_TAG_SUSPENDED: return "suspended";
    case VPMM_TAG_DISCARDED: return "discarded";
    case VPMM_TAG_CHANGING: return "changing";
  }
  return "unknown";
}

vpmm_tag_info info_of(const Pool& pool, std::uint32_t tag) {
  vpmm_tag_info info{};
  info.size = sizeof info;
  pool.call([&](vpmm_pool* handle) { return vpmm_tag_get_info(handle, tag, &info); });
  return info;
}

// Repeats the call while there are more tags between two calls.
template <typename List>
std::vector<std::uint32_t> listed(const Pool& pool, List list) {
  std::vector<std::uint32_t> tags(16);
  for (std::size_t count = 0;; tags.resize(count)) {
    pool.call([&](vpmm_pool* handle) { return list(handle, tags.data(), tags.size(), &count); });
    if (count > tags.size()) continue;
    tags.resize(count);
    return tags;
  }
}

std::vector<std::uint32_t> suspendable(const Pool& pool) {
  return listed(pool, vpmm_suspendable_tags);
}

nb::object tag_info(const Pool& pool, nb::handle tag) {
  const std::uint32_t number = tag_of(tag);
  const vpmm_tag_info info = info_of(pool, number);
  const nb::object limit =
      info.limit_bytes == VPMM_NO_LIMIT ? nb::object(nb::none()) : nb::cast(info.limit_bytes);
  const auto all = suspendable(pool);
  const bool is_suspendable = std::find(all.begin(), all.end(), number) != all.end();
  return nb::module_::import_("vpmm._tags")
      .attr("TagInfo")(name_of(number), number, limit, is_suspendable, name_of_state(info.state),
                       (info.flags & VPMM_TAG_BACKUP) != 0,
                       (info.flags & VPMM_TAG_KEEP_HOST_COPY) != 0, info.live_bytes,
                       info.mapped_bytes, info.suspended_bytes, info.host_bytes,
                       info.library_bytes);
}

nb::tuple names_of(const std::vector<std::uint32_t>& tags) {
  nb::list names;
  for (const std::uint32_t tag : tags) names.append(name_of(tag));
  return nb::tuple(names);
}

nb::tuple suspendable_tags(const Pool& pool) { return names_of(suspendable(pool)); }

nb::tuple tags(const Pool& pool) { return names_of(listed(pool, vpmm_tags)); }

void set_tag_limit(const Pool& pool, nb::handle tag, nb::handle limit) {
  const std::uint32_t number = tag_of(tag);
  const std::uint64_t bytes =
      limit.is_none() ? VPMM_NO_LIMIT : capacity_of(limit, "limit", VPMM_ERROR_INVALID_ARGUMENT);
  pool.call([&](vpmm_pool* handle) { return vpmm_tag_set_limit(handle, number, bytes); });
}

nb::tuple suspended(const Pool& pool) {
  nb::list names;
  for (const std::uint32_t tag : suspendable(pool)) {
    const int state = info_of(pool, tag).state;
    if (state == VPMM_TAG_SUSPENDED || state == VPMM_TAG_DISCARDED) names.append(name_of(tag));
  }
  return nb::tuple(names);
}

bool is_suspended(const Pool& pool, nb::handle ptr) {
  int answer = 0;
  pool.call([&, at = pointer_of(ptr)](vpmm_pool* handle) {
    return vpmm_is_suspended(handle, at, &answer);
  });
  return answer != 0;
}

nb::object host_copy(const Pool& pool, nb::handle ptr, nb::handle bytes) {
  const std::uint64_t size = bytes_of(bytes, "bytes");
  if (size > static_cast<std::uint64_t>(PY_SSIZE_T_MAX))
    raise(VPMM_ERROR_INVALID_ARGUMENT, "bytes is " + shown(bytes) + ": more than a view holds");
  void* host = nullptr;
  pool.call([&, at = pointer_of(ptr)](vpmm_pool* handle) {
    return vpmm_host_copy(handle, at, size, &host);
  });
  const nb::object view = nb::steal(PyMemoryView_FromMemory(
      static_cast<char*>(host), static_cast<Py_ssize_t>(size), PyBUF_WRITE));
  if (!view.is_valid()) throw nb::python_error();
  return view;
}

// --- the methods ---

void add_entering(nb::class_<Pool>& type) {
  type.def(
          "make_suspendable", &make_suspendable, required("tag"), nb::kw_only(),
          "backup"_a.none() = true, "keep_host_copy"_a.none() = false,
          nb::sig("def make_suspendable(self, tag: int | str, *, backup: bool = True, "
                  "keep_host_copy: bool = False) -> None"),
          R"(Makes memory of `tag` in this pool suspendable: it then shares no chunk with other memory.

`tag` is a name, or a number from 1 on. With `backup` a suspend copies the contents to the host, otherwise it
discards them. With `keep_host_copy` the copy stays allocated and pinned after a resume, for the next suspend.
Call it before the tag is entered: memory that has the tag already stays as it is. A second call changes both
switches. Raises vpmm.Error ("VPMM_ERROR_UNSUPPORTED") if the pool has no virtual memory.)")
      .def(
          "tag_enter", &tag_enter, required("tag"), "thread"_a.none() = false,
          nb::sig("def tag_enter(self, tag: int | str, thread: bool = False) -> None"),
          R"(From here on requests in this pool have the tag: of all threads, or with `thread` of the calling thread.

Tags nest, and the last one entered serves. tag_leave() ends it. vpmm.tag() does both for a block.)")
      .def(
          "set_tag_limit", &set_tag_limit, required("tag"), required("limit"),
          nb::sig("def set_tag_limit(self, tag: int | str, limit: int | str | None) -> None"),
          R"(Limits the memory of a tag in this pool, in bytes or as a text such as "8GiB" or "25%", a share of the
capacity or, without one, of the GPU's memory; None: no limit.

A request that would bring the bytes that its live allocations asked for above the limit raises
vpmm.OutOfMemoryError. Suspended memory counts. What the tag has already stays.)")
      .def("tag_leave", &tag_leave, required("tag"), "thread"_a.none() = false,
           nb::sig("def tag_leave(self, tag: int | str, thread: bool = False) -> None"),
           "Ends the last tag_enter() with these arguments. Raises vpmm.Error if there is none.")
      .def("tag_entered", &tag_entered, nb::sig("def tag_entered(self) -> str | int | None"),
           "The tag that a request of the calling thread would have: its name, its number if it "
           "has no name, or None.");
}

void add_suspending(nb::class_<Pool>& type) {
  type.def(
          "suspend", &suspend, "tag"_a.none() = nb::none(), nb::kw_only(),
          "backup"_a.none() = nb::none(), "keep_host_copy"_a.none() = false,
          "to_driver"_a.none() = false, "stream"_a.none() = nb::ellipsis(),
          nb::sig("def suspend(self, tag: int | str | None = None, *, backup: bool | None = None, "
                  "keep_host_copy: bool = False, to_driver: bool = False, stream: "
                  "vpmm._streams.StreamLike | types.EllipsisType = ...) -> None"),
          R"(Gives up the physical memory of a tag and keeps its addresses; all of it or none. None: all suspendable
tags.

`backup` True copies the contents to the host, False discards them, None does as make_suspendable() says.
`keep_host_copy` keeps the copy allocated and pinned after the resume. `to_driver` returns the physical memory
to the driver, for other processes; otherwise it stays idle in the pool. Waits for all work of the device.
With `stream` it waits for the work queued there only: the caller states that all work that uses the memory is
queued on `stream`, or is ordered before it. Memory that is suspended already stays so.

Work on the GPU must not touch suspended memory, and its requests raise vpmm.Error ("VPMM_ERROR_SUSPENDED").
Frees succeed. Raises vpmm.Error, without any change, while a stream is captured, while another process holds
memory of the tag, and if the tag is not suspendable; vpmm.OutOfMemoryError if the host has less free memory
than the copy takes; and the exception of a hook that refuses.)")
      .def(
          "prepare_suspend", &prepare_suspend, "tag"_a.none() = nb::none(),
          nb::sig("def prepare_suspend(self, tag: int | str | None = None) -> None"),
          R"(Takes the host memory for the next copy now, as much as is live in the tag. None: all suspendable tags.

The first suspend() is then as fast as later ones. Pins it if copies are kept. Raises vpmm.OutOfMemoryError,
without any change, if the host has less free memory than that.)")
      .def(
          "resume", &resume, "tag"_a.none() = nb::none(), nb::kw_only(), "zero"_a.none() = false,
          "copy"_a.none() = true,
          nb::sig("def resume(self, tag: int | str | None = None, *, zero: bool = False, copy: "
                  "bool = True) -> None"),
          R"(Gives a suspended tag physical memory at its addresses again; all of it or none. None: all
suspendable tags.

The contents are there when the call returns. `zero` sets memory without a host copy to zero; otherwise its
contents are undefined. `copy` False drops the host copy, for memory that the caller overwrites. Does nothing
for a tag that is not suspended. Raises vpmm.OutOfMemoryError, and everything stays suspended, if the memory
does not fit; vpmm.Error while a stream is captured; and the exception of a hook, after the memory is back.)")
      .def(
          "add_suspend_hooks", &add_suspend_hooks, required("tag"),
          "before_unmap"_a.none() = nb::none(), "after_map"_a.none() = nb::none(),
          nb::sig("def add_suspend_hooks(self, tag: int | str, before_unmap: "
                  "collections.abc.Callable[[int, str | int], object] | None = None, after_map: "
                  "collections.abc.Callable[[int, str | int], object] | None = None) -> int"),
          R"(Sets functions that are called around each suspend of a tag, as `before_unmap(device, tag)`. Returns an id.

For libraries that registered memory of the tag. `before_unmap` is called before memory of the tag is
suspended, in the order in which hooks were added. `after_map` is called in the reverse order when the contents
are back, or when the suspend failed. They run on the thread that suspends or resumes, and may call the pool,
but not suspend() and resume(). An exception of `before_unmap` refuses the suspend, which raises it. An
exception of `after_map` is raised by the call that ran it; the memory is resumed all the same. The pool keeps
both alive until remove_suspend_hooks(), or until a private pool ends.)")
      .def("remove_suspend_hooks", &remove_suspend_hooks, required("id"),
           nb::sig("def remove_suspend_hooks(self, id: int) -> None"),
           "Removes what add_suspend_hooks() set. Waits until they do not run; a hook may remove "
           "itself. Raises vpmm.Error if there is no such id.");
}

void add_asking(nb::class_<Pool>& type) {
  type.def("suspendable_tags", &suspendable_tags,
           nb::sig("def suspendable_tags(self) -> tuple[str | int, ...]"),
           "The names of the suspendable tags of this pool; the number of a tag without a name.")
      .def("suspended", &suspended, nb::sig("def suspended(self) -> tuple[str | int, ...]"),
           "The names of the suspended tags of this pool; the number of a tag without a name.")
      .def("tag_info", &tag_info, required("tag"),
           nb::sig("def tag_info(self, tag: int | str) -> vpmm._tags.TagInfo"),
           "State and sizes of a tag in this pool.")
      .def("tags", &tags, nb::sig("def tags(self) -> tuple[str | int, ...]"),
           "The names of the tags with live memory in this pool, with a limit, or suspendable; "
           "the number of a tag without a name.")
      .def("is_suspended", &is_suspended, required("ptr"),
           nb::sig("def is_suspended(self, ptr: int) -> bool"),
           "Whether an address is in suspended memory. Raises vpmm.Error "
           "(\"VPMM_ERROR_INVALID_POINTER\") if it is not in live memory.")
      .def("host_copy", &host_copy, required("ptr"), required("bytes"),
           nb::sig("def host_copy(self, ptr: int, bytes: int | str) -> memoryview"),
           R"(The contents of `bytes` bytes at `ptr` on the host, inside one allocation.

While it is suspended they may be written. The view must not be used after a free, nor after a resume that does not
keep the copy: its memory is then gone or reused. A kept copy can be read until the next suspend. Raises vpmm.Error
("VPMM_ERROR_INVALID_POINTER") if the memory has no host copy.)");
}

}  // namespace

void add_tags(const Pool& pool, nb::dict& statistics) {
  nb::dict by_tag;
  nb::dict by_library;
  // Tags of one name are one to a reader.
  const auto add = [](nb::dict& sums, const nb::object& name, std::uint64_t bytes) {
    if (bytes != 0) sums[name] = nb::int_(bytes) + sums.get(name, nb::int_(0));
  };
  for (const std::uint32_t tag : listed(pool, vpmm_tags)) {
    const vpmm_tag_info info = info_of(pool, tag);
    add(by_tag, name_of(tag), info.live_bytes);
    add(by_library, name_of(tag), info.library_bytes);
  }
  statistics["by_tag"] = by_tag;
  statistics["by_library"] = by_library;
}

std::uint32_t library_tag(const char* library) {
  std::uint32_t tag = 0;
  // With the GIL: callers hold it while they initialize a static variable.
  const vpmm_status status = vpmm_library_tag(library, &tag);
  if (status != VPMM_OK) raise(status, vpmm_last_error());
  return tag;
}

std::vector<SuspendHooks> take_suspend_hooks(const vpmm_pool* pool) {
  std::vector<SuspendHooks> taken;
  AllHooks& all = all_hooks();
  for (auto each = all.begin(); each != all.end();) {
    const auto next = std::next(each);
    if (each->second.pool == pool) taken.push_back(std::move(all.extract(each).mapped()));
    each = next;
  }
  return taken;
}

int visit_suspend_hooks(const vpmm_pool* pool, visitproc visit, void* arg) {
  for (const auto& [key, hooks] : all_hooks()) {
    if (hooks.pool != pool) continue;
    Py_VISIT(hooks.before_unmap.ptr());
    Py_VISIT(hooks.after_map.ptr());
  }
  return 0;
}

void bind_tags(nb::module_& module, nb::class_<Pool>& type) {
  add_entering(type);
  add_suspending(type);
  add_asking(type);
  module.def("tag_with_name", &tag_of, required("tag"),
             nb::sig("def tag_with_name(tag: int | str) -> int"),
             "The number of a tag. A name that no tag has yet gets a new one.");
  module.def(
      "library_tag", [](const std::string& name) { return library_tag(name.c_str()); }, "name"_a,
      nb::sig("def library_tag(name: str) -> int"),
      "The tag for requests of this library, if VPMM_TAG_LIBRARIES or VPMM_LIMITS asks for one; "
      "0: none.");
  module.def("allocate_tagged", &allocate_tagged, "pool"_a, "bytes"_a, "library"_a,
             "stream"_a.none() = nb::none(),
             nb::sig("def allocate_tagged(pool: Pool, bytes: int, library: int, stream: int | None "
                     "= None) -> int"),
             "Memory with the tag of a library; without a stream as Pool.allocate_any_stream().");
}

}  // namespace vpmm::python
