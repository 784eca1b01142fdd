// SPDX-License-Identifier: Apache-2.0
// report: how much the pool says that it can hand out, and how much is missing, hold to the page.
#include "report/headroom.hpp"

#include <gtest/gtest.h>

#include <limits>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "base/quantity.hpp"
#include "support/pool_world_words.hpp"

namespace vpmm::test {
namespace {

using report::Headroom;

TEST(Headroom, is_what_may_be_mapped_and_what_is_idle) {
  const Headroom room(10, 4, 100, 50);
  EXPECT_EQ(room.mappable(), 40u);
  EXPECT_EQ(room.left(), 44u);
  EXPECT_EQ(room.missing(44), 0u);
  EXPECT_EQ(room.missing(50), 6u);
  EXPECT_FALSE(room.is_limited(44)) << "nothing is missing";
  EXPECT_TRUE(room.is_limited(45));
  EXPECT_TRUE(room.is_limited(50));
  EXPECT_TRUE(room.is_limited(104));
  EXPECT_FALSE(room.is_limited(105)) << "the GPU has less";
}

TEST(Headroom, below_zero_counts_what_is_over_a_lowered_limit) {
  const Headroom room(600, 0, 1000, 100);
  EXPECT_EQ(room.mappable(), 0u);
  EXPECT_EQ(room.left(), 0u);
  EXPECT_EQ(room.missing(10), 510u);
  EXPECT_EQ(Headroom(600, 550, 1000, 100).left(), 50u) << "idle memory above the limit goes back";
}

TEST(Headroom, of_the_largest_numbers_does_not_overflow) {
  constexpr Bytes kMost = std::numeric_limits<Bytes>::max();
  EXPECT_GT(Headroom(0, kMost, kMost, kMost).left(), Bytes{1} << 60);
  EXPECT_GT(Headroom(kMost, 0, kMost, 1).missing(kMost), Bytes{1} << 60);
  EXPECT_EQ(Headroom(0, 0, kMost, std::nullopt).missing(1), 0u);
}

// A random program on two streams with a limit that goes up and down.
class LimitedProgram {
 public:
  LimitedProgram(const WorldOptions& options, unsigned seed) : world_(options), random_(seed) {
    for (StreamHandle& stream : streams_) stream = world_.stream();
  }
  ~LimitedProgram() {
    set_capacity(kGiB);
    while (!live_.empty()) free_one();
  }
  LimitedProgram(const LimitedProgram&) = delete;
  LimitedProgram& operator=(const LimitedProgram&) = delete;

  void step() {
    switch (random_() % 8) {
      case 0:
      case 1:
      case 2:
        allocate(random_() % 3 == 0 ? 1 + random_() % (kMiB / 2) : kPage * (1 + random_() % 8));
        break;
      case 3:
      case 4: free_one(); break;
      case 5:
        static_cast<void>(world_.pool().limits().trim(random_() % 2 == 0 ? 0 : 16 * kPage));
        break;
      case 6: set_capacity(kPage * (8 + random_() % 60) + random_() % kPage); break;
      default: check(); break;
    }
  }
  // What is said to be free can be had; one page more is missing, and helps.
  void check() {
    const Bytes free = world_.pool().limits().memory_info().value().free;
    EXPECT_LE(free, capacity_);
    const Bytes pages = free / kPage * kPage;
    if (pages > 0) {
      const auto all = world_.pool().allocate({pages, 0, streams_[0]});
      ASSERT_TRUE(all.ok()) << readable_bytes(pages) << " are said to be free:\n"
                            << all.error().message;
      ASSERT_TRUE(world_.pool().deallocate(all.value(), streams_[0]).ok());
    }
    // Above a limit that was lowered, idle memory stays mapped and serves requests all the same; so
    // may what is trapped, as all of it shows once caches are empty.
    EXPECT_FALSE(world_.pool().allocate({capacity_ + kGiB, 0, streams_[0]}).ok());
    const Bytes trapped = (world_.statistics().trapped_bytes + kPage - 1) / kPage * kPage;
    if (world_.statistics().mapped_bytes <= capacity_)
      check_missing(pages + trapped + kPage * (1 + random_() % 4));
  }

