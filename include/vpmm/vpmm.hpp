// vpmm: header-only C++17 over the C ABI: pools, buffers, and two forms of every call that can fail.
//
// allocate(...) throws, try_allocate(...) returns a vpmm::result. Exceptions are vpmm::error; those about memory are
// std::bad_alloc too. What vpmm.h says about streams, sizes and threads holds here; see docs/reference/cpp.md.
#ifndef VPMM_VPMM_HPP
#define VPMM_VPMM_HPP

#include <cstddef>
#include <cstdint>
#include <new>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "vpmm/vpmm.h"

namespace vpmm {

// What every exception of this library is, beside a standard exception: catch it to get the status. It is no
// std::exception itself, so that catching std::exception or std::bad_alloc is never ambiguous.
class error {
 public:
  virtual ~error() = default;
  virtual const char* what() const noexcept = 0;
  vpmm_status status() const noexcept { return status_; }

 protected:
  explicit error(vpmm_status status) noexcept : status_(status) {}
  error(const error&) = default;
  error& operator=(const error&) = default;

 private:
  vpmm_status status_;
};

// VPMM_ERROR_OUT_OF_MEMORY and VPMM_ERROR_HOST_OUT_OF_MEMORY.
class out_of_memory : public std::bad_alloc, public error {
 public:
  // NOLINTNEXTLINE(bugprone-throw-keyword-missing): it is a member
  out_of_memory(vpmm_status status, const std::string& message) : error(status), message_(message) {}
  const char* what() const noexcept override { return message_.what(); }

 private:
  std::runtime_error message_;  // its copy cannot throw, a string's can
};

// Everything else.
class failure : public std::runtime_error, public error {
 public:
  failure(vpmm_status status, const std::string& message) : std::runtime_error(message), error(status) {}
  const char* what() const noexcept override { return std::runtime_error::what(); }
};

[[noreturn]] inline void throw_error(vpmm_status status, const std::string& message) {
  if (status == VPMM_ERROR_OUT_OF_MEMORY || status == VPMM_ERROR_HOST_OUT_OF_MEMORY) {
    throw out_of_memory(status, message);
  }
  throw failure(status, message);
}

// For calls into the C ABI: throws what went wrong.
inline void check(vpmm_status status) {
  if (status != VPMM_OK) throw_error(status, vpmm_last_error());
}

// A value, or a status and a message.
template <typename T>
class [[nodiscard]] result {
 public:
  // NOLINTNEXTLINE(google-explicit-constructor): implicit, for `return value;`
  result(T value) : value_(std::move(value)) {}
  // The calling thread's last error.
  static result failed(vpmm_status status) { return result(status, vpmm_last_error()); }

  bool ok() const noexcept { return status_ == VPMM_OK; }
  explicit operator bool() const noexcept { return ok(); }
  vpmm_status status() const noexcept { return status_; }
  const std::string& message() const noexcept { return message_; }

  // Throws what went wrong when there is no value.
  T& value() & { return require(), *value_; }
  const T& value() const& { return require(), *value_; }
  T&& value() && { return require(), std::move(*value_); }

 private:
  result(vpmm_status status, const char* message) : status_(status), message_(message) {}
  void require() const {
    if (!ok()) throw_error(status_, message_);
  }

  std::optional<T> value_;
  vpmm_status status_ = VPMM_OK;
  std::string message_;
};

template <>
class [[nodiscard]] result<void> {
 public:
  result() = default;
  static result failed(vpmm_status status) { return result(status, vpmm_last_error()); }

  bool ok() const noexcept { return status_ == VPMM_OK; }
  explicit operator bool() const noexcept { return ok(); }
  vpmm_status status() const noexcept { return status_; }
  const std::string& message() const noexcept { return message_; }
  void value() const {
    if (!ok()) throw_error(status_, message_);
  }

 private:
  result(vpmm_status status, const char* message) : status_(status), message_(message) {}

  vpmm_status status_ = VPMM_OK;
  std::string message_;
};

// In place of a stream: memory whose users name no stream.
struct any_stream_t {
  explicit constexpr any_stream_t() = default;
};
inline constexpr any_stream_t any_stream{};

struct memory_information {
  std::uint64_t free_bytes = 0;   // free for the pool: the driver's and the pool's own
  std::uint64_t total_bytes = 0;  // of the device
};

// The built-in defaults. Change fields, then open a pool.
inline vpmm_config default_settings() {
  vpmm_config settings{};
  settings.size = sizeof(settings);
  check(vpmm_config_init(&settings));
  return settings;
}

// The defaults and what the VPMM_ variables change.
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

// Blocks and chunks of a pool, by address, as they were when it was taken.
struct pool_layout {
  std::vector<vpmm_block> blocks;
  std::vector<vpmm_chunk> chunks;
};

// A pool owned by somebody else: a value to pass around. All methods are thread-safe.
class pool_ref {
 public:
  explicit pool_ref(vpmm_pool* handle) noexcept : handle_(handle) {}
  vpmm_pool* handle() const noexcept { return handle_; }

