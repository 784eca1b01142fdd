// SPDX-License-Identifier: Apache-2.0
// capi: the C++ header's way to events, layouts, requests with flags, and several out-of-memory
// callbacks.
#include <gtest/gtest.h>

#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "vpmm/vpmm.hpp"

namespace vpmm::capi_test {
namespace {

constexpr std::size_t kMiB = std::size_t{1} << 20;

TEST(CppObserving, a_request_with_a_tag_is_in_events_and_in_the_layout) {
  const memory_pool pool;
  std::vector<vpmm_event> heard;
  const auto hear = [](void* argument, const vpmm_event* event) {
    static_cast<std::vector<vpmm_event>*>(argument)->push_back(*event);
  };
  const std::uint64_t id = pool.add_event_callback(1U << VPMM_EVENT_ALLOCATE, hear, &heard);
  vpmm_request request{};
  request.bytes = 10 * kMiB;
  request.flags = VPMM_ALLOCATE_ONE_CHUNK;
  request.tag = 9;
  void* const ptr = pool.allocate(request);
  ASSERT_EQ(heard.size(), 1U);
  EXPECT_EQ(heard[0].tag, 9U);
  const pool_layout layout = pool.layout();
  ASSERT_EQ(layout.chunks.size(), 1U);
  EXPECT_EQ(layout.chunks[0].begin, ptr);
  ASSERT_EQ(layout.blocks.size(), 1U);
  EXPECT_EQ(layout.blocks[0].tag, 9U);
  pool.remove_event_callback(id);
  EXPECT_THROW(pool.remove_event_callback(id), failure);
  request.flags = 1U << 31;
  EXPECT_THROW((void)pool.allocate(request), failure);
}

TEST(CppObserving, out_of_memory_callbacks_come_and_go) {
  const memory_pool pool;
  pool.set_capacity(8 * kMiB);
  int calls = 0;
  const auto count = [](void* argument, int, std::uint64_t) {
    return ++*static_cast<int*>(argument), 0;
  };
  const std::uint64_t id = pool.add_out_of_memory_callback(count, &calls);
  EXPECT_FALSE(pool.try_allocate(16 * kMiB, any_stream));
  EXPECT_EQ(calls, 1);
  pool.remove_out_of_memory_callback(id);
  EXPECT_FALSE(pool.try_allocate(16 * kMiB, any_stream));
  EXPECT_EQ(calls, 1);
  EXPECT_THROW(pool.remove_out_of_memory_callback(id), failure);
}

TEST(CppCallbacks, a_lambda_makes_room_until_its_guard_ends) {
  const memory_pool pool;
  pool.set_capacity(8 * kMiB);
  buffer cache(pool, 6 * kMiB, any_stream);
  std::vector<std::uint64_t> asked;
  std::optional<callback_guard> guard = on_out_of_memory(pool, [&](std::uint64_t bytes) {
    asked.push_back(bytes);
    return !cache.empty() && (cache.reset(), true);
  });
  callback_guard moved = std::move(*guard);
  guard.reset();  // the moved one has it
  const buffer room(pool, 5 * kMiB, any_stream);
  EXPECT_FALSE(pool.try_allocate(7 * kMiB, any_stream));
  EXPECT_EQ(asked, (std::vector<std::uint64_t>{5 * kMiB, 7 * kMiB}));
  { const callback_guard ended = std::move(moved); }
  EXPECT_FALSE(pool.try_allocate(7 * kMiB, any_stream));
  EXPECT_EQ(asked.size(), 2U);
}

TEST(CppCallbacks, a_callback_may_end_its_guard_and_an_exception_becomes_the_error) {
  const memory_pool pool;
  pool.set_capacity(8 * kMiB);
  std::vector<int> order;
  std::optional<callback_guard> once;
  const std::vector<int> own{2, 3};  // a copy in the lambda is destroyed with the lambda
  once = on_out_of_memory(pool, [&, own](std::uint64_t) {
    once.reset();
    order.insert(order.end(), own.begin(), own.end());
    return false;
  });
  EXPECT_FALSE(pool.try_allocate(16 * kMiB, any_stream));
  EXPECT_FALSE(pool.try_allocate(16 * kMiB, any_stream));
  EXPECT_EQ(order, own);
  const callback_guard throws = on_out_of_memory(
      pool, [](std::uint64_t) -> bool { throw std::runtime_error("no cache is left"); });
  const result<void*> refused = pool.try_allocate(16 * kMiB, any_stream);
  EXPECT_EQ(refused.status(), VPMM_ERROR_DRIVER_FAILED);
  EXPECT_EQ(refused.message(), "no cache is left");
}

TEST(CppCallbacks, an_exception_of_this_library_ends_the_request_with_its_own_status_and_text) {
  const memory_pool pool;
  const memory_pool host;
  pool.set_capacity(8 * kMiB);
  host.set_capacity(8 * kMiB);
  const callback_guard unheard = on_out_of_memory(pool, [&](std::uint64_t) {
    EXPECT_FALSE(host.try_allocate(16 * kMiB, any_stream));
    return false;  // the refusal was handled, so it is not this request's
  });
  const callback_guard first = on_out_of_memory(pool, [&](std::uint64_t) -> bool {
    (void)host.allocate(16 * kMiB, any_stream);
    return true;
  });
  unsigned later = 0;
  const callback_guard second = on_out_of_memory(pool, [&](std::uint64_t) { return ++later < 3; });
  const callback_guard of_host = on_out_of_memory(
      host, [](std::uint64_t) -> bool { throw failure(VPMM_ERROR_NOT_SHARED, "it sleeps"); });
  const result<void*> refused = pool.try_allocate(16 * kMiB, any_stream);
  EXPECT_EQ(refused.status(), VPMM_ERROR_NOT_SHARED);
  EXPECT_EQ(refused.message(), "it sleeps");
  EXPECT_EQ(later, 0U);
  EXPECT_NE(pool.allocate(4 * kMiB, any_stream), nullptr);
}

TEST(CppCallbacks, an_exception_of_an_event_is_dropped) {
  const memory_pool pool;
  const callback_guard throws = on_event(pool, 1U << VPMM_EVENT_ALLOCATE,
                                         [](const vpmm_event&) { throw std::runtime_error("!"); });
  EXPECT_NE(pool.allocate(4 * kMiB, any_stream), nullptr);
}

// The caller's share is what the rule asks for: the callback's guard is the only other owner.
TEST(CppCallbacks, a_caller_with_a_share_keeps_the_pool_when_the_callback_ends_the_last_guard) {
  std::optional<callback_guard> guard;
  const shared_pool share = [&] {
    const memory_pool pool;
    pool.set_capacity(8 * kMiB);
    guard = on_out_of_memory(pool, [&](std::uint64_t) { return guard.reset(), true; });
    return shared_pool(pool);
  }();
  EXPECT_EQ(share.try_allocate(16 * kMiB, any_stream).status(), VPMM_ERROR_OUT_OF_MEMORY);
  EXPECT_FALSE(guard.has_value());
  EXPECT_EQ(share.capacity(), 8 * kMiB);
}

void* allocate_suspendable(const memory_pool& pool, std::uint32_t tag) {
  pool.make_suspendable(tag);
  vpmm_request request{};
  request.bytes = kMiB;
  request.tag = tag;
  return pool.allocate(request);
}

TEST(CppCallbacks, lambdas_run_around_a_suspend_until_their_guard_ends) {
  const memory_pool pool;
  const std::uint32_t tag = tag_with_name("of hooks");
  void* const ptr = allocate_suspendable(pool, tag);
  std::vector<std::string> calls;
  std::optional<callback_guard> guard = on_suspend(
      pool, tag, [&, text = std::string("before")] { calls.push_back(text); },
      [&, text = std::string("after")] { calls.push_back(text); });
  {
    const callback_guard inner = on_suspend(pool, tag, {}, [&] { calls.push_back("inner"); });
    pool.suspend(tag);
    pool.resume(tag);
    EXPECT_EQ(calls, (std::vector<std::string>{"before", "inner", "after"}));
  }
  calls.clear();
  const callback_guard moved = std::move(*guard);
  guard.reset();
  pool.suspend(tag);
  pool.resume(tag);
  EXPECT_EQ(calls, (std::vector<std::string>{"before", "after"}));
  pool.deallocate(ptr, default_stream);
}

TEST(CppCallbacks, a_hook_refuses_a_suspend_by_an_exception_and_may_end_its_guard) {
  const memory_pool pool;
  const std::uint32_t tag = tag_with_name("of hooks");
  void* const ptr = allocate_suspendable(pool, tag);
  std::optional<callback_guard> guard = on_suspend(pool, tag, [&] {
    guard.reset();
    throw std::runtime_error("the network still has it");
  });
  const result<void> refused = pool.try_suspend(tag);
  EXPECT_EQ(refused.status(), VPMM_ERROR_DRIVER_FAILED);
  EXPECT_EQ(refused.message(), "the network still has it");
  EXPECT_FALSE(pool.is_suspended(ptr));
  EXPECT_TRUE(pool.try_suspend(tag).ok()) << "its guard ended";
  guard = on_suspend(pool, tag, {}, [&] { throw std::runtime_error("cannot register"); });
  EXPECT_EQ(pool.try_resume(tag).message(), "cannot register");
  EXPECT_FALSE(pool.is_suspended(ptr));
  pool.deallocate(ptr, default_stream);
}

TEST(CppCallbacks, an_exception_of_this_library_in_a_hook_keeps_its_status_and_text) {
  const memory_pool pool;
  const std::uint32_t tag = tag_with_name("of hooks");
  void* const ptr = allocate_suspendable(pool, tag);
  const auto fails = [] { throw failure(VPMM_ERROR_NOT_SHARED, "a peer has it"); };
  {
    const callback_guard guard = on_suspend(pool, tag, fails);
    EXPECT_EQ(pool.try_suspend(tag).status(), VPMM_ERROR_NOT_SHARED);
  }
  const callback_guard guard = on_suspend(pool, tag, {}, fails);
  pool.suspend(tag);
  const result<void> failed = pool.try_resume(tag);
  EXPECT_EQ(failed.status(), VPMM_ERROR_NOT_SHARED);
  EXPECT_EQ(failed.message(), "a peer has it");
  pool.deallocate(ptr, default_stream);
}

TEST(CppCallbacks, one_that_always_says_freed_does_not_hold_a_request_for_ever) {
  const memory_pool pool;
  pool.set_capacity(8 * kMiB);
  unsigned asked = 0;
  const callback_guard guard = on_out_of_memory(pool, [&](std::uint64_t) { return ++asked > 0; });
  EXPECT_EQ(pool.try_allocate(16 * kMiB, any_stream).status(), VPMM_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(asked, 10'000U);
}

TEST(CppCallbacks, events_reach_a_lambda_while_its_guard_lasts) {
  const memory_pool pool;
  std::vector<std::uint32_t> kinds;
  {
    const callback_guard guard =
        on_event(pool, (1U << VPMM_EVENT_ALLOCATE) | (1U << VPMM_EVENT_FREE),
                 [&](const vpmm_event& event) { kinds.push_back(event.kind); });
    const buffer one(pool, 100, any_stream);
  }
  const buffer other(pool, 100, any_stream);
  EXPECT_EQ(kinds, (std::vector<std::uint32_t>{VPMM_EVENT_ALLOCATE, VPMM_EVENT_FREE}));
  EXPECT_THROW((void)on_event(pool, 0, [](const vpmm_event&) {}), failure);
}

}  // namespace
}  // namespace vpmm::capi_test
