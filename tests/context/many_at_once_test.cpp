// SPDX-License-Identifier: Apache-2.0
// context: many requests and frees in one call, by each way that serves them.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <set>
#include <vector>

#include "support/pool_world_words.hpp"

namespace vpmm::test {
namespace {

using driver::Call;
using driver::CuResult;

// A block, a span, pages that a cache keeps, and pages that none keeps.
constexpr std::array<Bytes, 4> kSizes{5000, 200 * kKiB, 3 * kPage, 9 * kPage};

class ManyAtOnce : public ::testing::Test {
 protected:
  explicit ManyAtOnce(const WorldOptions& options = adaptive_world()) : world(options) {}

  std::vector<DevicePtr> allocate(const std::vector<Bytes>& sizes, pool::Stream on) {
    std::vector<DevicePtr> made(sizes.size(), DevicePtr{1});
    const Result<void> done = world.pool().allocate_many(sizes, on, made);
    EXPECT_TRUE(done.ok()) << message_of(done);
    EXPECT_EQ(world.pool().reports().validate(), "");
    return made;
  }
  void deallocate(const std::vector<DevicePtr>& all, pool::Stream on) {
    const Result<void> done = world.pool().deallocate_many(all, on);
    EXPECT_TRUE(done.ok()) << message_of(done);
    EXPECT_EQ(world.pool().reports().validate(), "");
  }
  // Calls that look which context is current.
  std::uint64_t visits() { return world.calls().count(Call::ctx_get_id); }

  PoolWorld world;
  StreamHandle stream = world.stream();
};

TEST_F(ManyAtOnce, of_an_only_stream_are_hits_where_memory_is_in_hand) {
  const std::vector<Bytes> sizes(3, 9 * kPage);
  const std::vector<DevicePtr> first = allocate(sizes, stream);
  deallocate(first, stream);
  world.wait();
  deallocate(allocate(sizes, stream), stream);
  world.wait();
  const observe::Statistics before = world.statistics();
  const std::uint64_t visited = visits();
  const std::vector<DevicePtr> again = allocate(sizes, stream);
  EXPECT_EQ(visits(), visited);
  EXPECT_EQ(std::set(again.begin(), again.end()), std::set(first.begin(), first.end()));
  const observe::Statistics now = world.statistics();
  EXPECT_EQ(now.allocations, before.allocations + 3);
  EXPECT_EQ(now.live_allocations, 3u);
  EXPECT_EQ(now.live_bytes, 3 * 9 * kPage);
  EXPECT_EQ(now.mapped_bytes, before.mapped_bytes);
  deallocate(again, stream);
  EXPECT_EQ(visits(), visited);
  EXPECT_EQ(world.statistics().live_allocations, 0u);
  EXPECT_EQ(world.statistics().deallocations, before.deallocations + 3);
}

// The stream's cache serves all but the largest when they come again.
TEST_F(ManyAtOnce, are_as_many_allocations_as_there_are_results) {
  for (const Bytes bytes : kSizes) {
    for (int round = 0; round < 3; ++round) {
      const std::vector<DevicePtr> made = allocate({bytes, bytes}, stream);
      EXPECT_EQ(world.statistics().live_allocations, 2u) << bytes;
      deallocate(made, stream);
      EXPECT_EQ(world.statistics().live_allocations, 0u) << bytes;
    }
    world.wait();
  }
}

TEST_F(ManyAtOnce, sizes_of_nothing_are_null_and_take_nothing) {
  const std::vector<DevicePtr> made = allocate({0, 5000, 0, 9 * kPage}, stream);
  EXPECT_TRUE(is_null(made[0]) && is_null(made[2]));
  EXPECT_FALSE(is_null(made[1]) || is_null(made[3]));
  EXPECT_EQ(world.statistics().live_allocations, 2u);
  deallocate(made, stream);
  EXPECT_EQ(world.statistics().live_allocations, 0u);
}

// Work of the null stream may use what it freed, also where its handle is 0.
TEST_F(ManyAtOnce, without_a_stream_get_nothing_of_the_null_stream_that_is_in_use) {
  for (const Bytes bytes : kSizes) {
    const DevicePtr in_use = world.allocate(bytes, driver::kNullStream);
    world.deallocate(world.allocate(bytes, driver::kNullStream), driver::kNullStream);
    world.use(in_use, bytes, driver::kNullStream, kLongNs);
    world.deallocate(in_use, driver::kNullStream);
    for (const DevicePtr ptr : allocate({bytes, bytes}, std::nullopt))
      world.use(ptr, bytes, stream);
  }
}

TEST_F(ManyAtOnce, freed_without_a_stream_wait_for_all_of_them) {
  for (const Bytes bytes : kSizes) {
    const std::vector<DevicePtr> made = allocate({bytes, bytes}, driver::kNullStream);
    ASSERT_TRUE(world.pool().streams().make_wait(stream, driver::kNullStream).ok());
    for (const DevicePtr ptr : made) world.use(ptr, bytes, stream, kLongNs);
    deallocate(made, std::nullopt);
    for (const DevicePtr ptr : allocate({bytes, bytes}, driver::kNullStream))
      world.use(ptr, bytes, driver::kNullStream);
  }
}

// New memory holds the filling, which a cache does not write.
class ManyThatAreFilled : public ManyAtOnce {
 protected:
  static WorldOptions options() {
    WorldOptions options = adaptive_world();
    options.config.checks.fill_new = true;
    return options;
  }
  ManyThatAreFilled() : ManyAtOnce(options()) {}
};

TEST_F(ManyThatAreFilled, hold_the_filling_also_where_memory_is_in_hand) {
  for (const Bytes bytes : kSizes) {
    for (int round = 0; round < 3; ++round) {
      const std::uint64_t filled = world.calls().count(Call::memset_d8_async);
      const std::vector<DevicePtr> made = allocate({bytes, bytes}, stream);
      EXPECT_EQ(world.calls().count(Call::memset_d8_async), filled + 2) << bytes;
      deallocate(made, stream);
    }
  }
}

TEST_F(ManyAtOnce, of_other_lengths_than_their_results_are_refused) {
  std::vector<DevicePtr> two(2);
  expect_error(world.pool().allocate_many(std::vector<Bytes>{1000}, stream, two),
               ErrorCode::invalid_argument, {"1 sizes and 2 results"});
  EXPECT_EQ(world.statistics().live_allocations, 0u);
}

TEST_F(ManyAtOnce, that_exceed_any_address_space_are_refused_beside_idle_memory) {
  for (int round = 0; round < 2; ++round) {
    world.deallocate(world.allocate(9 * kPage, stream), stream);
    world.wait();
  }
  for (const Bytes bytes : {~Bytes{0}, pool::kAddressSpace + 1}) {
    std::vector<DevicePtr> made(2, DevicePtr{1});
    expect_error(world.pool().allocate_many(std::vector<Bytes>{9 * kPage, bytes}, stream, made),
                 ErrorCode::out_of_memory);
    EXPECT_EQ(made, (std::vector<DevicePtr>(2)));
    EXPECT_EQ(world.statistics().live_allocations, 0u);
  }
}

}  // namespace
}  // namespace vpmm::test
