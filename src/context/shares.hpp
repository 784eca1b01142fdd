// context: allocations that other processes may map, and who still holds them.
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

Error not_inside(DevicePtr ptr);  // any live allocation

// Note [Shared memory is kept until everybody let go]
// Another process maps the chunks behind an allocation, and no stamp of ours says when its work is
// done. So while a handle of this process or an importer holds the allocation, a free only notes
// that it is freed: the region, or the block of a page, stays what it is, and with it its chunks
// stay where they are. What the last of them lets go of is freed then, behind all work queued so
// far. From its first export on a free of the allocation takes the way through the pool's lock, as
// one does whose memory was used on several streams; nothing else on the fast path knows of shares.
//
// Invariant: an entry is freed only while somebody holds it.
class Shares {
 public:
  Shares(Device& device, arena::Arenas& arenas, const Owners& owners)
      : device_(device), arenas_(arenas), owners_(owners) {}

  // `of`: the allocation around the range, in the pool.
  Result<SharedRange> share(const AllocationInfo& of, AddressRange range) VPMM_REQUIRES(pool_lock);
  Result<SharedChunks> lease(ShareId id, Bytes offset, Bytes size) VPMM_REQUIRES(pool_lock);
  // The allocation that is to be freed now: nobody holds it any more.
  std::optional<DevicePtr> end_lease(ShareId id, Holder holder) VPMM_REQUIRES(pool_lock);
  // For a free of what may be shared. True: others still hold it, and that is noted, which is all
  // there is to do.
  bool keep(DevicePtr begin) VPMM_REQUIRES(pool_lock);
  bool is_kept(DevicePtr begin) const VPMM_REQUIRES(pool_lock);
  Bytes freed_bytes() const VPMM_REQUIRES(pool_lock);  // kept for holders only
  std::string validate() const VPMM_REQUIRES(pool_lock);

 private:
  struct Share {
    ShareId id{};
    AddressRange range;         // the allocation
    std::uint64_t handles = 0;  // exports of this process that have not ended
    std::uint64_t imports = 0;  // of other processes
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
  const Owners& owners_;
  Map<DevicePtr, Share> by_begin_ VPMM_GUARDED_BY(pool_lock);
  HashMap<std::uint64_t, DevicePtr> by_id_ VPMM_GUARDED_BY(pool_lock);
};

}  // namespace vpmm::context
