// SPDX-License-Identifier: Apache-2.0
// tests/contract: what both drivers do with streams, events and context-wide events.
#include <set>
#include <thread>

#include "support/gpu_test.hpp"

namespace vpmm::test::streams_test {
namespace {

using driver::kLegacyStream;
using driver::kNullStream;
using driver::kPerThreadStream;

// Long against anything that a test does on the host while the kernel runs.
constexpr std::uint64_t kLong = 300 * kMilliseconds;

class StreamContract : public GpuTest {
 protected:
  void busy(StreamHandle stream, std::uint64_t duration_ns = kLong) {
    EXPECT_OK(world().launch_busy(stream, duration_ns));
  }
  EventHandle context_event() {
    const EventHandle made = event();
    EXPECT_OK(driver().ctx_record_event(world().context(), made));
    return made;
  }
  bool is_done(StreamHandle stream) { return done(driver().stream_query(stream)); }
  bool is_done(EventHandle event) { return done(driver().event_query(event)); }
  void wait(EventHandle event) { EXPECT_OK(driver().event_synchronize(event)); }

 private:
  static bool done(CuResult result) {
    EXPECT_TRUE(result == CuResult::success || result == CuResult::not_ready) << to_string(result);
    return result == CuResult::success;
  }
};
VPMM_ON_BOTH_DRIVERS(StreamContract);

// --- identity ---

TEST_P(StreamContract, a_handle_is_recycled_and_an_id_never_is) {
  std::set<StreamId> ids;
  std::set<StreamHandle> handles;
  constexpr std::size_t kStreams = 10;
  for (std::size_t i = 0; i < kStreams; ++i) {
    const StreamHandle made = stream();
    handles.insert(made);
    ids.insert(id_of(made));
    destroy(made);
  }
  EXPECT_EQ(ids.size(), kStreams);
  EXPECT_LT(handles.size(), kStreams);
}

TEST_P(StreamContract, both_handles_of_the_legacy_stream_have_one_id_of_its_own) {
  EXPECT_EQ(id_of(kNullStream), id_of(kLegacyStream));
  EXPECT_NE(id_of(kLegacyStream), id_of(kPerThreadStream));
  EXPECT_NE(id_of(kLegacyStream), id_of(stream()));
}

TEST_P(StreamContract, the_per_thread_stream_has_another_id_in_every_thread) {
  std::set<StreamId> ids = {id_of(kPerThreadStream)};
  for (int i = 0; i < 2; ++i) {
    std::thread([&] {
      EXPECT_OK(driver().ctx_set_current(world().context()));
      ids.insert(id_of(kPerThreadStream));
      ids.insert(id_of(kPerThreadStream));
    }).join();
  }
  EXPECT_EQ(ids.size(), 3u);
}

TEST_P(StreamContract, a_stream_knows_its_context) {
  for (const StreamHandle stream : {stream(), kNullStream, kLegacyStream, kPerThreadStream}) {
    ContextHandle context{};
    EXPECT_OK(driver().stream_get_ctx(stream, context));
    EXPECT_EQ(context, world().context());
  }
}

TEST_P(StreamContract, a_thread_has_no_context_until_it_is_given_one) {
  std::thread([&] {
    ContextHandle current{1};
    EXPECT_OK(driver().ctx_get_current(current));
    EXPECT_EQ(current, ContextHandle{});
    EventHandle event{};
    StreamHandle stream{};
    driver::DeviceOrdinal device = 0;
    EXPECT_EQ(driver().event_create(event), CuResult::invalid_context);
    EXPECT_EQ(driver().stream_create(StreamFlags::non_blocking, stream), CuResult::invalid_context);
    EXPECT_EQ(driver().ctx_get_device(device), CuResult::invalid_context);
    EXPECT_OK(driver().ctx_set_current(world().context()));
    EXPECT_OK(driver().ctx_get_device(device));
    EXPECT_EQ(device, 0);
  }).join();
}

// --- order ---

TEST_P(StreamContract, queued_work_is_not_ready_until_it_is_done) {
  const StreamHandle work = stream();
  EXPECT_TRUE(is_done(work));
  busy(work);
  const EventHandle after = recorded_event(work);
  EXPECT_FALSE(is_done(work));
  EXPECT_FALSE(is_done(after));
  EXPECT_OK(driver().stream_synchronize(work));
  EXPECT_TRUE(is_done(work));
  EXPECT_TRUE(is_done(after));
}

TEST_P(StreamContract, an_event_covers_what_was_queued_before_it_was_recorded) {
  const StreamHandle work = stream();
  const EventHandle before = recorded_event(work);
  busy(work);
  wait(before);
  EXPECT_TRUE(is_done(before));
  EXPECT_FALSE(is_done(work));
}

TEST_P(StreamContract, an_event_that_was_never_recorded_is_complete) {
  EXPECT_TRUE(is_done(event()));
}

TEST_P(StreamContract, an_event_recorded_again_stands_for_the_later_point) {
  const StreamHandle work = stream();
  const EventHandle point = recorded_event(work);
  wait(point);
  busy(work);
  EXPECT_OK(driver().event_record(point, work));
  EXPECT_FALSE(is_done(point));
}

TEST_P(StreamContract, a_stream_waits_for_an_event_of_another) {
  const StreamHandle first = stream();
  const StreamHandle second = stream();
  busy(first);
  EXPECT_OK(driver().stream_wait_event(second, recorded_event(first)));
  EXPECT_FALSE(is_done(second));
  EXPECT_OK(driver().stream_synchronize(second));
  EXPECT_TRUE(is_done(first));
}

TEST_P(StreamContract, a_wait_holds_when_its_event_is_recorded_again_or_destroyed) {
  const StreamHandle first = stream();
  const StreamHandle second = stream();
  const StreamHandle idle = stream();
  EventHandle between{};
  ASSERT_OK(driver().event_create(between));
  busy(first);
  EXPECT_OK(driver().event_record(between, first));
  EXPECT_OK(driver().stream_wait_event(second, between));
  EXPECT_OK(driver().event_record(between, idle));
  EXPECT_OK(driver().event_destroy(between));
  EXPECT_FALSE(is_done(second));
  EXPECT_OK(driver().stream_synchronize(second));
  EXPECT_TRUE(is_done(first));
}

TEST_P(StreamContract, streams_that_nothing_orders_do_not_wait_for_each_other) {
  const StreamHandle slow = stream();
  const StreamHandle fast = stream();
  busy(slow);
  EXPECT_OK(driver().stream_synchronize(fast));
  EXPECT_FALSE(is_done(slow));
}

TEST_P(StreamContract, an_event_outlives_its_stream) {
  const StreamHandle work = stream();
  busy(work);
  const EventHandle after = recorded_event(work);
  destroy(work);
  EXPECT_FALSE(is_done(after));
  wait(after);
  EXPECT_TRUE(is_done(after));
}

TEST_P(StreamContract, work_reads_host_memory_when_the_stream_gets_there) {
  const AddressRange range = memory(granularity());
  void* host = nullptr;
  ASSERT_OK(driver().mem_host_alloc(sizeof(std::uint32_t), 0, host));
  auto* word = static_cast<volatile std::uint32_t*>(host);
  const StreamHandle work = stream();
  *word = 1;
  busy(work);
  EXPECT_OK(driver().memcpy_host_to_device_async(range.begin, host, sizeof(std::uint32_t), work));
  *word = 2;
  EXPECT_OK(driver().stream_synchronize(work));
  EXPECT_TRUE(holds({range.begin, sizeof(std::uint32_t)}, 2));
  EXPECT_OK(driver().mem_free_host(host));
}

// --- the legacy stream ---

TEST_P(StreamContract, the_legacy_stream_and_blocking_streams_wait_for_each_other) {
  const StreamHandle blocking = stream(StreamFlags::blocking);
  busy(blocking);
  EXPECT_FALSE(is_done(recorded_event(kLegacyStream)));
  world().settle();
  busy(kNullStream);
  EXPECT_FALSE(is_done(recorded_event(blocking)));
}

TEST_P(StreamContract, an_event_of_the_legacy_stream_does_not_wait_for_non_blocking_streams) {
  const StreamHandle non_blocking = stream();
  busy(non_blocking);
  wait(recorded_event(kLegacyStream));
  EXPECT_FALSE(is_done(non_blocking));
}

TEST_P(StreamContract, non_blocking_streams_do_not_wait_for_the_legacy_stream) {
  const StreamHandle non_blocking = stream();
  busy(kLegacyStream);
  wait(recorded_event(non_blocking));
  EXPECT_FALSE(is_done(kLegacyStream));
}

TEST_P(StreamContract, the_per_thread_stream_is_a_blocking_stream) {
  busy(kPerThreadStream);
  EXPECT_FALSE(is_done(recorded_event(kLegacyStream)));
}

// --- context-wide events ---

TEST_P(StreamContract, a_context_event_waits_for_blocking_and_non_blocking_streams) {
  for (const StreamFlags flags : {StreamFlags::blocking, StreamFlags::non_blocking}) {
    const StreamHandle work = stream(flags);
    busy(work);
    const EventHandle all = context_event();
    EXPECT_FALSE(is_done(all));
    wait(all);
    EXPECT_TRUE(is_done(work));
  }
}

TEST_P(StreamContract, a_context_event_waits_for_work_of_destroyed_streams) {
  const StreamHandle work = stream();
  const AddressRange range = memory(granularity());
  fill(range, 1);
  busy(work);
  EXPECT_OK(world().launch_fill(work, range, 2));
  destroy(work);
  const EventHandle all = context_event();
  EXPECT_FALSE(is_done(all));
  wait(all);
  EXPECT_TRUE(holds(range, 2));
}

TEST_P(StreamContract, a_context_event_does_not_wait_for_later_work) {
  const StreamHandle work = stream();
  const EventHandle all = context_event();
  busy(work);
  wait(all);
  EXPECT_FALSE(is_done(work));
}

}  // namespace
}  // namespace vpmm::test::streams_test
