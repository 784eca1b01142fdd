// SPDX-License-Identifier: Apache-2.0
// python: the class Pool over a vpmm_pool.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "errors.hpp"
#include "vpmm/vpmm.h"

namespace vpmm::python {

class Pool {
 public:
  Pool(nanobind::handle device, const nanobind::kwargs& settings);  // a private one
  Pool(Pool&& other) noexcept;
  Pool& operator=(Pool&&) = delete;
  ~Pool();  // waits for the GPU if the pool is private
  static Pool open_default(nanobind::handle device);
  static Pool configure_default(nanobind::handle device, const nanobind::kwargs& settings);

  int device() const { return device_; }
  bool is_private() const { return is_private_; }
  bool is_closed() const { return handle_ == nullptr; }
  vpmm_pool* handle() const { return handle_; }  // null: closed

  // Runs `work(handle)` as python::call_on does. Raises if the pool is closed.
  template <typename Work>
  void call(Work&& work, std::optional<std::uint64_t> requested = std::nullopt) const {
    const Use use(*this);
    python::call_on(handle_, requested, std::forward<Work>(work));
  }

  std::uintptr_t allocate(nanobind::handle bytes, nanobind::handle stream,
                          nanobind::handle alignment) const;
  std::uintptr_t allocate_any_stream(nanobind::handle bytes, nanobind::handle alignment) const;
  std::vector<std::uintptr_t> allocate_many(nanobind::handle bytes, nanobind::handle stream) const;
  void deallocate(nanobind::handle ptr, nanobind::handle stream) const;
  void deallocate_any_stream(nanobind::handle ptr) const;
  void deallocate_deferred(nanobind::handle ptr) const;
  void deallocate_many(nanobind::handle ptrs, nanobind::handle stream) const;
  void set_out_of_memory_callback(nanobind::object callback) const;

  // Raises if a `with` block could not close the pool.
  void enter() const;
  // Waits for the GPU and releases all memory. Raises, without any change, for a process-wide pool,
  // while other threads are inside calls, and, unless `discard`, while allocations are live.
  void close(bool discard);
  // Called at the end of a `with` block; `kind` is the type of the block's exception.
  void leave(nanobind::handle kind);

  bool is_same_as(const Pool& other) const;
  std::size_t hash() const;
  // Has figures unless the pool cannot be asked, as in a forked child: never raises.
  std::string repr() const;

  // For the garbage collector.
  static int visit_callback(PyObject* self, visitproc visit, void* arg);
  static int clear_callback(PyObject* self);

 private:
  // A call in progress: close() must not take the pool away from it. Holds: the GIL.
  class Use {
   public:
    explicit Use(const Pool& pool);
    ~Use() { --pool_.calls_; }
    Use(const Use&) = delete;
    Use& operator=(const Use&) = delete;

   private:
    const Pool& pool_;
  };
  explicit Pool(int device) : device_(device) {}
  void require_private() const;
  std::uint64_t live_allocations() const;

  vpmm_pool* handle_ = nullptr;  // null: closed
  int device_ = 0;
  bool is_private_ = false;
  mutable int calls_ = 0;  // in progress
};

}  // namespace vpmm::python
