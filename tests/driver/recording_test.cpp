// SPDX-License-Identifier: Apache-2.0
// tests/driver: what a recorder counts, times and lists.
#include "driver/recording.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "driver/fake_driver.hpp"

namespace vpmm::driver {
namespace {

using testing::ElementsAre;

TEST(RecordingDriver, every_call_is_counted_under_its_own_name) {
  FakeDriver fake;
  RecordingDriver recorder(fake);
  for (const Call call : every_call()) invoke(recorder, call);
  invoke(recorder, Call::event_query);
  for (const Call call : every_call()) {
    EXPECT_EQ(recorder.count(call), call == Call::event_query ? 2u : 1u) << to_string(call);
  }
  EXPECT_EQ(recorder.total_count(), kCallCount + 1);
}

TEST(RecordingDriver, calls_that_fail_are_counted_too) {
  FakeDriver fake;
  RecordingDriver recorder(fake);
  fake.answer = CuResult::out_of_memory;
  EXPECT_EQ(invoke(recorder, Call::mem_create), CuResult::out_of_memory);
  EXPECT_EQ(recorder.count(Call::mem_create), 1u);
  EXPECT_EQ(recorder.memory_call_count(), 1u);
}

TEST(RecordingDriver, only_memory_calls_add_to_memory_time) {
  FakeDriver fake;
  RecordingDriver recorder(fake);
  invoke(recorder, Call::mem_map);
  invoke(recorder, Call::mem_set_access);
  invoke(recorder, Call::event_record);
  EXPECT_EQ(recorder.memory_call_count(), 2u);
  EXPECT_EQ(recorder.memory_call_ns(), 2 * fake.ns_per_call);
}

TEST(RecordingDriver, a_thread_takes_its_own_memory_time_once) {
  FakeDriver fake;
  fake.remembering = false;
  RecordingDriver recorder(fake);
  invoke(recorder, Call::mem_map);
  EXPECT_EQ(recorder.take_thread_memory_ns(), 0u) << "nobody wanted it before";
  invoke(recorder, Call::mem_map);
  std::thread other([&] {
    EXPECT_EQ(recorder.take_thread_memory_ns(), 0u);
    invoke(recorder, Call::mem_map);
    invoke(recorder, Call::mem_unmap);
    EXPECT_EQ(recorder.take_thread_memory_ns(), 2 * fake.ns_per_call);
  });
  other.join();
  EXPECT_EQ(recorder.take_thread_memory_ns(), fake.ns_per_call);
  EXPECT_EQ(recorder.take_thread_memory_ns(), 0u);
}

TEST(RecordingDriver, two_recorders_keep_their_thread_time_apart) {
  FakeDriver fake;
  RecordingDriver inner(fake);
  Driver& recorded = inner;
  RecordingDriver outer(recorded);
  outer.take_thread_memory_ns();
  inner.take_thread_memory_ns();
  invoke(outer, Call::mem_create);
  invoke(inner, Call::mem_create);
  EXPECT_EQ(outer.take_thread_memory_ns(), fake.ns_per_call);
  EXPECT_EQ(inner.take_thread_memory_ns(), 2 * fake.ns_per_call);
}

TEST(RecordingDriver, a_new_recorder_never_inherits_the_time_of_one_that_is_gone) {
  FakeDriver fake;
  for (int i = 0; i < 3; ++i) {
    RecordingDriver recorder(fake);
    EXPECT_EQ(recorder.take_thread_memory_ns(), 0u);
    invoke(recorder, Call::mem_map);
  }
}

TEST(RecordingDriver, a_list_holds_calls_in_order_with_the_results_that_were_failures) {
  FakeDriver fake;
  RecordingDriver recorder(fake);
  invoke(recorder, Call::init);
  recorder.start_listing();
  invoke(recorder, Call::mem_create);
  fake.answer = CuResult::not_ready;
  invoke(recorder, Call::event_query);
  EXPECT_THAT(recorder.stop_listing(),
              ElementsAre("mem_create", "event_query: CUDA_ERROR_NOT_READY"));
  invoke(recorder, Call::init);
  EXPECT_THAT(recorder.stop_listing(), ElementsAre());
}

TEST(RecordingDriver, threads_lose_no_counts) {
  constexpr int kThreads = 4;
  constexpr int kCallsPerThread = 5'000;
  FakeDriver fake;
  fake.remembering = false;
  RecordingDriver recorder(fake);
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&] {
      for (int n = 0; n < kCallsPerThread; ++n) invoke(recorder, Call::mem_map);
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(recorder.count(Call::mem_map), std::uint64_t{kThreads} * kCallsPerThread);
  EXPECT_GE(recorder.memory_call_ns(),
            std::uint64_t{kThreads} * kCallsPerThread * fake.ns_per_call);
}

}  // namespace
}  // namespace vpmm::driver
