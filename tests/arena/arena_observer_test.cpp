// SPDX-License-Identifier: Apache-2.0
// arena: what observers of memory hear of blocks, and calls that meet others half-way.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <optional>
#include <ostream>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "support/hooked_driver.hpp"
#include "support/pool_world_arenas.hpp"

namespace vpmm::test {
namespace {

using driver::Call;
using driver::CuResult;

// A begin or an end of memory; without a stream: of any.
struct Heard {
  bool is_begin = false;
  AddressRange range;
  std::optional<StreamHandle> stream;
  friend bool operator==(const Heard&, const Heard&) = default;
  friend bool operator<(const Heard& a, const Heard& b) {
    return std::tie(a.range.begin, a.is_begin) < std::tie(b.range.begin, b.is_begin);
  }
};
void PrintTo(const Heard& heard, std::ostream* out) {
  *out << (heard.is_begin ? "begin " : "end ") << to_integer(heard.range.begin) << " of "
       << heard.range.size << (heard.stream ? " on a stream" : " of any stream");
}

// Notes what the pool says, and passes it on to the hazard checker.
class ListeningDriver final : public driver::ForwardingDriver, private driver::MemoryObserver {
 public:
  explicit ListeningDriver(Driver& inner)
      : ForwardingDriver(inner), checker_(*inner.memory_observer()) {}
  driver::MemoryObserver* memory_observer() override { return this; }
  std::vector<Heard> take_heard() { return std::exchange(heard_, {}); }

 private:
  void on_allocate(AddressRange range, StreamHandle stream) override {
    heard_.push_back({true, range, stream});
    checker_.on_allocate(range, stream);
  }
  void on_allocate_any_stream(AddressRange range) override {
    heard_.push_back({true, range, std::nullopt});
    checker_.on_allocate_any_stream(range);
  }
  void on_deallocate(AddressRange range, StreamHandle stream) override {
    heard_.push_back({false, range, stream});
    checker_.on_deallocate(range, stream);
  }
  void on_deallocate_any_stream(AddressRange range) override {
    heard_.push_back({false, range, std::nullopt});
    checker_.on_deallocate_any_stream(range);
  }

  driver::MemoryObserver& checker_;
  std::vector<Heard> heard_;
};

class ObservedArena : public ::testing::Test {
 protected:
  ObservedArena() {
    EXPECT_EQ(sim.init(), CuResult::success);
    EXPECT_EQ(sim.device_primary_ctx_retain(0, primary), CuResult::success);
    EXPECT_EQ(sim.ctx_set_current(primary), CuResult::success);
    auto created = context::Context::create(listening, 0, page_by_page_world().config);
    EXPECT_TRUE(created.ok()) << message_of(created);
    pool = std::move(created).value();
    for (StreamHandle* const stream : {&a, &b})
      EXPECT_EQ(sim.stream_create(StreamFlags::non_blocking, *stream), CuResult::success);
    arena = make();
  }
  void TearDown() override {
    hooks.on.clear();
    expect_valid();
    sim.run_until_idle();
    EXPECT_EQ(sim.hazard_count(), 0u)
        << (sim.hazards().empty() ? "" : sim.hazards().front().describe());
  }
  ArenaId make(const arena::ArenaOptions& options = {}) {
    return pool->arenas().create(options).value();
  }
  void expect_valid() { EXPECT_EQ(pool->reports().validate(), ""); }
  AddressRange take(Bytes bytes, pool::Stream stream, std::optional<ArenaId> in = {}) {
    const auto made = pool->allocate({bytes, 0, stream, in.value_or(arena)});
    EXPECT_TRUE(made.ok()) << message_of(made);
    return made ? AddressRange{made.value(), round_up(bytes, 512)} : AddressRange{};
  }
  void free(AddressRange block, pool::Stream stream) {
    EXPECT_TRUE(pool->deallocate(block.begin, stream).ok());
    expect_valid();
  }
  void expect_heard(std::vector<Heard> expected) {
    std::vector<Heard> heard = listening.take_heard();
    std::stable_sort(heard.begin(), heard.end());
    std::stable_sort(expected.begin(), expected.end());
    EXPECT_EQ(heard, expected);
  }
  // Once, on another thread, at the next call of the driver of this kind.
  void at_next(Call call, std::function<void()> act) {
    hooks.on[call] = [this, act = std::move(act), is_over = false]() mutable {
      if (std::exchange(is_over, true)) return CuResult::success;
      std::thread([&] {
        EXPECT_EQ(sim.ctx_set_current(primary), CuResult::success);
        act();
      }).join();
      return CuResult::success;
    };
  }
  void suspend() {
    const auto done = pool->suspension().suspend(arena, {std::nullopt, true, true, std::nullopt});
    EXPECT_TRUE(done.ok()) << message_of(done);
    expect_valid();
  }
  void resume() {
    const auto done = pool->suspension().resume(arena, {});
    EXPECT_TRUE(done.ok()) << message_of(done);
    expect_valid();
  }

