// SPDX-License-Identifier: Apache-2.0
// emm: the memory managers that come with the library.
#ifndef VPMM_EMM_MANAGERS_HPP
#define VPMM_EMM_MANAGERS_HPP

#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "vpmm/emm/ipc.hpp"
#include "vpmm/emm/manager.hpp"

namespace vpmm::emm {
inline namespace v1 {

// Pending frees, carried out together as Numba's _PendingDeallocs does: all of them as soon as
// their count or their bytes exceed a limit, unless cleanup is deferred. One queue for device and
// host memory. Thread-safe. The driver is called in the CUDA context that set_limits() named,
// without the lock that add() takes.
class PendingDeallocs {
 public:
  explicit PendingDeallocs(const Driver& driver) : driver_(driver) {}
  PendingDeallocs(const PendingDeallocs&) = delete;
  PendingDeallocs& operator=(const PendingDeallocs&) = delete;

  // `capacity`: the bytes of memory to which limits.ratio applies. Before this call every free is
  // carried out at once.
  void set_limits(vpmm_cuda_context context, const PendingLimits& limits, std::uint64_t capacity) {
    const std::lock_guard<std::mutex> lock(mutex_);
    context_ = context;
    most_ = limits.count;
    most_bytes_ = static_cast<std::uint64_t>(limits.ratio * static_cast<double>(capacity));
  }

  using Free = void (Driver::*)(void*) const;
  // Queues a call of `free` with `ptr`. If host memory for the queue runs out, the free is carried
  // out at once.
  void add(void* ptr, std::size_t bytes, Free free) noexcept {
    bool is_due = false;
    try {
      const std::lock_guard<std::mutex> lock(mutex_);
      waiting_.push_back({ptr, free});
      bytes_ += bytes;
      is_due = deferrals_ == 0 && (waiting_.size() > most_ || bytes_ > most_bytes_);
    } catch (...) {
      free_now(ptr, free);
    }
    if (is_due) flush();
  }
  // For frees that must not be queued.
  void free_now(void* ptr, Free free) noexcept {
    const Item only{ptr, free};
    carry_out(&only, 1);
  }

  // Carries out all pending frees, and waits for frees that another thread has begun. A free that
  // fails is counted and does not stop the others.
  void flush() noexcept {
    const std::lock_guard<std::mutex> one_at_a_time(flushing_);
    std::vector<Item> items;  // an empty vector needs no memory
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      items.swap(waiting_);
      bytes_ = 0;
    }
    carry_out(items.data(), items.size());
  }
  // The same, unless cleanup is deferred.
  void flush_unless_deferred() noexcept {
    if (!is_deferred()) flush();
  }

  // Calls `allocate`. If it runs out of memory, calls it once more after this thread or another has
  // carried out all pending frees, even while cleanup is deferred. Throws vpmm::out_of_memory if
  // that fails, too.
  template <typename Allocate>
  void* attempt(Allocate&& allocate) {
    const std::uint64_t before = carried_out_.load(std::memory_order_relaxed);
    try {
      return allocate();
    } catch (const vpmm::out_of_memory&) {
      flush();
      if (carried_out_.load(std::memory_order_relaxed) == before) throw;
    }
    return allocate();
  }

  void defer() noexcept {
    const std::lock_guard<std::mutex> lock(mutex_);
    ++deferrals_;
  }
  // Pending frees are carried out when the next one is added, not now.
  void end_deferral() noexcept {
    const std::lock_guard<std::mutex> lock(mutex_);
    --deferrals_;
  }
  bool is_deferred() const noexcept {
    const std::lock_guard<std::mutex> lock(mutex_);
    return deferrals_ > 0;
  }

  std::size_t count() const noexcept {
    const std::lock_guard<std::mutex> lock(mutex_);
    return waiting_.size();
  }
  std::uint64_t bytes() const noexcept {
    const std::lock_guard<std::mutex> lock(mutex_);
    return bytes_;
  }
  // Frees that the driver refused.
  std::uint64_t failures() const noexcept { return failures_.load(std::memory_order_relaxed); }

 private:
  struct Item {
    void* ptr;
    Free free;
  };

  void carry_out(const Item* items, std::size_t count) noexcept {
    if (count == 0) return;
    const CurrentContext current(driver_, context(), std::nothrow);
    for (const Item* item = items; item != items + count; ++item) {
      try {
        (driver_.*item->free)(item->ptr);
      } catch (...) {
        failures_.fetch_add(1, std::memory_order_relaxed);
      }
    }
    carried_out_.fetch_add(count, std::memory_order_relaxed);
  }
  vpmm_cuda_context context() const noexcept {
    const std::lock_guard<std::mutex> lock(mutex_);
    return context_;
  }

  Driver driver_;
  std::mutex flushing_;       // held while frees are carried out; taken before mutex_
  mutable std::mutex mutex_;  // guards the fields below
  std::vector<Item> waiting_;
  std::uint64_t bytes_ = 0;
  std::uint64_t most_ = 0;
  std::uint64_t most_bytes_ = 0;
  int deferrals_ = 0;
  vpmm_cuda_context context_ = nullptr;
  std::atomic<std::uint64_t> failures_{0};
  std::atomic<std::uint64_t> carried_out_{0};
};

// Page-locked host memory from the driver, for managers that implement device memory only: derive
// from it and write do_allocate and do_release_device. Dropped host memory is queued in
// deallocations(), except registered memory; the derived class may queue device memory there too.
// The derived class's initialize, reset and deferral run after this class's.
class HostOnlyMemoryManager : public MemoryManager {
 public:
  explicit HostOnlyMemoryManager(const Creation& creation)
      : MemoryManager(creation), pending_(creation.driver) {}
  ~HostOnlyMemoryManager() override {
    if (!driver().process_is_ending()) pending_.flush();
  }
  Capabilities capabilities() const noexcept override {
    Capabilities has;
    has.host_memory = true;
    return has;
  }
  // Reads VPMM_MAX_PENDING_DEALLOCS_COUNT and _RATIO when the manager is initialized.
  const PendingDeallocs& pending() const noexcept { return pending_; }

