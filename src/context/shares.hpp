// context: allocations that other processes may map, and who still holds them.
#pragma once

#include <cstdint>
#include <string>

#include "base/address.hpp"
#include "base/host_memory.hpp"
#include "context/context.hpp"

namespace vpmm::context {

// Note [Shared memory is kept until everybody let go]
// Another process maps the chunks behind an allocation, and no stamp of ours says when its work is done. So while a
// handle of this process or an importer holds the allocation, a free only notes that it is freed: the region, or the
// block of a page, stays what it is, and with it its chunks stay where they are. What the last of them lets go of is
// freed then, behind all work queued so far. From its first export on a free of the allocation takes the way through
// the pool's lock, as one does whose memory was used on several streams; nothing else on the fast path knows of shares.
//
// Holds: the context's lock. Invariant: an entry is freed only while somebody holds it.
class Shares {
 public:
  struct Share {
    ShareId id{};
    AddressRange range;         // the allocation
    std::uint64_t handles = 0;  // exports of this process that have not ended
    std::uint64_t imports = 0;  // of other processes
    bool is_freed = false;
    bool is_held() const { return handles + imports != 0; }
  };

  bool empty() const { return by_begin_.empty(); }
  Share& find_or_add(AddressRange allocation);
  Share* find(DevicePtr begin);
  const Share* find(DevicePtr begin) const;
  Share* find(ShareId id);
  void erase(const Share& share);
  Bytes freed_bytes() const;  // kept for holders only
  std::string validate() const;

 private:
  Map<DevicePtr, Share> by_begin_;
  HashMap<std::uint64_t, DevicePtr> by_id_;
};

}  // namespace vpmm::context