 private:
  void allocate(Bytes bytes) {
    const StreamHandle stream = streams_[random_() % 2];
    const auto ptr = world_.pool().allocate({bytes, 0, stream});
    if (!ptr) return;
    world_.use(ptr.value(), bytes, stream, 20'000);
    live_.emplace_back(ptr.value(), stream);
  }
  void free_one() {
    if (live_.empty()) return;
    std::swap(live_[random_() % live_.size()], live_.back());
    EXPECT_TRUE(world_.pool().deallocate(live_.back().first, live_.back().second).ok());
    live_.pop_back();
  }
  void set_capacity(Bytes bytes) {
    capacity_ = bytes;
    world_.pool().limits().set_capacity(bytes);
  }
  void check_missing(Bytes bytes) {
    const auto failed = world_.pool().allocate({bytes, 0, streams_[1]});
    ASSERT_FALSE(failed.ok()) << readable_bytes(bytes) << " were served " << world_.picture();
    const std::string& text = failed.error().message;
    const std::string until = text.substr(0, text.find(" are missing"));
    const Bytes missing = parse_bytes(until.substr(until.rfind("; ") + 2)).value();
    const std::size_t advice = text.find("\n  - raise ");
    ASSERT_NE(advice, std::string::npos) << text;
    EXPECT_NE(text.find(" by " + until.substr(until.rfind("; ") + 2) + " or more", advice),
              std::string::npos)
        << text;
    const Bytes before = capacity_;
    if (world_.statistics().trapped_bytes == 0) {
      set_capacity(before + missing - kPage);  // more is mapped by no failed request
      EXPECT_FALSE(world_.pool().allocate({bytes, 0, streams_[1]}).ok())
          << "a page less does not help\n"
          << text;
    }
    set_capacity(before + missing);
    const auto served = world_.pool().allocate({bytes, 0, streams_[1]});
    ASSERT_TRUE(served.ok()) << "raised by " << missing << " as advised:\n" << text;
    EXPECT_TRUE(world_.pool().deallocate(served.value(), streams_[1]).ok());
    set_capacity(before);
  }

  PoolWorld world_;
  std::mt19937 random_;
  StreamHandle streams_[2] = {};
  std::vector<std::pair<DevicePtr, StreamHandle>> live_;
  Bytes capacity_ = kGiB;
};

class MemoryInfoProperty : public testing::TestWithParam<bool> {};

TEST_P(MemoryInfoProperty, what_is_free_can_be_had_and_what_is_missing_is_missing) {
  for (unsigned seed = 1; seed <= 40 && !HasFailure(); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    WorldOptions options = GetParam() ? page_world() : adaptive_world();
    options.config.limits.capacity = kGiB;
    LimitedProgram program(options, seed);
    for (int i = 0; i < 120 && !HasFailure(); ++i) program.step();
  }
}

INSTANTIATE_TEST_SUITE_P(Settings, MemoryInfoProperty, testing::Bool(), [](const auto& each) {
  return each.param ? std::string("page_mode") : std::string("default");
});

TEST(MemoryInfo, total_is_the_limit_where_it_is_less_than_the_gpu_has) {
  WorldOptions options = adaptive_world();
  options.sim.capacity = kGiB;
  PoolWorld world(options);
  world.pool().limits().set_capacity(2 * kGiB);
  EXPECT_EQ(world.pool().limits().memory_info().value().total, kGiB);
  world.pool().limits().set_capacity(100 * kMiB);
  EXPECT_EQ(world.pool().limits().memory_info().value().total, 100 * kMiB);
  EXPECT_EQ(world.pool().limits().memory_info().value().free, 100 * kMiB);
}

TEST(MemoryInfo, free_counts_pages_that_small_requests_have_left) {
  WorldOptions options = adaptive_world();
  options.config.limits.capacity = 64 * kMiB;
  PoolWorld world(options);
  const StreamHandle stream = world.stream();
  const DevicePtr kept = world.allocate(1000, stream);
  EXPECT_EQ(world.pool().limits().memory_info().value().free, 64 * kMiB - kPage);
  world.deallocate(kept, stream);
  EXPECT_EQ(world.pool().limits().memory_info().value().free, 64 * kMiB);
}

}  // namespace
}  // namespace vpmm::test
