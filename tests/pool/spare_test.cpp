// pool: beyond the budget idle chunks are spared: two ends of chunks in use serve a request, or a chunk is cut.
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "driver/forwarding.hpp"
#include "pool/pool_fixture.hpp"

namespace vpmm::pool {
namespace {

using driver::Call;
using driver::CuResult;

// Refuses one call, or all, of a kind.
class RefusingDriver final : public driver::ForwardingDriver {
 public:
  using ForwardingDriver::ForwardingDriver;
  std::optional<Call> refused;
  bool is_for_once = false;
  std::function<void()> meanwhile;  // what somebody else does while the first such call runs

 private:
  std::optional<CuResult> before(Call call) override {
    if (call != refused) return std::nullopt;
    if (is_for_once) refused.reset();
    if (meanwhile) std::exchange(meanwhile, {})();
    return call == Call::mem_create ? CuResult::out_of_memory : CuResult::invalid_value;
  }
};

// [-8]: one idle chunk of eight pages, in a pool that holds more than its budget.
class CutPool : public PoolFixture<RefusingDriver> {
 protected:
  explicit CutPool(std::uint64_t max_mappings = Config{}.max_mappings) {
    config.page_chunks = false;
    config.max_mappings = max_mappings;
    open();
    const DevicePtr chunk = take(8, a);
    give_back(chunk);
    pool->reset_peaks();
    EXPECT_EQ(figures().chunks, 1u);
  }
  std::string picture() const { return pool->picture(); }
};

TEST_F(CutPool, what_a_request_leaves_of_an_idle_chunk_is_a_chunk_of_its_own) {
  take(3, a);
  EXPECT_EQ(picture(), "[3][-5]");
  EXPECT_EQ(figures().chunks, 2u);
  EXPECT_EQ(figures().mapped_bytes, 8 * kPage);
  EXPECT_EQ(pool->trim(lock, 0).value(), 5 * kPage) << "nothing of it is pinned";
}

TEST_F(CutPool, within_the_budget_the_chunk_stays_whole) {
  const DevicePtr all = take(8, a);
  give_back(all);
  take(3, a);
  EXPECT_EQ(figures().chunks, 1u);
}

TEST_F(CutPool, before_it_grows_again_a_pool_cuts_no_more_than_it_has) {
  for (Bytes pages = 7; pages > 0; --pages) {
    give_back(take(pages, a));
    pool->reset_peaks();
  }
  EXPECT_EQ(figures().chunks, 2u);
}

TEST_F(CutPool, memory_that_work_still_uses_is_not_given_back) {
  give_back_pending(take(8, a), a, Closed::yes);
  pool->reset_peaks();
  take(3, a);
  EXPECT_EQ(picture(), "[3][-5]");
  EXPECT_EQ(figures().chunks, 1u);
}

TEST_F(CutPool, nothing_is_cut_while_cleaning_up_is_put_off) {
  pool->hold_cleanup(true);
  take(3, a);
  EXPECT_EQ(figures().chunks, 1u);
}

TEST_F(CutPool, a_chunk_that_the_driver_never_unmaps_is_tried_once_before_the_pool_grows_again) {
  driver.refused = Call::mem_unmap;
  give_back(take(3, a));
  driver.refused.reset();
  take(3, a);
  EXPECT_EQ(figures().chunks, 1u);
}

class CutAtLimit : public CutPool {
 protected:
  CutAtLimit() : CutPool(1) {}
};

TEST_F(CutAtLimit, nothing_is_cut_where_there_may_be_no_mapping_more) {
  take(3, a);
  EXPECT_EQ(picture(), "[3][-5]");
  EXPECT_EQ(figures().mappings, 1u);
}

TEST_F(CutPool, a_request_that_must_make_no_driver_call_leaves_it_to_one_that_may) {
  const PageRequest request{3 * kPage, 3 * kPage, kPage};
  EXPECT_FALSE(pool->is_hit(request, a));
  EXPECT_TRUE(is_null(pool->allocate_hit(request, a)));
  take(3, a);
  EXPECT_FALSE(is_null(pool->allocate_hit({5 * kPage, 5 * kPage, kPage}, a)));
}

TEST_F(CutPool, a_chunk_that_the_driver_does_not_unmap_is_used_as_it_is) {
  driver.refused = Call::mem_unmap;
  take(3, a);
  EXPECT_EQ(picture(), "[3][-5]");
  EXPECT_EQ(figures().chunks, 1u);
  driver.refused.reset();
}

TEST_F(CutPool, a_chunk_that_the_driver_does_not_take_back_is_quarantined_and_the_request_served) {
  driver.refused = Call::mem_release;
  take(3, a);
  EXPECT_EQ(figures().quarantined_bytes, 8 * kPage);
  driver.refused.reset();
  EXPECT_TRUE(pool->settle(lock).ok());
  EXPECT_EQ(figures().quarantined_bytes, 0u);
}

TEST_F(CutPool, where_the_memory_was_taken_by_others_meanwhile_the_request_creates_its_own) {
  driver.refused = Call::mem_create;
  driver.is_for_once = true;
  take(3, a);
  EXPECT_EQ(figures().mapped_bytes, 3 * kPage);
}

// [2][-6][8][-5][3][-88], behind eighteen pages: fourteen chunks of eight pages, in a pool that holds more than its
// budget.
class JointPool : public PoolFixture<RefusingDriver> {
 protected:
  explicit JointPool(std::uint64_t max_mappings = Config{}.max_mappings) {
    config.page_chunks = false;
    config.max_mappings = max_mappings;
    open();
    take(18, a);
    arrange();
    EXPECT_EQ(picture(), "[18][2][-6][8][-5][3][-88]");
    EXPECT_EQ(figures().chunks, 15u);
  }
  void arrange() {
    give_back(take(112, a));
    for (const Bytes pages : {2, 6, 8, 5, 3}) live_.push_back(take(pages, a));
    for (const std::size_t freed : {3, 1}) {
      give_back(live_[freed]);
      live_.erase(live_.begin() + static_cast<std::ptrdiff_t>(freed));
    }
    pool->reset_peaks();
  }
  std::string picture() const { return pool->picture(); }
  void refuse_once(Call call) {
    driver.refused = call;
    driver.is_for_once = true;
    take(11, a);
    EXPECT_EQ(figures().failed_plans, 1u);
    EXPECT_EQ(figures().quarantined_bytes, 0u);
    EXPECT_EQ(picture(), "[18][2][-6][8][-5][3][11][-77]");
  }

