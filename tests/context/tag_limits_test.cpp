// SPDX-License-Identifier: Apache-2.0
// tests/context: limits of tags, on every kind of memory.
#include <gtest/gtest.h>

#include <atomic>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "report/tags.hpp"
#include "settings/portion.hpp"
#include "settings/variable.hpp"
#include "support/hooked_world.hpp"
#include "support/pool_world_arenas.hpp"
#include "support/pool_world_words.hpp"

namespace vpmm::test {
namespace {

constexpr std::uint32_t kLimited = 51;
constexpr std::uint32_t kOther = 52;

class TagLimits : public ::testing::Test {
 protected:
  context::Limits& limits() { return world.pool().limits(); }
  Result<DevicePtr> request(Bytes bytes, std::uint32_t tag = kLimited) {
    return world.pool().allocate({bytes, 0, a, {}, tag});
  }
  DevicePtr served(Bytes bytes, std::uint32_t tag = kLimited) {
    const auto result = request(bytes, tag);
    EXPECT_TRUE(result.ok()) << message_of(result);
    EXPECT_EQ(world.pool().reports().validate(), "");
    return result ? result.value() : DevicePtr{};
  }
  Bytes live(std::uint32_t tag = kLimited) {
    return world.pool().suspension().info(tag).amounts.live;
  }

