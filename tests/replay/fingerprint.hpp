// SPDX-License-Identifier: Apache-2.0
// tests: a trace's allocator with a fingerprint of what it did.
#pragma once

#include <cstdint>
#include <memory>

#include "replay/machine.hpp"
#include "replay/trace_allocator.hpp"
#include "support/fingerprint_driver.hpp"

namespace vpmm::replay {

// A machine whose driver takes a fingerprint, and an allocator that adds what it hands out to it,
// up to the last event of a trace.
class FingerprintMachine final : public TraceMachine {
 public:
  explicit FingerprintMachine(std::unique_ptr<TraceMachine> inner)
      : inner_(std::move(inner)), driver_(inner_->driver()) {}

  driver::Driver& driver() override { return driver_; }
  void start() override { inner_->start(); }
  void wait_until(std::uint64_t program_ns, std::uint64_t driver_ns) override {
    inner_->wait_until(program_ns, driver_ns);
  }
  std::optional<std::uint64_t> hazard_count() const override { return inner_->hazard_count(); }
  std::vector<std::string> findings() const override { return inner_->findings(); }

  AllocatorRecipe watched(const AllocatorRecipe& recipe);  // this must outlive it
  std::uint64_t fingerprint() const { return driver_.taken(); }

 private:
  const std::unique_ptr<TraceMachine> inner_;
  test::FingerprintDriver driver_;
};

}  // namespace vpmm::replay
