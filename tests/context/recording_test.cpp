// SPDX-License-Identifier: Apache-2.0
// context: recordings tell what the pool did, in an order that is true, while warm calls stay
// without the pool's lock.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <filesystem>
#include <new>
#include <thread>
#include <vector>

#include "fault/host_faults.hpp"
#include "report/tags.hpp"
#include "support/held.hpp"
#include "support/pool_world_words.hpp"
#include "support/recorded_file.hpp"

namespace vpmm::test {
namespace {

using observe::RecordedEvent;
using observe::RecordedKind;
using settings::RecordOptions;
using test::read_recorded;
using test::RecordedFile;

class Recorded : public ::testing::Test {
 protected:
  void TearDown() override { std::filesystem::remove(path_); }
  void start(PoolWorld& world, const RecordOptions& options = {}) const {
    const auto started = world.pool().reports().start_recording(path_, options);
    ASSERT_TRUE(started.ok()) << started.error().message;
  }
  RecordedFile stop(PoolWorld& world) const {
    const auto stopped = world.pool().reports().stop_recording();
    EXPECT_TRUE(stopped.ok()) << stopped.error().message;
    RecordedFile file = read_recorded(path_);
    EXPECT_EQ(file.error, "");
    EXPECT_EQ(test::order_fault(file), "");
    EXPECT_EQ(file.end.value("lost", 1), 0);
    return file;
  }

