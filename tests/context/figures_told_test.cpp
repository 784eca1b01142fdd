// SPDX-License-Identifier: Apache-2.0
// context: figures for other processes, summaries, listeners and recordings of every kind of pool.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "process/process_gate.hpp"
#include "process/recordings.hpp"
#include "settings/variable.hpp"
#include "support/pool_world_words.hpp"
#include "support/recorded_file.hpp"

namespace vpmm::test {
namespace {

using observe::RecordedKind;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Pair;

WorldOptions without_pages() {
  WorldOptions options = adaptive_world();
  options.sim.vmm_supported = false;
  return options;
}

TEST(FiguresToTell, have_device_limit_and_holders) {
  for (const WorldOptions& options : {adaptive_world(), without_pages()}) {
    PoolWorld world(options);
    const StreamHandle stream = world.stream();
    pool::Request request{1000, 0, stream};
    request.tag = 71;
    request.library = 72;
    const auto tagged = world.pool().allocate(request);
    ASSERT_TRUE(tagged.ok()) << message_of(tagged);
    world.allocate(3 * kPage, stream);
    EXPECT_FALSE(world.pool().reports().try_figures().value().capacity.has_value());
    world.pool().limits().set_capacity(100 * kPage);
    const std::optional<context::FiguresToTell> told = world.pool().reports().try_figures();
    ASSERT_TRUE(told.has_value());
    std::string name;
    ASSERT_EQ(world.sim().device_get_name(0, name), driver::CuResult::success);
    EXPECT_EQ(told->device_name, name);
    EXPECT_EQ(told->device_bytes, options.sim.capacity);
    EXPECT_EQ(told->capacity, 100 * kPage);
    EXPECT_EQ(told->statistics.live_bytes, 3 * kPage + 1000);
    EXPECT_THAT(told->by_tag, ElementsAre(Pair(71, 1000)));
    EXPECT_THAT(told->by_library, ElementsAre(Pair(72, 1000)));
  }
}

// Memory of the driver's pool goes with its context, and chunks stay.
TEST(FiguresToTell, have_no_tags_of_memory_that_a_reset_by_others_ended) {
  WorldOptions options = adaptive_world();
  options.config.small = settings::SmallRequests::stream_ordered;
  PoolWorld world(options);
  const StreamHandle stream = world.stream();
  for (const Bytes bytes : {Bytes{1000}, 3 * kPage}) {
    pool::Request request{bytes, 0, stream};
    request.tag = 71;
    request.library = 72;
    ASSERT_TRUE(world.pool().allocate(request).ok());
  }
  ASSERT_EQ(world.sim().device_primary_ctx_reset(0), driver::CuResult::success);
  driver::ContextHandle context{};
  ASSERT_EQ(world.sim().device_primary_ctx_retain(0, context), driver::CuResult::success);
  ASSERT_EQ(world.sim().ctx_set_current(context), driver::CuResult::success);
  world.deallocate(world.allocate(kPage, std::nullopt), std::nullopt);
  const std::optional<context::FiguresToTell> told = world.pool().reports().try_figures();
  ASSERT_TRUE(told.has_value());
  EXPECT_THAT(told->by_tag, ElementsAre(Pair(71, 3 * kPage)));
  EXPECT_THAT(told->by_library, ElementsAre(Pair(72, 3 * kPage)));
}

TEST(FiguresToTell, have_no_device_where_the_driver_does_not_say) {
  PoolWorld world(adaptive_world());
  world.faults().set_plan({{driver::Call::device_get_name, driver::Call::device_total_mem},
                           1,
                           driver::CuResult::unknown,
                           driver::FaultPlan::Repeat::from_then_on});
  const auto told = world.pool().reports().try_figures();
  world.faults().clear_plan();
  ASSERT_TRUE(told.has_value());
  EXPECT_EQ(told->device_name, "");
  EXPECT_EQ(told->device_bytes, 0u);
}

TEST(SummaryOfAPool, is_printed_also_if_as_many_or_all_requests_failed) {
  struct Case {
    int served, refused;
    const char* failed;
  };
  const settings::Variable on("VPMM_STATS", "1");
  for (const Case& each : {Case{1, 1, "1 allocation, 0 calls"}, Case{0, 2, "2 allocations, 0"},
                           Case{2, 0, "0 allocations, 0"}}) {
    ::testing::internal::CaptureStderr();
    {
      WorldOptions options = page_world();
      options.config.limits.capacity = 8 * kPage;
      PoolWorld world(options);
      const StreamHandle stream = world.stream();
      for (int i = 0; i < each.served; ++i) world.allocate(kPage, stream);
      for (int i = 0; i < each.refused; ++i)
        EXPECT_FALSE(world.pool().allocate({9 * kPage, 0, stream}).ok());
    }
    const std::string text = ::testing::internal::GetCapturedStderr();
    EXPECT_THAT(text, HasSubstr("vpmm: summary of a pool on device 0\n"));
    EXPECT_THAT(text, HasSubstr("the limit is 16 MiB\n"));
    EXPECT_THAT(text, HasSubstr(each.failed));
  }
}

// --- without pages

TEST(PoolWithoutPages, tells_listeners) {
  PoolWorld world(without_pages());
  const StreamHandle stream = world.stream();
  using report::EventKind;
  std::vector<std::pair<EventKind, DevicePtr>> told;
  const std::uint64_t listener = world.pool().reports().add_event_callback(
      report::bit_of(EventKind::allocate) | report::bit_of(EventKind::free),
      [&](const report::ReportedEvent& event) { told.emplace_back(event.kind, event.ptr); });
  const DevicePtr ptr = world.allocate(1000, stream);
  world.deallocate(ptr, stream);
  EXPECT_THAT(told, ElementsAre(Pair(EventKind::allocate, ptr), Pair(EventKind::free, ptr)));
  EXPECT_TRUE(world.pool().reports().remove_event_callback(listener).ok());
}

TEST(PoolWithoutPages, is_recorded) {
  const std::string path =
      ::testing::TempDir() + "vpmm_without_pages_" + std::to_string(getpid()) + ".vpmmrec";
  PoolWorld world(without_pages());
  const StreamHandle stream = world.stream();
  world.pool().limits().set_capacity(kGiB);
  ASSERT_TRUE(world.pool().reports().start_recording(path).ok());
  world.deallocate(world.allocate(1000, stream), stream);
  ASSERT_TRUE(world.pool().reports().stop_recording().ok());
  const RecordedFile file = read_recorded(path);
  std::filesystem::remove(path);
  EXPECT_EQ(file.error, "");
  EXPECT_EQ(file.count(RecordedKind::allocate), 1u);
  EXPECT_EQ(file.count(RecordedKind::free), 1u);
  EXPECT_EQ(file.header["grain"], file.header["page_size"]);
  EXPECT_EQ(file.header["capacity"], kGiB);
  EXPECT_EQ(file.header["device_bytes"], without_pages().sim.capacity);
}

// --- recordings

class RecordingFile : public ::testing::Test {
 protected:
  void TearDown() override {
    std::filesystem::remove(path);
    std::filesystem::remove(csv);
  }
  const std::string path =
      ::testing::TempDir() + "vpmm_told_" + std::to_string(getpid()) + ".vpmmrec";
  const std::string csv = path + ".csv";
};

TEST_F(RecordingFile, is_finished_at_exit) {
  PoolWorld world(adaptive_world());
  const StreamHandle stream = world.stream();
  ASSERT_TRUE(world.pool().reports().start_recording(path).ok());
  world.allocate(1000, stream);
  process::finish_recordings();
  RecordedFile file = read_recorded(path);
  // A busy disk may need more than the second that an exit waits.
  for (int i = 0; file.end.is_null() && i < 600; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    file = read_recorded(path);
  }
  EXPECT_EQ(file.error, "");
  EXPECT_EQ(file.count(RecordedKind::allocate), 1u);
  EXPECT_FALSE(file.end.is_null());
}

TEST_F(RecordingFile, begins_with_pool_and_options_and_has_samples_at_both_ends) {
  WorldOptions options = page_by_page_world();
  options.config.limits.capacity = 64 * kPage;
  PoolWorld world(options);
  const StreamHandle stream = world.stream();
  world.allocate(5 * kPage, stream);
  const DevicePtr freed = world.allocate(6 * kPage, stream);
  settings::RecordOptions how;
  how.stacks = "native";
  how.sample = 3;
  ASSERT_TRUE(world.pool().reports().start_recording(path, how).ok());
  world.deallocate(freed, stream);
  ASSERT_TRUE(world.pool().reports().stop_recording().ok());
  const RecordedFile file = read_recorded(path);
  std::string name;
  ASSERT_EQ(world.sim().device_get_name(0, name), driver::CuResult::success);
  EXPECT_EQ(file.header["device"], 0);
  EXPECT_EQ(file.header["device_name"], name);
  EXPECT_EQ(file.header["device_bytes"], options.sim.capacity);
  EXPECT_EQ(file.header["capacity"], 64 * kPage);
  EXPECT_EQ(file.header["page_size"], kPage);
  EXPECT_EQ(file.header["stacks"], "native");
  EXPECT_EQ(file.header["sample"], 3);
  const auto in_force = settings::list_settings(world.pool().config());
  EXPECT_EQ(file.header["settings"].size(), in_force.size());
  for (const settings::SettingInForce& each : in_force)
    EXPECT_EQ(file.header["settings"][each.name], each.value);
  std::vector<observe::RecordedEvent> samples;
  for (const observe::RecordedEvent& event : file.events)
    if (event.kind == static_cast<std::uint16_t>(RecordedKind::sample)) samples.push_back(event);
  ASSERT_EQ(samples.size(), 3u) << "and one by the free, as none was before";
  for (const observe::RecordedEvent& sample : samples) {
    const Bytes free = &sample == &samples.front() ? 0 : 6 * kPage;
    EXPECT_EQ(sample.address, 11 * kPage) << "mapped";
    EXPECT_EQ(sample.bytes, free) << "pending";
    EXPECT_EQ(sample.value, free);
  }
}

std::vector<WorldOptions> with_every_server() {
  std::vector<WorldOptions> all(3, adaptive_world());
  all[1].config.prefer = settings::Prefer::footprint;  // each free of a cache is due for an event
  all[2].config.checks.guard_every = 2;
  all.push_back(without_pages());
  return all;
}

// No address comes twice in a file: the next allocation there would make up for a missing free.
TEST_F(RecordingFile, has_each_free_once_whoever_serves_it) {
  for (const WorldOptions& options : with_every_server()) {
    PoolWorld world(options);
    const StreamHandle own = world.stream(), other = world.stream();
    for (const std::vector<pool::Stream>& streams :
         {std::vector<pool::Stream>(3, own), {own, other, std::nullopt}}) {
      ASSERT_TRUE(world.pool().reports().start_recording(path, {}).ok());
      std::vector<std::pair<DevicePtr, pool::Stream>> live;
      for (int round = 0; round < 3; ++round)
        for (const Bytes bytes : {Bytes{1000}, 300 * kKiB, 3 * kPage, 9 * kPage, 40 * kPage})
          for (const pool::Stream& on : streams) live.emplace_back(world.allocate(bytes, own), on);
      for (const auto& [ptr, on] : live) world.deallocate(ptr, on);
      ASSERT_TRUE(world.pool().reports().stop_recording().ok());
      const RecordedFile file = read_recorded(path);
      EXPECT_EQ(file.error, "");
      EXPECT_EQ(file.count(RecordedKind::allocate), live.size());
      EXPECT_EQ(file.count(RecordedKind::free), live.size());
    }
  }
}

TEST_F(RecordingFile, has_no_free_that_was_only_tried) {
  for (const WorldOptions& options : with_every_server()) {
    PoolWorld world(options);
    const StreamHandle own = world.stream(), other = world.stream();
    world.deallocate(world.allocate(1000, other), other);  // it has a cache, too
    ASSERT_TRUE(world.pool().reports().start_recording(path, {}).ok());
    std::vector<DevicePtr> live;
    for (const Bytes bytes : {Bytes{1000}, 300 * kKiB, 3 * kPage})
      live.push_back(world.allocate(bytes, own));
    for (const DevicePtr ptr : live)
      EXPECT_FALSE(world.pool().deallocate_if_ready(ptr, other)) << hex(ptr);
    ASSERT_TRUE(world.pool().reports().stop_recording().ok());
    const RecordedFile file = read_recorded(path);
    EXPECT_EQ(file.count(RecordedKind::allocate), live.size());
    EXPECT_EQ(file.count(RecordedKind::free), 0u);
    for (const DevicePtr ptr : live) world.deallocate(ptr, own);
  }
}

// A request that is refused before the pool looks at its memory says nothing of the figures.
TEST_F(RecordingFile, has_a_sample_beside_each_shortage_and_no_other_refusal) {
  WorldOptions options = page_world();
  options.config.limits.capacity = 4 * kPage;
  PoolWorld world(options);
  const StreamHandle stream = world.stream();
  ASSERT_TRUE(world.pool().reports().start_recording(path, {}).ok());
  world.allocate(kPage, stream);
  for (int i = 0; i < 3; ++i)
    expect_error(world.pool().allocate({100, 3, stream}), ErrorCode::invalid_argument);
  for (int i = 0; i < 2; ++i)
    expect_error(world.pool().allocate({8 * kPage, 0, stream}), ErrorCode::out_of_memory);
  ASSERT_TRUE(world.pool().reports().stop_recording().ok());
  const RecordedFile file = read_recorded(path);
  EXPECT_EQ(file.count(RecordedKind::allocate_failed), 5u);
  EXPECT_EQ(file.count(RecordedKind::sample), 3u + 2u) << "two ends and a call, and the shortages";
}

TEST_F(RecordingFile, is_not_begun_at_exit) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        static PoolWorld* world = nullptr;
        static const std::string* at = nullptr;
        std::atexit([] {
          const auto started = world->pool().reports().start_recording(*at);
          const bool is_refused = !started && started.error().code == ErrorCode::process_ending;
          std::_Exit(is_refused && !std::filesystem::exists(*at) ? 0 : 1);
        });
        at = &path;
        world = new PoolWorld(adaptive_world());
        { const process::GateEntry first_use; }
        std::exit(2);
      },
      ::testing::ExitedWithCode(0), "");
}

