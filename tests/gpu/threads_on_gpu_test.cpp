// SPDX-License-Identifier: Apache-2.0
// tests/gpu: threads that share a pool and an arena, and in a third of the rounds their streams,
// find their data where they left it, while an observer trims, limits, looks and records. Threads
// also suspend arenas of their own and capture graphs.
//
// VPMM_STRESS_SECONDS: how long it goes on. VPMM_SEED: the first round. VPMM_SOAK_OPERATIONS: four
// times the steps of a thread in a round, where that is fewer than usual.
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <deque>
#include <iterator>
#include <mutex>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "context/context.hpp"
#include "support/gpu_test.hpp"
#include "support/live_ranges.hpp"
#include "support/pool_observer.hpp"
#include "support/stress_seconds.hpp"
#include "support/watchdog.hpp"

namespace vpmm::test {
namespace {

constexpr std::size_t kMostThreads = 8;
constexpr std::uint64_t kWordsPerProof = 3;
constexpr std::size_t kMostAsleep = 3;  // allocations of a thread in memory that it suspends

struct Loan {
  DevicePtr ptr;
  Bytes bytes;
  StreamHandle home;  // all its work is queued there
  std::uint32_t pattern;
  bool has_tenant;  // it was allocated for `home`
};

// What the threads of a round share.
struct Shared {
  driver::Driver& driver;
  GpuWorld& world;
  context::Context& pool;
  Bytes most_bytes;
  pool::ArenaId arena;
  LiveRanges live{};
  std::atomic<bool> goes_on{true};
  std::mutex mutex{};
  std::deque<Loan> left{};  // for whichever thread takes it

  void give(const Loan& loan) {
    const std::lock_guard lock(mutex);
    left.push_back(loan);
  }
  std::optional<Loan> take() {
    const std::lock_guard lock(mutex);
    if (left.empty()) return std::nullopt;
    const Loan loan = left.front();
    left.pop_front();
    return loan;
  }
  void expect(bool holds, const std::string& what) {
    if (holds) return;
    goes_on = false;
    ADD_FAILURE() << what;
  }
};

// One thread. It fills what it allocates. Before anything is freed, its first, middle and last word
// are copied to `proofs`, behind everything that was queued for it; they are compared when the
// round is over.
class Worker {
 public:
  Worker(Shared& shared, std::vector<StreamHandle> streams, AddressRange proofs, std::uint64_t seed)
      : shared_(shared), streams_(std::move(streams)), proofs_(proofs), random_(seed) {}

