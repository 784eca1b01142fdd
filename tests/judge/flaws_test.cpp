// SPDX-License-Identifier: Apache-2.0
// judge: the judge itself: pools with a flaw are found out, and the program that shows it is made
// small.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "driver/forwarding.hpp"
#include "hunt/program/shrink.hpp"
#include "judge/flaw.hpp"
#include "property/dice.hpp"
#include "property/world.hpp"

namespace vpmm::judge {
namespace {

constexpr std::uint64_t kMostPrograms = 60;
constexpr std::uint64_t kFirstGuarded = 100;  // some of these programs have guard mode
constexpr std::size_t kOperations = 600;
constexpr std::size_t kMostRuns = 10'000;

// Every `n`-th call of a kind goes wrong.
class Rarely {
 public:
  explicit Rarely(std::uint64_t n) : n_(n) {}
  bool now() { return ++calls_ % n_ == 0; }

 private:
  const std::uint64_t n_;
  std::uint64_t calls_ = 0;
};

class HandsOutTwice final : public Flaw {
  Result<DevicePtr> allocated(context::Context& pool, Result<DevicePtr> result) override {
    if (result && rarely_.now() && pool.query(last_)) return std::exchange(last_, result.value());
    if (result) last_ = result.value();
    return result;
  }
  Rarely rarely_{5};
  DevicePtr last_{4096};
};

class Misaligns final : public Flaw {
  Result<DevicePtr> allocated(context::Context& /*pool*/, Result<DevicePtr> result) override {
    if (result && rarely_.now()) return result.value() + 64;
    return result;
  }
  Rarely rarely_{5};
};

class FailsWithoutNeed final : public Flaw {
  bool refuses() override {
    const bool does = rarely_.now();
    failures_ += does ? 1 : 0;
    return does;
  }
  observe::Statistics statistics(context::Context& pool) override {
    observe::Statistics figures = pool.reports().statistics();
    figures.failed_allocations += failures_;
    return figures;
  }
  Rarely rarely_{5};
  std::uint64_t failures_ = 0;
};

class ForgetsToFree final : public Flaw {
  Result<void> deallocate(context::Context& pool, DevicePtr ptr, pool::Stream stream) override {
    if (rarely_.now()) return {};
    return pool.deallocate(ptr, stream);
  }
  Rarely rarely_{5};
};

class ForgetsAUse final : public Flaw {
  Result<void> record_use(context::Context& pool, DevicePtr ptr,
                          driver::StreamHandle stream) override {
    if (rarely_.now()) return {};
    return pool.record_use(ptr, stream);
  }
  Rarely rarely_{2};
};

class Miscounts final : public Flaw {
  observe::Statistics statistics(context::Context& pool) override {
    observe::Statistics figures = pool.reports().statistics();
    if (figures.live_bytes > kMiB) ++figures.live_bytes;
    return figures;
  }
};

class MapsTooMuch final : public Flaw {
  observe::Statistics statistics(context::Context& pool) override {
    observe::Statistics figures = pool.reports().statistics();
    if (figures.chunks > 4) figures.mapped_bytes += 64 * kGiB;
    return figures;
  }
};

// Takes every graph for destroyed.
class ForgetsGraphs final : public Flaw {
  Result<void> deallocate(context::Context& pool, DevicePtr ptr, pool::Stream stream) override {
    constexpr std::uint64_t kMostCaptures = 30;
    const auto freed = pool.deallocate(ptr, stream);
    for (std::uint64_t id = 1; id < kMostCaptures; ++id)
      static_cast<void>(pool.streams().capture_release(
          driver::CaptureId{id}));  // of most there is nothing to release
    return freed;
  }
};

// As if the exporter did not keep the leases of another process.
class ForgetsLeases final : public Flaw {
  void leased(context::Context& pool, context::ShareId share) override {
    if (rarely_.now()) pool.sharing().end_lease(share, context::Holder::importer);
  }
  Rarely rarely_{3};
};

// As if the exporter did not notice that another process closes memory, or is dead.
class KeepsLeases final : public Flaw {
  void leased(context::Context& pool, context::ShareId share) override {
    if (rarely_.now()) static_cast<void>(pool.sharing().lease(share, 0, 1));
  }
  Rarely rarely_{3};
};

// A flaw of the pools' driver.
template <typename D>
class OfDriver final : public Flaw {
  driver::Driver& driver(driver::Driver& inner) override {
    drivers_.push_back(std::make_unique<D>(inner));
    return *drivers_.back();
  }
  std::vector<std::unique_ptr<driver::Driver>> drivers_;  // one for each pool
};

class WaitsForNothing final : public driver::ForwardingDriver {
  using ForwardingDriver::ForwardingDriver;
  driver::CuResult stream_wait_event(driver::StreamHandle /*stream*/,
                                     driver::EventHandle /*event*/) override {
    return driver::CuResult::success;
  }
};

class BelievesEvents final : public driver::ForwardingDriver {
  using ForwardingDriver::ForwardingDriver;
  driver::CuResult event_query(driver::EventHandle event) override {
    const driver::CuResult result = ForwardingDriver::event_query(event);
    return result == driver::CuResult::not_ready ? driver::CuResult::success : result;
  }
};

class KeepsEvents final : public driver::ForwardingDriver {
  using ForwardingDriver::ForwardingDriver;
  driver::CuResult event_destroy(driver::EventHandle /*event*/) override {
    return driver::CuResult::success;
  }
};

// Flaws of guard mode know its memory by the filling of margins.
constexpr std::uint8_t kFilling = 0xA5;

// Until its addresses go.
class KeepsGuardedMemory final : public driver::ForwardingDriver {
  using ForwardingDriver::ForwardingDriver;
  driver::CuResult memset_d8_async(DevicePtr to, std::uint8_t value, Bytes size,
                                   driver::StreamHandle stream) override {
    if (value == kFilling) margins_.push_back(to);
    return ForwardingDriver::memset_d8_async(to, value, size, stream);
  }
  driver::CuResult mem_unmap(AddressRange range) override {
    const bool is_guarded = std::any_of(margins_.begin(), margins_.end(),
                                        [&](DevicePtr each) { return range.contains(each); });
    if (!is_guarded) return ForwardingDriver::mem_unmap(range);
    kept_.push_back(range);
    return driver::CuResult::success;
  }
  driver::CuResult mem_address_free(AddressRange range) override {
    std::erase_if(kept_, [&](AddressRange each) {
      return range.contains(each) && ForwardingDriver::mem_unmap(each) == driver::CuResult::success;
    });
    return ForwardingDriver::mem_address_free(range);
  }
  std::vector<DevicePtr> margins_;
  std::vector<AddressRange> kept_;
};

class FindsMarginsWhole final : public driver::ForwardingDriver {
  using ForwardingDriver::ForwardingDriver;
  driver::CuResult memcpy_device_to_host_async(void* to, DevicePtr from, Bytes size,
                                               driver::StreamHandle stream) override {
    constexpr Bytes kMost = 4 * kKiB;
    if (size > kMost) return ForwardingDriver::memcpy_device_to_host_async(to, from, size, stream);
    std::memset(to, kFilling, size);
    return driver::CuResult::success;
  }
};

class FillsNoMargin final : public driver::ForwardingDriver {
  using ForwardingDriver::ForwardingDriver;
  driver::CuResult memset_d8_async(DevicePtr to, std::uint8_t value, Bytes size,
                                   driver::StreamHandle stream) override {
    if (value == kFilling) return driver::CuResult::success;
    return ForwardingDriver::memset_d8_async(to, value, size, stream);
  }
};

// Of the first program that finds the flaw, made small: the kind of its failure, and the number of
// its operations.
enum class Importer { stream, process };
template <typename F>
std::pair<std::string, std::size_t> found(Importer importer, std::uint64_t first_seed) {
  const hunt::Verdict verdict = [](const property::Program& program) {
    F flaw;
    return property::failure_of(program, {.operations_per_check = 1, .flaw = &flaw});
  };
  for (std::uint64_t seed = first_seed; seed < first_seed + kMostPrograms; ++seed) {
    property::Program program = property::Dice(seed).program_within(kOperations);
    if (importer == Importer::process) property::add_importer(program, seed);
    const std::string failure = verdict(program);
    if (failure.empty()) continue;
    const property::Program few = hunt::shrunk(program, failure, verdict, kMostRuns);
    return {hunt::kind_of(verdict(few)), few.operations.size()};
  }
  return {"", 0};
}

template <typename F>
void expect_found(const std::string& kind, std::size_t most_operations,
                  Importer importer = Importer::stream, std::uint64_t first_seed = 1) {
  const auto [failure, operations] = found<F>(importer, first_seed);
  EXPECT_EQ(failure, kind);
  EXPECT_LE(operations, most_operations);
}

TEST(JudgeOfFlaws, memory_that_is_handed_out_twice_is_found) {
  expect_found<HandsOutTwice>("overlap", 6);
}

TEST(JudgeOfFlaws, an_address_that_is_not_aligned_is_found) {
  expect_found<Misaligns>("alignment", 6);
}

TEST(JudgeOfFlaws, a_failure_without_need_is_found) {
  expect_found<FailsWithoutNeed>("refused", 6);
}

TEST(JudgeOfFlaws, a_free_that_is_lost_is_found) { expect_found<ForgetsToFree>("figures", 12); }

TEST(JudgeOfFlaws, a_use_that_is_forgotten_is_found) { expect_found<ForgetsAUse>("hazard", 40); }

TEST(JudgeOfFlaws, memory_of_a_graph_that_is_handed_out_is_found) {
  expect_found<ForgetsGraphs>("hazard", 8);
}

TEST(JudgeOfFlaws, a_byte_too_many_is_found) { expect_found<Miscounts>("figures", 2); }

TEST(JudgeOfFlaws, memory_beyond_the_limit_is_found) { expect_found<MapsTooMuch>("figures", 12); }

TEST(JudgeOfFlaws, a_lease_that_is_not_kept_is_found) {
  expect_found<ForgetsLeases>("hazard", 8, Importer::process);
}

TEST(JudgeOfFlaws, a_lease_that_is_never_given_back_is_found) {
  expect_found<KeepsLeases>("leased", 8, Importer::process);
}

// Counts openings, refusals and kills of the other process, and runs each program again without its
// importer.
TEST(JudgeOfImporters, openings_refusals_and_kills_come_to_pass) {
  std::uint64_t leases = 0, ends = 0, kills = 0, refusals = 0;
  for (std::uint64_t seed = 1; seed <= kMostPrograms; ++seed) {
    property::Program program = property::Dice(seed).program_within(kOperations);
    property::add_importer(program, seed);
    property::World world(program.scene);
    world.run(program.operations);
    world.finish();
    EXPECT_EQ(world.failure(), "") << "seed " << seed;
    const auto done = [&](const property::Operation& each) {
      return world.figures().done[each.index()];
    };
    leases += done(property::Lease{});
    ends += done(property::EndLease{});
    kills += done(property::KillImporter{});
    refusals += world.figures().unleased;
    program.scene.has_importer = false;
    EXPECT_EQ(property::failure_of(program, {}), "") << "seed " << seed;
  }
  EXPECT_GT(leases, 500u);
  EXPECT_GT(ends, 500u);
  EXPECT_GT(kills, 50u);
  EXPECT_GT(refusals, 50u);
}

TEST(JudgeOfImporters, a_kill_is_made_small_to_one_outside_an_opening) {
  const hunt::Verdict verdict = [](const property::Program& program) {
    return program.operations.empty() ? "" : "killed: once";
  };
  const property::Program few =
      hunt::shrunk({{}, {property::KillImporter{1, 2, true}}}, "killed: once", verdict, kMostRuns);
  ASSERT_EQ(few.operations.size(), 1u);
  EXPECT_EQ(property::to_code(few.operations[0]),
            property::to_code(property::KillImporter{0, 0, false}));
}

TEST(JudgeOfFlaws, a_wait_that_is_left_out_is_found) {
  expect_found<OfDriver<WaitsForNothing>>("hazard", 30);
}

TEST(JudgeOfFlaws, an_event_that_is_believed_too_early_is_found) {
  expect_found<OfDriver<BelievesEvents>>("hazard", 12);
}

TEST(JudgeOfFlaws, an_event_that_is_left_behind_is_found) {
  expect_found<OfDriver<KeepsEvents>>("left", 6);
}

TEST(JudgeOfFlaws, guarded_memory_that_stays_mapped_is_found) {
  expect_found<OfDriver<KeepsGuardedMemory>>("guard", 6, Importer::stream, kFirstGuarded);
}

TEST(JudgeOfFlaws, an_overrun_that_is_not_told_is_found) {
  expect_found<OfDriver<FindsMarginsWhole>>("guard", 6, Importer::stream, kFirstGuarded);
}

TEST(JudgeOfFlaws, an_overrun_that_is_told_and_never_was_is_found) {
  expect_found<OfDriver<FillsNoMargin>>("guard", 6, Importer::stream, kFirstGuarded);
}

}  // namespace
}  // namespace vpmm::judge
