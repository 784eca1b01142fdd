// SPDX-License-Identifier: Apache-2.0
// context: work on another GPU uses the pool's memory: access, and what a free waits for.
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "pool/grow_delay.hpp"
#include "support/pool_world_words.hpp"

namespace vpmm::test {
namespace {

using driver::Call;
using driver::CuResult;
using driver::FaultPlan;

// Work that outlasts as many delays of growth as these tests make.
constexpr std::uint64_t kLongerNs = 100 * pool::GrowDelay::kLongestNs;

WorldOptions two_devices(WorldOptions options) {
  options.sim.device_count = 2;
  return options;
}

// The pool is on device 0. `far` is a stream of device 1, whose primary context is active.
class PeersWorld : public PoolWorld {
 public:
  explicit PeersWorld(const WorldOptions& options) : PoolWorld(options) {
    EXPECT_EQ(sim().ctx_get_current(near_context), CuResult::success);
    enter_far();
  }
  ~PeersWorld() { sim().run_until_idle(); }
  void enter_far() {
    EXPECT_EQ(sim().device_primary_ctx_retain(1, far_context), CuResult::success);
    EXPECT_EQ(sim().ctx_set_current(far_context), CuResult::success);
    far = stream();
    EXPECT_EQ(sim().ctx_set_current(near_context), CuResult::success);
  }
  void give_access() {
    const Result<void> given = pool().sharing().set_peer_access(1);
    EXPECT_TRUE(given.ok()) << message_of(given);
  }
  // Whether work of device 1 can use it, as seen from the hazards it would make; forgets none of
  // them.
  bool is_reachable(DevicePtr ptr, Bytes bytes) {
    EXPECT_EQ(sim().ctx_synchronize(),
              CuResult::success);  // it may have been allocated for another stream
    const std::uint64_t before = sim().hazard_count();
    use(ptr, bytes, far);
    EXPECT_EQ(sim().stream_synchronize(far), CuResult::success);
    return sim().hazard_count() == before;
  }

