// SPDX-License-Identifier: Apache-2.0
// vpmm: header-only C++17 over the C ABI: settings, pools, and streams bound to a pool. vpmm.hpp
// includes it.
#ifndef VPMM_POOL_HPP
#define VPMM_POOL_HPP

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "vpmm/enums.hpp"
#include "vpmm/result.hpp"
#include "vpmm/stream_ref.hpp"
#include "vpmm/vpmm.h"

namespace vpmm {

struct memory_information {
  std::uint64_t free_bytes = 0;   // available to the pool: free in the driver and in the pool
  std::uint64_t total_bytes = 0;  // of the device
};

// The built-in defaults. Change fields, then open a pool.
inline vpmm_config default_settings() {
  vpmm_config settings{};
  settings.size = sizeof(settings);
  check(vpmm_config_init(&settings));
  return settings;
}

// The defaults, changed by the VPMM_ variables.
inline vpmm_config settings_from_environment() {
  vpmm_config settings{};
  settings.size = sizeof(settings);
  check(vpmm_config_from_environment(&settings));
  return settings;
}

inline int device_count() {
  int count = 0;
  check(vpmm_device_count(&count));
  return count;
}

// A snapshot of the blocks and chunks of a pool, by address.
struct pool_layout {
  std::vector<vpmm_block> blocks;
  std::vector<vpmm_chunk> chunks;
};

// A reference to a pool, passed by value; does not own the pool. All methods are thread-safe.
class pool_ref {
 public:
  explicit pool_ref(vpmm_pool* handle) noexcept : handle_(handle) {}
  vpmm_pool* handle() const noexcept { return handle_; }
  friend bool operator==(pool_ref left, pool_ref right) noexcept {
    return left.handle_ == right.handle_;
  }
  friend bool operator!=(pool_ref left, pool_ref right) noexcept { return !(left == right); }

  // --- allocating ---
  // Memory for work queued on `stream` after the call. `alignment` 0: 256 bytes; from 128 KiB 16
  // KiB; from 512 KiB 64 KiB; from a page up a 32nd of a page, at least 64 KiB, or a page with
  // VPMM_CHUNK_MAX=page; guarded memory (VPMM_GUARD) 256 bytes. Zero bytes: null.
  [[nodiscard]] void* allocate(std::size_t bytes, stream_ref stream,
                               std::size_t alignment = 0) const {
    void* ptr = nullptr;
    check(vpmm_allocate_aligned(handle_, bytes, alignment, stream.handle(), &ptr));
    return ptr;
  }
  [[nodiscard]] void* allocate(std::size_t bytes, any_stream_t, std::size_t alignment = 0) const {
    void* ptr = nullptr;
    check(vpmm_allocate_any_stream(handle_, bytes, alignment, &ptr));
    return ptr;
  }
  // With flags and a tag; `request.size` is set here.
  [[nodiscard]] void* allocate(vpmm_request request) const {
    void* ptr = nullptr;
    request.size = sizeof(request);
    check(vpmm_allocate_with(handle_, &request, &ptr));
    return ptr;
  }
  result<void*> try_allocate(std::size_t bytes, stream_ref stream,
                             std::size_t alignment = 0) const {
    void* ptr = nullptr;
    const vpmm_status status =
        vpmm_allocate_aligned(handle_, bytes, alignment, stream.handle(), &ptr);
    return finish(status, ptr);
  }
  result<void*> try_allocate(std::size_t bytes, any_stream_t, std::size_t alignment = 0) const {
    void* ptr = nullptr;
    const vpmm_status status = vpmm_allocate_any_stream(handle_, bytes, alignment, &ptr);
    return finish(status, ptr);
  }

  // The same without a wait, and without a driver call but those that ask about the stream; null,
  // false: that is not possible, or the request is wrong. allocate() and deallocate() then do it or
  // report the error. With a stream: what that stream freed itself.
  [[nodiscard]] void* allocate_if_ready(std::size_t bytes, stream_ref stream,
                                        std::size_t alignment = 0) const noexcept {
    void* ptr = nullptr;
    return vpmm_try_allocate(handle_, bytes, alignment, stream.handle(), &ptr) == VPMM_OK ? ptr
                                                                                          : nullptr;
  }
  [[nodiscard]] void* allocate_if_ready(std::size_t bytes, any_stream_t,
                                        std::size_t alignment = 0) const noexcept {
    void* ptr = nullptr;
    return vpmm_try_allocate_any_stream(handle_, bytes, alignment, &ptr) == VPMM_OK ? ptr : nullptr;
  }
  [[nodiscard]] bool deallocate_if_ready(void* ptr, stream_ref stream) const noexcept {
    return vpmm_try_deallocate(handle_, ptr, stream.handle()) == VPMM_OK;
  }

