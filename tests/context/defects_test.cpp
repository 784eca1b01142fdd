// SPDX-License-Identifier: Apache-2.0
// context: mistakes that pools of this design are known to make, each with the test that this one
// does not.
#include <gtest/gtest.h>

#include <functional>

#include "pool/tuning.hpp"
#include "support/pool_world_words.hpp"

namespace vpmm::test {
namespace {

using driver::Call;
using driver::CuResult;
using driver::FaultPlan;

Bytes unmapped(const PoolWorld& world) { return world.statistics().hole_bytes; }

// Reserved space that is neither a hole nor holds memory once zombies are swept: address space that
// leaked.
Bytes leaked_address_space(PoolWorld& world) {
  world.wait();
  const observe::Statistics now = world.statistics();
  return now.reserved_bytes - unmapped(world) - now.free_bytes - now.zombie_bytes -
         now.allocated_bytes;
}

// Fails one call of a kind with each error that matters in turn, then checks that nothing was lost:
// the request can be made again, and in the end every page, address and event can be given back
// (PoolWorld looks).
void fail_each(Call call, const std::function<void(PoolWorld&)>& prepare,
               const std::function<bool(PoolWorld&)>& act) {
  for (const CuResult error : driver::errors_that_matter(call)) {
    if (driver::is_sticky(error)) continue;
    for (std::uint64_t nth = 1; nth <= 20; ++nth) {
      SCOPED_TRACE(std::string(driver::to_string(call)) + " number " + std::to_string(nth) +
                   " gives " + driver::to_string(error));
      PoolWorld world(page_world());
      prepare(world);
      world.faults().set_plan({{call}, nth, error, FaultPlan::Repeat::once});
      act(world);
      const bool has_fired = world.faults().fired() > 0;
      world.faults().clear_plan();
      EXPECT_TRUE(has_fired || nth > 1) << "there is no such call";
      EXPECT_EQ(world.pool().reports().validate(), "");
      EXPECT_TRUE(act(world)) << "the pool works as before";
      EXPECT_EQ(leaked_address_space(world), 0u);
      if (!has_fired) break;
    }
  }
}

// --- address space and bookkeeping

TEST(Defects, growth_returns_the_unused_tail_of_the_hole) {
  PoolWorld world(page_world());
  const StreamHandle stream = world.stream();
  world.deallocate(world.allocate(4 * kPage, stream), stream);
  const DevicePtr six = world.allocate(6 * kPage, stream);
  world.use(six, 6 * kPage, stream);
  world.wait();
  EXPECT_EQ(world.picture(), "[6]") << "extended in place: four pages kept, two new";
  EXPECT_EQ(leaked_address_space(world), 0u);
}

TEST(Defects, one_buffer_that_grows_from_4_to_198_pages_leaks_no_address_space) {
  for (const WorldOptions& options : {page_world(), adaptive_world()}) {
    PoolWorld world(options);
    const StreamHandle stream = world.stream();
    for (Bytes pages = 4; pages <= 198; pages += 2) {
      const DevicePtr ptr = world.allocate(pages * kPage, stream);
      world.use(ptr, pages * kPage, stream);
      world.deallocate(ptr, stream);
    }
    EXPECT_EQ(leaked_address_space(world), 0u);
    EXPECT_EQ(world.statistics().reserved_bytes, options.config.va_size);
    EXPECT_EQ(world.picture(), options.config.page_chunks ? "[-198]" : "[-200]")
        << "the last chunk is not cut to size";
  }
}

TEST(Defects, holes_of_two_reservations_stay_apart) {
  WorldOptions options = page_world();
  options.config.va_size = 8 * kPage;
  PoolWorld world(options);
  const StreamHandle stream = world.stream();
  const DevicePtr first = world.allocate(8 * kPage, stream);
  const DevicePtr second = world.allocate(8 * kPage, stream);
  world.deallocate(first, stream);
  world.deallocate(second, stream);
  world.wait();
  ASSERT_TRUE(world.pool().limits().trim(0).ok());
  EXPECT_EQ(world.picture(), "[] | []");
  const auto regions = world.pool().reports().snapshot().regions;
  ASSERT_EQ(regions.size(), 2u) << "two holes, even where the reservations touch";
  for (const auto& hole : regions) EXPECT_EQ(hole.range.size, 8 * kPage);
}

TEST(Defects, nothing_is_touched_before_the_first_allocation_of_a_device_that_nobody_uses) {
  driver::sim::SimDriver sim;
  driver::RecordingDriver calls(sim);
  settings::Config config;
  config.pages = 16;
  auto pool = context::Context::create(calls, 0, config);
  ASSERT_TRUE(pool.ok());
  EXPECT_EQ(calls.memory_call_count(), 0u);
  EXPECT_EQ(calls.count(Call::device_primary_ctx_retain), 0u);
  pool.value().reset();
  EXPECT_EQ(calls.count(Call::device_primary_ctx_retain), 0u) << "nor at its end";
}

// One page comes and goes (Note [A pool tries its calls out]).
TEST(Defects, a_pool_holds_no_memory_before_the_first_allocation_where_the_device_is_in_use) {
  for (WorldOptions options : {page_world(), adaptive_world()}) {
    options.config.pages = 16;
    PoolWorld world(options);
    for (const Call once : {Call::mem_address_reserve, Call::mem_create, Call::mem_map,
                            Call::mem_set_access, Call::mem_unmap, Call::mem_release})
      EXPECT_EQ(world.calls().count(once), 1u) << to_string(once);
    EXPECT_EQ(world.calls().memory_call_count(), 6u);
    EXPECT_EQ(world.sim().census().reservations, 1u);
    EXPECT_EQ(world.sim().census().chunks, 0u);
    const observe::Statistics figures = world.statistics();
    EXPECT_EQ(figures.mapped_bytes + figures.peak_mapped_bytes + figures.peak_chunks +
                  figures.peak_mappings,
              0u);
    EXPECT_EQ(figures.chunks_created + figures.chunks_released, 0u);
    EXPECT_EQ(world.pool().reports().validate(), "");
  }
}

// What fails while the pool is made ready is asked again by the first request.
TEST(Defects, a_pool_that_could_not_be_made_ready_serves_all_the_same) {
  for (const Call failing :
       {Call::device_primary_ctx_get_state, Call::device_primary_ctx_retain, Call::ctx_get_id,
        Call::mem_address_reserve, Call::mem_get_info, Call::mem_create, Call::mem_map,
        Call::mem_set_access, Call::mem_unmap, Call::mem_release}) {
    driver::sim::SimDriver sim;
    driver::ContextHandle context{};
    ASSERT_EQ(sim.init(), CuResult::success);
    ASSERT_EQ(sim.device_primary_ctx_retain(0, context), driver::CuResult::success);
    ASSERT_EQ(sim.ctx_set_current(context), driver::CuResult::success);
    driver::FaultingDriver faulty(sim);
    faulty.set_plan(FaultPlan{{failing}});
    auto pool = context::Context::create(faulty, 0, adaptive_world().config);
    ASSERT_TRUE(pool.ok()) << to_string(failing);
    driver::StreamHandle stream{};
    ASSERT_EQ(sim.stream_create(driver::StreamFlags::non_blocking, stream), CuResult::success);
    const auto ptr = pool.value()->allocate({kPage, 0, stream});
    ASSERT_TRUE(ptr.ok()) << to_string(failing) << ": " << ptr.error().message;
    EXPECT_TRUE(pool.value()->deallocate(ptr.value(), stream).ok());
    EXPECT_EQ(pool.value()->reports().validate(), "");
  }
}

// A context that breaks while the pool is made ready gets no further call, not even to give the
// page back.
TEST(Defects, a_context_that_breaks_while_a_pool_is_made_is_left_alone) {
  for (const Call failing : {Call::mem_create, Call::mem_map, Call::mem_set_access}) {
    driver::sim::SimDriver sim;
    driver::ContextHandle context{};
    ASSERT_EQ(sim.init(), CuResult::success);
    ASSERT_EQ(sim.device_primary_ctx_retain(0, context), driver::CuResult::success);
    driver::FaultingDriver faulty(sim);
    faulty.set_plan(FaultPlan{{failing}, 1, CuResult::illegal_address});
    driver::RecordingDriver recorder(faulty);
    auto pool = context::Context::create(recorder, 0, adaptive_world().config);
    ASSERT_TRUE(pool.ok()) << to_string(failing);
    const std::uint64_t calls = recorder.memory_call_count();
    expect_error(pool.value()->allocate({kPage, 0, std::nullopt}), ErrorCode::poisoned,
                 {"CUDA_ERROR_ILLEGAL_ADDRESS"});
    EXPECT_EQ(recorder.memory_call_count(), calls) << to_string(failing);
  }
}

TEST(Defects, requests_above_one_reservation_are_served) {
  WorldOptions options = page_world();
  options.config.va_size = 4 * kPage;
  PoolWorld world(options);
  const StreamHandle stream = world.stream();
  world.use(world.allocate(9 * kPage, stream), 9 * kPage, stream);
}

// --- failing calls

// Four pages idle, one live, two idle: a request of seven keeps two, moves four and creates one.
StreamHandle fragment(PoolWorld& world) {
  const StreamHandle stream = world.stream();
  const DevicePtr four = world.allocate(4 * kPage, stream);
  world.allocate(kPage, stream);
  const DevicePtr two = world.allocate(2 * kPage, stream);
  world.use(four, 4 * kPage, stream);
  world.deallocate(four, stream);
  world.deallocate(two, stream);
  return stream;
}

void expect_nothing_lost_when(Call call,
                              const std::function<StreamHandle(PoolWorld&)>& prepare = fragment) {
  StreamHandle stream{};
  fail_each(
      call, [&](PoolWorld& world) { stream = prepare(world); },
      [&](PoolWorld& world) {
        const auto result = world.pool().allocate({7 * kPage, 0, stream});
        if (!result) return false;
        world.use(result.value(), 7 * kPage, stream);
        EXPECT_TRUE(world.pool().deallocate(result.value(), stream).ok());
        return true;
      });
}

TEST(Defects, failed_create_loses_nothing) { expect_nothing_lost_when(Call::mem_create); }
TEST(Defects, failed_map_loses_nothing) { expect_nothing_lost_when(Call::mem_map); }
TEST(Defects, failed_access_loses_nothing) { expect_nothing_lost_when(Call::mem_set_access); }
TEST(Defects, failed_record_loses_nothing) { expect_nothing_lost_when(Call::event_record); }
TEST(Defects, failed_event_creation_loses_nothing) {
  expect_nothing_lost_when(Call::event_create, [](PoolWorld& world) { return world.stream(); });
}

TEST(Defects, a_failed_plan_leaves_the_regions_as_they_were) {
  PoolWorld world(page_world());
  const StreamHandle stream = fragment(world);
  world.wait();
  const std::string before = world.picture();
  world.faults().set_plan(
      {{Call::mem_set_access}, 1, CuResult::invalid_value, FaultPlan::Repeat::once});
  expect_error(world.pool().allocate({7 * kPage, 0, stream}), ErrorCode::driver_failed,
               {"mem_set_access"});
  EXPECT_EQ(world.picture(), before);
  EXPECT_EQ(world.statistics().failed_plans, 1u);
  EXPECT_EQ(world.sim().census().mappings, world.statistics().mappings);
}

TEST(Defects, failed_wait_loses_no_region) {
  StreamHandle other{};
  fail_each(
      Call::stream_wait_event,
      [&](PoolWorld& world) {
        other = world.stream();
        const StreamHandle busy = world.stream();
        const DevicePtr ptr = world.allocate(4 * kPage, busy);
        world.use(ptr, 4 * kPage, busy, kLongNs);
        world.deallocate(ptr, busy);
      },
      [&](PoolWorld& world) {
        const auto result = world.pool().allocate({4 * kPage, 0, other});
        if (!result) return false;
        world.use(result.value(), 4 * kPage, other);
        EXPECT_TRUE(world.pool().deallocate(result.value(), other).ok());
        return true;
      });
}

TEST(Defects, failed_unmap_keeps_the_zombie) {
  PoolWorld world(page_world());
  const StreamHandle stream = world.stream();
  const DevicePtr two = world.allocate(2 * kPage, stream);
  world.allocate(kPage, stream);
  world.deallocate(two, stream);
  world.allocate(3 * kPage, stream);
  ASSERT_EQ(world.statistics().zombie_bytes, 2 * kPage);
  world.faults().set_plan(
      {{Call::mem_unmap}, 1, CuResult::invalid_value, FaultPlan::Repeat::from_then_on});
  world.wait();
  EXPECT_EQ(world.statistics().zombie_bytes, 2 * kPage) << "what is still mapped is no hole";
  EXPECT_EQ(world.statistics().quarantined_bytes, 2 * kPage) << "and it is told";
  world.use(world.allocate(5 * kPage, stream), 5 * kPage, stream);
  world.faults().clear_plan();
  world.wait();
  EXPECT_EQ(world.statistics().zombie_bytes, 0u) << "it is tried again";
  EXPECT_EQ(world.statistics().quarantined_bytes, 0u);
}

TEST(Defects, what_the_driver_does_not_take_back_is_in_the_report_of_a_shortage) {
  WorldOptions options = page_world();
  options.config.limits.capacity = 6 * kPage;
  PoolWorld world(options);
  const StreamHandle stream = world.stream();
  const DevicePtr two = world.allocate(2 * kPage, stream);
  world.allocate(kPage, stream);
  world.deallocate(two, stream);
  world.allocate(3 * kPage, stream);
  world.faults().set_plan(
      {{Call::mem_unmap}, 1, CuResult::invalid_value, FaultPlan::Repeat::from_then_on});
  world.wait();
  ASSERT_EQ(world.statistics().quarantined_bytes, 2 * kPage);
  expect_error(world.pool().allocate({6 * kPage, 0, stream}), ErrorCode::out_of_memory,
               {"refused    4 MiB that the driver does not take back"});
}

TEST(Defects, error_event_poisons_instead_of_sticking) {
  PoolWorld world(page_world());
  const StreamHandle stream = world.stream();
  world.deallocate(world.allocate(4 * kPage, stream), stream);
  world.break_context(CuResult::launch_failed);
  expect_error(world.pool().allocate({kPage, 0, stream}), ErrorCode::poisoned,
               {"CUDA_ERROR_LAUNCH_FAILED"});
}

TEST(Defects, a_failed_event_in_a_free_does_not_block_later_calls) {
  PoolWorld world(page_world());
  const StreamHandle stream = world.stream();
  const DevicePtr ptr = world.allocate(4 * kPage, stream);
  world.faults().set_plan({{Call::event_create, Call::event_record},
                           1,
                           CuResult::out_of_memory,
                           FaultPlan::Repeat::from_then_on});
  EXPECT_TRUE(world.pool().deallocate(ptr, stream).ok());
  EXPECT_EQ(world.allocate(4 * kPage, stream), ptr) << "own memory needs no event";
  world.faults().clear_plan();
  world.deallocate(ptr, stream);
  EXPECT_EQ(world.allocate(4 * kPage, world.stream()), ptr);
}

// All of a page is in use but for one part, which the GPU still uses.
TEST(Defects, a_failed_look_at_the_work_of_others_does_not_refuse_a_request_below_a_page) {
  PoolWorld world(page_by_page_world());
  const StreamHandle stream = world.stream(), other = world.stream();
  std::vector<DevicePtr> small;
  for (int i = 0; i < 8; ++i) small.push_back(world.allocate(kPage / 8, other));
  world.use(small[0], kPage / 8, other, kLongNs);
  world.deallocate(small[0], std::nullopt);
  world.faults().set_plan({{Call::event_query}, 1, CuResult::unknown, FaultPlan::Repeat::once});
  world.allocate(kPage / 8, stream);
  EXPECT_EQ(world.faults().fired(), 1u);
}

TEST(Defects, a_device_without_virtual_memory_management_is_closed_without_a_word) {
  WorldOptions options = page_world();
  options.sim.vmm_supported = false;
  PoolWorld world(options);
  const StreamHandle stream = world.stream();
  world.deallocate(world.allocate(4 * kPage, stream), stream);
  EXPECT_EQ(world.calls().count(Call::mem_address_free), 0u);
}

TEST(Defects, a_failed_look_for_a_reset_is_an_error_and_opens_nothing) {
  PoolWorld world(page_world());
  const StreamHandle stream = world.stream();
  world.allocate(kPage, stream);
  const std::uint64_t retained = world.calls().count(Call::device_primary_ctx_retain);
  world.faults().set_plan({{Call::ctx_get_id}, 1, CuResult::unknown, FaultPlan::Repeat::once});
  expect_error(world.pool().allocate({kPage, 0, stream}), ErrorCode::driver_failed,
               {"ctx_get_id failed: CUDA_ERROR_UNKNOWN"});
  EXPECT_EQ(world.faults().fired(), 1u);
  world.allocate(kPage, stream);
  EXPECT_EQ(world.calls().count(Call::device_primary_ctx_retain), retained);
}

TEST(Defects, a_reset_of_our_own_is_not_asked_for_again) {
  PoolWorld world(page_world());
  world.allocate(kPage, world.stream());
  ASSERT_TRUE(world.pool().streams().reset().ok());
  driver::ContextHandle context{};
  ASSERT_EQ(world.sim().device_primary_ctx_retain(0, context), CuResult::success);
  ASSERT_EQ(world.sim().ctx_set_current(context), CuResult::success);
  const auto looks = [&] { return world.calls().count(Call::ctx_get_id); };
  const std::uint64_t before = looks();
  ASSERT_TRUE(world.pool().allocate({kPage, 0, std::nullopt}).ok());
  EXPECT_EQ(looks() - before, 1u) << "of the context that was opened";
}

TEST(Defects, errors_have_the_drivers_names) {
  PoolWorld world(page_world());
  world.faults().set_plan(
      {{Call::mem_create}, 1, CuResult::invalid_value, FaultPlan::Repeat::once});
  expect_error(world.pool().allocate({kPage, 0, world.stream()}), ErrorCode::driver_failed,
               {"mem_create", "CUDA_ERROR_INVALID_VALUE", "(1)"});
}

TEST(Defects, the_out_of_memory_error_tells_free_from_mapped) {
  WorldOptions options = page_world();
  options.config.limits.capacity = 8 * kPage;
  PoolWorld world(options);
  const StreamHandle stream = world.stream();
  world.allocate(5 * kPage, stream);
  world.deallocate(world.allocate(3 * kPage, stream), stream);
  expect_error(
      world.pool().allocate({4 * kPage, 0, stream}), ErrorCode::out_of_memory,
      {"free       6 MiB,", "mapped     16 MiB; the limit is 16 MiB; 0 bytes more may be mapped"});
}

// --- order

TEST(Defects, free_on_another_stream_is_ordered) {
  PoolWorld world(page_world());
  const StreamHandle a = world.stream();
  const StreamHandle b = world.stream();
  const DevicePtr ptr = world.allocate(4 * kPage, a);
  world.use(ptr, 4 * kPage, a);
  ASSERT_EQ(world.sim().stream_synchronize(a), CuResult::success);
  world.use(ptr, 4 * kPage, b, kLongNs);
  world.deallocate(ptr, b);
  const DevicePtr next =
      world.allocate(4 * kPage, a);  // without an order this would overtake the work on b
  world.use(next, 4 * kPage, a);
}

TEST(Defects, completed_region_is_not_stamped_again_by_a_pending_neighbour) {
  PoolWorld world(page_world());
  const StreamHandle a = world.stream();
  const DevicePtr old = world.allocate(6 * kPage, a);
  const DevicePtr young = world.allocate(2 * kPage, a);
  world.deallocate(old, a);
  world.wait();
  world.use(young, 2 * kPage, a, kLongNs);
  world.deallocate(young, a);
  EXPECT_EQ(world.picture(), "[-6][-2]");
  EXPECT_EQ(world.statistics().pending_bytes, 2 * kPage);
  EXPECT_EQ(world.allocate(6 * kPage, world.stream()), old) << "still anybody's, without a wait";
  EXPECT_EQ(world.statistics().gpu_waits, 0u);
}

TEST(Defects, taking_part_of_a_foreign_region_leaves_the_rest_to_its_stream) {
  PoolWorld world(page_world());
  const StreamHandle a = world.stream();
  const StreamHandle b = world.stream();
  const DevicePtr ptr = world.allocate(6 * kPage, a);
  world.use(ptr, 6 * kPage, a, kLongNs);
  world.deallocate(ptr, a);
  world.allocate(2 * kPage, b);
  const auto regions = world.pool().reports().snapshot().regions;
  ASSERT_EQ(regions[1].kind, '-');
  driver::StreamId id{};
  ASSERT_EQ(world.sim().stream_get_id(a, id), CuResult::success);
  const std::string owner = "stream " + std::to_string(static_cast<std::uint64_t>(id)) + " ";
  EXPECT_EQ(regions[1].stamp.rfind(owner, 0), 0u) << regions[1].stamp;
}

TEST(Defects, two_handles_of_one_stream_are_one_timeline) {
  PoolWorld world(page_world());
  const DevicePtr ptr = world.allocate(4 * kPage, driver::kNullStream);
  world.use(ptr, 4 * kPage, driver::kNullStream, kLongNs);
  world.deallocate(ptr, driver::kLegacyStream);
  EXPECT_EQ(world.allocate(4 * kPage, driver::kNullStream), ptr);
  EXPECT_EQ(world.statistics().gpu_waits, 0u);
}

TEST(Defects, external_streams_need_no_wrapping) {
  PoolWorld world(page_world());
  for (const StreamHandle stream :
       {world.stream(StreamFlags::blocking), world.stream(), driver::kPerThreadStream,
        driver::kLegacyStream, driver::kNullStream}) {
    const DevicePtr ptr = world.allocate(3 * kPage, stream);
    world.use(ptr, 3 * kPage, stream);
    world.deallocate(ptr, stream);
  }
}

TEST(Defects, a_capture_elsewhere_survives_the_questions_the_pool_asks) {
  PoolWorld world(page_world());
  const StreamHandle capturing = world.stream();
  const StreamHandle busy = world.stream();
  const DevicePtr ptr = world.allocate(4 * kPage, busy);
  world.use(ptr, 4 * kPage, busy, kLongNs);
  world.deallocate(ptr, busy);
  ASSERT_EQ(world.sim().stream_begin_capture(capturing, driver::CaptureMode::global),
            CuResult::success);
  const std::uint64_t queries = world.calls().count(Call::event_query);
  world.allocate(4 * kPage, busy);
  EXPECT_GT(world.calls().count(Call::event_query), queries);
  driver::GraphHandle graph{};
  EXPECT_EQ(world.sim().stream_end_capture(capturing, graph), CuResult::success);
  ASSERT_EQ(world.sim().graph_destroy(graph), CuResult::success);
}

// --- cost

TEST(Defects, frees_create_no_event_object_each) {
  for (const WorldOptions& options : {page_world(), adaptive_world()}) {
    PoolWorld world(options);
    const StreamHandle a = world.stream();
    const StreamHandle b = world.stream();
    for (int i = 0; i < 2000; ++i) {
      const StreamHandle stream = i % 2 == 0 ? a : b;
      const DevicePtr ptr = world.pool().allocate({kPage, 0, stream}).value();
      ASSERT_TRUE(world.pool().deallocate(ptr, stream).ok());
    }
    EXPECT_LE(world.calls().count(Call::event_create), 16u);
  }
}

TEST(Defects, one_stream_alone_records_no_events_at_all) {
  PoolWorld world(adaptive_world());
  const StreamHandle stream = world.stream();
  for (int i = 0; i < 200; ++i) world.deallocate(world.allocate(kPage, stream), stream);
  EXPECT_EQ(world.statistics().events_recorded, 0u);
}

TEST(Defects, one_event_closes_many_frees) {
  PoolWorld world(adaptive_world());
  const StreamHandle a = world.stream();
  world.deallocate(world.allocate(kPage, world.stream()), a);
  for (int i = 0; i < 320; ++i) world.deallocate(world.allocate(kPage, a), a);
  EXPECT_LE(world.statistics().events_recorded, 60u);
}

TEST(Defects, a_call_asks_a_bounded_number_of_events_however_many_ranges_are_free) {
  PoolWorld world(page_world());
  std::vector<std::pair<DevicePtr, StreamHandle>> live;
  for (int i = 0; i < 40; ++i) {
    const StreamHandle stream = world.stream();
    live.emplace_back(world.allocate(kPage, stream), stream);
    world.allocate(kPage, stream);
  }
  for (const auto& [ptr, stream] : live) {
    world.use(ptr, kPage, stream, kLongNs);
    world.deallocate(ptr, stream);
  }
  const StreamHandle last = live.back().second;
  const std::uint64_t before = world.calls().count(Call::event_query);
  world.allocate(kPage, last);
  EXPECT_LE(world.calls().count(Call::event_query) - before, 10u);
}

TEST(Defects, a_call_unmaps_a_bounded_number_of_zombies) {
  PoolWorld world(page_world());
  const StreamHandle stream = world.stream();
  const DevicePtr many = world.allocate(100 * kPage, stream);
  world.allocate(kPage, stream);
  world.deallocate(many, stream);
  world.allocate(101 * kPage, stream);
  world.sim().advance_host_ns(kLongNs);
  const std::uint64_t zombies = world.statistics().zombie_bytes;
  ASSERT_EQ(zombies, 100 * kPage);
  world.allocate(kPage, stream);
  EXPECT_EQ(world.statistics().zombie_bytes, zombies - 16 * kPage);
}

TEST(Defects, a_hit_makes_no_memory_call_and_looks_nothing_up_in_the_driver) {
  PoolWorld world(adaptive_world());
  const StreamHandle stream = world.stream();
  for (int i = 0; i < 50; ++i) world.allocate(kPage, stream);
  world.deallocate(world.allocate(kPage, stream), stream);
  world.calls().start_listing();
  world.deallocate(world.allocate(kPage, stream), stream);
  for (const std::string& call : world.calls().stop_listing())
    EXPECT_TRUE(call == "ctx_get_id" || call == "ctx_get_current" || call == "stream_get_id" ||
                call == "stream_is_capturing")
        << call;
}

TEST(Defects, large_growth_is_a_few_chunks_and_not_one_per_page) {
  const WorldOptions options = adaptive_world();
  PoolWorld world(options);
  const StreamHandle stream = world.stream();
  const std::uint64_t created = world.calls().count(Call::mem_create);
  const std::uint64_t accessed = world.calls().count(Call::mem_set_access);
  world.allocate(100 * kPage, stream);
  const std::uint64_t chunks = world.calls().count(Call::mem_create) - created;
  EXPECT_LE(chunks, 100u / 4);
  EXPECT_EQ(world.calls().count(Call::mem_set_access), accessed + 1);
}

TEST(Defects, access_is_set_once_for_a_whole_plan) {
  PoolWorld world(page_world());
  const StreamHandle stream = fragment(world);
  const std::uint64_t before = world.calls().count(Call::mem_set_access);
  world.use(world.allocate(7 * kPage, stream), 7 * kPage, stream);
  EXPECT_EQ(world.calls().count(Call::mem_set_access), before + 1);
}

// --- what was missing

TEST(Defects, usable_size_and_owner_can_be_asked) {
  PoolWorld world(page_world());
  const DevicePtr ptr = world.allocate(kPage + 1, world.stream());
  const auto info = world.pool().query(ptr + kPage);
  ASSERT_TRUE(info.ok());
  EXPECT_EQ(info.value().begin, ptr);
  EXPECT_EQ(info.value().usable, 2 * kPage);
}

TEST(Defects, memory_can_be_given_back_to_the_system) {
  PoolWorld world(page_world());
  const StreamHandle stream = world.stream();
  world.deallocate(world.allocate(9 * kPage, stream), stream);
  world.wait();
  ASSERT_TRUE(world.pool().limits().trim(0).ok());
  EXPECT_EQ(world.sim().census().physical_bytes, 0u);
}

}  // namespace
}  // namespace vpmm::test
