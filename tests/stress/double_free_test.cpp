// SPDX-License-Identifier: Apache-2.0
// stress tests: two threads free one live allocation at the same moment. That is a mistake of the
// caller; it must be refused to one of them, and must not hand the memory out twice.
#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <memory>
#include <ostream>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/mutex.hpp"
#include "stress/hammer.hpp"

namespace vpmm::stress {
namespace {

constexpr int kRounds = 20'000;

// How the second thread frees; the first names the stream of the allocation.
enum class Second { other_stream, any_stream, many, bound };

struct Case {
  const char* name;
  Second second;
  Bytes bytes;
};
void PrintTo(const Case& each, std::ostream* out) { *out << each.name; }
constexpr Case kCases[] = {
    {"a_block_by_its_bound_stream", Second::bound, 4 * kKiB},
    {"a_block_by_another_stream", Second::other_stream, 4 * kKiB},
    {"a_block_by_any_stream", Second::any_stream, 4 * kKiB},
    {"a_run_by_another_stream", Second::other_stream, 300 * kKiB},
    {"a_run_across_pages_by_another_stream", Second::other_stream, 1500 * kKiB},
    {"pages_by_another_stream", Second::other_stream, 4 * kMiB},
    {"pages_by_any_stream", Second::any_stream, 4 * kMiB},
    {"one_of_many_by_another_stream", Second::many, 4 * kKiB},
};

// Two threads leave it within nanoseconds, which a barrier that puts threads to sleep would not let
// them.
class Meeting {
 public:
  void meet() {
    const std::uint64_t wanted = arrived_++ / 2 * 2 + 2;
    for (int tries = 1; arrived_.load() < wanted; ++tries) {
      spin_pause();
      if (tries % 256 == 0) std::this_thread::yield();  // the other may have no core
    }
  }

 private:
  std::atomic<std::uint64_t> arrived_{0};
};

class DoubleFree : public ::testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    own = hammer.stream();
    other = hammer.stream();
    auto made = hammer.pool().bind(own);
    ASSERT_TRUE(made.ok());
    bound = std::move(made).value();
  }
  void TearDown() override { bound.reset(); }

  Result<void> free_second(DevicePtr ptr) {
    switch (GetParam().second) {
      case Second::other_stream: return hammer.pool().deallocate(ptr, other);
      case Second::any_stream: return hammer.pool().deallocate(ptr, std::nullopt);
      case Second::many: return hammer.pool().deallocate_many(std::vector<DevicePtr>{ptr}, other);
      case Second::bound: return bound->deallocate(ptr);
    }
    return {};
  }
  // Memory that was freed twice comes out twice.
  void take_back() {
    std::vector<DevicePtr> taken;
    for (const StreamHandle stream : {own, other, own, other})
      if (const auto made = hammer.allocate(GetParam().bytes, stream))
        taken.push_back(made.value());
    for (std::size_t i = 0; i < taken.size() && hammer.goes_on(); ++i)
      hammer.deallocate(taken[i], i % 2 == 0 ? own : other);
  }

  Hammer hammer{small_config(false)};
  StreamHandle own{};
  StreamHandle other{};
  std::unique_ptr<context::BoundStream> bound;
};

TEST_P(DoubleFree, of_two_threads_at_once_frees_for_one_and_is_refused_to_the_other) {
  Meeting both;
  DevicePtr victim{};
  Result<void> first;
  Result<void> second;
  const auto is_refused = [](const Result<void>& freed) {
    return !freed && freed.error().code == ErrorCode::invalid_pointer;
  };
  bool is_right = true;  // written by the first thread between two barriers
  const auto check = [&](int round) {
    is_right = (first.ok() && is_refused(second)) || (second.ok() && is_refused(first));
    EXPECT_TRUE(is_right) << "round " << round << ": " << (first ? "freed" : first.error().message)
                          << "; " << (second ? "freed" : second.error().message);
    if (!is_right || round % 16 == 0) take_back();
    is_right = is_right && hammer.goes_on();
  };
  const auto run = [&](bool is_first) {
    std::mt19937_64 random(is_first ? 1 : 2);
    for (int round = 0; round < kRounds && is_right; ++round) {
      Watchdog::doing("wait for the other thread");
      if (is_first) victim = hammer.pool().allocate({GetParam().bytes, 0, own}).value();
      both.meet();
      // The ways of the second take longer until they look for the allocation.
      for (std::uint64_t pauses = random() % (is_first ? 64 : 4); pauses > 0; --pauses)
        spin_pause();
      (is_first ? first : second) =
          is_first ? hammer.pool().deallocate(victim, own) : free_second(victim);
      both.meet();
      if (is_first) check(round);
      both.meet();
    }
  };
  hammer.together({[&] { run(true); }, [&] { run(false); }});
}

INSTANTIATE_TEST_SUITE_P(Of, DoubleFree, ::testing::ValuesIn(kCases),
                         [](const ::testing::TestParamInfo<Case>& each) {
                           return std::string(each.param.name);
                         });

}  // namespace
}  // namespace vpmm::stress
