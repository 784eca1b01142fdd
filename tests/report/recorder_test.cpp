// SPDX-License-Identifier: Apache-2.0
// report: events of calls in a recording, and told to listeners.
#include "report/recorder.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "driver/forwarding.hpp"
#include "driver/sim/sim_driver.hpp"

namespace vpmm::report {
namespace {

using observe::QueuedEvent;
using observe::RecordedKind;
using testing::ElementsAre;
using testing::IsEmpty;

constexpr DevicePtr kAt{0x7000'0000};
constexpr pool::ArenaId kArena{5};
constexpr std::uint64_t kMs = 1'000'000;

// A driver whose observer notes its calls.
class WatchedDriver final : public driver::ForwardingDriver, public driver::MemoryObserver {
 public:
  using ForwardingDriver::ForwardingDriver;
  driver::MemoryObserver* memory_observer() override { return this; }
  void on_allocate(AddressRange range, driver::StreamHandle stream) override {
    note("allocate", range, stream);
  }
  void on_allocate_any_stream(AddressRange range) override { note("allocate", range, {}); }
  void on_deallocate(AddressRange range, driver::StreamHandle stream) override {
    note("free", range, stream);
  }
  void on_deallocate_any_stream(AddressRange range) override { note("free", range, {}); }
  std::vector<std::string> notes;

 private:
  void note(const char* what, AddressRange range, pool::Stream stream) {
    notes.push_back(
        fmt::format("{} {:#x}+{} {}", what, to_integer(range.begin), range.size,
                    stream ? fmt::format("{:#x}", static_cast<std::uint64_t>(*stream)) : "any"));
  }
};

class UnwatchedDriver final : public driver::ForwardingDriver {
 public:
  using ForwardingDriver::ForwardingDriver;
  driver::MemoryObserver* memory_observer() override { return nullptr; }
};

class Recording : public testing::Test {
 protected:
  Recording() {
    EXPECT_EQ(sim_.init(), driver::CuResult::success);
    sim_.advance_host_ns(7 * kMs);
    timeline_.stream = driver::StreamId{42};
    timeline_.handle = driver::StreamHandle{0x90};
    caller_.stream = driver::StreamHandle{0x91};
    caller_.timeline = &timeline_;
  }
  ~Recording() override { recorder_.stop(); }

  // Its events go to a queue that this test reads, and not to the file.
  void start() { start(recorder_); }
  void start(Recorder& recorder) {
    CallLog& log = recorder.provide_log();
    channel_ = log.channel();
    channel_->queue.open();
    std::string path = testing::TempDir() + "recorder-" + std::to_string(getpid()) + ".csv";
    auto writer =
        observe::TraceWriter::create(path, 0, std::make_shared<observe::RecordingChannel>());
    ASSERT_TRUE(writer.ok());
    std::remove(path.c_str());
    recorder.start(std::move(writer.value()));
  }
  std::vector<QueuedEvent> recorded() {
    std::vector<QueuedEvent> events;
    channel_->queue.take([&](QueuedEvent& event) { events.push_back(std::move(event)); });
    return events;
  }
  QueuedEvent the_only() {
    std::vector<QueuedEvent> events = recorded();
    EXPECT_EQ(events.size(), 1u);
    return events.empty() ? QueuedEvent{} : std::move(events.front());
  }
  void listen_to_all() {
    recorder_.add_listener((EventKinds{1} << kEventKinds) - 1,
                           [this](const ReportedEvent& event) { told_.push_back(event); });
  }
  pool::Request request() const {
    pool::Request request;
    request.bytes = 1000;
    request.stream = driver::StreamHandle{0x91};
    request.arena = kArena;
    request.tag = 3;
    request.library = 4;
    request.stack = 8;
    return request;
  }

  driver::sim::SimDriver sim_;
  WatchedDriver watched_{sim_};
  driver::RecordingDriver driver_{watched_};
  time::Timeline timeline_;
  pool::Caller caller_;
  std::shared_ptr<observe::RecordingChannel> channel_;
  Recorder recorder_{driver_, 2};
  std::vector<ReportedEvent> told_;
};

TEST_F(Recording, has_what_a_request_asked_for_and_got) {
  start();
  recorder_.allocated({kAt, 1024}, kAt, request(), caller_);
  const QueuedEvent event = the_only();
  EXPECT_EQ(event.kind, RecordedKind::allocate);
  EXPECT_EQ(event.address, kAt);
  EXPECT_EQ(event.bytes, 1000u);
  EXPECT_EQ(event.value, 1024u) << "of the pool";
  EXPECT_EQ(event.stream, 42u);
  EXPECT_EQ(event.stream_handle, 0x91u);
  EXPECT_EQ(event.tag, 3u);
  EXPECT_EQ(event.library, 4u);
  EXPECT_EQ(event.stack, 8u);
  EXPECT_EQ(event.arena, 5u);
  EXPECT_EQ(event.time_ns, sim_.now_ns());
  EXPECT_NE(event.thread, 0u);
}

TEST_F(Recording, has_words_of_the_program) {
  start();
  recorder_.log()->put(RecordedKind::mark, "epoch 7");
  const QueuedEvent event = the_only();
  EXPECT_EQ(event.kind, RecordedKind::mark);
  ASSERT_NE(event.text, nullptr);
  EXPECT_EQ(*event.text, "epoch 7");
  EXPECT_EQ(event.address, DevicePtr{});
  EXPECT_EQ(event.stream, std::nullopt);
}

TEST_F(Recording, is_the_one_that_was_started_until_it_stops) {
  EXPECT_EQ(recorder_.writer(), nullptr);
  EXPECT_EQ(recorder_.log(), nullptr);
  EXPECT_FALSE(recorder_.is_recording());
  EXPECT_FALSE(recorder_.wants_mappings());
  start();
  const std::shared_ptr<observe::TraceWriter> writer = recorder_.writer();
  ASSERT_NE(writer, nullptr);
  EXPECT_EQ(recorder_.log()->channel(), channel_);
  EXPECT_TRUE(recorder_.is_recording());
  EXPECT_TRUE(recorder_.wants_mappings());
  EXPECT_FALSE(recorder_.wants_all_calls());
  EXPECT_EQ(recorder_.stop(), writer);
  EXPECT_EQ(recorder_.log(), nullptr);
  EXPECT_EQ(recorder_.writer(), nullptr);
  EXPECT_EQ(recorder_.stop(), nullptr);
}

TEST_F(Recording, whose_queue_is_closed_drops_events) {
  start();
  channel_->queue.close();
  recorder_.allocated({kAt, 1024}, kAt, request(), caller_);
  recorder_.used(kAt, {}, caller_, driver::StreamHandle{0x90});
  recorder_.record_free(recorder_.claim_free(), kAt, caller_);
  recorder_.failed(request(), {ErrorCode::out_of_memory, "too much"}, {});
  recorder_.log()->put(RecordedKind::mark, "late");
  recorder_.log()->after_call(driver::Call::mem_map, 1, 2);
  recorder_.trimmed(3);
  EXPECT_THAT(recorded(), IsEmpty());
  EXPECT_EQ(channel_->queue.lost(), 0u);
}

TEST_F(Recording, has_a_free_in_the_place_that_it_claimed) {
  start();
  CallLog::Claim place = recorder_.claim_free();
  recorder_.trimmed(1);
  recorder_.record_free(std::move(place), kAt, caller_);
  const std::vector<QueuedEvent> events = recorded();
  ASSERT_EQ(events.size(), 2u);
  EXPECT_EQ(events[0].kind, RecordedKind::free);
  EXPECT_EQ(events[0].address, kAt);
  EXPECT_EQ(events[0].bytes, 0u);
  EXPECT_EQ(events[0].stream, 42u);
  EXPECT_EQ(events[1].kind, RecordedKind::trim);
}

TEST_F(Recording, has_no_stream_for_a_call_that_named_none) {
  start();
  recorder_.used(kAt, {}, pool::Caller{}, driver::StreamHandle{});
  const QueuedEvent event = the_only();
  EXPECT_EQ(event.bytes, 0u);
  EXPECT_EQ(event.stream, std::nullopt);
  EXPECT_EQ(event.stream_handle, std::nullopt);
}

TEST_F(Recording, has_the_stream_of_a_client) {
  const CallLog::By named = CallLog::by(driver::StreamId{5}, driver::StreamHandle{0x77});
  EXPECT_EQ(named.stream, 5u);
  EXPECT_EQ(named.handle, 0x77u);
  const CallLog::By any = CallLog::by(driver::StreamId{5}, std::nullopt);
  EXPECT_EQ(any.stream, std::nullopt);
  EXPECT_EQ(any.handle, std::nullopt);
}

TEST_F(Recording, would_wait_where_its_queue_is_full) {
  start();
  CallLog& log = *recorder_.log();
  std::size_t put = 0;
  for (; !log.would_wait() && put < 2 * observe::EventQueue::kPlaces; ++put)
    log.put(RecordedKind::pause, AddressRange{});
  EXPECT_GT(put, observe::EventQueue::kPlaces / 2);
  EXPECT_LT(put, observe::EventQueue::kPlaces);
  EXPECT_EQ(recorded().size(), put);
  EXPECT_FALSE(log.would_wait());
}

TEST_F(Recording, hears_of_no_call_after_its_recorder_ended) {
  auto recorder = std::make_unique<Recorder>(driver_, 2);
  start(*recorder);
  recorder.reset();
  driver::ChunkHandle chunk;
  EXPECT_EQ(driver_.mem_create(2 * kMiB, {}, chunk), driver::CuResult::success);
  EXPECT_THAT(recorded(), IsEmpty());
}

TEST_F(Recording, has_the_handle_that_a_timeline_had_at_first_where_the_call_names_none) {
  start();
  caller_.stream.reset();
  recorder_.used(kAt, {77, kArena}, caller_, driver::StreamHandle{0x90});
  const QueuedEvent event = the_only();
  EXPECT_EQ(event.kind, RecordedKind::record_use);
  EXPECT_EQ(event.bytes, 77u);
  EXPECT_EQ(event.stream_handle, 0x90u);
}

TEST_F(Recording, has_a_shortage_twice_and_another_failure_once) {
  start();
  recorder_.failed(request(), {ErrorCode::out_of_memory, "too much"}, CallLog::by(caller_));
  const std::vector<QueuedEvent> events = recorded();
  ASSERT_EQ(events.size(), 2u);
  EXPECT_EQ(events[0].kind, RecordedKind::out_of_memory);
  EXPECT_EQ(events[1].kind, RecordedKind::allocate_failed);
  for (const QueuedEvent& event : events) {
    EXPECT_EQ(event.bytes, 1000u);
    EXPECT_EQ(event.tag, 3u);
    EXPECT_EQ(event.stack, 8u);
    EXPECT_EQ(event.arena, 5u);
    EXPECT_EQ(event.stream, 42u);
    EXPECT_EQ(event.flags, 0u);
    ASSERT_NE(event.text, nullptr);
    EXPECT_EQ(*event.text, "too much");
  }
  recorder_.failed(request(), {ErrorCode::invalid_argument, "wrong"}, CallLog::by(caller_));
  EXPECT_EQ(the_only().flags, observe::kNotForWantOfMemory);
}

TEST_F(Recording, has_chunks_that_come_move_and_go) {
  start();
  const AddressRange chunk{kAt, 2 * kMiB};
  recorder_.on_map(chunk, {});
  recorder_.on_map(chunk, DevicePtr{0x1000});
  recorder_.on_unmap(chunk, pool::MappingObserver::Fate::lives_on);
  recorder_.on_unmap(chunk, pool::MappingObserver::Fate::given_back);
  std::vector<std::pair<RecordedKind, std::uint64_t>> seen;
  for (const QueuedEvent& event : recorded()) {
    EXPECT_EQ(event.address, kAt);
    EXPECT_EQ(event.bytes, 2 * kMiB);
    seen.emplace_back(event.kind, event.value);
  }
  EXPECT_THAT(seen,
              ElementsAre(std::pair(RecordedKind::map, 1), std::pair(RecordedKind::map, 0),
                          std::pair(RecordedKind::move, 0x1000), std::pair(RecordedKind::unmap, 0),
                          std::pair(RecordedKind::unmap, 1)));
}

TEST_F(Recording, has_changes_of_arenas_trims_and_pauses) {
  start();
  recorder_.arena_changed(EventKind::arena_grow, {kAt, 10}, kArena);
  recorder_.arena_changed(EventKind::arena_shrink, {kAt, 20}, kArena);
  recorder_.arena_resides(EventKind::suspend, 30, 3, kArena);
  recorder_.arena_resides(EventKind::resume, 40, 3, kArena);
  recorder_.trimmed(50);
  recorder_.paused(60);
  const std::vector<QueuedEvent> events = recorded();
  ASSERT_EQ(events.size(), 6u);
  const RecordedKind kinds[] = {RecordedKind::arena_grow, RecordedKind::arena_shrink,
                                RecordedKind::suspend,    RecordedKind::resume,
                                RecordedKind::trim,       RecordedKind::pause};
  for (std::size_t i = 0; i < events.size(); ++i) EXPECT_EQ(events[i].kind, kinds[i]);
  for (std::size_t i = 0; i < 4; ++i) EXPECT_EQ(events[i].arena, 5u);
  for (std::size_t i = 0; i < 5; ++i) EXPECT_EQ(events[i].bytes, 10 * (i + 1));
  EXPECT_EQ(events[4].arena, 0u);
  for (const std::size_t i : {0u, 1u, 4u}) EXPECT_EQ(events[i].value, 0u);
  EXPECT_EQ(events[2].value, 3u) << "the tag";
  EXPECT_EQ(events[5].value, 60u);
}

TEST_F(Recording, has_the_drivers_calls_by_number_until_it_stops) {
  start();
  const std::pair<driver::Call, unsigned> calls[] = {
      {driver::Call::mem_create, 1},     {driver::Call::mem_map, 2},
      {driver::Call::mem_set_access, 3}, {driver::Call::mem_unmap, 4},
      {driver::Call::mem_release, 5},    {driver::Call::mem_address_reserve, 6}};
  for (const auto& [call, number] : calls) {
    recorder_.log()->after_call(call, 11, 12);
    const QueuedEvent event = the_only();
    EXPECT_EQ(event.kind, RecordedKind::driver);
    EXPECT_EQ(event.flags, number);
    EXPECT_EQ(event.bytes, 11u);
    EXPECT_EQ(event.value, 12u);
  }
  driver::ChunkHandle chunk;
  ASSERT_EQ(driver_.mem_create(2 * kMiB, {}, chunk), driver::CuResult::success);
  EXPECT_EQ(the_only().kind, RecordedKind::driver);
  recorder_.stop();
  ASSERT_EQ(driver_.mem_release(chunk), driver::CuResult::success);
  EXPECT_THAT(recorded(), IsEmpty());
  EXPECT_FALSE(recorder_.is_recording());
}

TEST_F(Recording, samples_figures_each_ten_milliseconds) {
  EXPECT_FALSE(recorder_.is_sample_due()) << "nothing is recorded";
  start();
  EXPECT_TRUE(recorder_.is_sample_due());
  sim_.advance_host_ns(10 * kMs - 1);
  EXPECT_FALSE(recorder_.is_sample_due());
  sim_.advance_host_ns(1);
  EXPECT_TRUE(recorder_.is_sample_due());
  EXPECT_FALSE(recorder_.is_sample_due());
  recorder_.sample(1, 2, 3);
  const QueuedEvent event = the_only();
  EXPECT_EQ(event.kind, RecordedKind::sample);
  EXPECT_EQ(to_integer(event.address), 1u) << "mapped";
  EXPECT_EQ(event.bytes, 2u) << "pending";
  EXPECT_EQ(event.value, 3u) << "free";
}

TEST_F(Recording, begins_anew_with_a_sample) {
  start();
  EXPECT_TRUE(recorder_.is_sample_due());
  recorder_.stop();
  start();
  EXPECT_TRUE(recorder_.is_sample_due());
}

TEST_F(Recording, takes_another_log_while_the_file_of_the_last_one_hangs) {
  CallLog* const first = &recorder_.provide_log();
  EXPECT_EQ(&recorder_.provide_log(), first);
  first->channel()->is_in_use = true;
  CallLog* const second = &recorder_.provide_log();
  EXPECT_NE(second, first);
  EXPECT_EQ(&recorder_.provide_log(), second);
  EXPECT_TRUE(first->channel()->is_in_use) << "it lives on";
}

TEST_F(Recording, captures_stacks_that_are_wanted_while_it_runs) {
  observe::StackProvider python;
  python.capture = [](void*, std::uint64_t* frames, std::size_t) -> std::size_t {
    frames[0] = 1;
    return 1;
  };
  python.describe = [](void*, std::uint64_t, const char** file, std::uint64_t* line,
                       const char** function) {
    *file = *function = "f";
    *line = 1;
  };
  observe::set_stack_provider(python);
  CallLog& log = recorder_.provide_log();
  log.set_stacks({true, false});
  EXPECT_EQ(log.capture_stack(), 0u) << "it does not run";
  log.set_stacks({false, false});
  start();
  EXPECT_EQ(log.capture_stack(), 0u);
  log.set_stacks({true, false});
  EXPECT_NE(log.capture_stack(), 0u);
  log.set_stacks({false, true});
  EXPECT_NE(log.capture_stack(), 0u);
  log.set_stacks({false, false});
  EXPECT_EQ(log.capture_stack(), 0u);
  observe::set_stack_provider({});
}

TEST_F(Recording, captures_no_stacks_unless_it_is_told_which) {
  observe::StackProvider python;
  python.capture = [](void*, std::uint64_t*, std::size_t) -> std::size_t {
    ADD_FAILURE() << "nobody wants them";
    return 0;
  };
  observe::set_stack_provider(python);
  start();
  EXPECT_EQ(recorder_.log()->capture_stack(), 0u);
  observe::set_stack_provider({});
}

TEST_F(Recording, keeps_labels_of_what_has_a_tag) {
  pool::Request untagged = request();
  untagged.tag = 0;
  recorder_.allocated({kAt, 1024}, kAt, untagged, caller_);
  EXPECT_TRUE(recorder_.tags().empty());
  EXPECT_EQ(recorder_.freed(kAt, {1000, kArena}, caller_).library, 0u);
  recorder_.allocated({kAt, 1024}, kAt, request(), caller_);
  recorder_.allocated({kAt + 1024, 1024}, kAt + 1024, request(), caller_);
  EXPECT_EQ(Tags::of(recorder_.tags().by_tag(), 3), 2000u);
  recorder_.forget_unless([](DevicePtr begin) { return begin == kAt; });
  EXPECT_EQ(Tags::of(recorder_.tags().by_tag(), 3), 1000u);
  EXPECT_EQ(recorder_.freed(kAt, {1000, kArena}, caller_).tag, 3u);
  EXPECT_TRUE(recorder_.tags().empty());
}

using Observers = Recording;

TEST_F(Observers, hear_of_the_memory_and_its_stream) {
  pool::Request of_any = request();
  of_any.stream.reset();
  recorder_.allocated({kAt, 1024}, kAt, request(), caller_);
  recorder_.allocated({kAt, 2048}, kAt, of_any, caller_);
  recorder_.allocated({}, kAt, request(), caller_);  // in an external arena
  recorder_.observe_end({kAt, 1024}, driver::StreamHandle{0x92});
  recorder_.observe_end({kAt, 1024}, std::nullopt);
  recorder_.free_failed({kAt, 1024}, driver::StreamHandle{0x93}, {}, caller_);
  EXPECT_THAT(watched_.notes,
              ElementsAre("allocate 0x70000000+1024 0x91", "allocate 0x70000000+2048 any",
                          "free 0x70000000+1024 0x92", "free 0x70000000+1024 any",
                          "allocate 0x70000000+1024 0x91"))
      << "the last one behind the stream that freed";
  EXPECT_TRUE(recorder_.wants_ranges());
}

TEST_F(Observers, may_be_none) {
  UnwatchedDriver unwatched(sim_);
  driver::RecordingDriver driver(unwatched);
  Recorder recorder(driver, 2);
  EXPECT_FALSE(recorder.wants_ranges());
  recorder.allocated({kAt, 1024}, kAt, request(), caller_);
  recorder.observe_end({kAt, 1024}, driver::StreamHandle{0x92});
  recorder.observe_end({kAt, 1024}, std::nullopt);
  start(recorder);
  EXPECT_TRUE(recorder.wants_ranges()) << "for the file";
  recorder.stop();
}

using Listeners = Recording;

TEST_F(Listeners, are_told_of_each_event_with_the_device_and_the_time) {
  listen_to_all();
  recorder_.allocated({kAt, 1024}, kAt, request(), caller_);
  recorder_.used(kAt, {1000, kArena}, caller_, driver::StreamHandle{0x95});
  EXPECT_EQ(recorder_.freed(kAt, {1000, kArena}, caller_).library, 4u);
  recorder_.failed(request(), {ErrorCode::out_of_memory, ""}, {});
  EXPECT_EQ(told_.size(), 4u);
  recorder_.failed(request(), {ErrorCode::invalid_argument, ""}, {});
  EXPECT_EQ(told_.size(), 4u) << "not told";
  recorder_.on_map({kAt, 10}, {});
  recorder_.on_unmap({kAt, 10}, pool::MappingObserver::Fate::given_back);
  recorder_.arena_changed(EventKind::arena_grow, {kAt, 20}, kArena);
  recorder_.arena_resides(EventKind::suspend, 30, 3, kArena);
  recorder_.trimmed(40);
  const EventKind kinds[] = {EventKind::allocate,      EventKind::record_use, EventKind::free,
                             EventKind::out_of_memory, EventKind::map,        EventKind::unmap,
                             EventKind::arena_grow,    EventKind::suspend,    EventKind::trim};
  ASSERT_EQ(told_.size(), std::size(kinds));
  for (std::size_t i = 0; i < told_.size(); ++i) {
    EXPECT_EQ(told_[i].kind, kinds[i]);
    EXPECT_EQ(told_[i].device, 2);
    EXPECT_EQ(told_[i].time_ns, sim_.now_ns());
  }
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(told_[i].ptr, kAt);
    EXPECT_EQ(told_[i].bytes, 1000u);
    EXPECT_EQ(told_[i].tag, 3u);
    EXPECT_EQ(told_[i].arena, 5u);
  }
  EXPECT_EQ(told_[1].stream, driver::StreamHandle{0x95});
  for (std::size_t i = 4; i < 7; ++i) EXPECT_EQ(told_[i].tag, 0u);
  for (const std::size_t i : {4u, 5u, 8u}) EXPECT_EQ(told_[i].arena, 0u);
  EXPECT_EQ(told_[7].tag, 3u);
}

TEST_F(Listeners, choose_kinds_by_their_bits) {
  for (std::uint32_t kind = 0; kind < kEventKinds; ++kind)
    EXPECT_EQ(bit_of(static_cast<EventKind>(kind)), std::uint32_t{1} << kind);
}

TEST_F(Listeners, are_told_of_their_kinds_alone_until_they_are_removed) {
  int frees = 0;
  const std::uint64_t first =
      recorder_.add_listener(bit_of(EventKind::free), [&](const ReportedEvent&) { ++frees; });
  EXPECT_TRUE(recorder_.wants_all_calls());
  EXPECT_FALSE(recorder_.wants_mappings());
  const std::uint64_t second = recorder_.add_listener(
      bit_of(EventKind::map), [&](const ReportedEvent&) { throw std::runtime_error("dropped"); });
  EXPECT_NE(first, second);
  EXPECT_TRUE(recorder_.wants_mappings());
  recorder_.on_map({kAt, 10}, {});
  recorder_.freed(kAt, {}, caller_);
  EXPECT_EQ(frees, 1);
  EXPECT_TRUE(recorder_.remove_listener(first));
  EXPECT_FALSE(recorder_.remove_listener(first));
  recorder_.freed(kAt, {}, caller_);
  EXPECT_EQ(frees, 1);
  EXPECT_FALSE(recorder_.wants_all_calls());
  EXPECT_TRUE(recorder_.remove_listener(second));
  EXPECT_FALSE(recorder_.wants(EventKind::map));
}

TEST_F(Recording, has_the_allocation_again_where_the_driver_refused_its_free) {
  start();
  listen_to_all();
  recorder_.free_failed({kAt, 1000}, driver::StreamHandle{0x90}, {3, 4}, caller_);
  const QueuedEvent event = the_only();
  EXPECT_EQ(event.kind, RecordedKind::allocate);
  EXPECT_EQ(event.bytes, 1000u);
  EXPECT_EQ(event.tag, 3u);
  EXPECT_EQ(event.library, 4u);
  EXPECT_EQ(event.value, 0u) << "not known";
  EXPECT_EQ(event.stream_handle, 0x90u);
  ASSERT_EQ(told_.size(), 1u);
  EXPECT_EQ(told_[0].kind, EventKind::allocate);
  EXPECT_EQ(recorder_.tags().of(kAt).tag, 3u);
  recorder_.free_failed({kAt + 4096, 1000}, std::nullopt, {}, caller_);
  EXPECT_EQ(Tags::of(recorder_.tags().by_tag(), 0), 0u) << "without a tag nothing is kept";
}

}  // namespace
}  // namespace vpmm::report
