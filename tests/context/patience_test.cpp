// context: a pause before new memory is created, for what other streams are about to be done with.
#include <gtest/gtest.h>

#include <functional>
#include <thread>

#include "driver/forwarding.hpp"
#include "support/pool_world_words.hpp"

namespace vpmm::testing {
namespace {

using driver::Call;
using driver::FaultPlan;

constexpr std::uint64_t kMicrosecond = 1'000;
constexpr std::uint64_t kMillisecond = 1'000'000;
constexpr std::uint64_t kPatience = 8 * kMillisecond;  // for growth by a fiftieth and more
constexpr std::uint64_t kGrowth = kMillisecond;        // the driver's calls for what these tests create take less

// Does something while a call pauses.
class Interlude final : public driver::ForwardingDriver {
 public:
  using ForwardingDriver::ForwardingDriver;
  void sleep_ns(std::uint64_t ns) override {
    ++looks;
    ForwardingDriver::sleep_ns(ns);
    if (between_looks) std::exchange(between_looks, {})();
  }
  int looks = 0;
  std::function<void()> between_looks;  // once; on the thread that pauses, without the pool's lock
};

// Two streams; `other` has half of what is live.
class Patience : public ::testing::Test {
 protected:
  static constexpr Bytes kHalf = 64 * kMiB;
  struct World {
    explicit World(const pool::Config& config = adaptive_world().config) {
      EXPECT_EQ(sim.init(), driver::CuResult::success);
      EXPECT_EQ(sim.device_primary_ctx_retain(0, context), driver::CuResult::success);
      EXPECT_EQ(sim.ctx_set_current(context), driver::CuResult::success);
      auto created = context::Context::create(interlude, 0, config);
      EXPECT_TRUE(created.ok());
      pool = std::move(created.value());
      own = stream();
      other = stream();
      allocate(kHalf, other);
      deallocate(allocate(kPage, own), own);
    }
    ~World() {
      faults.clear_plan();
      EXPECT_EQ(pool->validate(), "");
      sim.run_until_idle();
      EXPECT_EQ(sim.hazard_count(), 0u) << (sim.hazards().empty() ? "" : sim.hazards().front().describe());
    }
    World(const World&) = delete;
    World& operator=(const World&) = delete;

    driver::sim::SimDriver sim;
    driver::ContextHandle context{};
    driver::FaultingDriver faults{sim};
    driver::RecordingDriver calls{faults};
    Interlude interlude{calls};
    std::unique_ptr<context::Context> pool;
    StreamHandle own{}, other{};

    StreamHandle stream() {
      StreamHandle made{};
      EXPECT_EQ(sim.stream_create(StreamFlags::non_blocking, made), driver::CuResult::success);
      return made;
    }
    DevicePtr allocate(Bytes bytes, context::Stream on) {
      auto made = pool->allocate({bytes, 0, on});
      EXPECT_TRUE(made.ok()) << message_of(made);
      return made ? made.value() : DevicePtr{};
    }
    void deallocate(DevicePtr ptr, context::Stream on) { EXPECT_TRUE(pool->deallocate(ptr, on).ok()); }
    void use(DevicePtr ptr, Bytes bytes, StreamHandle on, std::uint64_t duration_ns) {
      driver::sim::Kernel kernel;
      kernel.name = "write";
      kernel.duration_ns = duration_ns;
      kernel.accesses = {{{ptr, bytes}, driver::sim::MemoryAccess::Kind::write}};
      EXPECT_EQ(sim.launch(kernel, on), driver::CuResult::success);
    }
    void free_behind_a_kernel(std::uint64_t duration_ns) { free_behind_a_kernel(duration_ns, allocate(kHalf, other)); }
    void free_behind_a_kernel(std::uint64_t duration_ns, DevicePtr held) {
      use(held, kHalf, other, duration_ns);
      deallocate(held, other);
    }
    std::uint64_t time_of(Bytes bytes) {
      const std::uint64_t begin = sim.now_ns();
      allocate(bytes, own);
      return sim.now_ns() - begin;
    }
    Bytes mapped() const { return pool->statistics().mapped_bytes; }
    void on_another_thread(const std::function<void()>& act) const {
      std::thread([&] {
        EXPECT_EQ(const_cast<driver::sim::SimDriver&>(sim).ctx_set_current(context), driver::CuResult::success);
        act();
      }).join();
    }
  };
  static pool::Config preferring(pool::Prefer prefer) {
    pool::Config config = adaptive_world().config;
    config.prefer = prefer;
    return config;
  }

