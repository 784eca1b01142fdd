// SPDX-License-Identifier: Apache-2.0
// capi: errors that callbacks of the program cause, and what the messages of errors take.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <malloc.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <new>
#include <stdexcept>
#include <string>
#include <thread>

#include "capi/sim_pool.hpp"

namespace vpmm::capi_test {
namespace {

// Bytes that the program has from malloc; 0 with a sanitizer's own.
std::size_t allocated_bytes() { return mallinfo2().uordblks; }

enum class Thrown { number, text, no_memory };

int throw_it(void* argument) {
  switch (*static_cast<Thrown*>(argument)) {
    case Thrown::number: throw 42;
    case Thrown::text: throw std::runtime_error("no luck");
    case Thrown::no_memory: throw std::bad_alloc();
  }
  return 0;
}

struct Expected {
  Thrown thrown;
  vpmm_status status;
  const char* said;
};
constexpr Expected kThrown[] = {
    {Thrown::number, VPMM_ERROR_DRIVER_FAILED, "an exception of unknown type was thrown"},
    {Thrown::text, VPMM_ERROR_DRIVER_FAILED, "no luck"},
    {Thrown::no_memory, VPMM_ERROR_HOST_OUT_OF_MEMORY, "the process itself is out of memory"},
};

using Callbacks = SimPool;

TEST_F(Callbacks, that_throw_when_memory_is_short_end_the_request) {
  ASSERT_EQ(vpmm_set_capacity(pool_, 16 * kMiB), VPMM_OK);
  Thrown thrown{};
  const auto ask = [](void* argument, int, std::uint64_t) { return throw_it(argument); };
  ASSERT_EQ(vpmm_set_out_of_memory_callback(pool_, ask, &thrown), VPMM_OK);
  for (const Expected& expected : kThrown) {
    thrown = expected.thrown;
    void* ptr = pool_;
    EXPECT_EQ(vpmm_allocate(pool_, 32 * kMiB, nullptr, &ptr), expected.status);
    EXPECT_STREQ(vpmm_last_error(), expected.said);
    EXPECT_EQ(ptr, pool_);
    EXPECT_EQ(vpmm_callback_fail(VPMM_ERROR_NOT_SHARED, "x"), VPMM_ERROR_INVALID_ARGUMENT)
        << "none runs any more";
  }
}

// A message while a pool opens, whose recording fails.
TEST(LogCallback, that_throws_disturbs_no_call) {
  setenv("VPMM_RECORD", "/no/such/folder/file", 1);
  Thrown thrown{};
  const auto hear = [](void* argument, int, const char*) { throw_it(argument); };
  ASSERT_EQ(vpmm_set_log_callback(hear, &thrown), VPMM_OK);
  for (const Expected& expected : kThrown) {
    thrown = expected.thrown;
    vpmm_pool* pool = nullptr;
    EXPECT_EQ(vpmm_pool_create(0, nullptr, &pool), VPMM_OK) << vpmm_last_error();
    EXPECT_EQ(vpmm_pool_destroy(pool), VPMM_OK) << vpmm_last_error();
  }
  ASSERT_EQ(vpmm_set_log_callback(nullptr, nullptr), VPMM_OK);
  unsetenv("VPMM_RECORD");
}

int free_inside(void* argument, int, std::uint64_t) {
  auto* const pool = *static_cast<vpmm_pool**>(argument);
  void* ptr = nullptr;
  EXPECT_EQ(vpmm_allocate(pool, 64 * kMiB, nullptr, &ptr), VPMM_ERROR_UNSUPPORTED);
  EXPECT_STREQ(vpmm_last_error(), "the inner one");
  EXPECT_EQ(vpmm_callback_fail(VPMM_ERROR_NOT_SHARED, "the outer one"), VPMM_OK);
  return 0;
}

// Each has its own error, also one that runs inside another.
TEST_F(Callbacks, inside_callbacks_end_their_own_call) {
  vpmm_pool* inner = nullptr;
  ASSERT_EQ(vpmm_pool_create(0, nullptr, &inner), VPMM_OK);
  for (vpmm_pool* const pool : {pool_, inner})
    ASSERT_EQ(vpmm_set_capacity(pool, 16 * kMiB), VPMM_OK);
  const auto fail = [](void*, int, std::uint64_t) -> int {
    return vpmm_callback_fail(VPMM_ERROR_UNSUPPORTED, "the inner one");
  };
  std::uint64_t id = 0;
  ASSERT_EQ(vpmm_set_out_of_memory_callback(inner, fail, nullptr), VPMM_OK);
  ASSERT_EQ(vpmm_add_out_of_memory_callback(pool_, free_inside, &inner, &id), VPMM_OK);
  void* ptr = nullptr;
  EXPECT_EQ(vpmm_allocate(pool_, 32 * kMiB, nullptr, &ptr), VPMM_ERROR_NOT_SHARED);
  EXPECT_STREQ(vpmm_last_error(), "the outer one");
  EXPECT_EQ(vpmm_pool_destroy(inner), VPMM_OK);
}

TEST_F(Callbacks, say_no_more_than_fits_into_a_message) {
  ASSERT_EQ(vpmm_set_capacity(pool_, 16 * kMiB), VPMM_OK);
  std::string text;
  const auto fail = [](void* argument, int, std::uint64_t) -> int {
    const char* const said = static_cast<std::string*>(argument)->c_str();
    EXPECT_EQ(vpmm_callback_fail(VPMM_ERROR_NOT_SHARED, said), VPMM_OK);
    return 0;
  };
  ASSERT_EQ(vpmm_set_out_of_memory_callback(pool_, fail, &text), VPMM_OK);
  constexpr std::size_t kLongest = 4095;
  for (const std::size_t length :
       {std::size_t{0}, kLongest - 1, kLongest, kLongest + 1, 3 * kLongest}) {
    text.clear();
    for (std::size_t i = 0; i < length; ++i) text += static_cast<char>('a' + i % 26);
    void* ptr = nullptr;
    EXPECT_EQ(vpmm_allocate(pool_, 32 * kMiB, nullptr, &ptr), VPMM_ERROR_NOT_SHARED);
    EXPECT_TRUE(vpmm_last_error() == text.substr(0, kLongest)) << length;
  }
}

TEST(Messages, of_errors_take_memory_once_for_a_thread) {
  vpmm_config_init(nullptr);
  const std::size_t before = allocated_bytes();
  for (int i = 0; i < 500; ++i) vpmm_config_init(nullptr);
  EXPECT_LT(allocated_bytes(), before + (std::size_t{256} << 10));
}

TEST(Messages, of_errors_end_with_their_thread) {
  const auto fail = [] { vpmm_config_init(nullptr); };
  std::thread(fail).join();
  const std::size_t before = allocated_bytes();
  for (int i = 0; i < 200; ++i) std::thread(fail).join();
  EXPECT_LT(allocated_bytes(), before + (std::size_t{256} << 10));
}

// Destroyed after all objects of its thread.
struct LateCaller {
  ~LateCaller() {
    const bool is_forgotten = *vpmm_last_error() == '\0';
    const bool is_refused = vpmm_config_init(nullptr) == VPMM_ERROR_INVALID_ARGUMENT;
    _exit(is_forgotten && is_refused && last_error_names("`config` is null") ? 46 : 1);
  }
};

class LateMessagesDeathTest : public testing::Test {
 protected:
  void SetUp() override { GTEST_FLAG_SET(death_test_style, "threadsafe"); }
};

TEST_F(LateMessagesDeathTest, are_for_static_objects_too_and_none_is_older_than_the_thread) {
  EXPECT_EXIT(
      {
        static const LateCaller late;
        static_cast<void>(late);
        vpmm_config_init(nullptr);
        std::exit(0);
      },
      testing::ExitedWithCode(46), "");
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
// A thread without a message so far, in a process that gets no memory any more. Returns 0, or the
// number of the first expectation that does not hold.
int fail_without_memory() {
  int failed = 9;
  std::thread([&] {
    const rlimit none{0, 0};
    if (setrlimit(RLIMIT_AS, &none) != 0 || setrlimit(RLIMIT_DATA, &none) != 0) return;
    void* volatile taken = nullptr;
    do taken = std::malloc(4096);
    while (taken != nullptr);
    if (vpmm_trim(nullptr, 0, nullptr) != VPMM_ERROR_INVALID_ARGUMENT)
      failed = 1;
    else if (std::strcmp(vpmm_last_error(), "no memory was left for the message") != 0)
      failed = 2;
    else
      failed = 0;
    _exit(failed);  // a thread's end needs memory
  }).join();
  return failed;
}

TEST(Messages, of_errors_say_so_where_there_is_no_memory_for_them) {
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) _exit(fail_without_memory());
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status)) << status;
  EXPECT_EQ(WEXITSTATUS(status), 0);
}
#endif

