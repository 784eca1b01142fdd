// SPDX-License-Identifier: Apache-2.0
// small: cached memory when the CUDA context is reset.
#include "small/small_world.hpp"

namespace vpmm::test {
namespace {

class SmallReset : public SmallTest {
 protected:
  void reset(bool is_by_us) {
    if (is_by_us) {
      ASSERT_TRUE(world.pool().streams().reset().ok());
    } else {
      world.sim().run_until_idle();
      ASSERT_EQ(world.sim().device_primary_ctx_reset(0), CuResult::success);
    }
    enter_again(world);
  }
};

TEST_P(SmallReset, memory_in_hand_is_complete_and_anybodys_afterwards) {
  for (const bool is_by_us : {true, false})
    for (const Bytes bytes : kSizes) {
      const StreamHandle before = world.stream();
      const DevicePtr ptr = world.allocate(bytes, before);
      world.use(ptr, bytes, before, kLongNs);
      world.deallocate(ptr, before);
      reset(is_by_us);
      const Bytes mapped = world.statistics().mapped_bytes;
      const StreamHandle after = world.stream();
      const DevicePtr next = world.allocate(bytes, after);
      world.use(next, bytes, after);
      EXPECT_EQ(world.statistics().mapped_bytes, mapped);
      world.deallocate(next, after);
    }
}

TEST_P(SmallReset, live_memory_and_its_contents_survive_and_are_freed_by_new_streams) {
  for (const bool is_by_us : {true, false}) {
    std::vector<DevicePtr> live;
    const StreamHandle before = world.stream();
    for (const Bytes bytes : kSizes) {
      live.push_back(world.allocate(bytes, before));
      ASSERT_EQ(world.sim().memset_d8_async(live.back(), 0x5A, bytes, before), CuResult::success);
    }
    reset(is_by_us);
    const StreamHandle after = world.stream();
    for (std::size_t i = 0; i < live.size(); ++i) {
      std::uint8_t byte = 0;
      ASSERT_EQ(world.sim().memcpy_device_to_host(&byte, live[i] + (kSizes[i] - 1), 1),
                CuResult::success);
      EXPECT_EQ(byte, 0x5A);
      EXPECT_EQ(world.pool().query(live[i] + 1).value().requested, kSizes[i]);
      world.use(live[i], kSizes[i], after, kLongNs);
      world.deallocate(live[i], after);
      expect_error(world.pool().deallocate(live[i], after), ErrorCode::invalid_pointer,
                   {hex(live[i])});
      const StreamHandle other = world.stream();
      world.use(world.allocate(kSizes[i], other), kSizes[i], other);
    }
    world.wait();
  }
}

// Its stream is gone, so nothing would take it from a cache.
TEST_P(SmallReset, memory_that_outlived_it_is_the_pools_when_its_new_streams_are_done_with_it) {
  for (const bool is_by_us : {true, false})
    for (const Bytes bytes : {Bytes{100}, Bytes{5000}, 200 * kKiB}) {
      const DevicePtr ptr = world.allocate(bytes, world.stream());
      reset(is_by_us);
      const StreamHandle after = world.stream();
      world.use(ptr, bytes, after);
      const DevicePtr other = world.allocate(9 * kPage, after);
      world.deallocate(ptr, after);
      world.sim().advance_host_ns(1'000'000);
      for (int i = 0; i < 4; ++i)  // calls that record an event and see that it is done
        world.deallocate(world.allocate(9 * kPage, after), std::nullopt);
      EXPECT_EQ(world.statistics().cached_bytes, 0u) << bytes;
      EXPECT_EQ(world.statistics().small_bytes, 0u) << bytes;
      world.deallocate(other, after);
      world.wait();
    }
}

// Of the stream that is gone an allocation of whole pages lives on, but none of its cache, which
// then serves a new stream with numbers of its own.
TEST_P(SmallReset, numbers_of_a_new_stream_are_not_given_for_one_that_is_gone) {
  for (const bool is_by_us : {true, false}) {
    const StreamHandle before = world.stream();
    const DevicePtr live = world.allocate(kPage, before);
    world.deallocate(world.allocate(kPage, before), before);
    reset(is_by_us);
    const StreamHandle after = world.stream();
    const StreamHandle other = world.stream();
    for (int i = 0; i < 6; ++i) {
      const DevicePtr ptr = world.allocate(2 * kPage, after);
      world.use(ptr, 2 * kPage, after);
      world.deallocate(ptr, after);
      world.wait();
    }
    for (int i = 0; i < 3; ++i) {
      const DevicePtr ptr = world.allocate(2 * kPage, after);
      world.use(ptr, 2 * kPage, after, kLongNs);
      world.deallocate(ptr, after);
      for (int k = 0; k < 2; ++k) world.use(world.allocate(2 * kPage, other), 2 * kPage, other);
    }
    world.deallocate(live, after);
  }
}

// The legacy stream has the same handle and the same id before and after.
TEST_P(SmallReset, what_the_legacy_stream_frees_in_the_new_context_is_not_taken_for_complete) {
  for (const StreamHandle legacy :
       {driver::kLegacyStream, driver::kNullStream, driver::kPerThreadStream})
    for (const Bytes bytes : kSizes) {
      warm(bytes, legacy);
      const DevicePtr ptr = world.allocate(bytes, legacy);
      reset(false);
      world.use(ptr, bytes, legacy, kLongNs);
      world.deallocate(ptr, legacy);  // nobody has noticed the reset before this
      const StreamHandle other = world.stream();
      for (int i = 0; i < 3; ++i) {
        const DevicePtr next = world.allocate(bytes, other);
        world.use(next, bytes, other);
        world.deallocate(next, other);
      }
      world.wait();
    }
}

// A block of a slab in which others stay live, and those others, which are freed when the reset has
// been noticed.
TEST_P(SmallReset, what_a_stream_with_a_handle_used_again_frees_is_not_taken_for_complete) {
  for (const Bytes bytes : kSizes) {
    const StreamHandle before = world.stream();
    warm(bytes, before);
    std::vector<DevicePtr> live;
    for (int i = 0; i < 4; ++i) live.push_back(world.allocate(bytes, before));
    ASSERT_EQ(world.sim().stream_destroy(before), CuResult::success);
    reset(false);
    const StreamHandle after = world.stream();
    ASSERT_EQ(after, before);
    for (const DevicePtr ptr : live) world.use(ptr, bytes, after, kLongNs);
    world.deallocate(live[0], after);
    world.deallocate(live[1], after);
    const StreamHandle other = world.stream();
    world.use(world.allocate(bytes, other), bytes, other);  // notices the reset
    for (const std::size_t last : {2U, 3U}) {
      world.deallocate(live[last], last == 2 ? pool::Stream(after) : std::nullopt);
      for (int i = 0; i < 3; ++i) world.use(world.allocate(bytes, other), bytes, other);
    }
    world.wait();
  }
}

// The stream is no more, but other streams of the new context may use what its object frees.
TEST_P(SmallReset, what_a_bound_stream_of_the_old_context_frees_is_not_taken_for_complete) {
  Vector<Bytes> sizes{8 * kPage};  // no cache keeps it; first, as the free of an only stream
  sizes.insert(sizes.end(), std::begin(kSizes), std::end(kSizes));
  for (const Bytes bytes : sizes) {
    auto bound = world.pool().bind(world.stream());
    ASSERT_TRUE(bound.ok());
    const DevicePtr ptr = bound.value()->allocate(bytes, 0).value();
    reset(false);
    world.use(ptr, bytes, world.stream(), kLongNs);
    ASSERT_TRUE(bound.value()->deallocate(ptr).ok());
    const StreamHandle other = world.stream();
    for (int i = 0; i < 3; ++i) world.use(world.allocate(bytes, other), bytes, other);
    world.wait();
  }
}

TEST_P(SmallReset, what_a_legacy_stream_takes_in_the_new_context_is_its_own) {
  for (const Bytes bytes : kSizes) {
    warm(bytes, driver::kLegacyStream);
    reset(false);
    const DevicePtr ptr = world.allocate(bytes, driver::kLegacyStream);
    world.use(ptr, bytes, driver::kLegacyStream, kLongNs);
    world.deallocate(ptr, driver::kLegacyStream);
    EXPECT_EQ(world.allocate(bytes, driver::kLegacyStream), ptr) << "found again by its stream";
    world.use(ptr, bytes, driver::kLegacyStream);
    world.deallocate(ptr, driver::kLegacyStream);
  }
}

TEST_P(SmallReset, a_default_stream_of_another_device_s_context_is_not_taken_for_ours) {
  WorldOptions options = options_of(GetParam());
  options.sim.device_count = 2;
  PoolWorld two(options);
  driver::ContextHandle mine{};
  driver::ContextHandle other{};
  ASSERT_EQ(two.sim().ctx_get_current(mine), CuResult::success);
  ASSERT_EQ(two.sim().device_primary_ctx_retain(1, other), CuResult::success);
  for (const Bytes bytes : kSizes) {
    two.deallocate(two.allocate(bytes, driver::kNullStream), driver::kNullStream);
    const DevicePtr ptr = two.allocate(bytes, driver::kNullStream);
    two.use(ptr, bytes, driver::kNullStream, kLongNs);
    ASSERT_EQ(two.sim().ctx_set_current(other), CuResult::success);
    two.deallocate(ptr, driver::kNullStream);
    EXPECT_EQ(two.allocate(bytes, driver::kNullStream), ptr);
    driver::ContextHandle current{};
    ASSERT_EQ(two.sim().ctx_get_current(current), CuResult::success);
    EXPECT_EQ(current, other);
    ASSERT_EQ(two.sim().ctx_set_current(mine), CuResult::success);
  }
  EXPECT_EQ(two.statistics().timelines, 1u);
}

// Streams of any context of the process may call.
TEST_P(SmallReset, of_another_context_leaves_our_streams_what_they_have_in_hand) {
  WorldOptions options = options_of(GetParam());
  options.sim.device_count = 2;
  PoolWorld two(options);
  driver::ContextHandle mine{}, other{};
  ASSERT_EQ(two.sim().ctx_get_current(mine), CuResult::success);
  for (const Bytes bytes : kSizes) {
    if (GetParam() && bytes >= kPage) continue;  // no cache keeps chunks that are pages
    SCOPED_TRACE(bytes);
    ASSERT_EQ(two.sim().device_primary_ctx_retain(1, other), CuResult::success);
    ASSERT_EQ(two.sim().ctx_set_current(other), CuResult::success);
    const StreamHandle foreign = two.stream();
    ASSERT_EQ(two.sim().ctx_set_current(mine), CuResult::success);
    const StreamHandle own = two.stream();
    const DevicePtr block = two.allocate(100, std::nullopt);
    const DevicePtr of_own = two.allocate(bytes, own), of_foreign = two.allocate(bytes, foreign);
    two.use(of_own, bytes, own);
    two.deallocate(of_own, own);
    two.deallocate(of_foreign, foreign);
    const Bytes before = two.statistics().cached_bytes;
    two.sim().run_until_idle();
    ASSERT_EQ(two.sim().device_primary_ctx_reset(1), CuResult::success);
    two.deallocate(block, std::nullopt);  // notices it
    EXPECT_LT(two.statistics().cached_bytes, before) << "of the one that is gone";
    EXPECT_EQ(two.pool().allocate_if_ready(bytes, 0, own), of_own);
    EXPECT_TRUE(two.pool().deallocate_if_ready(of_own, own));
    two.wait();
  }
}

TEST_P(SmallReset, many_resets_leave_no_timelines_and_no_memory_behind) {
  for (int i = 0; i < 100; ++i) {
    const StreamHandle stream = world.stream();
    const DevicePtr left = world.allocate(5000, stream);
    for (const Bytes bytes : kSizes) world.deallocate(world.allocate(bytes, stream), stream);
    reset(i % 2 == 0);
    world.deallocate(left, std::nullopt);
  }
  world.wait();
  ASSERT_TRUE(world.pool().limits().trim(0).ok());
  EXPECT_EQ(world.statistics().mapped_bytes, 0u);
  EXPECT_LE(world.statistics().timelines, 2u);
}

// The stream that it would go by died with its context.
TEST_P(SmallReset, a_free_that_names_no_stream_is_not_taken_for_complete) {
  WorldOptions options = options_of(GetParam());
  options.config.streams.unnamed_free = settings::UnnamedFree::allocating_stream;
  PoolWorld own(options);
  for (const Bytes bytes : kSizes) {
    const DevicePtr ptr = own.allocate(bytes, driver::kLegacyStream);
    own.sim().run_until_idle();
    ASSERT_EQ(own.sim().device_primary_ctx_reset(0), CuResult::success);
    enter_again(own);
    own.use(ptr, bytes, driver::kLegacyStream, kLongNs);
    own.deallocate(ptr, std::nullopt);
    const StreamHandle other = own.stream();
    for (int i = 0; i < 3; ++i) own.use(own.allocate(bytes, other), bytes, other);
    own.check_hazards();
  }
}

TEST_P(SmallReset, what_was_in_hand_is_used_again_before_the_pool_grows) {
  const StreamHandle before = world.stream();
  for (const Bytes bytes : {kMiB, 2 * kPage}) {
    std::vector<DevicePtr> live;
    for (int i = 0; i < 40; ++i) live.push_back(world.allocate(bytes, before));
    for (const DevicePtr ptr : live) world.deallocate(ptr, before);
  }
  const Bytes mapped = world.statistics().mapped_bytes;
  reset(false);
  const StreamHandle after = world.stream();
  world.use(world.allocate(256, after), 256, after);  // notices the reset
  for (int i = 0; i < 39; ++i) world.allocate(kMiB, after);
  EXPECT_EQ(world.statistics().mapped_bytes, mapped);
}

// The call that notices the reset is one of the stream that captures.
TEST_P(SmallReset, a_capture_that_began_after_it_is_not_broken) {
  for (const Bytes bytes : kSizes) {
    const StreamHandle before = world.stream();
    world.deallocate(world.allocate(bytes, before), before);
    reset(false);
    const StreamHandle after = world.stream();
    ASSERT_EQ(world.sim().stream_begin_capture(after, driver::CaptureMode::global),
              CuResult::success);
    world.use(world.allocate(bytes, after), bytes, after);
    driver::GraphHandle graph{};
    EXPECT_EQ(world.sim().stream_end_capture(after, graph), CuResult::success);
    EXPECT_EQ(world.sim().graph_destroy(graph), CuResult::success);
  }
}

TEST_P(SmallReset, a_handle_that_no_stream_can_have_is_nobodys) {
  for (const Bytes bytes : kSizes) {
    const DevicePtr ptr = world.allocate(bytes, std::nullopt);
    expect_error(world.pool().deallocate(ptr, StreamHandle{~std::uintptr_t{0}}),
                 ErrorCode::invalid_argument, {"`stream` 0xffffffffffffffff is no stream"});
    world.deallocate(ptr, std::nullopt);
  }
}

INSTANTIATE_TEST_SUITE_P(Policies, SmallReset, ::testing::Bool(), name_of_policy);

}  // namespace
}  // namespace vpmm::test
