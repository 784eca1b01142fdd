// SPDX-License-Identifier: Apache-2.0
// tests/sim: the hazard checker finds each kind of planted bug and is silent about legal programs.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "sim/sim_fixture.hpp"
#include "support/page_size.hpp"

namespace vpmm::driver::sim {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

#define EXPECT_NO_HAZARD(sim) EXPECT_EQ((sim).driver.hazard_count(), 0U) << (sim).hazards()

TEST(Hazards, two_unordered_writes_are_found_and_both_are_named) {
  Sim sim;
  const AddressRange memory = sim.memory();
  const StreamHandle a = sim.stream();
  const StreamHandle b = sim.stream();
  sim.write(part(memory, 0, 100), a, "first_writer");
  sim.spin(0, b);
  sim.write(part(memory, 50, 100), b, "second_writer");
  ASSERT_THAT(sim.kinds(), ElementsAre(Kind::unordered_accesses));
  const Hazard hazard = sim.driver.hazards().front();
  EXPECT_EQ(hazard.range, part(memory, 50, 50));
  const auto place = [&](int n, StreamHandle stream) {
    return "operation " + std::to_string(n) + " of stream " +
           std::to_string(static_cast<std::uint64_t>(sim.id_of(stream)));
  };
  EXPECT_THAT(hazard.first, AllOf(HasSubstr("write by first_writer"), HasSubstr(place(1, a))));
  EXPECT_THAT(hazard.second, AllOf(HasSubstr("write by second_writer"), HasSubstr(place(2, b))));
  EXPECT_THAT(hazard.missing, AllOf(HasSubstr(place(2, b) + " must wait for " + place(1, a))));
  EXPECT_THAT(hazard.describe(),
              AllOf(HasSubstr(hazard.first), HasSubstr(hazard.second), HasSubstr(hazard.missing)));
}

TEST(Hazards, unordered_reads_and_writes_are_found_both_ways_round) {
  Sim sim;
  const AddressRange memory = sim.memory();
  const StreamHandle a = sim.stream();
  const StreamHandle b = sim.stream();
  sim.read(part(memory, 0, 8), a);
  sim.write(part(memory, 0, 8), b);
  sim.write(part(memory, 64, 8), a);
  sim.read(part(memory, 64, 8), b);
  EXPECT_THAT(sim.kinds(), ElementsAre(Kind::unordered_accesses, Kind::unordered_accesses));
}

TEST(Hazards, reads_do_not_disturb_each_other_but_a_write_must_wait_for_all_of_them) {
  Sim sim;
  const AddressRange memory = sim.memory();
  const StreamHandle a = sim.stream();
  const StreamHandle b = sim.stream();
  const StreamHandle c = sim.stream();
  for (const StreamHandle reader : {a, b, c}) sim.read(memory, reader);
  EXPECT_NO_HAZARD(sim);
  sim.order(a, c);
  sim.write(memory, c);
  ASSERT_THAT(sim.kinds(), ElementsAre(Kind::unordered_accesses));
  EXPECT_THAT(sim.driver.hazards().front().first,
              HasSubstr("stream " + std::to_string(static_cast<std::uint64_t>(sim.id_of(b)))));
}

TEST(Hazards, neighbouring_bytes_are_different_memory) {
  Sim sim;
  const AddressRange memory = sim.memory();
  const StreamHandle a = sim.stream();
  const StreamHandle b = sim.stream();
  sim.write(part(memory, 0, 100), a);
  sim.write(part(memory, 100, 1), b);
  EXPECT_NO_HAZARD(sim);
  sim.write(part(memory, 99, 1), b);
  EXPECT_EQ(sim.driver.hazard_count(), 1U);
}

TEST(Hazards, an_event_recorded_before_the_write_orders_nothing) {
  Sim sim;
  const AddressRange memory = sim.memory();
  const StreamHandle a = sim.stream();
  const StreamHandle b = sim.stream();
  const EventHandle early = sim.recorded_event(a);
  sim.write(memory, a);
  ok(sim.driver.stream_wait_event(b, early));
  sim.write(memory, b);
  EXPECT_THAT(sim.kinds(), ElementsAre(Kind::unordered_accesses));
}

TEST(Hazards, a_query_that_says_not_ready_orders_nothing) {
  Sim sim;
  const AddressRange memory = sim.memory();
  const StreamHandle a = sim.stream();
  sim.write(memory, a);
  const EventHandle event = sim.recorded_event(a);
  EXPECT_EQ(sim.driver.event_query(event), CuResult::not_ready);
  sim.driver.run_until_idle();
  sim.write(memory, sim.stream());
  EXPECT_THAT(sim.kinds(), ElementsAre(Kind::unordered_accesses))
      << "that it happened to be over is no order";
}

TEST(Hazards, a_hazard_is_found_in_whatever_order_the_work_runs) {
  for (std::uint64_t seed = 1; seed <= 30; ++seed) {
    Sim sim(Sim::with_schedule(Schedule::random, seed));
    const AddressRange memory = sim.memory();
    const StreamHandle a = sim.stream();
    sim.write(memory, a);
    sim.spin(0, a);
    sim.write(memory, sim.stream());
    ASSERT_EQ(sim.driver.hazard_count(), 1U) << "seed " << seed;
  }
}

TEST(Hazards, every_way_to_wait_makes_order) {
  Sim sim;
  const AddressRange memory = sim.memory();
  const StreamHandle a = sim.stream();
  const StreamHandle b = sim.stream();
  const StreamHandle c = sim.stream(StreamFlags::blocking);
  sim.write(memory, a);
  sim.order(a, b);
  sim.write(memory, b);
  sim.order(b, a);  // and on to c, over a
  sim.order(a, c);
  sim.write(memory, c);
  sim.write(memory, kLegacyStream);
  sim.write(memory, kPerThreadStream);
  ok(sim.driver.stream_synchronize(kPerThreadStream));
  sim.write(memory, a);
  ok(sim.driver.event_synchronize(sim.recorded_event(a)));
  sim.write(memory, b);
  const EventHandle all = sim.event();
  ok(sim.driver.ctx_record_event(sim.context, all));
  sim.driver.run_until_idle();
  ok(sim.driver.event_query(all));
  sim.write(memory, a);
  sim.driver.run_until_idle();
  ok(sim.driver.stream_query(a));
  sim.write(memory, b);
  ok(sim.driver.ctx_synchronize());
  sim.write(memory, a);
  EXPECT_NO_HAZARD(sim);
}

TEST(Hazards, a_query_of_the_legacy_stream_answers_for_the_blocking_streams_too) {
  Sim sim;
  const AddressRange memory = sim.memory();
  const StreamHandle blocking = sim.stream(StreamFlags::blocking);
  sim.write(memory, blocking);
  EXPECT_EQ(sim.driver.stream_query(kLegacyStream), CuResult::not_ready);
  sim.driver.run_until_idle();
  ok(sim.driver.stream_query(kLegacyStream));
  sim.write(memory, sim.stream());
  EXPECT_NO_HAZARD(sim);
}

TEST(Hazards, non_blocking_streams_are_not_ordered_by_the_legacy_stream) {
  Sim sim;
  const AddressRange memory = sim.memory();
  sim.write(memory, kLegacyStream);
  sim.write(memory, sim.stream(StreamFlags::non_blocking));
  EXPECT_THAT(sim.kinds(), ElementsAre(Kind::unordered_accesses));
}

TEST(Hazards, a_recycled_stream_handle_is_another_stream) {
  Sim sim;
  const AddressRange memory = sim.memory();
  const StreamHandle old = sim.stream();
  sim.write(memory, old);
  ok(sim.driver.stream_destroy(old));
  const StreamHandle fresh = sim.stream();
  ASSERT_EQ(fresh, old);
  sim.write(memory, fresh);
  EXPECT_THAT(sim.kinds(), ElementsAre(Kind::unordered_accesses));
}

TEST(Hazards, streams_made_and_destroyed_in_turn_stay_apart_and_ordered) {
  Sim sim;
  const AddressRange memory = sim.memory();
  for (int i = 0; i < 100; ++i) {
    const StreamHandle stream = sim.stream();
    sim.write(memory, stream);
    ok(sim.driver.stream_synchronize(stream));
    ok(sim.driver.stream_destroy(stream));
  }
  EXPECT_NO_HAZARD(sim);
}

TEST(Hazards,
     a_non_blocking_stream_in_the_place_of_a_blocking_one_is_not_ordered_by_the_legacy_stream) {
  Sim sim;
  const AddressRange memory = sim.memory();
  const StreamHandle blocking = sim.stream(StreamFlags::blocking);
  sim.write(memory, blocking);
  ok(sim.driver.stream_synchronize(blocking));
  ok(sim.driver.stream_destroy(blocking));
  sim.write(memory, sim.stream(StreamFlags::non_blocking));
  sim.write(memory, kLegacyStream);
  EXPECT_THAT(sim.kinds(), ElementsAre(Kind::unordered_accesses));
}

TEST(Hazards, many_small_accesses_are_all_remembered_for_a_large_one) {
  for (const Bytes missed : {Bytes{0}, Bytes{50}, Bytes{99}}) {
    Sim sim;
    const AddressRange memory = sim.memory();
    const StreamHandle a = sim.stream();
    const StreamHandle b = sim.stream();
    for (Bytes i = 0; i < 100; ++i) {
      if (i != missed) sim.write(part(memory, i * 20'000, 8), a);
    }
    sim.order(a, b);
    sim.write(part(memory, missed * 20'000, 8), a, "missed");
    sim.write(memory, b);
    ASSERT_THAT(sim.kinds(), ElementsAre(Kind::unordered_accesses)) << missed;
    EXPECT_THAT(sim.driver.hazards().front().first, HasSubstr("missed"));
  }
}

TEST(Hazards, copies_and_fills_are_accesses) {
  Sim sim;
  const AddressRange memory = sim.memory();
  const StreamHandle a = sim.stream();
  char bytes[8] = {};
  ok(sim.driver.memset_d8_async(memory.begin, 1, 8, a));
  ok(sim.driver.memcpy_device_to_host_async(bytes, memory.begin, 8, sim.stream()));
  ok(sim.driver.memcpy_device_to_device_async(memory.begin, memory.begin + 64, 8, sim.stream()));
  EXPECT_EQ(sim.driver.hazard_count(), 2U) << sim.hazards();
}

TEST(Hazards, the_same_bytes_under_two_addresses_are_the_same_memory) {
  Sim sim;
  const ChunkHandle chunk = sim.create(kPage);
  const AddressRange one = sim.reserve(kPage);
  const AddressRange two = sim.reserve(kPage);
  sim.map(one, chunk);
  sim.map(two, chunk);
  const StreamHandle a = sim.stream();
  const StreamHandle b = sim.stream();
  sim.write(part(one, 100, 8), a);
  sim.read(part(two, 100, 8), a);
  sim.order(a, b);
  sim.write(part(two, 100, 8), b);
  EXPECT_NO_HAZARD(sim);
  sim.write(part(one, 100, 8), a);
  EXPECT_THAT(sim.kinds(), ElementsAre(Kind::unordered_accesses));
}

// --- addresses ---

TEST(Hazards, work_at_an_unmapped_address_is_found_and_its_bytes_are_skipped) {
  Sim sim;
  const AddressRange range = sim.reserve(2 * kPage);
  sim.map({range.begin, kPage}, sim.create(kPage));
  const StreamHandle stream = sim.stream();
  ok(sim.driver.memset_d8_async(range.begin + kPage - 4, 1, 8, stream));
  ASSERT_THAT(sim.kinds(), ElementsAre(Kind::unmapped_access));
  EXPECT_EQ(sim.driver.hazards().front().range, part(range, kPage, 4));
  sim.driver.run_until_idle();
  bool ran = false;
  ok(sim.driver.launch({"k", 0, {{range, MemoryAccess::Kind::read}}, [&] { ran = true; }}, stream));
  sim.driver.run_until_idle();
  EXPECT_FALSE(ran);
  EXPECT_EQ(sim.driver.hazard_count(), 2U);
}

TEST(Hazards, work_without_access_rights_is_found) {
  SimOptions options = Sim::manual();
  options.device_count = 2;
  Sim sim(options);
  const AddressRange range = sim.reserve(kPage);
  ok(sim.driver.mem_map(range, 0, sim.create(kPage)));
  sim.read(range, sim.stream());
  EXPECT_EQ(sim.driver.hazard_count(), 1U);
  sim.allow(range, {0});
  sim.read(range, sim.stream());
  EXPECT_EQ(sim.driver.hazard_count(), 1U);
  sim.use_device(1);
  const StreamHandle peer = sim.stream();
  sim.read(range, peer);
  EXPECT_THAT(sim.kinds(), ElementsAre(Kind::unmapped_access, Kind::unmapped_access));
  sim.allow(range, {1});
  sim.read(range, peer);
  EXPECT_EQ(sim.driver.hazard_count(), 2U);
}

TEST(Hazards, unmapping_under_queued_work_is_found) {
  Sim sim;
  const AddressRange memory = sim.memory();
  const StreamHandle stream = sim.stream();
  ok(sim.driver.memset_d8_async(memory.begin, 1, 8, stream));
  ok(sim.driver.mem_unmap(memory));
  ASSERT_THAT(sim.kinds(), ElementsAre(Kind::unmapped_too_early));
  EXPECT_THAT(sim.driver.hazards().front().first, HasSubstr("fill"));
  sim.driver.run_until_idle();
}

TEST(Hazards, unmapping_needs_the_host_to_know_that_the_work_is_over) {
  Sim sim;
  const AddressRange first = sim.memory();
  const AddressRange second = sim.memory();
  const StreamHandle stream = sim.stream();
  sim.write(first, stream);
  sim.write(second, stream);
  sim.driver.run_until_idle();
  ok(sim.driver.mem_unmap(first));
  EXPECT_THAT(sim.kinds(), ElementsAre(Kind::unmapped_too_early));
  ok(sim.driver.stream_query(stream));
  ok(sim.driver.mem_unmap(second));
  EXPECT_EQ(sim.driver.hazard_count(), 1U);
}

TEST(Hazards, a_chunk_in_use_under_its_new_address_may_lose_its_old_one) {
  Sim sim;
  const ChunkHandle chunk = sim.create(kPage);
  const AddressRange old = sim.reserve(kPage);
  const AddressRange fresh = sim.reserve(kPage);
  sim.map(old, chunk);
  const StreamHandle stream = sim.stream();
  sim.write(old, stream);
  const EventHandle moved = sim.recorded_event(stream);
  sim.map(fresh, chunk);
  sim.write(fresh, stream);
  ok(sim.driver.event_synchronize(moved));
  ok(sim.driver.mem_unmap(old));
  EXPECT_NO_HAZARD(sim);
}

// --- the memory bound ---

TEST(HazardRecords, many_small_uses_that_the_host_saw_complete_are_forgotten_for_free) {
  SimOptions options = Sim::manual();
  options.max_hazard_records = 1000;
  Sim sim(options);
  const AddressRange memory = sim.memory(16 * kMiB);
  const StreamHandle a = sim.stream();
  const StreamHandle b = sim.stream();
  for (Bytes i = 0; i < 20'000; ++i) {
    sim.write(part(memory, i * 512, 64), i % 2 == 0 ? a : b);
    if (i % 100 == 0) ok(sim.driver.ctx_synchronize());
  }
  EXPECT_EQ(sim.driver.dropped_hazard_records(), 0U);
  sim.write(part(memory, 19'999 * 512, 64), a);
  EXPECT_EQ(sim.driver.hazard_count(), 1U) << "the newest records are still there";
}

TEST(HazardRecords, above_the_bound_pending_records_are_dropped_and_counted) {
  SimOptions options = Sim::manual();
  options.max_hazard_records = 1000;
  Sim sim(options);
  const AddressRange memory = sim.memory(16 * kMiB);
  const StreamHandle a = sim.stream();
  const StreamHandle b = sim.stream();
  for (Bytes i = 0; i < 20'000; ++i) sim.write(part(memory, i * 512, 64), i % 2 == 0 ? a : b);
  EXPECT_GT(sim.driver.dropped_hazard_records(), 10'000U);
  EXPECT_NO_HAZARD(sim);
}

TEST(HazardRecords, who_owns_what_is_remembered_however_many_records_are_dropped) {
  SimOptions options = Sim::manual();
  options.max_hazard_records = 1000;
  Sim sim(options);
  const AddressRange memory = sim.memory(16 * kMiB);
  const StreamHandle a = sim.stream();
  const StreamHandle b = sim.stream();
  const AddressRange freed = part(memory, 4096, 4096);
  sim.observer().on_allocate(memory, a);
  sim.observer().on_deallocate(freed, a);
  for (Bytes i = 100; i < 20'000; ++i) sim.write(part(memory, i * 512, 64), i % 2 == 0 ? a : b);
  ASSERT_GT(sim.driver.dropped_hazard_records(), 0U);
  const std::uint64_t before = sim.driver.hazard_count();
  sim.write(freed, a);
  EXPECT_EQ(sim.driver.hazard_count(), before + 1);
}

TEST(HazardRecords, a_reported_pair_counts_once_however_many_bytes_it_shares) {
  Sim sim;
  const AddressRange memory = sim.memory(16 * kMiB);
  sim.write(memory, sim.stream());
  sim.write(memory, sim.stream());
  EXPECT_EQ(sim.driver.hazard_count(), 1U);
}

}  // namespace
}  // namespace vpmm::driver::sim
