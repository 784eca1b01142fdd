// SPDX-License-Identifier: Apache-2.0
// fault tests: operator new that fails on demand, for what the pool's own calls ask for.
#pragma once

#include <cstdint>
#include <optional>

#include "driver/forwarding.hpp"

namespace vpmm::fault {

// Of the calling thread. This binary replaces the global operator new; allocations outside of
// InsidePool, and those of the simulator inside of it, never fail and do not count.
class HostFaults {
 public:
  enum class Repeat { once, from_then_on };
  // The `n`-th allocation from now on fails, n >= 1, or all from it on.
  static void arm(std::uint64_t n, Repeat repeat);
  static void disarm();
  static std::uint64_t counted();  // since arm() or disarm()
  static std::uint64_t fired();    // likewise
};

// A call into the pool. Nests.
class InsidePool {
 public:
  InsidePool();
  ~InsidePool();
  InsidePool(const InsidePool&) = delete;
  InsidePool& operator=(const InsidePool&) = delete;
};

// Work of the test inside of such a call, as a listener's. Nests.
class Exempt {
 public:
  Exempt();
  ~Exempt();
  Exempt(const Exempt&) = delete;
  Exempt& operator=(const Exempt&) = delete;
};

// What the driver below does, and who observes memory for it, is not the pool's doing.
class ExemptDriver final : public driver::ForwardingDriver, private driver::MemoryObserver {
 public:
  explicit ExemptDriver(driver::Driver& inner)
      : ForwardingDriver(inner), observer_(inner.memory_observer()) {}
  driver::MemoryObserver* memory_observer() override {
    return observer_ == nullptr ? nullptr : this;
  }
  void sleep_ns(std::uint64_t ns) override;  // the simulator works meanwhile

 private:
  void on_allocate(AddressRange range, driver::StreamHandle stream) override;
  void on_allocate_any_stream(AddressRange range) override;
  void on_deallocate(AddressRange range, driver::StreamHandle stream) override;
  void on_deallocate_any_stream(AddressRange range) override;
  std::optional<driver::CuResult> before(driver::Call call) override;
  void after(driver::Call call, driver::CuResult result, std::uint64_t duration_ns) override;

  driver::MemoryObserver* const observer_;
};

}  // namespace vpmm::fault