 protected:
  PendingDeallocs& deallocations() noexcept { return pending_; }
  void initialize_base() override {
    pending_.set_limits(driver().ctx_get_current(), driver().max_pending_deallocs(),
                        driver().mem_get_info().total);
  }
  void reset_base() override { pending_.flush_unless_deferred(); }
  void defer_cleanup_begin_base() override { pending_.defer(); }
  void defer_cleanup_end_base() noexcept override { pending_.end_deferral(); }

 private:
  // Device and managed memory; the rules of do_release hold.
  virtual void do_release_device(const Block& block) noexcept = 0;

  Block do_allocate_host(std::size_t bytes, unsigned flags) final {
    Block block{};
    block.pointer = pending_.attempt([&] { return driver().mem_host_alloc(bytes, flags); });
    try {
      see_mapped(block, flags);
    } catch (...) {
      (void)driver().table()->mem_free_host(driver().table(), block.pointer);
      throw;
    }
    return block;
  }
  Block do_register_host(void* ptr, std::size_t bytes, unsigned flags) final {
    Block block{};
    block.pointer = ptr;
    driver().mem_host_register(ptr, bytes, flags);
    try {
      see_mapped(block, flags);
    } catch (...) {
      (void)driver().table()->mem_host_unregister(driver().table(), ptr);
      throw;
    }
    return block;
  }
  void see_mapped(Block& block, unsigned flags) const {
    if ((flags & VPMM_EMM_DEVICE_MAPPED) == 0) return;
    block.device_pointer = driver().mem_host_get_device_pointer(block.pointer);
  }
  void do_release(const Block& block) noexcept final {
    switch (block.kind) {
      case VPMM_EMM_PINNED:
      case VPMM_EMM_MAPPED: return pending_.add(block.pointer, block.bytes, &Driver::mem_free_host);
      case VPMM_EMM_REGISTERED:
      case VPMM_EMM_REGISTERED_MAPPED:
        // The same range may be registered again at once.
        return pending_.free_now(block.pointer, &Driver::mem_host_unregister);
      default: return do_release_device(block);
    }
  }
  PendingDeallocs pending_;
};

// Plain allocations of the driver with Numba's pending deallocations: the baseline for comparisons.
// While cleanup is deferred, nothing is freed unless memory runs out.
class DefaultMemoryManager : public HostOnlyMemoryManager {
 public:
  using HostOnlyMemoryManager::HostOnlyMemoryManager;
  Capabilities capabilities() const noexcept override {
    Capabilities has;
    has.host_memory = has.managed_memory = has.ipc = has.memory_info = true;
    return has;
  }

