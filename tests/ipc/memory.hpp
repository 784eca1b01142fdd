// SPDX-License-Identifier: Apache-2.0
// ipc tests: allocations of host memory that fail.
#pragma once

#include <cstdint>

#include "driver/forwarding.hpp"

namespace vpmm::ipc_test {

// Of all in the process but those that a SparedDriver makes. `others`: of threads that are not the
// main one, as the exporter's is.
enum class Of { main_thread, others };
enum class Repeat { once, from_then_on };

// The n-th `new` from now on throws std::bad_alloc.
void fail_allocation(std::uint64_t nth, Of of, Repeat repeat = Repeat::once);
// From now on each of at least this many bytes fails, of any thread; 0: none.
void fail_large_allocations(std::uint64_t bytes);
// From now on none fails. How many did.
std::uint64_t stop_failing();

// Host memory that another driver asks for is no concern of ours.
class SparedDriver final : public driver::ForwardingDriver {
 public:
  using ForwardingDriver::ForwardingDriver;

 private:
  std::optional<driver::CuResult> before(driver::Call call) override;
  void after(driver::Call call, driver::CuResult result, std::uint64_t duration_ns) override;
};

}  // namespace vpmm::ipc_test
