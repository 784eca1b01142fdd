// SPDX-License-Identifier: Apache-2.0
// host_copy tests: a simulated GPU, with a look at its calls.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "driver/faulting.hpp"
#include "driver/recording.hpp"
#include "driver/sim/sim_driver.hpp"
#include "host_copy/fresh_memory.hpp"
#include "support/hooked_driver.hpp"

namespace vpmm::host_copy {

using driver::Call;
using driver::CuResult;
using driver::StreamHandle;

// Notes host memory that is pinned, and where threads let the GPU copy to.
class PinningDriver final : public driver::ForwardingDriver {
 public:
  using ForwardingDriver::ForwardingDriver;
  CuResult mem_host_register(void* host, Bytes size, unsigned flags) override {
    const CuResult result = ForwardingDriver::mem_host_register(host, size, flags);
    asked.push_back({static_cast<std::byte*>(host), size, flags});
    return result;
  }
  CuResult memcpy_device_to_host_async(void* to, DevicePtr from, Bytes size,
                                       StreamHandle stream) override {
    {
      const std::lock_guard lock(mutex_);
      filled[to].insert(std::this_thread::get_id());
    }
    return ForwardingDriver::memcpy_device_to_host_async(to, from, size, stream);
  }
  struct Asked {
    std::byte* begin;
    Bytes size;
    unsigned flags;
    friend bool operator==(const Asked&, const Asked&) = default;
  };
  std::vector<Asked> asked;
  std::map<void*, std::set<std::thread::id>> filled;

 private:
  std::mutex mutex_;
};

class CopyWorld : public testing::Test {
 protected:
  CopyWorld() {
    EXPECT_EQ(sim.init(), CuResult::success);
    enter();
  }
  ~CopyWorld() override {
    faults.clear_plan();
    hooks.on.clear();
    for (const DevicePtr each : taken) EXPECT_EQ(sim.mem_free(each), CuResult::success);
    sim.run_until_idle();
    EXPECT_EQ(sim.hazard_count(), 0u);
    EXPECT_EQ(sim.census().streams, 0u);
    EXPECT_EQ(live_pieces(), 0u);
  }
  // The primary context, as it is now.
  void enter() {
    EXPECT_EQ(sim.device_primary_ctx_retain(0, handle), CuResult::success);
    EXPECT_EQ(sim.ctx_set_current(handle), CuResult::success);
    EXPECT_EQ(sim.ctx_get_id(handle, id), CuResult::success);
  }
  DevicePtr device_memory(Bytes bytes) {
    DevicePtr ptr{};
    EXPECT_EQ(sim.mem_alloc(bytes, ptr), CuResult::success);
    taken.push_back(ptr);
    return ptr;
  }
  void fail(std::vector<Call> calls_to_fail, std::uint64_t nth = 1,
            CuResult result = CuResult::invalid_value) {
    faults.set_plan({std::move(calls_to_fail), nth, result, driver::FaultPlan::Repeat::once});
  }
  std::uint64_t count(Call call) const { return calls.count(call); }
  template <typename T>
  static void expect_failed(const Result<T>& result, Call call) {
    ASSERT_FALSE(result.ok());
    EXPECT_EQ(result.error().code, ErrorCode::driver_failed);
    EXPECT_THAT(result.error().message,
                testing::HasSubstr(std::string(driver::to_string(call)) + " failed"));
  }

  driver::sim::SimDriver sim;
  driver::FaultingDriver faults{sim};
  driver::RecordingDriver calls{faults};
  test::HookedDriver hooks{calls};
  PinningDriver pins{hooks};
  driver::ContextHandle handle{};
  driver::ContextId id{};
  std::vector<DevicePtr> taken;
};

}  // namespace vpmm::host_copy
