// SPDX-License-Identifier: Apache-2.0
// tests: a driver that knows which allocations have begun and not ended, as the pool tells it.
#pragma once

#include <set>
#include <utility>
#include <vector>

#include "driver/forwarding.hpp"
#include "pool/request.hpp"

namespace vpmm::test {

// Passes all on to the hazard checker. For calls of one thread: it has no lock of its own.
class WatchingDriver final : public driver::ForwardingDriver, private driver::MemoryObserver {
 public:
  explicit WatchingDriver(Driver& inner)
      : ForwardingDriver(inner), checker_(*inner.memory_observer()) {}
  driver::MemoryObserver* memory_observer() override { return this; }

  using Told = std::pair<AddressRange, pool::Stream>;  // nullopt: any stream
  std::set<DevicePtr> live;
  std::vector<Told> begun, ended;
  int wrong = 0;  // begins of what lives, and ends of what does not

 private:
  void on_allocate(AddressRange range, driver::StreamHandle stream) override {
    begin(range, stream);
    checker_.on_allocate(range, stream);
  }
  void on_allocate_any_stream(AddressRange range) override {
    begin(range, std::nullopt);
    checker_.on_allocate_any_stream(range);
  }
  void on_deallocate(AddressRange range, driver::StreamHandle stream) override {
    end(range, stream);
    checker_.on_deallocate(range, stream);
  }
  void on_deallocate_any_stream(AddressRange range) override {
    end(range, std::nullopt);
    checker_.on_deallocate_any_stream(range);
  }
  void begin(AddressRange range, const pool::Stream& stream) {
    wrong += live.insert(range.begin).second ? 0 : 1;
    begun.emplace_back(range, stream);
  }
  void end(AddressRange range, const pool::Stream& stream) {
    wrong += live.erase(range.begin) == 1 ? 0 : 1;
    ended.emplace_back(range, stream);
  }

  driver::MemoryObserver& checker_;
};

}  // namespace vpmm::test
