// SPDX-License-Identifier: Apache-2.0
// context: in steady state the calls of two streams write no cache line in common. Looks at all
// memory of the process, before and after each step: what differs was written.
#include <gtest/gtest.h>
#include <malloc.h>
#include <sched.h>
#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <iterator>
#include <limits>
#include <memory>
#include <set>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "base/line_allocator.hpp"
#include "context/context.hpp"
#include "driver/forwarding.hpp"
#include "driver/sim/sim_driver.hpp"

namespace vpmm::test {
namespace {

using driver::CuResult;
using driver::StreamHandle;

using Line = std::array<std::uint64_t, kCacheLine / sizeof(std::uint64_t)>;

// Memory that no heap has a share in, so that what the watch itself writes is not what it sees.
template <typename T>
class Apart {
 public:
  explicit Apart(std::size_t count) : bytes_(count * sizeof(T)) {
    void* const begin =
        ::mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    EXPECT_NE(begin, MAP_FAILED);
    begin_ = static_cast<T*>(begin);
  }
  ~Apart() { ::munmap(begin_, bytes_); }
  Apart(const Apart&) = delete;
  Apart& operator=(const Apart&) = delete;
  T& operator[](std::size_t i) { return begin_[i]; }

 private:
  std::size_t bytes_;
  T* begin_;
};

// Writable memory of the process as it is now, without the stack. From here on the heap gives
// nothing back: what is looked at stays.
std::vector<std::pair<const Line*, const Line*>> writable_memory() {
  EXPECT_EQ(::mallopt(M_TRIM_THRESHOLD, std::numeric_limits<int>::max()), 1);
  std::vector<std::pair<const Line*, const Line*>> ranges;
  std::ifstream maps("/proc/self/maps");
  for (std::string text; std::getline(maps, text);) {
    std::istringstream fields(text);
    std::uintptr_t begin = 0, end = 0;
    char dash = 0;
    std::string access;
    fields >> std::hex >> begin >> dash >> end >> access;
    if (access.compare(0, 2, "rw") == 0 && text.find("[stack]") == std::string::npos)
      ranges.emplace_back(reinterpret_cast<const Line*>(begin), reinterpret_cast<const Line*>(end));
  }
  return ranges;
}

class Watch {
 public:
  // Adds the lines that `step` writes.
  template <typename Step>
  void look(std::set<const Line*>& written, Step&& step) {
    std::size_t at = 0;
    for (const auto& [begin, end] : ranges_)
      for (const Line* line = begin; line != end; ++line) before_[at++] = *line;
    step();
    std::size_t count = at = 0;
    for (const auto& [begin, end] : ranges_)
      for (const Line* line = begin; line != end; ++line)
        if (*line != before_[at++] && count < kMostChanges) changed_[count++] = line;
    ASSERT_LT(count, kMostChanges);
    for (std::size_t i = 0; i < count; ++i) written.insert(changed_[i]);
  }

 private:
  static std::size_t lines_in(const std::vector<std::pair<const Line*, const Line*>>& ranges) {
    std::size_t lines = 0;
    for (const auto& [begin, end] : ranges) lines += static_cast<std::size_t>(end - begin);
    return lines;
  }
  static constexpr std::size_t kMostChanges = 100'000;

  const std::vector<std::pair<const Line*, const Line*>> ranges_ = writable_memory();
  Apart<Line> before_{lines_in(ranges_)};
  Apart<const Line*> changed_{kMostChanges};
};

// Where a thread runs is written into its control block by the kernel (rseq), whenever it moves:
// nobody's call does that.
class OnOneProcessor {
 public:
  OnOneProcessor() {
    EXPECT_EQ(::sched_getaffinity(0, sizeof before_, &before_), 0);
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(::sched_getcpu(), &one);
    EXPECT_EQ(::sched_setaffinity(0, sizeof one, &one), 0);
  }
  ~OnOneProcessor() { EXPECT_EQ(::sched_setaffinity(0, sizeof before_, &before_), 0); }
  OnOneProcessor(const OnOneProcessor&) = delete;
  OnOneProcessor& operator=(const OnOneProcessor&) = delete;

