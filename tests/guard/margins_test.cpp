// SPDX-License-Identifier: Apache-2.0
// guard tests: margins are filled by the right stream, and compared once.
#include "driver/context_scope.hpp"
#include "guard/guard_world.hpp"

namespace vpmm::guard {
namespace {

using test::Told;

// Margins of an allocation of `bytes` as if they were announced for `stream`.
std::vector<Announced> margins(DevicePtr ptr, Bytes before, Bytes bytes, Bytes after,
                               pool::Stream stream) {
  std::vector<Announced> made;
  if (before != 0) made.push_back({{ptr - before, before}, stream});
  if (after != 0) made.push_back({{ptr + bytes, after}, stream});
  return made;
}

class Margins : public GuardedTest {
 protected:
  using GuardedTest::GuardedTest;
  // Number of bytes of the margins that hold the filling.
  Bytes filled(const std::vector<Announced>& all) {
    Bytes count = 0;
    for (const Announced& each : all) {
      std::vector<unsigned char> found(each.range.size);
      EXPECT_EQ(sim.memcpy_device_to_host(found.data(), each.range.begin, each.range.size),
                CuResult::success);
      count += static_cast<Bytes>(std::count(found.begin(), found.end(), 0xA5));
    }
    return count;
  }
  std::uint64_t copies() const { return calls.count(Call::memcpy_device_to_host_async); }
};

TEST_F(Margins, are_filled_on_the_stream_of_the_allocation_or_before_any_may_use_it) {
  struct Case {
    Bytes bytes, alignment, before, after;
  };
  const StreamHandle a = stream();
  for (const Case& each :
       {Case{1000, 0, 256, 24}, Case{1024, 0, 256, 0}, Case{kPage, 0, 0, 0},
        Case{kPage - 256, 0, 256, 0}, Case{kPage - 100, 0, 0, 100}, Case{kPage + 1, 0, 256, 255},
        Case{1000, 64 * kKiB, 256, 4096}, Case{64 * kKiB - 50, 64 * kKiB, 256, 50}}) {
    for (const pool::Stream on : {pool::Stream(a), pool::Stream()}) {
      observed.announced.clear();
      const std::uint64_t fills = calls.count(Call::memset_d8_async);
      const std::uint64_t waits = calls.count(Call::stream_synchronize);
      const DevicePtr ptr = allocate(each.bytes, on, each.alignment);
      const auto expected = margins(ptr, each.before, each.bytes, each.after, on);
      EXPECT_EQ(observed.announced, expected) << each.bytes;
      EXPECT_EQ(calls.count(Call::memset_d8_async), fills + expected.size());
      EXPECT_EQ(calls.count(Call::stream_synchronize), waits + (on ? 0 : 1)) << each.bytes;
      if (on) wait();
      EXPECT_EQ(filled(expected), each.before + each.after) << each.bytes;
    }
  }
}

TEST_F(Margins, of_a_stream_come_after_its_work_and_others_before_it) {
  const StreamHandle a = stream();
  work(a);
  const std::uint64_t begin = sim.now_ns();
  allocate(1000, a);
  allocate(1000);
  EXPECT_LT(sim.now_ns(), begin + kSecondNs) << "nobody waited";
  EXPECT_EQ(sim.stream_query(a), CuResult::not_ready);
}

TEST_F(Margins, are_filled_without_an_observer) {
  observed.is_observed = false;
  for (const pool::Stream on : {pool::Stream(stream()), pool::Stream()}) {
    const DevicePtr ptr = allocate(1000, on);
    wait();
    EXPECT_EQ(filled(margins(ptr, 256, 1000, 24, on)), 280u);
  }
  EXPECT_TRUE(observed.announced.empty());
}

class MarginsApart : public Margins {
 protected:
  MarginsApart() : Margins(Options{kPage, 64 * kGiB, 1, true}) {}
};

TEST_F(MarginsApart, are_filled_before_any_stream_may_use_it) {
  const StreamHandle a = stream();
  work(a);
  const DevicePtr ptr = allocate(1000, a);
  EXPECT_EQ(observed.announced, margins(ptr, 256, 1000, 24, std::nullopt));
  EXPECT_EQ(calls.count(Call::stream_synchronize), 1u);
  EXPECT_EQ(sim.stream_query(a), CuResult::not_ready);
  EXPECT_EQ(around(ptr)->allocated.stream, of(a).stream) << "its own, all the same";
}

TEST_F(Margins, are_filled_and_compared_while_another_stream_captures) {
  const StreamHandle a = stream(), b = stream();
  ASSERT_EQ(sim.stream_begin_capture(b, driver::CaptureMode::global), CuResult::success);
  for (const pool::Stream on : {pool::Stream(a), pool::Stream()}) {
    const DevicePtr ptr = allocate(1000, on);
    {
      const driver::RelaxedCaptureScope relaxed(sim);
      EXPECT_EQ(sim.stream_synchronize(a), CuResult::success);
    }
    {
      const PoolLock lock(mutex);
      guarded.free(*guarded.live_around(ptr), time::Stamp(), caller(on));
    }
    settle();
    EXPECT_FALSE(is_mapped(ptr));
  }
  driver::GraphHandle graph{};
  ASSERT_EQ(sim.stream_end_capture(b, graph), CuResult::success);
  EXPECT_EQ(sim.graph_destroy(graph), CuResult::success);
}

// --- damage

struct Poke {
  bool is_beyond = false;
  Bytes distance = 0;  // of its first byte to the end or the begin
  Bytes bytes = 0;
};

std::string line_of(const Poke& poke, const Block& block) {
  return poke.is_beyond ? message_of(
                              "memory beyond an allocation was overwritten: {} bytes, the first {} "
                              "bytes beyond its end; {}\n",
                              poke.bytes, poke.distance, describe(block))
                        : message_of(
                              "memory before an allocation was overwritten: {} bytes, the first {} "
                              "bytes before its begin; {}\n",
                              poke.bytes, poke.distance, describe(block));
}

TEST_F(Margins, overwritten_bytes_are_told_with_their_place) {
  const StreamHandle a = stream();
  const std::vector<std::vector<Poke>> cases{{{true, 2, 2}},
                                             {{true, 0, 1}},
                                             {{true, 23, 1}},
                                             {{true, 0, 24}},
                                             {{false, 8, 8}},
                                             {{false, 1, 1}},
                                             {{false, 256, 1}},
                                             {{false, 256, 256}},
                                             {{false, 2, 2}, {true, 5, 2}},
                                             {{false, 9, 1}, {true, 0, 3}}};
  std::uint64_t damaged = 0;
  for (const auto& pokes : cases) {
    const Told told;
    const DevicePtr ptr = allocate(1000, a);
    for (const Poke& poke : pokes)
      this->poke(poke.is_beyond ? ptr + 1000 + poke.distance : ptr - poke.distance, poke.bytes, a);
    free(ptr, a);
    prove();
    EXPECT_FALSE(around(ptr)->is_damaged()) << "not known yet";
    settle();
    std::string expected;
    for (const Poke& poke : pokes) expected += line_of(poke, *around(ptr));
    EXPECT_EQ(told.lines(), expected);
    EXPECT_TRUE(around(ptr)->is_damaged());
    EXPECT_EQ(guarded.figures().damaged, ++damaged);
  }
}

TEST_F(Margins, memory_further_away_or_of_the_user_is_not_compared) {
  const StreamHandle a = stream();
  const Told told;
  const DevicePtr ptr = allocate(1000, a, 64 * kKiB);
  for (const AddressRange more : {AddressRange{ptr - 512, 256}, AddressRange{ptr, 1000},
                                  AddressRange{ptr + 1000 + 4096, 256}})
    sim.memory_observer()->on_allocate(more, a);
  poke(ptr - 257, 1, a);
  poke(ptr, 1000, a);
  poke(ptr + 1000 + 4096, 1, a);
  end(ptr, a);
  EXPECT_EQ(told.lines(), "");
  EXPECT_FALSE(around(ptr)->is_damaged());
  EXPECT_EQ(guarded.figures().damaged, 0u);
}

TEST_F(Margins, of_many_are_told_apart) {
  const StreamHandle a = stream();
  const Told told;
  const std::vector<DevicePtr> all{allocate(kPage, a), allocate(1000, a, 64 * kKiB),
                                   allocate(kPage - 100, a), allocate(500, a)};
  poke(all[2] + kPage - 100, 3, a);
  poke(all[3] - 4, 4, a);
  for (const DevicePtr each : all) free(each, a);
  prove();
  settle();
  EXPECT_EQ(told.lines(),
            line_of({true, 0, 3}, *around(all[2])) + line_of({false, 4, 4}, *around(all[3])));
  EXPECT_EQ(copies(), 5u) << "each margin that there is";
  EXPECT_EQ(guarded.figures().damaged, 2u);
}

TEST_F(Margins, of_those_that_are_left_at_the_end_are_compared) {
  const StreamHandle a = stream();
  const Told told;
  const DevicePtr live = allocate(1000, a), freed = allocate(500, a), gone = allocate(1000, a);
  const DevicePtr sound = allocate(700, a), whole = allocate(kPage, a);
  poke(live + 1001, 1, a);
  poke(freed - 3, 2, a);
  poke(gone + 1000, 1, a);
  end(gone, a);
  const std::string before = told.lines();
  EXPECT_NE(before, "");
  free(freed, a);
  prove();
  const std::string expected =
      line_of({true, 1, 1}, *around(live)) + line_of({false, 3, 2}, *around(freed));
  {
    const PoolLock lock(mutex);
    guarded.release_everything();
    is_over = true;
  }
  EXPECT_EQ(told.lines(), before + expected);
  EXPECT_FALSE(is_mapped(sound) || is_mapped(whole));
}

TEST_F(Margins, from_before_the_end_of_a_context_are_not_compared) {
  const StreamHandle a = stream();
  const Told told;
  const DevicePtr freed = allocate(1000, a), live = allocate(1000, a);
  for (const DevicePtr each : {freed, live}) poke(each + 1000, 1, a);
  {
    const PoolLock lock(mutex);
    guarded.forget_context();
  }
  end(freed, a);
  EXPECT_FALSE(is_mapped(freed) || around(freed)->is_damaged());
  const DevicePtr young = allocate(1000, a);
  poke(young + 1000, 1, a);
  end(young, a);
  EXPECT_TRUE(around(young)->is_damaged());
  const std::string expected = line_of({true, 0, 1}, *around(young));
  is_over = is_broken = true;  // a stream that it has forgotten is left
  const PoolLock lock(mutex);
  guarded.release_everything();
  EXPECT_EQ(told.lines(), expected);
  timelines.destroy_events();
}

// --- failures

TEST_F(Margins, that_could_not_be_filled_are_not_compared) {
  const StreamHandle a = stream();
  struct Case {
    pool::Stream on;
    Call call;
    std::uint64_t nth;
  };
  const Told told;
  for (const bool goes_at_the_end : {false, true})
    for (const Case& each : {Case{a, Call::memset_d8_async, 1}, Case{a, Call::memset_d8_async, 2},
                             Case{std::nullopt, Call::memset_d8_async, 1},
                             Case{std::nullopt, Call::stream_synchronize, 1}}) {
      fail(each.call, each.nth);
      const DevicePtr ptr = allocate(1000, each.on);
      EXPECT_EQ(faults.fired(), 1u);
      wait();
      EXPECT_EQ(guarded.live_around(ptr), around(ptr));
      if (observed.announced.back().range.begin != ptr + 1000)
        sim.memory_observer()->on_allocate({ptr + 1000, 24}, a);
      poke(ptr + 1000, 24, a);
      if (!goes_at_the_end) end(ptr, a);
    }
  EXPECT_EQ(copies(), 0u);
  wait();
  const PoolLock lock(mutex);
  guarded.release_everything();
  is_over = true;
  EXPECT_EQ(calls.count(Call::memcpy_device_to_host), 0u);
  EXPECT_EQ(told.lines(), "");
}

TEST_F(Margins, that_cannot_be_copied_do_not_keep_memory) {
  const StreamHandle a = stream();
  for (const std::uint64_t nth : {1U, 2U, 3U}) {
    const Told told;
    const DevicePtr first = allocate(1000, a), second = allocate(1000, a);
    for (const DevicePtr each : {first, second}) {
      poke(each + 1000, 1, a);
      free(each, a);
    }
    prove();
    const std::uint64_t before = copies();
    fail(Call::memcpy_device_to_host_async, nth);
    settle();
    EXPECT_EQ(copies() - before, nth) << "none after the one that failed";
    EXPECT_EQ(told.lines(), "") << "none is known for certain";
    EXPECT_FALSE(is_mapped(first) || is_mapped(second));
    EXPECT_FALSE(around(first)->is_damaged());
    EXPECT_EQ(guarded.figures().damaged, 0u);
  }
}

TEST_F(Margins, that_cannot_be_copied_at_the_end_are_not_told) {
  const StreamHandle a = stream();
  const Told told;
  const DevicePtr first = allocate(1000, a);
  poke(first + 1000, 1, a);
  poke(first - 1, 1, a);
  const DevicePtr second = allocate(1000, a);
  poke(second + 1000, 1, a);
  poke(second - 1, 1, a);
  const DevicePtr third = allocate(1000, a);
  poke(third + 1001, 1, a);
  wait();
  const std::string expected = line_of({true, 1, 1}, *around(third));
  std::uint64_t tried = 0;
  hooks.on[Call::memcpy_device_to_host] = [&] {
    ++tried;  // the first margin of the first, and the second of the second
    return tried == 1 || tried == 3 ? CuResult::invalid_value : CuResult::success;
  };
  const PoolLock lock(mutex);
  guarded.release_everything();
  is_over = true;
  EXPECT_EQ(tried, 5u);
  EXPECT_EQ(told.lines(), expected);
}

TEST_F(Margins, are_compared_later_if_their_copies_are_not_known_to_be_over) {
  const StreamHandle a = stream();
  const Told told;
  const DevicePtr ptr = allocate(1000, a);
  poke(ptr + 1000, 1, a);
  free(ptr, a);
  prove();
  fail(Call::stream_synchronize);
  settle();
  EXPECT_TRUE(is_mapped(ptr));
  EXPECT_TRUE(guarded.has_freed());
  EXPECT_EQ(told.lines(), "");
  settle();
  EXPECT_FALSE(is_mapped(ptr));
  EXPECT_EQ(told.lines(), line_of({true, 0, 1}, *around(ptr)));
}

TEST_F(Margins, are_not_compared_again_when_a_later_step_failed) {
  for (const Call call : {Call::mem_unmap, Call::mem_release}) {
    const StreamHandle a = stream();
    const Told told;
    const DevicePtr first = allocate(1000, a), second = allocate(500, a);
    poke(first + 1000, 2, a);
    for (const DevicePtr each : {first, second}) free(each, a);
    prove();
    const std::uint64_t before = copies();
    const std::uint64_t damaged = guarded.figures().damaged;
    fail(call);
    settle();
    EXPECT_EQ(faults.fired(), 1u);
    EXPECT_EQ(around(first)->stage, Block::Stage::freed);
    EXPECT_EQ(around(second)->stage, Block::Stage::gone);
    EXPECT_FALSE(around(first)->is_damaged());
    EXPECT_EQ(guarded.figures().damaged, damaged);
    const DevicePtr third = allocate(700, a);
    poke(third - 3, 1, a);
    free(third, a);
    prove();
    settle();
    EXPECT_EQ(copies() - before, 6u);
    EXPECT_TRUE(around(first)->is_damaged() && around(third)->is_damaged());
    EXPECT_EQ(guarded.figures().damaged, damaged + 2);
    EXPECT_EQ(told.lines(),
              line_of({true, 0, 2}, *around(first)) + line_of({false, 3, 1}, *around(third)));
  }
}

}  // namespace
}  // namespace vpmm::guard