  // Work queued on `stream` before the call is the last to use the memory. Null does nothing.
  void deallocate(void* ptr, stream_ref stream) const {
    check(vpmm_deallocate(handle_, ptr, stream.handle()));
  }
  void deallocate(void* ptr, any_stream_t) const {
    check(vpmm_deallocate_any_stream(handle_, ptr));
  }
  result<void> try_deallocate(void* ptr, stream_ref stream) const {
    return finish(vpmm_deallocate(handle_, ptr, stream.handle()));
  }
  result<void> try_deallocate(void* ptr, any_stream_t) const {
    return finish(vpmm_deallocate_any_stream(handle_, ptr));
  }
  // For finalizers: takes no lock, makes no driver call, does not wait. Errors are counted, not
  // reported.
  void deallocate_deferred(void* ptr) const noexcept { vpmm_deallocate_deferred(handle_, ptr); }
  // One pointer for each size; all succeed or none. The stream is looked up once.
  [[nodiscard]] std::vector<void*> allocate_many(const std::vector<std::size_t>& bytes,
                                                 stream_ref stream) const {
    std::vector<void*> ptrs(bytes.size());
    check(vpmm_allocate_many(handle_, bytes.data(), bytes.size(), stream.handle(), ptrs.data()));
    return ptrs;
  }
  // Frees all live pointers; throws if some are not live.
  void deallocate_many(const std::vector<void*>& ptrs, stream_ref stream) const {
    check(vpmm_deallocate_many(handle_, ptrs.data(), ptrs.size(), stream.handle()));
  }
  // Work on `stream` uses the memory too.
  void record_use(void* ptr, stream_ref stream) const {
    check(vpmm_record_use(handle_, ptr, stream.handle()));
  }
  // --- suspend and resume; `tag` 0: all suspendable tags, docs/reference/c-abi.md ---
  void make_suspendable(std::uint32_t tag, tag_flags flags = tag_flags::backup) const {
    check(vpmm_tag_make_suspendable(handle_, tag, bits(flags)));
  }
  // Waits for all work of the device.
  void suspend(std::uint32_t tag, suspend_flags flags = suspend_flags::none) const {
    check(vpmm_suspend(handle_, tag, bits(flags), nullptr));
  }
  void prepare_suspend(std::uint32_t tag) const { check(vpmm_prepare_suspend(handle_, tag)); }
  // Waits for the work on `stream`, behind which all uses of the memory are.
  void suspend_after(stream_ref stream, std::uint32_t tag,
                     suspend_flags flags = suspend_flags::none) const {
    check(vpmm_suspend(handle_, tag, bits(flags) | VPMM_SUSPEND_AFTER_STREAM, stream.handle()));
  }
  // Throws std::bad_alloc's error when the memory does not fit.
  void resume(std::uint32_t tag, resume_flags flags = resume_flags::none) const {
    check(vpmm_resume(handle_, tag, bits(flags)));
  }
  result<void> try_suspend(std::uint32_t tag, suspend_flags flags = suspend_flags::none) const {
    return finish(vpmm_suspend(handle_, tag, bits(flags), nullptr));
  }
  result<void> try_resume(std::uint32_t tag, resume_flags flags = resume_flags::none) const {
    return finish(vpmm_resume(handle_, tag, bits(flags)));
  }
  vpmm_tag_info tag_info(std::uint32_t tag) const {
    vpmm_tag_info info{};
    info.size = sizeof(info);
    check(vpmm_tag_get_info(handle_, tag, &info));
    return info;
  }
  std::vector<std::uint32_t> suspendable_tags() const { return listed(vpmm_suspendable_tags); }
  std::vector<std::uint32_t> tags() const { return listed(vpmm_tags); }
  // Bytes of live requests, or VPMM_SHARE_OF_CAPACITY; VPMM_NO_LIMIT ends the limit.
  void set_tag_limit(std::uint32_t tag, std::uint64_t bytes) const {
    check(vpmm_tag_set_limit(handle_, tag, bytes));
  }
  // The tag of a request of this thread; 0: none.
  std::uint32_t entered_tag() const {
    std::uint32_t tag = 0;
    check(vpmm_tag_entered(handle_, &tag, nullptr));
    return tag;
  }
  // Returns the number for remove_suspend_hooks(). Either function may be null.
  std::uint64_t add_suspend_hooks(std::uint32_t tag, vpmm_suspend_hook before_unmap,
                                  vpmm_suspend_hook after_map, void* argument) const {
    std::uint64_t id = 0;
    check(vpmm_add_suspend_hooks(handle_, tag, before_unmap, after_map, argument, &id));
    return id;
  }
  void remove_suspend_hooks(std::uint64_t id) const {
    check(vpmm_remove_suspend_hooks(handle_, id));
  }
  bool is_suspended(const void* ptr) const {
    int is = 0;
    check(vpmm_is_suspended(handle_, ptr, &is));
    return is != 0;
  }
  // As vpmm_host_copy says, also how long it is valid.
  void* host_copy(const void* ptr, std::size_t bytes) const {
    void* host = nullptr;
    check(vpmm_host_copy(handle_, ptr, bytes, &host));
    return host;
  }

