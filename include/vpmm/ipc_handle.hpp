// SPDX-License-Identifier: Apache-2.0
// vpmm: header-only C++17 over the C ABI: memory of other processes. vpmm.hpp includes it.
#ifndef VPMM_IPC_HANDLE_HPP
#define VPMM_IPC_HANDLE_HPP

#include <cstddef>
#include <optional>
#include <utility>

#include "vpmm/buffer.hpp"
#include "vpmm/pool.hpp"
#include "vpmm/result.hpp"
#include "vpmm/vpmm.h"

namespace vpmm {

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
  [[nodiscard]] buffer open_staged(shared_pool pool) const {
    require(!is_export_,
            "the IPC handle is opened in the process that exported it: use the memory itself");
    void* copy = nullptr;
    check(vpmm_ipc_open_staged(&value_, pool.handle(), &copy));
    return buffer::adopt(std::move(pool), copy, size(), std::nullopt);
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
[[nodiscard]] inline ipc_handle export_memory(const void* ptr, std::size_t bytes) {
  vpmm_ipc_handle value{};
  check(vpmm_ipc_export(ptr, bytes, &value));
  ipc_handle handle(value);
  handle.is_export_ = true;
  return handle;
}

}  // namespace vpmm

#endif