  Vector<DevicePtr> live_;
};

TEST_F(JointPool, two_ends_of_chunks_in_use_serve_a_request_that_would_break_an_idle_chunk) {
  const DevicePtr eleven = take(11, a);
  EXPECT_EQ(picture(), "[18][2][^6][8][^5][3][-88][^2][11][^3]");
  EXPECT_EQ(figures().chunks, 15u);
  EXPECT_EQ(figures().mappings, 17u);
  EXPECT_EQ(figures().mapped_bytes, 130 * kPage);
  EXPECT_EQ(pool->trim(lock, 0).value(), 88 * kPage) << "nothing of it is pinned";
  give_back(eleven);
  EXPECT_EQ(take(11, a), eleven);
}

TEST_F(JointPool, ends_that_do_not_suffice_stay_where_they_are) {
  take(12, a);
  EXPECT_EQ(picture(), "[18][2][-6][8][-5][3][12][-76]");
  EXPECT_EQ(figures().chunks, 16u) << "a chunk was cut";
}

TEST_F(JointPool, a_place_that_breaks_no_chunk_is_better) {
  take(16, a);
  EXPECT_EQ(picture(), "[18][2][-6][8][-5][3][16][-72]");
}

TEST_F(JointPool, within_the_budget_they_stay_where_they_are) {
  const DevicePtr all[] = {take(6, a), take(5, a), take(88, a)};
  for (const DevicePtr ptr : all) give_back(ptr);
  take(11, a);
  EXPECT_EQ(figures().mappings, 15u);
}

TEST_F(JointPool, they_stay_where_they_are_while_cleaning_up_is_put_off) {
  pool->hold_cleanup(true);
  take(11, a);
  EXPECT_EQ(figures().mappings, 15u);
}

TEST_F(JointPool, where_the_driver_does_not_map_the_request_is_put_where_it_fits) { refuse_once(Call::mem_map); }
TEST_F(JointPool, where_the_driver_grants_no_access_it_is_put_where_it_fits) { refuse_once(Call::mem_set_access); }

TEST_F(JointPool, where_the_driver_refuses_and_the_place_is_taken_meanwhile_another_is_found) {
  driver.refused = Call::mem_map;
  driver.is_for_once = true;
  driver.meanwhile = [this] {
    MutexLock other(mutex);
    EXPECT_TRUE(pool->allocate(other, {88 * kPage, 88 * kPage, kPage}, b).ok());
  };
  take(11, a);
  EXPECT_EQ(figures().failed_plans, 1u);
  EXPECT_EQ(picture(), "[18][2][^6][8][^5][3][88][^2][11][^3]") << "the ends, in place of new memory";
}

TEST_F(JointPool, after_a_refusal_nothing_more_is_tried_before_the_pool_grows) {
  driver.refused = Call::mem_map;
  give_back(take(11, a));
  give_back(take(11, a));
  EXPECT_EQ(figures().failed_plans, 1u);
  driver.refused.reset();
}

TEST_F(JointPool, serves_any_stream_from_what_is_complete) {
  EXPECT_TRUE(pool->allocate(lock, {11 * kPage, 11 * kPage, kPage}, Caller{}).ok());
  EXPECT_TRUE(pool->was_complete());
  EXPECT_EQ(picture(), "[18][2][^6][8][^5][3][-88][^2][11][^3]");
}

TEST_F(JointPool, before_it_grows_again_a_pool_joins_no_more_than_it_has) {
  std::uint64_t joined = 0;
  for (int period = 0; period < 20; ++period) {
    const std::uint64_t before = figures().plans;
    live_.push_back(take(11, a));
    joined += figures().plans - before;
    for (const DevicePtr ptr : live_) give_back(ptr);
    live_.clear();
    EXPECT_EQ(pool->trim(lock, 130 * kPage).value(), 0u) << "the ends go home";
    arrange();
  }
  EXPECT_EQ(joined, 9u) << "two chunks of eight each time, in a pool of 130";
}

TEST_F(JointPool, work_that_goes_on_keeps_memory_from_being_cut_but_not_from_being_spared) {
  give_back_pending(take(88, a), a, Closed::yes);
  pool->reset_peaks();
  const PageRequest request{11 * kPage, 11 * kPage, kPage};
  EXPECT_FALSE(pool->is_hit(request, a));
  EXPECT_TRUE(is_null(pool->allocate_hit(request, a)));
  take(11, a);
  EXPECT_EQ(picture(), "[18][2][^6][8][^5][3][-88][^2][11][^3]");
}

class JointAtLimit : public JointPool {
 protected:
  JointAtLimit() : JointPool(16) {}
};

TEST_F(JointAtLimit, nothing_is_joined_where_there_may_be_no_two_mappings_more) {
  take(11, a);
  EXPECT_LE(figures().mappings, 16u);
  EXPECT_EQ(picture(), "[18][2][-6][8][-5][3][11][-77]");
}

}  // namespace
}  // namespace vpmm::pool
