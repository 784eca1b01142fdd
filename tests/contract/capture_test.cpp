// SPDX-License-Identifier: Apache-2.0
// tests/contract: what both drivers allow while a stream captures, what breaks a capture, and what
// graphs do.
#include <atomic>
#include <chrono>
#include <functional>
#include <thread>

#include "support/gpu_test.hpp"

namespace vpmm::test::capture_test {
namespace {

using driver::GraphExecHandle;
using driver::GraphHandle;
using driver::kLegacyStream;
using driver::kNullStream;

constexpr CaptureMode kEveryMode[] = {CaptureMode::global, CaptureMode::thread_local_mode,
                                      CaptureMode::relaxed};

class CaptureContract : public GpuTest {
 protected:
  // Captures on a new stream, runs `during`, and gives what ending the capture gave.
  CuResult end_of_capture(CaptureMode mode, const std::function<void(StreamHandle)>& during,
                          StreamFlags flags = StreamFlags::non_blocking) {
    const StreamHandle captured = stream(flags);
    EXPECT_OK(driver().stream_begin_capture(captured, mode));
    during(captured);
    GraphHandle graph{};
    const CuResult result = driver().stream_end_capture(captured, graph);
    if (result == CuResult::success) {
      EXPECT_OK(driver().graph_destroy(graph));
    }
    return result;
  }
  CaptureStatus status_of(StreamHandle stream) {
    CaptureStatus status{};
    EXPECT_OK(driver().stream_is_capturing(stream, status));
    return status;
  }
  CaptureInfo info_of(StreamHandle stream) {
    CaptureInfo info;
    EXPECT_OK(driver().stream_get_capture_info(stream, info));
    return info;
  }
  template <typename F>
  CuResult relaxed(F call) {
    CaptureMode mode = CaptureMode::relaxed;
    EXPECT_OK(driver().thread_exchange_stream_capture_mode(mode));
    const CuResult result = call();
    EXPECT_OK(driver().thread_exchange_stream_capture_mode(mode));
    EXPECT_EQ(mode, CaptureMode::relaxed);
    return result;
  }
  // A graph that fills `range` with `value` in every byte.
  GraphHandle fill_graph(AddressRange range, std::uint8_t value) {
    const StreamHandle captured = stream();
    GraphHandle graph{};
    EXPECT_OK(driver().stream_begin_capture(captured, CaptureMode::thread_local_mode));
    EXPECT_OK(driver().memset_d8_async(range.begin, value, range.size, captured));
    EXPECT_OK(driver().stream_end_capture(captured, graph));
    return graph;
  }
};
VPMM_ON_BOTH_DRIVERS(CaptureContract);

// --- status ---

TEST_P(CaptureContract, a_stream_says_whether_it_captures) {
  const StreamHandle captured = stream();
  EXPECT_EQ(status_of(captured), CaptureStatus::none);
  EXPECT_OK(driver().stream_begin_capture(captured, CaptureMode::relaxed));
  EXPECT_EQ(status_of(captured), CaptureStatus::active);
  EXPECT_EQ(info_of(captured).status, CaptureStatus::active);
  EXPECT_NE(driver().ctx_record_event(world().context(), event()), CuResult::success);
  EXPECT_EQ(status_of(captured), CaptureStatus::invalidated);
  GraphHandle graph{};
  EXPECT_EQ(driver().stream_end_capture(captured, graph), CuResult::stream_capture_invalidated);
  EXPECT_EQ(status_of(captured), CaptureStatus::none);
}

TEST_P(CaptureContract, each_capture_has_its_own_id_and_a_graph_to_hang_things_on) {
  driver::CaptureId first{};
  EXPECT_OK(end_of_capture(CaptureMode::relaxed, [&](StreamHandle captured) {
    first = info_of(captured).id;
    EXPECT_EQ(info_of(captured).id, first);
    EXPECT_NE(info_of(captured).graph, GraphHandle{});
  }));
  EXPECT_OK(end_of_capture(CaptureMode::relaxed,
                           [&](StreamHandle captured) { EXPECT_NE(info_of(captured).id, first); }));
}

TEST_P(CaptureContract, a_stream_joins_a_capture_by_waiting_for_its_event_and_must_be_joined_back) {
  const StreamHandle joined = stream();
  const EventHandle fork = event();
  EXPECT_OK(end_of_capture(CaptureMode::thread_local_mode, [&](StreamHandle captured) {
    EXPECT_OK(driver().event_record(fork, captured));
    EXPECT_OK(driver().stream_wait_event(joined, fork));
    EXPECT_EQ(info_of(joined).id, info_of(captured).id);
    const EventHandle join = recorded_event(joined);
    EXPECT_OK(driver().stream_wait_event(captured, join));
  }));
  EXPECT_EQ(status_of(joined), CaptureStatus::none);
  const auto leave_open = [&](StreamHandle captured) {
    EXPECT_OK(driver().event_record(fork, captured));
    EXPECT_OK(driver().stream_wait_event(joined, fork));
    EXPECT_OK(world().launch_busy(joined, 1));
  };
  EXPECT_EQ(end_of_capture(CaptureMode::thread_local_mode, leave_open),
            CuResult::stream_capture_unjoined);
}

// --- memory calls ---

TEST_P(CaptureContract, mapping_calls_are_harmless_in_every_mode) {
  const Bytes unit = granularity();
  for (const CaptureMode mode : kEveryMode) {
    EXPECT_OK(end_of_capture(mode, [&](StreamHandle) {
      const ChunkHandle chunk = create(unit);
      const AddressRange range = reserve(unit);
      map(range, chunk);
      unmap(range);
      release(chunk);
    }));
  }
}

TEST_P(CaptureContract, mapping_calls_of_other_threads_are_harmless) {
  const Bytes unit = granularity();
  EXPECT_OK(end_of_capture(CaptureMode::global, [&](StreamHandle) {
    std::thread([&] {
      EXPECT_OK(driver().ctx_set_current(world().context()));
      unmap(memory(unit));
    }).join();
  }));
}

TEST_P(CaptureContract, a_global_capture_forbids_plain_allocations_to_other_threads_too) {
  end_of_capture(CaptureMode::global, [&](StreamHandle) {
    std::thread([&] {
      EXPECT_OK(driver().ctx_set_current(world().context()));
      DevicePtr ptr{};
      EXPECT_EQ(driver().mem_alloc(1_MiB, ptr), CuResult::stream_capture_unsupported);
    }).join();
  });
}

// --- events ---

TEST_P(CaptureContract, recording_on_a_stream_that_does_not_capture_is_harmless) {
  const StreamHandle outside = stream();
  for (const CaptureMode mode : kEveryMode) {
    const EventHandle unrelated = event();
    EXPECT_OK(end_of_capture(
        mode, [&](StreamHandle) { EXPECT_OK(driver().event_record(unrelated, outside)); }));
    EXPECT_OK(driver().event_synchronize(unrelated));
  }
}

TEST_P(CaptureContract, a_context_event_breaks_a_capture_in_every_mode) {
  for (const CaptureMode mode : kEveryMode) {
    const EventHandle all = event();
    const auto record = [&](StreamHandle) {
      EXPECT_EQ(driver().ctx_record_event(world().context(), all),
                CuResult::stream_capture_unsupported);
    };
    EXPECT_EQ(end_of_capture(mode, record), CuResult::stream_capture_invalidated);
  }
}

TEST_P(CaptureContract, a_context_event_breaks_a_capture_on_a_relaxed_thread_too) {
  const EventHandle all = event();
  const auto record = [&](StreamHandle) {
    EXPECT_NE(relaxed([&] { return driver().ctx_record_event(world().context(), all); }),
              CuResult::success);
  };
  EXPECT_EQ(end_of_capture(CaptureMode::thread_local_mode, record),
            CuResult::stream_capture_invalidated);
}

TEST_P(CaptureContract, a_capturing_stream_cannot_wait_for_an_outside_event) {
  for (const CaptureMode mode : kEveryMode) {
    const EventHandle outside = recorded_event(stream());
    const auto wait = [&](StreamHandle captured) {
      EXPECT_EQ(driver().stream_wait_event(captured, outside), CuResult::stream_capture_isolation);
    };
    EXPECT_EQ(end_of_capture(mode, wait), CuResult::stream_capture_invalidated);
  }
}

TEST_P(CaptureContract, querying_an_event_of_the_capture_breaks_it) {
  for (const CaptureMode mode : kEveryMode) {
    const EventHandle inside = event();
    const auto query = [&](StreamHandle captured) {
      EXPECT_OK(driver().event_record(inside, captured));
      EXPECT_NE(driver().event_query(inside), CuResult::success);
    };
    EXPECT_EQ(end_of_capture(mode, query), CuResult::stream_capture_invalidated);
  }
}

TEST_P(CaptureContract, synchronising_a_capturing_stream_breaks_the_capture) {
  const auto synchronise = [&](StreamHandle captured) {
    EXPECT_EQ(driver().stream_synchronize(captured), CuResult::stream_capture_unsupported);
  };
  EXPECT_EQ(end_of_capture(CaptureMode::relaxed, synchronise),
            CuResult::stream_capture_invalidated);
}

// --- the legacy stream ---

TEST_P(CaptureContract, asking_a_capturing_stream_for_its_id_breaks_the_capture_in_every_mode) {
  for (const CaptureMode mode : kEveryMode) {
    const CuResult end = end_of_capture(mode, [&](StreamHandle captured) {
      StreamId id{};
      EXPECT_EQ(relaxed([&] { return driver().stream_get_id(captured, id); }),
                CuResult::stream_capture_unsupported);
    });
    EXPECT_EQ(end, CuResult::stream_capture_invalidated);
  }
}

TEST_P(CaptureContract, asking_for_the_legacy_streams_id_breaks_the_capture_of_a_blocking_stream) {
  const CuResult end = end_of_capture(
      CaptureMode::global,
      [&](StreamHandle) {
        StreamId id{};
        EXPECT_EQ(driver().stream_get_id(kNullStream, id), CuResult::stream_capture_implicit);
      },
      StreamFlags::blocking);
  EXPECT_EQ(end, CuResult::stream_capture_invalidated);
}

TEST_P(
    CaptureContract,
    asking_about_the_legacy_stream_while_a_blocking_stream_captures_is_answered_by_an_error_only) {
  const auto ask = [&](StreamHandle captured) {
    CaptureStatus status{};
    EXPECT_EQ(driver().stream_is_capturing(kLegacyStream, status),
              CuResult::stream_capture_implicit);
    EXPECT_EQ(driver().stream_is_capturing(kNullStream, status), CuResult::stream_capture_implicit);
    EXPECT_EQ(status_of(captured), CaptureStatus::active);
  };
  for (const CaptureMode mode : kEveryMode)
    EXPECT_OK(end_of_capture(mode, ask, StreamFlags::blocking));
}

TEST_P(CaptureContract, recording_on_the_legacy_stream_breaks_the_capture_of_a_blocking_stream) {
  for (const CaptureMode mode : kEveryMode) {
    const EventHandle unrelated = event();
    const auto record = [&](StreamHandle) {
      EXPECT_EQ(driver().event_record(unrelated, kLegacyStream), CuResult::stream_capture_implicit);
    };
    EXPECT_EQ(end_of_capture(mode, record, StreamFlags::blocking),
              CuResult::stream_capture_invalidated);
  }
}

TEST_P(CaptureContract, the_legacy_stream_may_be_used_while_a_non_blocking_stream_captures) {
  for (const CaptureMode mode : kEveryMode) {
    const EventHandle unrelated = event();
    EXPECT_OK(end_of_capture(mode, [&](StreamHandle) {
      EXPECT_EQ(status_of(kLegacyStream), CaptureStatus::none);
      EXPECT_OK(driver().event_record(unrelated, kLegacyStream));
    }));
  }
}

TEST_P(CaptureContract, the_legacy_stream_cannot_capture) {
  EXPECT_EQ(driver().stream_begin_capture(kLegacyStream, CaptureMode::relaxed),
            CuResult::stream_capture_unsupported);
}

// --- graphs ---

TEST_P(CaptureContract, captured_work_runs_at_each_launch_and_not_before) {
  const AddressRange range = memory(granularity());
  fill(range, 0x0101'0101);
  const GraphHandle graph = fill_graph(range, 2);
  const StreamHandle work = stream();
  EXPECT_TRUE(holds(range, 0x0101'0101));
  GraphExecHandle exec{};
  ASSERT_OK(driver().graph_instantiate(graph, exec));
  EXPECT_OK(driver().graph_destroy(graph));
  for (int launch = 0; launch < 2; ++launch) {
    fill(range, 0x0303'0303);
    EXPECT_OK(driver().graph_launch(exec, work));
    EXPECT_OK(driver().stream_synchronize(work));
    EXPECT_TRUE(holds(range, 0x0202'0202));
  }
  EXPECT_OK(driver().graph_exec_destroy(exec));
}

TEST_P(CaptureContract, a_graph_runs_in_the_order_of_the_stream_it_is_launched_on) {
  const AddressRange range = memory(granularity());
  const GraphHandle graph = fill_graph(range, 2);
  const StreamHandle work = stream();
  GraphExecHandle exec{};
  ASSERT_OK(driver().graph_instantiate(graph, exec));
  EXPECT_OK(world().launch_busy(work, 100 * kMilliseconds));
  EXPECT_OK(driver().graph_launch(exec, work));
  EXPECT_EQ(driver().stream_query(work), CuResult::not_ready);
  EXPECT_OK(world().launch_fill(work, {range.begin, range.size / 2}, 3));
  EXPECT_OK(driver().stream_synchronize(work));
  EXPECT_TRUE(holds({range.begin, range.size / 2}, 3));
  EXPECT_TRUE(holds({range.begin + range.size / 2, range.size / 2}, 0x0202'0202));
  EXPECT_OK(driver().graph_exec_destroy(exec));
  EXPECT_OK(driver().graph_destroy(graph));
}

class UserObjects : public CaptureContract {
 protected:
  static void count_one(void* counter) { ++*static_cast<std::atomic<int>*>(counter); }
  // The driver may run destructors on a thread of its own, some time after.
  bool becomes(const std::atomic<int>& counter, int value) {
    using std::chrono::steady_clock;
    for (const auto deadline = steady_clock::now() + std::chrono::seconds(20);
         steady_clock::now() < deadline;) {
      world().settle();
      if (counter == value) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return false;
  }
  std::atomic<int> destroyed_{0};
};
VPMM_ON_BOTH_DRIVERS(UserObjects);

TEST_P(UserObjects, an_object_is_destroyed_when_its_last_reference_is_released) {
  driver::UserObjectHandle object{};
  ASSERT_OK(driver().user_object_create(&destroyed_, count_one, object));
  EXPECT_EQ(destroyed_, 0);
  EXPECT_OK(driver().user_object_release(object));
  EXPECT_TRUE(becomes(destroyed_, 1));
}

TEST_P(UserObjects, an_object_of_a_graph_lives_until_graph_and_executable_are_gone) {
  const AddressRange range = memory(granularity());
  const GraphHandle graph = fill_graph(range, 2);
  driver::UserObjectHandle object{};
  GraphExecHandle exec{};
  ASSERT_OK(driver().user_object_create(&destroyed_, count_one, object));
  ASSERT_OK(driver().graph_retain_user_object(graph, object));
  ASSERT_OK(driver().graph_instantiate(graph, exec));
  EXPECT_OK(driver().graph_destroy(graph));
  const StreamHandle work = stream();
  EXPECT_OK(driver().graph_launch(exec, work));
  EXPECT_OK(driver().stream_synchronize(work));
  EXPECT_EQ(destroyed_, 0);
  EXPECT_OK(driver().graph_exec_destroy(exec));
  EXPECT_TRUE(becomes(destroyed_, 1));
}

TEST_P(UserObjects, an_object_can_be_given_to_the_graph_of_a_capture_in_progress) {
  const StreamHandle captured = stream();
  driver::UserObjectHandle object{};
  GraphHandle graph{};
  ASSERT_OK(driver().user_object_create(&destroyed_, count_one, object));
  ASSERT_OK(driver().stream_begin_capture(captured, CaptureMode::thread_local_mode));
  EXPECT_OK(driver().graph_retain_user_object(info_of(captured).graph, object));
  ASSERT_OK(driver().stream_end_capture(captured, graph));
  EXPECT_EQ(destroyed_, 0);
  EXPECT_OK(driver().graph_destroy(graph));
  EXPECT_TRUE(becomes(destroyed_, 1));
}

}  // namespace
}  // namespace vpmm::test::capture_test
