// pool: who is told where chunks are.
#pragma once

#include "base/address.hpp"
#include "base/mutex.hpp"

namespace vpmm::pool {

// Told once it is so: of a plan that was undone, nothing. A chunk that moves leaves its old place
// first; there the driver unmaps it later, when work that was queued before is over. What could not
// be undone is nobody's and not told of.
class MappingObserver {
 public:
  // `before`: where it was; null: it is new.
  virtual void on_map(AddressRange chunk, DevicePtr before) noexcept VPMM_REQUIRES(pool_lock) = 0;
  enum class Fate { lives_on, given_back };
  virtual void on_unmap(AddressRange chunk, Fate fate) noexcept VPMM_REQUIRES(pool_lock) = 0;

 protected:
  ~MappingObserver() = default;
};

}  // namespace vpmm::pool
