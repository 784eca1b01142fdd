// SPDX-License-Identifier: Apache-2.0
// tests/contract_reset: what survives a reset of the primary context, on both drivers.
//
// A binary of its own: no test of another kind survives a reset in its process.
#include "support/gpu_test.hpp"

namespace vpmm::test {
namespace {

constexpr std::uint32_t kPattern = 0xFEED'BEEF;

// Unlike GpuTest, makes a new world for each test, because each ends with a context that is not the
// world's.
class ResetContract : public ::testing::TestWithParam<WorldKind> {
 protected:
  void SetUp() override {
    auto world = open_world(GetParam());
    if (world) {
      world_ = std::move(world).value();
      ASSERT_OK(driver().ctx_get_id(world_->context(), old_id_));
      ASSERT_OK(driver().mem_get_allocation_granularity(ChunkProperties{},
                                                        driver::Granularity::minimum, unit_));
    } else if (world.error().code == ErrorCode::no_driver && !gpu_is_required()) {
      GTEST_SKIP() << world.error().message;  // no GPU: the simulator alone answers
    } else {
      FAIL() << world.error().message;
    }
  }
  void TearDown() override {
    if (world_ == nullptr) return;
    EXPECT_OK(driver().device_primary_ctx_release(0));
    EXPECT_EQ(world_->complaints(), "");
  }
  driver::Driver& driver() { return world_->driver(); }

  void reset() { ASSERT_OK(driver().device_primary_ctx_reset(0)); }
  ContextHandle retain_again() {
    ContextHandle context{};
    EXPECT_OK(driver().device_primary_ctx_retain(0, context));
    EXPECT_OK(driver().ctx_set_current(context));
    return context;
  }
  // One chunk, mapped, accessible and full of the pattern.
  void make_memory() {
    const driver::AccessDescriptor access[] = {{0}};
    range_.size = unit_;
    ASSERT_OK(driver().mem_address_reserve(unit_, 0, DevicePtr{}, range_.begin));
    ASSERT_OK(driver().mem_create(unit_, ChunkProperties{}, chunk_));
    ASSERT_OK(driver().mem_map(range_, 0, chunk_));
    ASSERT_OK(driver().mem_set_access(range_, access));
    ASSERT_OK(world_->launch_fill(driver::kNullStream, range_, kPattern));
    world_->settle();
  }
  void give_back_memory() {
    EXPECT_OK(driver().mem_unmap(range_));
    EXPECT_OK(driver().mem_release(chunk_));
    EXPECT_OK(driver().mem_address_free(range_));
  }

  std::unique_ptr<GpuWorld> world_;
  ContextId old_id_{};
  Bytes unit_ = 0;
  AddressRange range_;
  ChunkHandle chunk_{};
};
VPMM_ON_BOTH_DRIVERS(ResetContract);

TEST_P(ResetContract, the_id_of_a_reset_context_is_gone_until_it_is_retained_again) {
  reset();
  ContextId id{};
  EXPECT_EQ(driver().ctx_get_id(world_->context(), id), CuResult::context_is_destroyed);
  const ContextHandle context = retain_again();
  EXPECT_EQ(context, world_->context());
  EXPECT_OK(driver().ctx_get_id(context, id));
  EXPECT_NE(id, old_id_);
}

TEST_P(ResetContract, memory_its_addresses_and_its_contents_survive) {
  make_memory();
  reset();
  retain_again();
  std::vector<std::uint32_t> words(unit_ / sizeof(std::uint32_t));
  EXPECT_OK(driver().memcpy_device_to_host(words.data(), range_.begin, unit_));
  EXPECT_EQ(words, std::vector<std::uint32_t>(words.size(), kPattern));
  EXPECT_OK(driver().memset_d8(range_.begin, 1, unit_));
  EXPECT_OK(driver().memcpy_device_to_host(words.data(), range_.begin, unit_));
  EXPECT_EQ(words.back(), 0x0101'0101u);
  give_back_memory();
}

TEST_P(ResetContract, memory_can_be_given_back_before_the_context_is_retained_again) {
  make_memory();
  reset();
  give_back_memory();
  retain_again();
}

TEST_P(ResetContract, new_streams_have_new_ids_and_work) {
  StreamHandle stream{};
  StreamId before{};
  ASSERT_OK(driver().stream_create(StreamFlags::non_blocking, stream));
  ASSERT_OK(driver().stream_get_id(stream, before));
  reset();
  retain_again();
  StreamId after{};
  EventHandle event{};
  ASSERT_OK(driver().stream_create(StreamFlags::non_blocking, stream));
  ASSERT_OK(driver().stream_get_id(stream, after));
  EXPECT_NE(after, before);
  ASSERT_OK(driver().event_create(event));
  EXPECT_OK(driver().event_record(event, stream));
  EXPECT_OK(driver().event_synchronize(event));
  EXPECT_OK(driver().event_destroy(event));
  EXPECT_OK(driver().stream_destroy(stream));
}

}  // namespace
}  // namespace vpmm::test
