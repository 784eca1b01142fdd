// SPDX-License-Identifier: Apache-2.0
// process: lines of a pool's summary and of its opening.
#include "process/summary.hpp"

#include <gtest/gtest.h>

#include <string>

#include "driver/forwarding.hpp"
#include "driver/sim/sim_driver.hpp"

namespace vpmm::process {
namespace {

TEST(Summary, has_a_line_for_each_kind_of_figure) {
  observe::Statistics figures;
  figures.peak_live_bytes = 3 * kGiB;
  figures.live_bytes = 2 * kMiB;
  figures.live_allocations = 1;
  figures.peak_mapped_bytes = 4 * kGiB;
  figures.mapped_bytes = 6 * kMiB;
  figures.allocations = 8;
  figures.hits = 3;
  figures.deallocations = 7;
  figures.failed_allocations = 2;
  figures.caller_mistakes = 1;
  figures.driver_calls = 40;
  figures.driver_ns = 1'250'000;
  figures.chunks_created = 5;
  figures.chunks_moved = 6;
  figures.chunks_released = 9;
  figures.host_waits = 10;
  figures.gpu_waits = 11;
  figures.pauses = 12;
  EXPECT_EQ(summary(3, figures, std::nullopt),
            "vpmm: summary of a pool on device 3\n"
            "  live      3 GiB at most, 2 MiB now in 1 allocation\n"
            "  mapped    4 GiB at most, 6 MiB now; the limit is none\n"
            "  requests  8 allocations, 37.5 % of them without a mapping call; 7 frees\n"
            "  failed    2 allocations, 1 call with wrong arguments\n"
            "  driver    40 calls took 1.2 ms; 5 chunks created, 6 moved, 9 given back\n"
            "  waits     10 of the host, 11 of streams, 12 pauses before the pool grew\n");
}

TEST(Summary, names_the_limit) {
  EXPECT_NE(summary(0, {}, 5 * kGiB).find("; the limit is 5 GiB\n"), std::string::npos);
}

TEST(Summary, of_a_pool_that_nobody_used_has_no_misses) {
  EXPECT_NE(summary(0, {}, std::nullopt).find("0 allocations, 100.0 % of them"), std::string::npos);
}

TEST(Summary, is_printed_as_it_is) {
  testing::internal::CaptureStderr();
  print_summary("two\nlines\n");
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "two\nlines\n");
}

TEST(Opening, names_the_device_its_limit_and_what_differs_from_the_defaults) {
  driver::sim::SimDriver driver;
  ASSERT_EQ(driver.init(), driver::CuResult::success);
  settings::Config config;
  EXPECT_EQ(opening(driver, 0, config),
            "device 0 (Simulated GPU, 139 GiB): pool opened, limit none");
  config.limits.capacity_percent = 80;
  EXPECT_EQ(opening(driver, 0, config),
            "device 0 (Simulated GPU, 139 GiB): pool opened, limit 80%; VPMM_CAPACITY=80%");
  config.limits.capacity_percent = 0;
  config.limits.capacity = 3 * kGiB;
  config.prefer = settings::Prefer::latency;
  config.driver = settings::DriverKind::sim;
  config.streams.unnamed_free = settings::UnnamedFree::allocating_stream;
  EXPECT_EQ(opening(driver, 0, config),
            "device 0 (Simulated GPU, 139 GiB): pool opened, limit 3 GiB; VPMM_DRIVER=sim; "
            "VPMM_CAPACITY=3GiB; VPMM_PREFER=latency; unnamed_free=allocating_stream");
}

// Fails after it wrote.
class Confused final : public driver::ForwardingDriver {
 public:
  using ForwardingDriver::ForwardingDriver;
  driver::CuResult device_get_name(driver::DeviceOrdinal /*device*/, std::string& name) override {
    name = "half a na";
    return driver::CuResult::invalid_device;
  }
  driver::CuResult device_total_mem(driver::DeviceOrdinal /*device*/, Bytes& total) override {
    total = 7;
    return driver::CuResult::invalid_device;
  }
};

TEST(Opening, does_without_a_device_that_does_not_answer) {
  driver::sim::SimDriver sim;
  ASSERT_EQ(sim.init(), driver::CuResult::success);
  EXPECT_EQ(opening(sim, 99, {}), "device 99 (unknown, 0 bytes): pool opened, limit none");
  Confused confused(sim);
  EXPECT_EQ(opening(confused, 0, {}), "device 0 (unknown, 0 bytes): pool opened, limit none");
}

}  // namespace
}  // namespace vpmm::process
