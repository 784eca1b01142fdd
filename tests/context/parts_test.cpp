// context: small requests when no page can be had: parts of pages serve them.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "support/pool_world_words.hpp"

namespace vpmm::testing {
namespace {

constexpr Bytes kSlice = kPage / 8;

// Eight pages, of which three allocations leave one slice free.
class Parts : public ::testing::Test {
 protected:
  static WorldOptions eight_pages() {
    WorldOptions options = adaptive_world();
    options.config.capacity = 8 * kPage;
    return options;
  }
  Parts() {
    for (DevicePtr& ptr : large) ptr = world.allocate(21 * kSlice, stream);
    EXPECT_EQ(world.statistics().allocated_bytes, 63 * kSlice);
  }
  std::string shortage(Bytes bytes) { return message_of(world.pool().allocate({bytes, 0, stream})); }

  PoolWorld world{eight_pages()};
  StreamHandle stream = world.stream();
  DevicePtr large[3]{};
};

TEST_F(Parts, a_small_request_is_served_by_one_when_no_page_can_be_had) {
  const DevicePtr small = world.allocate(100, stream);
  world.use(small, 100, stream);
  EXPECT_TRUE(is_aligned(small, kSlice));
  EXPECT_EQ(world.statistics().live_bytes, 63 * kSlice + 100);
  EXPECT_EQ(world.statistics().live_allocations, 4u);
  EXPECT_EQ(world.pool().query(small).value().requested, 100u);
  expect_error(world.pool().deallocate(small + 1, stream), ErrorCode::invalid_pointer, {hex(small)});
  world.deallocate(small, stream);
  expect_error(world.pool().deallocate(small, stream), ErrorCode::invalid_pointer);
  EXPECT_EQ(world.allocate(kSlice, stream), small) << "it is free for the next";
}

TEST_F(Parts, nothing_waits_and_nothing_is_mapped_for_one) {
  world.use(large[0], 21 * kSlice, stream, kLongNs);
  const StreamHandle other = world.stream();
  world.deallocate(large[1], std::nullopt);  // whole pages would come back, but not before the GPU is done
  const std::uint64_t created = world.calls().count(driver::Call::mem_create);
  world.use(world.allocate(1000, other), 1000, other);
  EXPECT_EQ(world.statistics().host_waits + world.statistics().gpu_waits, 0u);
  EXPECT_EQ(world.calls().count(driver::Call::mem_create), created);
}

TEST_F(Parts, a_request_of_more_than_a_slice_takes_several) {
  world.deallocate(large[1], stream);
  world.allocate(17 * kSlice, stream);
  const DevicePtr small = world.allocate(3 * kSlice + 1, stream);
  EXPECT_EQ(world.pool().query(small).value().usable, 4 * kSlice);
  world.use(small, 4 * kSlice, stream);
}

TEST_F(Parts, one_in_the_page_where_another_allocation_begins_changes_nothing_of_that) {
  world.allocate(100, stream);  // the slice at the end
  world.deallocate(large[1], stream);
  ASSERT_EQ(world.allocate(21 * kSlice - 1000, stream), large[1]) << "from the hand of the stream";
  world.deallocate(large[0], stream);
  ASSERT_EQ(world.allocate(19 * kSlice, stream), large[0]);
  const observe::Statistics before = world.statistics();
  const DevicePtr small = world.allocate(100, stream);
  ASSERT_GE(small, large[1] - 2 * kSlice);
  ASSERT_LT(small, large[1]);
  world.deallocate(small, stream);
  EXPECT_EQ(world.pool().query(large[1]).value().requested, 21 * kSlice - 1000);
  EXPECT_EQ(world.statistics().live_bytes, before.live_bytes);
}

TEST_F(Parts, when_there_is_none_the_report_names_what_the_user_asked_for_and_what_is_free) {
  EXPECT_NE(shortage(2 * kSlice).find("asked for 524288 bytes"), std::string::npos) << shortage(2 * kSlice);
  EXPECT_NE(shortage(2 * kSlice).find("free 262144"), std::string::npos) << shortage(2 * kSlice);
  world.allocate(100, stream);
  EXPECT_NE(shortage(15'091).find("asked for 15091 bytes"), std::string::npos) << shortage(15'091);
  EXPECT_NE(shortage(15'091).find("free 0"), std::string::npos) << shortage(15'091);
}

TEST(PartsOfPages, do_not_exist_where_chunks_are_pages_and_the_report_is_the_same) {
  WorldOptions options = page_world();
  options.config.capacity = 2 * kPage;
  PoolWorld world(options);
  const StreamHandle stream = world.stream();
  world.allocate(2 * kPage, stream);
  expect_error(world.pool().allocate({100, 0, stream}), ErrorCode::out_of_memory, {"asked for 100 bytes", "free 0"});
}

}  // namespace
}  // namespace vpmm::testing
