// SPDX-License-Identifier: Apache-2.0
// pool: reserves address space.
#include "pool/address_space.hpp"

#include <algorithm>
#include <new>

#include "base/scope_exit.hpp"
#include "observe/log.hpp"
#include "pool/page_line.hpp"

namespace vpmm::pool {

// Reserves `va_size`, or the request if larger; halves the size, then lowers the alignment, while
// address space is short.
Result<void> add_reservation(Memory& memory, MutexLock& lock, Bytes at_least) {
  const Bytes least = round_up(at_least, memory.page_size());
  Bytes size = std::max(round_up(memory.config.va_size, memory.page_size()), least);
  // Aligns page runs at multiples of their length; the driver takes only powers of two.
  Bytes alignment = memory.page_alignment() *
                    (pages_stand_alone(memory.config, memory.page_size()) ? 1 : kPagesInLine);
  const auto reserve = [&]() VPMM_REQUIRES(pool_lock) {
    const Unlocked unlocked(lock);
    return memory.mapper.reserve(size, alignment);
  };
  Result<AddressRange> reserved = reserve();
  while (!reserved && reserved.error().code != ErrorCode::poisoned &&
         (size > least || alignment > memory.page_alignment())) {
    if (size > least)
      size = std::max(round_up(size / 2, memory.page_size()), least);
    else
      alignment = memory.page_alignment();
    reserved = reserve();
  }
  if (!reserved) return std::move(reserved.error());
  // Page tables are too large for the reserve of host memory, so bad_alloc is handled here.
  try {
    memory.reservations.push_back(reserved.value());
    memory.index.add_reservation(reserved.value());
    ScopeExit undo(
        [&]() VPMM_REQUIRES(pool_lock) { memory.index.remove_reservation(reserved.value()); });
    memory.chunks.cover(reserved.value());
    undo.dismiss();
  } catch (const std::bad_alloc&) {
    std::erase(memory.reservations, reserved.value());
    if (!memory.mapper.free_reservation(reserved.value()))
      observe::log(observe::LogLevel::warning, "the driver did not take {} reserved bytes back",
                   reserved.value().size);
    return no_host_memory();
  }
  return {};
}

}  // namespace vpmm::pool