  PoolWorld world{adaptive_world()};
  StreamHandle a = world.stream();
};

TEST_F(TagLimits, a_request_beyond_it_fails_and_a_free_makes_room) {
  limits().set_tag_limit(kLimited, settings::Portion{10 * kMiB});
  for (const Bytes bytes : {Bytes{1000}, kMiB, 3 * kMiB}) {
    std::vector<DevicePtr> all;
    while (live() + bytes <= 10 * kMiB) all.push_back(served(bytes));
    EXPECT_EQ(live(), all.size() * bytes);
    expect_error(request(bytes), ErrorCode::out_of_memory, {"tag 51", "limit", "10 MiB"});
    const DevicePtr of_another = served(bytes, kOther);
    world.deallocate(all.back(), a);
    all.back() = served(bytes);
    for (const DevicePtr each : all) world.deallocate(each, a);
    world.deallocate(of_another, a);
    EXPECT_EQ(live(), 0u);
  }
  EXPECT_EQ(world.statistics().failed_allocations, 3u);
}

TEST_F(TagLimits, it_holds_in_arenas_and_while_memory_sleeps) {
  report::set_tag_name(kLimited, "cache");
  ASSERT_TRUE(world.pool().suspension().make_suspendable(kLimited, {false, false}).ok());
  limits().set_tag_limit(kLimited, settings::Portion{4 * kMiB});
  const DevicePtr first = served(3 * kMiB);
  expect_error(request(2 * kMiB), ErrorCode::out_of_memory, {"the tag \"cache\"", "3 MiB"});
  ASSERT_TRUE(world.pool().suspension().suspend(kLimited, {}).ok());
  EXPECT_EQ(live(), 3 * kMiB);
  ASSERT_TRUE(world.pool().suspension().resume(kLimited, {}).ok());
  const auto arena = world.pool().arenas().create({false, false, kLimited});
  ASSERT_TRUE(arena.ok()) << message_of(arena);
  pool::Request in_arena{kMiB, 0, a};
  in_arena.arena = arena.value();
  const auto second = world.pool().allocate(in_arena);
  ASSERT_TRUE(second.ok()) << message_of(second);
  EXPECT_EQ(live(), 4 * kMiB);
  expect_error(world.pool().allocate(in_arena), ErrorCode::out_of_memory, {"cache"});
  world.deallocate(first, a);
  world.deallocate(second.value(), a);
  report::set_tag_name(kLimited, "");
}

TEST_F(TagLimits, callbacks_may_free_and_neighbours_are_not_asked) {
  limits().set_tag_limit(kLimited, settings::Portion{2 * kMiB});
  const DevicePtr first = served(2 * kMiB);
  int calls = 0;
  limits().out_of_memory_callbacks().set([&](const auto&) {
    if (calls++ != 0) return false;
    world.deallocate(first, a);
    return true;
  });
  const DevicePtr second = served(kMiB);
  EXPECT_EQ(calls, 1);
  expect_error(request(2 * kMiB), ErrorCode::out_of_memory, {"tag 51"});
  EXPECT_EQ(calls, 2);
  limits().out_of_memory_callbacks().set({});
  world.deallocate(second, a);
}

TEST_F(TagLimits, the_error_names_limit_tag_and_holders_and_holds_after_a_callback_made_room) {
  constexpr std::uint32_t kLibrary = 53;
  report::set_tag_name(kLibrary, "a library");
  limits().set_tag_limit(kLimited, settings::Portion{10 * kMiB});
  const StreamHandle b = world.stream();
  pool::Request of_library{4 * kMiB, 0, b};
  of_library.tag = kLimited;
  of_library.library = kLibrary;
  const DevicePtr first = world.pool().allocate(of_library).value();
  const DevicePtr second = served(3 * kMiB);
  const DevicePtr other = served(20 * kMiB, kOther);
  const auto refused = [&] { return message_of(request(5 * kMiB)); };
  const std::string text = refused();
  EXPECT_EQ(text.substr(0, text.find('\n')),
            "out of device memory: asked for 5 MiB (5242880 bytes); tag 51 has 7 MiB of its limit "
            "of 10 MiB");
  EXPECT_NE(text.find("\n  by library a library: 4 MiB, no library known: 3 MiB\n"),
            std::string::npos)
      << text;
  for (const char* const held : {"by stream", ": 4 MiB, ", ": 3 MiB\n", "VPMM_RECORD="})
    EXPECT_NE(text.find(held), std::string::npos) << text;
  EXPECT_EQ(text.find("20 MiB"), std::string::npos) << text;
  limits().out_of_memory_callbacks().set([&](const context::OutOfMemory&) {
    world.deallocate(second, a);
    return false;
  });
  EXPECT_EQ(refused().find(text.substr(0, text.find('\n')) + "\n  by library a library: 4 MiB\n"),
            0u);
  limits().out_of_memory_callbacks().set({});
  world.deallocate(first, b);
  world.deallocate(other, a);
  report::set_tag_name(kLibrary, "");
}

TEST_F(TagLimits, an_error_of_the_gpu_has_its_report_also_if_the_limit_falls_meanwhile) {
  limits().set_capacity(16 * kMiB);
  limits().out_of_memory_callbacks().set([&](const context::OutOfMemory&) {
    limits().set_tag_limit(kLimited, settings::Portion{kMiB});
    return false;
  });
  expect_error(request(30 * kMiB), ErrorCode::out_of_memory,
               {"out of device memory: asked for 30 MiB", "the limit is 16 MiB", "what to try:"});
  limits().out_of_memory_callbacks().set({});
}

TEST_F(TagLimits, a_share_is_of_the_capacity_and_none_ends_it) {
  limits().set_capacity(64 * kMiB);
  limits().set_tag_limit(kLimited, settings::parse_portion("25%").value());
  const DevicePtr first = served(15 * kMiB);
  expect_error(request(2 * kMiB), ErrorCode::out_of_memory);
  limits().set_capacity(128 * kMiB);
  world.deallocate(served(2 * kMiB), a);
  limits().set_tag_limit(kLimited, settings::Portion{kMiB});
  expect_error(request(1), ErrorCode::out_of_memory,
               {"15 MiB of its limit of 1 MiB", "what to try:\n  - raise the limit of the tag"});
  EXPECT_EQ(world.pool().suspension().all_tags(), Vector<std::uint32_t>{kLimited});
  limits().set_tag_limit(kLimited, std::nullopt);
  world.deallocate(served(20 * kMiB), a);
  world.deallocate(first, a);
  EXPECT_TRUE(world.pool().suspension().all_tags().empty());
}

TEST_F(TagLimits, in_bytes_needs_no_answer_of_the_driver_and_a_share_holds_once_it_answers) {
  const auto share = settings::parse_portion("1%").value();
  world.faults().set_plan({{driver::Call::device_total_mem},
                           1,
                           driver::CuResult::unknown,
                           driver::FaultPlan::Repeat::from_then_on});
  limits().set_tag_limit(kLimited, settings::Portion{2 * kMiB});
  expect_error(request(3 * kMiB), ErrorCode::out_of_memory, {"its limit of 2 MiB"});
  EXPECT_EQ(world.faults().counted(), 0u);
  limits().set_tag_limit(kLimited, share);
  const DevicePtr large = served(2 * kGiB);
  limits().set_capacity(100 * kGiB);
  expect_error(request(kMiB), ErrorCode::out_of_memory, {"its limit of 1 GiB"});
  limits().set_capacity(std::nullopt);
  world.faults().clear_plan();
  expect_error(request(kMiB), ErrorCode::out_of_memory, {"its limit of 1.39 GiB"});
  world.deallocate(large, a);
  world.deallocate(served(share.of(WorldOptions{}.sim.capacity)), a);
  expect_error(request(share.of(WorldOptions{}.sim.capacity) + 1), ErrorCode::out_of_memory);
}

TEST_F(TagLimits, a_request_that_fails_otherwise_takes_nothing_of_it) {
  limits().set_capacity(16 * kMiB);
  limits().set_tag_limit(kLimited, settings::Portion{40 * kMiB});
  for (int i = 0; i < 5; ++i)
    expect_error(request(30 * kMiB), ErrorCode::out_of_memory, {"the limit is 16 MiB"});
  world.deallocate(served(14 * kMiB), a);
}

TEST_F(TagLimits, threads_together_stay_below_it) {
  constexpr Bytes kLimit = 8 * kMiB;
  limits().set_tag_limit(kLimited, settings::Portion{kLimit});
  std::atomic<Bytes> taken{0};
  std::atomic<int> refused{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i)
    threads.emplace_back([&, own = world.stream()] {
      for (int round = 0; round < 200; ++round) {
        const Bytes bytes = 3 * kMiB;
        const auto ptr = world.pool().allocate({bytes, 0, own, {}, kLimited});
        if (!ptr) {
          EXPECT_EQ(ptr.error().code, ErrorCode::out_of_memory);
          ++refused;
          continue;
        }
        EXPECT_LE(taken += bytes, kLimit);
        taken -= bytes;
        EXPECT_TRUE(world.pool().deallocate(ptr.value(), own).ok());
      }
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(live(), 0u);
  world.deallocate(served(kLimit), a);
}

TEST(TagLimitsByName, the_variable_sets_them_when_a_pool_is_made) {
  const settings::Variable variable("VPMM_LIMITS", "cache=3MiB,rest=50%");
  PoolWorld world(adaptive_world());
  const StreamHandle a = world.stream();
  const std::uint32_t cache = report::tag_with_name("cache");
  const auto ptr = world.pool().allocate({3 * kMiB, 0, a, {}, cache});
  ASSERT_TRUE(ptr.ok()) << message_of(ptr);
  expect_error(world.pool().allocate({1, 0, a, {}, cache}), ErrorCode::out_of_memory, {"cache"});
  world.deallocate(ptr.value(), a);
  EXPECT_EQ(world.pool().suspension().all_tags().size(), 2u);
}

TEST_F(TagLimits, memory_at_a_given_address_counts_too) {
  limits().set_tag_limit(kLimited, settings::Portion{3 * kMiB});
  const auto arena = world.pool().arenas().create({false, false, kLimited});
  ASSERT_TRUE(arena.ok()) << message_of(arena);
  pool::Request request{2 * kMiB, 0, a};
  request.arena = arena.value();
  const auto first = world.pool().allocate(request);
  ASSERT_TRUE(first.ok()) << message_of(first);
  world.deallocate(first.value(), a);
  ASSERT_EQ(world.sim().stream_synchronize(a), driver::CuResult::success);
  const AddressRange range{first.value(), 2 * kMiB};
  const auto again = world.pool().arenas().allocate_at(arena.value(), range, a);
  ASSERT_TRUE(again.ok()) << message_of(again);
  EXPECT_EQ(live(), 2 * kMiB);
  world.deallocate(again.value(), a);
  limits().set_tag_limit(kLimited, settings::Portion{kMiB});
  expect_error(world.pool().arenas().allocate_at(arena.value(), range, a), ErrorCode::out_of_memory,
               {"tag 51"});
}

TEST_F(TagLimits, a_limit_that_changes_during_a_call_counts_nothing_twice) {
  limits().set_tag_limit(kLimited, settings::Portion{8 * kMiB});
  bool has_changed = false;
  limits().out_of_memory_callbacks().set([&](const context::OutOfMemory&) {
    limits().set_tag_limit(kLimited, std::nullopt);
    limits().set_tag_limit(kLimited, settings::Portion{16 * kMiB});
    return !std::exchange(has_changed, true);
  });
  const DevicePtr first = served(12 * kMiB);
  limits().out_of_memory_callbacks().set({});
  expect_error(request(5 * kMiB), ErrorCode::out_of_memory, {"12 MiB of its limit of 16 MiB"});
  const DevicePtr second = served(4 * kMiB);
  world.deallocate(first, a);
  world.deallocate(second, a);
}

TEST(TagLimitsOfTwoCalls, a_request_that_waits_counts_as_what_it_asks_for) {
  for (const std::uint32_t tag : {1U, kLimited}) {
    WorldOptions options = adaptive_world();
    options.config.limits.capacity = 8 * kMiB;
    HookedWorld world(options);
    const StreamHandle a = world.stream();
    const StreamHandle busy = world.stream();
    world.pool->limits().set_tag_limit(tag, settings::Portion{9 * kMiB});
    const DevicePtr used = world.allocate(8 * kMiB, busy);
    world.use(used, 8 * kMiB, busy, kLongNs);
    world.deallocate(used, busy);
    bool has_waited = false;
    world.hooks.on_sleep = [&] {
      has_waited = true;
      world.on_another_thread([&] {
        expect_error(world.pool->allocate({4 * kMiB, 0, a, {}, tag}), ErrorCode::out_of_memory,
                     {"asked for 4 MiB", "has 6 MiB of its limit of 9 MiB"});
      });
    };
    const auto served = world.pool->allocate({6 * kMiB, 0, a, {}, tag});
    ASSERT_TRUE(served.ok()) << message_of(served);
    EXPECT_TRUE(has_waited);
    expect_error(world.pool->allocate({4 * kMiB, 0, a, {}, tag}), ErrorCode::out_of_memory,
                 {"has 6 MiB of its limit of 9 MiB"});
    world.deallocate(served.value(), a);
    const auto all = world.pool->allocate({8 * kMiB, 0, a, {}, tag});
    ASSERT_TRUE(all.ok()) << message_of(all);
    world.deallocate(all.value(), a);
  }
}

TEST(TagLimitsOfTwoCalls, a_request_that_ends_leaves_the_only_byte_of_another_counted) {
  WorldOptions options = adaptive_world();
  options.config.limits.capacity = 8 * kMiB;
  HookedWorld world(options);
  const StreamHandle a = world.stream();
  const StreamHandle busy = world.stream();
  world.pool->limits().set_tag_limit(kLimited, settings::Portion{2 * kMiB + 1});
  const DevicePtr used = world.allocate(8 * kMiB, busy);
  world.use(used, 8 * kMiB, busy, kLongNs);
  world.deallocate(used, busy);
  bool has_waited = false;
  world.hooks.on_sleep = [&] {
    has_waited = true;
    world.on_another_thread([&] {
      EXPECT_TRUE(world.pool->allocate({2 * kMiB, 0, a, {}, kLimited}).ok());
      expect_error(world.pool->allocate({1, 0, a, {}, kLimited}), ErrorCode::out_of_memory);
    });
  };
  EXPECT_TRUE(world.pool->allocate({1, 0, a, {}, kLimited}).ok());
  EXPECT_TRUE(has_waited);
}

TEST_F(TagLimits, a_resume_is_no_request_of_its_tag) {
  ASSERT_TRUE(world.pool().suspension().make_suspendable(kLimited, {false, false}).ok());
  limits().set_tag_limit(kLimited, settings::Portion{9 * kMiB});
  const DevicePtr ptr = served(8 * kMiB);
  context::SuspendHow how;
  how.to_driver = true;
  ASSERT_TRUE(world.pool().suspension().suspend(kLimited, how).ok());
  limits().set_capacity(kMiB * 2);
  const auto woken = world.pool().suspension().resume(kLimited, {});
  expect_error(woken, ErrorCode::out_of_memory, {"the limit is 2 MiB"});
  limits().set_capacity(std::nullopt);
  ASSERT_TRUE(world.pool().suspension().resume(kLimited, {}).ok());
  world.deallocate(ptr, a);
}

TEST_F(TagLimits, an_arena_of_a_tag_that_is_not_suspendable_is_counted_when_it_sleeps) {
  const auto arena = world.pool().arenas().create({false, false, kOther});
  ASSERT_TRUE(arena.ok()) << message_of(arena);
  pool::Request in_arena{kMiB, 0, a};
  in_arena.arena = arena.value();
  const auto ptr = world.pool().allocate(in_arena);
  ASSERT_TRUE(ptr.ok()) << message_of(ptr);
  ASSERT_TRUE(world.pool().suspension().suspend(arena.value(), {}).ok());
  const context::TagInfo info = world.pool().suspension().info(kOther);
  EXPECT_EQ(info.state, context::TagState::suspended);
  EXPECT_GE(info.amounts.suspended, kMiB);
  ASSERT_TRUE(world.pool().suspension().resume(arena.value(), {}).ok());
  world.deallocate(ptr.value(), a);
}

TEST_F(TagLimits, a_library_is_the_tag_of_requests_outside_entered_tags) {
  const std::uint32_t library = report::tag_with_name("a library");
  const auto allocate = [&](Bytes bytes) {
    pool::Request request{bytes, 0, a};
    request.library = library;
    const auto ptr = world.pool().allocate(request);
    EXPECT_TRUE(ptr.ok()) << message_of(ptr);
    return ptr ? ptr.value() : DevicePtr{};
  };
  std::vector<DevicePtr> all;
  for (int i = 0; i < 3; ++i) all.push_back(allocate(1000));  // a cache could serve it
  EXPECT_EQ(live(library), 3000u);
  ASSERT_TRUE(world.pool().suspension().enter(kOther, context::TagScope::process).ok());
  all.push_back(allocate(1000));
  ASSERT_TRUE(world.pool().suspension().leave(kOther, context::TagScope::process).ok());
  EXPECT_EQ(live(library), 3000u);
  EXPECT_EQ(live(kOther), 1000u);
  for (const DevicePtr each : all) world.deallocate(each, a);
  EXPECT_EQ(live(library) + live(kOther), 0u);
}

TEST(TagLimitsByName, a_library_is_tagged_if_a_variable_asks_for_it) {
  const auto is_tagged = [](const char* library) {
    const auto answer = settings::is_library_tagged(library);
    EXPECT_TRUE(answer.ok()) << message_of(answer);
    return answer && answer.value();
  };
  EXPECT_FALSE(is_tagged("cupy"));
  {
    const settings::Variable limits("VPMM_LIMITS", "cupy=3MiB");
    EXPECT_TRUE(is_tagged("cupy"));
    EXPECT_FALSE(is_tagged("rmm"));
  }
  const settings::Variable all("VPMM_TAG_LIBRARIES", "1");
  EXPECT_TRUE(is_tagged("rmm"));
  {
    const settings::Variable wrong("VPMM_TAG_LIBRARIES", "yes");
    driver::sim::SimDriver sim(adaptive_world().sim);
    ASSERT_EQ(sim.init(), driver::CuResult::success);
    expect_error(context::Context::create(sim, 0, adaptive_world().config),
                 ErrorCode::bad_configuration, {"VPMM_TAG_LIBRARIES=yes"});
  }
  const settings::Variable wrong("VPMM_LIMITS", "cupy");
  expect_error(settings::is_library_tagged("rmm"), ErrorCode::bad_configuration, {"VPMM_LIMITS"});
}

TEST(TagLimitsByName, what_is_no_limit_is_refused) {
  for (const char* text :
       {"cupy", "cupy=", "=3MiB", "cupy=8", "cupy=0%", "cupy=101%", "cupy=3M", "cupy=3MiB,", ",",
        "cupy=3MiB,,rmm=2MiB", "cupy=-1%", "cupy=1GiB,cupy=2GiB"}) {
    SCOPED_TRACE(text);
    const settings::Variable variable("VPMM_LIMITS", text);
    const auto limits = settings::tag_limits_from_environment();
    if (std::string(text) == "cupy=8") {
      EXPECT_TRUE(limits.ok()) << "eight bytes";
      continue;
    }
    expect_error(limits, ErrorCode::bad_configuration, {"VPMM_LIMITS", "cupy=8GiB"});
  }
}

TEST(TagLimitsByName, an_error_names_the_part_that_is_wrong) {
  const std::pair<const char*, const char*> cases[] = {
      {"rmm=1GiB,cupy:8GiB", "('cupy:8GiB' is not NAME=LIMIT)"},
      {"rmm=1GiB,cupy=8G", "did you mean 8GiB?)"},
      {"cupy=101%", "(101% is no share: 1% to 100% are)"},
      {"cupy=1GiB,cupy=2GiB", "(cupy has two limits)"},
      {"cupy=1GiB,", "('' is not NAME=LIMIT)"}};
  for (const auto& [text, words] : cases) {
    const settings::Variable variable("VPMM_LIMITS", text);
    expect_error(settings::tag_limits_from_environment(), ErrorCode::bad_configuration,
                 {"VPMM_LIMITS=", text, "cupy=8GiB", words});
  }
}

TEST(TagLimitsByName, blanks_around_names_and_limits_are_no_part_of_them) {
  const settings::Variable variable("VPMM_LIMITS", "cupy = 8GiB, kv cache=25% ");
  const auto limits = settings::tag_limits_from_environment();
  ASSERT_TRUE(limits.ok()) << message_of(limits);
  ASSERT_EQ(limits.value().size(), 2u);
  EXPECT_EQ(limits.value()[0].tag, "cupy");
  EXPECT_EQ(limits.value()[0].limit, (settings::Portion{8 * kGiB, 0}));
  EXPECT_EQ(limits.value()[1].tag, "kv cache");
  EXPECT_EQ(limits.value()[1].limit, (settings::Portion{0, 25}));
}

}  // namespace
}  // namespace vpmm::test
