// SPDX-License-Identifier: Apache-2.0
// conformance: a busy stream, for checks of memory that the GPU still uses.
#pragma once

#include "conformance/conformance.hpp"
#include "driver/driver.hpp"

namespace vpmm::conformance {

// A non-blocking stream in the device's primary context, on the driver of the process. Throws
// vpmm::error.
class BusyStream {
 public:
  explicit BusyStream(const Subject& subject);
  ~BusyStream();
  BusyStream(const BusyStream&) = delete;
  BusyStream& operator=(const BusyStream&) = delete;

  void work_for_a_while();  // queues some ten milliseconds of work on memory of its own
  void copy(void* to, const void* from, std::size_t bytes);
  void wait();

 private:
  const Subject& subject_;
  driver::Driver& driver_;
  driver::StreamHandle stream_{};
  DevicePtr scratch_{};
};

}  // namespace vpmm::conformance
