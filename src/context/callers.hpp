// context: finding out who calls.
#pragma once

#include "base/mutex.hpp"
#include "base/result.hpp"
#include "context/captures.hpp"
#include "context/context.hpp"
#include "pool/request.hpp"
#include "time/timelines.hpp"

namespace vpmm::context {

class Callers {
 public:
  Callers(driver::Driver& driver, time::Timelines& timelines, Captures& captures)
      : driver_(driver), timelines_(timelines), captures_(captures) {}

  // `bound`: the timeline of a bound stream, which is not asked who it is.
  Result<pool::Caller> identify(const Stream& stream, const time::TimelineId* bound) VPMM_REQUIRES(pool_lock);

 private:
  Result<void> read_capture(pool::Caller& caller) VPMM_REQUIRES(pool_lock);

  driver::Driver& driver_;
  time::Timelines& timelines_;
  Captures& captures_;
};

}  // namespace vpmm::context
