// SPDX-License-Identifier: Apache-2.0
// tests/gpu_peer: work of one GPU uses memory of another's pool, on two simulated and on two real
// GPUs.
#include <algorithm>

#include "gpu_peer/two_gpus.hpp"

namespace vpmm::test {
namespace {

class PeerAccessOnGpus : public TwoGpus {
 protected:
  void SetUp() override {
    TwoGpus::SetUp();
    if (world_ == nullptr) return;
    ASSERT_OK(world_->enter(1));
    ASSERT_OK(driver().stream_create(StreamFlags::non_blocking, far_));
    ASSERT_OK(world_->enter(0));
    ASSERT_OK(driver().stream_create(StreamFlags::non_blocking, near_));
    pool_ = pool_of(driver(), 0);
    ASSERT_NE(pool_, nullptr);
  }
  void TearDown() override {
    if (pool_ == nullptr) return;
    EXPECT_EQ(pool_->reports().validate(), "");
    pool_.reset();
    EXPECT_OK(driver().stream_destroy(near_));
    EXPECT_OK(driver().stream_destroy(far_));
    EXPECT_EQ(world_->complaints(), "");
  }
  DevicePtr allocate(Bytes bytes, pool::Stream stream) {
    auto result = pool_->allocate({bytes, 0, stream});
    EXPECT_TRUE(result.ok()) << (result ? "" : result.error().message);
    return result ? result.value() : DevicePtr{};
  }
  void deallocate(DevicePtr ptr, pool::Stream stream) {
    const auto result = pool_->deallocate(ptr, stream);
    EXPECT_TRUE(result.ok()) << (result ? "" : result.error().message);
  }
  void give_access() {
    const auto given = pool_->sharing().set_peer_access(1);
    ASSERT_TRUE(given.ok()) << given.error().message;
  }
  void fill_near(AddressRange range, std::uint32_t pattern) {
    EXPECT_OK(world_->launch_fill(near_, range, pattern));
  }
  // By a kernel of GPU 1, after `busy_ns`.
  void fill_far(AddressRange range, std::uint32_t pattern, std::uint64_t busy_ns = 0) {
    EXPECT_OK(world_->enter(1));
    EXPECT_OK(world_->launch_busy(far_, busy_ns));
    EXPECT_OK(world_->launch_fill(far_, range, pattern));
    EXPECT_OK(world_->enter(0));
  }
  bool holds(AddressRange range, std::uint32_t pattern) {
    std::vector<std::uint32_t> words(range.size / sizeof pattern);
    EXPECT_OK(driver().memcpy_device_to_host(words.data(), range.begin, range.size));
    return std::all_of(words.begin(), words.end(),
                       [&](std::uint32_t word) { return word == pattern; });
  }
  void wait_for_both() {
    EXPECT_OK(driver().stream_synchronize(near_));
    EXPECT_OK(driver().stream_synchronize(far_));
  }

