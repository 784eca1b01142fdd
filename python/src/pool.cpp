// SPDX-License-Identifier: Apache-2.0
// python: the class Pool over a vpmm_pool.
#include "pool.hpp"

#include <algorithm>
#include <functional>
#include <memory>
#include <unordered_map>

#include "arguments.hpp"
#include "events.hpp"
#include "gil.hpp"
#include "settings.hpp"
#include "tags.hpp"

namespace vpmm::python {

namespace nb = nanobind;

namespace {

void* pointer(std::uintptr_t value) { return reinterpret_cast<void*>(value); }
std::uintptr_t address(const void* ptr) { return reinterpret_cast<std::uintptr_t>(ptr); }
void* pointer_of(nb::handle ptr) { return pointer(whole_number_of(ptr, "ptr")); }

// At most UINT64_MAX.
std::uint64_t sum_of(const std::vector<std::size_t>& sizes) {
  std::uint64_t sum = 0;
  for (const std::size_t size : sizes) sum += std::min<std::uint64_t>(size, UINT64_MAX - sum);
  return sum;
}

// --- the out-of-memory callback ---
// By pool, so that a replaced callback leaves nothing behind that a call in progress could refer
// to. Leaked: an allocation on another thread may look it up while the interpreter exits. Holds:
// the GIL.
using Callbacks = std::unordered_map<vpmm_pool*, nb::object>;
Callbacks& callbacks() {
  static auto* const all = new Callbacks;
  return *all;
}

// Called by an allocation that runs without the GIL. The argument is its pool.
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

}  // namespace

// --- the life of a pool ---

Pool::Pool(nb::handle device, const nb::kwargs& given)
    : device_(device_of(device)), is_private_(true) {
  const Settings settings(given);
  settings.call_with(
      [&](const vpmm_config* config) { return vpmm_pool_create(device_, config, &handle_); });
  tell_children();
}

Pool::Pool(Pool&& other) noexcept
    : handle_(std::exchange(other.handle_, nullptr)),
      device_(other.device_),
      is_private_(other.is_private_) {}

Pool::~Pool() {
  if (!is_private_ || handle_ == nullptr) return;
  const auto callback = callbacks().extract(handle_);  // dies when it is in no map any more
  const auto hooks = take_suspend_hooks(handle_);
  const WithoutLock released;
  static_cast<void>(vpmm_pool_destroy(handle_));
}

Pool Pool::open_default(nb::handle device) {
  Pool pool(device_of(device));
  python::call([&] { return vpmm_default_pool(pool.device_, &pool.handle_); });
  tell_children();
  return pool;
}

Pool Pool::configure_default(nb::handle device, const nb::kwargs& given) {
  Pool pool(device_of(device));
  const Settings settings(given);
  settings.call_with([&](const vpmm_config* config) {
    return vpmm_default_pool_open(pool.device_, config, &pool.handle_);
  });
  tell_children();
  return pool;
}

Pool::Use::Use(const Pool& pool) : pool_(pool) {
  if (pool.is_closed()) raise(VPMM_ERROR_INVALID_ARGUMENT, "this pool is closed");
  ++pool.calls_;
}

std::uint64_t Pool::live_allocations() const {
  vpmm_statistics figures{};
  figures.size = sizeof figures;
  const vpmm_status status = vpmm_get_statistics(handle_, &figures);
  if (status != VPMM_OK) raise(status, vpmm_last_error());
  return figures.live_allocations;
}

void Pool::require_private() const {
  if (!is_private_)
    raise(VPMM_ERROR_INVALID_ARGUMENT,
          "the process-wide pool of device " + std::to_string(device_) +
              " is never closed, for everything in the process may use it: trim() gives "
              "back what is idle");
}

void Pool::enter() const {
  require_private();
  const Use use(*this);
}

// After the wait the GIL is kept until no other thread can find the handle.
void Pool::close(bool discard) {
  require_private();
  if (is_closed()) return;
  call([](vpmm_pool* handle) { return vpmm_synchronize(handle); });
  if (is_closed()) return;  // by another thread meanwhile
  if (calls_ != 0)
    raise(VPMM_ERROR_INVALID_ARGUMENT, "this pool cannot be closed while it is being called: " +
                                           std::to_string(calls_) + " of its calls are under way");
  const std::uint64_t live = live_allocations();
  if (live != 0 && !discard)
    raise(VPMM_ERROR_INVALID_ARGUMENT,
          "this pool cannot be closed: " + std::to_string(live) +
              (live == 1 ? " allocation lives" : " allocations live") +
              " in it. Free what is in use, or close(discard=True) gives it back as well");
  const auto callback = callbacks().extract(handle_);
  const auto hooks = take_suspend_hooks(handle_);
  vpmm_pool* const handle = std::exchange(handle_, nullptr);
  python::call([&] { return vpmm_pool_destroy(handle); });
}

void Pool::leave(nb::handle kind) {
  if (kind.is_none()) return close(false);
  try {
    close(false);
  } catch (nb::python_error&
               error) {  // the block's exception goes on, and the pool ends with its last reference
    if (!error.matches(PyExc_Exception)) throw;
  }
}

// --- as a value ---

bool Pool::is_same_as(const Pool& other) const {
  return this == &other || (!is_private_ && !other.is_private_ && device_ == other.device_);
}

std::size_t Pool::hash() const {
  return is_private_ ? std::hash<const void*>()(this) : std::hash<int>()(device_);
}

std::string Pool::repr() const {
  const char* const kind = !is_private_  ? "process-wide"
                           : is_closed() ? "private, closed"
                                         : "private";
  std::string text = "<vpmm.Pool of device " + std::to_string(device_) + ", " + kind;
  if (is_closed()) return text + ">";
  const Use use(*this);
  vpmm_statistics figures{};
  figures.size = sizeof figures;
  vpmm_status status = VPMM_OK;
  {
    const WithoutLock released;
    status = vpmm_get_statistics(handle_, &figures);
  }
  if (status == VPMM_OK)
    text += ": live_bytes=" + std::to_string(figures.live_bytes) +
            ", mapped_bytes=" + std::to_string(figures.mapped_bytes);
  return text + ">";
}

// --- allocating ---

// The `try` functions are called with the GIL: they do not wait. Releasing and taking the GIL costs
// more than an allocation, and may take milliseconds if other threads want it.
std::uintptr_t Pool::allocate(nb::handle bytes, nb::handle stream, nb::handle alignment) const {
  const std::uint64_t size = request_of(bytes);
  const std::uintptr_t on = stream_of(stream);
  const std::uint64_t aligned = bytes_of(alignment, "alignment");
  if (size == 0) return 0;
  const Event event("Alloc");
  void* ptr = nullptr;
  if (is_closed() || vpmm_try_allocate(handle_, size, aligned, pointer(on), &ptr) != VPMM_OK)
    call(
        [&](vpmm_pool* pool) {
          return vpmm_allocate_aligned(pool, size, aligned, pointer(on), &ptr);
        },
        size);
  event.end(device_, address(ptr), on, size);
  return address(ptr);
}

std::uintptr_t Pool::allocate_any_stream(nb::handle bytes, nb::handle alignment) const {
  const std::uint64_t size = request_of(bytes);
  const std::uint64_t aligned = bytes_of(alignment, "alignment");
  if (size == 0) return 0;
  const Event event("Alloc");
  void* ptr = nullptr;
  if (is_closed() || vpmm_try_allocate_any_stream(handle_, size, aligned, &ptr) != VPMM_OK)
    call([&](vpmm_pool* pool) { return vpmm_allocate_any_stream(pool, size, aligned, &ptr); },
         size);
  event.end(device_, address(ptr), 0, size);
  return address(ptr);
}

std::vector<std::uintptr_t> Pool::allocate_many(nb::handle bytes, nb::handle stream) const {
  std::vector<std::size_t> sizes;
  for (const nb::object& size : items_of(bytes, "bytes")) sizes.push_back(request_of(size));
  const std::uintptr_t on = stream_of(stream);
  const Event event("Alloc");
  std::vector<void*> ptrs(sizes.size());
  call(
      [&](vpmm_pool* pool) {
        return vpmm_allocate_many(pool, sizes.data(), sizes.size(), pointer(on), ptrs.data());
      },
      sum_of(sizes));
  std::vector<std::uintptr_t> result;
  for (std::size_t i = 0; i < ptrs.size(); ++i) {
    result.push_back(address(ptrs[i]));
    if (ptrs[i] != nullptr) event.end(device_, result.back(), on, sizes[i]);
  }
  return result;
}

void Pool::deallocate(nb::handle ptr, nb::handle stream) const {
  void* const begin = pointer_of(ptr);
  const std::uintptr_t on = stream_of(stream);
  if (begin == nullptr) return;
  const Event event("Free");
  if (is_closed() || vpmm_try_deallocate(handle_, begin, pointer(on)) != VPMM_OK)
    call([&](vpmm_pool* pool) { return vpmm_deallocate(pool, begin, pointer(on)); });
  event.end(device_, address(begin), on, 0);
}

void Pool::deallocate_any_stream(nb::handle ptr) const {
  void* const begin = pointer_of(ptr);
  if (begin == nullptr) return;
  const Event event("Free");
  call([&](vpmm_pool* pool) { return vpmm_deallocate_any_stream(pool, begin); });
  event.end(device_, address(begin), 0, 0);
}

void Pool::deallocate_deferred(nb::handle ptr) const {
  void* const begin = pointer_of(ptr);
  if (begin == nullptr || is_closed()) return;
  const Event event("Free");
  vpmm_deallocate_deferred(handle_, begin);
  event.end(device_, address(begin), 0, 0);
}

void Pool::deallocate_many(nb::handle ptrs, nb::handle stream) const {
  std::vector<void*> begins;
  for (const nb::object& ptr : items_of(ptrs, "ptrs")) begins.push_back(pointer_of(ptr));
  const std::uintptr_t on = stream_of(stream);
  const Event event("Free");
  call([&](vpmm_pool* pool) {
    return vpmm_deallocate_many(pool, begins.data(), begins.size(), pointer(on));
  });
  for (void* const begin : begins)
    if (begin != nullptr) event.end(device_, address(begin), on, 0);
}

void Pool::set_out_of_memory_callback(nb::object callback) const {
  const bool is_set = !callback.is_none();
  if (is_set && PyCallable_Check(callback.ptr()) == 0)
    raise_wrong_type(callback, "callback", "callable, or None");
  const Use use(*this);
  const auto previous =
      callbacks().extract(handle_);  // before others run, who may set one of their own
  if (is_set) callbacks()[handle_] = std::move(callback);
  call([&](vpmm_pool* pool) {
    return vpmm_set_out_of_memory_callback(pool, is_set ? ask_python : nullptr, pool);
  });
}

// --- callbacks and hooks of a private pool may refer to the pool: the collector has to see them
// ---

int Pool::visit_callback(PyObject* self, visitproc visit, void* arg) {
  Py_VISIT(Py_TYPE(self));
  if (!nb::inst_ready(self)) return 0;
  const Pool& pool = *nb::inst_ptr<Pool>(self);
  const auto found = pool.is_private_ ? callbacks().find(pool.handle_) : callbacks().end();
  if (found != callbacks().end()) Py_VISIT(found->second.ptr());
  return pool.is_private_ && !pool.is_closed() ? visit_suspend_hooks(pool.handle_, visit, arg) : 0;
}

int Pool::clear_callback(PyObject* self) {
  if (!nb::inst_ready(self)) return 0;
  const Pool& pool = *nb::inst_ptr<Pool>(self);
  if (!pool.is_private_ || pool.is_closed()) return 0;
  const auto callback = callbacks().extract(pool.handle_);
  const auto hooks = take_suspend_hooks(pool.handle_);
  return 0;
}

}  // namespace vpmm::python