  // A call for 16 MiB, and one for `second` of another stream and on another thread so long after that began to look,
  // while nothing comes back: what each took, and how many pauses were counted.
  struct TwoCalls {
    std::uint64_t first_ns = 0;
    std::uint64_t second_ns = 0;
    std::uint64_t pauses = 0;
  };
  static TwoCalls two_calls(std::uint64_t apart_ns, Bytes second = 16 * kMiB) {
    World world;
    TwoCalls calls;
    const StreamHandle third = world.stream();
    world.deallocate(world.allocate(256, third), third);
    world.free_behind_a_kernel(100 * kMillisecond);
    world.interlude.between_looks = [&] {
      world.on_another_thread([&] {
        world.sim.advance_host_ns(apart_ns);
        const std::uint64_t begin = world.sim.now_ns();
        world.allocate(second, third);
        calls.second_ns = world.sim.now_ns() - begin;
      });
    };
    const std::uint64_t before = world.pool->statistics().pauses;
    calls.first_ns = world.time_of(16 * kMiB);
    calls.pauses = world.pool->statistics().pauses - before;
    return calls;
  }
};

TEST_F(Patience, memory_that_is_complete_in_a_moment_is_used_instead_of_new_memory) {
  World world;
  world.free_behind_a_kernel(300 * kMicrosecond);
  const Bytes mapped = world.mapped();
  const std::uint64_t took = world.time_of(kHalf);
  EXPECT_EQ(world.mapped(), mapped);
  EXPECT_GT(took, 250 * kMicrosecond);
  EXPECT_LT(took, 600 * kMicrosecond);
  EXPECT_EQ(world.pool->statistics().pauses, 1u);
  EXPECT_EQ(world.pool->statistics().gpu_waits, 0u) << "no stream was put behind the other";
  EXPECT_EQ(world.pool->statistics().host_waits, 0u);
}

// Allocated on the caller's stream, freed on the other: it needs both.
TEST_F(Patience, is_for_memory_that_was_handed_over_too) {
  World world;
  const DevicePtr made = world.allocate(kHalf, world.own);
  EXPECT_EQ(world.sim.stream_synchronize(world.own), driver::CuResult::success);
  world.free_behind_a_kernel(300 * kMicrosecond, made);
  const Bytes mapped = world.mapped();
  world.allocate(kHalf, world.own);
  EXPECT_EQ(world.mapped(), mapped);
}

// Whoever sees first that it is complete: here a call of another thread, in the pause, which holds no lock.
TEST_F(Patience, memory_that_another_call_sees_first_is_found) {
  World world;
  const StreamHandle third = world.stream();
  world.deallocate(world.allocate(256, third), third);
  world.free_behind_a_kernel(300 * kMicrosecond);
  const Bytes mapped = world.mapped();
  const int looks = world.interlude.looks;
  world.interlude.between_looks = [&] {
    world.on_another_thread([&] {
      world.sim.advance_host_ns(400 * kMicrosecond);
      world.deallocate(world.allocate(100'000, third), third);
    });
  };
  world.allocate(kHalf, world.own);
  EXPECT_EQ(world.mapped(), mapped);
  EXPECT_EQ(world.interlude.looks - looks, 1);
}

TEST_F(Patience, memory_that_is_freed_on_the_own_stream_meanwhile_is_found) {
  World world;
  const DevicePtr mine = world.allocate(kHalf, world.own);
  world.free_behind_a_kernel(100 * kMillisecond);
  const Bytes mapped = world.mapped();
  world.interlude.between_looks = [&] { world.on_another_thread([&] { world.deallocate(mine, world.own); }); };
  EXPECT_EQ(world.allocate(kHalf, world.own), mine);
  EXPECT_EQ(world.mapped(), mapped);
}

TEST_F(Patience, ends_and_the_pool_grows) {
  World world;
  world.free_behind_a_kernel(100 * kMillisecond);
  const Bytes mapped = world.mapped();
  const std::uint64_t took = world.time_of(kHalf);
  EXPECT_EQ(world.mapped(), mapped + kHalf - kPage) << "its idle page moves";
  EXPECT_GT(took, kPatience);
  EXPECT_LT(took, kPatience + kGrowth);
  EXPECT_EQ(world.pool->statistics().pauses, 1u);
  EXPECT_EQ(world.sim.stream_query(world.other), driver::CuResult::not_ready);
}

// A page beside some 800 MiB: an eighth of a fiftieth, so 1 ms.
TEST_F(Patience, is_as_long_as_the_growth_is_large) {
  World world;
  world.allocate(800 * kMiB - kHalf, world.own);
  world.free_behind_a_kernel(100 * kMillisecond);
  std::uint64_t took = 0;
  while (world.pool->statistics().pauses == 0) {
    ASSERT_LT(world.mapped(), kGiB);
    took = world.time_of(kPage);
  }
  EXPECT_GT(took, 900 * kMicrosecond);
  EXPECT_LT(took, 1'200 * kMicrosecond);
}

// Seven of 8 ms at once; those are a twentieth of the time when 1,120 ms have passed, and another may begin a second
// before.
TEST_F(Patience, takes_a_twentieth_of_the_time_once_it_took_50_ms) {
  World world;
  world.free_behind_a_kernel(10'000 * kMillisecond);
  const std::uint64_t begin = world.sim.now_ns();
  for (int i = 0; i < 7; ++i) EXPECT_GT(world.time_of(16 * kMiB), kPatience) << i;
  EXPECT_LT(world.time_of(16 * kMiB), kGrowth);
  world.sim.advance_host_ns(begin + 100 * kMillisecond - world.sim.now_ns());
  EXPECT_LT(world.time_of(16 * kMiB), kGrowth);
  world.sim.advance_host_ns(40 * kMillisecond);
  EXPECT_GT(world.time_of(16 * kMiB), kPatience);
  EXPECT_EQ(world.pool->statistics().pauses, 8u);
}

// What was idle when the pause began is taken meanwhile.
TEST_F(Patience, is_as_long_as_what_is_lacking_by_then_is_worth) {
  World world;
  const StreamHandle third = world.stream();
  const DevicePtr idle = world.allocate(kHalf - kPage, world.own);
  const DevicePtr another = world.allocate(kHalf / 2, third);
  world.free_behind_a_kernel(6'500 * kMicrosecond);
  world.deallocate(idle, world.own);
  const Bytes mapped = world.mapped();
  world.interlude.between_looks = [&] {
    world.on_another_thread([&] {
      EXPECT_EQ(world.allocate(kHalf - kPage, world.own), idle);
      world.deallocate(another, third);
    });
  };
  const std::uint64_t took = world.time_of(kHalf + kPage);
  EXPECT_EQ(world.mapped(), mapped);
  EXPECT_GT(took, 6 * kMillisecond) << "a page that lacked was worth 5 ms";
  EXPECT_EQ(world.pool->statistics().pauses, 1u);
}

// All of it lacked when the pause began, worth 8 ms, and a page by then, worth 4.
TEST_F(Patience, is_no_longer_than_what_is_lacking_by_then_is_worth) {
  World world;
  const StreamHandle third = world.stream();
  const DevicePtr most = world.allocate(kHalf, third);
  world.free_behind_a_kernel(100 * kMillisecond);
  const Bytes mapped = world.mapped();
  world.interlude.between_looks = [&] { world.on_another_thread([&] { world.deallocate(most, third); }); };
  const std::uint64_t took = world.time_of(kHalf + 2 * kPage);
  EXPECT_EQ(world.mapped(), mapped + kPage);
  EXPECT_GT(took, 4 * kMillisecond);
  EXPECT_LT(took, 5 * kMillisecond);
}

// 8 ms for the first, and the rest of that for the second.
TEST_F(Patience, calls_that_come_meanwhile_share_it_and_its_end) {
  const TwoCalls calls = two_calls(3 * kMillisecond);
  EXPECT_GT(calls.second_ns, 4'900 * kMicrosecond);
  EXPECT_LT(calls.second_ns, 5 * kMillisecond + kGrowth);
  EXPECT_LT(calls.first_ns, kPatience + 2 * kGrowth);
  EXPECT_EQ(calls.pauses, 2u);
}

// The page alone would be worth 6 ms.
TEST_F(Patience, calls_that_come_meanwhile_share_its_end_however_little_they_want) {
  const TwoCalls calls = two_calls(500 * kMicrosecond, kPage);
  EXPECT_GT(calls.second_ns, 7'300 * kMicrosecond);
  EXPECT_LT(calls.second_ns, 7'500 * kMicrosecond + kGrowth);
}

// The seventh pause uses up what they may take, 6 ms after it began.
TEST_F(Patience, calls_that_come_meanwhile_share_one_after_which_none_may_begin) {
  World world;
  const StreamHandle third = world.stream();
  world.deallocate(world.allocate(256, third), third);
  world.free_behind_a_kernel(10'000 * kMillisecond);
  for (int i = 0; i < 6; ++i) ASSERT_GT(world.time_of(16 * kMiB), kPatience) << i;
  std::uint64_t second_ns = 0;
  world.interlude.between_looks = [&] {
    world.sim.advance_host_ns(6 * kMillisecond);
    world.interlude.between_looks = [&] {
      world.on_another_thread([&] {
        const std::uint64_t begin = world.sim.now_ns();
        world.allocate(16 * kMiB, third);
        second_ns = world.sim.now_ns() - begin;
      });
    };
  };
  ASSERT_GT(world.time_of(16 * kMiB), kPatience);
  EXPECT_GT(second_ns, 1'900 * kMicrosecond);
  EXPECT_LT(second_ns, 2 * kMillisecond + kGrowth);
  EXPECT_LT(world.time_of(16 * kMiB), kGrowth);
}

TEST_F(Patience, a_call_that_comes_when_it_is_over_has_none_of_it) {
  const TwoCalls calls = two_calls(kPatience);
  EXPECT_GT(calls.second_ns, 0u);
  EXPECT_LT(calls.second_ns, kGrowth);
  EXPECT_EQ(calls.pauses, 1u);
}

TEST_F(Patience, is_for_the_default_only) {
  for (const pool::Prefer prefer : {pool::Prefer::latency, pool::Prefer::footprint}) {
    World world(preferring(prefer));
    world.free_behind_a_kernel(100 * kMillisecond);
    world.allocate(kHalf, world.own);
    EXPECT_EQ(world.interlude.looks, 0);
  }
}

// Half of what would be created, at least, must be about to come back.
TEST_F(Patience, is_not_for_little) {
  World world;
  world.free_behind_a_kernel(300 * kMicrosecond);
  world.allocate(4 * kHalf, world.own);
  EXPECT_EQ(world.interlude.looks, 0);
}

// As much was mapped before, when the pool had grown in vain; some was given back, and is mapped again.
TEST_F(Patience, is_for_a_record_of_mapped_memory_only) {
  World world;
  world.free_behind_a_kernel(100 * kMillisecond);
  const DevicePtr first = world.allocate(kHalf, world.own);
  ASSERT_GT(world.interlude.looks, 0);
  world.deallocate(first, world.own);
  world.sim.advance_host_ns(200 * kMillisecond);
  ASSERT_TRUE(world.pool->synchronize().ok());
  ASSERT_TRUE(world.pool->trim(2 * kHalf).ok());
  world.free_behind_a_kernel(100 * kMillisecond);
  world.interlude.looks = 0;
  world.allocate(kHalf, world.own);
  EXPECT_EQ(world.interlude.looks, 0);
  world.allocate(kHalf, world.own);
  EXPECT_GT(world.interlude.looks, 0) << "and this is one";
}

TEST_F(Patience, is_not_for_growth_within_the_budget) {
  World world;
  world.allocate(16 * kGiB, world.own);
  world.free_behind_a_kernel(100 * kMillisecond);
  world.interlude.looks = 0;
  world.allocate(kHalf, world.own);
  EXPECT_EQ(world.interlude.looks, 0);
}

// It can have that at once; of others, a quarter of what it lacks is pending.
TEST_F(Patience, the_own_streams_memory_needs_none) {
  World world;
  const DevicePtr little = world.allocate(kHalf / 4, world.own);
  world.use(little, kHalf / 4, world.own, 200 * kMillisecond);
  world.deallocate(little, world.own);
  world.free_behind_a_kernel(200 * kMillisecond);
  world.interlude.looks = 0;
  world.allocate(2 * kHalf, world.other);
  EXPECT_EQ(world.interlude.looks, 0);
}

// A stream that is alone records no event, and during a capture nothing that covers all streams may be recorded.
TEST_F(Patience, is_not_for_memory_that_no_event_stands_for) {
  PoolWorld world(adaptive_world());
  const StreamHandle alone = world.stream();
  world.allocate(kHalf, alone);
  const DevicePtr held = world.allocate(kHalf, alone);
  world.use(held, kHalf, alone, 100 * kMillisecond);
  world.deallocate(held, alone);
  ASSERT_TRUE(world.pool().capture_begin().ok());
  const std::uint64_t begin = world.sim().now_ns();
  world.allocate(kHalf, world.stream());
  EXPECT_LT(world.sim().now_ns() - begin, kGrowth);
  ASSERT_TRUE(world.pool().capture_end().ok());
}

// Only synchronize() gives parked memory back. The event there is belongs to the caller's own stream.
TEST_F(Patience, is_not_for_parked_memory) {
  pool::Config config = adaptive_world().config;
  config.any_stream = pool::AnyStreamOrder::park;
  World world(config);
  const DevicePtr parked = world.allocate(kHalf, world.other);
  const DevicePtr mine = world.allocate(kHalf, world.own);
  world.use(mine, kHalf, world.own, 100 * kMillisecond);
  world.deallocate(mine, world.own);
  world.deallocate(parked, std::nullopt);
  world.allocate(kHalf, world.own);
  world.allocate(kHalf, world.own);
  EXPECT_EQ(world.interlude.looks, 0);
}

TEST_F(Patience, ends_where_nothing_can_be_learned) {
  for (const std::uint64_t query : {8, 20, 50}) {
    World world;
    world.free_behind_a_kernel(100 * kMillisecond);
    const Bytes mapped = world.mapped();
    world.faults.set_plan(FaultPlan{{Call::event_query}, query, driver::CuResult::unknown});
    EXPECT_LT(world.time_of(kHalf), kPatience) << query;
    EXPECT_GT(world.mapped(), mapped);
  }
}

TEST_F(Patience, a_context_that_breaks_meanwhile_is_told_and_left_alone) {
  World world;
  world.free_behind_a_kernel(100 * kMillisecond);
  std::uint64_t calls = 0;
  world.interlude.between_looks = [&] {
    calls = world.calls.memory_call_count();
    world.faults.set_plan(FaultPlan{{Call::event_query}, 1, driver::CuResult::illegal_address});
  };
  expect_error(world.pool->allocate({kHalf, 0, world.own}), ErrorCode::poisoned, {"CUDA_ERROR_ILLEGAL_ADDRESS"});
  EXPECT_EQ(world.interlude.looks, 1);
  EXPECT_EQ(world.calls.memory_call_count(), calls);
}

}  // namespace
}  // namespace vpmm::testing
