// SPDX-License-Identifier: Apache-2.0
// context: VPMM_FILL of new memory: whose memory is filled, on which stream, and how much of it.
#include <gtest/gtest.h>

#include "support/pool_world_arenas.hpp"
#include "support/pool_world_captures.hpp"

namespace vpmm::test {
namespace {

using driver::Call;

class FillOfNewMemory : public ::testing::Test {
 protected:
  static WorldOptions options() {
    WorldOptions options = adaptive_world();
    options.config.checks.fill_new = true;
    return options;
  }
  std::uint64_t fills() { return world.calls().count(Call::memset_d8_async); }

  PoolWorld world{options()};
  StreamHandle stream = world.stream();
};

TEST_F(FillOfNewMemory, is_queued_once_where_a_stream_may_queue_work) {
  for (const Bytes bytes : {Bytes{1000}, 300 * kKiB, 20 * kMiB}) {
    const std::uint64_t before = fills();
    const DevicePtr ptr = world.allocate(bytes, stream);
    EXPECT_EQ(fills(), before + 1) << bytes;
    for (const Bytes at : {Bytes{0}, bytes - 1}) {
      std::uint8_t byte = 0;
      ASSERT_EQ(world.sim().memcpy_device_to_host_async(&byte, ptr + at, 1, stream),
                driver::CuResult::success);
      world.sim().run_until_idle();
      EXPECT_EQ(byte, 0xFF) << at << " of " << bytes;
    }
  }
}

TEST_F(FillOfNewMemory, is_left_out_for_any_stream) {
  for (const Bytes bytes : {Bytes{1000}, 300 * kKiB, 20 * kMiB})
    world.allocate(bytes, std::nullopt);
  EXPECT_EQ(fills(), 0u);
}

// The graph would fill it again at every launch.
TEST_F(FillOfNewMemory, is_left_out_during_a_capture) {
  begin_capture(world, stream, driver::CaptureMode::relaxed);
  const DevicePtr ptr = world.allocate(20 * kMiB, stream);
  EXPECT_EQ(fills(), 0u);
  world.deallocate(ptr, stream);
  destroy(world, end_capture(world, stream));
}

// There a free without a stream waits for the legacy stream alone, and for what is known of use.
TEST(FillOfNewMemoryWithTheLegacyStream, is_over_when_the_memory_goes) {
  WorldOptions options = page_world();
  options.config.checks.fill_new = true;
  options.config.streams.any_stream = settings::AnyStreamOrder::legacy;
  PoolWorld world(options);
  const StreamHandle busy = world.stream();
  const DevicePtr other = world.allocate(kPage, busy);
  world.use(other, kPage, busy, kLongNs);
  world.deallocate(world.allocate(4 * kPage, busy), std::nullopt);
  world.sim().advance_host_ns(1'000'000);
  const StreamHandle next = world.stream();
  const DevicePtr ptr = world.allocate(4 * kPage, next);
  world.use(ptr, 4 * kPage, next);
  EXPECT_TRUE(world.pool().limits().trim(0).ok());
  world.check_hazards();
  world.deallocate(ptr, next);
  world.deallocate(other, busy);
}

}  // namespace
}  // namespace vpmm::test
