// SPDX-License-Identifier: Apache-2.0
// tests/contract: call by call, what a capture forbids, to which threads, and what it lets pass.
#include <functional>
#include <thread>
#include <vector>

#include "support/gpu_test.hpp"

namespace vpmm::test::capture_limits_test {
namespace {

using driver::GraphHandle;
using driver::kNullStream;

constexpr CaptureMode kEveryMode[] = {CaptureMode::global, CaptureMode::thread_local_mode,
                                      CaptureMode::relaxed};
constexpr CaptureMode kStrictModes[] = {CaptureMode::global, CaptureMode::thread_local_mode};

const char* name_of(CaptureMode mode) {
  switch (mode) {
    case CaptureMode::global: return "global";
    case CaptureMode::thread_local_mode: return "thread-local";
    case CaptureMode::relaxed: return "relaxed";
  }
  return "?";
}

// A call made during a capture, on streams that do not capture.
struct Probe {
  const char* name;
  std::function<CuResult()> call;
};

class CaptureLimits : public GpuTest {
 protected:
  void SetUp() override {
    GpuTest::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    outside_ = stream();
    other_ = stream();
    point_ = recorded_event(outside_);
    range_ = memory(granularity());
    ASSERT_OK(driver().mem_pool_create(0, pool_));
    ASSERT_OK(driver().mem_alloc_from_pool_async(1_MiB, pool_, outside_, pooled_));
    ASSERT_OK(driver().mem_alloc(1_MiB, plain_));
    ASSERT_OK(driver().mem_host_alloc(4096, 0, host_));
    ASSERT_OK(driver().ctx_synchronize());
  }
  void TearDown() override {
    if (host_ != nullptr) {
      EXPECT_OK(driver().mem_free_host(host_));
      EXPECT_OK(driver().mem_free(plain_));
      EXPECT_OK(driver().mem_free_async(pooled_, outside_));
      EXPECT_OK(driver().mem_pool_destroy(pool_));
    }
    GpuTest::TearDown();
  }

  // Captures on a new non-blocking stream, runs `during`, and gives what ending the capture gave.
  template <typename F>
  CuResult end_of_capture(CaptureMode mode, F during) {
    const StreamHandle captured = stream();
    EXPECT_OK(driver().stream_begin_capture(captured, mode));
    during(captured);
    GraphHandle graph{};
    const CuResult result = driver().stream_end_capture(captured, graph);
    if (result == CuResult::success) {
      EXPECT_OK(driver().graph_destroy(graph));
    }
    return result;
  }
  std::vector<Probe> harmless_probes();
  std::vector<Probe> waiting_probes();
  std::vector<Probe> allocating_probes();
  std::vector<Probe> freeing_probes();
  void expect_broken_by(const std::vector<Probe>& probes, CaptureMode mode);
  void expect_harmless(const std::vector<Probe>& probes, CaptureMode mode);

