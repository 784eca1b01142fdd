// SPDX-License-Identifier: Apache-2.0
// pool: its address space: where reservations begin, and what is done about a driver that refuses
// some.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <vector>

#include "driver/forwarding.hpp"
#include "observe/log.hpp"
#include "pool/address_space.hpp"
#include "pool/pool_fixture.hpp"

namespace vpmm::pool {
namespace {

using driver::CuResult;

constexpr Bytes kAligned = kPagesInLine * kPage;

// Refuses more alignment, and more at once, than it is told.
class PickyDriver final : public driver::ForwardingDriver {
 public:
  using ForwardingDriver::ForwardingDriver;
  CuResult mem_address_reserve(Bytes size, Bytes alignment, DevicePtr hint,
                               DevicePtr& begin) override {
    if (alignment > most_alignment || size > most_size) return CuResult::out_of_memory;
    alignments.push_back(alignment);
    return ForwardingDriver::mem_address_reserve(size, alignment, hint, begin);
  }
  Bytes most_alignment = kGiB;
  Bytes most_size = kGiB;
  Vector<Bytes> alignments;  // granted
};

class Reservations : public PoolFixture<PickyDriver> {
 protected:
  Vector<AddressRange> three() {
    open();
    for (int i = 0; i < 3; ++i) take(16, a);
    return pool->memory().reservations;
  }
  void SetUp() override {
    config.page_chunks = false;
    config.va_size = 17 * kPage;
  }
};

TEST_F(Reservations, begin_at_sixteen_pages_so_that_a_program_finds_the_same_places_in_every_run) {
  const Vector<AddressRange> all = three();
  ASSERT_EQ(all.size(), 3u);
  for (const AddressRange& range : all) EXPECT_TRUE(is_aligned(range.begin, kAligned));
}

TEST_F(Reservations, begin_at_pages_where_chunks_are_pages) {
  config.page_chunks = true;
  ASSERT_EQ(three().size(), 3u);
  EXPECT_EQ(driver.alignments, Vector<Bytes>(3, kPage));
}

TEST_F(Reservations, of_a_driver_that_aligns_to_no_more_begin_at_pages) {
  driver.most_alignment = kPage;
  ASSERT_EQ(three().size(), 3u);
  EXPECT_EQ(driver.alignments, Vector<Bytes>(3, kPage));
}

TEST_F(Reservations, are_smaller_before_they_are_aligned_to_less) {
  config.va_size = kGiB;
  driver.most_size = 100 * kPage;
  const Vector<AddressRange> all = three();
  ASSERT_EQ(all.size(), 1u);
  EXPECT_EQ(all[0].size, 64 * kPage);
  EXPECT_EQ(driver.alignments, Vector<Bytes>{kAligned});
}

TEST_F(Reservations, that_the_driver_refuses_altogether_are_an_error_that_loses_nothing) {
  open();
  driver.most_size = 0;
  const auto refused = allocate(1, a);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, ErrorCode::out_of_memory);
  EXPECT_THAT(refused.error().message, testing::HasSubstr("mem_address_reserve"));
  driver.most_size = kGiB;
  give_back(take(1, a));
}

// A driver that has more address space than any process.
class BoundlessDriver final : public driver::ForwardingDriver {
 public:
  using ForwardingDriver::ForwardingDriver;
  CuResult mem_address_reserve(Bytes, Bytes, DevicePtr, DevicePtr& begin) override {
    begin = kBegin;
    return CuResult::success;
  }
  CuResult mem_address_free(AddressRange range) override {
    freed.push_back(range);
    return takes_back;
  }
  static constexpr DevicePtr kBegin{Bytes{1} << 40};
  CuResult takes_back = CuResult::success;
  Vector<AddressRange> freed;
};

// Its table of pages would take 2^50 bytes.
TEST(ReservationTables, for_which_there_is_no_host_memory_go_back_with_their_address_space) {
  constexpr Bytes kSmallPage = 64 * kKiB;
  constexpr AddressRange kWhole{BoundlessDriver::kBegin, Bytes{1} << 63};
  driver::sim::SimDriver sim;
  BoundlessDriver driver(sim);
  time::Timelines timelines(sim, {});
  settings::Config config;
  config.va_size = kWhole.size;
  Memory memory(driver, driver::ChunkProperties{}, config, kSmallPage, timelines);
  Mutex mutex;
  MutexLock lock(mutex);
  Vector<std::string> lines;
  const auto add = [&] {
    lines.clear();
    driver.freed.clear();
    observe::set_log_sink(
        [&](observe::LogLevel, std::string_view line) { lines.emplace_back(line); });
    const Result<void> added = add_reservation(memory, lock, kSmallPage);
    observe::set_log_sink({});
    ASSERT_FALSE(added.ok());
    EXPECT_EQ(added.error().code, ErrorCode::host_out_of_memory);
    EXPECT_EQ(driver.freed, Vector<AddressRange>{kWhole});
    EXPECT_TRUE(memory.reservations.empty());
    EXPECT_EQ(memory.index.picture(), "");
    EXPECT_EQ(memory.validate(), "");
  };
  add();
  EXPECT_TRUE(lines.empty()) << lines.front();
  driver.takes_back = CuResult::unknown;
  add();
  EXPECT_EQ(lines,
            Vector<std::string>{"the driver did not take 9223372036854775808 reserved bytes back"});
}

}  // namespace
}  // namespace vpmm::pool
