// SPDX-License-Identifier: Apache-2.0
// tests/gpu: the pool on a simulated and on a real GPU: order between streams, contents, captures,
// footprints. VPMM_STRESS_SECONDS: how long the random programs go on. VPMM_SEED: the first one;
// without a time, the only one.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <optional>
#include <random>
#include <thread>

#include "context/context.hpp"
#include "observe/render.hpp"
#include "support/gpu_test.hpp"
#include "support/stress_seconds.hpp"

namespace vpmm::test {
namespace {

class PoolOnGpu : public GpuTest {
 protected:
  void TearDown() override {
    if (pool_ != nullptr) {
      EXPECT_EQ(pool_->reports().validate(), "");
    }
    pool_.reset();
    GpuTest::TearDown();
  }
  static settings::Config adaptive() {
    settings::Config config;
    config.va_size = 64_GiB;
    return config;
  }
  static settings::Config pages() {
    settings::Config config = adaptive();
    config.page_chunks = true;
    return config;
  }
  context::Context& open(const settings::Config& config) {
    auto created = context::Context::create(driver(), 0, config);
    EXPECT_TRUE(created.ok()) << (created ? "" : created.error().message);
    pool_ = std::move(created).value();
    return *pool_;
  }
  DevicePtr allocate(Bytes bytes, pool::Stream stream) {
    auto result = pool_->allocate({bytes, 0, stream});
    EXPECT_TRUE(result.ok()) << (result ? "" : result.error().message);
    return result ? result.value() : DevicePtr{};
  }
  void deallocate(DevicePtr ptr, pool::Stream stream) {
    const auto result = pool_->deallocate(ptr, stream);
    EXPECT_TRUE(result.ok()) << (result ? "" : result.error().message);
  }
  void fill_on(StreamHandle stream, DevicePtr ptr, Bytes bytes, std::uint32_t pattern) {
    EXPECT_OK(world().launch_fill(stream, {ptr, bytes}, pattern));
  }
  void wait_for(StreamHandle stream) { EXPECT_OK(driver().stream_synchronize(stream)); }
  std::string picture() const { return observe::picture(pool_->reports().snapshot()); }