 private:
  Block do_allocate(std::size_t bytes) override {
    Block block{};
    block.pointer = deallocations().attempt([&] { return driver().mem_alloc(bytes); });
    return block;
  }
  Block do_allocate_managed(std::size_t bytes, unsigned flags) override {
    Block block{};
    block.pointer =
        deallocations().attempt([&] { return driver().mem_alloc_managed(bytes, flags); });
    return block;
  }
  // cuMemFree waits for all work that may use the memory.
  void do_release_device(const Block& block) noexcept override {
    deallocations().add(block.pointer, block.bytes, &Driver::mem_free);
  }
  IpcHandle do_get_ipc_handle(void* ptr, std::size_t bytes) override {
    return legacy_ipc_handle(driver(), device(), ptr, bytes);
  }
  MemoryInfo do_get_memory_info() override { return driver().mem_get_info(); }
};

// Device memory from a pool of VPMM; host and managed memory from the driver. Dropping a
// MemoryPointer only adds it to the pool's list of deferred frees: no driver call, no wait. Its
// memory is reused once all work that was queued when the pool next read the list is done. While
// cleanup is deferred, the pool still reuses dropped memory, but unmaps and releases nothing and
// does not wait on the host. The derived class chooses the pool.
class PoolMemoryManager : public HostOnlyMemoryManager {
 public:
  using HostOnlyMemoryManager::HostOnlyMemoryManager;
  Capabilities capabilities() const noexcept override {
    Capabilities has;
    has.host_memory = has.managed_memory = has.stream_order = has.memory_info = true;
    return has;
  }

 private:
  // Called once. The pool must live as long as the manager.
  virtual pool_ref open_pool() = 0;

  // A free without a stream is complete when all work of the primary context is; other contexts are
  // not checked.
  void do_initialize() override {
    const vpmm_cuda_context primary = driver().device_primary_ctx_retain(device());
    driver().device_primary_ctx_release(device());
    if (primary != driver().ctx_get_current())
      throw_error(VPMM_ERROR_UNSUPPORTED,
                  "a pool is for the primary context of its device: another CUDA context needs "
                  "another memory manager, "
                  "such as \"default\"");
    pool_.emplace(open_pool());
  }
  Block do_allocate(std::size_t bytes) override {
    return block_of(
        deallocations().attempt([&] { return pool_->try_allocate(bytes, any_stream).value(); }));
  }
  Block do_allocate_on_stream(std::size_t bytes, stream_ref stream) override {
    return block_of(
        deallocations().attempt([&] { return pool_->try_allocate(bytes, stream).value(); }));
  }
  Block do_allocate_managed(std::size_t bytes, unsigned flags) override {
    const auto allocate = [&] { return driver().mem_alloc_managed(bytes, flags); };
    try {
      return block_of(deallocations().attempt(allocate));
    } catch (const vpmm::out_of_memory&) {
      if (pool_->trim() == 0) throw;  // the pool may hold memory that the driver lacks
    }
    return block_of(allocate());
  }
  void do_release_device(const Block& block) noexcept override {
    if (block.kind == VPMM_EMM_MANAGED)
      deallocations().add(block.pointer, block.bytes, &Driver::mem_free);
    else
      pool_->deallocate_deferred(block.pointer);
  }
  void do_release_on_stream(const Block& block, stream_ref stream) override {
    pool_->deallocate(block.pointer, stream);
  }
  MemoryInfo do_get_memory_info() override {
    const memory_information info = pool_->memory_info();
    return {info.free_bytes, info.total_bytes};
  }
  void do_defer_cleanup_begin() override {
    if (pool_) check(vpmm_defer_cleanup_begin(pool_->handle()));
  }
  void do_defer_cleanup_end() noexcept override {
    if (pool_) (void)vpmm_defer_cleanup_end(pool_->handle());
  }
  static Block block_of(void* ptr) noexcept {
    Block block{};
    block.pointer = ptr;
    return block;
  }

  std::optional<pool_ref> pool_;
};

// The process-wide pool of the device: all contexts on it, and all other users in the process,
// share one pool.
class VpmmMemoryManager : public PoolMemoryManager {
 public:
  using PoolMemoryManager::PoolMemoryManager;
  Capabilities capabilities() const noexcept override {
    Capabilities has = PoolMemoryManager::capabilities();
    has.ipc = true;
    return has;
  }

 private:
  pool_ref open_pool() override { return default_pool(device()); }
  // The handle opens while the memory is allocated; memory that is open elsewhere is not reused.
  IpcHandle do_get_ipc_handle(void* ptr, std::size_t bytes) override {
    IpcHandle handle;
    check(vpmm_ipc_export(ptr, bytes, &handle));
    (void)vpmm_ipc_export_end(&handle);
    return handle;
  }
};

// The driver's asynchronous pool (cuMemAllocAsync) with VPMM's contract: a private pool without a
// pool of pages.
class StreamOrderedMemoryManager : public PoolMemoryManager {
 public:
  using PoolMemoryManager::PoolMemoryManager;

 private:
  pool_ref open_pool() override {
    vpmm_config settings = settings_from_environment();
    settings.page_size = UINT64_MAX;
    own_ = std::make_unique<memory_pool>(device(), settings);
    return *own_;
  }
  std::unique_ptr<memory_pool> own_;
};

}  // namespace v1
}  // namespace vpmm::emm

#endif
