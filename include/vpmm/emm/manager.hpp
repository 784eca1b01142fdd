// SPDX-License-Identifier: Apache-2.0
// emm: the abstract memory manager of NBEP 7, and the guard that defers its cleanup.
#ifndef VPMM_EMM_MANAGER_HPP
#define VPMM_EMM_MANAGER_HPP

#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "vpmm/emm/memory.hpp"

namespace vpmm::emm {
inline namespace v1 {

// The arguments of a manager's constructor.
struct Creation {
  Driver driver;
  int device = 0;  // ordinal of the device of its CUDA context
};

struct HostOptions {
  bool portable = false;        // page-locked for all CUDA contexts, not only the manager's
  bool write_combined = false;  // fast for the host to write, slow to read
  unsigned flags() const noexcept {
    return (portable ? unsigned{VPMM_EMM_PORTABLE} : 0U) |
           (write_combined ? unsigned{VPMM_EMM_WRITE_COMBINED} : 0U);
  }
};

// Existing host memory.
struct HostSpan {
  void* data = nullptr;
  std::size_t bytes = 0;
};

enum class ManagedAttach : unsigned {
  global = VPMM_EMM_ATTACH_GLOBAL,
  host = VPMM_EMM_ATTACH_HOST
};

// The kinds of memory and calls that a manager supports beyond device memory; others throw
// VPMM_ERROR_UNSUPPORTED.
struct Capabilities {
  bool host_memory = false;
  bool managed_memory = false;
  bool stream_order = false;
  bool ipc = false;
  bool memory_info = false;
  std::uint32_t bits() const noexcept {
    return (host_memory ? std::uint32_t{VPMM_EMM_HAS_HOST_MEMORY} : 0U) |
           (managed_memory ? std::uint32_t{VPMM_EMM_HAS_MANAGED_MEMORY} : 0U) |
           (stream_order ? std::uint32_t{VPMM_EMM_HAS_STREAM_ORDER} : 0U) |
           (ipc ? std::uint32_t{VPMM_EMM_HAS_IPC} : 0U) |
           (memory_info ? std::uint32_t{VPMM_EMM_HAS_MEMORY_INFO} : 0U);
  }
};

class DeferCleanup;
namespace detail {
class Slots;
}

// One memory manager for one CUDA context. Users call the public methods, which are the same for
// every manager: they track live allocations, answer requests of 0 bytes, and ensure that memory is
// given back exactly once. Authors override the private methods (docs/guides/writing-a-manager.md).
//
// std::shared_ptr owns a manager (make_manager), and all memory from it keeps it alive.
// Thread-safe, except that no thread may allocate during reset(). Errors are vpmm::error. Methods
// that allocate make the manager's CUDA context current while they run. Values may be dropped on
// any thread, with any context current.
class MemoryManager : public std::enable_shared_from_this<MemoryManager> {
 public:
  explicit MemoryManager(const Creation& creation)
      : driver_(creation.driver), device_(creation.device) {}
  virtual ~MemoryManager() = default;
  MemoryManager(const MemoryManager&) = delete;
  MemoryManager& operator=(const MemoryManager&) = delete;

  const Driver& driver() const noexcept { return driver_; }
  int device() const noexcept { return device_; }
  // The CUDA context that was current at the first initialize(); null before that.
  vpmm_cuda_context cuda_context() const noexcept {
    return context_.load(std::memory_order_acquire);
  }

  // NBEP 7's version of the interface that the class implements; managers with another version are
  // refused.
  virtual int interface_version() const noexcept { return VPMM_EMM_INTERFACE_VERSION; }
  virtual Capabilities capabilities() const noexcept { return {}; }

  // Initializes the manager in the current CUDA context. The first request does so too; later calls
  // do nothing.
  void initialize() {
    if (cuda_context() != nullptr) return;
    const std::lock_guard<std::recursive_mutex> lock(initializing_);
    if (cuda_context() != nullptr) return;
    if (is_initializing_)
      throw_error(VPMM_ERROR_INVALID_ARGUMENT,
                  "a memory manager asks itself for memory while it is initialized");
    const vpmm_cuda_context current = driver_.ctx_get_current();
    if (current == nullptr)
      throw_error(VPMM_ERROR_INVALID_ARGUMENT,
                  "a memory manager cannot be initialized: no CUDA context is current");
    if (const int found = driver_.ctx_get_device(); found != device_)
      throw_error(VPMM_ERROR_INVALID_ARGUMENT,
                  "a memory manager for device " + std::to_string(device_) +
                      " cannot be initialized in a context of device " + std::to_string(found));
    is_initializing_ = true;
    try {
      initialize_base();
      do_initialize();
    } catch (...) {
      is_initializing_ = false;
      throw;
    }
    is_initializing_ = false;
    context_.store(current, std::memory_order_release);
  }

  // Gives back all memory of this manager and restores its initial state. Remaining values refer to
  // nothing: do not use them; drop them at any time. May precede initialize(), and may be called
  // twice.
  void reset();

  // Device memory for immediate use on any stream. Dropped, it is reused after all work queued by
  // then.
  MemoryPointer memalloc(std::size_t bytes) {
    return obtain<MemoryPointer>(bytes, VPMM_EMM_DEVICE, nullptr,
                                 [&] { return do_allocate(bytes); });
  }
  // Device memory for work queued on `stream` after the call. Dropping it has the effect of
  // dropping memory of memalloc(bytes); MemoryPointer::release_on gives it back in stream order.
  // Capability stream_order.
  MemoryPointer memalloc(std::size_t bytes, stream_ref stream) {
    require(capabilities().stream_order, "allocate in the order of a stream");
    return obtain<MemoryPointer>(bytes, VPMM_EMM_DEVICE, nullptr,
                                 [&] { return do_allocate_on_stream(bytes, stream); });
  }
  // Capability managed_memory.
  ManagedMemory allocate_managed(std::size_t bytes, ManagedAttach attach = ManagedAttach::global) {
    require(capabilities().managed_memory, "allocate managed memory");
    return obtain<ManagedMemory>(bytes, VPMM_EMM_MANAGED, nullptr, [&] {
      return do_allocate_managed(bytes, static_cast<unsigned>(attach));
    });
  }
  // Capability host_memory, here and for the next three.
  PinnedMemory allocate_pinned(std::size_t bytes, HostOptions options = {}) {
    require(capabilities().host_memory, "allocate host memory");
    return obtain<PinnedMemory>(bytes, VPMM_EMM_PINNED, nullptr,
                                [&] { return do_allocate_host(bytes, options.flags()); });
  }
  MappedMemory allocate_mapped(std::size_t bytes, HostOptions options = {}) {
    require(capabilities().host_memory, "allocate host memory");
    return obtain<MappedMemory>(bytes, VPMM_EMM_MAPPED, nullptr, [&] {
      return do_allocate_host(bytes, options.flags() | VPMM_EMM_DEVICE_MAPPED);
    });
  }
  // Page-locks the caller's memory until the result is dropped. It is then unlocked at once, even
  // while cleanup is deferred. `owner` is kept alive until then; it may be null if the caller keeps
  // the memory alive. Existing memory cannot become write-combined.
  PinnedMemory pin(std::shared_ptr<const void> owner, HostSpan span, HostOptions options = {}) {
    require_pinnable(options);
    return obtain<PinnedMemory>(span.bytes, VPMM_EMM_REGISTERED, std::move(owner),
                                [&] { return register_host(span, options.flags()); });
  }
  // The same, mapped for the device. VPMM_ERROR_UNSUPPORTED if the device cannot map host memory.
  MappedMemory pin_mapped(std::shared_ptr<const void> owner, HostSpan span,
                          HostOptions options = {}) {
    require_pinnable(options);
    if (driver_.device_get_attribute(kCanMapHostMemory, device_) == 0)
      throw_error(VPMM_ERROR_UNSUPPORTED,
                  "device " + std::to_string(device_) + " cannot map host memory");
    return obtain<MappedMemory>(span.bytes, VPMM_EMM_REGISTERED_MAPPED, std::move(owner), [&] {
      return register_host(span, options.flags() | VPMM_EMM_DEVICE_MAPPED);
    });
  }

  // Names memory of this manager, or a view of it, to another process. The memory must outlive its
  // use there. Capability ipc.
  IpcHandle get_ipc_handle(const MemoryPointer& memory) {
    require(capabilities().ipc, "make IPC handles");
    if (!memory) throw_error(VPMM_ERROR_INVALID_ARGUMENT, "memory of 0 bytes has no IPC handle");
    if (memory.manager().get() != this || !is_live(*memory.allocation_))
      throw_error(VPMM_ERROR_INVALID_POINTER,
                  "the memory is not this manager's, or was given back");
    initialize();
    const CurrentContext current(driver_, cuda_context());
    return do_get_ipc_handle(memory.device_pointer(), memory.size());
  }
  // Capability memory_info.
  MemoryInfo get_memory_info() {
    require(capabilities().memory_info, "say how much memory is free");
    initialize();
    const CurrentContext current(driver_, cuda_context());
    return do_get_memory_info();
  }
  // Defers slow releases while the guard exists; each manager documents which releases it defers.
  // Guards nest and overlap, on any threads. The manager still releases memory rather than run out.
  [[nodiscard]] DeferCleanup defer_cleanup();

 protected:
  // The part of an intermediate base class, such as HostOnlyMemoryManager; it runs before the
  // derived class's method.
  virtual void initialize_base() {}
  virtual void reset_base() {}
  virtual void defer_cleanup_begin_base() {}
  virtual void defer_cleanup_end_base() noexcept {}

 private:
  // --- what authors write ---
  // Requests are never of 0 bytes, and the manager's CUDA context is current. Fill in `pointer`,
  // `cookie` if needed, and `device_pointer` for host memory; the base class fills in the rest.
  // Throw vpmm::error or any exception.
  virtual Block do_allocate(std::size_t bytes) = 0;
  // Called once for each block of any kind, on any thread, with any CUDA context current. It must
  // not throw, even if it fails to make the manager's context current. Never called while the
  // process exits or in a forked child.
  virtual void do_release(const Block& block) noexcept = 0;
  // Called until it succeeds once, with the manager's CUDA context current. It may not use the
  // public methods.
  virtual void do_initialize() {}
  // All blocks have been released.
  virtual void do_reset() {}
  virtual void do_defer_cleanup_begin() {}
  virtual void do_defer_cleanup_end() noexcept {}
  // Called only if capabilities() includes them.
  virtual Block do_allocate_on_stream(std::size_t, stream_ref) {
    unsupported("allocate in the order of a stream");
  }
  virtual void do_release_on_stream(const Block&, stream_ref) {
    unsupported("release in the order of a stream");
  }
  virtual Block do_allocate_managed(std::size_t, unsigned) {
    unsupported("allocate managed memory");
  }
  virtual Block do_allocate_host(std::size_t, unsigned) { unsupported("allocate host memory"); }
  virtual Block do_register_host(void*, std::size_t, unsigned) { unsupported("pin host memory"); }
  virtual IpcHandle do_get_ipc_handle(void*, std::size_t) { unsupported("make IPC handles"); }
  virtual MemoryInfo do_get_memory_info() { unsupported("say how much memory is free"); }

  // --- the list of what is live ---
  friend class detail::Allocation;
  friend class detail::Slots;
  friend class MemoryPointer;
  friend class DeferCleanup;

  [[noreturn]] static void unsupported(const char* what) {
    throw_error(VPMM_ERROR_UNSUPPORTED, std::string("this memory manager does not ") + what);
  }
  static void require(bool has, const char* what) {
    if (!has) unsupported(what);
  }

  // For registered memory, CUDA gives the write-combined flag another meaning.
  void require_pinnable(HostOptions options) const {
    require(capabilities().host_memory, "pin host memory");
    if (options.write_combined)
      throw_error(VPMM_ERROR_INVALID_ARGUMENT,
                  "write_combined is for memory that is allocated, not for what is pinned");
  }
  Block register_host(HostSpan span, unsigned flags) {
    if (span.data == nullptr)
      throw_error(VPMM_ERROR_INVALID_ARGUMENT, "the host memory to pin is at address null");
    Block block = do_register_host(span.data, span.bytes, flags);
    block.pointer = span.data;
    return block;
  }
  template <typename Value, typename Allocate>
  Value obtain(std::size_t bytes, vpmm_emm_kind kind, std::shared_ptr<const void> owner,
               Allocate&& allocate);
  std::shared_ptr<MemoryManager> shared();
  static bool is_seen_by_device(vpmm_emm_kind kind) {
    return kind == VPMM_EMM_MAPPED || kind == VPMM_EMM_REGISTERED_MAPPED;
  }
  // Fills in what authors leave out.
  static Block filled_in(Block block, std::size_t bytes, vpmm_emm_kind kind);
  void begin_deferring();
  void end_deferring() noexcept;
  void enlist(detail::Allocation& allocation) noexcept;
  bool delist(detail::Allocation& allocation) noexcept;
  bool is_live(const detail::Allocation& allocation) noexcept {
    const std::lock_guard<std::mutex> lock(mutex_);
    return allocation.is_live_;
  }
  void give_back(detail::Allocation& allocation) noexcept;
  void end_release() noexcept;
  void give_back_on(detail::Allocation& allocation, stream_ref stream);

  Driver driver_;
  int device_;
  std::atomic<vpmm_cuda_context> context_{nullptr};
  std::recursive_mutex initializing_;  // guards the next field and writes of context_
  bool is_initializing_ = false;
  std::mutex mutex_;  // guards the fields below and the links of every Allocation
  detail::Allocation* first_ = nullptr;
  std::size_t live_ = 0;
  std::size_t releasing_ = 0;         // releases in progress on other threads
  std::condition_variable released_;  // releasing_ has become 0
};

// Defers a manager's cleanup while it exists. Movable.
class DeferCleanup {
 public:
  explicit DeferCleanup(std::shared_ptr<MemoryManager> manager) : manager_(std::move(manager)) {
    manager_->initialize();
    manager_->begin_deferring();
  }
  DeferCleanup(DeferCleanup&& other) noexcept = default;
  DeferCleanup& operator=(DeferCleanup&& other) noexcept {
    end();
    manager_ = std::move(other.manager_);
    return *this;
  }
  ~DeferCleanup() { end(); }

  void end() noexcept {
    if (manager_ == nullptr) return;
    const std::shared_ptr<MemoryManager> manager = std::move(manager_);
    if (manager->driver_.process_is_ending()) return;
    manager->end_deferring();
  }

 private:
  std::shared_ptr<MemoryManager> manager_;
};

// Makes the manager of a device over the process's driver, with further constructor arguments.
template <typename Manager, typename... Arguments>
std::shared_ptr<Manager> make_manager(int device = 0, Arguments&&... arguments) {
  return std::make_shared<Manager>(Creation{Driver::of_process(), device},
                                   std::forward<Arguments>(arguments)...);
}

// --- implementation ---

inline DeferCleanup MemoryManager::defer_cleanup() { return DeferCleanup(shared()); }

inline std::shared_ptr<MemoryManager> MemoryManager::shared() {
  if (auto self = weak_from_this().lock()) return self;
  throw_error(VPMM_ERROR_INVALID_ARGUMENT,
              "a memory manager must be owned by a std::shared_ptr, as make_manager makes it: "
              "memory keeps it alive");
}

inline void MemoryManager::begin_deferring() {
  if (driver_.process_is_ending()) return;
  defer_cleanup_begin_base();
  try {
    do_defer_cleanup_begin();
  } catch (...) {
    defer_cleanup_end_base();
    throw;
  }
}

inline void MemoryManager::end_deferring() noexcept {
  do_defer_cleanup_end();
  defer_cleanup_end_base();
}

template <typename Value, typename Allocate>
Value MemoryManager::obtain(std::size_t bytes, vpmm_emm_kind kind,
                            std::shared_ptr<const void> owner, Allocate&& allocate) {
  if (bytes == 0) return {};
  initialize();
  const CurrentContext current(driver_, cuda_context());
  // Made first: nothing may throw once there is a block.
  auto allocation = std::make_shared<detail::Allocation>(shared(), Block{}, std::move(owner));
  const Block given = allocate();
  if (is_seen_by_device(kind) && given.pointer != nullptr && given.device_pointer == nullptr) {
    Block unusable = given;
    unusable.bytes = bytes;
    unusable.kind = kind;
    do_release(unusable);
    throw_error(VPMM_ERROR_DRIVER_FAILED,
                "the memory manager gave mapped memory without its device address");
  }
  allocation->block_ = filled_in(given, bytes, kind);
  enlist(*allocation);
  const Block& block = allocation->block_;
  return Value(block, std::move(allocation));
}

inline Block MemoryManager::filled_in(Block block, std::size_t bytes, vpmm_emm_kind kind) {
  if (block.pointer == nullptr)
    throw_error(VPMM_ERROR_DRIVER_FAILED, "the memory manager gave neither memory nor an error");
  block.bytes = bytes;
  block.kind = kind;
  const bool is_everywhere = kind == VPMM_EMM_DEVICE || kind == VPMM_EMM_MANAGED;
  if (is_everywhere) block.device_pointer = block.pointer;
  return block;
}

inline void MemoryManager::enlist(detail::Allocation& allocation) noexcept {
  const std::lock_guard<std::mutex> lock(mutex_);
  allocation.previous_ = nullptr;  // it may have been in the list before
  allocation.next_ = first_;
  if (first_ != nullptr) first_->previous_ = &allocation;
  first_ = &allocation;
  allocation.is_live_ = true;
  ++live_;
}

// Holds: mutex_. False: the allocation was already given back.
inline bool MemoryManager::delist(detail::Allocation& allocation) noexcept {
  if (!allocation.is_live_) return false;
  (allocation.previous_ != nullptr ? allocation.previous_->next_ : first_) = allocation.next_;
  if (allocation.next_ != nullptr) allocation.next_->previous_ = allocation.previous_;
  allocation.is_live_ = false;
  --live_;
  return true;
}

// While the process exits, and in a forked child, a lock may be held forever and CUDA cannot be
// called: the system reclaims the memory.
inline void MemoryManager::give_back(detail::Allocation& allocation) noexcept {
  if (driver_.process_is_ending()) return;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!delist(allocation)) return;
    ++releasing_;
  }
  do_release(allocation.block_);
  end_release();
}

