// SPDX-License-Identifier: Apache-2.0
// tests/gpu_reset: a pool lives through resets of its device's context, its own and others', on
// both drivers.
//
// A binary of its own: no test of another kind survives a reset in its process.
#include "context/context.hpp"
#include "support/gpu_test.hpp"

namespace vpmm::test {
namespace {

constexpr std::uint32_t kPattern = 0x5EED'5EED;

class PoolReset : public ::testing::TestWithParam<WorldKind> {
 protected:
  void SetUp() override {
    auto world = open_world(GetParam());
    if (!world && world.error().code == ErrorCode::no_driver && !gpu_is_required())
      GTEST_SKIP() << world.error().message;  // no GPU: the simulator alone answers
    ASSERT_TRUE(world.ok()) << world.error().message;
    world_ = std::move(world).value();
    settings::Config config;
    config.va_size = 64_GiB;
    auto created = context::Context::create(driver(), 0, config);
    ASSERT_TRUE(created.ok()) << created.error().message;
    pool_ = std::move(created).value();
    ASSERT_OK(driver().stream_create(StreamFlags::non_blocking, stream_));
    kept_ = allocate(kBytes, stream_);
    ASSERT_OK(world_->launch_fill(stream_, {kept_, kBytes}, kPattern));
    small_ = allocate(1000, stream_);
    pending_ = allocate(kBytes, stream_);
    ASSERT_TRUE(pool_->deallocate(pending_, stream_).ok());
    world_->settle();
    ASSERT_OK(driver().ctx_synchronize());
  }
  void TearDown() override {
    if (pool_ == nullptr) return;
    EXPECT_EQ(pool_->reports().validate(), "");
    pool_.reset();
    EXPECT_EQ(world_->complaints(), "");
  }
  driver::Driver& driver() { return world_->driver(); }
  DevicePtr allocate(Bytes bytes, pool::Stream stream) {
    auto result = pool_->allocate({bytes, 0, stream});
    EXPECT_TRUE(result.ok()) << (result ? "" : result.error().message);
    return result ? result.value() : DevicePtr{};
  }
  // The pool works, and what was live is so still and holds its bytes, small memory included.
  void check_after_reset() {
    const DevicePtr next = allocate(kBytes, driver::kNullStream);
    EXPECT_NE(next, kept_);
    ContextHandle context{};
    ASSERT_OK(driver().device_primary_ctx_retain(0, context));
    ASSERT_OK(driver().ctx_set_current(context));
    std::uint32_t word = 0;
    EXPECT_OK(driver().memcpy_device_to_host(&word, kept_ + kBytes / 2, sizeof word));
    EXPECT_EQ(word, kPattern);
    EXPECT_TRUE(pool_->deallocate(small_, std::nullopt).ok());
    StreamHandle stream{};
    ASSERT_OK(driver().stream_create(StreamFlags::non_blocking, stream));
    const DevicePtr small = allocate(1000, stream);
    EXPECT_TRUE(pool_->deallocate(small, stream).ok());
    EXPECT_TRUE(pool_->deallocate(kept_, stream).ok());
    EXPECT_TRUE(pool_->deallocate(next, driver::kNullStream).ok());
    EXPECT_TRUE(pool_->streams().synchronize().ok());
    EXPECT_EQ(pool_->reports().statistics().live_allocations, 0u);
    EXPECT_EQ(pool_->reports().statistics().pending_bytes, 0u);
    EXPECT_OK(driver().stream_destroy(stream));
    EXPECT_OK(driver().device_primary_ctx_release(0));
  }

  static constexpr Bytes kBytes = 8_MiB;
  std::unique_ptr<GpuWorld> world_;
  std::unique_ptr<context::Context> pool_;
  StreamHandle stream_{};
  DevicePtr kept_{}, small_{}, pending_{};
};

TEST_P(PoolReset, a_reset_of_its_own_keeps_chunks_and_contents) {
  ASSERT_TRUE(pool_->streams().reset().ok());
  check_after_reset();
}

TEST_P(PoolReset, a_reset_by_others_is_noticed_before_an_event_is_touched) {
  ASSERT_OK(driver().device_primary_ctx_reset(0));
  check_after_reset();
}

VPMM_ON_BOTH_DRIVERS(PoolReset);

}  // namespace
}  // namespace vpmm::test