  // Work queued on `waiting` after the call waits, on the GPU, for the work queued on `first` so
  // far.
  void stream_wait(stream_ref waiting, stream_ref first) const {
    check(vpmm_stream_wait(handle_, waiting.handle(), first.handle()));
  }

  // The allocation around any address inside it.
  vpmm_allocation_info query(const void* ptr) const {
    vpmm_allocation_info info{};
    info.size = sizeof(info);
    check(vpmm_query(handle_, ptr, &info));
    return info;
  }
  std::size_t usable_size(const void* ptr) const {
    std::size_t bytes = 0;
    check(vpmm_usable_size(handle_, ptr, &bytes));
    return bytes;
  }

  // --- limits ---
  // Releases idle memory; returns the bytes released.
  std::size_t trim(std::size_t bytes_to_keep = 0) const {
    std::size_t released = 0;
    check(vpmm_trim(handle_, bytes_to_keep, &released));
    return released;
  }
  void preallocate(std::size_t bytes) const { check(vpmm_preallocate(handle_, bytes)); }
  result<void> try_preallocate(std::size_t bytes) const {
    return finish(vpmm_preallocate(handle_, bytes));
  }
  // Sets the limit in bytes. Nullopt: no limit besides the GPU's.
  void set_capacity(std::optional<std::uint64_t> bytes) const {
    check(vpmm_set_capacity(handle_, bytes.value_or(UINT64_MAX)));
  }
  // The capacity that was set last, at first VPMM_CAPACITY.
  std::optional<std::uint64_t> capacity() const {
    std::uint64_t bytes = 0;
    check(vpmm_get_capacity(handle_, &bytes));
    return bytes == UINT64_MAX ? std::nullopt : std::optional(bytes);
  }
  // The function and its argument must stay valid while they are set; null removes the callback.
  void set_out_of_memory_callback(vpmm_out_of_memory_callback callback,
                                  void* argument = nullptr) const {
    check(vpmm_set_out_of_memory_callback(handle_, callback, argument));
  }
  // Adds a further callback, called after that one. Returns its id; removing waits until it is not
  // running.
  std::uint64_t add_out_of_memory_callback(vpmm_out_of_memory_callback callback,
                                           void* argument = nullptr) const {
    std::uint64_t id = 0;
    check(vpmm_add_out_of_memory_callback(handle_, callback, argument, &id));
    return id;
  }
  void remove_out_of_memory_callback(std::uint64_t id) const {
    check(vpmm_remove_out_of_memory_callback(handle_, id));
  }
  // Waits for the contexts of the device and of its peers.
  void synchronize() const { check(vpmm_synchronize(handle_)); }
  // Resets the device's primary context; allocations survive, streams and events do not.
  void reset() const { check(vpmm_reset(handle_)); }
  void capture_release(std::uint64_t capture_id) const {
    check(vpmm_capture_release(handle_, capture_id));
  }

  // --- other devices ---
  // Gives work on another GPU access to all present and future memory of the pool.
  void set_peer_access(int device) const { check(vpmm_set_peer_access(handle_, device)); }
  result<void> try_set_peer_access(int device) const {
    return finish(vpmm_set_peer_access(handle_, device));
  }

