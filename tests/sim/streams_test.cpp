// SPDX-License-Identifier: Apache-2.0
// tests/sim: streams, events, contexts and the three schedules.
#include <gtest/gtest.h>

#include <thread>

#include "sim/sim_fixture.hpp"

namespace vpmm::driver::sim {
namespace {

// Launches kernels that write their names down when they run.
class Diary {
 public:
  explicit Diary(Sim& sim) : sim_(sim) {}
  void launch(char name, StreamHandle stream, std::uint64_t duration_ns = 0) {
    ok(sim_.driver.launch({std::string(1, name), duration_ns, {}, [this, name] { text_ += name; }},
                          stream));
  }
  const std::string& text() const { return text_; }

 private:
  Sim& sim_;
  std::string text_;
};

TEST(SimStreams, work_of_one_stream_runs_in_order_and_only_when_stepped) {
  Sim sim;
  Diary diary(sim);
  const StreamHandle stream = sim.stream();
  for (const char name : {'a', 'b', 'c'}) diary.launch(name, stream);
  EXPECT_EQ(diary.text(), "");
  EXPECT_TRUE(sim.driver.step());
  EXPECT_EQ(diary.text(), "a");
  EXPECT_EQ(sim.driver.stream_query(stream), CuResult::not_ready);
  sim.driver.run_until_idle();
  EXPECT_EQ(diary.text(), "abc");
  EXPECT_FALSE(sim.driver.step());
  ok(sim.driver.stream_query(stream));
}

TEST(SimStreams, a_host_wait_runs_what_is_needed_and_no_more) {
  Sim sim;
  Diary diary(sim);
  const StreamHandle a = sim.stream();
  const StreamHandle b = sim.stream();
  const StreamHandle c = sim.stream();
  diary.launch('a', a);
  diary.launch('c', c);
  sim.order(a, b);
  diary.launch('b', b);
  diary.launch('x', a);
  ok(sim.driver.stream_synchronize(b));
  EXPECT_EQ(diary.text(), "ab");
}

TEST(SimStreams, a_waiting_stream_runs_after_the_recorded_work) {
  Sim sim;
  Diary diary(sim);
  const StreamHandle a = sim.stream();
  const StreamHandle b = sim.stream();
  diary.launch('1', a);
  const EventHandle event = sim.recorded_event(a);
  diary.launch('3', a);
  ok(sim.driver.stream_wait_event(b, event));
  diary.launch('2', b);
  EXPECT_EQ(sim.driver.event_query(event), CuResult::not_ready);
  ok(sim.driver.stream_synchronize(b));
  EXPECT_EQ(diary.text(), "12");
  ok(sim.driver.event_query(event));
}

TEST(SimStreams, the_legacy_stream_and_blocking_streams_wait_for_each_other) {
  Sim sim;
  Diary diary(sim);
  const StreamHandle blocking = sim.stream(StreamFlags::blocking);
  const StreamHandle free = sim.stream(StreamFlags::non_blocking);
  diary.launch('1', blocking);
  diary.launch('x', free);
  diary.launch('2', kLegacyStream);
  diary.launch('3', blocking);
  ok(sim.driver.stream_synchronize(blocking));
  EXPECT_EQ(diary.text(), "123");
  EXPECT_EQ(sim.driver.stream_query(free), CuResult::not_ready);
}

TEST(SimStreams, the_per_thread_stream_blocks_and_differs_between_threads) {
  Sim sim;
  Diary diary(sim);
  diary.launch('1', kPerThreadStream);
  diary.launch('2', kNullStream);
  ok(sim.driver.stream_synchronize(kNullStream));
  EXPECT_EQ(diary.text(), "12");
  const StreamId here = sim.id_of(kPerThreadStream);
  EXPECT_EQ(sim.id_of(kPerThreadStream), here);
  StreamId there{};
  std::thread([&] {
    ok(sim.driver.ctx_set_current(sim.context));
    there = sim.id_of(kPerThreadStream);
  }).join();
  EXPECT_NE(here, there);
}

TEST(SimStreams, the_legacy_stream_has_id_seven_under_both_handles) {
  Sim sim;
  EXPECT_EQ(sim.id_of(kNullStream), StreamId{7});
  EXPECT_EQ(sim.id_of(kLegacyStream), StreamId{7});
}

TEST(SimStreams, handles_are_recycled_last_first_and_ids_are_not) {
  Sim sim;
  const StreamHandle a = sim.stream();
  const StreamHandle b = sim.stream();
  const StreamId id_of_b = sim.id_of(b);
  ok(sim.driver.stream_destroy(a));
  ok(sim.driver.stream_destroy(b));
  EXPECT_EQ(sim.stream(), b);
  EXPECT_NE(sim.id_of(b), id_of_b);
  EXPECT_EQ(sim.stream(), a);
}

TEST(SimStreams, queued_work_of_a_destroyed_stream_still_runs) {
  Sim sim;
  Diary diary(sim);
  const StreamHandle stream = sim.stream();
  diary.launch('a', stream);
  ok(sim.driver.stream_destroy(stream));
  ok(sim.driver.ctx_synchronize());
  EXPECT_EQ(diary.text(), "a");
}

TEST(SimStreamsDeathTest, touching_a_destroyed_stream_or_event_is_caught) {
  Sim sim;
  const StreamHandle stream = sim.stream();
  const EventHandle event = sim.event();
  ok(sim.driver.stream_destroy(stream));
  ok(sim.driver.event_destroy(event));
  sim.event();
  EXPECT_DEATH(sim.driver.stream_query(stream), "touched a destroyed stream");
  EXPECT_DEATH(sim.driver.event_query(event), "touched a destroyed event");
}

TEST(SimStreams, handles_that_never_were_are_invalid) {
  Sim sim;
  StreamId id{};
  EXPECT_EQ(sim.driver.stream_get_id(StreamHandle{0x1234}, id), CuResult::invalid_handle);
  EXPECT_EQ(sim.driver.event_query(EventHandle{}), CuResult::invalid_handle);
  EXPECT_EQ(sim.driver.stream_destroy(kLegacyStream), CuResult::invalid_handle);
}

TEST(SimStreams, a_context_event_covers_non_blocking_and_destroyed_streams) {
  Sim sim;
  const StreamHandle kept = sim.stream();
  const StreamHandle gone = sim.stream();
  sim.spin(0, kept);
  sim.spin(0, gone);
  ok(sim.driver.stream_destroy(gone));
  const EventHandle event = sim.event();
  ok(sim.driver.ctx_record_event(sim.context, event));
  ok(sim.driver.stream_synchronize(kept));
  EXPECT_EQ(sim.driver.event_query(event), CuResult::not_ready);
  sim.driver.run_until_idle();
  ok(sim.driver.event_query(event));
}

TEST(SimStreams, an_event_of_the_legacy_stream_does_not_cover_non_blocking_streams) {
  Sim sim;
  sim.spin(0, sim.stream(StreamFlags::non_blocking));
  const EventHandle event = sim.recorded_event(kLegacyStream);
  ok(sim.driver.event_synchronize(event));
  EXPECT_TRUE(sim.driver.step()) << "the non-blocking stream's work had been waited for";
}

TEST(SimStreams, context_events_can_be_missing) {
  SimOptions options = Sim::manual();
  options.context_events_supported = false;
  Sim sim(options);
  EXPECT_FALSE(sim.driver.has(Call::ctx_record_event));
  EXPECT_EQ(sim.driver.ctx_record_event(sim.context, sim.event()), CuResult::not_supported);
}

TEST(SimStreams, an_event_never_recorded_is_complete_and_waits_for_nothing) {
  Sim sim;
  const EventHandle event = sim.event();
  ok(sim.driver.event_query(event));
  ok(sim.driver.event_synchronize(event));
  ok(sim.driver.stream_wait_event(sim.stream(), event));
}

TEST(SimStreams, streams_belong_to_the_context_current_at_creation) {
  SimOptions options = Sim::manual();
  options.device_count = 2;
  Sim sim(options);
  const ContextHandle first = sim.context;
  const StreamHandle stream = sim.stream();
  sim.use_device(1);
  ContextHandle context{};
  ok(sim.driver.stream_get_ctx(stream, context));
  EXPECT_EQ(context, first);
  ok(sim.driver.stream_get_ctx(kNullStream, context));
  EXPECT_EQ(context, sim.context);
  EXPECT_EQ(sim.driver.event_record(sim.event(), stream), CuResult::invalid_handle);
}

TEST(SimStreams, calls_that_need_a_context_say_so_on_a_thread_without_one) {
  Sim sim;
  const AddressRange memory = sim.memory();
  std::thread([&] {
    StreamHandle stream{};
    EventHandle event{};
    DevicePtr ptr{};
    DeviceOrdinal device = 0;
    char byte = 0;
    EXPECT_EQ(sim.driver.stream_create(StreamFlags::blocking, stream), CuResult::invalid_context);
    EXPECT_EQ(sim.driver.event_create(event), CuResult::invalid_context);
    EXPECT_EQ(sim.driver.ctx_synchronize(), CuResult::invalid_context);
    EXPECT_EQ(sim.driver.mem_alloc(512, ptr), CuResult::invalid_context);
    EXPECT_EQ(sim.driver.memcpy_device_to_host(&byte, memory.begin, 1), CuResult::invalid_context);
    EXPECT_EQ(sim.driver.ctx_get_device(device), CuResult::invalid_context);
    ContextHandle context{1};
    ok(sim.driver.ctx_get_current(context));
    EXPECT_EQ(context, ContextHandle{});
  }).join();
}

TEST(SimCopies, asynchronous_copies_read_and_write_when_the_stream_gets_there) {
  Sim sim;
  const StreamHandle stream = sim.stream();
  const AddressRange memory = sim.memory();
  char from[] = "early";
  char to[6] = {};
  ok(sim.driver.memcpy_host_to_device_async(memory.begin, from, sizeof from, stream));
  ok(sim.driver.memcpy_device_to_device_async(memory.begin + 100, memory.begin, sizeof from,
                                              stream));
  ok(sim.driver.memcpy_device_to_host_async(to, memory.begin + 100, sizeof to, stream));
  std::memcpy(from, "later", sizeof from);
  EXPECT_STREQ(to, "");
  ok(sim.driver.stream_synchronize(stream));
  EXPECT_STREQ(to, "later");
  EXPECT_EQ(sim.driver.hazard_count(), 0U) << sim.hazards();
}

TEST(SimCopies, a_fill_crosses_chunk_borders) {
  Sim sim;
  const AddressRange range = sim.reserve(4 * kMiB);
  sim.map({range.begin, 2 * kMiB}, sim.create(2 * kMiB));
  sim.map({range.begin + 2 * kMiB, 2 * kMiB}, sim.create(2 * kMiB));
  const AddressRange across{range.begin + 2 * kMiB - 10, 20};
  ok(sim.driver.memset_d8(across.begin, 7, across.size));
  EXPECT_EQ(sim.read_back(across), std::vector<std::uint8_t>(20, 7));
}

TEST(SimTimed, work_ends_its_duration_after_it_could_start) {
  Sim sim(Sim::with_schedule(Schedule::timed));
  const StreamHandle stream = sim.stream();
  sim.spin(1'000'000, stream);
  sim.spin(1'000'000, stream);
  const std::uint64_t begin = sim.driver.now_ns();
  EXPECT_EQ(sim.driver.stream_query(stream), CuResult::not_ready);
  sim.driver.advance_host_ns(1'900'000);
  EXPECT_EQ(sim.driver.stream_query(stream), CuResult::not_ready);
  ok(sim.driver.stream_synchronize(stream));
  EXPECT_GE(sim.driver.now_ns() - begin, 1'990'000U);
  EXPECT_LE(sim.driver.now_ns() - begin, 2'010'000U);
}

TEST(SimTimed, the_device_lags_behind_by_the_given_time) {
  SimOptions options = Sim::with_schedule(Schedule::timed);
  options.lag_ns = 500'000;
  Sim sim(options);
  const StreamHandle stream = sim.stream();
  sim.spin(1'000, stream);
  const EventHandle event = sim.recorded_event(stream);
  sim.driver.advance_host_ns(490'000);
  EXPECT_EQ(sim.driver.event_query(event), CuResult::not_ready);
  sim.driver.advance_host_ns(11'000);
  ok(sim.driver.event_query(event));
  ok(sim.driver.event_record(event, stream));
  EXPECT_EQ(sim.driver.event_query(event), CuResult::not_ready) << "an idle stream lags too";
}

TEST(SimTimed, unrelated_streams_do_not_delay_each_other) {
  Sim sim(Sim::with_schedule(Schedule::timed));
  const StreamHandle slow = sim.stream();
  const StreamHandle quick = sim.stream();
  sim.spin(100'000'000, slow);
  sim.spin(1'000, quick);
  ok(sim.driver.stream_synchronize(quick));
  EXPECT_LT(sim.driver.now_ns(), 1'000'000U);
  sim.order(slow, quick);
  ok(sim.driver.stream_synchronize(quick));
  EXPECT_GE(sim.driver.now_ns(), 100'000'000U);
}

TEST(SimSleep, without_a_clock_an_operation_runs_meanwhile) {
  for (const Schedule schedule : {Schedule::manual, Schedule::random}) {
    Sim sim(Sim::with_schedule(schedule));
    const StreamHandle stream = sim.stream();
    for (int i = 0; i < 10; ++i) sim.spin(1'000'000, stream);
    const EventHandle event = sim.recorded_event(stream);
    for (int i = 0; i < 10; ++i) sim.driver.sleep_ns(1);
    if (schedule == Schedule::manual) {
      EXPECT_EQ(sim.driver.event_query(event), CuResult::not_ready);
    }
    sim.driver.sleep_ns(1);
    ok(sim.driver.event_query(event));
  }
}

TEST(SimSleep, with_a_clock_time_passes_and_nothing_runs_early) {
  Sim sim(Sim::with_schedule(Schedule::timed));
  const StreamHandle stream = sim.stream();
  sim.spin(1'000'000, stream);
  const EventHandle event = sim.recorded_event(stream);
  sim.driver.sleep_ns(900'000);
  EXPECT_EQ(sim.driver.event_query(event), CuResult::not_ready);
  sim.driver.sleep_ns(100'000);
  ok(sim.driver.event_query(event));
}

// What a random program made of one seed looks like from outside.
std::string run_random_program(std::uint64_t seed) {
  Sim sim(Sim::with_schedule(Schedule::random, seed));
  Diary diary(sim);
  std::vector<StreamHandle> streams;
  for (int i = 0; i < 4; ++i) streams.push_back(sim.stream());
  std::string answers;
  for (int i = 0; i < 200; ++i) {
    const StreamHandle stream = streams[static_cast<std::size_t>(i * 7 % 4)];
    diary.launch(static_cast<char>('a' + i % 26), stream);
    if (i % 5 == 0) sim.order(stream, streams[static_cast<std::size_t>(i % 3)]);
    answers += sim.driver.stream_query(stream) == CuResult::success ? '1' : '0';
  }
  sim.driver.run_until_idle();
  return diary.text() + answers;
}

TEST(SimRandom, the_same_seed_gives_the_same_run_and_another_seed_another) {
  const std::string one = run_random_program(1);
  EXPECT_EQ(one.size(), 400U);
  EXPECT_EQ(run_random_program(1), one);
  EXPECT_NE(run_random_program(2), one);
  EXPECT_NE(one.find('1'), std::string::npos);
  EXPECT_NE(one.find('0'), std::string::npos);
}

TEST(SimRandom, waits_hold_in_every_order) {
  for (std::uint64_t seed = 1; seed <= 50; ++seed) {
    Sim sim(Sim::with_schedule(Schedule::random, seed));
    Diary diary(sim);
    const StreamHandle a = sim.stream();
    const StreamHandle b = sim.stream();
    diary.launch('1', a);
    sim.order(a, b);
    diary.launch('2', b);
    sim.order(b, a);
    diary.launch('3', a);
    ok(sim.driver.ctx_synchronize());
    ASSERT_EQ(diary.text(), "123") << "seed " << seed;
  }
}

TEST(SimReset, memory_survives_and_everything_else_is_gone) {
  Sim sim;
  const AddressRange memory = sim.memory();
  ok(sim.driver.memset_d8(memory.begin, 42, 10));
  ok(sim.driver.ctx_synchronize());
  ContextId before{};
  ok(sim.driver.ctx_get_id(sim.context, before));
  sim.stream();
  sim.event();
  DevicePtr plain{};
  ok(sim.driver.mem_alloc(kGiB, plain));
  ok(sim.driver.device_primary_ctx_reset(0));
  ContextId id{};
  EXPECT_EQ(sim.driver.ctx_get_id(sim.context, id), CuResult::context_is_destroyed);
  EXPECT_EQ(sim.driver.ctx_synchronize(), CuResult::context_is_destroyed);
  const Census census = sim.driver.census();
  EXPECT_EQ(census.streams + census.events + census.plain_allocations, 0U);
  EXPECT_EQ(census.mappings, 1U);
  EXPECT_EQ(census.physical_bytes, memory.size);
  const ContextHandle handle = sim.context;
  sim.use_device(0);
  EXPECT_EQ(sim.context, handle);
  ok(sim.driver.ctx_get_id(sim.context, id));
  EXPECT_NE(id, before);
  EXPECT_EQ(sim.read_back({memory.begin, 10}), std::vector<std::uint8_t>(10, 42));
  ok(sim.driver.mem_unmap(memory));
  EXPECT_EQ(sim.driver.hazard_count(), 0U) << sim.hazards();
}

TEST(SimReset, queued_work_never_runs) {
  Sim sim;
  Diary diary(sim);
  diary.launch('a', sim.stream());
  ok(sim.driver.device_primary_ctx_reset(0));
  sim.driver.run_until_idle();
  EXPECT_EQ(diary.text(), "");
}

TEST(SimResetDeathTest, touching_a_handle_of_a_dead_context_aborts) {
  Sim sim;
  const EventHandle event = sim.event();
  const StreamHandle stream = sim.stream();
  ok(sim.driver.device_primary_ctx_reset(0));
  sim.use_device(0);
  EXPECT_NE(sim.stream(), stream);
  EXPECT_DEATH(sim.driver.event_query(event), "touched an event of a dead context");
  EXPECT_DEATH(sim.driver.event_destroy(event), "touched an event of a dead context");
  StreamId id{};
  EXPECT_DEATH(sim.driver.stream_get_id(stream, id), "touched a stream of a dead context");
}

TEST(SimReset, releasing_the_last_retain_destroys_the_context) {
  Sim sim;
  sim.use_device(0);
  ok(sim.driver.device_primary_ctx_release(0));
  ok(sim.driver.ctx_synchronize());
  ok(sim.driver.device_primary_ctx_release(0));
  EXPECT_EQ(sim.driver.ctx_synchronize(), CuResult::context_is_destroyed);
  EXPECT_EQ(sim.driver.device_primary_ctx_release(0), CuResult::invalid_context);
}

TEST(SimBrokenContext, every_later_call_on_it_gives_the_error) {
  SimOptions options = Sim::manual();
  options.device_count = 2;
  Sim sim(options);
  const StreamHandle stream = sim.stream();
  const EventHandle event = sim.event();
  const AddressRange memory = sim.memory();
  const CuResult error = CuResult::illegal_address;
  sim.driver.break_context(0, error);
  CaptureStatus status{};
  ChunkHandle chunk{};
  DevicePtr ptr{};
  EXPECT_EQ(sim.driver.event_query(event), error);
  EXPECT_EQ(sim.driver.stream_is_capturing(stream, status), error);
  EXPECT_EQ(sim.driver.stream_synchronize(kNullStream), error);
  EXPECT_EQ(sim.driver.mem_create(2 * kMiB, {0, false, false}, chunk), error);
  EXPECT_EQ(sim.driver.mem_unmap(memory), error);
  EXPECT_EQ(sim.driver.mem_address_reserve(2 * kMiB, 0, DevicePtr{}, ptr), error);
  EXPECT_EQ(sim.driver.launch({}, stream), error);
  sim.use_device(1);
  ok(sim.driver.ctx_synchronize());
  sim.create(2 * kMiB, 1);
  ok(sim.driver.device_primary_ctx_reset(0));
  sim.use_device(0);
  ok(sim.driver.ctx_synchronize());
}

TEST(SimThreads, calls_from_many_threads_keep_their_streams_apart) {
  Sim sim(Sim::with_schedule(Schedule::random));
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&sim] {
      ok(sim.driver.ctx_set_current(sim.context));
      const StreamHandle stream = sim.stream();
      const AddressRange memory = sim.memory();
      for (int i = 0; i < 200; ++i) {
        sim.write(memory, stream);
        ok(sim.driver.memset_d8_async(memory.begin, static_cast<std::uint8_t>(i), 64, stream));
      }
      ok(sim.driver.stream_synchronize(stream));
      EXPECT_EQ(*reinterpret_cast<std::uint8_t*>(to_integer(memory.begin)), 199);
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(sim.driver.hazard_count(), 0U) << sim.hazards();
}

}  // namespace
}  // namespace vpmm::driver::sim
