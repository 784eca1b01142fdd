// context: memory that other processes map: which chunks are behind it, and its free when the last of them let go.
#pragma once

#include "base/mutex.hpp"
#include "base/result.hpp"
#include "context/allocations.hpp"
#include "context/context.hpp"
#include "context/shares.hpp"

namespace vpmm::context {

class Sharing {
 public:
  Sharing(driver::DeviceOrdinal device, const Servers& servers, Shares& shares, Allocations& allocations,
          Prover& prover)
      : device_(device), servers_(servers), shares_(shares), allocations_(allocations), prover_(prover) {}

  // `of`: the allocation around the range.
  Result<SharedRange> share(const AllocationInfo& of, AddressRange range) VPMM_REQUIRES(pool_lock);
  Result<SharedChunks> lease(ShareId id, Bytes offset, Bytes size) VPMM_REQUIRES(pool_lock);
  void end_lease(ShareId id, Holder holder) VPMM_REQUIRES(pool_lock);

 private:
  bool mark_used_everywhere(DevicePtr begin) VPMM_REQUIRES(pool_lock);

  const driver::DeviceOrdinal device_;
  const Servers& servers_;
  Shares& shares_;
  Allocations& allocations_;
  Prover& prover_;
};

}  // namespace vpmm::context