  // --- observing ---
  int device() const {
    int device = 0;
    check(vpmm_pool_device(handle_, &device));
    return device;
  }
  memory_information memory_info() const {
    memory_information info;
    check(vpmm_memory_info(handle_, &info.free_bytes, &info.total_bytes));
    return info;
  }
  vpmm_statistics statistics() const {
    vpmm_statistics statistics{};
    statistics.size = sizeof(statistics);
    check(vpmm_get_statistics(handle_, &statistics));
    return statistics;
  }
  void reset_peaks() const { check(vpmm_reset_peaks(handle_)); }
  // `kinds`: a bit (1u << kind) for each kind of event. The callback must be short and not call
  // this library.
  std::uint64_t add_event_callback(std::uint32_t kinds, vpmm_event_callback callback,
                                   void* argument = nullptr) const {
    std::uint64_t id = 0;
    check(vpmm_add_event_callback(handle_, kinds, callback, argument, &id));
    return id;
  }
  void remove_event_callback(std::uint64_t id) const {
    check(vpmm_remove_event_callback(handle_, id));
  }
  // All blocks and chunks at this moment.
  pool_layout layout() const;
  // Every region in ascending address order.
  std::vector<vpmm_region> snapshot() const;
  std::string dump_text() const { return dump(vpmm_dump_text); }
  std::string dump_json() const { return dump(vpmm_dump_json); }
  // Names the guarded allocation of an address; requires VPMM_GUARD.
  std::string explain(const void* address) const;
  void start_recording(const std::string& path) const {
    check(vpmm_record_start(handle_, path.c_str()));
  }
  void stop_recording() const { check(vpmm_record_stop(handle_)); }

 private:
  static result<void*> finish(vpmm_status status, void* ptr) {
    return status == VPMM_OK ? result<void*>(ptr) : result<void*>::failed(status);
  }
  static result<void> finish(vpmm_status status) {
    return status == VPMM_OK ? result<void>() : result<void>::failed(status);
  }
  std::string dump(vpmm_status (*render)(vpmm_pool*, char**)) const;
  template <typename List>
  std::vector<std::uint32_t> listed(List list) const {
    std::size_t count = 0;
    check(list(handle_, nullptr, 0, &count));
    std::vector<std::uint32_t> tags(count);
    check(list(handle_, tags.data(), tags.size(), &count));
    tags.resize(count < tags.size() ? count : tags.size());
    return tags;
  }

  vpmm_pool* handle_;
};

inline pool_layout pool_ref::layout() const {
  struct taken {
    vpmm_layout layout{};
    ~taken() { vpmm_layout_release(&layout); }
  } owner;
  owner.layout.size = sizeof(owner.layout);
  check(vpmm_layout_take(handle_, &owner.layout));
  return {{owner.layout.blocks, owner.layout.blocks + owner.layout.block_count},
          {owner.layout.chunks, owner.layout.chunks + owner.layout.chunk_count}};
}

// Repeats the call while the pool grows between the two calls.
inline std::vector<vpmm_region> pool_ref::snapshot() const {
  std::vector<vpmm_region> regions(64);
  for (;;) {
    std::size_t count = 0;
    check(vpmm_snapshot(handle_, regions.data(), regions.size(), &count));
    const bool complete = count <= regions.size();
    regions.resize(count);
    if (complete) return regions;
  }
}

inline std::string pool_ref::dump(vpmm_status (*render)(vpmm_pool*, char**)) const {
  struct text_owner {
    char* text = nullptr;
    ~text_owner() { vpmm_string_free(text); }
  } owner;
  check(render(handle_, &owner.text));
  return owner.text;
}

inline std::string pool_ref::explain(const void* address) const {
  struct text_owner {
    char* text = nullptr;
    ~text_owner() { vpmm_string_free(text); }
  } owner;
  check(vpmm_explain(handle_, address, &owner.text));
  return owner.text;
}

// The process-wide pool of a device; the first call opens it from the environment. Never destroyed.
inline pool_ref default_pool(int device = 0) {
  vpmm_pool* handle = nullptr;
  check(vpmm_default_pool(device, &handle));
  return pool_ref(handle);
}

// The same pool with your settings. Throws when it is already open with other settings.
inline pool_ref open_default_pool(int device, const vpmm_config& settings) {
  vpmm_pool* handle = nullptr;
  check(vpmm_default_pool_open(device, &settings, &handle));
  return pool_ref(handle);
}

// A pool, and a share in its life if it was made from a memory_pool: while a copy exists, the pool
// is not destroyed. Made from another pool_ref, it does not own the pool. Moved from, it is null:
// its calls are errors.
class shared_pool : public pool_ref {
 public:
  // NOLINTNEXTLINE(google-explicit-constructor): implicit, as an argument
  shared_pool(const pool_ref& pool) noexcept : pool_ref(pool) {}
  shared_pool(const shared_pool&) noexcept = default;
  shared_pool& operator=(const shared_pool&) noexcept = default;
  shared_pool(shared_pool&& other) noexcept
      : pool_ref(other.take_reference()), owner_(std::move(other.owner_)) {}
  shared_pool& operator=(shared_pool&& other) noexcept {
    pool_ref::operator=(other.take_reference());
    owner_ = std::move(other.owner_);
    return *this;
  }
  ~shared_pool() = default;

