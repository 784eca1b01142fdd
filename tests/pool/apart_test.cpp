// pool: a small request gets a chunk of its own where the only other place would break a large idle one.
#include <optional>
#include <vector>

#include "driver/forwarding.hpp"
#include "pool/pool_fixture.hpp"

namespace vpmm::pool {
namespace {

using driver::Call;
using driver::CuResult;

// Refuses to create once it is told to.
class StingyDriver final : public driver::ForwardingDriver {
 public:
  using ForwardingDriver::ForwardingDriver;
  bool is_stingy = false;

 private:
  std::optional<CuResult> before(Call call) override {
    return is_stingy && call == Call::mem_create ? std::optional(CuResult::out_of_memory) : std::nullopt;
  }
};

class Apart : public PoolFixture<StingyDriver> {
 protected:
  Apart() {
    config.page_chunks = false;
    config.va_size = 16 * kGiB;
  }
  // One idle chunk of 4 GiB, of which two pages are a small share.
  void open_with_idle_chunk() {
    open();
    give_back(take(kLarge, a));
    ASSERT_EQ(figures().chunks, 1u);
  }
  static constexpr Bytes kLarge = 2048;
};

TEST_F(Apart, a_small_request_leaves_a_large_idle_chunk_whole) {
  open_with_idle_chunk();
  const DevicePtr small = take(2, a);
  EXPECT_EQ(figures().chunks, 2u);
  EXPECT_EQ(figures().mapped_bytes, (kLarge + 2) * kPage);
  EXPECT_EQ(figures().largest_free_bytes, kLarge * kPage);
  give_back(small);
  EXPECT_EQ(take(2, a), small) << "its chunk serves the next of its size";
  EXPECT_EQ(figures().chunks, 2u);
}

TEST_F(Apart, a_request_that_is_not_small_takes_part_of_the_chunk) {
  open_with_idle_chunk();
  take(3, a);
  EXPECT_EQ(figures().chunks, 1u);
}

TEST_F(Apart, the_rest_of_a_chunk_partly_in_use_is_taken_before_a_new_one_is_made) {
  open_with_idle_chunk();
  take(3, a);
  take(2, a);
  EXPECT_EQ(figures().chunks, 1u);
}

TEST_F(Apart, new_chunks_end_at_two_per_cent_over_the_most_ever_in_use) {
  open_with_idle_chunk();
  for (int i = 0; i < 40; ++i) take(2, a);
  EXPECT_EQ(figures().chunks, 1u + 20u);
  EXPECT_LE(figures().mapped_bytes, kLarge * kPage / 100 * 102);
}

TEST_F(Apart, at_the_capacity_the_request_takes_part_of_the_chunk) {
  config.capacity = kLarge * kPage;
  open_with_idle_chunk();
  take(2, a);
  EXPECT_EQ(figures().chunks, 1u);
}

TEST_F(Apart, at_the_limit_of_mappings_the_request_takes_part_of_the_chunk) {
  config.max_mappings = 1;
  open_with_idle_chunk();
  take(2, a);
  EXPECT_EQ(figures().chunks, 1u);
}

TEST_F(Apart, where_the_driver_refuses_the_request_takes_part_of_the_chunk) {
  bool is_short = false;
  relief.drain_deferred = [&](MutexLock&) {
    is_short = true;
    return false;
  };
  open_with_idle_chunk();
  driver.is_stingy = true;
  take(2, a);
  EXPECT_EQ(figures().chunks, 1u);
  EXPECT_EQ(figures().failed_plans, 1u);
  EXPECT_FALSE(is_short);
}

TEST_F(Apart, one_chunk_per_page_breaks_none) {
  config.page_chunks = true;
  open();
  give_back(take(kLarge, a));
  take(2, a);
  EXPECT_EQ(figures().chunks, kLarge);
}

}  // namespace
}  // namespace vpmm::pool