  void run(int steps) {
    const auto bed = shared_.pool.arenas().create({});
    if (!expect(bed)) return;
    bed_ = bed.value();
    for (int i = 0; i < steps && shared_.goes_on; ++i) step();
    while (is_asleep_ && shared_.goes_on) {  // the observer limits the pool, for a time
      wake();
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    if (!is_asleep_) std::move(sleepers_.begin(), sleepers_.end(), std::back_inserter(mine_));
    while (!mine_.empty()) free(draw(), 0);
    expect(shared_.pool.arenas().release(bed_));
  }
  const std::vector<std::uint32_t>& expected() const { return expected_; }

 private:
  static constexpr std::size_t kMostLive = 24;

  std::uint64_t below(std::uint64_t limit) { return random_() % limit; }
  StreamHandle stream() { return streams_[below(streams_.size())]; }

  void step() {
    const std::uint64_t what = below(100);
    if (mine_.size() >= kMostLive) {
      for (std::uint64_t least = below(kMostLive); mine_.size() > least;) free(draw(), 0);
    } else if (what < 50) {
      allocate();
    } else if (what < 75) {
      if (!mine_.empty()) free(draw(), below(3));
    } else if (what < 83) {
      if (!mine_.empty()) shared_.give(draw());
    } else if (what < 86) {
      is_asleep_ ? wake() : fall_asleep();
    } else if (what < 88) {
      capture();
    } else if (const auto loan = shared_.take()) {
      free(*loan, below(loan->has_tenant ? 5 : 4));
    }
  }

  // Half of them runs of units that are likely to cross a page, else from a word to the most.
  Bytes size() {
    if (below(2) == 0) return kMiB + below(900 * kKiB) / 4 * 4;
    const Bytes size = std::min(Bytes{4} << below(25), shared_.most_bytes / 2);
    return (size + below(size)) / 4 * 4;
  }

  void allocate() {
    const auto arena = below(4) == 0 ? shared_.arena : pool::ArenaId{};
    if (const auto loan = made(size(), arena))
      mine_.push_back(*loan);
    else if (!mine_.empty())
      free(draw(), 0);
  }

  // Allocated and filled. nullopt: there is no memory, as the observer limits the pool.
  std::optional<Loan> made(Bytes bytes, pool::ArenaId arena) {
    Watchdog::doing("allocate");
    const StreamHandle home = stream();
    const bool is_named = below(6) != 0;
    const auto made =
        shared_.pool.allocate({bytes, 0, is_named ? pool::Stream(home) : std::nullopt, arena});
    if (!made) {
      shared_.expect(made.error().code == ErrorCode::out_of_memory, made.error().message);
      return std::nullopt;
    }
    const std::string overlap = shared_.live.add({made.value(), bytes});
    shared_.expect(overlap.empty(), overlap);
    const Loan loan{made.value(), bytes, home, static_cast<std::uint32_t>(random_()), is_named};
    Watchdog::doing("fill");
    EXPECT_OK(shared_.world.launch_fill(home, {loan.ptr, loan.bytes}, loan.pattern));
    return loan;
  }

  // --- memory that sleeps ---

  void fall_asleep() {
    while (sleepers_.size() < kMostAsleep) {
      const auto loan = made(std::min(size(), shared_.most_bytes / 8), bed_);
      if (!loan) break;
      sleepers_.push_back(*loan);
    }
    Watchdog::doing("suspend");
    is_asleep_ = is_done(shared_.pool.suspension().suspend(bed_, {true, false, false, {}}));
  }
  // Then one of them is freed.
  void wake() {
    Watchdog::doing("resume");
    if (!is_done(shared_.pool.suspension().resume(bed_, {}))) return;
    is_asleep_ = false;
    for (const Loan& loan : sleepers_) prove(loan);
    if (sleepers_.empty()) return;
    free(sleepers_.back(), 0);
    sleepers_.pop_back();
  }
  // False: memory is short, or another thread captures.
  bool is_done(const Result<void>& result) {
    if (result) return true;
    const ErrorCode code = result.error().code;
    shared_.expect(code == ErrorCode::out_of_memory || code == ErrorCode::capture_active,
                   result.error().message);
    return false;
  }

  // --- captures ---

  // A graph with memory of its own, launched twice, on a stream that no other thread uses.
  void capture() {
    if ((expected_.size() + 1) * sizeof(std::uint32_t) > proofs_.size) return;
    Watchdog::doing("capture");
    StreamHandle on{};
    EXPECT_OK(shared_.driver.stream_create(StreamFlags::non_blocking, on));
    const auto pattern = static_cast<std::uint32_t>(random_());
    const Bytes bytes = std::min(size(), shared_.most_bytes / 8);
    driver::GraphHandle graph{};
    expect(shared_.pool.streams().capture_begin());  // the pool does not know the stream
    EXPECT_OK(shared_.driver.stream_begin_capture(on, driver::CaptureMode::thread_local_mode));
    const auto inside = shared_.pool.allocate({bytes, 0, on});
    if (inside) {
      EXPECT_OK(shared_.world.launch_fill(on, {inside.value(), bytes}, pattern));
      const DevicePtr proof = proofs_.begin + expected_.size() * sizeof(std::uint32_t);
      EXPECT_OK(shared_.driver.memcpy_device_to_device_async(proof, inside.value(),
                                                             sizeof(std::uint32_t), on));
      expected_.push_back(pattern);
      expect(shared_.pool.deallocate(inside.value(), on));
    } else {
      shared_.expect(inside.error().code == ErrorCode::out_of_memory, inside.error().message);
    }
    EXPECT_OK(shared_.driver.stream_end_capture(on, graph));
    expect(shared_.pool.streams().capture_end());
    driver::GraphExecHandle exec{};
    EXPECT_OK(shared_.driver.graph_instantiate(graph, exec));
    EXPECT_OK(shared_.driver.graph_destroy(graph));
    for (int launch = 0; launch < 2; ++launch) EXPECT_OK(shared_.driver.graph_launch(exec, on));
    EXPECT_OK(shared_.driver.graph_exec_destroy(exec));
    EXPECT_OK(shared_.driver.stream_destroy(on));
  }

  Loan draw() {
    std::swap(mine_[below(mine_.size())], mine_.back());
    const Loan loan = mine_.back();
    mine_.pop_back();
    return loan;
  }

  void prove(const Loan& loan) {
    if ((expected_.size() + kWordsPerProof) * sizeof(std::uint32_t) > proofs_.size) return;
    const Bytes last = loan.bytes - sizeof(std::uint32_t);
    for (const Bytes offset : {Bytes{0}, last / 8 * 4, last}) {
      const DevicePtr proof = proofs_.begin + expected_.size() * sizeof(std::uint32_t);
      EXPECT_OK(shared_.driver.memcpy_device_to_device_async(proof, loan.ptr + offset,
                                                             sizeof(std::uint32_t), loan.home));
      expected_.push_back(loan.pattern);
    }
  }

  void free(const Loan& loan, std::uint64_t way) {
    Watchdog::doing("prove");
    prove(loan);
    Watchdog::doing("deallocate");
    shared_.live.remove(loan.ptr);
    const StreamHandle other = stream();
    switch (way) {
      case 0: return static_cast<void>(expect(shared_.pool.deallocate(loan.ptr, loan.home)));
      case 1: return static_cast<void>(expect(shared_.pool.deallocate(loan.ptr, std::nullopt)));
      case 2: return shared_.pool.deallocate_deferred(loan.ptr);
      case 3: order(loan.home, other); break;
      default: break;  // the pool waits for the stream of the allocation by itself
    }
    expect(shared_.pool.deallocate(loan.ptr, other));
  }
  template <typename T>
  bool expect(const Result<T>& result) {
    shared_.expect(result.ok(), result ? "" : result.error().message);
    return result.ok();
  }

  void order(StreamHandle first, StreamHandle second) {
    EventHandle event{};
    EXPECT_OK(shared_.driver.event_create(event));
    EXPECT_OK(shared_.driver.event_record(event, first));
    EXPECT_OK(shared_.driver.stream_wait_event(second, event));
    EXPECT_OK(shared_.driver.event_destroy(event));
  }

  Shared& shared_;
  const std::vector<StreamHandle> streams_;
  const AddressRange proofs_;
  std::mt19937_64 random_;
  std::vector<Loan> mine_;
  pool::ArenaId bed_{};
  std::vector<Loan> sleepers_;  // in bed_
  bool is_asleep_ = false;
  std::vector<std::uint32_t> expected_;
};

class ThreadsOnGpu : public GpuTest {
 protected:
  void SetUp() override {
    GpuTest::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    for (std::size_t i = 0; i < kMostThreads; ++i) {
      proofs_.push_back(memory(granularity()));
      for (const StreamFlags flags : {StreamFlags::non_blocking, StreamFlags::blocking})
        streams_.push_back(stream(flags));
    }
  }
  bool is_sim() const { return GetParam() == WorldKind::sim; }
  // Of each thread in a round. The simulator's kernels really write every byte, on one core.
  int steps() const {
    const char* const shorter = std::getenv("VPMM_SOAK_OPERATIONS");
    const int most = is_sim() ? 200 : 1500;
    return shorter != nullptr ? std::min(std::atoi(shorter) / 4, most) : most;
  }

