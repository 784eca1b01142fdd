// SPDX-License-Identifier: Apache-2.0
// fault tests: each allocation of host memory of a call in a capture fails in turn, and the capture
// stays whole.
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <new>

#include "context/context.hpp"
#include "driver/sim/sim_driver.hpp"
#include "fault/host_faults.hpp"

namespace vpmm::fault {
namespace {

using context::Context;
using driver::CuResult;
using driver::GraphHandle;
using driver::StreamHandle;

// A pool, and a stream whose captures the legacy stream does not show.
class CapturingWorld {
 public:
  CapturingWorld() {
    driver::ContextHandle current{};
    must(sim_.init());
    must(sim_.device_primary_ctx_retain(0, current));
    must(sim_.ctx_set_current(current));
    must(sim_.stream_create(driver::StreamFlags::non_blocking, stream));
    settings::Config config;
    config.va_size = kGiB;
    config.log = observe::LogLevel::quiet;
    pool = Context::create(exempt_, 0, config).value();
  }
  void begin_capture() { must(sim_.stream_begin_capture(stream, driver::CaptureMode::relaxed)); }
  GraphHandle end_capture() {
    GraphHandle graph{};
    EXPECT_EQ(sim_.stream_end_capture(stream, graph), CuResult::success) << "it was broken";
    return graph;
  }
  void destroy(GraphHandle graph) { must(sim_.graph_destroy(graph)); }
  DevicePtr allocate(pool::Stream on) { return pool->allocate({8 * kMiB, 0, on}).value(); }
  void deallocate(DevicePtr ptr) { EXPECT_TRUE(pool->deallocate(ptr, std::nullopt).ok()); }

 private:
  static void must(CuResult result) { ASSERT_EQ(result, CuResult::success); }
  driver::sim::SimDriver sim_;
  ExemptDriver exempt_{sim_};

 public:
  StreamHandle stream{};
  std::unique_ptr<Context> pool;
};

struct CaptureCall {
  const char* name;
  std::function<void(Context&, StreamHandle, DevicePtr before)> run;
};
const CaptureCall kCalls[] = {
    {"allocate",
     [](Context& pool, StreamHandle stream, DevicePtr) {
       static_cast<void>(pool.allocate({8 * kMiB, 0, stream}));
     }},
    {"allocate_small",
     [](Context& pool, StreamHandle stream, DevicePtr) {
       static_cast<void>(pool.allocate({1000, 0, stream}));
     }},
    {"deallocate", [](Context& pool, StreamHandle stream,
                      DevicePtr before) { static_cast<void>(pool.deallocate(before, stream)); }},
    {"record_use", [](Context& pool, StreamHandle stream,
                      DevicePtr before) { static_cast<void>(pool.record_use(before, stream)); }},
    {"bind",
     [](Context& pool, StreamHandle stream, DevicePtr) { static_cast<void>(pool.bind(stream)); }}};

// Returns the allocations of host memory of the call. The graph of an earlier capture of the stream
// ends during the next, and memory is freed that only an event of the whole context proves.
std::uint64_t run(const CaptureCall& call, std::uint64_t failing, HostFaults::Repeat repeat) {
  CapturingWorld world;
  const DevicePtr before = world.allocate(world.stream);
  const DevicePtr unnamed = world.allocate(std::nullopt);
  world.begin_capture();
  const DevicePtr captured = world.allocate(world.stream);
  const GraphHandle earlier = world.end_capture();
  world.begin_capture();
  HostFaults::arm(failing, repeat);
  try {
    const InsidePool inside;
    call.run(*world.pool, world.stream, before);
  } catch (const std::bad_alloc&) {  // NOLINT(bugprone-empty-catch): the C ABI makes it an error
  }
  const std::uint64_t counted = HostFaults::counted();
  HostFaults::disarm();
  world.deallocate(captured);
  world.destroy(earlier);
  world.deallocate(unnamed);
  world.deallocate(world.allocate(std::nullopt));
  world.destroy(world.end_capture());
  EXPECT_EQ(world.pool->reports().validate(), "");
  return counted;
}

TEST(CaptureFault, host_memory_that_a_call_lacks_breaks_no_capture) {
  using Repeat = HostFaults::Repeat;
  for (const CaptureCall& call : kCalls) {
    run(call, 0, Repeat::once);  // makes what stays for the process
    const std::uint64_t all = run(call, 0, Repeat::once);
    EXPECT_GT(all, 0u) << call.name;
    for (std::uint64_t n = 1; n <= all; ++n)
      for (const Repeat repeat : {Repeat::once, Repeat::from_then_on}) {
        SCOPED_TRACE(::testing::Message()
                     << call.name << ": allocation " << n << " of " << all
                     << (repeat == Repeat::once ? " fails" : " and all behind it fail"));
        EXPECT_GE(run(call, n, repeat), n);
      }
  }
}

}  // namespace
}  // namespace vpmm::fault
