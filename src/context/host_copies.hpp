// SPDX-License-Identifier: Apache-2.0
// context: host copies of suspended arenas.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "base/address.hpp"
#include "base/function_ref.hpp"
#include "base/host_memory.hpp"
#include "base/mutex.hpp"
#include "host_copy/copier.hpp"
#include "host_copy/host_memory.hpp"
#include "pool/request.hpp"

namespace vpmm::context {

// Contents of one arena's live blocks. A call that copies holds it, too, so it outlives the arena
// meanwhile.
struct HostCopy {
  host_copy::HostMemory memory;
  Vector<host_copy::CopyPiece> pieces;  // one for each live block, by address; empty: no contents
  Bytes dropped = 0;                    // of freed blocks, given back to the system
  bool call_keeps = false;              // memory stays after a resume, whatever the tag says
  bool is_in_use = false;               // a call copies without the lock; it has pieces of its own
  Bytes held() const { return memory.size() - dropped; }
};

// Host copies by arena, also kept memory without contents.
class HostCopies {
 public:
  std::shared_ptr<HostCopy> find(pool::ArenaId arena) const VPMM_REQUIRES(pool_lock);
  void set(pool::ArenaId arena, std::shared_ptr<HostCopy> copy) VPMM_REQUIRES(pool_lock);
  // Returns the copy that is left out from now on; null: none.
  std::shared_ptr<HostCopy> take(pool::ArenaId arena) VPMM_REQUIRES(pool_lock);
  bool empty() const VPMM_REQUIRES(pool_lock) { return copies_.empty(); }
  // Drops copies of arenas that are gone. Requires: the device's context is current.
  void drop_unless(FunctionRef<bool(pool::ArenaId)> exists) VPMM_REQUIRES(pool_lock);
  // Drops the contents of the block that began there: it is freed.
  void drop_block(DevicePtr begin) VPMM_REQUIRES(pool_lock);
  // The host address of a range inside one block; null: no contents.
  std::byte* find(AddressRange part) const VPMM_REQUIRES(pool_lock);
  Bytes bytes() const VPMM_REQUIRES(pool_lock);
  template <typename F>
  void for_each(F&& visit) VPMM_REQUIRES(pool_lock) {
    for (const auto& [arena, copy] : copies_) visit(pool::ArenaId{arena}, *copy);
  }

 private:
  static host_copy::CopyPiece* piece_around(HostCopy& copy, DevicePtr at);

  Map<std::uint64_t, std::shared_ptr<HostCopy>> copies_ VPMM_GUARDED_BY(pool_lock);
};

}  // namespace vpmm::context