  driver::sim::SimDriver sim;
  driver::ContextHandle primary{};
  HookedDriver hooks{sim};
  ListeningDriver listening{hooks};
  std::unique_ptr<context::Context> pool;
  StreamHandle a{};
  StreamHandle b{};
  ArenaId arena{};
};

TEST_F(ObservedArena, a_block_ends_on_the_only_stream_that_used_it_or_on_any) {
  struct Free {
    pool::Stream on;
    bool is_used_by_b;
    pool::Stream heard;
  };
  for (const auto& [on, is_used_by_b, heard] :
       {Free{a, false, a}, {b, false, {}}, {{}, false, {}}, {a, true, {}}}) {
    const AddressRange block = take(1000, a);
    if (is_used_by_b) {
      EXPECT_TRUE(pool->record_use(block.begin, b).ok());
    }
    free(block, on);
    expect_heard({{true, block, a}, {false, block, heard}});
  }
}

TEST_F(ObservedArena, a_block_that_graphs_may_use_ends_where_the_next_begins) {
  ASSERT_TRUE(pool->arenas().pin(arena).ok());
  const AddressRange block = take(1000, a);
  listening.take_heard();
  free(block, a);
  expect_heard({});
  EXPECT_EQ(take(1000, a), block);
  const std::vector<Heard> heard = listening.take_heard();
  EXPECT_EQ(heard, (std::vector<Heard>{{false, block, a}, {true, block, a}}));
  free(block, a);
}

TEST_F(ObservedArena, of_a_block_that_has_ended_nothing_is_heard_when_its_memory_goes_back) {
  free(take(1000, a), a);
  sim.run_until_idle();
  listening.take_heard();
  EXPECT_GT(pool->arenas().trim(arena).value(), 0u);
  expect_heard({});
}

TEST_F(ObservedArena, of_memory_of_its_caller_nothing_is_heard) {
  const ArenaId external = make(kExternal);
  DevicePtr memory{};
  ASSERT_EQ(sim.mem_alloc(kPage, memory), CuResult::success);
  ASSERT_TRUE(pool->arenas().add(external, {memory, kPage}).ok());
  free(take(1000, a, external), a);
  ASSERT_TRUE(pool->arenas().pin(external).ok());
  free(take(1000, a, external), a);
  ASSERT_TRUE(pool->arenas().release(external).ok());
  expect_heard({});
  ASSERT_EQ(sim.mem_free(memory), CuResult::success);
}

TEST_F(ObservedArena, blocks_end_with_their_memory_and_begin_again_when_it_is_back) {
  const AddressRange first = take(1000, a), second = take(3 * kPage, b), freed = take(2000, a);
  listening.take_heard();
  suspend();
  expect_heard({{false, first, {}}, {false, second, {}}, {false, freed, {}}});
  free(freed, a);
  expect_heard({});
  resume();
  expect_heard({{true, first, {}}, {true, second, {}}});
  free(first, a);
  free(second, b);
}

TEST_F(ObservedArena, a_block_that_is_freed_while_it_is_copied_ends_once) {
  for (const bool fails : {false, true}) {
    SCOPED_TRACE(fails ? "a suspend that fails" : "a suspend");
    const AddressRange stays = take(2 * kPage, a), freed = take(3 * kPage, a);
    listening.take_heard();
    at_next(Call::memcpy_device_to_host_async, [&] {
      expect_error(pool->allocate({1000, 0, a, arena}), ErrorCode::suspended,
                   {"is being suspended or resumed by another thread"});
      free(freed, a);
      expect_heard({});
    });
    if (fails) {
      hooks.on[Call::mem_unmap] = [] { return CuResult::invalid_value; };
      EXPECT_FALSE(
          pool->suspension().suspend(arena, {std::nullopt, true, true, std::nullopt}).ok());
      hooks.on.clear();
      std::vector<Heard> heard = listening.take_heard();
      EXPECT_EQ(std::count(heard.begin(), heard.end(), (Heard{false, freed, {}})), 1);
    } else {
      suspend();
      expect_heard({{false, stays, {}}, {false, freed, {}}});
    }
    resume();
    listening.take_heard();
    free(stays, a);
    expect_heard({{false, stays, a}});
  }
}

// Its stretch goes to the pool, which has mapped it meanwhile.
TEST_F(ObservedArena, a_request_in_an_arena_that_is_released_half_way_fails) {
  at_next(Call::mem_create, [&] { EXPECT_TRUE(pool->arenas().release(arena).ok()); });
  const auto made = pool->allocate({3 * kPage, 0, a, arena});
  expect_error(made, ErrorCode::invalid_argument, {"no arena"});
  const observe::Statistics now = pool->reports().statistics();
  EXPECT_EQ(now.mapped_bytes, 3 * kPage);
  EXPECT_EQ(now.free_bytes, now.mapped_bytes);
  EXPECT_EQ(now.live_bytes, 0u);
}

}  // namespace
}  // namespace vpmm::test
