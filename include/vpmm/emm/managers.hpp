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

// Frees that wait to be carried out together, as Numba's _PendingDeallocs: all of them once more than so many wait, or
// more than so many bytes, unless cleanup is deferred. One queue for device and host memory. Thread-safe; the driver is
// called without a lock held that adding needs, and in the CUDA context that set_limits() named.
class PendingDeallocs {
 public:
  explicit PendingDeallocs(const Driver& driver) : driver_(driver) {}
  PendingDeallocs(const PendingDeallocs&) = delete;
  PendingDeallocs& operator=(const PendingDeallocs&) = delete;

  // `capacity`: bytes of memory that limits.ratio is a part of. Before it is called, every free is carried out at once.
  void set_limits(vpmm_cuda_context context, const PendingLimits& limits, std::uint64_t capacity) {
    const std::lock_guard<std::mutex> lock(mutex_);
    context_ = context;
    most_ = limits.count;
    most_bytes_ = static_cast<std::uint64_t>(limits.ratio * static_cast<double>(capacity));
  }

  using Free = void (Driver::*)(void*) const;
  // `free` will be called with `ptr`. Not even a lack of host memory loses it: it is carried out at once then.
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
  // For what may not wait.
  void free_now(void* ptr, Free free) noexcept {
    const Item only{ptr, free};
    carry_out(&only, 1);
  }

  // Carries out what waits, and waits for what another thread has begun to. What cannot be freed is counted, and the
  // rest is freed all the same.
  void flush() noexcept {
    const std::lock_guard<std::mutex> one_at_a_time(flushing_);
    std::vector<Item> items;  // empty, it needs no memory
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

  // Memory from `allocate`; when there is none, once more after everything that waits has been freed, by this thread or
  // another. That comes before any deferral. vpmm::out_of_memory is the last word.
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
  // What waits is freed when the next free is added, not now.
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
  std::mutex flushing_;       // held while frees are carried out, and taken before the other
  mutable std::mutex mutex_;  // guards what follows
  std::vector<Item> waiting_;
  std::uint64_t bytes_ = 0;
  std::uint64_t most_ = 0;
  std::uint64_t most_bytes_ = 0;
  int deferrals_ = 0;
  vpmm_cuda_context context_ = nullptr;
  std::atomic<std::uint64_t> failures_{0};
  std::atomic<std::uint64_t> carried_out_{0};
};

// Page-locked host memory from the driver, for managers that care for device memory alone: derive from it and write
// do_allocate and do_release_device. Host memory that is dropped waits in deallocations() (what was registered does
// not), which may be used for device memory as well. What a derived class does at initialize, reset and deferral
// comes after what is done here.
class HostOnlyMemoryManager : public MemoryManager {
 public:
  explicit HostOnlyMemoryManager(const Creation& creation) : MemoryManager(creation), pending_(creation.driver) {}
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
    pending_.set_limits(driver().ctx_get_current(), driver().max_pending_deallocs(), driver().mem_get_info().total);
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

// Plain allocations of the driver and Numba's pending deallocations: what to compare others with.
// While cleanup is deferred nothing is freed, unless memory runs out.
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
    block.pointer = deallocations().attempt([&] { return driver().mem_alloc_managed(bytes, flags); });
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

// Device memory from a pool of VPMM, host and managed memory from the driver. A dropped MemoryPointer only goes onto
// the pool's list: no driver call, no wait. Its memory is used again once all work is done that was queued
// when the pool next looked. While cleanup is deferred the pool unmaps and gives back nothing and does not wait on the
// host; what is dropped is used again all the same. Which pool: the derived class.
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

  // What is freed without a stream is complete when all work of the primary context is; others are not looked at.
  void do_initialize() override {
    const vpmm_cuda_context primary = driver().device_primary_ctx_retain(device());
    driver().device_primary_ctx_release(device());
    if (primary != driver().ctx_get_current())
      throw_error(VPMM_ERROR_UNSUPPORTED,
                  "a pool is for the primary context of its device: another CUDA context needs another memory manager, "
                  "such as \"default\"");
    pool_.emplace(open_pool());
  }
  Block do_allocate(std::size_t bytes) override {
    return block_of(deallocations().attempt([&] { return sized(pool_->try_allocate(bytes, any_stream)); }));
  }
  Block do_allocate_on_stream(std::size_t bytes, vpmm_stream stream) override {
    return block_of(deallocations().attempt([&] { return sized(pool_->try_allocate(bytes, stream)); }));
  }
  Block do_allocate_managed(std::size_t bytes, unsigned flags) override {
    const auto allocate = [&] { return driver().mem_alloc_managed(bytes, flags); };
    try {
      return block_of(deallocations().attempt(allocate));
    } catch (const vpmm::out_of_memory&) {
      if (pool_->trim() == 0) throw;  // what the pool keeps may be what the driver lacks
    }
    return block_of(allocate());
  }
  void do_release_device(const Block& block) noexcept override {
    if (block.kind == VPMM_EMM_MANAGED)
      deallocations().add(block.pointer, block.bytes, &Driver::mem_free);
    else
      pool_->deallocate_deferred(block.pointer);
  }
  void do_release_on_stream(const Block& block, vpmm_stream stream) override {
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
  // The size is the only argument, and more than any address space holds is more than there is.
  static void* sized(const result<void*>& allocated) {
    if (allocated.status() == VPMM_ERROR_INVALID_ARGUMENT) throw_error(VPMM_ERROR_OUT_OF_MEMORY, allocated.message());
    return allocated.value();
  }
  static Block block_of(void* ptr) noexcept {
    Block block{};
    block.pointer = ptr;
    return block;
  }

  std::optional<pool_ref> pool_;
};

// The process-wide pool of the device: every context on it, and everything else in the process, shares one pool.
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
  // It opens as long as the memory is allocated, and no other can take the place of memory that is open.
  IpcHandle do_get_ipc_handle(void* ptr, std::size_t bytes) override {
    IpcHandle handle;
    check(vpmm_ipc_export(ptr, bytes, &handle));
    (void)vpmm_ipc_export_end(&handle);
    return handle;
  }
};

// The driver's own asynchronous pool (cuMemAllocAsync), with VPMM's contract: a private pool without a pool of pages.
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
