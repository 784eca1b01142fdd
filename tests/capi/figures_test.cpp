// SPDX-License-Identifier: Apache-2.0
// capi: every field of events, layouts and snapshots where the GPU has work, exact figures of
// memory, and the figures that a process tells others.
#include <gtest/gtest.h>

#include <sys/socket.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "capi/gpu_pool.hpp"
#include "ipc/channel.hpp"
#include "ipc/process.hpp"

namespace vpmm::capi_test {
namespace {

using Figures = GpuPool;

std::vector<vpmm_block> blocks_of(vpmm_pool* pool) {
  vpmm_layout layout{};
  layout.size = sizeof(layout);
  EXPECT_EQ(vpmm_layout_take(pool, &layout), VPMM_OK) << vpmm_last_error();
  std::vector<vpmm_block> blocks(layout.blocks, layout.blocks + layout.block_count);
  vpmm_layout_release(&layout);
  return blocks;
}

vpmm_block block_at(const std::vector<vpmm_block>& blocks, const void* ptr) {
  for (const vpmm_block& block : blocks)
    if (block.begin == ptr) return block;
  ADD_FAILURE() << "no block begins at " << ptr;
  return {};
}

std::vector<vpmm_region> regions_of(vpmm_pool* pool) {
  std::vector<vpmm_region> regions(100);
  std::size_t count = 0;
  EXPECT_EQ(vpmm_snapshot(pool, regions.data(), regions.size(), &count), VPMM_OK)
      << vpmm_last_error();
  regions.resize(std::min(count, regions.size()));
  return regions;
}

vpmm_region region_at(vpmm_pool* pool, const void* ptr) {
  for (const vpmm_region& region : regions_of(pool))
    if (region.begin == ptr) return region;
  ADD_FAILURE() << "no region begins at " << ptr;
  return {};
}

void keep_events(void* argument, const vpmm_event* event) {
  static_cast<std::vector<vpmm_event>*>(argument)->push_back(*event);
}

TEST_F(Figures, of_events_are_those_of_the_request_and_its_time) {
  std::vector<vpmm_event> events;
  std::uint64_t id = 0;
  ASSERT_EQ(vpmm_add_event_callback(pool_, 1U << VPMM_EVENT_ALLOCATE | 1U << VPMM_EVENT_RECORD_USE,
                                    keep_events, &events, &id),
            VPMM_OK);
  const vpmm_stream stream = new_stream();
  const vpmm_stream other = new_stream();
  vpmm_request request{};
  request.size = sizeof(request);
  request.bytes = 3 * kMiB;
  request.stream = stream;
  request.tag = 12;
  void* ptr = nullptr;
  const std::uint64_t begin = gpu_->now_ns();
  ASSERT_EQ(vpmm_allocate_with(pool_, &request, &ptr), VPMM_OK) << vpmm_last_error();
  gpu_->sleep_ns(5 * kMillisecond);
  ASSERT_EQ(vpmm_record_use(pool_, ptr, other), VPMM_OK) << vpmm_last_error();
  ASSERT_EQ(events.size(), 2U);
  for (const vpmm_event& event : events) {
    EXPECT_EQ(event.size, sizeof(event));
    EXPECT_EQ(event.tag, 12U);
    EXPECT_EQ(event.ptr, ptr);
    EXPECT_EQ(event.bytes, 3 * kMiB);
    EXPECT_EQ(event.flags, 0U);
    EXPECT_EQ(event.device, 0);
  }
  EXPECT_EQ(events[0].stream, stream);
  EXPECT_EQ(events[1].stream, other);
  EXPECT_GE(events[0].time_ns, begin);
  EXPECT_GE(events[1].time_ns, events[0].time_ns + 5 * kMillisecond);
  EXPECT_LE(events[1].time_ns, gpu_->now_ns());
  EXPECT_EQ(vpmm_remove_event_callback(pool_, id), VPMM_OK);
  EXPECT_EQ(vpmm_deallocate(pool_, ptr, stream), VPMM_OK);
}

TEST_F(Figures, of_layouts_name_stream_arena_and_tag) {
  vpmm_arena* arena = nullptr;
  ASSERT_EQ(vpmm_arena_create(pool_, 0, 21, &arena), VPMM_OK) << vpmm_last_error();
  std::uint64_t number = 0;
  ASSERT_EQ(vpmm_arena_id(arena, &number), VPMM_OK);
  void* in_arena = nullptr;
  const vpmm_stream stream = new_stream();
  const vpmm_stream other = new_stream();
  ASSERT_EQ(vpmm_arena_allocate(arena, 3 * kMiB, 0, stream, &in_arena), VPMM_OK);
  void* const outside = allocate_on(other, 3 * kMiB);
  const auto blocks = blocks_of(pool_);
  EXPECT_EQ(block_at(blocks, in_arena).arena, number);
  EXPECT_EQ(block_at(blocks, in_arena).tag, 21U);
  EXPECT_EQ(block_at(blocks, outside).arena, 0U);
  EXPECT_EQ(block_at(blocks, outside).tag, 0U);
  driver::StreamId ids[2] = {};
  must(gpu_->stream_get_id(handle_of(stream), ids[0]));
  must(gpu_->stream_get_id(handle_of(other), ids[1]));
  EXPECT_EQ(block_at(blocks, in_arena).stream_id, static_cast<std::uint64_t>(ids[0]));
  EXPECT_EQ(block_at(blocks, outside).stream_id, static_cast<std::uint64_t>(ids[1]));
  EXPECT_EQ(vpmm_deallocate(pool_, in_arena, stream), VPMM_OK);
  EXPECT_EQ(vpmm_deallocate(pool_, outside, other), VPMM_OK);
  EXPECT_EQ(vpmm_arena_release(arena), VPMM_OK);
}

TEST_F(Figures, say_when_work_uses_free_memory_no_longer) {
  const vpmm_stream stream = new_stream();
  void* const ptr = allocate_on(stream, 24 * kMiB);
  keep_busy(stream, 1000 * kMillisecond);
  ASSERT_EQ(vpmm_deallocate(pool_, ptr, stream), VPMM_OK);
  vpmm_block block = block_at(blocks_of(pool_), ptr);
  EXPECT_EQ(block.state, VPMM_REGION_FREE);
  EXPECT_EQ(block.complete, 0);
  EXPECT_EQ(region_at(pool_, ptr).state, VPMM_REGION_FREE);
  EXPECT_EQ(region_at(pool_, ptr).complete, 0);
  ASSERT_EQ(vpmm_synchronize(pool_), VPMM_OK);
  block = block_at(blocks_of(pool_), ptr);
  EXPECT_EQ(block.complete, 1);
  EXPECT_EQ(block.bytes, 24 * kMiB);
  EXPECT_EQ(region_at(pool_, ptr).complete, 1);
}

// Pages of two streams with work are put together for a third; their old addresses are zombies.
TEST_F(Figures, show_zombies_in_layouts_and_snapshots) {
  vpmm_config config = default_config();
  config.chunk_max = 0;  // one chunk for each page
  ASSERT_EQ(vpmm_pool_destroy(pool_), VPMM_OK);
  ASSERT_EQ(vpmm_pool_create(0, &config, &pool_), VPMM_OK) << vpmm_last_error();
  const vpmm_stream streams[] = {new_stream(), new_stream(), new_stream()};
  void* const first = allocate_on(streams[0], 4 * kMiB);
  void* const between = allocate_on(streams[0], 2 * kMiB);
  void* const last = allocate_on(streams[1], 4 * kMiB);
  void* const end = allocate_on(streams[1], 2 * kMiB);
  for (const int i : {0, 1}) keep_busy(streams[i], 1000 * kMillisecond);
  ASSERT_EQ(vpmm_deallocate(pool_, first, streams[0]), VPMM_OK);
  ASSERT_EQ(vpmm_deallocate(pool_, last, streams[1]), VPMM_OK);
  void* const moved = allocate_on(streams[2], 8 * kMiB);
  ASSERT_FALSE(is_idle(streams[0])) << "the host does not wait";
  for (const void* const zombie : {first, last}) {
    EXPECT_EQ(region_at(pool_, zombie).state, VPMM_REGION_ZOMBIE);
    EXPECT_EQ(region_at(pool_, zombie).complete, 0);
    EXPECT_EQ(region_at(pool_, zombie).bytes, 4 * kMiB);
    EXPECT_EQ(block_at(blocks_of(pool_), zombie).state, VPMM_REGION_ZOMBIE);
    EXPECT_EQ(block_at(blocks_of(pool_), zombie).complete, 0);
  }
  EXPECT_EQ(region_at(pool_, between).state, VPMM_REGION_ALLOCATED);
  EXPECT_EQ(region_at(pool_, moved).requested, 8 * kMiB);
  EXPECT_EQ(statistics_of(pool_).zombie_bytes, 8 * kMiB);
  gpu_->run_until_idle();
  ASSERT_EQ(vpmm_synchronize(pool_), VPMM_OK);
  EXPECT_EQ(region_at(pool_, first).state, VPMM_REGION_HOLE);
  for (const vpmm_block& block : blocks_of(pool_)) EXPECT_NE(block.state, VPMM_REGION_ZOMBIE);
  EXPECT_EQ(vpmm_deallocate(pool_, between, streams[0]), VPMM_OK);
  EXPECT_EQ(vpmm_deallocate(pool_, end, streams[1]), VPMM_OK);
  EXPECT_EQ(vpmm_deallocate(pool_, moved, streams[2]), VPMM_OK);
}

TEST_F(Figures, of_memory_are_what_one_request_may_take) {
  ASSERT_EQ(vpmm_set_capacity(pool_, 64 * kMiB), VPMM_OK);
  std::uint64_t free = 0;
  std::uint64_t total = 0;
  for (const std::size_t live : {std::size_t{0}, 24 * kMiB, 62 * kMiB}) {
    void* const ptr = allocate(live);
    ASSERT_EQ(vpmm_memory_info(pool_, &free, &total), VPMM_OK) << vpmm_last_error();
    EXPECT_EQ(total, 64 * kMiB);
    EXPECT_EQ(free, 64 * kMiB - live);
    void* rest = nullptr;
    EXPECT_EQ(vpmm_allocate(pool_, free + 1, nullptr, &rest), VPMM_ERROR_OUT_OF_MEMORY);
    EXPECT_EQ(vpmm_allocate(pool_, free, nullptr, &rest), VPMM_OK) << vpmm_last_error();
    EXPECT_EQ(vpmm_deallocate(pool_, rest, nullptr), VPMM_OK);
    EXPECT_EQ(vpmm_deallocate(pool_, ptr, nullptr), VPMM_OK);
  }
  EXPECT_EQ(vpmm_memory_info(pool_, nullptr, &total), VPMM_ERROR_INVALID_ARGUMENT);
  EXPECT_STREQ(vpmm_last_error(), "`free_bytes` is null");
  EXPECT_EQ(vpmm_memory_info(pool_, &free, nullptr), VPMM_ERROR_INVALID_ARGUMENT);
  EXPECT_STREQ(vpmm_last_error(), "`total_bytes` is null");
}

TEST_F(Figures, explain_guarded_memory_and_nothing_else) {
  char* text = nullptr;
  EXPECT_EQ(vpmm_explain(pool_, pool_, nullptr), VPMM_ERROR_INVALID_ARGUMENT);
  EXPECT_NE(vpmm_explain(pool_, pool_, &text), VPMM_OK) << "nothing is guarded";
  EXPECT_EQ(text, nullptr);
  vpmm_config config = default_config();
  config.guard = 1;
  vpmm_pool* guarded = nullptr;
  ASSERT_EQ(vpmm_pool_create(0, &config, &guarded), VPMM_OK) << vpmm_last_error();
  void* ptr = nullptr;
  ASSERT_EQ(vpmm_allocate(guarded, 4321, nullptr, &ptr), VPMM_OK) << vpmm_last_error();
  ASSERT_EQ(vpmm_explain(guarded, plus(ptr, 5), &text), VPMM_OK) << vpmm_last_error();
  EXPECT_NE(std::strstr(text, "4321"), nullptr) << text;
  vpmm_string_free(text);
  EXPECT_EQ(vpmm_deallocate(guarded, ptr, nullptr), VPMM_OK);
  EXPECT_EQ(vpmm_pool_destroy(guarded), VPMM_OK);
}

// --- for `vpmm top`

TEST(FiguresForOthers, are_those_of_all_pools) {
  const std::string folder = ipc_test::socket_folder_of_tests() + "/top-of-capi";
  ipc_test::Process process({"VPMM_IPC_DIR=" + folder, "VPMM_TOP=1"});
  process.allocate(3 * kMiB);
  ipc_test::expect_ok(process.call([](ipc_test::Parcel& asked) {
    vpmm_pool* own = nullptr;
    void* ptr = nullptr;
    asked.take(vpmm_pool_create(0, nullptr, &own));
    if (asked.status == VPMM_OK) asked.take(vpmm_allocate(own, 5 * kMiB, nullptr, &ptr));
  }));
  std::string socket;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) socket = entry.path();
  const auto soon = ipc::Clock::now() + std::chrono::seconds(60);
  auto channel = ipc::connect_to(socket, soon);
  ASSERT_TRUE(channel.ok()) << channel.error().message;
  ASSERT_TRUE(channel.value().wait_to_receive(soon));
  std::string text(std::size_t{1} << 20, '\0');
  const ssize_t got = recv(channel.value().get(), text.data(), text.size(), 0);
  ASSERT_GT(got, 0);
  text.resize(static_cast<std::size_t>(got));
  const auto answer = nlohmann::json::parse(text, nullptr, false);
  ASSERT_FALSE(answer.is_discarded()) << text;
  EXPECT_EQ(answer["library"], vpmm_version());
  ASSERT_EQ(answer["pools"].size(), 2U);
  EXPECT_EQ(answer["pools"][0]["live_bytes"], 3 * kMiB);
  EXPECT_EQ(answer["pools"][1]["live_bytes"], 5 * kMiB);
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace vpmm::capi_test
