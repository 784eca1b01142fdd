// SPDX-License-Identifier: Apache-2.0
// stress tests: threads that share one stream, so that all they do is one cache's.
#include <gtest/gtest.h>

#include <atomic>
#include <iterator>
#include <map>
#include <mutex>
#include <random>
#include <vector>

#include "stress/hammer.hpp"

namespace vpmm::stress {
namespace {

// What is live, by where it begins.
class Live {
 public:
  void add(AddressRange range) {
    const std::lock_guard lock(mutex_);
    const auto [place, is_new] = ranges_.emplace(range.begin, range);
    EXPECT_TRUE(is_new) << "handed out twice: " << to_integer(range.begin);
    if (place != ranges_.begin()) {
      EXPECT_LE(std::prev(place)->second.end(), range.begin)
          << "inside another: " << to_integer(range.begin);
    }
    if (std::next(place) != ranges_.end()) {
      EXPECT_LE(range.end(), std::next(place)->first)
          << "around another: " << to_integer(range.begin);
    }
  }
  void remove(DevicePtr begin) {
    const std::lock_guard lock(mutex_);
    ranges_.erase(begin);
  }

 private:
  std::mutex mutex_;
  std::map<DevicePtr, AddressRange> ranges_;
};

class OneStreamStress : public ::testing::TestWithParam<bool> {
 protected:
  static constexpr int kRounds = 150;
  Hammer hammer{small_config(GetParam())};
  StreamHandle stream = hammer.stream();
  Live live;
  std::atomic<std::uint64_t> seen{0};  // an address that was live once
  std::atomic<bool> is_over{false};

  void allocate(Bytes bytes, std::vector<DevicePtr>& mine) {
    const auto made = hammer.pool().allocate({bytes, 0, stream});
    if (!made) return;
    live.add({made.value(), bytes});
    mine.push_back(made.value());
    seen.store(to_integer(made.value()), std::memory_order_relaxed);
  }
  void free(std::mt19937_64& random, std::vector<DevicePtr>& mine) {
    std::swap(mine[random() % mine.size()], mine.back());
    live.remove(mine.back());
    EXPECT_TRUE(hammer.pool().deallocate(mine.back(), stream).ok());
    mine.pop_back();
  }
  // Runs of more than half a page, for which segments grow, part and go back.
  void large() {
    std::mt19937_64 random(1);
    std::vector<DevicePtr> mine;
    for (int round = 0; round < kRounds; ++round) {
      for (std::size_t count = 4 + random() % 60; count > 0; --count)
        allocate(1100 * kKiB + random() % (700 * kKiB), mine);
      while (!mine.empty() && random() % 40 != 0) free(random, mine);
      if (random() % 2 != 0) continue;
      EXPECT_TRUE(hammer.pool().limits().trim(0).ok());
    }
    while (!mine.empty()) free(random, mine);
    is_over = true;
  }
  // Blocks, whose slabs are cut and end.
  void small() {
    std::mt19937_64 random(2);
    std::vector<DevicePtr> mine;
    while (!is_over) {
      for (std::size_t most = random() % 120; mine.size() < most;)
        allocate(random() % 4 == 0 ? 1 + random() % 4096 : 4096 + random() % (126 * kKiB), mine);
      for (std::size_t least = random() % 30; mine.size() > least;) free(random, mine);
    }
    while (!mine.empty()) free(random, mine);
  }
  // Looks for addresses where something ends and begins, without being allowed to end any of it.
  void look() {
    while (!is_over) {
      const DevicePtr ptr{seen.load(std::memory_order_relaxed) + 1};
      if (to_integer(ptr) == 1) continue;
      const auto freed = hammer.pool().deallocate(ptr, stream);
      ASSERT_FALSE(freed.ok()) << "an address inside was freed";
      EXPECT_EQ(freed.error().code, ErrorCode::invalid_pointer);
      const auto info = hammer.pool().query(ptr);
      if (info) {
        EXPECT_TRUE((AddressRange{info.value().begin, info.value().usable}.contains(ptr)));
      }
    }
  }
};

TEST_P(OneStreamStress, what_its_threads_get_is_apart_and_addresses_inside_are_no_ones_to_free) {
  hammer.together({[&] { large(); }, [&] { small(); }, [&] { look(); }});
}

INSTANTIATE_TEST_SUITE_P(Policies, OneStreamStress, ::testing::Bool(),
                         [](const auto& each) { return each.param ? "pages" : "adaptive"; });

}  // namespace
}  // namespace vpmm::stress
