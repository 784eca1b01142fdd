// SPDX-License-Identifier: Apache-2.0
// property tests: short programs that once failed, each named after what must hold.
#include <gtest/gtest.h>

#include "property/world.hpp"
#include "support/pool_world.hpp"

namespace vpmm::property {
namespace {

constexpr std::uint64_t kLegacy = 0;
constexpr std::uint64_t kNonBlocking = 2;
constexpr std::uint64_t kOther = 4;  // non-blocking, too

Scene scene_with(driver::sim::Schedule schedule = driver::sim::Schedule::manual) {
  Scene scene;
  scene.sim.capacity = kGiB;
  scene.sim.schedule = schedule;
  scene.config.va_size = 4 * kGiB;
  scene.config.log = observe::LogLevel::quiet;
  return scene;
}

// The n-th stream that can capture is number n + 1: the legacy stream cannot.
BeginCapture capture_on(std::uint64_t stream, bool is_announced) {
  return {0, stream - 1, driver::CaptureMode::global, is_announced};
}

Figures figures_of(const Scene& scene, const std::vector<Operation>& operations) {
  World world(scene, {.operations_per_check = 1});
  world.run(operations);
  world.finish();
  EXPECT_EQ(world.failure(), "");
  return world.figures();
}

TEST(PoolRegression, a_free_waits_for_recorded_uses_that_its_own_stream_does_not_wait_for) {
  for (const Bytes bytes : {Bytes{1000}, 4 * kMiB})
    EXPECT_EQ(
        failure_of(scene_with(), {Allocate{0, kNonBlocking, bytes, 0}, ReadElsewhere{0, kOther},
                                  Free{0}, Allocate{0, kNonBlocking, bytes, 0}}),
        "");
}

TEST(PoolRegression, a_small_free_on_another_stream_waits_for_the_stream_of_the_allocation) {
  EXPECT_EQ(
      failure_of(scene_with(), {Allocate{0, kNonBlocking, 1000, 0}, FreeElsewhere{0, kOther, false},
                                Allocate{0, kOther, 1000, 0}}),
      "");
}

TEST(PoolRegression, a_reset_takes_no_retain_of_the_context_from_others) {
  for (const bool is_foreign : {true, false})
    EXPECT_EQ(
        failure_of(scene_with(), {Allocate{0, kNonBlocking, 4 * kMiB, 0}, Reset{0, is_foreign},
                                  Allocate{0, kNonBlocking, 6 * kMiB, 0}}),
        "");
}

TEST(PoolRegression, small_requests_on_other_streams_do_not_break_a_capture) {
  EXPECT_EQ(
      failure_of(scene_with(), {capture_on(kNonBlocking, false), Allocate{0, kOther, 256, 0},
                                Free{1}, Allocate{0, kAnyStream, 256, 0}, FreeAnyStream{1, false},
                                EndCapture{0, true}, Launch{0, kOther}}),
      "");
}

TEST(PoolRegression, a_capture_is_known_before_deferred_frees_are_proven) {
  EXPECT_EQ(
      failure_of(scene_with(), {Allocate{0, kNonBlocking, 10 * kMiB, 0}, FreeAnyStream{0, true},
                                capture_on(kNonBlocking, false), EndCapture{0, true}}),
      "");
}

TEST(PoolRegression, memory_freed_in_a_capture_is_had_again_in_it) {
  EXPECT_EQ(failure_of(scene_with(), {capture_on(kNonBlocking, false), Free{0},
                                      Allocate{0, kNonBlocking, 2 * kMiB, 0}, EndCapture{0, true},
                                      Launch{0, kOther}}),
            "");
}

TEST(PoolRegression, the_end_of_an_announced_capture_is_not_the_end_of_one_seen_before) {
  EXPECT_EQ(failure_of(scene_with(), {capture_on(kNonBlocking, false), capture_on(kOther, true),
                                      EndCapture{1, true}, Allocate{0, kAnyStream, 16 * kMiB, 0},
                                      FreeAnyStream{2, false}, EndCapture{0, true}}),
            "");
}

TEST(PoolRegression, running_out_ends_where_no_event_proves_anything) {
  for (const auto order : {settings::AnyStreamOrder::legacy, settings::AnyStreamOrder::park}) {
    Scene scene = scene_with();
    scene.sim.capacity = 32 * kMiB;
    scene.sim.context_events_supported = false;
    scene.config.streams.any_stream = order;
    EXPECT_EQ(failure_of(scene, {Allocate{0, kNonBlocking, 20 * kMiB, 0}, Free{0},
                                 Allocate{0, kOther, 26 * kMiB, 0},
                                 Allocate{0, kAnyStream, 26 * kMiB, 0}}),
              "");
  }
}

TEST(PoolRegression, an_aligned_request_gets_all_free_memory_when_there_is_no_more) {
  Scene scene = scene_with();
  scene.sim.capacity = 48 * kMiB;
  scene.config.page_chunks = true;
  EXPECT_EQ(failure_of(scene, {Allocate{0, kNonBlocking, 2 * kMiB, 0},
                               Allocate{0, kNonBlocking, 46 * kMiB, 0}, Free{1},
                               Allocate{0, kNonBlocking, 46 * kMiB, 16 * kMiB}}),
            "");
}

// What VPMM_ANY_STREAM=legacy leaves out is the work of streams that nobody named.
TEST(PoolRegression, memory_of_many_streams_waits_for_all_of_them_whatever_any_stream_means) {
  Scene scene = scene_with();
  scene.config.streams.any_stream = settings::AnyStreamOrder::legacy;
  EXPECT_EQ(failure_of(scene, {Allocate{0, kNonBlocking, 32 * kMiB, 0}, ReadElsewhere{0, kOther},
                               ReadElsewhere{0, 6}, Free{0}, Spin{0, kLegacy, 1000},
                               Allocate{0, kAnyStream, 2 * kMiB, 0}, FreeAnyStream{0, false},
                               Allocate{0, kAnyStream, 30 * kMiB, 0}}),
            "");
}

// The stream of the allocation waits for nobody here, and the legacy stream does not wait for it.
TEST(PoolRegression, a_use_on_the_stream_of_the_allocation_counts_when_it_was_named) {
  for (const Bytes bytes : {Bytes{1000}, 48 * kMiB}) {
    Scene scene = scene_with(driver::sim::Schedule::timed);
    scene.config.streams.any_stream = settings::AnyStreamOrder::legacy;
    EXPECT_EQ(
        failure_of(scene, {Allocate{0, kNonBlocking, bytes, 0}, Move{0, kLegacy, false},
                           Spin{0, kNonBlocking, 1'000'000'000}, ReadElsewhere{0, kNonBlocking},
                           FreeAnyStream{0, false}, Allocate{0, kOther, 4 * kMiB, 0},
                           FreeAnyStream{0, false}, Pass{1'000'000}, Allocate{0, kLegacy, bytes, 0},
                           Allocate{0, kLegacy, bytes, 0}}),
        "");
  }
}

// Events on the legacy stream may finish before a context event that stands longer; pending memory
// above the cap waits.
TEST(PoolRegression, an_event_on_the_legacy_stream_may_overtake_one_of_the_context) {
  Scene scene = scene_with();
  scene.config.streams.any_stream = settings::AnyStreamOrder::legacy;
  EXPECT_EQ(failure_of(scene, {Allocate{0, kNonBlocking, 4 * kMiB, 0}, ReadElsewhere{0, kOther},
                               ReadElsewhere{0, 6}, Free{0}, Allocate{0, kAnyStream, 2 * kMiB, 0},
                               FreeAnyStream{0, false}, Allocate{0, kLegacy, 100 * kMiB, 0},
                               FreeAnyStream{0, false}, Allocate{0, kLegacy, 200 * kMiB, 0},
                               FreeAnyStream{0, false}}),
            "");
}

TEST(PoolRegression, a_free_that_names_a_capturing_stream_waits_for_that_stream) {
  Scene scene = scene_with();
  scene.config.streams.unnamed_free = settings::UnnamedFree::allocating_stream;
  for (const Bytes bytes : {Bytes{768}, 4 * kMiB})
    EXPECT_EQ(failure_of(scene, {Allocate{0, kOther, bytes, 0}, Move{0, kNonBlocking, false},
                                 Write{0}, capture_on(kNonBlocking, true), Free{0}, Synchronize{0},
                                 Allocate{0, kOther, bytes, 0}, Step{3},
                                 Allocate{0, kAnyStream, bytes, 0}, EndCapture{0, true}}),
              "");
}

TEST(PoolRegression, what_the_last_holder_lets_go_of_waits_for_all_work_whatever_any_stream_means) {
  Scene scene = scene_with();
  scene.config.streams.any_stream = settings::AnyStreamOrder::legacy;
  for (const Bytes bytes : {Bytes{1000}, 6 * kMiB})
    EXPECT_EQ(failure_of(scene, {Allocate{0, kNonBlocking, bytes, 0}, Share{0, 0, 4}, Free{0},
                                 EndLease{0, 0, context::Holder::handle},
                                 AllocateMany{0, kAnyStream, bytes, 6}}),
              "");
}

TEST(PoolRegression, running_out_without_a_pool_takes_back_what_any_stream_frees_hold) {
  for (const auto order : {settings::AnyStreamOrder::context, settings::AnyStreamOrder::legacy,
                           settings::AnyStreamOrder::park}) {
    Scene scene = scene_with();
    scene.sim.vmm_supported = false;
    scene.sim.capacity = 128 * kMiB;
    scene.config.streams.any_stream = order;
    test::PoolWorld world({scene.sim, scene.config});
    world.deallocate(world.allocate(80 * kMiB, driver::kLegacyStream), std::nullopt);
    world.deallocate(world.allocate(80 * kMiB, driver::kLegacyStream), std::nullopt);
  }
}

// Whole pages fit into what is left of a capacity, and into what is given back for one.
TEST(PoolRegression, a_request_that_fits_within_a_capacity_of_no_whole_pages_is_served) {
  Scene scene = scene_with();
  scene.config.page_size = 8 * kMiB;
  scene.config.chunk_max = 32 * kMiB;
  scene.config.limits.capacity = 230 * kMiB;
  EXPECT_EQ(failure_of(scene, {AllocateMany{0, kLegacy, 96 * kMiB, 3}, FreeAnyStream{0, false},
                               FreeElsewhere{1, 1, false}, Allocate{0, kLegacy, 156 * kMiB, 0}}),
            "");
}

// The limit requires nearly all idle memory back, and an old address still maps one chunk of it.
TEST(PoolRegression, a_request_below_a_lowered_limit_is_served_while_cleanup_is_deferred) {
  Scene scene = scene_with();
  scene.sim.capacity = 64 * kGiB;
  scene.config.va_size = 128 * kGiB;
  scene.config.page_chunks = false;
  scene.config.chunk_max = 4 * kGiB;
  scene.config.ipc_isolate = true;
  EXPECT_EQ(failure_of(
                scene,
                {DeferCleanup{0}, AllocateTagged{0, kLegacy, 1, false, false},
                 FreeMany{0, kLegacy, 1}, Suspend{0, 0, false, false, kAnyStream, std::nullopt},
                 Allocate{0, kLegacy, 948 * kMiB, 0}, Allocate{0, 3, 1, 0}, FreeAnyStream{0, false},
                 Free{0}, Allocate{0, 3, 1898 * kMiB, 0}, Free{0}, Resume{0, 0, false, true},
                 SetCapacity{0, 878 * kMiB}, AllocateTagged{0, kLegacy, 28 * kMiB, false, false}}),
            "");
}

// Nothing lives, and one page in one chunk fits when enough of the idle memory above the limit is
// released.
TEST(PoolRegression, a_limit_below_the_mapped_memory_leaves_room_for_one_chunk) {
  Scene scene = scene_with();
  scene.config.chunk_max = 8 * kMiB;
  EXPECT_EQ(
      failure_of(scene, {DeferCleanup{0}, Preallocate{0, 64 * kMiB}, SetCapacity{0, 12 * kMiB},
                         AllocateSpecial{0, kAnyStream, 11, true, false}}),
      "");
}

// The 285 bytes get the 178 MiB that the capture freed, and keep them when the graph is gone.
TEST(PoolRegression, a_small_request_of_a_capture_keeps_no_large_memory_after_the_graph) {
  Scene scene = scene_with(driver::sim::Schedule::timed);
  scene.sim.capacity = 4 * kGiB;
  scene.config.limits.capacity = 962 * kMiB;
  EXPECT_EQ(
      failure_of(scene, {Allocate{0, 1, 210 * kMiB, 0}, Allocate{0, kLegacy, 16 * kMiB, 0},
                         capture_on(kOther, true), Allocate{0, kOther, 178 * kMiB, 0}, Free{3},
                         Allocate{0, kOther, 285, 0}, Allocate{0, kOther, 144 * kMiB, 0},
                         EndCapture{0, true}, DestroyGraph{0, false, false}, Synchronize{0},
                         Synchronize{0}, Allocate{0, 5, 420 * kMiB, 0}}),
      "");
}

TEST(PoolRegression, graphs_of_an_arena_run_after_each_other) {
  EXPECT_EQ(failure_of(scene_with(),
                       {MakeArena{0, false, true}, capture_on(kNonBlocking, true),
                        AllocateInArena{0, kNonBlocking, 3'000'000}, Free{1}, EndCapture{0, true},
                        capture_on(kOther, true), AllocateInArena{0, kOther, 3'000'000}, Read{2},
                        Free{2}, EndCapture{0, true}, Launch{0, 3}, Launch{1, 5}, Launch{0, 5},
                        DestroyGraph{0, false, false}, DestroyGraph{0, false, true},
                        ReleaseArena{0}, Allocate{0, 6, kGiB, 0}}),
            "");
}

TEST(PoolRegression, memory_of_a_stream_goes_to_another_behind_a_wait) {
  Scene scene = scene_with(driver::sim::Schedule::timed);
  scene.config.ipc_isolate = true;
  scene.config.limits.capacity = 4 * kMiB;
  EXPECT_EQ(failure_of(scene, {Allocate{0, kNonBlocking, 4 * kMiB, 0}, Write{0}, Free{0},
                               Allocate{0, kOther, 4 * kMiB, 0}, Reset{0, false}, Free{0},
                               Allocate{0, 6, 4 * kMiB, 0}}),
            "");
}

// The reset of one GPU orders nothing behind the work of another.
TEST(PoolRegression, memory_that_a_peer_reads_outlives_a_reset) {
  Scene scene = scene_with();
  scene.sim.device_count = 2;
  EXPECT_EQ(failure_of(scene, {Allocate{0, 0, 1, 0}, SetPeerAccess{0, 1}, ReadOnPeer{0, 1, 0},
                               Reset{0, true}, Write{0}}),
            "");
}

// The neighbour gives its page back to a callback's request, whose free is pending when the request
// fails that the callback was asked for.
TEST(PoolRegression, a_callback_may_take_what_a_neighbour_gives_back) {
  Scene scene = scene_with(driver::sim::Schedule::timed);
  scene.pools_share_gpu = true;
  scene.sim.capacity = kGiB;
  EXPECT_EQ(failure_of(scene, {AllocateTagged{0, 0, 1, false, false}, OthersUse{0, 2 * kGiB},
                               CallBack{1, 3}, FreeElsewhere{0, 0, true}, Allocate{0, 0, 1, 0},
                               MakeArena{1, false, false}, FreeAnyStream{0, false},
                               AllocateInArena{0, 0, 1}}),
            "");
}

// 1.25 MiB across a border of pages, of which a quarter of a MiB before it is in use again.
TEST(PoolRegression, what_is_cut_across_a_border_for_no_stream_keeps_a_page_in_a_shortage) {
  Scene scene = scene_with();
  scene.config.limits.capacity = 6 * kMiB;
  std::vector<Operation> operations(8, Allocate{0, kAnyStream, kMiB / 2, 0});
  const Operation free_fourth = FreeAnyStream{3, false};
  operations.insert(operations.end(),
                    {free_fourth, free_fourth, free_fourth, Synchronize{0},
                     Allocate{0, kAnyStream, kMiB + kMiB / 4, 0}, FreeAnyStream{5, false},
                     Synchronize{0}, Allocate{0, kAnyStream, kMiB / 4, 0}, free_fourth, free_fourth,
                     Synchronize{0}, Allocate{0, kAnyStream, 4 * kMiB, 0}});
  EXPECT_EQ(failure_of(scene, operations), "");
}

// Its free is deferred, until the next call of the pool.
TEST(PoolRegression, memory_of_many_that_the_driver_refuses_to_take_back_stays_for_a_while) {
  Scene scene = scene_with();
  scene.config.page_size = scene.config.chunk_max = 8 * kMiB;
  scene.config.limits.max_mappings = 70;
  scene.config.small = settings::SmallRequests::stream_ordered;
  EXPECT_EQ(failure_of(scene, {SetCapacity{0, 122406212}, Allocate{0, 0, 20971520, 0},
                               Allocate{0, 0, 19191342, 0}, Allocate{0, 0, 12582912, 0}, Free{0},
                               Share{0, 38399, 6758}, FreeAnyStream{0, true}, Allocate{0, 0, 1, 0},
                               Allocate{0, 0, 17309722, 0}, Allocate{0, 0, 33554432, 0},
                               FreeAnyStream{0, false}, FreeElsewhere{0, 1, false}, Free{0},
                               EndLease{0, 34345, context::Holder::handle},
                               AllocateTagged{0, 0, 1, false, false}, Fault{24874, 28005, 1, false},
                               AllocateMany{0, 0, 23068672, 4}}),
            "");
}

// Somebody resets the context before the margin is filled.
TEST(PoolRegression, a_fill_that_a_reset_drops_is_no_overrun) {
  Scene scene = scene_with();
  scene.config.checks.guard_every = 1;
  const Figures figures = figures_of(scene, {Allocate{0, kNonBlocking, 1, 0}, Reset{0, true}});
  EXPECT_EQ(figures.guarded, 1u);
  EXPECT_EQ(figures.damaged, 0u);
}

TEST(PoolRegression, an_overrun_is_told_and_the_pages_end_with_the_work) {
  Scene scene = scene_with();
  scene.config.checks.guard_every = 1;
  for (const std::uint64_t place : {0, 1, 2, 3}) {
    const Figures figures =
        figures_of(scene, {Allocate{0, kNonBlocking, 1000, 0}, Overrun{0, place, 7}, Free{0},
                           Synchronize{0}, Allocate{0, kOther, 1000, 0}});
    EXPECT_EQ(figures.guarded, 2u);
    EXPECT_EQ(figures.damaged, place < 2 ? 1u : 0u) << "bytes of a margin are on the pages";
  }
}

// The first such free of a process, so this shows in a process of its own.
TEST(PoolRegression, a_free_on_another_stream_needs_no_host_memory) {
  EXPECT_EQ(failure_of(scene_with(), {Allocate{0, kNonBlocking, 1, 0}, Allocate{0, kLegacy, 1, 0},
                                      Fault{0, 0, 0, true}, FreeElsewhere{1, kNonBlocking, false}}),
            "");
}

}  // namespace
}  // namespace vpmm::property