TEST_F(RecordingFile, has_options_within_bounds) {
  PoolWorld world(adaptive_world());
  using settings::RecordOptions;
  struct Case {
    const char* what;
    RecordOptions options;
    const std::string& path;
    const char* refusal;  // empty: accepted
  };
  const auto with = [](const auto& set) {
    RecordOptions options;
    set(options);
    return options;
  };
  const char* const only_plain = "stacks, samples, limits and windows are not for .csv files";
  const Case cases[] = {
      {"sample 0", with([](auto& o) { o.sample = 0; }), path,
       "a sample of 0: must be a number from 1 to 4294967295"},
      {"sample 1", with([](auto& o) { o.sample = 1; }), csv, ""},
      {"most", with([](auto& o) { o.sample = UINT32_MAX; }), path, ""},
      {"too many", with([](auto& o) { o.sample = std::uint64_t{UINT32_MAX} + 1; }), path,
       "a sample of 4294967296: must be"},
      {"limit", with([](auto& o) { o.limit = 64 * kKiB; }), path, ""},
      {"less", with([](auto& o) { o.limit = 64 * kKiB - 1; }), path,
       "a limit of 65535 bytes: must be 0, for none, or at least 65536"},
      {"none", with([](auto& o) { o.stacks = "none"; }), csv, ""},
      {"stacks", with([](auto& o) { o.stacks = "native"; }), csv, only_plain},
      {"python", with([](auto& o) { o.stacks = "python"; }), csv, only_plain},
      {"limit", with([](auto& o) { o.limit = kMiB; }), csv, only_plain},
      {"window", with([](auto& o) { o.window_ns = 1; }), csv, only_plain},
      {"sample", with([](auto& o) { o.sample = 2; }), csv, only_plain},
      {"window", with([](auto& o) { o.window_ns = 1'000'000'000; }), path, ""},
  };
  for (const Case& each : cases) {
    const auto started = world.pool().reports().start_recording(each.path, each.options);
    EXPECT_EQ(started.ok(), *each.refusal == '\0') << each.what << ": " << message_of(started);
    EXPECT_THAT(message_of(started), HasSubstr(each.refusal)) << each.what;
    EXPECT_EQ(world.pool().reports().stop_recording().ok(), started.ok()) << each.what;
  }
}

TEST_F(RecordingFile, that_cannot_be_made_begins_no_recording) {
  PoolWorld world(adaptive_world());
  expect_error(world.pool().reports().start_recording("/nonexistent/folder/file.vpmmrec"),
               ErrorCode::bad_file, {"/nonexistent/folder/file.vpmmrec"});
  expect_error(world.pool().reports().stop_recording(), ErrorCode::invalid_argument,
               {"no recording is running"});
  ASSERT_TRUE(world.pool().reports().start_recording(path).ok());
  expect_error(world.pool().reports().start_recording(csv), ErrorCode::invalid_argument,
               {"a recording is running already"});
  EXPECT_FALSE(std::filesystem::exists(csv));
  ASSERT_TRUE(world.pool().reports().stop_recording().ok());
}

TEST(Explain, is_refused_without_guarded_allocations) {
  PoolWorld world(adaptive_world());
  expect_error(world.pool().reports().explain(DevicePtr{4096}), ErrorCode::unsupported,
               {"VPMM_GUARD is off, so the pool keeps no table of allocations"});
}

TEST(EventCallbacks, take_calls_through_the_lock_until_the_last_is_removed) {
  PoolWorld world(adaptive_world());
  const StreamHandle stream = world.stream();
  world.deallocate(world.allocate(1000, stream), stream);
  const std::uint64_t listener = world.pool().reports().add_event_callback(
      report::bit_of(report::EventKind::allocate), [](const report::ReportedEvent&) {});
  EXPECT_TRUE(is_null(world.pool().allocate_if_ready(1000, 0, stream)));
  ASSERT_TRUE(world.pool().reports().remove_event_callback(listener).ok());
  EXPECT_FALSE(is_null(world.pool().allocate_if_ready(1000, 0, stream)));
}

TEST(EventCallbacks, of_an_unknown_number_are_not_there_to_remove) {
  PoolWorld world(adaptive_world());
  expect_error(world.pool().reports().remove_event_callback(12345), ErrorCode::invalid_argument,
               {"no event callback of this pool has the number 12345"});
}

}  // namespace
}  // namespace vpmm::test
