// pool: for what the host waits when memory runs out, and when it stops.
#include <functional>
#include <utility>

#include "pool/limited_pool.hpp"

namespace vpmm::pool {
namespace {

// The slow stream's page has the older event.
class OutOfMemoryWaits : public LimitedPool, public testing::WithParamInterface<Limit> {
 protected:
  static constexpr std::uint64_t kMillisecondNs = 1'000'000;
  static constexpr std::uint64_t kFastNs = 5 * kMillisecondNs;
  static constexpr std::uint64_t kSlowNs = 10 * kSecondNs;
  OutOfMemoryWaits() : LimitedPool(GetParam()) {
    relief.drain_deferred = [this](MutexLock&) {
      if (!std::exchange(has_deferred, false)) return false;
      give_back(others);
      return true;
    };
    open();
    const DevicePtr of_a = take(1, a);
    others = take(kPages - 1, b);
    give_back_pending(of_a, a, Closed::yes, kSlowNs);
  }
  std::uint64_t time_of(const std::function<void()>& call) {
    const std::uint64_t begin_ns = sim.now_ns();
    call();
    return sim.now_ns() - begin_ns;
  }

  DevicePtr others{};
  bool has_deferred = false;  // a free of these
};

TEST_P(OutOfMemoryWaits, the_host_waits_for_whichever_stream_is_done_first) {
  give_back_pending(others, b, Closed::yes, kFastNs);
  const std::uint64_t took = time_of([&] { take(kPages - 1, Caller{}); });
  EXPECT_GT(took, kFastNs - kMillisecondNs);
  EXPECT_LT(took, kFastNs + kMillisecondNs);
  EXPECT_EQ(sim.stream_query(*a.stream), CuResult::not_ready);
  EXPECT_EQ(figures().host_waits, 1u);
}

TEST_P(OutOfMemoryWaits, the_host_goes_on_to_wait_for_the_slow_stream_where_only_that_is_enough) {
  give_back_pending(others, b, Closed::yes, kFastNs);
  const std::uint64_t took = time_of([&] { take(kPages, Caller{}); });
  EXPECT_GT(took, kSlowNs - kMillisecondNs);
  EXPECT_LT(took, kSlowNs + kMillisecondNs);
  EXPECT_EQ(figures().host_waits, 2u);
}

TEST_P(OutOfMemoryWaits, what_somebody_frees_meanwhile_ends_the_wait) {
  driver.on_sleep = [&] {
    const MutexLock own(mutex);
    give_back(others);
  };
  EXPECT_LT(time_of([&] { take(kPages - 1, Caller{}); }), kMillisecondNs);
  EXPECT_EQ(figures().host_waits, 1u);
}

TEST_P(OutOfMemoryWaits, a_free_that_was_deferred_meanwhile_ends_the_wait) {
  driver.on_sleep = [&] { has_deferred = true; };
  EXPECT_LT(time_of([&] { take(kPages - 1, Caller{}); }), kMillisecondNs);
}

TEST_P(OutOfMemoryWaits, what_somebody_else_sees_complete_ends_the_wait) {
  give_back_pending(others, b, Closed::yes, kFastNs);
  driver.on_sleep = [&] {
    const MutexLock own(mutex);
    sim.advance_host_ns(kFastNs);
    EXPECT_TRUE(pool->learn(2).ok());
  };
  EXPECT_LT(time_of([&] { take(kPages - 1, Caller{}); }), kFastNs + kMillisecondNs);
}

// The slow stream's second event tells of nothing new, and none stands for what was freed without a stream.
TEST_P(OutOfMemoryWaits, an_event_that_tells_of_nothing_ends_the_wait) {
  expect(sim.launch({"more", kSecondNs, {}, {}}, *a.stream));
  EXPECT_TRUE(timelines.close(*a.timeline, *a.stream).ok());
  pool->deallocate(pool->owner(others), time::Stamp(timelines.next(timelines.any_stream(), 1)));
  EXPECT_FALSE(allocate(kPages, Caller{}).ok());
  EXPECT_EQ(figures().host_waits, 2u);
}

TEST_P(OutOfMemoryWaits, a_query_that_fails_ends_the_request_and_nothing_is_lost) {
  give_back_pending(others, b, Closed::yes, kFastNs);
  driver.on_sleep = [&] { driver.on[Call::event_query] = [] { return CuResult::illegal_address; }; };
  const auto failed = allocate(kPages - 1, Caller{});
  ASSERT_FALSE(failed.ok());
  EXPECT_EQ(failed.error().code, ErrorCode::poisoned);
  driver.on.clear();
  take(kPages - 1, Caller{});
}

INSTANTIATE_TEST_SUITE_P(Limits, OutOfMemoryWaits, every_limit(), name_of_limit);

}  // namespace
}  // namespace vpmm::pool
