// python: the class Pool over a vpmm_pool.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>

#include "vpmm/vpmm.h"

namespace vpmm::python {

class Pool {
 public:
  Pool(int device, const nanobind::kwargs& settings);  // a private one
  Pool(Pool&& other) noexcept;
  Pool& operator=(Pool&&) = delete;
  ~Pool();  // waits for the GPU if the pool is private
  static Pool open_default(int device);
  static Pool configure_default(int device, const nanobind::kwargs& settings);

  vpmm_pool* handle() const { return handle_; }
  int device() const { return device_; }
  bool is_private() const { return is_private_; }

  std::uintptr_t allocate(std::size_t bytes, std::uintptr_t stream, std::size_t alignment) const;
  std::uintptr_t allocate_any_stream(std::size_t bytes, std::size_t alignment) const;
  void deallocate(std::uintptr_t ptr, std::uintptr_t stream) const;
  void deallocate_any_stream(std::uintptr_t ptr) const;
  void deallocate_deferred(std::uintptr_t ptr) const noexcept;
  void set_out_of_memory_callback(nanobind::object callback) const;

  // For the garbage collector.
  static int visit_callback(PyObject* self, visitproc visit, void* arg);
  static int clear_callback(PyObject* self);

 private:
  Pool(vpmm_pool* handle, int device) : handle_(handle), device_(device) {}

  vpmm_pool* handle_ = nullptr;
  int device_ = 0;
  bool is_private_ = false;
};

// Adds everything to the module.
void bind_pool(nanobind::module_& module);

}  // namespace vpmm::python
