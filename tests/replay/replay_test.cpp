// SPDX-License-Identifier: Apache-2.0
// tests: a replay counts what a trace did, and finds out allocators that break their promise.
#include "replay/replay.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <utility>

#include "driver/driver_error.hpp"
#include "replay/driver_allocators.hpp"

namespace vpmm::replay {
namespace {

using observe::Trace;
using observe::TraceEvent;

class TraceText {
 public:
  TraceText& allocate(std::size_t allocation, Bytes bytes, std::size_t stream = 0) {
    sizes_.resize(std::max(sizes_.size(), allocation + 1));
    sizes_[allocation] = bytes;
    return add({TraceEvent::TraceKind::allocate, allocation, bytes, stream, time_us_});
  }
  TraceText& deallocate(std::size_t allocation, std::size_t stream = 0) {
    return add(
        {TraceEvent::TraceKind::deallocate, allocation, sizes_[allocation], stream, time_us_});
  }
  TraceText& wait_us(std::uint64_t us) {
    time_us_ += us;
    return *this;
  }
  Trace trace() {
    trace_.name = "test.csv";
    trace_.allocations = sizes_.size();
    return trace_;
  }

 private:
  TraceText& add(const TraceEvent& event) {
    trace_.events.push_back(event);
    trace_.streams = std::max(trace_.streams, event.stream + 1);
    time_us_ += 10;
    return *this;
  }
  Trace trace_;
  std::vector<Bytes> sizes_;
  std::uint64_t time_us_ = 0;
};

// A program with up to 60 live allocations of all sizes on three streams.
Trace random_trace(std::uint64_t seed) {
  std::mt19937_64 random(seed);
  TraceText text;
  std::vector<std::pair<std::size_t, std::size_t>> live;  // allocation, stream
  for (std::size_t next = 0; next < 400;) {
    if (live.size() < 60 && random() % 5 < 3) {
      const std::size_t stream = random() % 3;
      const Bytes bytes = random() % 4 == 0 ? random() % (2 * kMiB) : random() % (40 * kMiB);
      text.allocate(next, bytes, stream);
      live.emplace_back(next++, stream);
    } else if (!live.empty()) {
      std::swap(live[random() % live.size()], live.back());
      text.deallocate(live.back().first, random() % 8 == 0 ? random() % 3 : live.back().second);
      live.pop_back();
    }
    if (random() % 16 == 0) text.wait_us(random() % 2000);
  }
  return text.trace();
}

ReplayResult run(const Trace& trace, const AllocatorRecipe& recipe,
                 const SimMachineOptions& sim = {}) {
  const auto machine = make_sim_machine(sim);
  auto result = replay(trace, *machine, recipe, {});
  EXPECT_TRUE(result.ok()) << result.error().message;
  return result ? std::move(result).value() : ReplayResult{};
}

ReplayResult run(const Trace& trace, AllocatorKind kind, const SimMachineOptions& sim = {}) {
  return run(trace, allocator_recipe(kind, {}), sim);
}

class ReplayAllocators : public testing::TestWithParam<AllocatorKind> {};
INSTANTIATE_TEST_SUITE_P(, ReplayAllocators,
                         testing::Values(AllocatorKind::vpmm, AllocatorKind::vpmm_page,
                                         AllocatorKind::cuda, AllocatorKind::cuda_async),
                         [](const auto& parameter) {
                           std::string name = to_string(parameter.param);
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

TEST_P(ReplayAllocators, count_what_the_trace_did) {
  const Trace trace = TraceText()
                          .allocate(0, 3 * kMiB)
                          .allocate(1, 1000, 1)
                          .deallocate(0)
                          .allocate(2, 5 * kMiB)
                          .allocate(3, 0)
                          .deallocate(3)
                          .deallocate(2)
                          .trace();
  const ReplayResult result = run(trace, GetParam());
  EXPECT_EQ(result.trace, "test.csv");
  EXPECT_EQ(result.driver, "sim");
  EXPECT_EQ(result.allocator, to_string(GetParam()));
  EXPECT_EQ(result.operations, 7u);
  EXPECT_EQ(result.allocations, 4u);
  EXPECT_EQ(result.failed_allocations, 0u);
  EXPECT_EQ(result.peak_live_bytes, 5 * kMiB + 1000);
  EXPECT_EQ(result.peak_rounded_bytes, 6 * kMiB + 1024);
  EXPECT_GE(result.peak_mapped_bytes, result.peak_live_bytes);
  EXPECT_GT(result.driver_calls, 0u);
  EXPECT_GT(result.driver_ns, 0u);
  EXPECT_GT(result.worst_allocate_ns, 0u);
  EXPECT_GE(result.worst_allocate_ns, result.p99_allocate_ns);
  EXPECT_EQ(result.corruptions, 0u);
  EXPECT_EQ(result.hazards, 0u);
  EXPECT_TRUE(result.findings.empty()) << result.findings.front();
}

TEST_P(ReplayAllocators, keep_the_contents_of_a_random_program_on_three_streams) {
  for (std::uint64_t seed = 1; seed <= 3; ++seed) {
    const ReplayResult result = run(random_trace(seed), GetParam());
    EXPECT_EQ(result.corruptions, 0u) << "seed " << seed;
    EXPECT_EQ(result.hazards, 0u) << "seed " << seed;
    EXPECT_EQ(result.failed_allocations, 0u) << "seed " << seed;
    EXPECT_TRUE(result.findings.empty()) << "seed " << seed << ": " << result.findings.front();
  }
}

TEST_P(ReplayAllocators, have_memory_calls_by_kind_that_add_up_to_all_of_them) {
  const ReplayResult result = run(random_trace(4), GetParam());
  std::uint64_t calls = 0;
  std::uint64_t ns = 0;
  for (const driver::CallTimes& times : result.calls) {
    if (!driver::is_memory_call(times.call)) continue;
    calls += times.count;
    ns += times.total_ns;
  }
  EXPECT_EQ(calls, result.driver_calls);
  EXPECT_EQ(ns, result.driver_ns);
}

TEST_P(ReplayAllocators, give_the_same_figures_in_every_run) {
  const Trace trace = random_trace(9);
  const ReplayResult first = run(trace, GetParam());
  const ReplayResult second = run(trace, GetParam());
  EXPECT_EQ(first.peak_mapped_bytes, second.peak_mapped_bytes);
  EXPECT_EQ(first.driver_calls, second.driver_calls);
  EXPECT_EQ(first.driver_ns, second.driver_ns);
  EXPECT_EQ(first.worst_allocate_ns, second.worst_allocate_ns);
  EXPECT_EQ(first.p99_allocate_ns, second.p99_allocate_ns);
  EXPECT_EQ(first.mapped_chunks_peak, second.mapped_chunks_peak);
  EXPECT_EQ(first.plans, second.plans);
}

TEST_P(ReplayAllocators, count_what_does_not_fit_and_go_on) {
  const Trace trace = TraceText()
                          .allocate(0, 30 * kMiB)
                          .allocate(1, 50 * kMiB)
                          .deallocate(1)
                          .deallocate(0)
                          .wait_us(10'000)
                          .allocate(2, 50 * kMiB)
                          .deallocate(2)
                          .trace();
  SimMachineOptions small;
  small.capacity = 64 * kMiB;
  const ReplayResult result = run(trace, GetParam(), small);
  EXPECT_EQ(result.failed_allocations, 1u);
  EXPECT_EQ(result.allocations, 3u);
  EXPECT_EQ(result.operations, 6u);
  EXPECT_EQ(result.peak_live_bytes, 50 * kMiB);
  EXPECT_EQ(result.corruptions, 0u);
  EXPECT_EQ(result.hazards, 0u);
}

// One allocation by the driver, then the same memory again and again, as if every stream were
// always idle.
class OneAddress final : public TraceAllocator {
 public:
  explicit OneAddress(driver::Driver& driver) : driver_(driver) { driver_.mem_alloc(kBytes, ptr_); }
  ~OneAddress() override { driver_.mem_free(ptr_); }
  Result<DevicePtr> allocate(Bytes, driver::StreamHandle) override { return ptr_; }
  Result<void> deallocate(DevicePtr, driver::StreamHandle) override { return {}; }
  Result<TraceFootprint> footprint() override { return TraceFootprint{kBytes, 1, 0}; }

 private:
  static constexpr Bytes kBytes = 16 * kMiB;
  driver::Driver& driver_;
  DevicePtr ptr_{};
};

const AllocatorRecipe kOneAddress{
    "one-address", [](driver::Driver& driver) {
      return Result(std::unique_ptr<TraceAllocator>(std::make_unique<OneAddress>(driver)));
    }};

TEST(Replay, finds_the_corruption_when_two_live_allocations_share_memory) {
  const Trace trace =
      TraceText().allocate(0, kMiB).allocate(1, kMiB).deallocate(0).deallocate(1).trace();
  const ReplayResult result = run(trace, kOneAddress);
  EXPECT_GT(result.corruptions, 0u);
  EXPECT_FALSE(result.findings.empty());
}

TEST(Replay, finds_the_hazard_when_another_stream_gets_memory_that_is_still_in_use) {
  const Trace trace = TraceText()
                          .allocate(0, kMiB, 0)
                          .deallocate(0, 0)
                          .allocate(1, kMiB, 1)
                          .deallocate(1, 1)
                          .trace();
  const ReplayResult result = run(trace, kOneAddress);
  EXPECT_GT(result.hazards.value_or(0), 0u);
  EXPECT_TRUE(std::any_of(result.findings.begin(), result.findings.end(),
                          [](const std::string& text) { return text.rfind("hazard: ", 0) == 0; }));
}

TEST(Replay, finds_both_when_streams_share_live_memory) {
  const Trace trace = TraceText()
                          .allocate(0, kMiB, 0)
                          .allocate(1, kMiB, 1)
                          .wait_us(5000)
                          .deallocate(0, 0)
                          .deallocate(1, 1)
                          .trace();
  const ReplayResult result = run(trace, kOneAddress);
  EXPECT_GT(result.corruptions, 0u);
  EXPECT_GT(result.hazards.value_or(0), 0u);
}

TEST(Replay, orders_the_streams_before_a_free_on_another_one) {
  TraceText text;
  for (std::size_t i = 0; i < 50; ++i) text.allocate(i, 3 * kMiB, i % 2).deallocate(i, (i + 1) % 2);
  const ReplayResult result = run(text.trace(), kOneAddress);
  // Allocation i+1 is made on the stream that freed i, so one address is enough when frees are
  // ordered.
  EXPECT_EQ(result.hazards, 0u);
  EXPECT_EQ(result.corruptions, 0u);
}

// Counts what reaches the plain allocator behind it.
class Counting final : public TraceAllocator {
 public:
  struct Counts {
    std::size_t live = 0;
    std::size_t allocated = 0;
  };
  Counting(std::unique_ptr<TraceAllocator> inner, Counts& counts)
      : inner_(std::move(inner)), counts_(counts) {}
  Result<DevicePtr> allocate(Bytes bytes, driver::StreamHandle stream) override {
    ++counts_.live;
    ++counts_.allocated;
    return inner_->allocate(bytes, stream);
  }
  Result<void> deallocate(DevicePtr ptr, driver::StreamHandle stream) override {
    --counts_.live;
    return inner_->deallocate(ptr, stream);
  }
  Result<TraceFootprint> footprint() override { return inner_->footprint(); }

 private:
  std::unique_ptr<TraceAllocator> inner_;
  Counts& counts_;
};

TEST(Replay, gives_back_what_is_live_at_the_end_of_the_trace) {
  Counting::Counts counts;
  const auto make = [&counts](driver::Driver& driver) -> Result<std::unique_ptr<TraceAllocator>> {
    VPMM_TRY_ASSIGN(auto inner, make_plain_allocator(driver));
    return std::unique_ptr<TraceAllocator>(std::make_unique<Counting>(std::move(inner), counts));
  };
  run(TraceText().allocate(0, kMiB).allocate(1, 10).deallocate(0).allocate(2, 20, 1).trace(),
      {"counting", make});
  EXPECT_EQ(counts.allocated, 3u);
  EXPECT_EQ(counts.live, 0u);
}

// An allocator whose driver breaks.
class Breaking final : public TraceAllocator {
 public:
  Result<DevicePtr> allocate(Bytes, driver::StreamHandle) override {
    return driver::driver_error(driver::Call::mem_create, driver::CuResult::illegal_address);
  }
  Result<void> deallocate(DevicePtr, driver::StreamHandle) override { return {}; }
  Result<TraceFootprint> footprint() override { return TraceFootprint{}; }
};

TEST(Replay, stops_at_an_error_that_is_no_lack_of_memory) {
  const auto machine = make_sim_machine({});
  const auto make = [](driver::Driver&) -> Result<std::unique_ptr<TraceAllocator>> {
    return std::unique_ptr<TraceAllocator>(std::make_unique<Breaking>());
  };
  const auto result = replay(TraceText().allocate(0, 10).trace(), *machine, {"breaking", make}, {});
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.error().code, ErrorCode::poisoned);
}

TEST(Replay, tells_the_driver_time_of_the_first_half_of_the_events_from_the_rest) {
  TraceText text;
  for (std::size_t i = 0; i < 4; ++i) text.allocate(i, 8 * kMiB);
  for (std::size_t i = 0; i < 4; ++i) text.deallocate(i);
  const ReplayResult growing_first = run(text.trace(), AllocatorKind::vpmm);
  EXPECT_GT(growing_first.driver_ns, 0u);
  EXPECT_EQ(growing_first.driver_first_half_ns, growing_first.driver_ns);
  TraceText more;
  for (std::size_t i = 0; i < 4; ++i) more.allocate(i, 0);
  more.allocate(4, 8 * kMiB).allocate(5, 8 * kMiB).deallocate(4).deallocate(5);
  const ReplayResult growing_last = run(more.trace(), AllocatorKind::vpmm);
  EXPECT_GT(growing_last.driver_ns, 0u);
  EXPECT_EQ(growing_last.driver_first_half_ns, 0u);
}

TEST(Replay, stops_at_the_first_refusal_where_it_is_told_to) {
  SimMachineOptions small;
  small.capacity = 64 * kMiB;
  const auto machine = make_sim_machine(small);
  ReplayOptions options;
  options.on_refusal = OnRefusal::stop;
  const Trace trace = TraceText()
                          .allocate(0, 30 * kMiB)
                          .allocate(1, 50 * kMiB)
                          .deallocate(0)
                          .allocate(2, 8)
                          .trace();
  const auto result = replay(trace, *machine, allocator_recipe(AllocatorKind::vpmm, {}), options);
  ASSERT_TRUE(result.ok()) << result.error().message;
  EXPECT_EQ(result.value().failed_allocations, 1u);
  EXPECT_EQ(result.value().allocations, 2u);
}

TEST(Replay, rounds_what_lives_to_the_pages_it_is_told) {
  const auto machine = make_sim_machine({});
  ReplayOptions options;
  options.page_size = 16 * kMiB;
  const auto result = replay(TraceText().allocate(0, 17 * kMiB).allocate(1, 3 * kMiB).trace(),
                             *machine, allocator_recipe(AllocatorKind::cuda, {}), options);
  ASSERT_TRUE(result.ok()) << result.error().message;
  EXPECT_EQ(result.value().peak_rounded_bytes, 35 * kMiB);
}

TEST(Replay, reports_its_progress_up_to_the_end) {
  TraceText text;
  for (std::size_t i = 0; i < 1000; ++i) text.allocate(i, 8);
  const auto machine = make_sim_machine({});
  std::vector<std::size_t> seen;
  ReplayOptions options;
  options.progress = [&seen](std::size_t done, std::size_t total) {
    EXPECT_EQ(total, 1000u);
    seen.push_back(done);
  };
  ASSERT_TRUE(replay(text.trace(), *machine, kOneAddress, options).ok());
  ASSERT_GT(seen.size(), 2u);
  EXPECT_TRUE(std::is_sorted(seen.begin(), seen.end()));
  EXPECT_EQ(seen.back(), 1000u);
}

TEST(Replay, of_an_empty_trace_is_all_zeros) {
  const ReplayResult result = run(Trace{}, AllocatorKind::cuda);
  EXPECT_EQ(result.operations, 0u);
  EXPECT_EQ(result.driver_ns, 0u);
  EXPECT_EQ(result.hazards, 0u);
}

// The clock of the program goes on while the GPU lags: a free is complete before an allocation made
// long after it.
TEST(Replay, lets_the_recorded_time_pass_on_the_simulator) {
  TraceText quick;
  TraceText slow;
  for (std::size_t i = 0; i < 20; ++i) {
    quick.allocate(i, 8 * kMiB, i % 2).deallocate(i, i % 2);
    slow.allocate(i, 8 * kMiB, i % 2).deallocate(i, i % 2).wait_us(20'000);
  }
  SimMachineOptions lagging;
  lagging.lag_us = 10'000;
  const ReplayResult crowded = run(quick.trace(), AllocatorKind::cuda_async, lagging);
  const ReplayResult relaxed = run(slow.trace(), AllocatorKind::cuda_async, lagging);
  EXPECT_LT(relaxed.peak_mapped_bytes, crowded.peak_mapped_bytes);
}

// What a search for the smallest GPU relies on.
TEST_P(ReplayAllocators, do_the_same_without_contents) {
  struct Case {
    Bytes capacity;
    std::uint64_t lag_us;
  };
  for (const Case& each : {Case{139 * kGiB, 500}, Case{256 * kMiB, 500}, Case{139 * kGiB, 0},
                           Case{256 * kMiB, 20'000}}) {
    SimMachineOptions machine;
    machine.capacity = each.capacity;
    machine.lag_us = each.lag_us;
    const Trace trace = random_trace(7);
    const ReplayResult checked = run(trace, GetParam(), machine);
    machine.has_contents = false;
    const ReplayResult timed = run(trace, GetParam(), machine);
    EXPECT_EQ(timed.peak_mapped_bytes, checked.peak_mapped_bytes);
    EXPECT_EQ(timed.failed_allocations, checked.failed_allocations);
    EXPECT_EQ(timed.driver_calls, checked.driver_calls);
    EXPECT_EQ(timed.driver_ns, checked.driver_ns);
    EXPECT_EQ(timed.corruptions, 0u);
    EXPECT_FALSE(timed.hazards.has_value());
  }
}

TEST(ReplayCosts, an_idle_process_spends_less_in_the_driver_than_a_busy_one) {
  const Trace trace = random_trace(5);
  SimMachineOptions idle;
  idle.costs = CallCosts::idle;
  EXPECT_LT(run(trace, AllocatorKind::vpmm, idle).driver_ns,
            run(trace, AllocatorKind::vpmm).driver_ns);
}

}  // namespace
}  // namespace vpmm::replay
