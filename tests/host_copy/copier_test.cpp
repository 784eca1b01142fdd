// SPDX-License-Identifier: Apache-2.0
// host_copy tests: copies of many pieces by threads, and by one stream.
#include "host_copy/copier.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <memory>
#include <thread>

#include "host_copy/copy_world.hpp"

namespace vpmm::host_copy {
namespace {

constexpr Bytes kBuffer = 4 * kMiB;

Bytes most_threads() { return std::clamp<Bytes>(std::thread::hardware_concurrency(), 1, 16); }

using Contents = std::vector<unsigned char>;

// Bytes that differ from place to place, also by multiples of a buffer.
Contents contents(Bytes bytes, unsigned seed) {
  Contents made(bytes);
  for (Bytes i = 0; i < bytes; ++i)
    made[i] = static_cast<unsigned char>(i * 31 + (i >> 12) * 7 + (i >> 22) * 13 + seed);
  return made;
}

class CopierTest : public CopyWorld {
 protected:
  static constexpr Bytes kGap = 300;  // between pieces of a case
  ~CopierTest() override {
    faults.clear_plan();
    hooks.on.clear();
    copier.release();
  }
  CopyContext context() const { return {handle, id}; }

  // Pieces of these sizes, apart from each other on both sides.
  struct Case {
    Vector<CopyPiece> pieces;
    DevicePtr device{};
    Contents host;
  };
  Case make(const std::vector<Bytes>& sizes, unsigned seed = 0) {
    Bytes sum = kGap;
    for (const Bytes size : sizes) sum += size + kGap;
    Case made{{}, device_memory(sum), contents(sum, seed)};
    Bytes at = kGap;
    for (const Bytes size : sizes) {
      made.pieces.push_back(
          {made.device + at, reinterpret_cast<std::byte*>(made.host.data()) + at, size});
      at += size + kGap;
    }
    return made;
  }
  Contents on_device(const Case& of) {
    Contents found(of.host.size());
    EXPECT_EQ(sim.memcpy_device_to_host(found.data(), of.device, found.size()), CuResult::success);
    return found;
  }
  void set_device(const Case& of, const Contents& to) {
    EXPECT_EQ(sim.memcpy_host_to_device(of.device, to.data(), to.size()), CuResult::success);
  }
  // `to` with the bytes of the pieces from `from`.
  static Contents mixed(const Case& of, const Contents& from, Contents to) {
    for (const CopyPiece& piece : of.pieces) {
      const auto at = static_cast<std::ptrdiff_t>(piece.device - of.device);
      std::copy_n(from.begin() + at, piece.bytes, to.begin() + at);
    }
    return to;
  }
  void expect_copied(const std::vector<Bytes>& sizes, CopyTo to, bool is_pinned = false) {
    Case of = make(sizes, 1);
    const Contents host = of.host;
    const Contents device = contents(host.size(), 77);
    set_device(of, device);
    const auto done = is_pinned ? copier.copy_pinned(of.pieces, to, context())
                                : copier.copy(of.pieces, to, context());
    ASSERT_TRUE(done.ok()) << done.error().message;
    EXPECT_TRUE(of.host == (to == CopyTo::host ? mixed(of, device, host) : host));
    EXPECT_TRUE(on_device(of) == (to == CopyTo::host ? device : mixed(of, host, device)));
  }
  // All streams that were made are gone.
  void expect_no_streams() { EXPECT_EQ(sim.census().streams, 0u); }