 protected:
  explicit shared_pool(std::shared_ptr<vpmm_pool> owner) noexcept
      : pool_ref(owner.get()), owner_(std::move(owner)) {}

 private:
  pool_ref take_reference() noexcept {
    return std::exchange(static_cast<pool_ref&>(*this), pool_ref(nullptr));
  }

  std::shared_ptr<vpmm_pool> owner_;
};

// A private pool. It ends with the object, or with the last buffer, deleter or other shared_pool
// made from it. The end waits for the GPU and releases all memory, live allocations included.
class memory_pool : public shared_pool {
 public:
  explicit memory_pool(int device = 0)
      : shared_pool(create(device, nullptr)) {}  // settings from the environment
  memory_pool(int device, const vpmm_config& settings) : shared_pool(create(device, &settings)) {}
  memory_pool(memory_pool&& other) noexcept = default;
  memory_pool& operator=(memory_pool&& other) noexcept {
    std::swap(static_cast<shared_pool&>(*this), static_cast<shared_pool&>(other));
    return *this;
  }
  ~memory_pool() = default;

 private:
  static std::shared_ptr<vpmm_pool> create(int device, const vpmm_config* settings) {
    vpmm_pool* handle = nullptr;
    check(vpmm_pool_create(device, settings, &handle));
    // Only a process-wide pool is refused, and this is a private one.
    return {handle, [](vpmm_pool* pool) { (void)vpmm_pool_destroy(pool); }};
  }
};

// A stream bound to the pool: the fastest way in (see vpmm_stream_bind for the rules). Movable; any
// thread may allocate and deallocate through it.
class bound_stream {
 public:
  bound_stream(pool_ref pool, stream_ref stream) {
    check(vpmm_stream_bind(pool.handle(), stream.handle(), &handle_));
  }
  bound_stream(bound_stream&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
  bound_stream& operator=(bound_stream&& other) noexcept {
    std::swap(handle_, other.handle_);
    return *this;
  }
  ~bound_stream() { vpmm_stream_unbind(handle_); }

  [[nodiscard]] void* allocate(std::size_t bytes, std::size_t alignment = 0) const {
    void* ptr = nullptr;
    check(vpmm_bound_allocate(handle_, bytes, alignment, &ptr));
    return ptr;
  }
  result<void*> try_allocate(std::size_t bytes, std::size_t alignment = 0) const {
    void* ptr = nullptr;
    const vpmm_status status = vpmm_bound_allocate(handle_, bytes, alignment, &ptr);
    return status == VPMM_OK ? result<void*>(ptr) : result<void*>::failed(status);
  }
  void deallocate(void* ptr) const { check(vpmm_bound_deallocate(handle_, ptr)); }
  result<void> try_deallocate(void* ptr) const {
    const vpmm_status status = vpmm_bound_deallocate(handle_, ptr);
    return status == VPMM_OK ? result<void>() : result<void>::failed(status);
  }
  vpmm_bound_stream* handle() const noexcept { return handle_; }

 private:
  vpmm_bound_stream* handle_ = nullptr;
};

}  // namespace vpmm

// References are equal if they refer to the same pool.
template <>
struct std::hash<vpmm::pool_ref> {
  std::size_t operator()(vpmm::pool_ref pool) const noexcept {
    return std::hash<vpmm_pool*>()(pool.handle());
  }
};

#endif
