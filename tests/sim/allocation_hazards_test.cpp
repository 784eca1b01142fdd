// SPDX-License-Identifier: Apache-2.0
// tests/sim: hazards of memory that an observed allocator hands out and takes back.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "sim/sim_fixture.hpp"
#include "support/page_size.hpp"

namespace vpmm::driver::sim {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

#define EXPECT_NO_HAZARD(sim) EXPECT_EQ((sim).driver.hazard_count(), 0U) << (sim).hazards()

TEST(AllocationHazards, a_normal_life_has_none) {
  Sim sim;
  const AddressRange memory = sim.memory();
  const StreamHandle a = sim.stream();
  const StreamHandle b = sim.stream();
  for (int i = 0; i < 3; ++i) {
    sim.observer().on_allocate(memory, a);
    sim.write(memory, a);
    sim.order(a, b);
    sim.read(memory, b);
    sim.order(b, a);
    sim.observer().on_deallocate(memory, a);
  }
  EXPECT_NO_HAZARD(sim);
}

TEST(AllocationHazards, use_of_memory_that_nobody_allocated) {
  Sim sim;
  const AddressRange memory = sim.memory();
  const StreamHandle stream = sim.stream();
  sim.write(part(memory, kMiB, 8), stream);
  EXPECT_NO_HAZARD(sim);  // no allocator works in this chunk yet
  sim.observer().on_allocate(part(memory, 0, kMiB), stream);
  sim.write(part(memory, 0, kMiB), stream);
  EXPECT_NO_HAZARD(sim);
  sim.write(part(memory, kMiB + 4096, 8), stream);
  EXPECT_THAT(sim.kinds(), ElementsAre(Kind::use_before_allocate));
}

TEST(AllocationHazards, use_on_another_stream_without_waiting_for_the_allocation) {
  Sim sim;
  const AddressRange memory = sim.memory();
  const StreamHandle a = sim.stream();
  const StreamHandle b = sim.stream();
  sim.observer().on_allocate(memory, a);
  sim.read(memory, b);
  EXPECT_THAT(sim.kinds(), ElementsAre(Kind::use_before_allocate));
}

TEST(AllocationHazards, use_after_free_is_found_even_on_the_freeing_stream) {
  Sim sim;
  const AddressRange memory = sim.memory();
  const StreamHandle a = sim.stream();
  sim.observer().on_allocate(memory, a);
  sim.observer().on_deallocate(memory, a);
  sim.read(memory, a);
  EXPECT_THAT(sim.kinds(), ElementsAre(Kind::use_after_free));
}

TEST(AllocationHazards, a_use_that_the_free_does_not_wait_for) {
  Sim sim;
  const AddressRange memory = sim.memory();
  const StreamHandle a = sim.stream();
  const StreamHandle b = sim.stream();
  sim.observer().on_allocate(memory, a);
  sim.order(a, b);
  sim.read(part(memory, 8, 8), b, "late_reader");
  sim.observer().on_deallocate(memory, a);
  ASSERT_THAT(sim.kinds(), ElementsAre(Kind::use_after_free));
  EXPECT_THAT(sim.driver.hazards().front().first, HasSubstr("late_reader"));
}

TEST(AllocationHazards, memory_handed_on_to_another_stream_too_early) {
  Sim sim;
  const AddressRange memory = sim.memory();
  const StreamHandle a = sim.stream();
  const StreamHandle b = sim.stream();
  sim.observer().on_allocate(memory, a);
  sim.observer().on_deallocate(memory, a);
  sim.observer().on_allocate(memory, b);
  EXPECT_THAT(sim.kinds(), ElementsAre(Kind::unordered_accesses));
}

TEST(AllocationHazards, memory_handed_on_after_a_wait_or_once_complete_is_fine) {
  Sim sim;
  const AddressRange memory = sim.memory();
  const StreamHandle a = sim.stream();
  const StreamHandle b = sim.stream();
  sim.observer().on_allocate(memory, a);
  sim.write(memory, a);
  sim.observer().on_deallocate(memory, a);
  sim.order(a, b);
  sim.observer().on_allocate(memory, b);
  sim.write(memory, b);
  sim.observer().on_deallocate(memory, b);
  const EventHandle event = sim.recorded_event(b);
  sim.driver.run_until_idle();
  ok(sim.driver.event_query(event));
  sim.observer().on_allocate_any_stream(memory);
  sim.write(memory, a);
  EXPECT_NO_HAZARD(sim);
}

TEST(AllocationHazards, memory_for_any_stream_must_be_known_complete) {
  Sim sim;
  const AddressRange memory = sim.memory();
  const StreamHandle a = sim.stream();
  sim.observer().on_allocate(memory, a);
  sim.observer().on_deallocate(memory, a);
  sim.driver.run_until_idle();
  sim.observer().on_allocate_any_stream(memory);
  EXPECT_THAT(sim.kinds(), ElementsAre(Kind::unordered_accesses));
}

TEST(AllocationHazards, a_free_for_any_stream_waits_for_every_use_queued_before_it) {
  Sim sim;
  const AddressRange memory = sim.memory();
  const StreamHandle a = sim.stream();
  const StreamHandle b = sim.stream();
  sim.observer().on_allocate_any_stream(memory);
  sim.write(part(memory, 0, 8), a);
  sim.write(part(memory, 8, 8), b);
  sim.observer().on_deallocate_any_stream(memory);
  EXPECT_NO_HAZARD(sim);
  sim.observer().on_allocate(memory, b);
  ASSERT_THAT(sim.kinds(), ElementsAre(Kind::unordered_accesses));
  EXPECT_THAT(sim.driver.hazards().front().first,
              HasSubstr("stream " + std::to_string(static_cast<std::uint64_t>(sim.id_of(a)))));
}

TEST(AllocationHazards, a_free_for_any_stream_seen_complete_is_reusable) {
  Sim sim;
  const AddressRange memory = sim.memory();
  const StreamHandle a = sim.stream();
  sim.observer().on_allocate_any_stream(memory);
  sim.write(memory, a);
  sim.observer().on_deallocate_any_stream(memory);
  const EventHandle event = sim.event();
  ok(sim.driver.ctx_record_event(sim.context, event));
  sim.driver.run_until_idle();
  ok(sim.driver.event_query(event));
  sim.observer().on_allocate(memory, sim.stream());
  EXPECT_NO_HAZARD(sim);
  sim.observer().on_deallocate_any_stream(memory);
  sim.read(memory, a);
  EXPECT_THAT(sim.kinds(), ElementsAre(Kind::use_after_free));
}

TEST(AllocationHazards, memory_handed_out_twice) {
  Sim sim;
  const AddressRange memory = sim.memory();
  const StreamHandle a = sim.stream();
  sim.observer().on_allocate(part(memory, 0, kMiB), a);
  sim.observer().on_allocate(part(memory, kMiB - 1, kMiB), a);
  ASSERT_THAT(sim.kinds(), ElementsAre(Kind::unordered_accesses));
  EXPECT_THAT(sim.driver.hazards().front().first, HasSubstr("still allocated"));
}

TEST(AllocationHazards, use_through_the_old_address_of_memory_that_moved) {
  Sim sim;
  const ChunkHandle chunk = sim.create(kPage);
  const AddressRange old = sim.reserve(kPage);
  const AddressRange fresh = sim.reserve(kPage);
  sim.map(old, chunk);
  const StreamHandle a = sim.stream();
  sim.observer().on_allocate(old, a);
  sim.observer().on_deallocate(old, a);
  sim.map(fresh, chunk);
  sim.observer().on_allocate(fresh, a);
  sim.write(fresh, a);
  EXPECT_NO_HAZARD(sim);
  sim.write(part(old, 64, 8), a);
  ASSERT_THAT(sim.kinds(), ElementsAre(Kind::use_after_free));
  EXPECT_THAT(sim.driver.hazards().front().first, HasSubstr("moved"));
}

TEST(AllocationHazards, memory_handed_out_at_an_unmapped_address) {
  Sim sim;
  const AddressRange range = sim.reserve(kPage);
  sim.observer().on_allocate(range, sim.stream());
  sim.observer().on_deallocate(range, sim.stream());
  EXPECT_THAT(sim.kinds(), ElementsAre(Kind::unmapped_access, Kind::unmapped_access));
}

TEST(AllocationHazards, default_streams_are_those_of_the_device_that_has_the_memory) {
  SimOptions options = Sim::manual();
  options.device_count = 2;
  Sim sim(options);
  const AddressRange memory = sim.memory();
  sim.use_device(1);
  sim.observer().on_allocate(memory, kNullStream);
  sim.use_device(0);
  sim.write(memory, kNullStream);
  sim.write(memory, kPerThreadStream);
  EXPECT_NO_HAZARD(sim);
}

}  // namespace
}  // namespace vpmm::driver::sim