  StreamHandle outside_{};
  StreamHandle other_{};
  EventHandle point_{};  // of work on `outside_`, complete
  AddressRange range_;
  driver::MemPoolHandle pool_{};
  DevicePtr pooled_{};
  DevicePtr plain_{};
  void* host_ = nullptr;
};
VPMM_ON_BOTH_DRIVERS(CaptureLimits);

std::vector<Probe> CaptureLimits::harmless_probes() {
  driver::Driver& d = driver();
  const auto event_life = [&d] {
    EventHandle made{};
    const CuResult result = d.event_create(made);
    return result == CuResult::success ? d.event_destroy(made) : result;
  };
  const auto stream_life = [&d] {
    StreamHandle made{};
    const CuResult result = d.stream_create(StreamFlags::non_blocking, made);
    return result == CuResult::success ? d.stream_destroy(made) : result;
  };
  return {
      {"event_create and event_destroy", event_life},
      {"stream_create and stream_destroy", stream_life},
      {"stream_get_id",
       [&d, this] {
         StreamId id{};
         return d.stream_get_id(outside_, id);
       }},
      {"stream_get_ctx",
       [&d, this] {
         ContextHandle context{};
         return d.stream_get_ctx(outside_, context);
       }},
      {"ctx_get_id",
       [&d, this] {
         ContextId id{};
         return d.ctx_get_id(world().context(), id);
       }},
      {"ctx_get_current",
       [&d] {
         ContextHandle context{};
         return d.ctx_get_current(context);
       }},
      {"mem_get_info",
       [&d] {
         driver::MemInfo info;
         return d.mem_get_info(info);
       }},
      {"event_record", [&d, this] { return d.event_record(point_, outside_); }},
      {"stream_wait_event", [&d, this] { return d.stream_wait_event(other_, point_); }},
      {"kernel launch", [this] { return world().launch_fill(outside_, range_, 1); }},
      {"memset_d8_async", [&d, this] { return d.memset_d8_async(range_.begin, 1, 64, outside_); }},
      {"memcpy_host_to_device_async",
       [&d, this] { return d.memcpy_host_to_device_async(range_.begin, host_, 64, outside_); }},
      {"memcpy_host_to_device",
       [&d, this] { return d.memcpy_host_to_device(range_.begin, host_, 64); }},
      {"memcpy_device_to_host",
       [&d, this] { return d.memcpy_device_to_host(host_, range_.begin, 64); }},
      {"memset_d8", [&d, this] { return d.memset_d8(range_.begin, 1, 64); }},
  };
}

std::vector<Probe> CaptureLimits::waiting_probes() {
  driver::Driver& d = driver();
  return {
      {"event_query", [&d, this] { return d.event_query(point_); }},
      {"event_synchronize", [&d, this] { return d.event_synchronize(point_); }},
      {"stream_query", [&d, this] { return d.stream_query(outside_); }},
      {"stream_synchronize", [&d, this] { return d.stream_synchronize(outside_); }},
  };
}

std::vector<Probe> CaptureLimits::allocating_probes() {
  driver::Driver& d = driver();
  using driver::MemPoolAttribute;
  const auto pool_create = [&d] {
    driver::MemPoolHandle made{};
    const CuResult result = d.mem_pool_create(0, made);
    return result == CuResult::success ? d.mem_pool_destroy(made) : result;
  };
  const auto alloc_async = [&d, this] {
    DevicePtr ptr{};
    const CuResult result = d.mem_alloc_from_pool_async(1_MiB, pool_, outside_, ptr);
    return result == CuResult::success ? d.mem_free_async(ptr, outside_) : result;
  };
  const auto get_attribute = [&d, this] {
    std::uint64_t value = 0;
    return d.mem_pool_get_attribute(pool_, MemPoolAttribute::reserved_mem_current, value);
  };
  const auto alloc = [&d] {
    DevicePtr ptr{};
    const CuResult result = d.mem_alloc(1_MiB, ptr);
    return result == CuResult::success ? d.mem_free(ptr) : result;
  };
  const auto host_alloc = [&d] {
    void* host = nullptr;
    const CuResult result = d.mem_host_alloc(4096, 0, host);
    return result == CuResult::success ? d.mem_free_host(host) : result;
  };
  return {
      {"mem_alloc", alloc},
      {"mem_host_alloc", host_alloc},
      {"mem_pool_create", pool_create},
      {"mem_alloc_from_pool_async", alloc_async},
      {"mem_pool_get_attribute", get_attribute},
      {"mem_pool_set_attribute",
       [&d, this] {
         return d.mem_pool_set_attribute(pool_, MemPoolAttribute::release_threshold, 0);
       }},
      {"mem_pool_trim_to", [&d, this] { return d.mem_pool_trim_to(pool_, 0); }},
  };
}

// These would succeed once only, so they are tried only where they are refused.
std::vector<Probe> CaptureLimits::freeing_probes() {
  driver::Driver& d = driver();
  return {
      {"mem_free", [&d, this] { return d.mem_free(plain_); }},
      {"mem_free_host", [&d, this] { return d.mem_free_host(host_); }},
      {"mem_free_async", [&d, this] { return d.mem_free_async(pooled_, outside_); }},
  };
}

void CaptureLimits::expect_broken_by(const std::vector<Probe>& probes, CaptureMode mode) {
  for (const Probe& probe : probes) {
    SCOPED_TRACE(std::string(probe.name) + " during a capture that is " + name_of(mode));
    const auto during = [&](StreamHandle) {
      EXPECT_EQ(probe.call(), CuResult::stream_capture_unsupported);
    };
    EXPECT_EQ(end_of_capture(mode, during), CuResult::stream_capture_invalidated);
  }
}

void CaptureLimits::expect_harmless(const std::vector<Probe>& probes, CaptureMode mode) {
  for (const Probe& probe : probes) {
    SCOPED_TRACE(std::string(probe.name) + " during a capture that is " + name_of(mode));
    const auto during = [&](StreamHandle) { EXPECT_OK(probe.call()); };
    EXPECT_OK(end_of_capture(mode, during));
    EXPECT_OK(
        driver().ctx_synchronize());  // probes of different streams use the same memory and events
  }
}

TEST_P(CaptureLimits, work_and_bookkeeping_outside_a_capture_are_harmless) {
  for (const CaptureMode mode : kEveryMode) expect_harmless(harmless_probes(), mode);
}

TEST_P(CaptureLimits, waiting_on_the_host_breaks_a_strict_capture) {
  for (const CaptureMode mode : kStrictModes) expect_broken_by(waiting_probes(), mode);
}

// Stream-ordered calls and calls about pools too, whatever stream they name and however full the
// pool is.
TEST_P(CaptureLimits, allocating_and_freeing_break_a_strict_capture) {
  for (const CaptureMode mode : kStrictModes) {
    expect_broken_by(allocating_probes(), mode);
    expect_broken_by(freeing_probes(), mode);
  }
}

TEST_P(CaptureLimits, a_relaxed_capture_is_broken_by_neither) {
  expect_harmless(allocating_probes(), CaptureMode::relaxed);
  expect_harmless(waiting_probes(), CaptureMode::relaxed);
}

TEST_P(CaptureLimits, a_strict_capture_is_broken_by_neither_on_a_thread_in_relaxed_mode) {
  CaptureMode thread_mode = CaptureMode::relaxed;
  ASSERT_OK(driver().thread_exchange_stream_capture_mode(thread_mode));
  for (const CaptureMode mode : kStrictModes) {
    expect_harmless(allocating_probes(), mode);
    expect_harmless(waiting_probes(), mode);
  }
  EXPECT_OK(driver().thread_exchange_stream_capture_mode(thread_mode));
}

TEST_P(CaptureLimits, synchronising_the_context_breaks_a_relaxed_capture_too) {
  const auto during = [&](StreamHandle) {
    EXPECT_EQ(driver().ctx_synchronize(), CuResult::stream_capture_unsupported);
  };
  EXPECT_EQ(end_of_capture(CaptureMode::relaxed, during), CuResult::stream_capture_invalidated);
}

TEST_P(CaptureLimits,
       other_threads_are_restricted_by_a_global_capture_only_and_only_in_global_mode) {
  for (const CaptureMode captured : kEveryMode) {
    for (const CaptureMode own : kEveryMode) {
      SCOPED_TRACE(std::string("a thread in mode ") + name_of(own) + " beside a capture that is " +
                   name_of(captured));
      const bool breaks = captured == CaptureMode::global && own == CaptureMode::global;
      const auto query_elsewhere = [&](StreamHandle) {
        std::thread([&] {
          CaptureMode mode = own;
          EXPECT_OK(driver().ctx_set_current(world().context()));
          EXPECT_OK(driver().thread_exchange_stream_capture_mode(mode));
          EXPECT_EQ(mode, CaptureMode::global);  // what every thread starts with
          EXPECT_EQ(driver().event_query(point_),
                    breaks ? CuResult::stream_capture_unsupported : CuResult::success);
        }).join();
      };
      EXPECT_EQ(end_of_capture(captured, query_elsewhere),
                breaks ? CuResult::stream_capture_invalidated : CuResult::success);
    }
  }
}

TEST_P(CaptureLimits, waiting_on_the_host_for_an_event_of_the_capture_says_that_it_is_captured) {
  for (const CaptureMode mode : kEveryMode) {
    SCOPED_TRACE(name_of(mode));
    const EventHandle inside = event();
    const auto query = [&](StreamHandle captured) {
      EXPECT_OK(driver().event_record(inside, captured));
      EXPECT_EQ(driver().event_query(inside), CuResult::captured_event);
    };
    EXPECT_EQ(end_of_capture(mode, query), CuResult::stream_capture_invalidated);
  }
}

TEST_P(CaptureLimits, a_strict_capture_is_ended_by_the_thread_that_began_it) {
  const StreamHandle captured = stream();
  ASSERT_OK(driver().stream_begin_capture(captured, CaptureMode::thread_local_mode));
  std::thread([&] {
    GraphHandle graph{};
    EXPECT_OK(driver().ctx_set_current(world().context()));
    EXPECT_EQ(driver().stream_end_capture(captured, graph), CuResult::stream_capture_wrong_thread);
  }).join();
  GraphHandle graph{};
  driver().stream_end_capture(captured, graph);
  if (graph != GraphHandle{}) {
    EXPECT_OK(driver().graph_destroy(graph));
  }
}

TEST_P(CaptureLimits, a_blocking_copy_breaks_the_capture_of_a_blocking_stream_as_implicit) {
  const StreamHandle captured = stream(StreamFlags::blocking);
  ASSERT_OK(driver().stream_begin_capture(captured, CaptureMode::relaxed));
  EXPECT_EQ(driver().memset_d8(range_.begin, 1, 64), CuResult::stream_capture_implicit);
  GraphHandle graph{};
  EXPECT_EQ(driver().stream_end_capture(captured, graph), CuResult::stream_capture_invalidated);
}

}  // namespace
}  // namespace vpmm::test::capture_limits_test
