// SPDX-License-Identifier: Apache-2.0
// tests/contract: what both drivers do with reservations, chunks and mappings.
#include <algorithm>
#include <array>
#include <thread>

#include "support/gpu_test.hpp"

namespace vpmm::test::mapping_test {
namespace {

using driver::AccessDescriptor;
using driver::Granularity;

constexpr std::uint32_t kPattern = 0xA5A5'1234;
constexpr std::uint32_t kOther = 0x0BAD'F00D;
constexpr std::array<AccessDescriptor, 1> kOwnDevice{{{0}}};

class MappingContract : public GpuTest {
 protected:
  void SetUp() override {
    GpuTest::SetUp();
    if (!IsSkipped() && !HasFatalFailure()) unit_ = granularity();
  }
  Bytes unit_ = 0;  // the smallest chunk
};
VPMM_ON_BOTH_DRIVERS(MappingContract);

TEST_P(MappingContract, the_recommended_granularity_is_a_multiple_of_the_minimum) {
  Bytes recommended = 0;
  EXPECT_OK(driver().mem_get_allocation_granularity(ChunkProperties{}, Granularity::recommended,
                                                    recommended));
  EXPECT_TRUE(is_power_of_two(unit_)) << unit_;
  EXPECT_TRUE(is_multiple(recommended, unit_)) << recommended;
}

TEST_P(MappingContract, a_chunk_is_any_multiple_of_the_granularity) {
  for (const Bytes units : {1_B, 2_B, 3_B, 7_B}) fill(memory(units * unit_), kPattern);
  ChunkHandle chunk{};
  EXPECT_EQ(driver().mem_create(unit_ + unit_ / 2, ChunkProperties{}, chunk),
            CuResult::invalid_value);
  EXPECT_EQ(driver().mem_create(0, ChunkProperties{}, chunk), CuResult::invalid_value);
  EXPECT_EQ(chunk, ChunkHandle{});
}

TEST_P(MappingContract, a_chunk_with_the_properties_that_the_device_has_can_be_used) {
  ChunkProperties properties;
  int supported = 0;
  EXPECT_OK(driver().device_get_attribute(driver::DeviceAttribute::posix_file_descriptor_supported,
                                          0, supported));
  properties.posix_file_descriptor = supported != 0;
  EXPECT_OK(driver().device_get_attribute(
      driver::DeviceAttribute::gpu_direct_rdma_with_vmm_supported, 0, supported));
  properties.gpu_direct_rdma_capable = supported != 0;
  const AddressRange range = reserve(unit_);
  ChunkHandle chunk{};
  ASSERT_OK(driver().mem_create(unit_, properties, chunk));
  map(range, chunk);
  fill(range, kPattern);
  EXPECT_TRUE(holds(range, kPattern));
  EXPECT_OK(driver().mem_release(chunk));
}

TEST_P(MappingContract, a_mapping_starts_at_the_start_of_its_chunk) {
  const AddressRange range = reserve(2 * unit_);
  const ChunkHandle chunk = create(2 * unit_);
  EXPECT_EQ(driver().mem_map({range.begin, unit_}, unit_, chunk), CuResult::not_supported);
}

TEST_P(MappingContract, a_mapping_is_the_whole_chunk) {
  const AddressRange range = reserve(4 * unit_);
  const ChunkHandle chunk = create(2 * unit_);
  EXPECT_EQ(driver().mem_map({range.begin, unit_}, 0, chunk), CuResult::not_supported);
  EXPECT_EQ(driver().mem_map({range.begin, 3 * unit_}, 0, chunk), CuResult::not_supported);
  map({range.begin + unit_, 2 * unit_}, chunk);
}

TEST_P(MappingContract, a_mapping_lies_in_a_reservation_and_on_no_other_mapping) {
  const AddressRange range = reserve(2 * unit_);
  const ChunkHandle two = create(2 * unit_);
  const ChunkHandle one = create(unit_);
  EXPECT_EQ(driver().mem_map({DevicePtr{unit_}, unit_}, 0, one), CuResult::invalid_value);
  EXPECT_EQ(driver().mem_map({range.begin + 4096, unit_}, 0, one), CuResult::invalid_value);
  map({range.begin + unit_, unit_}, one);
  EXPECT_EQ(driver().mem_map(range, 0, two), CuResult::invalid_value);
  EXPECT_EQ(driver().mem_map({range.begin + unit_, unit_}, 0, one), CuResult::invalid_value);
}

TEST_P(MappingContract, part_of_a_mapping_is_not_unmapped) {
  const AddressRange range = memory(2 * unit_);
  fill(range, kPattern);
  EXPECT_EQ(driver().mem_unmap({range.begin, unit_}), CuResult::invalid_value);
  EXPECT_EQ(driver().mem_unmap({range.begin + unit_, unit_}), CuResult::invalid_value);
  EXPECT_TRUE(holds(range, kPattern));
}

TEST_P(MappingContract, a_run_of_whole_mappings_is_unmapped_in_one_call) {
  const AddressRange range = reserve(4 * unit_);
  map({range.begin, unit_}, create(unit_));
  map({range.begin + unit_, 2 * unit_}, create(2 * unit_));
  map({range.begin + 3 * unit_, unit_}, create(unit_));
  unmap(range);
  map(range, create(4 * unit_));  // refused if anything were still mapped
}

TEST_P(MappingContract, a_run_with_part_of_a_mapping_at_its_end_is_not_unmapped) {
  const AddressRange range = reserve(3 * unit_);
  map({range.begin, unit_}, create(unit_));
  map({range.begin + unit_, 2 * unit_}, create(2 * unit_));
  fill(range, kPattern);
  EXPECT_EQ(driver().mem_unmap({range.begin, 2 * unit_}), CuResult::invalid_value);
  EXPECT_TRUE(holds(range, kPattern));
}

TEST_P(MappingContract, access_is_given_to_several_mappings_in_one_call) {
  const AddressRange range = reserve(4 * unit_);
  std::array<ChunkHandle, 4> chunks{};
  for (std::size_t i = 0; i < chunks.size(); ++i) {
    chunks[i] = create(unit_);
    ASSERT_OK(driver().mem_map({range.begin + i * unit_, unit_}, 0, chunks[i]));
  }
  EXPECT_OK(driver().mem_set_access(range, kOwnDevice));
  fill(range, kPattern);
  EXPECT_TRUE(holds(range, kPattern));
  EXPECT_OK(driver().mem_unmap(range));
}

TEST_P(MappingContract, access_is_not_given_to_what_is_not_mapped) {
  const AddressRange range = reserve(2 * unit_);
  map({range.begin, unit_}, create(unit_));
  EXPECT_EQ(driver().mem_set_access(range, kOwnDevice), CuResult::invalid_value);
  EXPECT_EQ(driver().mem_set_access({range.begin + unit_, unit_}, kOwnDevice),
            CuResult::invalid_value);
}

TEST_P(MappingContract, memory_lives_on_in_its_mapping_when_the_handle_is_released) {
  const AddressRange range = reserve(unit_);
  const ChunkHandle chunk = create(unit_);
  map(range, chunk);
  fill(range, kPattern);
  release(chunk);
  EXPECT_TRUE(holds(range, kPattern));
  fill(range, kOther);
  EXPECT_TRUE(holds(range, kOther));
}

TEST_P(MappingContract, contents_stay_with_the_chunk_when_its_address_changes) {
  const AddressRange first = reserve(unit_);
  const AddressRange second = reserve(unit_);
  const ChunkHandle chunk = create(unit_);
  map(first, chunk);
  fill(first, kPattern);
  unmap(first);
  map(second, chunk);
  EXPECT_TRUE(holds(second, kPattern));
}

TEST_P(MappingContract, two_mappings_of_one_chunk_are_the_same_memory_in_stream_order) {
  const AddressRange first = reserve(unit_);
  const AddressRange second = reserve(unit_);
  const ChunkHandle chunk = create(unit_);
  const AddressRange copy = memory(unit_);
  map(first, chunk);
  map(second, chunk);
  const StreamHandle work = stream();
  for (const std::uint32_t pattern : {kPattern, kOther}) {
    EXPECT_OK(world().launch_fill(work, first, pattern));
    EXPECT_OK(driver().memcpy_device_to_device_async(copy.begin, second.begin, unit_, work));
    EXPECT_OK(driver().stream_synchronize(work));
    EXPECT_TRUE(holds(copy, pattern));
  }
}

TEST_P(MappingContract, chunks_side_by_side_in_any_order_are_one_array) {
  const AddressRange range = reserve(3 * unit_);
  std::array<ChunkHandle, 3> chunks{};
  for (ChunkHandle& chunk : chunks) chunk = create(unit_);
  map({range.begin, unit_}, chunks[2]);
  map({range.begin + unit_, unit_}, chunks[0]);
  map({range.begin + 2 * unit_, unit_}, chunks[1]);
  fill(range, kPattern);
  EXPECT_TRUE(holds(range, kPattern));
}

TEST_P(MappingContract, copies_and_fills_cross_chunk_borders) {
  const AddressRange range = reserve(2 * unit_);
  map({range.begin, unit_}, create(unit_));
  map({range.begin + unit_, unit_}, create(unit_));
  fill(range, kOther);
  const AddressRange border{range.begin + unit_ - 64, 128};
  EXPECT_OK(driver().memset_d8(border.begin, 0xA5, border.size));
  EXPECT_TRUE(holds(border, 0xA5A5'A5A5));
  const std::vector<std::uint32_t> words(border.size / sizeof(std::uint32_t), kPattern);
  EXPECT_OK(driver().memcpy_host_to_device(border.begin, words.data(), border.size));
  EXPECT_TRUE(holds(border, kPattern));
  EXPECT_TRUE(holds({range.begin, unit_ - 64}, kOther));
  EXPECT_TRUE(holds({border.end(), unit_ - 64}, kOther));
}

TEST_P(MappingContract, new_chunks_do_not_show_what_released_ones_held) {
  constexpr int kRounds = 8;
  const AddressRange range = reserve(8 * unit_);
  for (int round = 0; round < kRounds; ++round) {
    const ChunkHandle chunk = create(range.size);
    map(range, chunk);
    const std::vector<std::uint32_t> words = words_of(range);
    EXPECT_EQ(std::count(words.begin(), words.end(), kPattern), 0) << "round " << round;
    fill(range, kPattern);
    unmap(range);
    release(chunk);
  }
}

TEST_P(MappingContract, eight_tebibytes_of_addresses_are_reserved_and_both_ends_can_be_used) {
#if defined(__SANITIZE_THREAD__)
  if (GetParam() == WorldKind::sim)
    GTEST_SKIP() << "the thread sanitizer leaves less than 8 TiB of addresses";
#endif
  const AddressRange range = reserve(8_TiB);
  const AddressRange last{range.end() - unit_, unit_};
  map({range.begin, unit_}, create(unit_));
  map(last, create(unit_));
  fill(last, kPattern);
  EXPECT_TRUE(holds(last, kPattern));
}

TEST_P(MappingContract, reservations_are_aligned_as_asked_and_disjoint) {
  constexpr Bytes kAlignment = 1_GiB;
  std::array<AddressRange, 3> ranges{};
  for (AddressRange& range : ranges) {
    range.size = kAlignment;
    ASSERT_OK(driver().mem_address_reserve(range.size, kAlignment, DevicePtr{}, range.begin));
    EXPECT_TRUE(is_aligned(range.begin, kAlignment)) << to_integer(range.begin);
  }
  EXPECT_FALSE(ranges[0].overlaps(ranges[1]));
  EXPECT_FALSE(ranges[0].overlaps(ranges[2]));
  EXPECT_FALSE(ranges[1].overlaps(ranges[2]));
  for (const AddressRange& range : ranges) EXPECT_OK(driver().mem_address_free(range));
}

TEST_P(MappingContract, a_freed_reservation_can_be_reserved_again_at_its_address) {
  AddressRange range{DevicePtr{}, 64_MiB};
  ASSERT_OK(driver().mem_address_reserve(range.size, 0, DevicePtr{}, range.begin));
  ASSERT_OK(driver().mem_address_free(range));
  DevicePtr again{};
  ASSERT_OK(driver().mem_address_reserve(range.size, 0, range.begin, again));
  EXPECT_EQ(again, range.begin);
  EXPECT_OK(driver().mem_address_free({again, range.size}));
}

TEST_P(MappingContract, only_a_whole_reservation_is_freed) {
  const AddressRange range = reserve(2 * unit_);
  EXPECT_EQ(driver().mem_address_free({range.begin, unit_}), CuResult::invalid_value);
  EXPECT_EQ(driver().mem_address_free({range.begin + unit_, unit_}), CuResult::invalid_value);
}

TEST_P(MappingContract, access_is_given_to_whole_mappings_and_somebody) {
  const AddressRange range = memory(2 * unit_);
  EXPECT_EQ(driver().mem_set_access({range.begin, unit_}, kOwnDevice), CuResult::invalid_value);
  EXPECT_EQ(driver().mem_set_access({range.begin, 4096}, kOwnDevice), CuResult::invalid_value);
  EXPECT_EQ(driver().mem_set_access(range, {}), CuResult::invalid_value);
}

TEST_P(MappingContract, a_reservation_with_mappings_is_not_freed) {
  const AddressRange range = memory(unit_);
  fill(range, kPattern);
  EXPECT_EQ(driver().mem_address_free(range), CuResult::invalid_value);
  EXPECT_TRUE(holds(range, kPattern));
}

TEST_P(MappingContract,
       reservations_are_multiples_of_the_granularity_with_an_alignment_that_is_a_power_of_two) {
  DevicePtr begin{};
  EXPECT_EQ(driver().mem_address_reserve(0, 0, DevicePtr{}, begin), CuResult::invalid_value);
  EXPECT_EQ(driver().mem_address_reserve(unit_ / 2, 0, DevicePtr{}, begin),
            CuResult::invalid_value);
  EXPECT_EQ(driver().mem_address_reserve(unit_, 3 * unit_, DevicePtr{}, begin),
            CuResult::invalid_value);
  EXPECT_EQ(begin, DevicePtr{});
}

TEST_P(MappingContract, a_hint_that_is_taken_gives_another_address) {
  const AddressRange taken = reserve(4 * unit_);
  AddressRange other{DevicePtr{}, 4 * unit_};
  ASSERT_OK(driver().mem_address_reserve(other.size, 0, taken.begin, other.begin));
  EXPECT_FALSE(taken.overlaps(other));
  EXPECT_OK(driver().mem_address_free(other));
}

TEST_P(MappingContract, mapping_calls_need_no_current_context) {
  std::thread([&] {
    ContextHandle current{1};
    EXPECT_OK(driver().ctx_get_current(current));
    EXPECT_EQ(current, ContextHandle{});
    const AddressRange range = memory(unit_);
    unmap(range);
  }).join();
}

TEST_P(MappingContract, a_chunk_larger_than_the_device_is_out_of_memory_and_gives_no_handle) {
  Bytes total = 0;
  EXPECT_OK(driver().device_total_mem(0, total));
  ChunkHandle chunk{};
  EXPECT_EQ(driver().mem_create(round_up(2 * total, unit_), ChunkProperties{}, chunk),
            CuResult::out_of_memory);
  EXPECT_EQ(chunk, ChunkHandle{});
}

TEST_P(MappingContract, chunks_take_memory_from_what_is_free) {
  driver::MemInfo before;
  driver::MemInfo after;
  EXPECT_OK(driver().mem_get_info(before));
  create(256_MiB);
  EXPECT_OK(driver().mem_get_info(after));
  EXPECT_LT(after.free, before.free);
  EXPECT_EQ(after.total, before.total);
  EXPECT_LE(after.free, after.total);
}

TEST_P(MappingContract, peers_get_access_only_if_they_exist) {
  int devices = 0;
  EXPECT_OK(driver().device_get_count(devices));
  const AddressRange range = memory(unit_);
  const std::array<AccessDescriptor, 1> missing{{{devices}}};
  EXPECT_EQ(driver().mem_set_access(range, missing), CuResult::invalid_value);
}

}  // namespace
}  // namespace vpmm::test::mapping_test
