// SPDX-License-Identifier: Apache-2.0
// context: waits of calls in recordings, and how often a wait of the host looks.
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <string>
#include <vector>

#include "pool/grow_delay.hpp"
#include "support/hooked_world.hpp"
#include "support/recorded_file.hpp"

namespace vpmm::test {
namespace {

using driver::Call;
using observe::RecordedKind;

constexpr std::uint64_t kMicro = 1'000;
constexpr std::uint64_t kMilli = 1'000'000;

// `busy` frees memory behind a kernel, and another request takes it.
struct WaitScene : HookedWorld {
  explicit WaitScene(const WorldOptions& options) : HookedWorld(options) {}
  ~WaitScene() { std::filesystem::remove(path); }
  WaitScene(const WaitScene&) = delete;
  WaitScene& operator=(const WaitScene&) = delete;

  void free_behind_a_kernel(Bytes bytes, std::uint64_t duration_ns) {
    const DevicePtr held = allocate(bytes, busy);
    use(held, bytes, busy, duration_ns);
    deallocate(held, busy);
    hooks.sleeps = 0;
  }
  // Nanoseconds of each pause.
  std::vector<std::uint64_t> pauses_of(Bytes bytes, pool::Stream on) {
    EXPECT_TRUE(pool->reports().start_recording(path).ok());
    allocate(bytes, on);
    EXPECT_TRUE(pool->reports().stop_recording().ok());
    std::vector<std::uint64_t> pauses;
    for (const observe::RecordedEvent& event : read_recorded(path).events)
      if (event.kind == static_cast<std::uint16_t>(RecordedKind::pause))
        pauses.push_back(event.value);
    return pauses;
  }

  const std::string path =
      ::testing::TempDir() + "vpmm_waits_" + std::to_string(getpid()) + ".vpmmrec";
  const StreamHandle own = stream();
  const StreamHandle busy = stream();
};

TEST(WaitsTold, before_growth_are_as_long_as_they_took) {
  WaitScene scene(adaptive_world());
  constexpr Bytes kMuch = 256 * kMiB;
  scene.allocate(kPage, scene.own);
  scene.allocate(kMuch, scene.busy);
  scene.free_behind_a_kernel(kMuch, 1000 * kMilli);
  const std::vector<std::uint64_t> pauses = scene.pauses_of(kMuch, scene.own);
  ASSERT_EQ(pauses.size(), 1u);
  EXPECT_GE(pauses[0], pool::GrowDelay::kLongestNs);
  EXPECT_LT(pauses[0], pool::GrowDelay::kLongestNs + kMilli);
}

WorldOptions of_forty_pages() {
  WorldOptions options = page_world();
  options.config.limits.capacity = 40 * kPage;
  return options;
}

TEST(WaitsTold, of_the_host_are_as_long_as_they_took) {
  WaitScene scene(of_forty_pages());
  scene.free_behind_a_kernel(40 * kPage, 5 * kMilli);
  const std::vector<std::uint64_t> pauses = scene.pauses_of(40 * kPage, std::nullopt);
  ASSERT_EQ(pauses.size(), 1u);
  EXPECT_GT(pauses[0], 4 * kMilli);
  EXPECT_LT(pauses[0], 6 * kMilli);
}

TEST(WaitsTold, are_none_where_nobody_waited) {
  WaitScene scene(of_forty_pages());
  EXPECT_TRUE(scene.pauses_of(40 * kPage, std::nullopt).empty());
}

// After 20 microseconds at first, and twice as long each time, up to 160.
TEST(WaitOfTheHost, looks_often_at_first_and_seldom_later) {
  struct Case {
    std::uint64_t kernel_ns, least, most;
  };
  for (const Case& each :
       {Case{100 * kMicro, 1, 4}, Case{1000 * kMicro, 5, 12}, Case{16'000 * kMicro, 80, 106}}) {
    WaitScene scene(of_forty_pages());
    scene.free_behind_a_kernel(40 * kPage, each.kernel_ns);
    scene.allocate(40 * kPage, std::nullopt);
    EXPECT_GE(scene.hooks.sleeps, each.least) << each.kernel_ns;
    EXPECT_LE(scene.hooks.sleeps, each.most) << each.kernel_ns;
  }
}

}  // namespace
}  // namespace vpmm::test
