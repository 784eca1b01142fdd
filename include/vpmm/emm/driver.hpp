// SPDX-License-Identifier: Apache-2.0
// emm: the driver's calls that memory managers need, for C++: failures throw.
#ifndef VPMM_EMM_DRIVER_HPP
#define VPMM_EMM_DRIVER_HPP

#include <cstddef>
#include <cstdint>
#include <new>
#include <string>

#include "vpmm/emm.h"
#include "vpmm/vpmm.hpp"

// The version separates the classes of programs and plugins that were built against different
// header versions.
namespace vpmm::emm {
inline namespace v1 {

struct MemoryInfo {
  std::uint64_t free = 0;   // bytes available to the next allocations
  std::uint64_t total = 0;  // bytes of the device
};

struct PendingLimits {
  std::uint64_t count = 10;  // most pending frees
  double ratio = 0.2;        // most pending bytes, as a share of the device's memory
};

// CUDA's number for CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY.
inline constexpr int kCanMapHostMemory = 19;

// A table of the driver's calls: a value that stays valid for the life of the process. Thread-safe.
// As in CUDA, the methods act on the calling thread's current context. They throw vpmm::error with
// a status of emm.h.
class Driver {
 public:
  // Throws if the table comes from a library older than this header and lacks slots that are called
  // here.
  explicit Driver(const vpmm_emm_driver* table) : table_(table) {
    if (table->size < sizeof(vpmm_emm_driver))
      throw_error(VPMM_ERROR_UNSUPPORTED,
                  "libvpmm is older than the headers that this was built with: its table of the "
                  "driver has " +
                      std::to_string(table->size) + " bytes, needed are " +
                      std::to_string(sizeof(vpmm_emm_driver)));
  }
  // The driver of the process, from libvpmm.
  static Driver of_process() {
    const vpmm_emm_driver* table = nullptr;
    check(vpmm_emm_process_driver(&table));
    return Driver(table);
  }
  const vpmm_emm_driver* table() const noexcept { return table_; }

  bool process_is_ending() const noexcept { return table_->process_is_ending(table_) != 0; }
  PendingLimits max_pending_deallocs() const {
    PendingLimits limits;
    done(table_->max_pending_deallocs(table_, &limits.count, &limits.ratio));
    return limits;
  }

  // --- contexts ---
  vpmm_cuda_context ctx_get_current() const {
    vpmm_cuda_context context = nullptr;
    done(table_->ctx_get_current(table_, &context));
    return context;
  }
  void ctx_set_current(vpmm_cuda_context context) const {
    done(table_->ctx_set_current(table_, context));
  }
  int ctx_get_device() const {
    int device = 0;
    done(table_->ctx_get_device(table_, &device));
    return device;
  }
  void ctx_synchronize() const { done(table_->ctx_synchronize(table_)); }
  vpmm_cuda_context device_primary_ctx_retain(int device) const {
    vpmm_cuda_context context = nullptr;
    done(table_->device_primary_ctx_retain(table_, device, &context));
    return context;
  }
  void device_primary_ctx_release(int device) const {
    done(table_->device_primary_ctx_release(table_, device));
  }
  int device_get_attribute(int attribute, int device) const {
    int value = 0;
    done(table_->device_get_attribute(table_, attribute, device, &value));
    return value;
  }

  // --- memory ---
  MemoryInfo mem_get_info() const {
    MemoryInfo info;
    done(table_->mem_get_info(table_, &info.free, &info.total));
    return info;
  }
  void* mem_alloc(std::size_t bytes) const {
    void* ptr = nullptr;
    done(table_->mem_alloc(table_, bytes, &ptr));
    return ptr;
  }
  void* mem_alloc_managed(std::size_t bytes, unsigned flags) const {
    void* ptr = nullptr;
    done(table_->mem_alloc_managed(table_, bytes, flags, &ptr));
    return ptr;
  }
  void mem_free(void* ptr) const { done(table_->mem_free(table_, ptr)); }
  void* mem_host_alloc(std::size_t bytes, unsigned flags) const {
    void* ptr = nullptr;
    done(table_->mem_host_alloc(table_, bytes, flags, &ptr));
    return ptr;
  }
  void mem_free_host(void* ptr) const { done(table_->mem_free_host(table_, ptr)); }
  void mem_host_register(void* ptr, std::size_t bytes, unsigned flags) const {
    done(table_->mem_host_register(table_, ptr, bytes, flags));
  }
  void mem_host_unregister(void* ptr) const { done(table_->mem_host_unregister(table_, ptr)); }
  void* mem_host_get_device_pointer(void* ptr) const {
    void* device_pointer = nullptr;
    done(table_->mem_host_get_device_pointer(table_, ptr, &device_pointer));
    return device_pointer;
  }
  void memcpy_host_to_device(void* to, const void* from, std::size_t bytes) const {
    done(table_->memcpy_host_to_device(table_, to, from, bytes));
  }
  void memcpy_device_to_host(void* to, const void* from, std::size_t bytes) const {
    done(table_->memcpy_device_to_host(table_, to, from, bytes));
  }

  // Throws if a call of the table failed.
  void done(vpmm_status status) const {
    if (status != VPMM_OK) throw_error(status, table_->last_error(table_));
  }

 private:
  const vpmm_emm_driver* table_;
};

// Makes a CUDA context current for a scope and then restores the previous one.
class CurrentContext {
 public:
  CurrentContext(const Driver& driver, vpmm_cuda_context wanted)
      : driver_(driver), before_(driver.ctx_get_current()) {
    if (before_ == wanted) return;
    driver_.ctx_set_current(wanted);
    is_changed_ = true;
  }
  // If that fails, the current context stays. For releasing memory, which may succeed all the same.
  CurrentContext(const Driver& driver, vpmm_cuda_context wanted, const std::nothrow_t&) noexcept
      : driver_(driver) {
    const vpmm_emm_driver* const table = driver_.table();
    if (table->ctx_get_current(table, &before_) != VPMM_OK || before_ == wanted) return;
    is_changed_ = table->ctx_set_current(table, wanted) == VPMM_OK;
  }
  // Restores the context that was current. If that is gone, there is no better one.
  ~CurrentContext() {
    if (is_changed_) (void)driver_.table()->ctx_set_current(driver_.table(), before_);
  }
  CurrentContext(const CurrentContext&) = delete;
  CurrentContext& operator=(const CurrentContext&) = delete;

 private:
  Driver driver_;
  vpmm_cuda_context before_ = nullptr;
  bool is_changed_ = false;
};

}  // namespace v1
}  // namespace vpmm::emm

#endif