  // --- allocating ---
  // Memory that work queued on `stream` after the call may use. `alignment` 0: 256 bytes, from one page up a
  // page. Zero bytes: null.
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
  result<void*> try_allocate(std::size_t bytes, vpmm_stream stream, std::size_t alignment = 0) const {
    void* ptr = nullptr;
    const vpmm_status status = vpmm_allocate_aligned(handle_, bytes, alignment, stream, &ptr);
    return finish(status, ptr);
  }
  result<void*> try_allocate(std::size_t bytes, any_stream_t, std::size_t alignment = 0) const {
    void* ptr = nullptr;
    const vpmm_status status = vpmm_allocate_any_stream(handle_, bytes, alignment, &ptr);
    return finish(status, ptr);
  }

  // Null: not possible without a driver call or a wait, or not at all; allocate() does it or says why not.
  void* allocate_if_ready(std::size_t bytes, any_stream_t, std::size_t alignment = 0) const noexcept {
    void* ptr = nullptr;
    return vpmm_try_allocate_any_stream(handle_, bytes, alignment, &ptr) == VPMM_OK ? ptr : nullptr;
  }

  // Work queued on `stream` before the call is the last to use the memory. Null does nothing.
  void deallocate(void* ptr, vpmm_stream stream) const { check(vpmm_deallocate(handle_, ptr, stream)); }
  void deallocate(void* ptr, any_stream_t) const { check(vpmm_deallocate_any_stream(handle_, ptr)); }
  result<void> try_deallocate(void* ptr, vpmm_stream stream) const {
    return finish(vpmm_deallocate(handle_, ptr, stream));
  }
  result<void> try_deallocate(void* ptr, any_stream_t) const {
    return finish(vpmm_deallocate_any_stream(handle_, ptr));
  }
  // For finalizers: no lock, no driver call, no wait. Mistakes are counted, not reported.
  void deallocate_deferred(void* ptr) const noexcept { vpmm_deallocate_deferred(handle_, ptr); }
  // One pointer for each size; all or none. The stream is looked up once.
  std::vector<void*> allocate_many(const std::vector<std::size_t>& bytes, vpmm_stream stream) const {
    std::vector<void*> ptrs(bytes.size());
    check(vpmm_allocate_many(handle_, bytes.data(), bytes.size(), stream, ptrs.data()));
    return ptrs;
  }
  // Frees all that are live; throws when some are not.
  void deallocate_many(const std::vector<void*>& ptrs, vpmm_stream stream) const {
    check(vpmm_deallocate_many(handle_, ptrs.data(), ptrs.size(), stream));
  }
  // Work on `stream` uses the memory too.
  void record_use(void* ptr, vpmm_stream stream) const { check(vpmm_record_use(handle_, ptr, stream)); }

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
  // Returns the bytes given back.
  std::size_t trim(std::size_t bytes_to_keep = 0) const {
    std::size_t released = 0;
    check(vpmm_trim(handle_, bytes_to_keep, &released));
    return released;
  }
  void preallocate(std::size_t bytes) const { check(vpmm_preallocate(handle_, bytes)); }
  result<void> try_preallocate(std::size_t bytes) const { return finish(vpmm_preallocate(handle_, bytes)); }
  // None: no limit of ours.
  void set_capacity(std::optional<std::uint64_t> bytes) const {
    check(vpmm_set_capacity(handle_, bytes.value_or(UINT64_MAX)));
  }
  // A plain function and its argument, which must live as long as they are set; null takes it away.
  void set_out_of_memory_callback(vpmm_out_of_memory_callback callback, void* argument = nullptr) const {
    check(vpmm_set_out_of_memory_callback(handle_, callback, argument));
  }
  // Any number of others, asked after it; the number is for taking one away, which waits until it is not running.
  std::uint64_t add_out_of_memory_callback(vpmm_out_of_memory_callback callback, void* argument = nullptr) const {
    std::uint64_t id = 0;
    check(vpmm_add_out_of_memory_callback(handle_, callback, argument, &id));
    return id;
  }
  void remove_out_of_memory_callback(std::uint64_t id) const { check(vpmm_remove_out_of_memory_callback(handle_, id)); }
  // Waits for the device's context, and for those of peers.
  void synchronize() const { check(vpmm_synchronize(handle_)); }
  // Resets the device's primary context; allocations survive, streams and events do not.
  void reset() const { check(vpmm_reset(handle_)); }
  void capture_release(std::uint64_t capture_id) const { check(vpmm_capture_release(handle_, capture_id)); }

