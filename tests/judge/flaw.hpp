// SPDX-License-Identifier: Apache-2.0
// judge: where a test may break the pool on purpose, to see that the judge finds it.
#pragma once

#include <memory>

#include "base/result.hpp"
#include "context/context.hpp"
#include "driver/driver.hpp"
#include "observe/statistics.hpp"

namespace vpmm::judge {

// This one breaks nothing.
class Flaw {
 public:
  Flaw() = default;
  virtual ~Flaw() = default;
  Flaw(const Flaw&) = delete;
  Flaw& operator=(const Flaw&) = delete;

  // The driver that pools use; programs use `inner` itself.
  virtual driver::Driver& driver(driver::Driver& inner) { return inner; }
  virtual bool refuses() { return false; }  // the pool is not asked
  virtual Result<DevicePtr> allocated(context::Context& /*pool*/, Result<DevicePtr> result) {
    return result;
  }
  virtual Result<void> deallocate(context::Context& pool, DevicePtr ptr, pool::Stream stream) {
    return pool.deallocate(ptr, stream);
  }
  virtual Result<void> record_use(context::Context& pool, DevicePtr ptr,
                                  driver::StreamHandle stream) {
    return pool.record_use(ptr, stream);
  }
  // After a lease of another process.
  virtual void leased(context::Context& /*pool*/, context::ShareId /*share*/) {}
  virtual observe::Statistics statistics(context::Context& pool) {
    return pool.reports().statistics();
  }
};

}  // namespace vpmm::judge
