// SPDX-License-Identifier: Apache-2.0
// tests: a recorded program that ran out of memory runs out of it again, at the same request.
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <string>
#include <vector>

#include "context/context.hpp"
#include "driver/sim/sim_driver.hpp"
#include "observe/trace_file.hpp"
#include "replay/machine.hpp"
#include "replay/replay.hpp"

namespace vpmm::replay {
namespace {

constexpr Bytes kGpu = 64 * kMiB;

// Fills the GPU, frees a little, asks for too much, and goes on. Returns the number of the event
// that failed.
std::size_t run_out_of_memory(const std::string& path) {
  driver::sim::SimOptions options;
  options.capacity = kGpu;
  driver::sim::SimDriver sim(options);
  driver::ContextHandle context{};
  driver::StreamHandle stream{};
  EXPECT_EQ(sim.init(), driver::CuResult::success);
  EXPECT_EQ(sim.device_primary_ctx_retain(0, context), driver::CuResult::success);
  EXPECT_EQ(sim.ctx_set_current(context), driver::CuResult::success);
  EXPECT_EQ(sim.stream_create(driver::StreamFlags::non_blocking, stream),
            driver::CuResult::success);
  auto pool = context::Context::create(sim, 0, {});
  EXPECT_TRUE(pool.value()->reports().start_recording(path, {}).ok());
  std::vector<DevicePtr> live;
  while (true) {
    const auto ptr = pool.value()->allocate({6 * kMiB + 1000, 0, stream});
    if (!ptr) break;
    live.push_back(ptr.value());
  }
  EXPECT_GT(live.size(), 4U);
  EXPECT_TRUE(pool.value()->deallocate(live.back(), stream).ok());
  EXPECT_TRUE(pool.value()->allocate({100, 0, stream}).ok());
  const auto stopped = pool.value()->reports().stop_recording();
  EXPECT_TRUE(stopped.ok()) << stopped.error().message;
  return live.size();
}

class RecordedFailure : public testing::Test {
 protected:
  void TearDown() override { std::filesystem::remove(path_); }
  static ReplayResult replay_with(const observe::Trace& trace, Bytes gpu) {
    SimMachineOptions options;
    options.capacity = gpu;
    const auto machine = make_sim_machine(options);
    auto result = replay(trace, *machine, allocator_recipe(AllocatorKind::vpmm, {}), {});
    EXPECT_TRUE(result.ok()) << result.error().message;
    return std::move(result).value();
  }

  const std::string path_ =
      testing::TempDir() + "vpmm_failure_" + std::to_string(getpid()) + ".vpmmrec";
};

TEST_F(RecordedFailure, happens_again_at_the_same_request_with_the_memory_that_there_was) {
  const std::size_t failed = run_out_of_memory(path_);
  const auto trace = observe::read_trace(path_);
  ASSERT_TRUE(trace.ok()) << trace.error().message;
  EXPECT_EQ(trace.value().failed, 1U);
  ASSERT_EQ(trace.value().device_bytes, kGpu);
  const ReplayResult result = replay_with(trace.value(), *trace.value().device_bytes);
  EXPECT_EQ(result.failed_allocations, 1U);
  EXPECT_EQ(result.recorded_failures, 1U);
  ASSERT_TRUE(result.first_failure.has_value());
  EXPECT_EQ(result.first_failure->event, failed);
  EXPECT_EQ(result.first_failure->bytes, 6 * kMiB + 1000);
  EXPECT_EQ(result.corruptions, 0U);
}

TEST_F(RecordedFailure, does_not_happen_where_there_is_more_memory_and_nothing_stays) {
  run_out_of_memory(path_);
  const auto trace = observe::read_trace(path_);
  ASSERT_TRUE(trace.ok()) << trace.error().message;
  const ReplayResult result = replay_with(trace.value(), 2 * kGpu);
  EXPECT_EQ(result.failed_allocations, 0U);
  EXPECT_FALSE(result.first_failure.has_value());
  EXPECT_EQ(result.corruptions, 0U);
}

}  // namespace
}  // namespace vpmm::replay