  // --- other devices ---
  // Lets work on another GPU use all memory of the pool, present and future.
  void set_peer_access(int device) const { check(vpmm_set_peer_access(handle_, device)); }
  result<void> try_set_peer_access(int device) const { return finish(vpmm_set_peer_access(handle_, device)); }

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
  // `kinds`: a bit (1u << kind) for each kind of event. The callback is short and calls nothing of this library.
  std::uint64_t add_event_callback(std::uint32_t kinds, vpmm_event_callback callback, void* argument = nullptr) const {
    std::uint64_t id = 0;
    check(vpmm_add_event_callback(handle_, kinds, callback, argument, &id));
    return id;
  }
  void remove_event_callback(std::uint64_t id) const { check(vpmm_remove_event_callback(handle_, id)); }
  // What lies where at this moment.
  pool_layout layout() const;
  // Every region in ascending address order.
  std::vector<vpmm_region> snapshot() const;
  std::string dump_text() const { return dump(vpmm_dump_text); }
  std::string dump_json() const { return dump(vpmm_dump_json); }
  void start_recording(const std::string& path) const { check(vpmm_record_start(handle_, path.c_str())); }
  void stop_recording() const { check(vpmm_record_stop(handle_)); }

 private:
  static result<void*> finish(vpmm_status status, void* ptr) {
    return status == VPMM_OK ? result<void*>(ptr) : result<void*>::failed(status);
  }
  static result<void> finish(vpmm_status status) {
    return status == VPMM_OK ? result<void>() : result<void>::failed(status);
  }
  std::string dump(vpmm_status (*render)(vpmm_pool*, char**)) const;

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

// Asks again while the pool grows between the two calls.
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

// The process-wide pool of a device, opened from the environment at the first call; never destroyed.
inline pool_ref default_pool(int device = 0) {
  vpmm_pool* handle = nullptr;
  check(vpmm_default_pool(device, &handle));
  return pool_ref(handle);
}

// The same pool with settings of your own. Throws when it is open already with others.
inline pool_ref open_default_pool(int device, const vpmm_config& settings) {
  vpmm_pool* handle = nullptr;
  check(vpmm_default_pool_open(device, &settings, &handle));
  return pool_ref(handle);
}

// A private pool. Its destructor waits for the GPU and gives all memory back, live allocations included.
class memory_pool : public pool_ref {
 public:
  explicit memory_pool(int device = 0) : pool_ref(create(device, nullptr)) {}  // settings from the environment
  memory_pool(int device, const vpmm_config& settings) : pool_ref(create(device, &settings)) {}
  memory_pool(memory_pool&& other) noexcept
      : pool_ref(std::exchange(static_cast<pool_ref&>(other), pool_ref(nullptr))) {}
  memory_pool& operator=(memory_pool&& other) noexcept {
    std::swap(static_cast<pool_ref&>(*this), static_cast<pool_ref&>(other));
    return *this;
  }
  // Only a process-wide pool is refused, and this is none.
  ~memory_pool() { (void)vpmm_pool_destroy(handle()); }

