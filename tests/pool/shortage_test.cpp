// pool: what is tried before a request fails, in which order, and when it stops.
#include <string>
#include <utility>
#include <vector>

#include "driver/recording.hpp"
#include "pool/pool_fixture.hpp"

namespace vpmm::pool {
namespace {

using driver::Call;
using driver::CuResult;

// A pool of four pages whose surroundings write down what they are asked for; only deferred frees can help.
class ShortageTest : public PoolFixture<driver::RecordingDriver> {
 protected:
  ShortageTest() {
    config.capacity = 4 * kPage;
    relief.drain_deferred = [this](MutexLock&) {
      asked.push_back("drain");
      if (is_null(deferred)) return false;
      give_back(std::exchange(deferred, DevicePtr{}));
      return true;
    };
    relief.give_back_caches = [this](MutexLock&) { return note("caches"); };
    relief.prove_everything = [this] { return note("prove"); };
    relief.synchronize = [this](MutexLock&) { return note("synchronize"); };
    open();
  }
  bool note(const std::string& what) {
    asked.push_back(what);
    return false;
  }

  DevicePtr deferred{};  // a free to carry out when asked
  Vector<std::string> asked;
};

TEST_F(ShortageTest, asks_for_deferred_frees_then_caches_and_nothing_else_when_nothing_is_pending) {
  take(4, a);
  const auto failed = allocate(1, a);
  ASSERT_FALSE(failed.ok());
  EXPECT_EQ(failed.error().code, ErrorCode::out_of_memory);
  EXPECT_EQ(asked, (Vector<std::string>{"drain", "caches"}));
}

TEST_F(ShortageTest, memory_of_another_stream_is_waited_for_on_the_gpu_before_the_host_waits) {
  give_back_pending(take(4, b), b, Closed::yes);
  take(2, a);
  EXPECT_TRUE(asked.empty()) << "page mode waits on the GPU before it runs short";
  EXPECT_EQ(driver.count(Call::stream_wait_event), 1u);
  EXPECT_EQ(figures().host_waits, 0u);
}

TEST_F(ShortageTest, a_caller_without_stream_waits_on_the_host_for_an_event) {
  give_back_pending(take(4, b), b, Closed::yes);
  const Caller any_stream;
  take(2, any_stream);
  ASSERT_GT(asked.size(), 3u);
  for (; asked.size() > 3; asked.pop_back()) EXPECT_EQ(asked.back(), "drain") << "while it waits";
  EXPECT_EQ(asked, (Vector<std::string>{"drain", "caches", "prove"}));
  EXPECT_EQ(figures().host_waits, 1u);
  EXPECT_EQ(driver.count(Call::stream_wait_event), 0u);
}

TEST_F(ShortageTest, the_host_waits_no_longer_than_needed) {
  const DevicePtr first = take(1, b);
  take(1, b);  // between them, so that they do not become one range with the later number
  const DevicePtr second = take(2, b);
  give_back_pending(first, b, Closed::yes);
  give_back_pending(second, b, Closed::yes);
  take(1, Caller{});
  EXPECT_EQ(figures().host_waits, 1u);
  EXPECT_EQ(sim.stream_query(*b.stream), CuResult::not_ready) << "the second free is still behind its work";
}

TEST_F(ShortageTest, memory_that_nothing_proves_is_proven_by_a_context_event_and_then_by_synchronising) {
  give_back_pending(take(4, b), b, Closed::no);
  EXPECT_FALSE(allocate(1, a).ok()) << "neither was possible here";
  EXPECT_EQ(asked, (Vector<std::string>{"drain", "caches", "prove", "synchronize"}));
}

TEST_F(ShortageTest, own_memory_is_closed_by_an_own_event_before_anything_larger_is_tried) {
  const DevicePtr first = take(3, a);
  take(1, a);
  give_back_pending(first, a, Closed::no);
  take(3, Caller{a.stream, a.timeline, Standing::ordinary, 0});
  EXPECT_TRUE(asked.empty()) << "own memory needs no proof at all";
}

TEST_F(ShortageTest, the_report_says_what_was_asked_what_is_live_free_and_pending_and_on_which_stream) {
  take(2, a);
  give_back_pending(take(1, b), b, Closed::no);
  const auto failed = allocate(3, Caller{});
  ASSERT_FALSE(failed.ok());
  const std::string& report = failed.error().message;
  for (const std::string& words : {std::string("asked for 6291456 bytes"), std::string("live 4194304"),
                                   std::string("free 2097152"), std::string("pending 2097152 on stream "),
                                   std::string("largest free range 2097152"), std::string("limit 8388608")})
    EXPECT_NE(report.find(words), std::string::npos) << words << " is not in: " << report;
}

TEST_F(ShortageTest, nothing_else_is_asked_for_when_deferred_frees_help) {
  deferred = take(4, a);
  take(2, a);
  EXPECT_EQ(asked, (Vector<std::string>{"drain"}));
}

}  // namespace
}  // namespace vpmm::pool
