// pool: who is told where chunks are.
#pragma once

#include "base/address.hpp"
#include "base/mutex.hpp"

namespace vpmm::pool {

// Told once it is so: of a plan that was undone, nothing. A chunk that moves leaves its old place first; there the
// driver unmaps it later, when work that was queued before is over. What could not be undone is nobody's and not told
// of.
class MappingObserver {
 public:
  virtual void on_map(AddressRange chunk) noexcept VPMM_REQUIRES(pool_lock) = 0;
  virtual void on_unmap(AddressRange chunk) noexcept VPMM_REQUIRES(pool_lock) = 0;

 protected:
  ~MappingObserver() = default;
};

}  // namespace vpmm::pool
