// SPDX-License-Identifier: Apache-2.0
// emm: CUDA's legacy IPC for plain driver allocations, through the driver's table alone.
// vpmm::ipc_handle in vpmm.hpp opens handles of every kind.
#ifndef VPMM_EMM_IPC_HPP
#define VPMM_EMM_IPC_HPP

#include <cstddef>
#include <string>
#include <utility>

#include "vpmm/emm/memory.hpp"

namespace vpmm::emm {
inline namespace v1 {

// Names `bytes` bytes at `ptr`, a whole allocation of Driver::mem_alloc on `device` or a part of
// one. The other process sees the whole allocation. Throws VPMM_ERROR_UNSUPPORTED for memory that
// the driver does not share this way: memory of virtual memory management and of the asynchronous
// pool.
inline IpcHandle legacy_ipc_handle(const Driver& driver, int device, const void* ptr,
                                   std::size_t bytes) {
  const vpmm_emm_driver* const table = driver.table();
  void* begin = nullptr;
  std::size_t size = 0;
  driver.done(table->mem_get_address_range(table, ptr, &begin, &size));
  IpcHandle handle;
  handle.kind = VPMM_EMM_IPC_LEGACY;
  handle.bytes = bytes;
  handle.offset = static_cast<std::uint64_t>(static_cast<const unsigned char*>(ptr) -
                                             static_cast<unsigned char*>(begin));
  const vpmm_status shared = table->ipc_get_mem_handle(table, begin, handle.token);
  if (shared == VPMM_ERROR_DRIVER_FAILED)
    throw_error(VPMM_ERROR_UNSUPPORTED,
                std::string("CUDA's legacy IPC does not share memory of this kind: ") +
                    table->last_error(table));
  driver.done(shared);
  if (bytes > size || handle.offset > size - bytes)
    throw_error(VPMM_ERROR_INVALID_ARGUMENT,
                "memory for an IPC handle reaches beyond its allocation");
  driver.done(table->device_get_uuid(table, device, handle.device_uuid));
  return handle;
}

// Memory of another process, open in this process while the object exists. It is opened in the
// current CUDA context, on the device that the handle names or on one that can access it. The
// exporter must keep the memory. Finish GPU work on it before the object is destroyed. CUDA's rules
// apply: a process may open a handle once at a time, and the exporter may not open it. Movable.
class LegacyIpcMemory {
 public:
  LegacyIpcMemory(const Driver& driver, const IpcHandle& handle)
      : driver_(driver),
        offset_(handle.offset),
        size_(handle.bytes),
        context_(driver.ctx_get_current()) {
    if (handle.kind != VPMM_EMM_IPC_LEGACY)
      throw_error(VPMM_ERROR_INVALID_ARGUMENT, "this IPC handle is not one of CUDA's legacy IPC");
    const vpmm_emm_driver* const table = driver_.table();
    driver_.done(table->ipc_open_mem_handle(table, handle.token, &begin_));
  }
  LegacyIpcMemory(LegacyIpcMemory&& other) noexcept
      : driver_(other.driver_),
        begin_(std::exchange(other.begin_, nullptr)),
        offset_(other.offset_),
        size_(std::exchange(other.size_, 0)),
        context_(other.context_) {}
  LegacyIpcMemory& operator=(LegacyIpcMemory&& other) noexcept {
    std::swap(driver_, other.driver_);
    std::swap(begin_, other.begin_);
    std::swap(offset_, other.offset_);
    std::swap(size_, other.size_);
    std::swap(context_, other.context_);
    return *this;
  }
  ~LegacyIpcMemory() {
    if (begin_ == nullptr || driver_.process_is_ending()) return;
    try {
      close();
    } catch (...) {
      // A destructor cannot report errors; close() can.
    }
  }

  // Null after close().
  void* device_pointer() const noexcept {
    return begin_ == nullptr ? nullptr : static_cast<unsigned char*>(begin_) + offset_;
  }
  std::size_t size() const noexcept { return size_; }  // bytes

  // Throws if it is not open or the driver fails to close it.
  void close() {
    if (begin_ == nullptr) throw_error(VPMM_ERROR_INVALID_ARGUMENT, "this IPC memory is not open");
    const CurrentContext current(driver_, context_);
    const vpmm_emm_driver* const table = driver_.table();
    driver_.done(table->ipc_close_mem_handle(table, begin_));
    begin_ = nullptr;
  }

 private:
  Driver driver_;
  void* begin_ = nullptr;
  std::uint64_t offset_;
  std::size_t size_;
  vpmm_cuda_context context_;
};

}  // namespace v1
}  // namespace vpmm::emm

#endif
