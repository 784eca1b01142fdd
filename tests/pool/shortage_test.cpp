// pool: what is tried before a request fails, in which order, and when it stops.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "driver/recording.hpp"
#include "driver/sim/sim_driver.hpp"
#include "pool/pool.hpp"

namespace vpmm::pool {
namespace {

using driver::Call;
using driver::CuResult;
using driver::StreamHandle;

constexpr Bytes kPage = 2 * kMiB;
constexpr std::uint64_t kSecondNs = 1'000'000'000;

// A pool of four pages whose surroundings only write down that they were asked.
class ShortageTest : public testing::Test {
 protected:
  ShortageTest() {
    driver::ContextHandle context{};
    driver::ContextId id{};
    expect(sim.init());
    expect(sim.device_primary_ctx_retain(0, context));
    expect(sim.ctx_set_current(context));
    expect(sim.ctx_get_id(context, id));
    timelines.set_primary(context, id);
    Config config;
    config.page_chunks = true;
    config.va_size = kGiB;
    config.capacity = 4 * kPage;
    pool = std::make_unique<Pool>(calls, driver::ChunkProperties{}, config, kPage, timelines, relief());
    a = make_caller();
    b = make_caller();
  }
  ~ShortageTest() override {
    EXPECT_EQ(pool->validate(), "");
    sim.run_until_idle();
    pool->release_everything();
    timelines.destroy_events();
    EXPECT_EQ(sim.census().chunks, 0u);
  }
  static void expect(CuResult result) { EXPECT_EQ(result, CuResult::success); }

  Relief relief() {
    Relief relief;
    relief.drain_deferred = [this](MutexLock&) { return note("drain"); };
    relief.give_back_caches = [this](MutexLock&) { return note("caches"); };
    relief.shrink_caches = [](MutexLock&) { return false; };
    relief.prove_everything = [this] { return note("prove"); };
    relief.synchronize = [this](MutexLock&) { return note("synchronize"); };
    return relief;
  }
  bool note(const std::string& what) {
    asked.push_back(what);
    return what == answers_yes;
  }
  Caller make_caller() {
    StreamHandle stream{};
    expect(sim.stream_create(driver::StreamFlags::non_blocking, stream));
    Caller caller;
    caller.stream = stream;
    caller.timeline = timelines.of(stream).value();
    return caller;
  }
  Result<DevicePtr> allocate(Bytes pages, const Caller& caller) {
    return pool->allocate(lock, {pages * kPage, pages * kPage, kPage}, caller);
  }
  DevicePtr take(Bytes pages, const Caller& caller) {
    auto result = allocate(pages, caller);
    EXPECT_TRUE(result.ok()) << (result ? "" : result.error().message);
    return result ? result.value() : DevicePtr{};
  }
  enum class Closed { no, yes };
  // Freed behind a second of work.
  void give_back(DevicePtr ptr, const Caller& caller, Closed closed) {
    expect(sim.launch({"work", kSecondNs, {}, {}}, *caller.stream));
    region::Region* region = pool->owner(ptr);
    pool->deallocate(region, time::Stamp(timelines.next(*caller.timeline, region->range.size)));
    if (closed == Closed::yes) {
      EXPECT_TRUE(timelines.close(*caller.timeline, *caller.stream).ok());
    }
  }
  std::uint64_t host_waits() {
    observe::Statistics figures;
    pool->fill(figures);
    return figures.host_waits;
  }

  driver::sim::SimDriver sim;
  driver::RecordingDriver calls{sim};
  time::Timelines timelines{calls, {}};
  std::unique_ptr<Pool> pool;
  Mutex mutex;
  MutexLock lock{mutex};
  Caller a;
  Caller b;
  std::vector<std::string> asked;
  std::string answers_yes;
};

TEST_F(ShortageTest, asks_for_deferred_frees_then_caches_and_nothing_else_when_nothing_is_pending) {
  take(4, a);
  const auto failed = allocate(1, a);
  ASSERT_FALSE(failed.ok());
  EXPECT_EQ(failed.error().code, ErrorCode::out_of_memory);
  EXPECT_EQ(asked, (std::vector<std::string>{"drain", "caches"}));
}

TEST_F(ShortageTest, memory_of_another_stream_is_waited_for_on_the_gpu_before_the_host_waits) {
  give_back(take(4, b), b, Closed::yes);
  take(2, a);
  EXPECT_TRUE(asked.empty()) << "page mode waits on the GPU before it runs short";
  EXPECT_EQ(calls.count(Call::stream_wait_event), 1u);
  EXPECT_EQ(host_waits(), 0u);
}

TEST_F(ShortageTest, a_caller_without_stream_waits_on_the_host_for_the_oldest_event) {
  give_back(take(4, b), b, Closed::yes);
  const Caller any_stream;
  take(2, any_stream);
  EXPECT_EQ(asked, (std::vector<std::string>{"drain", "caches"}));
  EXPECT_EQ(host_waits(), 1u);
  EXPECT_EQ(calls.count(Call::stream_wait_event), 0u);
}

TEST_F(ShortageTest, the_host_waits_no_longer_than_needed) {
  const DevicePtr first = take(1, b);
  take(1, b);  // between them, so that they do not become one range with the later number
  const DevicePtr second = take(2, b);
  give_back(first, b, Closed::yes);
  give_back(second, b, Closed::yes);
  take(1, Caller{});
  EXPECT_EQ(host_waits(), 1u);
  EXPECT_EQ(sim.stream_query(*b.stream), CuResult::not_ready) << "the second free is still behind its work";
}

TEST_F(ShortageTest, memory_that_nothing_proves_is_proven_by_a_context_event_and_then_by_synchronising) {
  give_back(take(4, b), b, Closed::no);
  EXPECT_FALSE(allocate(1, a).ok()) << "neither was possible here";
  EXPECT_EQ(asked, (std::vector<std::string>{"drain", "caches", "prove", "synchronize"}));
}

TEST_F(ShortageTest, own_memory_is_closed_by_an_own_event_before_anything_larger_is_tried) {
  const DevicePtr first = take(3, a);
  take(1, a);
  give_back(first, a, Closed::no);
  take(3, Caller{a.stream, a.timeline, Standing::ordinary, 0});
  EXPECT_TRUE(asked.empty()) << "own memory needs no proof at all";
}

TEST_F(ShortageTest, the_report_says_what_was_asked_what_is_live_free_and_pending_and_on_which_stream) {
  take(2, a);
  give_back(take(1, b), b, Closed::no);
  const auto failed = allocate(3, Caller{});
  ASSERT_FALSE(failed.ok());
  const std::string& report = failed.error().message;
  for (const std::string& words : {std::string("asked for 6291456 bytes"), std::string("live 4194304"),
                                   std::string("free 2097152"), std::string("pending 2097152 on stream "),
                                   std::string("largest free range 2097152"), std::string("limit 8388608")})
    EXPECT_NE(report.find(words), std::string::npos) << words << " is not in: " << report;
}

TEST_F(ShortageTest, trying_again_after_deferred_frees_is_enough_when_they_help) {
  const DevicePtr held = take(4, a);
  Caller later = a;
  answers_yes = "drain";
  // The surroundings free the memory while they drain, as finalizers do.
  pool->deallocate(pool->owner(held), {});
  EXPECT_TRUE(allocate(2, later).ok());
}

}  // namespace
}  // namespace vpmm::pool