inline void MemoryManager::end_release() noexcept {
  const std::lock_guard<std::mutex> lock(mutex_);
  --releasing_;
  if (releasing_ == 0) released_.notify_all();
}

inline void MemoryManager::give_back_on(detail::Allocation& allocation, stream_ref stream) {
  if (driver_.process_is_ending()) return;
  require(capabilities().stream_order, "release in the order of a stream");
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!delist(allocation))
      throw_error(VPMM_ERROR_INVALID_POINTER, "the memory was given back before");
    ++releasing_;
  }
  try {
    const CurrentContext current(driver_, cuda_context());
    do_release_on_stream(allocation.block_, stream);
  } catch (...) {
    enlist(allocation);
    end_release();
    throw;
  }
  end_release();
}

inline void MemoryManager::reset() {
  if (cuda_context() == nullptr || driver_.process_is_ending())
    return;  // nothing to release, or too late to
  std::vector<Block> blocks;
  {
    // Wait first for releases on other threads: a refused one returns to the list.
    std::unique_lock<std::mutex> lock(mutex_);
    released_.wait(lock, [this] { return releasing_ == 0; });
    blocks.reserve(live_);
    while (first_ != nullptr) {
      blocks.push_back(first_->block_);
      delist(*first_);
    }
  }
  for (const Block& block : blocks) do_release(block);
  const CurrentContext current(driver_, cuda_context(), std::nothrow);
  reset_base();
  do_reset();
}

inline detail::Allocation::~Allocation() {
  if (manager_ != nullptr && block_.pointer != nullptr) manager_->give_back(*this);
}

inline void MemoryPointer::release_on(stream_ref stream) {
  if (allocation_ == nullptr) return;
  allocation_->manager()->give_back_on(*allocation_, stream);
  reset();
}

}  // namespace v1
}  // namespace vpmm::emm

#endif