  const std::string path_ =
      ::testing::TempDir() + "vpmm_recorded_" + std::to_string(getpid()) + ".vpmmrec";
};

TEST_F(Recorded, calls_after_the_end_of_a_recording_are_in_no_log) {
  PoolWorld world(adaptive_world());
  const StreamHandle stream = world.stream();
  world.deallocate(world.allocate(1000, stream), stream);
  for (int round = 0; round < 2; ++round) {
    start(world);
    world.deallocate(world.allocate(1000, stream), stream);
    EXPECT_EQ(stop(world).count(RecordedKind::allocate), 1u);
    for (int i = 0; i < 3; ++i) world.deallocate(world.allocate(1000, stream), stream);
  }
}

TEST_F(Recorded, what_lives_at_its_beginning_is_told_with_what_it_takes) {
  PoolWorld world(adaptive_world());
  const StreamHandle stream = world.stream();
  const DevicePtr small = world.pool().allocate({1000, 0, stream, {}, 7}).value();
  const DevicePtr large = world.allocate(3 * kPage - 5, std::nullopt);
  world.deallocate(world.allocate(9 * kPage, stream), stream);
  start(world);
  const RecordedFile file = stop(world);
  ASSERT_EQ(file.count(RecordedKind::live), 2u);
  for (const RecordedEvent& event : file.events) {
    if (event.kind != static_cast<std::uint16_t>(RecordedKind::live)) continue;
    const bool is_small = event.bytes == 1000;
    EXPECT_EQ(event.address, to_integer(is_small ? small : large));
    EXPECT_EQ(event.bytes, is_small ? Bytes{1000} : 3 * kPage - 5);
    EXPECT_EQ(event.value, is_small ? Bytes{1024} : 3 * kPage);
  }
  EXPECT_EQ(file.count(RecordedKind::allocate) + file.count(RecordedKind::free), 0u);
}

TEST_F(Recorded, warm_calls_are_served_without_the_lock_and_are_in_the_file) {
  PoolWorld world(adaptive_world());
  const StreamHandle stream = world.stream();
  world.deallocate(world.allocate(1000, stream), stream);
  start(world);
  const std::uint64_t calls = world.calls().count(driver::Call::ctx_set_current);
  for (int i = 0; i < 10; ++i) {
    const auto ptr = world.pool().allocate({1000, 0, stream});
    ASSERT_TRUE(ptr.ok());
    ASSERT_TRUE(world.pool().deallocate(ptr.value(), stream).ok());
  }
  EXPECT_EQ(world.calls().count(driver::Call::ctx_set_current), calls)
      << "a call that takes the lock sets the context";
  const RecordedFile file = stop(world);
  EXPECT_EQ(file.count(RecordedKind::allocate), 10u);
  EXPECT_EQ(file.count(RecordedKind::free), 10u);
  EXPECT_EQ(file.first(RecordedKind::allocate).bytes, 1000u);
  EXPECT_EQ(file.header["page_size"], kPage);
  EXPECT_EQ(file.header["grain"], kPage / 32);
  EXPECT_EQ(file.first(RecordedKind::allocate).value, 1024u) << "what it takes in the pool";
  EXPECT_NE(file.first(RecordedKind::free).stream, observe::kNoRecordedStream);
}

// The free names an address that the program freed before, and comes while the next allocation
// there is being told.
TEST_F(Recorded,
       an_allocation_that_a_stale_free_ends_meanwhile_is_in_the_file_as_it_was_asked_for) {
  constexpr Bytes kAsked = 20 * kKiB;
  constexpr Bytes kAlignment = 16 * kKiB;  // which no warm call serves
  PoolWorld world(adaptive_world());
  const StreamHandle stream = world.stream();
  const DevicePtr stale = world.pool().allocate({kAsked, kAlignment, stream}).value();
  ASSERT_TRUE(world.pool().deallocate(stale, stream).ok());
  start(world);
  bool is_freed = false;
  Held held("whose an address is was read, what is there was not",
            [&] { is_freed = world.pool().deallocate(stale, stream).ok(); });
  const auto made = world.pool().allocate({kAsked, kAlignment, stream});
  ASSERT_TRUE(held.end());
  EXPECT_TRUE(held.is_over());
  EXPECT_TRUE(is_freed);
  ASSERT_TRUE(made.ok());
  EXPECT_EQ(made.value(), stale);
  const std::uint64_t mistakes = world.statistics().caller_mistakes;
  EXPECT_FALSE(world.pool().deallocate(made.value(), stream).ok())
      << "the program's own free comes too late";
  EXPECT_EQ(world.statistics().caller_mistakes, mistakes + 1);
  EXPECT_EQ(world.statistics().live_allocations, 0u);
  EXPECT_EQ(world.pool().reports().validate(), "");
  ASSERT_TRUE(world.pool().reports().stop_recording().ok());
  const RecordedFile file = read_recorded(path_);
  EXPECT_EQ(file.error, "");
  const RecordedEvent told = file.first(RecordedKind::allocate);
  EXPECT_EQ(told.address, to_integer(stale));
  EXPECT_EQ(told.bytes, kAsked);
  EXPECT_EQ(told.value, kAsked) << "what it takes in the pool is not known any more";
}

// The writer waits for the event of a free that is not over, so the queue fills up.
TEST_F(Recorded, calls_that_only_try_wait_for_no_place) {
  PoolWorld world(adaptive_world());
  const StreamHandle stream = world.stream();
  const DevicePtr large = world.allocate(64 * kPage, stream);
  const DevicePtr live = world.allocate(1000, stream);
  world.deallocate(world.allocate(1000, std::nullopt), std::nullopt);
  world.deallocate(world.allocate(1000, stream), stream);
  start(world);
  bool is_freed = true;
  bool is_served = true;
  Held held(
      "a free holds the pool's lock, nothing has ended",
      [&] {
        DevicePtr last;
        do {
          last = world.pool().allocate_if_ready(1000, 0, stream);
        } while (!is_null(last) && world.pool().deallocate_if_ready(last, stream));
        is_freed = world.pool().deallocate_if_ready(live, stream);
        is_served = !is_null(world.pool().allocate_if_ready(1000, 0, stream)) ||
                    !is_null(world.pool().allocate_if_ready(1000, 0));
      },
      std::chrono::seconds(10));
  world.deallocate(large, stream);
  ASSERT_TRUE(held.end());
  EXPECT_TRUE(held.is_over());
  EXPECT_FALSE(is_freed);
  EXPECT_FALSE(is_served);
  stop(world);
}

TEST_F(Recorded, calls_on_bound_streams_and_without_a_stream_are_in_the_file) {
  PoolWorld world(adaptive_world());
  auto bound = world.pool().bind(world.stream());
  ASSERT_TRUE(bound.ok());
  const DevicePtr warm = bound.value()->allocate(1000, 0).value();
  ASSERT_TRUE(bound.value()->deallocate(warm).ok());
  start(world);
  const DevicePtr ptr = bound.value()->allocate(1000, 0).value();
  ASSERT_TRUE(bound.value()->deallocate(ptr).ok());
  world.deallocate(world.allocate(3 * kPage, std::nullopt), std::nullopt);
  std::array<DevicePtr, 3> many{};
  const std::array<Bytes, 3> sizes{100, 5000, 4 * kPage};
  const StreamHandle stream = world.stream();
  ASSERT_TRUE(world.pool().allocate_many(sizes, stream, many).ok());
  ASSERT_TRUE(world.pool().deallocate_many(many, stream).ok());
  const RecordedFile file = stop(world);
  EXPECT_EQ(file.count(RecordedKind::allocate), 5u);
  EXPECT_EQ(file.count(RecordedKind::free), 5u);
}

TEST_F(Recorded, what_lived_stands_at_the_beginning) {
  PoolWorld world(adaptive_world());
  const StreamHandle stream = world.stream();
  const DevicePtr small = world.allocate(1000, stream);
  const DevicePtr large = world.allocate(3 * kPage - 5, stream);
  world.deallocate(world.allocate(50, stream), stream);
  start(world);
  world.deallocate(small, stream);
  world.deallocate(large, stream);
  const RecordedFile file = stop(world);
  ASSERT_EQ(file.count(RecordedKind::live), 2u);
  EXPECT_EQ(file.count(RecordedKind::free), 2u);
  Bytes bytes = 0;
  for (const RecordedEvent& event : file.events)
    if (event.kind == static_cast<std::uint16_t>(RecordedKind::live)) bytes += event.bytes;
  EXPECT_EQ(bytes, 1000 + 3 * kPage - 5);
}

TEST_F(Recorded, mappings_moves_waits_and_driver_calls_are_told_of) {
  WorldOptions options = page_world();
  options.config.limits.capacity = 8 * kPage;
  PoolWorld world(options);
  const StreamHandle stream = world.stream();
  start(world);
  const std::uint64_t created = world.calls().count(driver::Call::mem_create);
  std::vector<DevicePtr> pages;
  for (int i = 0; i < 8; ++i) pages.push_back(world.allocate(kPage, stream));
  for (std::size_t i = 0; i < 8; i += 2) world.deallocate(pages[i], stream);
  world.wait();
  const DevicePtr moved = world.allocate(4 * kPage, stream);
  world.use(moved, kPage, stream, 5'000'000);
  world.deallocate(moved, stream);
  world.allocate(4 * kPage,
                 world.stream());  // waits for the other stream, on the GPU or on the host
  world.wait();
  ASSERT_TRUE(world.pool().limits().trim(0).ok());
  const RecordedFile file = stop(world);
  EXPECT_EQ(file.first(RecordedKind::map).value, 1u) << "the first chunk is new";
  ASSERT_EQ(file.count(RecordedKind::move), 4u);
  EXPECT_NE(file.first(RecordedKind::move).value, file.first(RecordedKind::move).address);
  EXPECT_EQ(file.count(RecordedKind::trim), 1u);
  std::array<std::uint64_t, 7> calls{};
  for (const RecordedEvent& event : file.events)
    if (event.kind == static_cast<std::uint16_t>(RecordedKind::driver)) ++calls.at(event.flags);
  EXPECT_EQ(calls[1], world.calls().count(driver::Call::mem_create) - created);
  EXPECT_GT(calls[2], 8u);
  EXPECT_GT(calls[3], 0u);
  EXPECT_GT(file.count(RecordedKind::sample), 1u);
  EXPECT_EQ(file.end["peak_mapped_bytes"], 8 * kPage);
}

TEST_F(Recorded, a_failed_request_has_its_size_and_the_report) {
  WorldOptions options = page_world();
  options.config.limits.capacity = 4 * kPage;
  PoolWorld world(options);
  const StreamHandle stream = world.stream();
  start(world);
  world.allocate(2 * kPage, stream);
  EXPECT_FALSE(world.pool().allocate({3 * kPage, 0, stream}).ok());
  EXPECT_FALSE(world.pool().allocate({100, 3, stream}).ok()) << "a mistake";
  const RecordedFile file = stop(world);
  ASSERT_EQ(file.count(RecordedKind::allocate_failed), 2u);
  EXPECT_EQ(file.first(RecordedKind::allocate_failed).bytes, 3 * kPage);
  EXPECT_EQ(file.first(RecordedKind::allocate_failed).flags, 0u);
  const std::string report = file.text(file.first(RecordedKind::allocate_failed).value);
  EXPECT_NE(report.find("out of device memory"), std::string::npos) << report;
  EXPECT_NE(report.find("python -m vpmm report " + path_), std::string::npos) << report;
  EXPECT_EQ(file.first(RecordedKind::out_of_memory).bytes, 3 * kPage);
  EXPECT_EQ(file.first(RecordedKind::allocate_failed).stream,
            file.first(RecordedKind::allocate).stream);
  EXPECT_EQ(file.header["capacity"], 4 * kPage);
  EXPECT_EQ(file.header["grain"], kPage) << "one chunk per page";
  const auto trace = observe::read_trace(path_);
  ASSERT_TRUE(trace.ok()) << trace.error().message;
  EXPECT_EQ(trace.value().failed, 1u) << "a mistake is not replayed";
  EXPECT_EQ(trace.value().capacity, 4 * kPage);
}

TEST_F(Recorded, a_shortage_has_the_figures_of_its_moment_before_it) {
  WorldOptions options = page_world();
  options.config.limits.capacity = 4 * kPage;
  PoolWorld world(options);
  const StreamHandle stream = world.stream();
  start(world);
  const DevicePtr first = world.allocate(2 * kPage, stream);
  world.allocate(kPage, stream);
  world.deallocate(first, stream);
  EXPECT_FALSE(world.pool().allocate({4 * kPage, 0, stream}).ok());
  EXPECT_EQ(read_recorded(path_).count(RecordedKind::out_of_memory), 1u)
      << "the program may end now";
  const RecordedFile file = stop(world);
  const auto is_shortage = [](const RecordedEvent& event) {
    return event.kind == static_cast<std::uint16_t>(RecordedKind::out_of_memory);
  };
  const auto shortage = std::find_if(file.events.begin(), file.events.end(), is_shortage);
  ASSERT_NE(shortage, file.events.end());
  const RecordedEvent& sample = *(shortage - 1);
  ASSERT_EQ(sample.kind, static_cast<std::uint16_t>(RecordedKind::sample));
  EXPECT_EQ(sample.time_ns, shortage->time_ns);
  EXPECT_EQ(sample.value, 2 * kPage) << "is free";
}

TEST_F(Recorded, the_device_is_named) {
  driver::sim::SimOptions two;
  two.device_count = 2;
  driver::sim::SimDriver sim(two);
  auto pool = context::Context::create(sim, 1, adaptive_world().config);
  ASSERT_TRUE(pool.ok());
  ASSERT_TRUE(pool.value()->reports().start_recording(path_, {}).ok());
  ASSERT_TRUE(pool.value()->reports().stop_recording().ok());
  EXPECT_EQ(read_recorded(path_).header["device"], 1);
}

TEST_F(Recorded, tags_are_named_if_they_have_names) {
  report::set_tag_name(91, "recorded");
  PoolWorld world(adaptive_world());
  const StreamHandle stream = world.stream();
  start(world);
  for (const std::uint32_t tag : {91U, 92U})
    world.deallocate(world.pool().allocate({1000, 0, stream, {}, tag}).value(), stream);
  const RecordedFile file = stop(world);
  EXPECT_EQ(file.definitions.value("tags", nlohmann::json::object()),
            (nlohmann::json{{"91", "recorded"}}));
}

TEST_F(Recorded, marks_stand_between_the_calls) {
  PoolWorld world(adaptive_world());
  const StreamHandle stream = world.stream();
  world.pool().reports().mark("nobody hears this");
  start(world);
  world.allocate(100, stream);
  world.pool().reports().mark("step 1");
  world.allocate(200, stream);
  const RecordedFile file = stop(world);
  ASSERT_EQ(file.count(RecordedKind::mark), 1u);
  EXPECT_EQ(file.text(file.first(RecordedKind::mark).value), "step 1");
  std::vector<std::uint64_t> order;
  for (const RecordedEvent& event : file.events) {
    const auto kind = static_cast<RecordedKind>(event.kind);
    if (kind == RecordedKind::allocate || kind == RecordedKind::mark) order.push_back(event.bytes);
  }
  EXPECT_EQ(order, (std::vector<std::uint64_t>{100, 0, 200}));
}

TEST_F(Recorded, stacks_of_one_place_have_one_number_and_name_the_test) {
  PoolWorld world(adaptive_world());
  const StreamHandle stream = world.stream();
  RecordOptions options;
  options.stacks = "native";
  start(world, options);
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(world.pool().allocate({100, 0, stream}).ok());
  ASSERT_TRUE(world.pool().allocate({100, 0, stream}).ok());
  const RecordedFile file = stop(world);
  std::vector<std::uint32_t> stacks;
  for (const RecordedEvent& event : file.events)
    if (event.kind == static_cast<std::uint16_t>(RecordedKind::allocate))
      stacks.push_back(event.stack);
  ASSERT_EQ(stacks.size(), 4u);
  EXPECT_NE(stacks[1], 0u);
  EXPECT_EQ(stacks[1], stacks[2]);
  EXPECT_NE(stacks[2], stacks[3]);
  const auto& frames = file.definitions["stacks"][std::to_string(stacks[1])];
  EXPECT_GT(frames.size(), 3u);
  EXPECT_EQ(frames[0].size(), 3u);
}

TEST_F(Recorded, options_that_are_wrong_are_refused_before_there_is_a_file) {
  PoolWorld world(adaptive_world());
  const auto refusal = [&](const RecordOptions& options, const std::string& path) {
    const auto started = world.pool().reports().start_recording(path, options);
    EXPECT_FALSE(std::filesystem::exists(path));
    return started ? "" : started.error().message;
  };
  RecordOptions options;
  options.stacks = "all";
  EXPECT_EQ(refusal(options, path_), "stacks `all`: must be none, native, python or both");
  options = {};
  options.limit = 5;
  EXPECT_EQ(refusal(options, path_), "a limit of 5 bytes: must be 0, for none, or at least 65536");
  options = {};
  options.sample = 2;
  EXPECT_EQ(
      refusal(options, path_ + ".csv"),
      path_ +
          ".csv: stacks, samples, limits and windows are not for .csv files; name it otherwise");
}

TEST_F(Recorded, a_second_recording_of_the_pool_is_whole_too) {
  PoolWorld world(adaptive_world());
  const StreamHandle stream = world.stream();
  RecordOptions options;
  options.stacks = "native";
  for (int i = 0; i < 3; ++i) {
    start(world, options);
    world.deallocate(world.allocate(100, stream), stream);
    const RecordedFile file = stop(world);
    EXPECT_EQ(file.count(RecordedKind::allocate), 1u);
    const auto number = std::to_string(file.first(RecordedKind::allocate).stack);
    EXPECT_TRUE(file.definitions["stacks"].contains(number)) << "a file knows its own stacks";
  }
}

// Eight threads with streams of their own allocate, and free what others allocated; what is freed
// is soon somebody else's.
TEST_F(Recorded,
       eight_threads_that_hand_memory_to_each_other_are_recorded_in_an_order_that_is_true) {
  PoolWorld world(adaptive_world());
  start(world);
  std::array<std::atomic<std::uint64_t>, 16> hands{};
  std::vector<StreamHandle> streams;
  for (int t = 0; t < 8; ++t) streams.push_back(world.stream());
  std::vector<std::thread> threads;
  for (std::size_t t = 0; t < 8; ++t) {
    threads.emplace_back([&, t] {
      for (std::size_t i = 0; i < 1500; ++i) {
        const Bytes bytes = i % 50 == 0 ? kPage + 1 : 100 + 300 * (i % 5);
        const auto ptr = world.pool().allocate({bytes, 0, streams[t % 3 == 0 ? 0 : t]});
        if (!ptr) continue;
        const DevicePtr other{hands[(i + t) % hands.size()].exchange(to_integer(ptr.value()))};
        if (is_null(other)) continue;
        EXPECT_TRUE(world.pool().deallocate(other, streams[t]).ok());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (auto& hand : hands) {
    EXPECT_TRUE(world.pool().deallocate(DevicePtr{hand.load()}, std::nullopt).ok());
  }
  const RecordedFile file = stop(world);
  EXPECT_EQ(file.count(RecordedKind::allocate), 8u * 1500u);
  EXPECT_EQ(file.count(RecordedKind::free), 8u * 1500u);
}

TEST_F(Recorded, a_stop_on_a_full_disk_returns_the_error) {
  if (!std::filesystem::exists("/dev/full"))
    GTEST_SKIP() << "no /dev/full here to stand for a full disk";
  PoolWorld world(adaptive_world());
  const std::string full = path_ + ".csv";
  std::filesystem::create_symlink("/dev/full", full);
  ASSERT_TRUE(world.pool().reports().start_recording(full, {}).ok());
  world.allocate(1000, world.stream());
  expect_error(world.pool().reports().stop_recording(), ErrorCode::bad_file);
  std::filesystem::remove(full);
}

TEST_F(Recorded, a_stop_after_the_context_broke_leaves_deferred_frees_undone) {
  PoolWorld world(adaptive_world());
  const DevicePtr ptr = world.allocate(1000, world.stream());
  start(world);
  world.pool().deallocate_deferred(ptr);
  world.break_context();
  EXPECT_FALSE(world.pool().streams().synchronize().ok());
  stop(world);
  EXPECT_EQ(world.statistics().live_allocations, 1u);
}

TEST_F(Recorded, one_that_cannot_begin_is_not_running) {
  using fault::HostFaults;
  PoolWorld world(adaptive_world());
  const StreamHandle stream = world.stream();
  for (int i = 0; i < 5; ++i) world.allocate(1000, stream);
  // With the n-th allocation of host memory failing.
  const auto try_to_start = [&](std::uint64_t n) {
    const fault::InsidePool inside;
    HostFaults::arm(n, HostFaults::Repeat::once);
    bool has_begun = false;
    try {
      has_begun = world.pool().reports().start_recording(path_, {}).ok();
    } catch (const std::bad_alloc&) {  // as a call of the pool may do
    }
    return has_begun;
  };
  std::uint64_t all = 0;
  for (int i = 0; i < 2; ++i) {  // the first makes what a process makes once
    EXPECT_TRUE(try_to_start(UINT64_MAX));
    all = HostFaults::counted();
    HostFaults::disarm();
    stop(world);
  }
  std::uint64_t failed = 0;
  for (std::uint64_t n = all - std::min<std::uint64_t>(all - 1, 30); n <= all; ++n) {
    const bool has_begun = try_to_start(n);
    HostFaults::disarm();
    const Result<void> stopped = world.pool().reports().stop_recording();
    EXPECT_EQ(stopped.ok(), has_begun) << n;
    failed += has_begun ? 0 : 1;
  }
  EXPECT_GT(failed, 0u);
  start(world);
  stop(world);
}

}  // namespace
}  // namespace vpmm::test