// --- memory of the process

using Leaks = SimPool;

TEST_F(Leaks, there_are_none_of_texts_that_are_freed) {
  const auto take_all = [&] {
    char* text = nullptr;
    ASSERT_EQ(vpmm_dump_text(pool_, &text), VPMM_OK);
    vpmm_string_free(text);
    ASSERT_EQ(vpmm_dump_json(pool_, &text), VPMM_OK);
    vpmm_string_free(text);
  };
  for (int i = 0; i < 10; ++i) take_all();
  const std::size_t before = allocated_bytes();
  for (int i = 0; i < 500; ++i) take_all();
  EXPECT_LT(allocated_bytes(), before + (std::size_t{256} << 10));
}

TEST_F(Leaks, there_are_none_of_layouts_bound_streams_and_arenas_that_are_ended) {
  for (int i = 0; i < 50; ++i) allocate(1000);
  const auto take_all = [&] {
    vpmm_layout layout{};
    layout.size = sizeof(layout);
    ASSERT_EQ(vpmm_layout_take(pool_, &layout), VPMM_OK);
    vpmm_layout_release(&layout);
    vpmm_bound_stream* bound = nullptr;
    ASSERT_EQ(vpmm_stream_bind(pool_, nullptr, &bound), VPMM_OK);
    vpmm_stream_unbind(bound);
    vpmm_arena* arena = nullptr;
    ASSERT_EQ(vpmm_arena_create(pool_, 0, 0, &arena), VPMM_OK);
    ASSERT_EQ(vpmm_arena_release(arena), VPMM_OK);
  };
  for (int i = 0; i < 10; ++i) take_all();
  const std::size_t before = allocated_bytes();
  for (int i = 0; i < 3000; ++i) take_all();
  EXPECT_LT(allocated_bytes(), before + (std::size_t{32} << 10));
  vpmm_stream_unbind(nullptr);
}

}  // namespace
}  // namespace vpmm::capi_test
