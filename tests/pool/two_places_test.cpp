// pool: chunks of which different parts are in use at different addresses.
#include <optional>
#include <string>

#include "driver/forwarding.hpp"
#include "pool/pool_fixture.hpp"

namespace vpmm::pool {
namespace {

using driver::Call;
using driver::CuResult;

class CountingDriver final : public driver::ForwardingDriver {
 public:
  using ForwardingDriver::ForwardingDriver;
  std::uint64_t unmaps = 0;
  std::optional<Call> refused;

 private:
  std::optional<CuResult> before(Call call) override {
    if (call == Call::mem_unmap) ++unmaps;
    return call == refused ? std::optional(CuResult::out_of_memory) : std::nullopt;
  }
};

// [2][-6][1]: a chunk of eight pages whose first two live, and one behind it, in a pool that may have thirteen pages.
class TwoPlaces : public PoolFixture<CountingDriver> {
 protected:
  TwoPlaces() {
    config.page_chunks = false;
    open();
    const DevicePtr chunk = take(8, a);
    take(1, a);
    give_back(chunk);
    lives = take(2, a);
    EXPECT_EQ(picture(), "[2][-6][1]");
    EXPECT_EQ(figures().chunks, 2u);
    pool->set_capacity(13 * kPage);
  }
  // Ten pages: six from the end of the chunk, four new ones.
  DevicePtr take_ten() {
    const DevicePtr ten = take(10, a);
    EXPECT_EQ(picture(), "[2][^6][1][^2][10]");
    EXPECT_EQ(held(), 13u);
    EXPECT_EQ(pool->validate(), "");
    return ten;
  }
  std::string picture() const { return pool->picture(); }
  Bytes held() { return figures().mapped_bytes / kPage; }

  DevicePtr lives{};
};

TEST_F(TwoPlaces, the_free_end_of_a_chunk_in_use_serves_a_request_that_would_not_fit) {
  const DevicePtr ten = take_ten();
  EXPECT_EQ(figures().mappings, figures().chunks + 1);
  EXPECT_EQ(figures().zombie_bytes, 8 * kPage) << "shadows are counted with zombies";
  EXPECT_FALSE(allocate(1, a)) << "all pages are in use";
  give_back(ten);
  EXPECT_EQ(take(10, a), ten);
}

TEST_F(TwoPlaces, parts_that_are_both_free_come_together_and_everything_can_be_given_back) {
  const DevicePtr ten = take_ten();
  give_back(ten);
  give_back(lives);
  EXPECT_EQ(pool->trim(lock, 0).value(), 12 * kPage);
  EXPECT_EQ(held(), 1u);
  EXPECT_EQ(figures().mappings, 1u);
}

TEST_F(TwoPlaces, parts_come_together_without_a_driver_call_where_most_is_free) {
  const DevicePtr ten = take_ten();
  give_back(ten);
  give_back(lives);
  const std::uint64_t calls = figures().chunks_moved + figures().chunks_created;
  EXPECT_EQ(take(12, a), ten - 2 * kPage) << "where the ten were and, in front of them, the two";
  EXPECT_EQ(figures().chunks_moved + figures().chunks_created, calls);
  EXPECT_EQ(picture(), "[~8][1][12]");
  EXPECT_TRUE(pool->settle(lock).ok());
  EXPECT_EQ(picture(), "[*8][1][12]");
}

TEST_F(TwoPlaces, while_a_part_is_in_use_the_others_stay_where_they_are) {
  const DevicePtr ten = take_ten();
  give_back(ten);
  EXPECT_FALSE(allocate(12, a));
  EXPECT_EQ(picture(), "[2][^6][1][^2][-10]");
  EXPECT_EQ(pool->trim(lock, 0).value(), 4 * kPage) << "the new chunk goes, the old one is in use";
  EXPECT_EQ(picture(), "[2][^6][1][^2][-6]");
}

TEST_F(TwoPlaces, an_end_that_is_taken_once_more_leaves_a_zombie) {
  const DevicePtr ten = take_ten();
  give_back(ten);
  const DevicePtr end = take(6, a);
  take(4, a);
  give_back(end);
  EXPECT_EQ(picture(), "[2][^6][1][^2][-6][4]");
  pool->set_capacity(15 * kPage);
  take(8, a);
  EXPECT_EQ(picture(), "[2][^6][1][~8][4][^2][8]");
  EXPECT_EQ(pool->validate(), "");
  EXPECT_TRUE(pool->settle(lock).ok());
  EXPECT_EQ(picture(), "[2][^6][1][*8][4][^2][8]");
}

TEST_F(TwoPlaces, a_mapping_goes_when_all_work_that_used_any_part_of_it_is_done) {
  const DevicePtr ten = take_ten();
  give_back_pending(lives, a, Closed::yes, 2 * kSecondNs);
  give_back_pending(ten, b, Closed::yes, kSecondNs);
  sim.advance_host_ns(kSecondNs + kSecondNs / 2);
  ASSERT_TRUE(pool->learn(16).ok());
  ASSERT_TRUE(pool->trim(lock, kGiB).ok());
  EXPECT_EQ(picture(), "[~8][1][-2][-10]") << "work of a still runs through the first address";
  EXPECT_EQ(driver.unmaps, 0u);
  sim.run_until_idle();
  ASSERT_TRUE(pool->learn(16).ok());
  ASSERT_TRUE(pool->settle(lock).ok());
  EXPECT_EQ(picture(), "[*8][1][-12]");
}

// The page of each is freed on a stream of its own, and so is what the end was taken from.
TEST_F(TwoPlaces, shadows_of_three_streams_become_a_zombie_when_one_of_them_is_done) {
  const Caller c = make_caller();
  give_back(lives);
  const DevicePtr first = take(1, a);
  const DevicePtr second = take(1, a);
  give_back_pending(take(6, a), a, Closed::no, kSecondNs);
  const DevicePtr ten = take(10, a);
  ASSERT_EQ(picture(), "[1][1][^6][1][^2][10]");
  give_back_pending(first, b, Closed::no, 2 * kSecondNs);
  give_back_pending(second, c, Closed::yes, 3 * kSecondNs);
  give_back(ten);
  ASSERT_TRUE(pool->trim(lock, kGiB).ok());
  EXPECT_EQ(picture(), "[^1][^1][^6][1][-1][-1][-10]");
  EXPECT_EQ(pool->validate(), "");
  sim.advance_host_ns(kSecondNs + kSecondNs / 2);
  ASSERT_TRUE(pool->learn(16).ok());
  ASSERT_TRUE(pool->trim(lock, kGiB).ok());
  EXPECT_EQ(picture(), "[~8][1][-1][-1][-10]");
  EXPECT_TRUE(b.timeline->wanted) << "or its number would never be proven";
  EXPECT_TRUE(timelines.close(*b.timeline, *b.stream).ok());
  sim.run_until_idle();
  ASSERT_TRUE(pool->learn(16).ok());
  ASSERT_TRUE(pool->settle(lock).ok());
  EXPECT_EQ(picture(), "[*8][1][-12]");
}

TEST_F(TwoPlaces, a_call_that_fails_leaves_the_end_where_it_was) {
  for (const Call call : {Call::mem_create, Call::mem_map, Call::mem_set_access}) {
    driver.refused = call;
    EXPECT_FALSE(allocate(10, a));
    EXPECT_EQ(picture(), "[2][-6][1]");
    EXPECT_EQ(pool->validate(), "");
  }
  driver.refused.reset();
  take_ten();
}

}  // namespace
}  // namespace vpmm::pool
