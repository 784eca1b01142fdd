// SPDX-License-Identifier: Apache-2.0
// capi: calls that a cache serves, beside calls that hold the pool, and many at once to the last
// element.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <thread>
#include <vector>

#include "capi/gpu_pool.hpp"

namespace vpmm::capi_test {
namespace {

// A thread that maps memory, and with the pool's lock waits until the test is over, or for so long
// that it has failed.
class BusyMapping {
 public:
  explicit BusyMapping(vpmm_pool* pool) : pool_(pool) {
    EXPECT_EQ(vpmm_add_event_callback(pool_, 1U << VPMM_EVENT_MAP, &wait, this, &id_), VPMM_OK);
    thread_ = std::thread(
        [this] { EXPECT_EQ(vpmm_allocate_any_stream(pool_, 600 * kMiB, 0, &ptr_), VPMM_OK); });
    while (!is_mapping_) std::this_thread::yield();
  }
  ~BusyMapping() {
    is_over_ = true;
    thread_.join();
    EXPECT_TRUE(was_over_in_time_) << "a call waited for another that maps memory";
    EXPECT_EQ(vpmm_remove_event_callback(pool_, id_), VPMM_OK);
    EXPECT_EQ(vpmm_deallocate_any_stream(pool_, ptr_), VPMM_OK);
  }
  BusyMapping(const BusyMapping&) = delete;
  BusyMapping& operator=(const BusyMapping&) = delete;

 private:
  static void wait(void* argument, const vpmm_event*) {
    auto& mapping = *static_cast<BusyMapping*>(argument);
    mapping.is_mapping_ = true;
    const auto give_up = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (!mapping.is_over_ && std::chrono::steady_clock::now() < give_up)
      std::this_thread::yield();
    mapping.was_over_in_time_ = mapping.is_over_.load();
  }

  vpmm_pool* const pool_;
  void* ptr_ = nullptr;
  std::uint64_t id_ = 0;
  std::atomic<bool> is_mapping_{false};
  std::atomic<bool> is_over_{false};
  std::atomic<bool> was_over_in_time_{false};
  std::thread thread_;
};

class Cached : public GpuPool {
 protected:
  void SetUp() override {
    GpuPool::SetUp();
    stream_ = new_stream();
    ASSERT_EQ(vpmm_stream_bind(pool_, stream_, &bound_), VPMM_OK) << vpmm_last_error();
  }
  void TearDown() override {
    vpmm_stream_unbind(bound_);
    GpuPool::TearDown();
  }

