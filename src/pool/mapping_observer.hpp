// SPDX-License-Identifier: Apache-2.0
// pool: interface told of each chunk's place.
#pragma once

#include "base/address.hpp"
#include "base/mutex.hpp"

namespace vpmm::pool {

// Called after a change is final; undone plans and quarantined memory are not reported. A moving
// chunk leaves its old place first; the driver unmaps that place later, when earlier queued work is
// over.
class MappingObserver {
 public:
  // `before`: the chunk's previous place; null: a new chunk.
  virtual void on_map(AddressRange chunk, DevicePtr before) noexcept VPMM_REQUIRES(pool_lock) = 0;
  enum class Fate { lives_on, given_back };
  virtual void on_unmap(AddressRange chunk, Fate fate) noexcept VPMM_REQUIRES(pool_lock) = 0;

 protected:
  ~MappingObserver() = default;
};

}  // namespace vpmm::pool
