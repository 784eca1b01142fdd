// SPDX-License-Identifier: Apache-2.0
// capi tests: a private pool, and the simulated GPU behind it: streams, kernels and bytes.
#pragma once

#include <cstdint>
#include <vector>

#include "capi/sim_pool.hpp"
#include "context/open_driver.hpp"
#include "driver/sim/sim_driver.hpp"

namespace vpmm::capi_test {

constexpr std::uint64_t kMillisecond = 1'000'000;  // in nanoseconds

// The primary context of device 0 is current during the test.
class GpuPool : public SimPool {
 protected:
  void SetUp() override {
    SimPool::SetUp();
    const auto opened = context::process_driver(settings::DriverKind::sim);
    ASSERT_TRUE(opened.ok()) << opened.error().message;
    gpu_ = dynamic_cast<driver::sim::SimDriver*>(opened.value());
    ASSERT_NE(gpu_, nullptr);
    hazards_before_ = gpu_->hazard_count();
    driver::ContextHandle context{};
    must(gpu_->device_primary_ctx_retain(0, context));
    must(gpu_->ctx_set_current(context));
  }
  void TearDown() override {
    gpu_->run_until_idle();
    for (const driver::StreamHandle stream : streams_) must(gpu_->stream_destroy(stream));
    EXPECT_EQ(gpu_->hazard_count(), hazards_before_)
        << (gpu_->hazards().empty() ? "" : gpu_->hazards().back().describe());
    SimPool::TearDown();
    must(gpu_->ctx_set_current({}));
    must(gpu_->device_primary_ctx_release(0));
  }
  static void must(driver::CuResult result) {
    ASSERT_EQ(result, driver::CuResult::success) << driver::to_string(result);
  }

  vpmm_stream new_stream() {
    driver::StreamHandle stream{};
    must(gpu_->stream_create(driver::StreamFlags::non_blocking, stream));
    streams_.push_back(stream);
    return reinterpret_cast<vpmm_stream>(static_cast<std::uintptr_t>(stream));
  }
  // A kernel that touches no memory.
  void keep_busy(vpmm_stream stream, std::uint64_t duration_ns) {
    const driver::sim::Kernel kernel{"busy", duration_ns, {}, {}};
    must(gpu_->launch(kernel, handle_of(stream)));
  }
  bool is_idle(vpmm_stream stream) {
    return gpu_->stream_query(handle_of(stream)) == driver::CuResult::success;
  }
  void write(void* ptr, const std::vector<std::uint8_t>& bytes) {
    must(gpu_->memcpy_host_to_device(address_of(ptr), bytes.data(), bytes.size()));
  }
  std::vector<std::uint8_t> read(void* ptr, std::size_t bytes) {
    std::vector<std::uint8_t> found(bytes);
    must(gpu_->memcpy_device_to_host(found.data(), address_of(ptr), bytes));
    return found;
  }
  void* allocate_on(vpmm_stream stream, std::size_t bytes) {
    void* ptr = nullptr;
    EXPECT_EQ(vpmm_allocate(pool_, bytes, stream, &ptr), VPMM_OK) << vpmm_last_error();
    return ptr;
  }

  static driver::StreamHandle handle_of(vpmm_stream stream) {
    return driver::StreamHandle{reinterpret_cast<std::uintptr_t>(stream)};
  }
  static DevicePtr address_of(const void* ptr) {
    return DevicePtr{reinterpret_cast<std::uintptr_t>(ptr)};
  }

  driver::sim::SimDriver* gpu_ = nullptr;

 private:
  std::vector<driver::StreamHandle> streams_;
  std::uint64_t hazards_before_ = 0;
};

}  // namespace vpmm::capi_test