  vpmm_stream stream_ = nullptr;
  vpmm_bound_stream* bound_ = nullptr;
};

TEST_F(Cached, requests_of_a_bound_stream_wait_for_no_call_that_maps) {
  void* ptr = nullptr;
  ASSERT_EQ(vpmm_bound_allocate(bound_, 1000, 0, &ptr), VPMM_OK) << vpmm_last_error();
  ASSERT_EQ(vpmm_bound_deallocate(bound_, ptr), VPMM_OK);
  const BusyMapping mapping(pool_);
  for (int i = 0; i < 3; ++i) {
    void* again = nullptr;
    EXPECT_EQ(vpmm_bound_allocate(bound_, 1000, 0, &again), VPMM_OK) << vpmm_last_error();
    EXPECT_EQ(again, ptr);
    EXPECT_EQ(vpmm_bound_deallocate(bound_, again), VPMM_OK) << vpmm_last_error();
  }
}

TEST_F(Cached, requests_that_must_not_block_say_so_while_another_call_maps) {
  void* const mine = allocate_on(stream_, 1000);
  void* ptr = mine;
  {
    const BusyMapping mapping(pool_);
    EXPECT_EQ(vpmm_try_deallocate(pool_, mine, stream_), VPMM_OK);
    EXPECT_EQ(vpmm_try_allocate(pool_, 1000, 0, stream_, &ptr), VPMM_OK);
    EXPECT_EQ(ptr, mine);
    EXPECT_EQ(vpmm_try_allocate(pool_, 900 * kMiB, 0, stream_, &ptr), VPMM_WOULD_BLOCK);
    EXPECT_EQ(vpmm_try_allocate_any_stream(pool_, 900 * kMiB, 0, &ptr), VPMM_WOULD_BLOCK);
    EXPECT_EQ(ptr, mine) << "written on success only";
  }
  EXPECT_EQ(vpmm_deallocate(pool_, mine, stream_), VPMM_OK) << vpmm_last_error();
}

TEST_F(Cached, frees_that_are_deferred_wait_for_no_call_that_maps) {
  void* const mine = allocate_on(stream_, 3 * kMiB);
  {
    const BusyMapping mapping(pool_);
    vpmm_deallocate_deferred(pool_, mine);
  }
  ASSERT_EQ(vpmm_synchronize(pool_), VPMM_OK);
  EXPECT_EQ(statistics_of(pool_).live_allocations, 0U);
}

// A destroyed stream is forgotten once nothing is bound to it.
TEST_F(Cached, streams_are_kept_no_longer_than_they_are_bound) {
  for (int i = 0; i < 300; ++i) {
    driver::StreamHandle handle{};
    must(gpu_->stream_create(driver::StreamFlags::non_blocking, handle));
    auto* const stream = reinterpret_cast<vpmm_stream>(static_cast<std::uintptr_t>(handle));
    vpmm_bound_stream* bound = nullptr;
    void* ptr = nullptr;
    ASSERT_EQ(vpmm_stream_bind(pool_, stream, &bound), VPMM_OK) << vpmm_last_error();
    ASSERT_EQ(vpmm_bound_allocate(bound, 3 * kMiB, 0, &ptr), VPMM_OK) << vpmm_last_error();
    ASSERT_EQ(vpmm_bound_deallocate(bound, ptr), VPMM_OK) << vpmm_last_error();
    vpmm_stream_unbind(bound);
    must(gpu_->stream_destroy(handle));
  }
  ASSERT_EQ(vpmm_synchronize(pool_), VPMM_OK);
  EXPECT_LT(statistics_of(pool_).timelines, 300U);
}

using ManyAtOnce = Cached;

TEST_F(ManyAtOnce, are_as_many_as_asked) {
  EXPECT_EQ(vpmm_allocate_many(pool_, nullptr, 0, stream_, nullptr), VPMM_OK);
  EXPECT_EQ(vpmm_deallocate_many(pool_, nullptr, 0, stream_), VPMM_OK);
  for (const std::size_t count : {1U, 2U, 5U}) {
    const std::vector<std::size_t> bytes(count + 1, 1000);
    std::vector<void*> ptrs(count + 1, this);
    ASSERT_EQ(vpmm_allocate_many(pool_, bytes.data(), count, stream_, ptrs.data()), VPMM_OK)
        << vpmm_last_error();
    EXPECT_EQ(ptrs[count], this) << "not asked for";
    EXPECT_EQ(statistics_of(pool_).live_allocations, count);
    EXPECT_EQ(statistics_of(pool_).live_bytes, 1000 * count);
    EXPECT_EQ(vpmm_deallocate_many(pool_, ptrs.data(), count, stream_), VPMM_OK)
        << vpmm_last_error();
    EXPECT_EQ(statistics_of(pool_).live_allocations, 0U);
    EXPECT_EQ(vpmm_deallocate_many(pool_, ptrs.data(), count, stream_), VPMM_ERROR_INVALID_POINTER);
  }
}

using NullArguments = Cached;

TEST_F(NullArguments, are_named_unless_null_means_nothing_to_do) {
  const std::size_t bytes = 1000;
  void* ptr = nullptr;
  const auto expect = [](vpmm_status status, const char* said) {
    EXPECT_EQ(status, VPMM_ERROR_INVALID_ARGUMENT) << said;
    EXPECT_STREQ(vpmm_last_error(), said);
  };
  expect(vpmm_allocate_many(pool_, nullptr, 1, stream_, &ptr), "`bytes` is null");
  expect(vpmm_allocate_many(pool_, &bytes, 1, stream_, nullptr), "`ptrs` is null");
  expect(vpmm_deallocate_many(pool_, nullptr, 1, stream_), "`ptrs` is null");
  constexpr std::size_t kTooMany = SIZE_MAX / 8;
  const std::string said =
      "`count` is " + std::to_string(kTooMany) + ": more than memory could hold";
  expect(vpmm_allocate_many(pool_, &bytes, kTooMany, stream_, &ptr), said.c_str());
  expect(vpmm_deallocate_many(pool_, &ptr, kTooMany, stream_), said.c_str());
  expect(vpmm_stream_bind(pool_, stream_, nullptr), "`bound` is null");
  expect(vpmm_bound_allocate(nullptr, 1, 0, &ptr), "`bound` is null");
  expect(vpmm_bound_allocate(bound_, 1, 0, nullptr), "`ptr` is null");
  expect(vpmm_bound_deallocate(nullptr, this), "`bound` is null");
  EXPECT_EQ(vpmm_bound_deallocate(nullptr, nullptr), VPMM_OK) << "null does nothing";
  EXPECT_EQ(vpmm_deallocate(nullptr, nullptr, nullptr), VPMM_OK);
  EXPECT_EQ(vpmm_deallocate_any_stream(nullptr, nullptr), VPMM_OK);
  EXPECT_EQ(vpmm_try_deallocate(nullptr, nullptr, nullptr), VPMM_OK);
  vpmm_deallocate_deferred(nullptr, this);
  expect(vpmm_record_use(nullptr, nullptr, nullptr), "`pool` is null");
  expect(vpmm_usable_size(pool_, nullptr, nullptr), "`bytes` is null");
  expect(vpmm_stream_wait(nullptr, nullptr, nullptr), "`pool` is null");
}

using StreamWaits = Cached;

TEST_F(StreamWaits, are_for_what_the_other_stream_has_queued) {
  const vpmm_stream first = new_stream();
  keep_busy(first, 1000 * kMillisecond);
  EXPECT_TRUE(is_idle(stream_));
  ASSERT_EQ(vpmm_stream_wait(pool_, stream_, first), VPMM_OK) << vpmm_last_error();
  EXPECT_FALSE(is_idle(stream_));
  gpu_->run_until_idle();
  EXPECT_TRUE(is_idle(stream_));
}

}  // namespace
}  // namespace vpmm::capi_test
