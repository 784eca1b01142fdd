// SPDX-License-Identifier: Apache-2.0
// vpmm: header-only C++17 over the C ABI: pools, buffers, and two forms of every call that can
// fail.
//
// allocate(...) throws, try_allocate(...) returns a vpmm::result. Every exception is a vpmm::error;
// those about memory are also std::bad_alloc. The rules of vpmm.h for streams, sizes and threads
// apply; see docs/reference/cpp.md.
#ifndef VPMM_VPMM_HPP
#define VPMM_VPMM_HPP

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "vpmm/result.hpp"
#include "vpmm/vpmm.h"

namespace vpmm {

// Takes the place of a stream argument: memory for any stream.
struct any_stream_t {
  explicit constexpr any_stream_t() = default;
};
inline constexpr any_stream_t any_stream{};

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

  // --- allocating ---
  // Memory for work queued on `stream` after the call. `alignment` 0: 256 bytes; from 128 KiB 16
  // KiB; from 512 KiB 64 KiB; from a page up a 32nd of a page, at least 64 KiB, or a page with
  // VPMM_CHUNK_MAX=page. Zero bytes: null.
  void* allocate(std::size_t bytes, vpmm_stream stream, std::size_t alignment = 0) const {
    void* ptr = nullptr;
    check(vpmm_allocate_aligned(handle_, bytes, alignment, stream, &ptr));
    return ptr;
  }
  void* allocate(std::size_t bytes, any_stream_t, std::size_t alignment = 0) const {
    void* ptr = nullptr;
    check(vpmm_allocate_any_stream(handle_, bytes, alignment, &ptr));
    return ptr;
  }
  // With flags and a tag; `request.size` is set here.
  void* allocate(vpmm_request request) const {
    void* ptr = nullptr;
    request.size = sizeof(request);
    check(vpmm_allocate_with(handle_, &request, &ptr));
    return ptr;
  }
  result<void*> try_allocate(std::size_t bytes, vpmm_stream stream,
                             std::size_t alignment = 0) const {
    void* ptr = nullptr;
    const vpmm_status status = vpmm_allocate_aligned(handle_, bytes, alignment, stream, &ptr);
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
  void* allocate_if_ready(std::size_t bytes, vpmm_stream stream,
                          std::size_t alignment = 0) const noexcept {
    void* ptr = nullptr;
    return vpmm_try_allocate(handle_, bytes, alignment, stream, &ptr) == VPMM_OK ? ptr : nullptr;
  }
  void* allocate_if_ready(std::size_t bytes, any_stream_t,
                          std::size_t alignment = 0) const noexcept {
    void* ptr = nullptr;
    return vpmm_try_allocate_any_stream(handle_, bytes, alignment, &ptr) == VPMM_OK ? ptr : nullptr;
  }
  bool deallocate_if_ready(void* ptr, vpmm_stream stream) const noexcept {
    return vpmm_try_deallocate(handle_, ptr, stream) == VPMM_OK;
  }

  // Work queued on `stream` before the call is the last to use the memory. Null does nothing.
  void deallocate(void* ptr, vpmm_stream stream) const {
    check(vpmm_deallocate(handle_, ptr, stream));
  }
  void deallocate(void* ptr, any_stream_t) const {
    check(vpmm_deallocate_any_stream(handle_, ptr));
  }
  result<void> try_deallocate(void* ptr, vpmm_stream stream) const {
    return finish(vpmm_deallocate(handle_, ptr, stream));
  }
  result<void> try_deallocate(void* ptr, any_stream_t) const {
    return finish(vpmm_deallocate_any_stream(handle_, ptr));
  }
  // For finalizers: takes no lock, makes no driver call, does not wait. Errors are counted, not
  // reported.
  void deallocate_deferred(void* ptr) const noexcept { vpmm_deallocate_deferred(handle_, ptr); }
  // One pointer for each size; all succeed or none. The stream is looked up once.
  std::vector<void*> allocate_many(const std::vector<std::size_t>& bytes,
                                   vpmm_stream stream) const {
    std::vector<void*> ptrs(bytes.size());
    check(vpmm_allocate_many(handle_, bytes.data(), bytes.size(), stream, ptrs.data()));
    return ptrs;
  }
  // Frees all live pointers; throws if some are not live.
  void deallocate_many(const std::vector<void*>& ptrs, vpmm_stream stream) const {
    check(vpmm_deallocate_many(handle_, ptrs.data(), ptrs.size(), stream));
  }
  // Work on `stream` uses the memory too.
  void record_use(void* ptr, vpmm_stream stream) const {
    check(vpmm_record_use(handle_, ptr, stream));
  }
  // --- suspend and resume; `tag` 0: all suspendable tags, docs/reference/c-abi.md ---
  // `flags`: VPMM_TAG_.
  void make_suspendable(std::uint32_t tag, std::uint32_t flags = VPMM_TAG_BACKUP) const {
    check(vpmm_tag_make_suspendable(handle_, tag, flags));
  }
  // Waits for all work of the device. `flags`: VPMM_SUSPEND_.
  void suspend(std::uint32_t tag, std::uint32_t flags = 0) const {
    check(vpmm_suspend(handle_, tag, flags, nullptr));
  }
  void prepare_suspend(std::uint32_t tag) const { check(vpmm_prepare_suspend(handle_, tag)); }
  // Waits for the work on `stream`, behind which all uses of the memory are.
  void suspend_after(vpmm_stream stream, std::uint32_t tag, std::uint32_t flags = 0) const {
    check(vpmm_suspend(handle_, tag, flags | VPMM_SUSPEND_AFTER_STREAM, stream));
  }
  // `flags`: VPMM_RESUME_. Throws std::bad_alloc's error when the memory does not fit.
  void resume(std::uint32_t tag, std::uint32_t flags = 0) const {
    check(vpmm_resume(handle_, tag, flags));
  }
  result<void> try_suspend(std::uint32_t tag, std::uint32_t flags = 0) const {
    return finish(vpmm_suspend(handle_, tag, flags, nullptr));
  }
  result<void> try_resume(std::uint32_t tag, std::uint32_t flags = 0) const {
    return finish(vpmm_resume(handle_, tag, flags));
  }
  vpmm_tag_info tag_info(std::uint32_t tag) const {
    vpmm_tag_info info{};
    info.size = sizeof(info);
    check(vpmm_tag_get_info(handle_, tag, &info));
    return info;
  }
  std::vector<std::uint32_t> suspendable_tags() const { return listed(vpmm_suspendable_tags); }
  std::vector<std::uint32_t> tags() const { return listed(vpmm_tags); }
  // Bytes of live requests; VPMM_NO_LIMIT ends the limit.
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
  void stream_wait(vpmm_stream waiting, vpmm_stream first) const {
    check(vpmm_stream_wait(handle_, waiting, first));
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
  // None: no limit besides the GPU's.
  void set_capacity(std::optional<std::uint64_t> bytes) const {
    check(vpmm_set_capacity(handle_, bytes.value_or(UINT64_MAX)));
  }
  // What was set last, at first VPMM_CAPACITY.
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

// A private pool. Its destructor waits for the GPU and releases all memory, live allocations
// included.
class memory_pool : public pool_ref {
 public:
  explicit memory_pool(int device = 0)
      : pool_ref(create(device, nullptr)) {}  // settings from the environment
  memory_pool(int device, const vpmm_config& settings) : pool_ref(create(device, &settings)) {}
  memory_pool(memory_pool&& other) noexcept
      : pool_ref(std::exchange(static_cast<pool_ref&>(other), pool_ref(nullptr))) {}
  memory_pool& operator=(memory_pool&& other) noexcept {
    std::swap(static_cast<pool_ref&>(*this), static_cast<pool_ref&>(other));
    return *this;
  }
  // Only a process-wide pool is refused, and this is a private one.
  ~memory_pool() { (void)vpmm_pool_destroy(handle()); }

 private:
  static vpmm_pool* create(int device, const vpmm_config* settings) {
    vpmm_pool* handle = nullptr;
    check(vpmm_pool_create(device, settings, &handle));
    return handle;
  }
};

// A stream bound to the pool: the fastest way in (see vpmm_stream_bind for the rules). Movable; any
// thread may allocate and deallocate through it.
class bound_stream {
 public:
  bound_stream(pool_ref pool, vpmm_stream stream) {
    check(vpmm_stream_bind(pool.handle(), stream, &handle_));
  }
  bound_stream(bound_stream&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
  bound_stream& operator=(bound_stream&& other) noexcept {
    std::swap(handle_, other.handle_);
    return *this;
  }
  ~bound_stream() { vpmm_stream_unbind(handle_); }

  void* allocate(std::size_t bytes, std::size_t alignment = 0) const {
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

// Owns an allocation and frees it on the stream that it remembers. Movable; use it from one thread
// at a time.
class buffer {
 public:
  buffer() noexcept = default;
  buffer(pool_ref pool, std::size_t bytes, vpmm_stream stream, std::size_t alignment = 0)
      : pool_(pool),
        data_(pool.allocate(bytes, stream, alignment)),
        size_(bytes),
        stream_(stream) {}
  buffer(pool_ref pool, std::size_t bytes, any_stream_t, std::size_t alignment = 0)
      : pool_(pool), data_(pool.allocate(bytes, any_stream, alignment)), size_(bytes) {}
  // Takes ownership of memory that was allocated from `pool`.
  static buffer adopt(pool_ref pool, void* data, std::size_t bytes,
                      std::optional<vpmm_stream> stream) noexcept {
    buffer adopted;
    adopted.pool_ = pool;
    adopted.data_ = data;
    adopted.size_ = bytes;
    adopted.stream_ = stream;
    return adopted;
  }
  buffer(buffer&& other) noexcept { swap(other); }
  buffer& operator=(buffer&& other) noexcept {
    buffer(std::move(other)).swap(*this);
    return *this;
  }
  ~buffer() { reset(); }

  void* data() const noexcept { return data_; }
  std::size_t size() const noexcept { return size_; }  // bytes requested
  bool empty() const noexcept { return size_ == 0; }
  std::optional<vpmm_stream> stream() const noexcept { return stream_; }  // none: any stream
  pool_ref pool() const noexcept { return pool_; }

  // Sets the stream of the later free. It does not order the streams: make `stream` wait for work
  // that still uses the memory on the old one, or name the old one with record_use.
  void set_stream(vpmm_stream stream) noexcept { stream_ = stream; }
  void set_stream(any_stream_t) noexcept { stream_.reset(); }
  void record_use(vpmm_stream stream) const { pool_.record_use(data_, stream); }

  // Frees the memory now. A destructor cannot report an error, and no action of the caller can
  // cause one here.
  void reset() noexcept {
    if (data_ != nullptr && stream_) (void)vpmm_deallocate(pool_.handle(), data_, *stream_);
    if (data_ != nullptr && !stream_) (void)vpmm_deallocate_any_stream(pool_.handle(), data_);
    data_ = nullptr;
    size_ = 0;
  }
  // Passes ownership of the memory to the caller.
  [[nodiscard]] void* release() noexcept {
    size_ = 0;
    return std::exchange(data_, nullptr);
  }
  void swap(buffer& other) noexcept {
    std::swap(pool_, other.pool_);
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    std::swap(stream_, other.stream_);
  }

 private:
  pool_ref pool_{nullptr};
  void* data_ = nullptr;
  std::size_t size_ = 0;
  std::optional<vpmm_stream> stream_;
};

inline result<buffer> try_make_buffer(pool_ref pool, std::size_t bytes, vpmm_stream stream,
                                      std::size_t alignment = 0) {
  const result<void*> memory = pool.try_allocate(bytes, stream, alignment);
  if (!memory) return result<buffer>::failed(memory.status());
  return buffer::adopt(pool, memory.value(), bytes, stream);
}

// The tag with this name; a new one if there is none.
inline std::uint32_t tag_with_name(const std::string& name) {
  std::uint32_t tag = 0;
  check(vpmm_tag_with_name(name.c_str(), &tag));
  return tag;
}

// Gives requests of a scope a tag, of all threads or of this one.
class tag_guard {
 public:
  tag_guard(pool_ref pool, std::uint32_t tag, vpmm_tag_scope scope = VPMM_TAG_OF_PROCESS)
      : pool_(pool), tag_(tag), scope_(scope) {
    check(vpmm_tag_enter(pool_.handle(), tag_, scope_));
  }
  // Fails only if it was left before.
  ~tag_guard() { (void)vpmm_tag_leave(pool_.handle(), tag_, scope_); }
  tag_guard(const tag_guard&) = delete;
  tag_guard& operator=(const tag_guard&) = delete;

 private:
  pool_ref pool_;
  std::uint32_t tag_;
  vpmm_tag_scope scope_;
};

// Announces, for a scope, captures on streams that are never passed to the pool.
class capture_guard {
 public:
  explicit capture_guard(pool_ref pool) : pool_(pool) { check(vpmm_capture_begin(pool_.handle())); }
  // Fails only without a begin; without a begin, the constructor threw.
  ~capture_guard() { (void)vpmm_capture_end(pool_.handle()); }
  capture_guard(const capture_guard&) = delete;
  capture_guard& operator=(const capture_guard&) = delete;

 private:
  pool_ref pool_;
};

// Defers, for a scope, the slow work that the pool does on its own account: unmapping and releasing
// memory, and waiting on the host.
class defer_cleanup_guard {
 public:
  explicit defer_cleanup_guard(pool_ref pool) : pool_(pool) {
    check(vpmm_defer_cleanup_begin(pool_.handle()));
  }
  // Fails only without a begin; without a begin, the constructor threw.
  ~defer_cleanup_guard() { (void)vpmm_defer_cleanup_end(pool_.handle()); }
  defer_cleanup_guard(const defer_cleanup_guard&) = delete;
  defer_cleanup_guard& operator=(const defer_cleanup_guard&) = delete;

 private:
  pool_ref pool_;
};

// Names memory to another process. In the exporting process it is the export, and its destruction
// ends the export. In another process it opens the memory, and its destruction closes it. Send
// value(), plain bytes. Movable; use it from one thread at a time. Throws the errors of
// vpmm_ipc_open, and VPMM_ERROR_INVALID_ARGUMENT for opening it twice, for closing it when it is
// not open, and for opening it in the exporting process.
class ipc_handle {
 public:
  // From the bytes that another process sent.
  explicit ipc_handle(const vpmm_ipc_handle& value) noexcept : value_(value) {}
  // From a token alone, for interfaces that carry no more.
  static ipc_handle from_token(const unsigned char token[64]) {
    vpmm_ipc_handle value{};
    check(vpmm_ipc_read_token(token, &value));
    return ipc_handle(value);
  }
  ipc_handle(ipc_handle&& other) noexcept : value_(other.value_) { swap(other); }
  ipc_handle& operator=(ipc_handle&& other) noexcept {
    ipc_handle(std::move(other)).swap(*this);
    return *this;
  }
  // A destructor cannot report errors; close() and end_export() can.
  ~ipc_handle() {
    if (opened_ != nullptr) vpmm_ipc_close_deferred(opened_);
    if (is_export_) (void)vpmm_ipc_export_end(&value_);
  }

  const vpmm_ipc_handle& value() const noexcept { return value_; }
  std::size_t size() const noexcept { return static_cast<std::size_t>(value_.bytes); }  // bytes
  // The address while the memory is open, otherwise null.
  void* data() const noexcept { return opened_; }

  // Maps the memory for work on `device`; none: the device that holds it.
  void* open(std::optional<int> device = std::nullopt) {
    require(opened_ == nullptr, "the IPC handle is already open");
    require(!is_export_,
            "the IPC handle is opened in the process that exported it: use the memory itself");
    check(vpmm_ipc_open(&value_, device.value_or(-1), &opened_));
    return opened_;
  }
  // Waits for the work of the device's context.
  void close() {
    require(opened_ != nullptr, "the IPC handle is not open");
    check(vpmm_ipc_close(opened_));
    opened_ = nullptr;
  }
  // Copies the memory into `pool`, on any device, and closes it again. The handle does not own the
  // copy.
  buffer open_staged(pool_ref pool) const {
    require(!is_export_,
            "the IPC handle is opened in the process that exported it: use the memory itself");
    void* copy = nullptr;
    check(vpmm_ipc_open_staged(&value_, pool.handle(), &copy));
    return buffer::adopt(pool, copy, size(), std::nullopt);
  }
  // Does nothing for a handle from another process.
  void end_export() {
    if (is_export_) check(vpmm_ipc_export_end(&value_));
    is_export_ = false;
  }
  void swap(ipc_handle& other) noexcept {
    std::swap(value_, other.value_);
    std::swap(opened_, other.opened_);
    std::swap(is_export_, other.is_export_);
  }
  friend ipc_handle export_memory(const void* ptr, std::size_t bytes);

 private:
  static void require(bool holds, const char* message) {
    if (!holds) throw_error(VPMM_ERROR_INVALID_ARGUMENT, message);
  }

  vpmm_ipc_handle value_;
  void* opened_ = nullptr;
  bool is_export_ = false;
};

// A handle for `bytes` bytes at `ptr`: an allocation of any pool of this process, a part of one, or
// plain driver memory. While the handle exists, or another process has the memory open, the memory
// is not reused, even after it is freed.
inline ipc_handle export_memory(const void* ptr, std::size_t bytes) {
  vpmm_ipc_handle value{};
  check(vpmm_ipc_export(ptr, bytes, &value));
  ipc_handle handle(value);
  handle.is_export_ = true;
  return handle;
}

}  // namespace vpmm

#endif
