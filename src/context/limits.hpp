// SPDX-License-Identifier: Apache-2.0
// context: limits of a pool, memory given back, and help in a shortage.
#pragma once

#include <cstdint>
#include <optional>

#include "context/entrance.hpp"
#include "context/out_of_memory.hpp"
#include "context/parts.hpp"
#include "context/totals.hpp"

namespace vpmm::context {

class Limits {
 public:
  Limits(Parts& parts, Entrance& entrance, Totals& totals)
      : parts_(parts), device_(parts.device), entrance_(entrance), totals_(totals) {}

  // Gives idle memory back to the driver until at most `bytes_to_keep` are mapped, or none is idle.
  // Returns the bytes given back.
  Result<Bytes> trim(Bytes bytes_to_keep);
  Result<void> preallocate(Bytes bytes);  // maps at least this total
  void set_capacity(std::optional<Bytes> bytes);
  std::optional<Bytes> capacity() const;
  // Memory of the pool, within its capacity. free: largest possible request.
  Result<driver::MemInfo> memory_info();
  // Called before a request fails.
  OutOfMemoryCallbacks& out_of_memory_callbacks() { return out_of_memory_; }
  Result<void> remove_out_of_memory_callback(std::uint64_t id);
  // While held, the pool unmaps, releases and waits on the host only in a shortage. Pairs may nest
  // and overlap.
  void defer_cleanup_begin();
  Result<void> defer_cleanup_end();

  // Helps a request without memory in pool and GPU: asks neighbours for idle memory, once
  // (`has_asked`), then the callbacks. Returns true to try again.
  bool find_memory(const pool::Request& request, bool& has_asked);
  // Returns false for a request in an external arena.
  bool uses_gpu_memory(const pool::Request& request) const;

 private:
  Result<void> preallocate_mapped(Bytes bytes);
  Bytes missing_on_gpu(Bytes bytes) VPMM_REQUIRES(pool_lock);
  Bytes ask_for_idle(Bytes bytes);

  Parts& parts_;
  Device& device_;
  Entrance& entrance_;
  Totals& totals_;
  OutOfMemoryCallbacks out_of_memory_;  // has its own lock
};

}  // namespace vpmm::context