  driver::ContextHandle near_context{};
  driver::ContextHandle far_context{};
  StreamHandle far{};
};

class Peers : public ::testing::TestWithParam<bool> {
 protected:
  static WorldOptions options() {
    return two_devices(GetParam() ? page_world() : adaptive_world());
  }
  PeersWorld world{options()};
  StreamHandle a = world.stream();
};
INSTANTIATE_TEST_SUITE_P(In, Peers, ::testing::Values(true, false),
                         [](const auto& each) { return each.param ? "pages" : "chunks"; });

// --- access

TEST_P(Peers, may_use_memory_of_before_and_after_small_blocks_and_what_is_in_hand) {
  std::vector<std::pair<DevicePtr, Bytes>> live;
  const auto take = [&] {
    for (const Bytes bytes : {Bytes{100}, Bytes{70'000}, Bytes{kPage}, Bytes{5 * kPage}})
      live.emplace_back(world.allocate(bytes, a), bytes);
  };
  take();
  world.deallocate(world.allocate(3 * kPage, a), a);  // free, or in the stream's cache
  world.give_access();
  live.emplace_back(world.allocate(3 * kPage, a), 3 * kPage);
  take();
  live.emplace_back(world.allocate(64 * kPage, a), 64 * kPage);
  for (const auto& [ptr, bytes] : live) EXPECT_TRUE(world.is_reachable(ptr, bytes)) << bytes;
  world.give_access();  // again: nothing to do
}

TEST_P(Peers, may_use_chunks_that_move) {
  world.give_access();
  const DevicePtr first = world.allocate(4 * kPage, a);
  world.allocate(kPage, a);
  world.deallocate(first, a);
  world.deallocate(world.allocate(6 * kPage, a), a);
  world.wait();
  const DevicePtr moved = world.allocate(12 * kPage, a);
  EXPECT_TRUE(world.is_reachable(moved, 12 * kPage));
}

// The new stream has the handle of the other device's, and no event of that device covers its work.
TEST(PeersStreams, leave_their_handle_to_a_stream_of_the_pool_whose_frees_are_its_own) {
  PeersWorld world(two_devices(adaptive_world()));
  world.give_access();
  const DevicePtr ptr = world.allocate(kPage, world.far);
  ASSERT_EQ(world.sim().stream_synchronize(world.far), CuResult::success);
  ASSERT_EQ(world.sim().stream_destroy(world.far), CuResult::success);
  const StreamHandle near = world.stream();
  ASSERT_EQ(near, world.far);
  world.use(ptr, kPage, near, kLongNs);
  world.deallocate(ptr, near);
  const StreamHandle other = world.stream();
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(world.pool().limits().trim(0).ok());
    world.use(world.allocate(kPage, other), kPage, other);
  }
}

TEST(PeersAccess, is_not_there_before_it_is_given) {
  driver::sim::SimOptions options;
  options.device_count = 2;
  driver::sim::SimDriver sim(options);
  auto pool = context::Context::create(sim, 0, page_world().config);
  ASSERT_TRUE(pool.ok());
  const DevicePtr ptr = pool.value()->allocate({kPage, 0, std::nullopt}).value();
  driver::ContextHandle far{};
  ASSERT_EQ(sim.device_primary_ctx_retain(1, far), CuResult::success);
  ASSERT_EQ(sim.ctx_set_current(far), CuResult::success);
  EXPECT_EQ(sim.memset_d8(ptr, 1, kPage), CuResult::success);
  sim.run_until_idle();
  EXPECT_EQ(sim.hazard_count(), 1u) << "what the tests here rely on";
}

TEST_P(Peers, mistakes_are_named) {
  EXPECT_TRUE(world.pool().sharing().set_peer_access(0).ok()) << "its own device";
  expect_error(world.pool().sharing().set_peer_access(2), ErrorCode::invalid_argument,
               {"device 2", "there are 2"});
  expect_error(world.pool().sharing().set_peer_access(-1), ErrorCode::invalid_argument,
               {"device -1"});
  EXPECT_EQ(world.statistics().caller_mistakes, 2u);
  EXPECT_EQ(world.calls().count(Call::device_primary_ctx_get_state), 1u)
      << "nobody looks for peers";
}

TEST(PeersAccess, that_the_devices_or_the_settings_do_not_allow_is_refused_by_name) {
  WorldOptions apart = two_devices(page_world());
  apart.sim.peer_access_supported = false;
  WorldOptions guarded = two_devices(page_world());
  guarded.config.checks.guard_every = 1;
  expect_error(PoolWorld(guarded).pool().sharing().set_peer_access(1), ErrorCode::unsupported,
               {"VPMM_GUARD is on"});
  expect_error(PoolWorld(apart).pool().sharing().set_peer_access(1), ErrorCode::unsupported,
               {"device 1", "device 0"});
  WorldOptions small = two_devices(page_world());
  small.config.small = settings::SmallRequests::stream_ordered;
  expect_error(PoolWorld(small).pool().sharing().set_peer_access(1), ErrorCode::unsupported,
               {"VPMM_SMALL=stream_ordered"});
  WorldOptions off = two_devices(page_world());
  off.config.pool_enabled = false;
  expect_error(PoolWorld(off).pool().sharing().set_peer_access(1), ErrorCode::unsupported,
               {"VPMM_PAGE_SIZE"});
  expect_error(PoolWorld(two_devices(page_world(128 * kMiB))).pool().sharing().set_peer_access(1),
               ErrorCode::unsupported, {"VPMM_PAGE_SIZE"});
  WorldOptions old = two_devices(page_world());
  old.sim.vmm_supported = false;
  expect_error(PoolWorld(old).pool().sharing().set_peer_access(1), ErrorCode::unsupported,
               {"virtual memory management"});
}

// Whichever of the calls fails: an error, no access to be relied on, and the next call gives it.
TEST_P(Peers, a_failed_call_is_an_error_and_calling_again_completes_it) {
  for (std::uint64_t nth = 1;; ++nth) {
    PeersWorld other(options());
    const StreamHandle stream = other.stream();
    std::vector<DevicePtr> live;
    for (int i = 0; i < 3; ++i) {
      live.push_back(other.allocate(2 * kPage, stream));
      other.deallocate(other.allocate((3 + static_cast<Bytes>(i)) * kPage, std::nullopt),
                       std::nullopt);
    }
    other.faults().set_plan(
        {{Call::mem_set_access}, nth, CuResult::unknown, FaultPlan::Repeat::once});
    const Result<void> given = other.pool().sharing().set_peer_access(1);
    EXPECT_EQ(other.pool().reports().validate(), "");
    if (given) {
      EXPECT_GT(nth, 1u);
      break;
    }
    EXPECT_EQ(given.error().code, ErrorCode::driver_failed) << given.error().message;
    other.faults().clear_plan();
    const Bytes mapped = other.statistics().mapped_bytes;
    other.give_access();
    EXPECT_EQ(other.statistics().mapped_bytes, mapped);
    for (const DevicePtr ptr : live) EXPECT_TRUE(other.is_reachable(ptr, 2 * kPage));
  }
}

// Threads map, move, free and trim while access is given; whatever they have afterwards can be used
// by the peer.
TEST_P(Peers, access_is_given_while_others_allocate_and_trim) {
  for (int round = 0; round < 10; ++round) {
    WorldOptions many = options();
    many.sim.device_count = 4;
    PeersWorld busy(many);
    std::atomic<bool> is_over{false};
    std::vector<std::thread> threads;
    std::vector<std::vector<std::pair<DevicePtr, Bytes>>> live(3);
    for (std::size_t t = 0; t < live.size(); ++t)
      threads.emplace_back([&, t] {
        ASSERT_EQ(busy.sim().ctx_set_current(busy.near_context), CuResult::success);
        StreamHandle stream{};
        ASSERT_EQ(busy.sim().stream_create(StreamFlags::non_blocking, stream), CuResult::success);
        for (Bytes i = 0; i < 200 || !is_over.load(); ++i) {
          const Bytes bytes = i % 7 == 0 ? 1000 * (1 + i % 50) : (1 + (i * (t + 3)) % 11) * kPage;
          auto ptr = busy.pool().allocate({bytes, 0, stream});
          ASSERT_TRUE(ptr.ok()) << message_of(ptr);
          live[t].emplace_back(ptr.value(), bytes);
          if (live[t].size() > 8) {
            ASSERT_TRUE(busy.pool().deallocate(live[t][i % 8].first, stream).ok());
            live[t].erase(live[t].begin() + static_cast<std::ptrdiff_t>(i % 8));
          }
          if (i % 20 == 19) {
            ASSERT_TRUE(busy.pool().limits().trim(0).ok());
          }
        }
      });
    for (const int peer : {1, 2, 3, 1})
      EXPECT_TRUE(busy.pool().sharing().set_peer_access(peer).ok());
    is_over.store(true);
    for (std::thread& thread : threads) thread.join();
    busy.wait();
    for (const auto& of_thread : live)
      for (const auto& [ptr, bytes] : of_thread)
        EXPECT_TRUE(busy.is_reachable(ptr, bytes)) << bytes;
    EXPECT_EQ(busy.pool().reports().validate(), "");
  }
}

// --- order

TEST_P(Peers, a_free_without_a_stream_waits_for_work_of_the_peer) {
  world.give_access();
  for (const Bytes bytes : {Bytes{4 * kPage}, Bytes{1000}}) {
    const DevicePtr ptr = world.allocate(bytes, std::nullopt);
    world.use(ptr, bytes, world.far, kLongerNs);
    world.deallocate(ptr, std::nullopt);
    for (int i = 0; i < 20; ++i) {
      const DevicePtr other = world.allocate(bytes, i % 2 == 0 ? pool::Stream(a) : std::nullopt);
      EXPECT_NE(other, ptr);
      world.use(other, bytes, a);
    }
    world.sim().advance_host_ns(2 * kLongerNs);
    EXPECT_EQ(world.statistics().host_waits, 0u);
  }
  world.deallocate(world.allocate(kPage, std::nullopt), std::nullopt);
  world.sim().advance_host_ns(kLongerNs);
  world.allocate(kPage, std::nullopt);
  EXPECT_EQ(world.statistics().pending_bytes, 0u) << "when the peer is done, it comes back";
}

TEST_P(Peers, memory_that_several_streams_used_waits_for_one_of_a_peer) {
  world.give_access();
  const StreamHandle b = world.stream();
  const DevicePtr ptr = world.allocate(4 * kPage, a);
  ASSERT_EQ(world.sim().ctx_synchronize(), CuResult::success);
  for (const StreamHandle user : {b, world.far})
    ASSERT_TRUE(world.pool().record_use(ptr, user).ok());
  world.use(ptr, 4 * kPage, world.far, kLongNs);
  world.deallocate(ptr, a);
  for (int i = 0; i < 20; ++i)
    world.use(world.allocate(4 * kPage, i % 2 == 0 ? a : b), kPage, i % 2 == 0 ? a : b);
}

TEST_P(Peers, a_stream_of_a_peer_allocates_and_frees_as_any_other) {
  world.give_access();
  for (const Bytes bytes : {Bytes{4 * kPage}, Bytes{1000}}) {
    const DevicePtr ptr = world.allocate(bytes, world.far);
    world.use(ptr, bytes, world.far, kLongNs);
    world.deallocate(ptr, world.far);
    EXPECT_EQ(world.allocate(bytes, world.far), ptr) << "its own memory, at once";
    world.use(ptr, bytes, world.far, kLongNs);
    world.deallocate(ptr, world.far);
    for (int i = 0; i < 20; ++i) world.use(world.allocate(bytes, a), bytes, a);
    const DevicePtr near = world.allocate(bytes, a);
    world.use(near, bytes, a, kLongNs);
    world.deallocate(near, a);
    for (int i = 0; i < 20; ++i) world.use(world.allocate(bytes, world.far), bytes, world.far);
  }
}

TEST_P(Peers, memory_of_a_stream_of_a_peer_that_is_gone_comes_back_by_an_event_of_its_context) {
  world.give_access();
  const DevicePtr ptr = world.allocate(4 * kPage, world.far);
  world.use(ptr, 4 * kPage, world.far, kLongerNs);
  world.deallocate(ptr, world.far);
  ASSERT_EQ(world.sim().stream_destroy(world.far), CuResult::success);
  for (int i = 0; i < 12; ++i) world.allocate((5 + static_cast<Bytes>(i)) * kPage, std::nullopt);
  ASSERT_TRUE(world.pool().limits().trim(0).ok());
  EXPECT_GT(world.statistics().pending_bytes, 0u);
  world.sim().advance_host_ns(2 * kLongerNs);
  ASSERT_TRUE(world.pool().limits().trim(0).ok());
  EXPECT_EQ(world.statistics().pending_bytes, 0u);
}

TEST_P(Peers, synchronize_waits_for_them) {
  world.give_access();
  const DevicePtr ptr = world.allocate(4 * kPage, std::nullopt);
  world.use(ptr, 4 * kPage, world.far, kLongNs);
  world.deallocate(ptr, std::nullopt);
  world.wait();
  EXPECT_EQ(world.statistics().pending_bytes, 0u);
  EXPECT_EQ(world.sim().stream_query(world.far), CuResult::success);
  const DevicePtr next = world.allocate(4 * kPage, a);
  world.use(next, 4 * kPage, a);
}

// An old driver, or VPMM_ANY_STREAM=legacy or park: proof comes in other ways.
TEST(PeersProof, in_every_mode_covers_the_peer) {
  for (const bool has_context_events : {true, false})
    for (const auto order : {settings::AnyStreamOrder::context, settings::AnyStreamOrder::legacy,
                             settings::AnyStreamOrder::park}) {
      WorldOptions options = two_devices(page_world());
      options.sim.context_events_supported = has_context_events;
      options.config.streams.any_stream = order;
      options.config.limits.capacity = 64 * kPage;
      PeersWorld world(options);
      world.give_access();
      const StreamHandle a = world.stream();
      ASSERT_EQ(world.sim().ctx_set_current(world.far_context), CuResult::success);
      const StreamHandle blocking = world.stream(StreamFlags::blocking);
      ASSERT_EQ(world.sim().ctx_set_current(world.near_context), CuResult::success);
      for (int i = 0; i < 10;
           ++i) {  // more than there is: out of memory comes before the end of the work
        const DevicePtr ptr = world.allocate(20 * kPage, std::nullopt);
        world.use(ptr, 20 * kPage, i % 2 == 0 ? blocking : a, 1'000'000);
        if (i % 2 == 1) {
          ASSERT_EQ(world.sim().stream_synchronize(a), CuResult::success);
        }
        world.deallocate(ptr, std::nullopt);
        if (order == settings::AnyStreamOrder::park) world.wait();
      }
    }
}

TEST_P(Peers, a_context_of_a_peer_that_nobody_made_active_is_not_made_by_the_pool) {
  WorldOptions many = options();
  many.sim.device_count = 3;
  PeersWorld three(many);
  ASSERT_TRUE(three.pool().sharing().set_peer_access(2).ok());
  three.deallocate(three.allocate(4 * kPage, std::nullopt), std::nullopt);
  three.wait();
  bool is_active = true;
  ASSERT_EQ(three.sim().device_primary_ctx_get_state(2, is_active), CuResult::success);
  EXPECT_FALSE(is_active);
  driver::ContextHandle late{};
  ASSERT_EQ(three.sim().device_primary_ctx_retain(2, late), CuResult::success);
  ASSERT_EQ(three.sim().ctx_set_current(late), CuResult::success);
  const StreamHandle later = three.stream();
  ASSERT_EQ(three.sim().ctx_set_current(three.near_context), CuResult::success);
  const DevicePtr ptr = three.allocate(4 * kPage, std::nullopt);
  three.use(ptr, 4 * kPage, later, kLongNs);
  three.deallocate(ptr, std::nullopt);
  ASSERT_EQ(three.sim().device_primary_ctx_release(2), CuResult::success)
      << "the pool has its events there";
  for (int i = 0; i < 20; ++i)
    three.use(three.allocate(4 * kPage, std::nullopt), kPage, three.stream());
}

TEST_P(Peers, a_reset_of_a_peer_is_noticed_before_an_event_of_its_is_touched) {
  world.give_access();
  for (int round = 0; round < 2; ++round) {
    const DevicePtr ptr = world.allocate(4 * kPage, std::nullopt);
    world.use(ptr, 4 * kPage, world.far, kLongNs);
    world.deallocate(ptr, std::nullopt);
    world.deallocate(world.allocate(4 * kPage, world.far), world.far);
    EXPECT_GT(world.statistics().pending_bytes, 0u);
    world.sim().run_until_idle();
    ASSERT_EQ(world.sim().device_primary_ctx_reset(1), CuResult::success);
    world.allocate(kPage, a);
    world.wait();
    EXPECT_EQ(world.statistics().pending_bytes, 0u);
    world.enter_far();
  }
  // The last thing before the end, too.
  world.deallocate(world.allocate(4 * kPage, std::nullopt), std::nullopt);
  world.sim().run_until_idle();
  ASSERT_EQ(world.sim().device_primary_ctx_reset(1), CuResult::success);
}

TEST_P(Peers, a_reset_of_the_pool_s_own_device_does_not_free_what_a_peer_uses) {
  world.give_access();
  for (const bool by_others : {true, false}) {
    const DevicePtr closed = world.allocate(4 * kPage, std::nullopt);
    if (by_others) world.use(closed, 4 * kPage, world.far, kLongNs);
    world.deallocate(closed, std::nullopt);
    if (by_others) {
      ASSERT_EQ(world.sim().device_primary_ctx_reset(0), CuResult::success);
    } else {
      ASSERT_TRUE(world.pool().streams().reset().ok());
    }
    ASSERT_EQ(world.sim().device_primary_ctx_retain(0, world.near_context), CuResult::success);
    ASSERT_EQ(world.sim().ctx_set_current(world.near_context), CuResult::success);
    a = world.stream();
    for (int i = 0; i < 20; ++i)
      world.use(world.allocate(4 * kPage, i % 2 == 0 ? pool::Stream(a) : std::nullopt), kPage, a);
    world.wait();
    EXPECT_EQ(world.statistics().pending_bytes, 0u);
  }
}

TEST_P(Peers, a_capture_on_a_peer_is_not_broken) {
  world.give_access();
  world.deallocate(world.allocate(4 * kPage, std::nullopt), std::nullopt);
  ASSERT_EQ(world.sim().ctx_set_current(world.far_context), CuResult::success);
  const StreamHandle blocking = world.stream(StreamFlags::blocking);
  ASSERT_EQ(world.sim().stream_begin_capture(blocking, driver::CaptureMode::relaxed),
            CuResult::success);
  ASSERT_EQ(world.sim().ctx_set_current(world.near_context), CuResult::success);
  for (int i = 0; i < 20; ++i)
    world.deallocate(world.allocate(4 * kPage, std::nullopt), std::nullopt);
  expect_error(world.pool().streams().synchronize(), ErrorCode::capture_active);
  driver::GraphHandle graph{};
  EXPECT_EQ(world.sim().stream_end_capture(blocking, graph), CuResult::success)
      << "the capture was broken";
  ASSERT_EQ(world.sim().graph_destroy(graph), CuResult::success);
  world.wait();
  EXPECT_EQ(world.statistics().pending_bytes, 0u);
}

// The end of a pool unmaps its memory, so it waits for everybody.
TEST_P(Peers, the_end_of_a_pool_waits_for_them) {
  PeersWorld ends(options());
  ends.give_access();
  const DevicePtr ptr = ends.allocate(4 * kPage, std::nullopt);
  ends.use(ptr, 4 * kPage, ends.far, kLongNs);
  const std::uint64_t hazards = ends.sim().hazard_count();
  ends.end();
  EXPECT_EQ(ends.sim().hazard_count(), hazards);
}

TEST(PeersAccess, is_given_to_the_first_device_and_not_to_one_that_is_not_there) {
  driver::sim::SimOptions options;
  options.device_count = 2;
  driver::sim::SimDriver sim(options);
  const auto pool = context::Context::create(sim, 1, page_world().config);
  ASSERT_TRUE(pool.ok());
  EXPECT_TRUE(pool.value()->sharing().set_peer_access(0).ok());
  expect_error(pool.value()->sharing().set_peer_access(-1), ErrorCode::invalid_argument,
               {"device -1"});
  expect_error(pool.value()->sharing().set_peer_access(2), ErrorCode::invalid_argument,
               {"device 2"});
}

TEST(PeersAccess, of_several_is_given_once_each_and_all_are_waited_for) {
  WorldOptions options = page_world();
  options.sim.device_count = 3;
  PoolWorld world(options);
  driver::ContextHandle near{};
  ASSERT_EQ(world.sim().ctx_get_current(near), CuResult::success);
  std::vector<StreamHandle> far;
  for (const driver::DeviceOrdinal peer : {1, 2}) {
    driver::ContextHandle context{};
    ASSERT_EQ(world.sim().device_primary_ctx_retain(peer, context), CuResult::success);
    ASSERT_EQ(world.sim().ctx_set_current(context), CuResult::success);
    far.push_back(world.stream());
  }
  ASSERT_EQ(world.sim().ctx_set_current(near), CuResult::success);
  for (const driver::DeviceOrdinal peer : {1, 1, 2, 1, 2})
    ASSERT_TRUE(world.pool().sharing().set_peer_access(peer).ok());
  const std::uint64_t retained = world.calls().count(Call::device_primary_ctx_retain);
  const std::uint64_t looks = world.calls().count(Call::device_primary_ctx_get_state);
  for (const StreamHandle stream : far) {
    const DevicePtr ptr = world.allocate(2 * kPage, std::nullopt);
    world.use(ptr, 2 * kPage, stream, kLongNs);
    world.deallocate(ptr, std::nullopt);
    EXPECT_NE(world.allocate(2 * kPage, std::nullopt), ptr);
    world.wait();
    EXPECT_EQ(world.statistics().pending_bytes, 0u);
  }
  EXPECT_EQ(world.calls().count(Call::device_primary_ctx_retain) - retained, 2u);
  EXPECT_EQ(world.calls().count(Call::device_primary_ctx_get_state) - looks, 2u);
}

// Drivers before CUDA 12 have no ids of contexts.
class WithoutContextIds final : public driver::ForwardingDriver {
 public:
  using ForwardingDriver::ForwardingDriver;
  bool has(Call call) const override {
    return call != Call::ctx_get_id && ForwardingDriver::has(call);
  }

 private:
  std::optional<CuResult> before(Call call) override {
    return call == Call::ctx_get_id ? std::optional(CuResult::not_supported) : std::nullopt;
  }
};

TEST(PeersAccess, works_without_ids_of_contexts) {
  driver::sim::SimOptions options;
  options.device_count = 2;
  driver::sim::SimDriver sim(options);
  WithoutContextIds old(sim);
  driver::ContextHandle far{};
  ASSERT_EQ(sim.init(), CuResult::success);
  ASSERT_EQ(sim.device_primary_ctx_retain(1, far), CuResult::success);
  const auto pool = context::Context::create(old, 0, page_world().config);
  ASSERT_TRUE(pool.ok());
  ASSERT_TRUE(pool.value()->sharing().set_peer_access(1).ok());
  for (int i = 0; i < 2; ++i) {
    const auto ptr = pool.value()->allocate({kPage, 0, std::nullopt});
    ASSERT_TRUE(ptr.ok()) << message_of(ptr);
    EXPECT_TRUE(pool.value()->deallocate(ptr.value(), std::nullopt).ok());
    EXPECT_TRUE(pool.value()->streams().synchronize().ok());
  }
}

}  // namespace
}  // namespace vpmm::test