 private:
  static vpmm_pool* create(int device, const vpmm_config* settings) {
    vpmm_pool* handle = nullptr;
    check(vpmm_pool_create(device, settings, &handle));
    return handle;
  }
};

// A stream that the pool knows by this object: the fastest way in (vpmm_stream_bind has the rules). Movable; any thread
// may allocate and deallocate through it.
class bound_stream {
 public:
  bound_stream(pool_ref pool, vpmm_stream stream) { check(vpmm_stream_bind(pool.handle(), stream, &handle_)); }
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

// An allocation that gives itself back, on the stream it remembers. Movable; one thread at a time, as any value.
class buffer {
 public:
  buffer() noexcept = default;
  buffer(pool_ref pool, std::size_t bytes, vpmm_stream stream, std::size_t alignment = 0)
      : pool_(pool), data_(pool.allocate(bytes, stream, alignment)), size_(bytes), stream_(stream) {}
  buffer(pool_ref pool, std::size_t bytes, any_stream_t, std::size_t alignment = 0)
      : pool_(pool), data_(pool.allocate(bytes, any_stream, alignment)), size_(bytes) {}
  // Takes over memory that was allocated from `pool`.
  static buffer adopt(pool_ref pool, void* data, std::size_t bytes, std::optional<vpmm_stream> stream) noexcept {
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
  std::size_t size() const noexcept { return size_; }  // bytes, as asked for
  bool empty() const noexcept { return size_ == 0; }
  std::optional<vpmm_stream> stream() const noexcept { return stream_; }  // none: any stream
  pool_ref pool() const noexcept { return pool_; }

  // Where the memory will be given back; does not order one stream behind the other: have `stream` wait for what the
  // old one still does with the memory, or name the old one with record_use.
  void set_stream(vpmm_stream stream) noexcept { stream_ = stream; }
  void set_stream(any_stream_t) noexcept { stream_.reset(); }
  void record_use(vpmm_stream stream) const { pool_.record_use(data_, stream); }

  // Gives the memory back now. A destructor cannot report, and nothing of the caller's can make this fail.
  void reset() noexcept {
    if (data_ != nullptr && stream_) (void)vpmm_deallocate(pool_.handle(), data_, *stream_);
    if (data_ != nullptr && !stream_) (void)vpmm_deallocate_any_stream(pool_.handle(), data_);
    data_ = nullptr;
    size_ = 0;
  }
  // The memory is the caller's from now on.
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

inline result<buffer> try_make_buffer(pool_ref pool, std::size_t bytes, vpmm_stream stream, std::size_t alignment = 0) {
  const result<void*> memory = pool.try_allocate(bytes, stream, alignment);
  if (!memory) return result<buffer>::failed(memory.status());
  return buffer::adopt(pool, memory.value(), bytes, stream);
}

// Announces, for a scope, captures on streams that are never passed to the pool.
class capture_guard {
 public:
  explicit capture_guard(pool_ref pool) : pool_(pool) { check(vpmm_capture_begin(pool_.handle())); }
  // Fails only without a begin, and without it the constructor threw.
  ~capture_guard() { (void)vpmm_capture_end(pool_.handle()); }
  capture_guard(const capture_guard&) = delete;
  capture_guard& operator=(const capture_guard&) = delete;

 private:
  pool_ref pool_;
};

// Puts off, for a scope, what the pool would do by itself and what takes time: unmapping, releasing, waiting on the
// host.
class defer_cleanup_guard {
 public:
  explicit defer_cleanup_guard(pool_ref pool) : pool_(pool) { check(vpmm_defer_cleanup_begin(pool_.handle())); }
  // Fails only without a begin, and without it the constructor threw.
  ~defer_cleanup_guard() { (void)vpmm_defer_cleanup_end(pool_.handle()); }
  defer_cleanup_guard(const defer_cleanup_guard&) = delete;
  defer_cleanup_guard& operator=(const defer_cleanup_guard&) = delete;

 private:
  pool_ref pool_;
};

// Names memory to other processes: in the one that exported it the export, which ends with the object, and elsewhere
// what opens it, which closes with the object. What crosses between them is value(), plain bytes. Movable; one thread
// at a time, as any value. Errors are those of vpmm_ipc_open, and VPMM_ERROR_INVALID_ARGUMENT for opening what is open,
// for closing what is not, and for opening in the process that exported it.
class ipc_handle {
 public:
  // What another process sent.
  explicit ipc_handle(const vpmm_ipc_handle& value) noexcept : value_(value) {}
  // The same from a token alone, which is all that some interfaces carry.
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
  // A destructor cannot report; close() and end_export() can.
  ~ipc_handle() {
    if (opened_ != nullptr) vpmm_ipc_close_deferred(opened_);
    if (is_export_) (void)vpmm_ipc_export_end(&value_);
  }

  const vpmm_ipc_handle& value() const noexcept { return value_; }
  std::size_t size() const noexcept { return static_cast<std::size_t>(value_.bytes); }  // bytes
  // Where the memory is while it is open; null: it is not.
  void* data() const noexcept { return opened_; }

  // Maps the memory for work on `device`; none: the one that it is on.
  void* open(std::optional<int> device = std::nullopt) {
    require(opened_ == nullptr, "the IPC handle is already open");
    require(!is_export_, "the IPC handle is opened in the process that exported it: use the memory itself");
    check(vpmm_ipc_open(&value_, device.value_or(-1), &opened_));
    return opened_;
  }
  // Waits for the work of the device's context.
  void close() {
    require(opened_ != nullptr, "the IPC handle is not open");
    check(vpmm_ipc_close(opened_));
    opened_ = nullptr;
  }
  // A copy in `pool`, on any device; the memory itself is closed again, and the copy is no business of the handle's.
  buffer open_staged(pool_ref pool) const {
    require(!is_export_, "the IPC handle is opened in the process that exported it: use the memory itself");
    void* copy = nullptr;
    check(vpmm_ipc_open_staged(&value_, pool.handle(), &copy));
    return buffer::adopt(pool, copy, size(), std::nullopt);
  }
  // Does nothing for what another process exported.
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

// A handle for `bytes` bytes at `ptr`, of any pool of this process, at the begin of an allocation or inside, or of
// plain driver memory. As long as it lives, and as long as another process has the memory open, the memory is not used
// again, even when it is freed.
inline ipc_handle export_memory(const void* ptr, std::size_t bytes) {
  vpmm_ipc_handle value{};
  check(vpmm_ipc_export(ptr, bytes, &value));
  ipc_handle handle(value);
  handle.is_export_ = true;
  return handle;
}

}  // namespace vpmm

#endif