 private:
  cpu_set_t before_{};
};

// The simulator's observer writes down every call.
class Unobserved : public driver::ForwardingDriver {
 public:
  using ForwardingDriver::ForwardingDriver;
  driver::MemoryObserver* memory_observer() override { return nullptr; }
};

// So many of a size, one after another.
struct Burst {
  Bytes bytes = 0;
  std::size_t count = 0;
};

// Blocks of one unit, of several, of slabs that grow; runs; pages, and what leaves a rest of them.
constexpr std::array kBursts{Burst{100, 500},       Burst{5000, 70},       Burst{20 * kKiB, 30},
                             Burst{64 * kKiB, 600}, Burst{100 * kKiB, 20}, Burst{150 * kKiB, 9},
                             Burst{300 * kKiB, 9},  Burst{kMiB, 9},        Burst{2 * kMiB, 5},
                             Burst{5 * kMiB, 3},    Burst{7 * kMiB, 1},    Burst{8 * kMiB, 1}};

class User {
 public:
  User(context::Context& pool, driver::sim::SimDriver& sim) {
    EXPECT_EQ(sim.stream_create(driver::StreamFlags::non_blocking, stream_), CuResult::success);
    bound_ = pool.bind(stream_).value();
    for (std::size_t burst = 0; burst < kBursts.size(); ++burst)
      live_[burst].resize(kBursts[burst].count);
  }
  void allocate(std::size_t burst, std::size_t i) {
    DevicePtr& ptr = live_[burst][i];
    ptr = bound_->try_allocate(kBursts[burst].bytes, 0);
    if (!is_null(ptr)) return;
    ptr = bound_->allocate_beyond(kBursts[burst].bytes, 0).value();
    ++beyond;
  }
  void deallocate(std::size_t burst, std::size_t i) {
    const DevicePtr ptr = live_[burst][i];
    if (bound_->try_deallocate(ptr)) return;
    EXPECT_TRUE(bound_->deallocate_beyond(ptr).ok());
    ++beyond;
  }

  int beyond = 0;  // calls that took the pool's lock
  std::set<const Line*> written;

 private:
  StreamHandle stream_{};
  std::unique_ptr<context::BoundStream> bound_;
  std::array<std::vector<DevicePtr, LineAllocator<DevicePtr>>, kBursts.size()> live_;
};

// By the size of a page.
class Lines : public ::testing::TestWithParam<Bytes> {};

TEST_P(Lines, of_two_streams_in_steady_state_are_not_the_same) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "a sanitizer writes memory of its own";
#endif
  driver::sim::SimDriver sim{{}};
  Unobserved driver{sim};
  driver::ContextHandle handle{};
  ASSERT_EQ(sim.init(), CuResult::success);
  ASSERT_EQ(sim.device_primary_ctx_retain(0, handle), CuResult::success);
  ASSERT_EQ(sim.ctx_set_current(handle), CuResult::success);
  settings::Config config;
  config.page_size = GetParam();
  config.va_size = 64 * kGiB;
  const auto pool = context::Context::create(driver, 0, config).value();
  std::array<User, 2> users{User{*pool, sim}, User{*pool, sim}};
  const auto for_each_burst = [&](const auto& visit) {
    for (const auto call : {&User::allocate, &User::deallocate})
      for (std::size_t burst = 0; burst < kBursts.size(); ++burst) visit(call, burst);
  };
  const auto beyond = [&] { return users[0].beyond + users[1].beyond; };
  // They take turns, so that what they have lies side by side, until everything is cached.
  for (int round = 0, before = -1; round < 50 && beyond() != before; ++round) {
    before = beyond();
    for_each_burst([&](const auto call, std::size_t burst) {
      for (std::size_t i = 0; i < kBursts[burst].count; ++i)
        for (User& user : users) (user.*call)(burst, i);
    });
  }
  const int before = beyond();
  const OnOneProcessor pinned;
  Watch watch;
  for_each_burst([&](const auto call, std::size_t burst) {
    for (User& user : users)
      watch.look(user.written, [&] {
        for (std::size_t i = 0; i < kBursts[burst].count; ++i) (user.*call)(burst, i);
      });
  });
  EXPECT_EQ(beyond(), before) << "not everything was cached";
  EXPECT_GT(users[0].written.size(), 100u);
  std::vector<const Line*> both;
  std::set_intersection(users[0].written.begin(), users[0].written.end(), users[1].written.begin(),
                        users[1].written.end(), std::back_inserter(both));
  EXPECT_EQ(both.size(), 0u) << "of " << users[0].written.size() << " and "
                             << users[1].written.size() << ", the first at " << both.front();
  EXPECT_EQ(pool->reports().validate(), "");
}

INSTANTIATE_TEST_SUITE_P(PageSizes, Lines, ::testing::Values(2 * kMiB, 4 * kMiB));

}  // namespace
}  // namespace vpmm::test
