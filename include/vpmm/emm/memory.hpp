// SPDX-License-Identifier: Apache-2.0
// emm: memory from a memory manager: reference-counted values over one piece of memory that is
// given back exactly once.
#ifndef VPMM_EMM_MEMORY_HPP
#define VPMM_EMM_MEMORY_HPP

#include <cstring>
#include <memory>
#include <string>
#include <utility>

#include "vpmm/emm/driver.hpp"

namespace vpmm::emm {
inline namespace v1 {

class MemoryManager;

using Block = vpmm_emm_block;

namespace detail {

// One piece of memory in use. The first of these gives it back: the end of the last value that
// refers to it, an explicit release, or the manager's reset; see MemoryManager.
class Allocation {
 public:
  Allocation(std::shared_ptr<MemoryManager> manager, const Block& block,
             std::shared_ptr<const void> owner) noexcept
      : manager_(std::move(manager)), owner_(std::move(owner)), block_(block) {}
  ~Allocation();
  Allocation(const Allocation&) = delete;
  Allocation& operator=(const Allocation&) = delete;

  const Block& block() const noexcept { return block_; }
  const std::shared_ptr<const void>& owner() const noexcept { return owner_; }
  const std::shared_ptr<MemoryManager>& manager() const noexcept { return manager_; }

 private:
  friend class vpmm::emm::v1::MemoryManager;
  std::shared_ptr<MemoryManager> manager_;
  std::shared_ptr<const void> owner_;
  Block block_;
  // The manager's list of live allocations; its mutex guards them.
  Allocation* previous_ = nullptr;
  Allocation* next_ = nullptr;
  bool is_live_ = false;
};

// The base of all kinds of memory. Copies and views share the memory, which is given back with the
// last of them. As with std::shared_ptr, different threads may use different values, but only one
// thread at a time may use one value.
template <typename Derived>
class Memory {
 public:
  Memory() noexcept = default;  // 0 bytes at a null pointer
  Memory(const Block& block, std::shared_ptr<Allocation> allocation) noexcept
      : allocation_(std::move(allocation)),
        pointer_(static_cast<unsigned char*>(block.pointer)),
        device_pointer_(static_cast<unsigned char*>(block.device_pointer)),
        size_(block.bytes) {}

  std::size_t size() const noexcept { return size_; }  // bytes: as requested, or of the view
  explicit operator bool() const noexcept { return pointer_ != nullptr; }
  // The number of values that share the memory, including this one.
  long use_count() const noexcept { return allocation_.use_count(); }
  // The owner passed to pin(), which keeps the memory itself alive; usually null.
  std::shared_ptr<const void> owner() const noexcept {
    return allocation_ ? allocation_->owner() : nullptr;
  }
  // Null for the empty value.
  std::shared_ptr<MemoryManager> manager() const noexcept {
    return allocation_ ? allocation_->manager() : nullptr;
  }

  // A part of the memory, which keeps the whole alive. Throws vpmm::error if the part is not
  // inside.
  Derived view(std::size_t offset, std::size_t bytes) const {
    if (offset > size_ || bytes > size_ - offset)
      throw_error(VPMM_ERROR_INVALID_ARGUMENT, "a view of " + std::to_string(bytes) +
                                                   " bytes at offset " + std::to_string(offset) +
                                                   " does not lie in memory of " +
                                                   std::to_string(size_) + " bytes");
    Derived part(static_cast<const Derived&>(*this));
    if (pointer_ != nullptr) part.pointer_ += offset;
    if (device_pointer_ != nullptr) part.device_pointer_ += offset;
    part.size_ = bytes;
    return part;
  }
  Derived view(std::size_t offset) const {
    return view(offset, offset > size_ ? 0 : size_ - offset);
  }

  // Empties this value. The memory stays allocated while other values refer to it.
  void reset() noexcept { static_cast<Derived&>(*this) = Derived(); }

 protected:
  friend class vpmm::emm::v1::MemoryManager;
  std::shared_ptr<Allocation> allocation_;
  unsigned char* pointer_ = nullptr;
  unsigned char* device_pointer_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace detail

// Device memory.
class MemoryPointer : public detail::Memory<MemoryPointer> {
 public:
  using Memory::Memory;
  void* device_pointer() const noexcept { return device_pointer_; }
  // Gives the memory back now, in the order of `stream`: work already queued there may still use
  // it. Values that share the memory must not be used any more. Throws if the memory was already
  // given back or the manager has no stream order; the memory is then unchanged.
  void release_on(stream_ref stream);
};

// Page-locked host memory.
class PinnedMemory : public detail::Memory<PinnedMemory> {
 public:
  using Memory::Memory;
  void* host_pointer() const noexcept { return pointer_; }
};

// Page-locked host memory that is also mapped for the device, at a separate address.
class MappedMemory : public detail::Memory<MappedMemory> {
 public:
  using Memory::Memory;
  void* host_pointer() const noexcept { return pointer_; }
  void* device_pointer() const noexcept { return device_pointer_; }
};

// Managed memory: host and device share it at one address, and the driver moves it.
class ManagedMemory : public detail::Memory<ManagedMemory> {
 public:
  using Memory::Memory;
  void* host_pointer() const noexcept { return pointer_; }
  void* device_pointer() const noexcept { return device_pointer_; }
};

// Names memory to another process. It is plain bytes: a copy, here or elsewhere, keeps no memory
// alive.
struct IpcHandle : vpmm_emm_ipc_handle {
  IpcHandle() noexcept : vpmm_emm_ipc_handle{} {}
  friend bool operator==(const IpcHandle& a, const IpcHandle& b) noexcept {
    return a.kind == b.kind && a.bytes == b.bytes && a.offset == b.offset &&
           std::memcmp(a.token, b.token, sizeof(a.token)) == 0 &&
           std::memcmp(a.device_uuid, b.device_uuid, sizeof(a.device_uuid)) == 0;
  }
  friend bool operator!=(const IpcHandle& a, const IpcHandle& b) noexcept { return !(a == b); }
};

}  // namespace v1
}  // namespace vpmm::emm

#endif
