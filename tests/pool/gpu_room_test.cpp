// SPDX-License-Identifier: Apache-2.0
// pool: what the GPU has room for, and when the driver is asked again.
#include "pool/gpu_room.hpp"

#include <gtest/gtest.h>

namespace vpmm::pool {
namespace {

constexpr std::uint64_t kNow = 5'000'000'000;

TEST(GpuRoom, covers_nothing_before_the_driver_was_asked) {
  const GpuRoom room(std::nullopt);
  EXPECT_FALSE(room.covers(0, 1));
  EXPECT_TRUE(room.is_old(1)) << "whatever the time is";
  EXPECT_TRUE(room.is_old(kNow));
}

TEST(GpuRoom, covers_half_of_what_is_free_until_it_is_asked_again) {
  GpuRoom room(std::nullopt);
  room.learn(100, 40, 0, kNow);
  EXPECT_TRUE(room.covers(100, 20));
  EXPECT_FALSE(room.covers(100, 21));
  EXPECT_TRUE(room.covers(110, 10)) << "what was created since counts";
  EXPECT_FALSE(room.covers(110, 11));
}

TEST(GpuRoom, covers_what_it_was_asked_for_up_to_all_that_is_free) {
  GpuRoom room(std::nullopt);
  room.learn(100, 40, 40, kNow);
  EXPECT_TRUE(room.covers(100, 40));
  EXPECT_FALSE(room.covers(100, 41));
}

TEST(GpuRoom, covers_nothing_where_less_is_free_than_it_was_asked_for) {
  GpuRoom room(std::nullopt);
  room.learn(100, 40, 41, kNow);
  EXPECT_FALSE(room.covers(100, 1)) << "so the next plan asks again";
  EXPECT_EQ(room.free(100), 40u);
}

TEST(GpuRoom, what_was_said_is_doubted_after_a_plan_failed) {
  GpuRoom room(std::nullopt);
  room.learn(100, 40, 0, kNow);
  room.doubt();
  EXPECT_FALSE(room.covers(100, 1));
}

TEST(GpuRoom, what_was_said_grows_old) {
  GpuRoom room(std::nullopt);
  room.learn(100, 40, 0, kNow);
  EXPECT_FALSE(room.is_old(kNow + GpuRoom::kKnownForNs));
  EXPECT_TRUE(room.is_old(kNow + GpuRoom::kKnownForNs + 1));
}

TEST(GpuRoom, what_is_free_shrinks_as_the_pool_grows_and_is_never_negative) {
  GpuRoom room(std::nullopt);
  room.learn(100, 40, 0, kNow);
  EXPECT_EQ(room.free(100), 40u);
  EXPECT_EQ(room.free(130), 10u);
  EXPECT_EQ(room.free(90), 50u) << "what the pool gave back";
  EXPECT_EQ(room.free(150), 0u);
  EXPECT_EQ(room.all(130), 140u);
  EXPECT_EQ(room.all(150), 150u);
}

TEST(GpuRoom, of_which_nothing_was_said_covers_nothing) {
  const GpuRoom room(std::nullopt);
  EXPECT_FALSE(room.covers(0, 1));
  EXPECT_EQ(room.free(0), 0u);
  EXPECT_EQ(room.all(7), 7u);
  EXPECT_TRUE(room.is_old(0));
}

TEST(GpuRoom, more_than_a_lowered_capacity_is_too_much) {
  GpuRoom room(120);
  EXPECT_EQ(room.above_capacity(119), 0u);
  EXPECT_EQ(room.above_capacity(120), 0u);
  EXPECT_EQ(room.above_capacity(121), 1u);
  room.set_capacity(20);
  EXPECT_EQ(room.above_capacity(120), 100u);
  room.set_capacity(std::nullopt);
  EXPECT_EQ(room.above_capacity(120), 0u);
}

TEST(GpuRoom, the_capacity_bounds_what_is_free) {
  GpuRoom room(120);
  EXPECT_EQ(room.below_capacity(100), 20u);
  EXPECT_EQ(room.below_capacity(130), 0u);
  room.learn(100, 40, 0, kNow);
  EXPECT_EQ(room.free(100), 20u);
  EXPECT_EQ(room.all(100), 120u);
  room.set_capacity(std::nullopt);
  EXPECT_EQ(room.free(100), 40u);
  EXPECT_EQ(room.below_capacity(100), std::numeric_limits<Bytes>::max());
}

}  // namespace
}  // namespace vpmm::pool
