// SPDX-License-Identifier: Apache-2.0
// replay: device 0's context, current on this thread, and one stream for each stream of a trace.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "base/result.hpp"
#include "driver/driver.hpp"

namespace vpmm::replay {

// Non-blocking streams, the trace's default stream too: on the GPU only the order of the trace's
// program remains.
class Session {
 public:
  // `driver` must outlive the session.
  static Result<std::unique_ptr<Session>> open(driver::Driver& driver, std::size_t stream_count);
  ~Session();  // on the thread that opened it; waits for the GPU
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  driver::StreamHandle stream(std::size_t index) const { return streams_[index]; }
  const std::vector<driver::StreamHandle>& streams() const { return streams_; }

  struct StreamOrder {
    std::size_t before = 0;
    std::size_t after = 0;
  };
  // Orders later work on stream `after` behind earlier work on `before`.
  Result<void> order(StreamOrder order);

 private:
  explicit Session(driver::Driver& driver) : driver_(driver) {}
  Result<void> enter();
  Result<void> make_streams(std::size_t count);

  driver::Driver& driver_;
  bool retained_ = false;
  driver::ContextHandle previous_{};
  std::vector<driver::StreamHandle> streams_;
};

}  // namespace vpmm::replay
