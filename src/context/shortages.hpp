// SPDX-License-Identifier: Apache-2.0
// context: reports of requests that failed for want of memory.
#pragma once

#include <string>

#include "context/drawing.hpp"
#include "context/entrance.hpp"
#include "context/parts.hpp"
#include "context/totals.hpp"
#include "report/shortage_report.hpp"

namespace vpmm::context {

class Shortages {
 public:
  Shortages(Parts& parts, Entrance& entrance, Totals& totals, const Drawing& drawing)
      : parts_(parts),
        device_(parts.device),
        entrance_(entrance),
        totals_(totals),
        drawing_(drawing) {}

  // Replaces the message of `error` by a report of the pool as it is now; other threads may have
  // changed it since the failure. Without host memory the message keeps only the reason.
  void explain(const pool::Request& request, Error& error) noexcept;
  // Adds the holders of the tag's memory to the message. Without host memory it stays.
  void add_holders_to(std::uint32_t tag, Error& error) noexcept;

 private:
  report::Shortage look_at(const pool::Request& request, const std::string& reason) const
      VPMM_REQUIRES(pool_lock);
  // `tag`: counts only memory of that tag, also suspended; 0: all memory.
  void add_holders(report::Shortage& shortage, std::uint32_t tag) const VPMM_REQUIRES(pool_lock);
  void add_pending(report::Shortage& shortage) const VPMM_REQUIRES(pool_lock);

  Parts& parts_;
  Device& device_;
  Entrance& entrance_;
  Totals& totals_;
  const Drawing& drawing_;
};

}  // namespace vpmm::context