  std::unique_ptr<context::Context> pool_;  // of GPU 0
  StreamHandle near_{};                     // of GPU 0
  StreamHandle far_{};                      // of GPU 1
};
VPMM_ON_BOTH_DRIVERS(PeerAccessOnGpus);

TEST_P(PeerAccessOnGpus, memory_of_before_and_after_and_small_blocks_are_written_by_the_other_gpu) {
  std::vector<AddressRange> live;
  const auto take = [&] {
    for (const Bytes bytes : {1024_B, 100_KiB, 2_MiB, 34_MiB})
      live.push_back({allocate(bytes, near_), bytes});
  };
  take();
  deallocate(allocate(6_MiB, near_), near_);
  give_access();
  live.push_back({allocate(6_MiB, near_), 6_MiB});
  take();
  wait_for_both();
  for (std::uint32_t i = 0; i < live.size(); ++i) fill_far(live[i], 100 + i);
  wait_for_both();
  for (std::uint32_t i = 0; i < live.size(); ++i)
    EXPECT_TRUE(holds(live[i], 100 + i)) << live[i].size << " bytes";
}

TEST_P(PeerAccessOnGpus, the_other_gpu_copies_from_its_own_memory_into_the_pool_and_back) {
  give_access();
  const AddressRange shared{allocate(32_MiB, std::nullopt), 32_MiB};
  DevicePtr theirs{};
  ASSERT_OK(world_->enter(1));
  ASSERT_OK(driver().mem_alloc(shared.size, theirs));
  EXPECT_OK(world_->launch_fill(far_, {theirs, shared.size}, 7));
  EXPECT_OK(driver().memcpy_device_to_device_async(shared.begin, theirs, shared.size, far_));
  EXPECT_OK(driver().stream_synchronize(far_));
  ASSERT_OK(world_->enter(0));
  EXPECT_TRUE(holds(shared, 7));
  fill_near(shared, 8);
  wait_for_both();
  ASSERT_OK(world_->enter(1));
  EXPECT_OK(driver().memcpy_device_to_device_async(theirs, shared.begin, shared.size, far_));
  EXPECT_OK(driver().stream_synchronize(far_));
  EXPECT_TRUE(holds({theirs, shared.size}, 8));
  EXPECT_OK(driver().mem_free(theirs));
  ASSERT_OK(world_->enter(0));
}

// The kernel of GPU 1 writes late; whoever has the memory by then would see it.
TEST_P(PeerAccessOnGpus,
       memory_freed_without_a_stream_is_not_used_again_before_the_other_gpu_is_done) {
  give_access();
  for (const Bytes bytes : {2_MiB, 64_KiB}) {
    const DevicePtr ptr = allocate(bytes, std::nullopt);
    fill_far({ptr, bytes}, 1, 100 * kMilliseconds);
    deallocate(ptr, std::nullopt);
    std::vector<DevicePtr> next;
    for (int i = 0; i < 20; ++i) {
      next.push_back(allocate(bytes, i % 2 == 0 ? pool::Stream(near_) : std::nullopt));
      fill_near({next.back(), bytes}, 2);
    }
    EXPECT_EQ(driver().stream_query(far_), CuResult::not_ready) << "nobody waited";
    wait_for_both();
    for (const DevicePtr other : next) EXPECT_TRUE(holds({other, bytes}, 2));
    for (const DevicePtr other : next) deallocate(other, near_);
    EXPECT_TRUE(pool_->streams().synchronize().ok());
    EXPECT_EQ(pool_->reports().statistics().pending_bytes, 0u);
  }
}

TEST_P(PeerAccessOnGpus, a_stream_of_the_other_gpu_allocates_and_frees_as_any_other) {
  give_access();
  for (const Bytes bytes : {4_MiB, 64_KiB}) {
    const DevicePtr ptr = allocate(bytes, far_);
    fill_far({ptr, bytes}, 1, 100 * kMilliseconds);
    deallocate(ptr, far_);
    EXPECT_EQ(allocate(bytes, far_), ptr) << "its own memory, at once";
    fill_far({ptr, bytes}, 3);
    std::vector<DevicePtr> next;
    for (int i = 0; i < 20; ++i) {
      next.push_back(allocate(bytes, near_));
      fill_near({next.back(), bytes}, 2);
    }
    wait_for_both();
    EXPECT_TRUE(holds({ptr, bytes}, 3));
    for (const DevicePtr other : next) EXPECT_TRUE(holds({other, bytes}, 2));
    deallocate(ptr, near_);  // by the other device's stream: behind both
    for (const DevicePtr other : next) deallocate(other, far_);
    EXPECT_TRUE(pool_->streams().synchronize().ok());
    EXPECT_EQ(pool_->reports().statistics().pending_bytes, 0u);
    EXPECT_EQ(pool_->reports().statistics().live_allocations, 0u);
  }
}

TEST_P(PeerAccessOnGpus, synchronize_waits_for_the_other_gpu) {
  give_access();
  const AddressRange range{allocate(4_MiB, std::nullopt), 4_MiB};
  fill_far(range, 5, 50 * kMilliseconds);
  ASSERT_TRUE(pool_->streams().synchronize().ok());
  EXPECT_OK(driver().stream_query(far_));
  EXPECT_TRUE(holds(range, 5));
}

}  // namespace
}  // namespace vpmm::test