  Copier copier{pins};
};

TEST_F(CopierTest, pieces_of_any_size_arrive_whole_and_nothing_else_changes) {
  const std::vector<std::vector<Bytes>> cases{{},
                                              {0},
                                              {1},
                                              {kBuffer - 1},
                                              {kBuffer},
                                              {kBuffer + 1},
                                              {1000, 2000, 3000},
                                              {kBuffer - 1, 2, 2 * kBuffer, 0, 5},
                                              {5 * kBuffer + 7, 100}};
  for (const auto& sizes : cases)
    for (const CopyTo to : {CopyTo::host, CopyTo::device}) {
      SCOPED_TRACE(sizes.empty() ? 0 : sizes[0]);
      expect_copied(sizes, to);
    }
}

TEST_F(CopierTest, takes_a_thread_for_each_load_with_two_streams_and_no_more) {
  struct Loads {
    std::vector<Bytes> sizes;
    std::uint64_t loads, copies;
  };
  const std::vector<Loads> cases{{{}, 0, 0},
                                 {{1000, 1000, 1000}, 1, 3},
                                 {{kBuffer}, 1, 1},
                                 {{kBuffer + 1}, 2, 2},
                                 {{3 * kMiB, 2 * kMiB}, 2, 3},
                                 {{3 * kMiB, kMiB, kMiB}, 2, 3},
                                 {{18 * kBuffer}, 18, 18}};
  for (const Loads& each : cases)
    for (const CopyTo to : {CopyTo::host, CopyTo::device}) {
      Case of = make(each.sizes);
      const Call call = to == CopyTo::host ? Call::memcpy_device_to_host_async
                                           : Call::memcpy_host_to_device_async;
      const std::uint64_t streams = count(Call::stream_create);
      const std::uint64_t gone = count(Call::stream_destroy);
      const std::uint64_t copies = count(call), waits = count(Call::stream_synchronize);
      ASSERT_TRUE(copier.copy(of.pieces, to, context()).ok());
      const Bytes threads = std::clamp<Bytes>(each.loads, 1, most_threads());
      EXPECT_EQ(count(Call::stream_create) - streams, 2 * threads) << each.loads;
      EXPECT_EQ(count(Call::stream_destroy) - gone, 2 * threads);
      EXPECT_EQ(count(call) - copies, each.copies) << each.loads;
      EXPECT_EQ(count(Call::stream_synchronize) - waits, each.loads);
    }
  EXPECT_EQ(count(Call::ctx_synchronize), 0u);
  expect_no_streams();
}

// Each stands in its first copy until all have begun one.
TEST_F(CopierTest, threads_have_two_buffers_each_in_the_ring) {
  ASSERT_TRUE(copier.prepare(context()).ok());
  Case of = make({(3 * most_threads() + 1) * kBuffer});
  std::mutex mutex;
  std::set<std::thread::id> come;
  hooks.on[Call::memcpy_device_to_host_async] = [&] {
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    for (bool have_all = false; !have_all && std::chrono::steady_clock::now() < end;
         std::this_thread::yield()) {
      const std::lock_guard lock(mutex);
      come.insert(std::this_thread::get_id());
      have_all = come.size() == most_threads();
    }
    return CuResult::success;
  };
  ASSERT_TRUE(copier.copy(of.pieces, CopyTo::host, context()).ok());
  std::map<std::thread::id, std::size_t> buffers;
  for (const auto& [to, by] : pins.filled) {
    const Bytes at = static_cast<Bytes>(static_cast<std::byte*>(to) - pins.asked[0].begin);
    EXPECT_EQ(at % kBuffer, 0u);
    EXPECT_LT(at, pins.asked[0].size);
    EXPECT_EQ(by.size(), 1u) << at;
    for (const std::thread::id each : by) ++buffers[each];
  }
  EXPECT_EQ(buffers.size(), most_threads());
  for (const auto& [thread, count] : buffers) EXPECT_LE(count, 2u);
}

TEST_F(CopierTest, pins_its_ring_once_until_it_gives_it_back) {
  ASSERT_TRUE(copier.prepare(context()).ok());
  ASSERT_EQ(pins.asked.size(), 1u);
  EXPECT_EQ(pins.asked[0].size, 2 * kBuffer * most_threads());
  ASSERT_TRUE(copier.prepare(context()).ok());
  for (int i = 0; i < 2; ++i) expect_copied({1000}, CopyTo::host);
  EXPECT_EQ(pins.asked.size(), 1u);
  EXPECT_EQ(sim.census().pinned, 1u);
  EXPECT_EQ(live_pieces(), 1u);
  for (int i = 0; i < 2; ++i) {
    copier.release();
    EXPECT_EQ(live_pieces(), 0u);
    EXPECT_EQ(sim.census().pinned, 0u);
    EXPECT_EQ(count(Call::mem_host_unregister), 1u);
  }
  expect_copied({1000}, CopyTo::device);
  EXPECT_EQ(pins.asked.size(), 2u);
  EXPECT_EQ(sim.census().pinned, 1u);
}

TEST_F(CopierTest, pins_its_ring_again_in_a_context_after_a_reset) {
  expect_copied({kBuffer + 1}, CopyTo::host);
  ASSERT_EQ(sim.device_primary_ctx_reset(0), CuResult::success);
  taken.clear();
  enter();
  expect_copied({kBuffer + 1}, CopyTo::host);
  EXPECT_EQ(pins.asked.size(), 2u);
  EXPECT_EQ(pins.asked[0], pins.asked[1]) << "the same memory";
}

TEST_F(CopierTest, a_ring_that_cannot_be_pinned_ends_the_copy_before_it_begins) {
  Case of = make({1000});
  fail({Call::mem_host_register});
  expect_failed(copier.copy(of.pieces, CopyTo::host, context()), Call::mem_host_register);
  EXPECT_EQ(count(Call::stream_create), 0u);
  fail({Call::mem_host_register});
  expect_failed(copier.prepare(context()), Call::mem_host_register);
  expect_copied({1000}, CopyTo::host);
}

TEST_F(CopierTest, copies_while_a_stream_captures) {
  StreamHandle captured{};
  ASSERT_EQ(sim.stream_create(driver::StreamFlags::non_blocking, captured), CuResult::success);
  Case of = make({kBuffer + 1, 1000});
  const Contents host = of.host;
  ASSERT_EQ(sim.stream_begin_capture(captured, driver::CaptureMode::global), CuResult::success);
  EXPECT_TRUE(copier.copy(of.pieces, CopyTo::device, context()).ok());
  EXPECT_TRUE(copier.copy_pinned(of.pieces, CopyTo::host, context()).ok());
  EXPECT_TRUE(copier.clear({{of.device, 10}}, context()).ok());
  copier.release();
  driver::GraphHandle graph{};
  EXPECT_EQ(sim.stream_end_capture(captured, graph), CuResult::success);
  EXPECT_EQ(sim.graph_destroy(graph), CuResult::success);
  EXPECT_TRUE(of.host == host);
  EXPECT_EQ(sim.stream_destroy(captured), CuResult::success);
}

// --- failures

TEST_F(CopierTest, a_call_that_fails_is_told_when_all_is_over) {
  struct Failure {
    CopyTo to;
    Call call;
    std::uint64_t nth, waits_for_all;
  };
  for (const Failure& each : {Failure{CopyTo::host, Call::stream_create, 1, 0},
                              Failure{CopyTo::host, Call::stream_create, 2, 0},
                              Failure{CopyTo::host, Call::memcpy_device_to_host_async, 1, 0},
                              Failure{CopyTo::host, Call::memcpy_device_to_host_async, 3, 0},
                              Failure{CopyTo::device, Call::memcpy_host_to_device_async, 1, 0},
                              Failure{CopyTo::device, Call::memcpy_host_to_device_async, 3, 0},
                              Failure{CopyTo::host, Call::stream_synchronize, 1, 1},
                              Failure{CopyTo::device, Call::stream_synchronize, 1, 1}})
    for (const bool is_large : {false, true}) {
      SCOPED_TRACE(std::string(driver::to_string(each.call)) + (is_large ? ", large" : ""));
      Case of = make(is_large ? std::vector<Bytes>{6 * kBuffer} : std::vector<Bytes>{10, 10, 10});
      const std::uint64_t made = count(Call::stream_create), gone = count(Call::stream_destroy);
      const std::uint64_t waits = count(Call::ctx_synchronize);
      fail({each.call}, each.nth);
      expect_failed(copier.copy(of.pieces, each.to, context()), each.call);
      EXPECT_EQ(faults.fired(), 1u);
      faults.clear_plan();
      EXPECT_EQ(count(Call::stream_destroy) - gone,
                count(Call::stream_create) - made - (each.call == Call::stream_create ? 1 : 0));
      EXPECT_EQ(count(Call::ctx_synchronize) - waits, each.waits_for_all);
      expect_no_streams();
      expect_copied({10, 10, 10}, each.to);
    }
}

TEST_F(CopierTest, a_thread_without_streams_ends) {
  Case of = make({10});
  faults.set_plan(
      {{Call::stream_create}, 1, CuResult::invalid_value, driver::FaultPlan::Repeat::from_then_on});
  expect_failed(copier.copy(of.pieces, CopyTo::host, context()), Call::stream_create);
  EXPECT_EQ(count(Call::stream_destroy), 0u);
}

TEST_F(CopierTest, a_load_that_failed_half_way_is_waited_for_and_its_error_told_first) {
  Case of = make({10, 10});
  std::atomic<std::uint64_t> copies = 0, waits = 0;
  hooks.on[Call::memcpy_device_to_host_async] = [&] {
    return ++copies == 2 ? CuResult::invalid_value : CuResult::success;
  };
  hooks.on[Call::stream_synchronize] = [&] {
    ++waits;
    return CuResult::not_supported;
  };
  expect_failed(copier.copy(of.pieces, CopyTo::host, context()), Call::memcpy_device_to_host_async);
  EXPECT_EQ(waits.load(), 1u) << "the first piece uses the buffer";
}

TEST_F(CopierTest, after_a_failed_wait_nothing_is_taken_from_the_buffer) {
  Case of = make({10});
  const Contents host = of.host;
  fail({Call::stream_synchronize});
  expect_failed(copier.copy(of.pieces, CopyTo::host, context()), Call::stream_synchronize);
  EXPECT_TRUE(of.host == host);
}

// The first thread fails; each other one stands in its first copy until that thread is done.
TEST_F(CopierTest, threads_begin_nothing_after_one_has_failed) {
  ASSERT_TRUE(copier.prepare(context()).ok());
  Case of = make({20 * kBuffer});
  std::atomic<std::uint64_t> copies{0};
  std::atomic<bool> has_ended{false};
  hooks.on[Call::memcpy_device_to_host_async] = [&] {
    if (copies++ == 0) return CuResult::invalid_value;
    while (!has_ended) std::this_thread::yield();
    return CuResult::success;
  };
  hooks.on[Call::stream_destroy] = [&] {
    has_ended = true;
    return CuResult::success;
  };
  expect_failed(copier.copy(of.pieces, CopyTo::host, context()), Call::memcpy_device_to_host_async);
  EXPECT_LE(copies, most_threads());
}

// --- by one stream

TEST_F(CopierTest, pinned_pieces_are_copied_by_one_stream_without_the_ring) {
  for (const CopyTo to : {CopyTo::host, CopyTo::device}) {
    const std::uint64_t streams = count(Call::stream_create);
    expect_copied({1000, 0, 3 * kBuffer + 5, 7}, to, true);
    EXPECT_EQ(count(Call::stream_create) - streams, 1u);
  }
  EXPECT_EQ(count(Call::memcpy_device_to_host_async) + count(Call::memcpy_host_to_device_async),
            8u);
  EXPECT_EQ(count(Call::ctx_synchronize), 0u);
  EXPECT_TRUE(pins.asked.empty());
  expect_no_streams();
}

TEST_F(CopierTest, clears_ranges_and_no_more) {
  Case of = make({1000, kBuffer + 5});
  set_device(of, of.host);
  const std::uint64_t streams = count(Call::stream_create);
  ASSERT_TRUE(copier
                  .clear({{of.pieces[0].device, of.pieces[0].bytes},
                          {of.pieces[1].device, of.pieces[1].bytes}},
                         context())
                  .ok());
  EXPECT_TRUE(on_device(of) == mixed(of, Contents(of.host.size()), of.host));
  EXPECT_EQ(count(Call::stream_create) - streams, 1u);
  expect_no_streams();
}

TEST_F(CopierTest, one_stream_is_waited_for_and_destroyed_whatever_fails) {
  Case of = make({10, 10});
  const auto pinned = [&](CopyTo to) { return copier.copy_pinned(of.pieces, to, context()); };
  const auto clear = [&] {
    return copier.clear({{of.device, 10}, {of.device + 20, 10}}, context());
  };
  struct Failure {
    std::function<Result<void>()> act;
    Call call;
    std::uint64_t nth;
  };
  for (const Failure& each :
       {Failure{[&] { return pinned(CopyTo::host); }, Call::memcpy_device_to_host_async, 2},
        Failure{[&] { return pinned(CopyTo::device); }, Call::memcpy_host_to_device_async, 2},
        Failure{clear, Call::memset_d8_async, 2}, Failure{clear, Call::stream_create, 1},
        Failure{clear, Call::stream_synchronize, 1},
        Failure{[&] { return pinned(CopyTo::host); }, Call::stream_synchronize, 1}}) {
    SCOPED_TRACE(driver::to_string(each.call));
    const std::uint64_t waits = count(Call::stream_synchronize);
    const std::uint64_t for_all = count(Call::ctx_synchronize);
    const std::uint64_t gone = count(Call::stream_destroy);
    fail({each.call}, each.nth);
    expect_failed(each.act(), each.call);
    const std::uint64_t expected = each.call == Call::stream_create ? 0 : 1;
    EXPECT_EQ(count(Call::stream_synchronize) - waits, expected);
    EXPECT_EQ(count(Call::stream_destroy) - gone, expected);
    EXPECT_EQ(count(Call::ctx_synchronize) - for_all,
              each.call == Call::stream_synchronize ? 1u : 0u);
    expect_no_streams();
  }
  faults.clear_plan();
  // Both fail: the first is told.
  hooks.on[Call::stream_synchronize] = [] { return CuResult::not_supported; };
  fail({Call::memset_d8_async});
  expect_failed(clear(), Call::memset_d8_async);
}

}  // namespace
}  // namespace vpmm::host_copy
