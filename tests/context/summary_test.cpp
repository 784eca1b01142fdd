// context: the summary that VPMM_STATS=1 asks for, and the line of a pool that opens.
#include "process/summary.hpp"

#include <gtest/gtest.h>

#include <cstdlib>
#include <memory>
#include <string>

#include "support/pool_world_words.hpp"

namespace vpmm::test {
namespace {

TEST(Summary, tells_peaks_requests_failures_driver_time_and_waits) {
  observe::Statistics figures;
  figures.peak_live_bytes = 30 * kMiB;
  figures.live_bytes = 10 * kMiB;
  figures.live_allocations = 2;
  figures.peak_mapped_bytes = figures.mapped_bytes = 32 * kMiB;
  figures.allocations = 200;
  figures.hits = 197;
  figures.deallocations = 198;
  figures.failed_allocations = 3;
  figures.caller_mistakes = 1;
  figures.driver_calls = 17;
  figures.driver_ns = 12'345'678;
  figures.chunks_created = 6;
  figures.chunks_moved = 4;
  figures.chunks_released = 5;
  figures.host_waits = 7;
  figures.gpu_waits = 8;
  figures.pauses = 9;
  EXPECT_EQ(process::summary(1, figures, 64 * kMiB),
            "vpmm: summary of a pool on device 1\n"
            "  live      30 MiB at most, 10 MiB now in 2 allocations\n"
            "  mapped    32 MiB at most, 32 MiB now; the limit is 64 MiB\n"
            "  requests  200 allocations, 98.5 % of them without a mapping call; 198 frees\n"
            "  failed    3 allocations, 1 call with wrong arguments\n"
            "  driver    17 calls took 12.3 ms; 6 chunks created, 4 moved, 5 given back\n"
            "  waits     7 of the host, 8 of streams, 9 pauses before the pool grew\n");
}

// What a pool prints that lives as long as `use` takes.
template <typename Use>
std::string printed(Use&& use) {
  ::testing::internal::CaptureStderr();
  {
    PoolWorld world(adaptive_world());
    use(world);
  }
  return ::testing::internal::GetCapturedStderr();
}

TEST(Summary, is_printed_at_the_end_of_a_pool_that_was_used_where_the_variable_says_so) {
  const auto use = [](PoolWorld& world) { world.allocate(3 * kPage, world.stream()); };
  EXPECT_EQ(printed(use), "");
  setenv("VPMM_STATS", "1", 1);
  const std::string text = printed(use);
  EXPECT_EQ(printed([](PoolWorld&) {}), "") << "nobody asked it for anything";
  unsetenv("VPMM_STATS");
  EXPECT_EQ(text.rfind("vpmm: summary of a pool on device 0\n  live      6 MiB at most", 0), 0u)
      << text;
}

TEST(Opening, names_the_device_the_limit_and_what_differs_from_the_defaults) {
  PoolWorld world(adaptive_world());
  settings::Config config;
  EXPECT_EQ(process::opening(world.pool().driver(), 0, config),
            "device 0 (Simulated GPU, 139 GiB): pool opened, limit none");
  config.capacity = 3 * kGiB;
  config.page_chunks = true;
  EXPECT_EQ(process::opening(world.pool().driver(), 0, config),
            "device 0 (Simulated GPU, 139 GiB): pool opened, limit 3 GiB; VPMM_CHUNK_MAX=page; "
            "VPMM_CAPACITY=3GiB");
}

}  // namespace
}  // namespace vpmm::test