  std::unique_ptr<context::Context> pool_;
};

// --- order between streams

// A kernel of 100 ms holds a freed range on one stream, and an event stands for it, for the pool
// knows the other stream already. That one's allocations and kernels must not wait while there is
// other memory, free or new.
TEST_P(PoolOnGpu, a_long_kernel_on_one_stream_never_delays_another_while_memory_is_to_be_had) {
  open(adaptive());
  const StreamHandle slow = stream();
  const StreamHandle quick = stream();
  deallocate(allocate(2_MiB, quick), quick);
  const DevicePtr held = allocate(128_MiB, slow);
  EXPECT_OK(world().launch_busy(slow, 100 * kMilliseconds));
  fill_on(slow, held, 128_MiB, 1);
  deallocate(held, slow);
  for (const Bytes bytes : {4_MiB, 64_MiB, 128_MiB, 192_MiB, 3_MiB, 100_KiB}) {
    const DevicePtr ptr = allocate(bytes, quick);
    fill_on(quick, ptr, bytes, 2);
    wait_for(quick);
    EXPECT_TRUE(holds({ptr, 4_MiB < bytes ? 4_MiB : bytes}, 2));
    deallocate(ptr, quick);
  }
  EXPECT_EQ(driver().stream_query(slow), CuResult::not_ready)
      << "the other stream waited for the long kernel";
  EXPECT_EQ(pool_->reports().statistics().gpu_waits, 0u);
  EXPECT_EQ(pool_->reports().statistics().host_waits, 0u);
}

// A page behind a long kernel was freed first, and all others behind a short one.
TEST_P(PoolOnGpu, out_of_memory_the_host_waits_for_whichever_stream_is_done_first) {
  constexpr Bytes kPages = 40;
  settings::Config config = pages();
  config.limits.capacity = kPages * granularity();
  open(config);
  const StreamHandle slow = stream();
  const StreamHandle fast = stream();
  const DevicePtr page = allocate(granularity(), slow);
  const DevicePtr others = allocate((kPages - 1) * granularity(), fast);
  EXPECT_OK(world().launch_busy(slow, 200 * kMilliseconds));
  EXPECT_OK(world().launch_busy(fast, 10 * kMilliseconds));
  deallocate(page, slow);
  deallocate(others, fast);
  const std::uint64_t begin_ns = driver().now_ns();
  allocate((kPages - 1) * granularity(), std::nullopt);
  const std::uint64_t fast_ns = driver().now_ns() - begin_ns;
  EXPECT_EQ(driver().stream_query(slow), CuResult::not_ready);
  allocate(granularity(), std::nullopt);
  const std::uint64_t both_ns = driver().now_ns() - begin_ns;
  EXPECT_LT(2 * fast_ns, both_ns);
  EXPECT_OK(driver().stream_query(slow));
}

// Whether the kernel ends within the delay is for the GPU to say; that it never does in so many
// tries is not.
TEST_P(PoolOnGpu, what_is_complete_in_a_moment_is_used_instead_of_new_memory) {
  const StreamHandle own = stream();
  const StreamHandle other = stream();
  std::string seen;
  for (int tries = 0; tries < 20; ++tries) {
    open(adaptive());
    const DevicePtr first = allocate(64_MiB, other);
    deallocate(allocate(2_MiB, own), own);
    const DevicePtr second = allocate(64_MiB, other);
    wait_for(other);
    const Bytes mapped = pool_->reports().statistics().mapped_bytes;
    EXPECT_OK(world().launch_busy(other, kMilliseconds / 4));
    deallocate(second, other);
    const std::uint64_t before = pool_->reports().statistics().pauses;
    const DevicePtr next = allocate(64_MiB, own);
    const observe::Statistics figures = pool_->reports().statistics();
    EXPECT_EQ(figures.gpu_waits + figures.host_waits, 0u);
    deallocate(next, own);
    deallocate(first, other);
    if (figures.pauses == before + 1 && figures.mapped_bytes == mapped) return;
    seen += "\n" + std::to_string(figures.pauses - before) + " pauses, " +
            std::to_string(figures.mapped_bytes - mapped) + " bytes";
    pool_.reset();
  }
  FAIL() << "each time it grew, or the kernel was over before:" << seen;
}

// The specification's way: pending memory of another stream is taken behind a wait of the GPU, and
// the order holds.
TEST_P(PoolOnGpu, in_page_mode_pending_memory_is_taken_behind_a_wait_of_the_gpu) {
  settings::Config config = pages();
  config.limits.capacity = 32_MiB;
  open(config);
  const StreamHandle first = stream();
  const StreamHandle second = stream();
  const DevicePtr old = allocate(32_MiB, first);
  EXPECT_OK(world().launch_busy(first, 20 * kMilliseconds));
  fill_on(first, old, 32_MiB, 1);
  deallocate(old, first);
  const DevicePtr ptr = allocate(24_MiB, second);
  fill_on(second, ptr, 24_MiB, 2);
  wait_for(second);
  EXPECT_TRUE(holds({ptr, 24_MiB}, 2));
  EXPECT_GT(pool_->reports().statistics().gpu_waits + pool_->reports().statistics().host_waits, 0u);
}

TEST_P(PoolOnGpu, memory_freed_on_a_destroyed_stream_is_used_again) {
  settings::Config config = adaptive();
  config.limits.capacity = 64_MiB;
  open(config);
  const StreamHandle gone = stream();
  const StreamHandle heir = stream();
  const DevicePtr old = allocate(64_MiB, gone);
  fill_on(gone, old, 64_MiB, 1);
  deallocate(old, gone);
  destroy(gone);
  const DevicePtr ptr = allocate(48_MiB, heir);
  fill_on(heir, ptr, 48_MiB, 2);
  wait_for(heir);
  EXPECT_TRUE(holds({ptr, 48_MiB}, 2));
}

TEST_P(PoolOnGpu, recorded_uses_hold_memory_until_their_streams_are_done) {
  settings::Config config = adaptive();
  config.limits.capacity = 128_MiB;  // the driver's own pool takes part of it
  open(config);
  const StreamHandle owner = stream();
  const StreamHandle reader = stream();
  const DevicePtr shared = allocate(64_MiB, owner);
  fill_on(owner, shared, 64_MiB, 7);
  EXPECT_OK(driver().stream_wait_event(reader, recorded_event(owner)));
  ASSERT_TRUE(pool_->record_use(shared, reader).ok());
  EXPECT_OK(world().launch_busy(reader, 20 * kMilliseconds));
  const DevicePtr copy = allocate(512, reader);
  EXPECT_OK(driver().memcpy_device_to_device_async(copy, shared + 32_MiB, 512, reader));
  deallocate(shared, owner);
  const DevicePtr next = allocate(64_MiB, owner);
  fill_on(owner, next, 64_MiB, 8);
  wait_for(owner);
  wait_for(reader);
  EXPECT_TRUE(holds({copy, 512}, 7));
}

// --- re-mapping

// The five calls of the specification, one page a unit, for X from 0 to 20.
TEST_P(PoolOnGpu, the_walkthrough_has_the_footprints_of_the_specification) {
  for (Bytes x = 0; x <= 20; ++x) {
    settings::Config config = pages();
    config.pages = 11 + x;
    open(config);
    const Bytes page = granularity();
    const StreamHandle on = stream();
    const DevicePtr ten = allocate(10 * page, on);
    fill_on(on, ten, 10 * page, 10);
    const DevicePtr one = allocate(page, on);
    fill_on(on, one, page, 1);
    deallocate(ten, on);
    const DevicePtr four = allocate(4 * page, on);
    fill_on(on, four, 4 * page, 4);
    const DevicePtr eleven = allocate(11 * page, on);
    fill_on(on, eleven, 11 * page, 11);
    ASSERT_TRUE(pool_->streams().synchronize().ok());
    EXPECT_TRUE(holds({one, page}, 1) && holds({four, 4 * page}, 4) &&
                holds({eleven, 11 * page}, 11))
        << "X = " << x;
    EXPECT_EQ(pool_->reports().statistics().mapped_bytes, (x < 5 ? 16 : 11 + x) * page)
        << "X = " << x << ": " << picture();
    pool_.reset();
  }
}

// --- captures

TEST_P(PoolOnGpu, a_captured_graph_keeps_its_memory_until_it_is_destroyed) {
  open(adaptive());
  const StreamHandle on = stream();
  const StreamHandle other = stream();
  const DevicePtr before = allocate(8_MiB, on);
  fill_on(on, before, 8_MiB, 1);
  const DevicePtr result = allocate(4_MiB, other);
  ASSERT_OK(driver().stream_begin_capture(on, CaptureMode::global));
  const DevicePtr inside = allocate(8_MiB, on);
  fill_on(on, inside, 8_MiB, 5);
  EXPECT_OK(driver().memcpy_device_to_device_async(result, inside, 4_MiB, on));
  deallocate(inside, on);
  deallocate(before, on);  // ordinary memory freed during the capture
  driver::GraphHandle graph{};
  ASSERT_OK(driver().stream_end_capture(on, graph));
  driver::GraphExecHandle exec{};
  ASSERT_OK(driver().graph_instantiate(graph, exec));
  const DevicePtr rival = allocate(8_MiB, other);
  fill_on(other, rival, 8_MiB, 9);
  wait_for(other);
  EXPECT_NE(rival, inside);
  for (int launch = 0; launch < 3; ++launch) EXPECT_OK(driver().graph_launch(exec, on));
  wait_for(on);
  EXPECT_TRUE(holds({result, 4_MiB}, 5));
  EXPECT_TRUE(holds({rival, 8_MiB}, 9));
  EXPECT_OK(driver().graph_destroy(graph));
  EXPECT_OK(driver().graph_exec_destroy(exec));
  deallocate(rival, other);
  deallocate(result, other);
  // The driver tells of the graph's end from a thread of its own, a little later.
  for (int i = 0; i < 1000 && (!pool_->streams().synchronize().ok() ||
                               pool_->reports().statistics().live_allocations > 0);
       ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  EXPECT_EQ(pool_->reports().statistics().live_allocations, 0u) << picture();
}

// --- random programs

struct Live {
  DevicePtr ptr;
  Bytes bytes;
  StreamHandle stream;
  std::uint32_t pattern;
};

// Random allocations on several streams, each filled when it is made; before it is freed a sample
// of it is copied out behind everything, and compared at the end.
class RandomProgram {
 public:
  RandomProgram(driver::Driver& driver, GpuWorld& world, context::Context& pool,
                std::vector<StreamHandle> streams, std::uint64_t seed)
      : driver_(driver), world_(world), pool_(pool), streams_(std::move(streams)), random_(seed) {}

  void run(int operations) {
    samples_.resize(static_cast<std::size_t>(operations) + kMostLive);
    for (int i = 0; i < operations; ++i) step();
    while (!live_.empty()) end_of(live_.size() - 1);
    world_.settle();
    EXPECT_OK(driver_.ctx_synchronize());
    std::size_t wrong = 0;
    for (std::size_t i = 0; i < used_samples_; ++i)
      wrong += samples_[i].seen != samples_[i].expected ? 1 : 0;
    EXPECT_EQ(wrong, 0u);
    EXPECT_GT(used_samples_, 0u);
  }

 private:
  static constexpr std::size_t kMostLive = 60;
  struct Sample {
    std::uint32_t seen = 0;
    std::uint32_t expected = 0;
  };
  std::uint64_t below(std::uint64_t limit) {
    return std::uniform_int_distribution<std::uint64_t>(0, limit - 1)(random_);
  }
  Bytes random_size() {
    const Bytes size = Bytes{1} << (9 + below(18));  // 512 B to 64 MiB, then up to twice that
    return (size + below(size)) / 4 * 4;
  }
  void step() {
    const std::uint64_t what = below(100);
    if (what < 2) {
      EXPECT_TRUE(pool_.limits().trim(below(2) * 128_MiB).ok());
    } else if (live_.size() < kMostLive && (live_.empty() || what < 55)) {
      begin();
    } else {
      end_of(below(live_.size()));
    }
  }
  void begin() {
    const StreamHandle stream = streams_[below(streams_.size())];
    const Bytes bytes = random_size();
    const bool names_stream = below(8) != 0;
    auto ptr = pool_.allocate({bytes, 0, names_stream ? pool::Stream(stream) : std::nullopt});
    ASSERT_TRUE(ptr.ok()) << ptr.error().message;
    const auto pattern = static_cast<std::uint32_t>(random_());
    EXPECT_OK(world_.launch_fill(stream, {ptr.value(), bytes}, pattern));
    live_.push_back({ptr.value(), bytes, stream, pattern});
  }
  void end_of(std::size_t index) {
    const Live gone = live_[index];
    live_[index] = live_.back();
    live_.pop_back();
    Sample& sample = samples_[used_samples_++];
    sample.expected = gone.pattern;
    const DevicePtr where = gone.ptr + below(gone.bytes / 4) * 4;
    EXPECT_OK(
        driver_.memcpy_device_to_host_async(&sample.seen, where, sizeof sample.seen, gone.stream));
    const std::uint64_t how = below(8);
    const auto freed =
        pool_.deallocate(gone.ptr, how == 0 ? std::nullopt : pool::Stream(gone.stream));
    EXPECT_TRUE(freed.ok()) << freed.error().message;
  }

  driver::Driver& driver_;
  GpuWorld& world_;
  context::Context& pool_;
  std::vector<StreamHandle> streams_;
  std::mt19937_64 random_;
  std::vector<Live> live_;
  std::vector<Sample> samples_;
  std::size_t used_samples_ = 0;
};

TEST_P(PoolOnGpu, random_programs_find_their_data_where_they_left_it) {
  const char* wanted = std::getenv("VPMM_SEED");
  const std::uint64_t first = wanted != nullptr ? std::strtoull(wanted, nullptr, 10) : 1;
  const std::uint64_t least = wanted != nullptr ? 1 : 4;
  const char* shorter = std::getenv("VPMM_SOAK_OPERATIONS");
  // The simulator's kernels really write every byte, on one core.
  const int most = GetParam() == WorldKind::sim ? 300 : 4000;
  const int operations = shorter != nullptr ? std::min(std::atoi(shorter), most) : most;
  std::vector<StreamHandle> streams;
  for (int i = 0; i < 4; ++i) streams.push_back(stream());
  streams.push_back(stream(StreamFlags::blocking));
  streams.push_back(driver::kNullStream);
  std::uint64_t allocations = 0;
  const auto end = end_of_stress(std::chrono::seconds(0));
  std::uint64_t seed = first;
  do {
    SCOPED_TRACE(fmt::format("replay with VPMM_SEED={} --gtest_filter=*random_programs*", seed));
    settings::Config config = seed % 2 == 0 ? pages() : adaptive();
    if ((seed - 1) / 2 % 2 != 0) config.limits.capacity = 6_GiB;
    context::Context& pool = open(config);
    RandomProgram(driver(), world(), pool, streams, seed).run(operations);
    EXPECT_EQ(pool.reports().validate(), "");
    EXPECT_EQ(pool.reports().statistics().live_allocations, 0u);
    allocations += pool.reports().statistics().allocations;
    pool_.reset();
    ++seed;
  } while (!HasFailure() && (seed < first + least || std::chrono::steady_clock::now() < end));
  fmt::print("{} rounds, {} allocations\n", seed - first, allocations);
}

VPMM_ON_BOTH_DRIVERS(PoolOnGpu);

}  // namespace
}  // namespace vpmm::test