  // Two streams of its own for each thread; or all threads have the same, fewer than they are.
  std::vector<StreamHandle> streams_of(std::size_t thread, std::size_t shared_streams) const {
    if (shared_streams == 0) return {streams_[2 * thread], streams_[2 * thread + 1]};
    return {streams_.begin(), streams_.begin() + static_cast<std::ptrdiff_t>(shared_streams)};
  }

  void round(std::uint64_t seed) {
    std::mt19937_64 random(seed);
    settings::Config config;
    config.va_size = 64_GiB;
    config.page_chunks = random() % 3 == 0;
    auto created = context::Context::create(driver(), 0, config);
    ASSERT_TRUE(created.ok()) << created.error().message;
    const std::unique_ptr<context::Context> pool = std::move(created).value();
    const std::size_t threads = 2 + random() % (kMostThreads - 1);
    const std::size_t shared_streams = seed % 3 == 0 ? 1 + random() % (threads - 1) : 0;
    const auto arena = pool->arenas().create({});
    ASSERT_TRUE(arena.ok()) << arena.error().message;
    Shared shared{driver(), world(), *pool, is_sim() ? 4_MiB : 64_MiB, arena.value()};
    std::vector<Worker> workers;
    for (std::size_t i = 0; i < threads; ++i)
      workers.emplace_back(shared, streams_of(i, shared_streams), proofs_[i], seed * 100 + i);
    together(shared, workers, seed);
    while (const auto loan = shared.take())
      EXPECT_TRUE(pool->deallocate(loan->ptr, std::nullopt).ok());
    EXPECT_TRUE(pool->arenas().release(shared.arena).ok());
    world().settle();
    // The driver tells of a graph's end from a thread of its own, a little later.
    for (int i = 0; i < 1000 && (!pool->streams().synchronize().ok() ||
                                 pool->reports().statistics().live_allocations > 0);
         ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    for (std::size_t i = 0; i < threads; ++i) compare(workers[i].expected(), proofs_[i]);
    EXPECT_EQ(pool->reports().validate(), "");
    EXPECT_EQ(pool->reports().statistics().live_allocations, 0u);
    allocations_ += pool->reports().statistics().allocations;
  }

  void together(Shared& shared, std::vector<Worker>& workers, std::uint64_t seed) {
    Watchdog watchdog(fmt::format("VPMM_SEED={}", seed));
    std::atomic<std::uint64_t> busy{workers.size()};
    std::vector<std::thread> threads;
    for (Worker& worker : workers)
      threads.emplace_back([&] {
        const Watchdog::Watched watched(watchdog, "a worker");
        EXPECT_OK(driver().ctx_set_current(world().context()));
        worker.run(steps());
        --busy;
      });
    threads.emplace_back([&] {
      const Watchdog::Watched watched(watchdog, "the observer");
      const std::string wrong = PoolObserver(shared.pool, seed).run(busy);
      shared.expect(wrong.empty(), wrong);
    });
    for (std::thread& thread : threads) thread.join();
  }

  void compare(const std::vector<std::uint32_t>& expected, AddressRange proofs) {
    std::vector<std::uint32_t> seen = words_of(proofs);
    ASSERT_LE(expected.size(), seen.size());
    seen.resize(expected.size());
    EXPECT_FALSE(expected.empty());
    std::size_t wrong = 0;
    for (std::size_t i = 0; i < seen.size(); ++i) wrong += seen[i] != expected[i] ? 1 : 0;
    EXPECT_EQ(wrong, 0u) << "of " << seen.size() << " words";
  }

  std::vector<AddressRange> proofs_;
  std::vector<StreamHandle> streams_;
  std::uint64_t allocations_ = 0;
};

TEST_P(ThreadsOnGpu, threads_that_share_memory_and_streams_find_their_data_where_they_left_it) {
  const char* const asked = std::getenv("VPMM_SEED");
  const std::uint64_t first = asked != nullptr ? std::strtoull(asked, nullptr, 10) : 1;
  const auto end = end_of_stress(std::chrono::seconds(is_sim() ? 1 : 5));
  std::uint64_t seed = first;
  do {
    SCOPED_TRACE(fmt::format("replay with VPMM_SEED={}", seed));
    round(seed);
    ++seed;
  } while (!HasFailure() && (seed < first + 3 || std::chrono::steady_clock::now() < end));
  RecordProperty("allocations", std::to_string(allocations_));
  fmt::print("{} rounds, {} allocations\n", seed - first, allocations_);
}

VPMM_ON_BOTH_DRIVERS(ThreadsOnGpu);

}  // namespace
}  // namespace vpmm::test
