// SPDX-License-Identifier: Apache-2.0
// tests: what an allocation held is checked at the end of its life, whatever became of it in
// between.
#include "replay/use_checker.hpp"

#include <gtest/gtest.h>

#include "driver/sim/sim_driver.hpp"
#include "replay/session.hpp"

namespace vpmm::replay {
namespace {

using driver::CuResult;

class UseCheckerTest : public testing::Test {
 protected:
  void open(std::size_t streams, std::uint64_t lag_ns = 500'000) {
    driver::sim::SimOptions options;
    options.lag_ns = lag_ns;
    sim_ = std::make_unique<driver::sim::SimDriver>(options);
    session_ = Session::open(*sim_, streams).value();
    checker_ = UseChecker::create(*sim_, session_->streams(), 1).value();
  }
  Use allocate(std::size_t allocation, Bytes bytes, std::size_t stream = 0) {
    DevicePtr ptr{};
    EXPECT_EQ(sim_->mem_alloc(bytes, ptr), CuResult::success);
    return {allocation, {ptr, bytes}, stream};
  }
  void spoil(DevicePtr address, std::size_t stream = 0) {
    ASSERT_EQ(sim_->memset_d8_async(address, 0x11, 1, session_->stream(stream)), CuResult::success);
  }

  std::unique_ptr<driver::sim::SimDriver> sim_;
  std::unique_ptr<Session> session_;
  std::unique_ptr<UseChecker> checker_;
};

TEST_F(UseCheckerTest, finds_nothing_wrong_with_memory_that_was_left_alone) {
  open(1);
  for (const Bytes bytes : {Bytes{1}, Bytes{100}, 3 * kMiB, 100 * kMiB}) {
    const Use use = allocate(bytes % 1000, bytes);
    ASSERT_TRUE(checker_->first_use(use).ok());
    ASSERT_TRUE(checker_->last_use(use).ok());
  }
  ASSERT_TRUE(checker_->finish().ok());
  EXPECT_EQ(checker_->corruptions(), 0u);
  EXPECT_EQ(sim_->hazard_count(), 0u);
}

TEST_F(UseCheckerTest, counts_each_spot_that_changed) {
  open(1);
  const Use use = allocate(41, 6 * kMiB);
  ASSERT_TRUE(checker_->first_use(use).ok());
  spoil(use.memory.begin + 63);
  spoil(use.memory.begin + 4 * kMiB);
  spoil(use.memory.begin + 4 * kMiB + 5);
  spoil(use.memory.end() - 1);
  ASSERT_TRUE(checker_->last_use(use).ok());
  ASSERT_TRUE(checker_->finish().ok());
  EXPECT_EQ(checker_->corruptions(), 3u);
  ASSERT_EQ(checker_->findings().size(), 3u);
  EXPECT_EQ(checker_->findings()[1],
            "corruption: allocation 41 of the trace (counted from 0) lost what was written at byte "
            "4194304");
}

TEST_F(UseCheckerTest, notices_a_last_use_that_falls_on_memory_handed_on_too_early) {
  open(1);
  const Use first = allocate(0, 1000);
  const Use second{1, first.memory, 0};
  ASSERT_TRUE(checker_->first_use(first).ok());
  ASSERT_TRUE(checker_->first_use(second).ok());
  ASSERT_TRUE(checker_->last_use(first).ok());
  ASSERT_TRUE(checker_->last_use(second).ok());
  ASSERT_TRUE(checker_->finish().ok());
  EXPECT_EQ(checker_->corruptions(), 4u) << "both spots of both";
}

TEST_F(UseCheckerTest, keeps_a_bounded_list_of_findings) {
  open(1);
  for (std::size_t i = 0; i < 50; ++i) {
    const Use use = allocate(i, 64);
    ASSERT_TRUE(checker_->first_use(use).ok());
    spoil(use.memory.begin);
    ASSERT_TRUE(checker_->last_use(use).ok());
  }
  ASSERT_TRUE(checker_->finish().ok());
  EXPECT_EQ(checker_->corruptions(), 50u);
  EXPECT_LE(checker_->findings().size(), 5u);
}

// More uses than there are slots, on a GPU that lags far behind: slots are used again, but never
// too early.
TEST_F(UseCheckerTest, uses_its_host_memory_again_without_mixing_contents_up) {
  open(3, 1'000'000'000);
  std::vector<Use> uses;
  for (std::size_t i = 0; i < 12; ++i) uses.push_back(allocate(i, 64 * kMiB, i % 3));
  for (std::size_t round = 0; round < 500; ++round) {
    for (Use use : uses) {
      use.allocation += 100 * round;
      ASSERT_TRUE(checker_->first_use(use).ok());
      ASSERT_TRUE(checker_->last_use(use).ok());
    }
  }
  ASSERT_TRUE(checker_->finish().ok());
  EXPECT_EQ(checker_->corruptions(), 0u);
}

TEST_F(UseCheckerTest, serves_more_streams_than_it_has_batches_for_one) {
  open(200);
  for (std::size_t stream = 0; stream < 200; ++stream) {
    const Use use = allocate(stream, 4096, stream);
    ASSERT_TRUE(checker_->first_use(use).ok());
    ASSERT_TRUE(checker_->last_use(use).ok());
  }
  ASSERT_TRUE(checker_->finish().ok());
  EXPECT_EQ(checker_->corruptions(), 0u);
}

TEST_F(UseCheckerTest, leaves_no_event_behind) {
  open(2);
  const Use use = allocate(0, 4096, 1);
  ASSERT_TRUE(checker_->first_use(use).ok());
  checker_.reset();
  EXPECT_EQ(sim_->census().events, 0u);
}

}  // namespace
}  // namespace vpmm::replay
