// SPDX-License-Identifier: Apache-2.0
// context: allocations that other processes may map, and their holders.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/address.hpp"
#include "base/host_memory.hpp"
#include "base/mutex.hpp"
#include "context/allocation_info.hpp"
#include "context/device.hpp"
#include "context/owners.hpp"

namespace vpmm::context {

Error not_inside(DevicePtr ptr);  // invalid_pointer

// Note [Shared memory is kept until everybody let go]
// Another process maps the chunks behind an allocation, and no stamp covers its work. So while a
// handle of this process or an importer holds the allocation, a free only marks its entry: its
// region, or block of a page, and the chunks stay in place. When the last holder lets go, the
// memory is freed, behind all work queued so far. From its first export on, frees of the allocation
// take the pool's lock, like frees of memory used on several streams; the rest of the fast path
// does not know shares.
//
// Invariant: a freed entry has a holder.
class Shares {
 public:
  Shares(Device& device, arena::Arenas& arenas)
      : device_(device), arenas_(arenas), owners_(device, arenas) {}

  // `of`: allocation of the pool around the range.
  Result<SharedRange> share(const AllocationInfo& of, AddressRange range) VPMM_REQUIRES(pool_lock);
  Result<SharedChunks> lease(ShareId id, Bytes offset, Bytes size) VPMM_REQUIRES(pool_lock);
  // Returns an allocation to free now, after its last holder let go.
  std::optional<DevicePtr> end_lease(ShareId id, Holder holder) VPMM_REQUIRES(pool_lock);
  // Call before a free. Returns true if the allocation has holders: it is marked, and its end must
  // wait.
  bool keep(DevicePtr begin) VPMM_REQUIRES(pool_lock);
  bool is_kept(DevicePtr begin) const VPMM_REQUIRES(pool_lock);
  // Text that names a holder of memory inside the range; empty: none.
  std::string holder_in(AddressRange range) const VPMM_REQUIRES(pool_lock);
  Bytes freed_bytes() const VPMM_REQUIRES(pool_lock);  // freed, kept for holders
  std::string validate() const VPMM_REQUIRES(pool_lock);

 private:
  struct Share {
    ShareId id{};
    AddressRange range;         // the allocation
    std::uint64_t handles = 0;  // exports of this process in use
    std::uint64_t imports = 0;  // by other processes
    bool is_freed = false;
    bool is_held() const { return handles + imports != 0; }
  };
  bool mark_used_everywhere(DevicePtr begin) VPMM_REQUIRES(pool_lock);
  Share& find_or_add(AddressRange allocation) VPMM_REQUIRES(pool_lock);
  Share* find(DevicePtr begin) VPMM_REQUIRES(pool_lock);
  Share* find(ShareId id) VPMM_REQUIRES(pool_lock);
  void erase(const Share& share) VPMM_REQUIRES(pool_lock);

  Device& device_;
  arena::Arenas& arenas_;
  const Owners owners_;
  Map<DevicePtr, Share> by_begin_ VPMM_GUARDED_BY(pool_lock);
  HashMap<std::uint64_t, DevicePtr> by_id_ VPMM_GUARDED_BY(pool_lock);
};

}  // namespace vpmm::context
