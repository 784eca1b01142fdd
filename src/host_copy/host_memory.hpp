// SPDX-License-Identifier: Apache-2.0
// host_copy: large pieces of memory of the process, pinned for the GPU if asked.
#pragma once

#include <cstddef>
#include <optional>
#include <string>

#include "base/bytes.hpp"
#include "base/result.hpp"
#include "driver/driver.hpp"

namespace vpmm::host_copy {

// Bytes that the process can still take without running into the limits of the machine or of its
// control group. nullopt: not known. `root`: the folder with the system's files; a test has others.
std::optional<Bytes> available_host_bytes(const std::string& root = "");
// For tests: the answer from now on; nullopt: the real one.
void set_available_host_bytes(std::optional<Bytes> bytes);

// Aligned to and rounded up to huge pages, which the kernel is asked for. Nothing is touched, so
// nothing is taken, before the first write. Memory that ends while it is pinned stays allocated, as
// the GPU may still use it: unpin() it before.
class HostMemory {
 public:
  HostMemory() = default;
  // Throws std::bad_alloc.
  explicit HostMemory(Bytes size);
  ~HostMemory();
  HostMemory(HostMemory&& other) noexcept;
  HostMemory& operator=(HostMemory&& other) noexcept;

  std::byte* begin() const { return begin_; }
  Bytes size() const { return size_; }
  // Gives the whole small pages inside the range back to the system; they read as zero from then
  // on. Returns false for pinned memory, which stays.
  bool forget(std::byte* begin, Bytes bytes) const;

  // Takes the memory from the system now, by several threads, and keeps its contents.
  void touch() const noexcept;
  // Registers the memory with the context that is current and has this id; in a later context it
  // counts as not pinned. Does nothing if that is done already.
  Result<void> pin(driver::Driver& driver, driver::ContextId context);
  bool is_pinned_in(driver::ContextId context) const { return driver_ && pinned_in_ == context; }
  // Requires: the context of pin() is current, or gone.
  void unpin();

 private:
  // Calls `work(begin, bytes)` for shares of the memory; of some for none if threads are short.
  template <typename Work>
  void share_out(Work&& work) const noexcept;

  std::byte* begin_ = nullptr;
  Bytes size_ = 0;
  driver::Driver* driver_ = nullptr;  // null: not pinned
  driver::ContextId pinned_in_{};
};

}  // namespace vpmm::host_copy
