// SPDX-License-Identifier: Apache-2.0
// capi: capacities as bytes and shares, each setting of a pool by its value, and arenas by their
// flags.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <functional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "capi/gpu_pool.hpp"

namespace vpmm::capi_test {
namespace {

using Capacities = SimPool;

constexpr std::uint64_t kSimulated = std::uint64_t{139} << 30;

TEST_F(Capacities, are_bytes_or_shares_of_the_gpu) {
  std::uint64_t free = 0;
  std::uint64_t total = 0;
  ASSERT_EQ(vpmm_memory_info(pool_, &free, &total), VPMM_OK);
  ASSERT_EQ(total, kSimulated);
  const auto share = [](std::uint64_t percent) {
    return kSimulated * percent / 100 / (2 * kMiB) * (2 * kMiB);
  };
  const std::pair<std::uint64_t, std::uint64_t> cases[] = {
      {1, 1},
      {16 * kMiB, 16 * kMiB},
      {VPMM_SHARE_OF_GPU(1), share(1)},
      {VPMM_SHARE_OF_GPU(2), share(2)},
      {VPMM_SHARE_OF_GPU(99), share(99)},
      {VPMM_SHARE_OF_GPU(100), share(100)},
      {UINT64_MAX - 1000, UINT64_MAX - 1000},
      {UINT64_MAX, UINT64_MAX},
  };
  std::uint64_t capacity = 0;
  for (const auto& [asked, told] : cases) {
    ASSERT_EQ(vpmm_set_capacity(pool_, asked), VPMM_OK) << vpmm_last_error();
    EXPECT_EQ(vpmm_get_capacity(pool_, &capacity), VPMM_OK);
    EXPECT_EQ(capacity, told) << asked;
  }
  ASSERT_EQ(vpmm_set_capacity(pool_, 16 * kMiB), VPMM_OK);
  for (const std::uint64_t wrong :
       {std::uint64_t{0}, UINT64_MAX - 101, UINT64_MAX - 500, UINT64_MAX - 999}) {
    EXPECT_EQ(vpmm_set_capacity(pool_, wrong), VPMM_ERROR_INVALID_ARGUMENT);
    EXPECT_EQ(vpmm_last_error(),
              fmt::format("capacity {}: must be a number of bytes, VPMM_SHARE_OF_GPU of 1 to 100, "
                          "or UINT64_MAX for no limit",
                          wrong));
  }
  EXPECT_EQ(vpmm_get_capacity(pool_, &capacity), VPMM_OK);
  EXPECT_EQ(capacity, 16 * kMiB) << "as before";
  EXPECT_EQ(vpmm_get_capacity(pool_, nullptr), VPMM_ERROR_INVALID_ARGUMENT);
  EXPECT_STREQ(vpmm_last_error(), "`bytes` is null");
}

TEST_F(Capacities, keep_as_much_as_asked_when_the_pool_is_trimmed) {
  ASSERT_EQ(vpmm_preallocate(pool_, 64 * kMiB), VPMM_OK) << vpmm_last_error();
  const std::uint64_t mapped = statistics_of(pool_).mapped_bytes;
  EXPECT_EQ(mapped, 64 * kMiB);
  std::size_t released = 77;
  ASSERT_EQ(vpmm_trim(pool_, mapped, &released), VPMM_OK) << vpmm_last_error();
  EXPECT_EQ(released, 0U);
  ASSERT_EQ(vpmm_trim(pool_, 0, &released), VPMM_OK);
  EXPECT_EQ(released, mapped);
  EXPECT_EQ(statistics_of(pool_).mapped_bytes, 0U);
}

// --- settings. A pool that is open says which one differs, and so what each was taken for.

struct SettingCase {
  std::function<void(vpmm_config&)> change;
  std::string difference;
};

std::vector<SettingCase> changed_settings() {
  return {
      {[](auto& c) { c.page_size = 4 * kMiB; },
       "VPMM_PAGE_SIZE is the device's granularity, not 4MiB"},
      {[](auto& c) { c.page_size = UINT64_MAX; },
       "VPMM_PAGE_SIZE is the device's granularity, not max"},
      {[](auto& c) { c.pages = 3; }, "VPMM_PAGES is 0, not 3"},
      {[](auto& c) { c.va_size = 2 * kMiB; }, "VPMM_VA_SIZE is 64GiB, not 2MiB"},
      {[](auto& c) { c.chunk_max = 0; }, "VPMM_CHUNK_MAX is 256MiB, not page"},
      {[](auto& c) { c.chunk_max = 8 * kMiB; }, "VPMM_CHUNK_MAX is 256MiB, not 8MiB"},
      {[](auto& c) { c.release_threshold = 0; }, "VPMM_RELEASE_THRESHOLD is none, not 0B"},
      {[](auto& c) { c.release_threshold = kMiB; }, "VPMM_RELEASE_THRESHOLD is none, not 1MiB"},
      {[](auto& c) { c.max_mappings = 16; }, "VPMM_MAX_MAPPINGS is 60000, not 16"},
      {[](auto& c) { c.capacity = kMiB; }, "VPMM_CAPACITY is none, not 1MiB"},
      {[](auto& c) { c.capacity = VPMM_SHARE_OF_GPU(1); }, "VPMM_CAPACITY is none, not 1%"},
      {[](auto& c) { c.capacity = VPMM_SHARE_OF_GPU(100); }, "VPMM_CAPACITY is none, not 100%"},
      {[](auto& c) { c.small = "stream_ordered"; }, "VPMM_SMALL is pool, not stream_ordered"},
      {[](auto& c) { c.any_stream = "legacy"; }, "VPMM_ANY_STREAM is context, not legacy"},
      {[](auto& c) { c.log = "error"; }, "VPMM_LOG is warning, not error"},
      {[](auto& c) { c.prefer = "latency"; }, "VPMM_PREFER is balanced, not latency"},
      {[](auto& c) { c.ipc_isolate = 1; }, "VPMM_IPC_ISOLATE is 0, not 1"},
      {[](auto& c) { c.guard = 1; }, "VPMM_GUARD is 0, not 1"},
      {[](auto& c) { c.guard = 100; }, "VPMM_GUARD is 0, not 1/100"},
      {[](auto& c) { c.fill = "new"; }, "VPMM_FILL is none, not new"},
      {[](auto& c) { c.fill = "new,freed"; }, "VPMM_FILL is none, not new,freed"},
      {[](auto& c) { c.unnamed_free_on_allocating_stream = 1; },
       "unnamed_free is any_stream, not allocating_stream"},
  };
}

// Started anew by the threadsafe style: the process-wide pool has settings of its own.
class EachSettingDeathTest : public testing::Test {
 protected:
  void SetUp() override { GTEST_FLAG_SET(death_test_style, "threadsafe"); }
};

[[noreturn]] void compare_settings() {
  vpmm_config config{};
  config.size = sizeof(config);
  vpmm_config_init(&config);
  config.driver = "sim";
  config.va_size = std::uint64_t{64} << 30;
  vpmm_pool* pool = nullptr;
  vpmm_pool* again = nullptr;
  int failed = vpmm_default_pool_open(0, &config, &pool) == VPMM_OK &&
                       vpmm_default_pool_open(0, &config, &again) == VPMM_OK && again == pool
                   ? 0
                   : 1;
  for (const auto& [change, difference] : changed_settings()) {
    vpmm_config other = config;
    change(other);
    again = nullptr;
    const vpmm_status status = vpmm_default_pool_open(0, &other, &again);
    const std::string said = vpmm_last_error();
    if (status == VPMM_ERROR_BAD_CONFIGURATION && again == nullptr && said.ends_with(difference))
      continue;
    ++failed;
    std::fprintf(stderr, "%s: status %d, %s\n", difference.c_str(), status, said.c_str());
  }
  _exit(failed == 0 ? 42 : 1);
}

TEST_F(EachSettingDeathTest, is_taken_from_the_struct) {
  EXPECT_EXIT(compare_settings(), testing::ExitedWithCode(42), "");
}

[[noreturn]] void open_with_a_misspelt_variable() {
  setenv("VPMM_CAPACTY", "1GiB", 1);
  vpmm_pool* pool = nullptr;
  _exit(vpmm_pool_create(0, nullptr, &pool) == VPMM_OK ? 42 : 1);
}

TEST_F(EachSettingDeathTest, that_is_misspelt_is_named_in_a_warning) {
  EXPECT_EXIT(open_with_a_misspelt_variable(), testing::ExitedWithCode(42),
              "vpmm: warning: .*VPMM_CAPACTY");
}

// With the level of the pool that opens, from its first message on.
[[noreturn]] void count_messages_of_a_misspelt_variable() {
  setenv("VPMM_CAPACTY", "1GiB", 1);
  int heard = 0;
  const auto hear = [](void* argument, int, const char*) { ++*static_cast<int*>(argument); };
  vpmm_set_log_callback(hear, &heard);
  vpmm_config config = default_config();
  config.log = "quiet";
  vpmm_pool* pool = nullptr;
  _exit(vpmm_pool_create(0, &config, &pool) == VPMM_OK && heard == 0 ? 42 : 1);
}

TEST_F(EachSettingDeathTest, that_is_misspelt_is_not_named_to_those_who_want_no_messages) {
  EXPECT_EXIT(count_messages_of_a_misspelt_variable(), testing::ExitedWithCode(42), "");
}

TEST(Devices, are_one_in_the_simulator_and_no_others_have_a_pool) {
  int count = 0;
  ASSERT_EQ(vpmm_device_count(&count), VPMM_OK) << vpmm_last_error();
  EXPECT_EQ(count, 1);
  vpmm_pool* pool = nullptr;
  for (const int device : {-1, 128}) {
    EXPECT_EQ(vpmm_default_pool(device, &pool), VPMM_ERROR_INVALID_ARGUMENT);
    EXPECT_EQ(vpmm_last_error(), fmt::format("there is no device {}", device));
  }
  EXPECT_EQ(vpmm_default_pool(127, &pool), VPMM_ERROR_INVALID_ARGUMENT);
  EXPECT_EQ(pool, nullptr);
}

// Of the environment into the struct.
TEST(EachSetting, is_told_in_the_struct) {
  const std::tuple<const char*, const char*, std::function<std::string(const vpmm_config&)>>
      cases[] = {
          {"VPMM_PAGE_SIZE", "4194304", [](auto& c) { return std::to_string(c.page_size); }},
          {"VPMM_PAGES", "5", [](auto& c) { return std::to_string(c.pages); }},
          {"VPMM_VA_SIZE", "68719476736", [](auto& c) { return std::to_string(c.va_size); }},
          {"VPMM_CHUNK_MAX", "8388608", [](auto& c) { return std::to_string(c.chunk_max); }},
          {"VPMM_RELEASE_THRESHOLD", "0",
           [](auto& c) { return std::to_string(c.release_threshold); }},
          {"VPMM_MAX_MAPPINGS", "16", [](auto& c) { return std::to_string(c.max_mappings); }},
          {"VPMM_CAPACITY", "1048576", [](auto& c) { return std::to_string(c.capacity); }},
          {"VPMM_CAPACITY", "100%",
           [](auto& c) { return std::to_string(UINT64_MAX - c.capacity) + "%"; }},
          {"VPMM_SMALL", "stream_ordered", [](auto& c) -> std::string { return c.small; }},
          {"VPMM_ANY_STREAM", "park", [](auto& c) -> std::string { return c.any_stream; }},
          {"VPMM_LOG", "quiet", [](auto& c) -> std::string { return c.log; }},
          {"VPMM_DRIVER", "cuda", [](auto& c) -> std::string { return c.driver; }},
          {"VPMM_PREFER", "footprint", [](auto& c) -> std::string { return c.prefer; }},
          {"VPMM_IPC_ISOLATE", "1", [](auto& c) { return std::to_string(c.ipc_isolate); }},
          {"VPMM_GUARD", "1/9", [](auto& c) { return "1/" + std::to_string(c.guard); }},
          {"VPMM_FILL", "freed", [](auto& c) -> std::string { return c.fill; }},
      };
  for (const auto& [variable, value, told] : cases) {
    const char* const before = std::getenv(variable);
    const std::string saved = before != nullptr ? before : "";
    setenv(variable, value, 1);
    vpmm_config config{};
    config.size = sizeof(config);
    EXPECT_EQ(vpmm_config_from_environment(&config), VPMM_OK) << vpmm_last_error();
    EXPECT_EQ(told(config), value) << variable;
    EXPECT_EQ(config.unnamed_free_on_allocating_stream, 0) << "has no variable";
    if (before != nullptr)
      setenv(variable, saved.c_str(), 1);
    else
      unsetenv(variable);
  }
}

TEST(EachSetting, has_a_null_text_for_its_default) {
  vpmm_config config = default_config();
  config.small = config.any_stream = config.log = config.prefer = config.fill = nullptr;
  vpmm_pool* pool = nullptr;
  ASSERT_EQ(vpmm_pool_create(0, &config, &pool), VPMM_OK) << vpmm_last_error();
  EXPECT_EQ(vpmm_pool_destroy(pool), VPMM_OK);
  config.guard = 0;
  config.fill = "all";
  EXPECT_EQ(vpmm_pool_create(0, &config, &pool), VPMM_ERROR_BAD_CONFIGURATION);
  EXPECT_TRUE(last_error_names("VPMM_FILL=all: must be")) << vpmm_last_error();
  config = default_config();
  for (const int wrong : {-1, 2}) {
    config.unnamed_free_on_allocating_stream = wrong;
    EXPECT_EQ(vpmm_pool_create(0, &config, &pool), VPMM_ERROR_BAD_CONFIGURATION);
    EXPECT_EQ(vpmm_last_error(),
              fmt::format("unnamed_free_on_allocating_stream={}: must be 0 or 1", wrong));
  }
}

// By their effect: the stream of the allocation may have the memory again while others still work.
using UnnamedFrees = GpuPool;

TEST_F(UnnamedFrees, are_on_the_stream_of_the_allocation_if_asked) {
  for (const int on_allocating_stream : {0, 1}) {
    vpmm_config config = default_config();
    config.unnamed_free_on_allocating_stream = on_allocating_stream;
    ASSERT_EQ(vpmm_pool_destroy(pool_), VPMM_OK);
    ASSERT_EQ(vpmm_pool_create(0, &config, &pool_), VPMM_OK) << vpmm_last_error();
    const vpmm_stream stream = new_stream();
    const vpmm_stream other = new_stream();
    keep_busy(other, 1000 * kMillisecond);
    void* const ptr = allocate_on(stream, 24 * kMiB);
    ASSERT_EQ(vpmm_deallocate_any_stream(pool_, ptr), VPMM_OK) << vpmm_last_error();
    void* const again = allocate_on(stream, 24 * kMiB);
    EXPECT_EQ(again == ptr, on_allocating_stream == 1);
    EXPECT_FALSE(is_idle(other));
    EXPECT_EQ(vpmm_deallocate(pool_, again, stream), VPMM_OK);
    gpu_->run_until_idle();
  }
}

// --- arenas

struct ArenaFlagCase {
  std::uint32_t flags;
  bool is_one_chunk;
  bool is_split;
};

using Arenas = GpuPool;

TEST_F(Arenas, take_and_divide_memory_as_their_flags_say) {
  const ArenaFlagCase cases[] = {{0, false, true},
                                 {VPMM_ARENA_ONE_CHUNK, true, true},
                                 {VPMM_ARENA_NO_SPLIT, false, false},
                                 {VPMM_ARENA_ONE_CHUNK | VPMM_ARENA_NO_SPLIT, true, false}};
  for (const auto& [flags, is_one_chunk, is_split] : cases) {
    SCOPED_TRACE(flags);
    vpmm_config config = default_config();
    config.chunk_max = 0;  // one chunk for each page, unless one is asked for
    ASSERT_EQ(vpmm_pool_destroy(pool_), VPMM_OK);
    ASSERT_EQ(vpmm_pool_create(0, &config, &pool_), VPMM_OK) << vpmm_last_error();
    vpmm_arena* arena = nullptr;
    ASSERT_EQ(vpmm_arena_create(pool_, flags, 0, &arena), VPMM_OK) << vpmm_last_error();
    void* large = nullptr;
    ASSERT_EQ(vpmm_arena_allocate(arena, 6 * kMiB, 0, nullptr, &large), VPMM_OK)
        << vpmm_last_error();
    EXPECT_EQ(statistics_of(pool_).chunks, is_one_chunk ? 1U : 3U);
    std::vector<void*> small(2);
    for (void*& ptr : small)
      ASSERT_EQ(vpmm_arena_allocate(arena, 100'000, 0, nullptr, &ptr), VPMM_OK);
    EXPECT_EQ(statistics_of(pool_).mapped_bytes, 6 * kMiB + (is_split ? 2 : 4) * kMiB);
    for (void* const ptr : small) EXPECT_EQ(vpmm_deallocate(pool_, ptr, nullptr), VPMM_OK);
    EXPECT_EQ(vpmm_deallocate(pool_, large, nullptr), VPMM_OK);
    EXPECT_EQ(vpmm_arena_release(arena), VPMM_OK);
  }
}

TEST_F(Arenas, of_unknown_flags_are_refused_by_name) {
  vpmm_arena* arena = nullptr;
  for (const std::uint32_t flags : {8U, 15U, 1U << 31}) {
    EXPECT_EQ(vpmm_arena_create(pool_, flags, 0, &arena), VPMM_ERROR_INVALID_ARGUMENT);
    EXPECT_EQ(vpmm_last_error(),
              fmt::format("`flags` is {}: this version of the library knows only bits 1, 2 and 4",
                          flags));
  }
  EXPECT_EQ(arena, nullptr);
}

// Requests in an arena are of its tag, and of its library from then on.
TEST_F(Arenas, count_for_their_tag_and_their_library) {
  vpmm_arena* arena = nullptr;
  ASSERT_EQ(vpmm_arena_create(pool_, 0, 31, &arena), VPMM_OK) << vpmm_last_error();
  const auto info_of = [&](std::uint32_t tag) {
    vpmm_tag_info info{};
    info.size = sizeof(info);
    EXPECT_EQ(vpmm_tag_get_info(pool_, tag, &info), VPMM_OK) << vpmm_last_error();
    return info;
  };
  void* before = nullptr;
  void* after = nullptr;
  ASSERT_EQ(vpmm_arena_allocate(arena, 1000, 0, nullptr, &before), VPMM_OK);
  EXPECT_EQ(info_of(31).live_bytes, 1000U);
  for (const std::uint32_t tag : {1U, 31U, 32U}) EXPECT_EQ(info_of(tag).library_bytes, 0U) << tag;
  ASSERT_EQ(vpmm_arena_set_library(arena, 32), VPMM_OK) << vpmm_last_error();
  ASSERT_EQ(vpmm_arena_allocate(arena, 500, 0, nullptr, &after), VPMM_OK);
  EXPECT_EQ(info_of(31).live_bytes, 1500U);
  EXPECT_EQ(info_of(32).library_bytes, 500U);
  EXPECT_EQ(info_of(32).live_bytes, 0U);
  ASSERT_EQ(vpmm_deallocate(pool_, after, nullptr), VPMM_OK);
  ASSERT_EQ(vpmm_arena_allocate_at(arena, after, 400, nullptr), VPMM_OK) << vpmm_last_error();
  EXPECT_EQ(info_of(32).library_bytes, 400U);
  for (void* const ptr : {before, after}) EXPECT_EQ(vpmm_deallocate(pool_, ptr, nullptr), VPMM_OK);
  EXPECT_EQ(vpmm_arena_set_library(nullptr, 32), VPMM_ERROR_INVALID_ARGUMENT);
  EXPECT_STREQ(vpmm_last_error(), "`arena` is null");
  EXPECT_EQ(vpmm_arena_release(arena), VPMM_OK);
}

}  // namespace
}  // namespace vpmm::capi_test
