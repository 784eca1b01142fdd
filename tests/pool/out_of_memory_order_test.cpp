// pool: in which order the steps before a request fails are tried.
#include <array>
#include <ostream>
#include <tuple>
#include <utility>
#include <vector>

#include "pool/limited_pool.hpp"

namespace vpmm::pool {
namespace {

enum class Step { deferred, kept, moved, anew, caches, gpu_wait, host_wait };

void PrintTo(Step step, std::ostream* out) {
  constexpr std::array kNames = {"deferred", "kept", "moved", "anew", "caches", "gpu_wait", "host_wait"};
  *out << kNames.at(static_cast<std::size_t>(step));
}

// A step finds four pages, and so does each dearer one; three are wanted. The policy would rather create them.
class OutOfMemoryOrder : public LimitedPool, public testing::WithParamInterface<std::tuple<Limit, Step>> {
 protected:
  static constexpr Bytes kFound = 4;
  static constexpr Bytes kWanted = 3;
  OutOfMemoryOrder() : LimitedPool(std::get<Limit>(GetParam())) {
    config.page_chunks = false;
    config.prefer = Prefer::latency;
    if (first == Step::anew) config.max_mappings = kPages - kFound;  // what the caches leave: nothing can move
    relief.drain_deferred = [this](MutexLock&) { return give_back_once(deferred, Step::deferred); };
    relief.recall = [this](const Caller&, Bytes, bool is_short) {
      return is_short && give_back_once(kept, Step::kept);
    };
    relief.give_back_caches = [this](MutexLock&) {
      if (!has(Step::caches)) return false;
      drop_caches();
      used.push_back(Step::caches);
      return true;
    };
    open();
    take(1, a);  // so that chunks are pages from here on
    provide();
  }
  bool has(Step step) const { return first <= step; }
  bool give_back_once(DevicePtr& ptr, Step step) {
    if (is_null(ptr)) return false;
    give_back(std::exchange(ptr, DevicePtr{}));
    used.push_back(step);
    return true;
  }
  void drop_caches() {
    expect(sim.mem_release(cached));
    pool->set_other_bytes(0);
  }
  void provide() {
    const Caller c = make_caller();
    if (has(Step::deferred)) deferred = take(kFound, a);
    if (has(Step::kept)) kept = take(kFound, a);
    std::vector<DevicePtr> idle;
    for (Bytes i = 0; has(Step::anew) && i < kFound; ++i) {
      idle.push_back(take(1, a));
      take(1, a);
    }
    if (has(Step::caches)) {
      expect(sim.mem_create(kFound * kPage, driver::ChunkProperties{}, cached));
      pool->set_other_bytes(kFound * kPage);
    }
    const DevicePtr of_b = has(Step::gpu_wait) ? take(kFound, b) : DevicePtr{};
    const DevicePtr of_c = take(kFound, c);
    while (pool->mapped_bytes() + (has(Step::caches) ? kFound * kPage : 0) < kPages * kPage) take(1, a);
    for (const DevicePtr ptr : idle) give_back(ptr);
    if (!is_null(of_b)) give_back_pending(of_b, b, Closed::yes);
    give_back_pending(of_c, c, Closed::no);
    EXPECT_TRUE(timelines.close_all(time::Timelines::Everything::context_event).ok());  // no stream may wait for it
  }

  const Step first = std::get<Step>(GetParam());
  DevicePtr deferred{};
  DevicePtr kept{};
  driver::ChunkHandle cached{};
  std::vector<Step> used;
};

TEST_P(OutOfMemoryOrder, the_cheapest_step_that_helps_is_taken_and_none_after_it) {
  take(kWanted, a);
  if (figures().chunks_moved > 0) used.push_back(Step::moved);
  if (figures().chunks_released > 0) used.push_back(Step::anew);
  if (figures().gpu_waits > 0) used.push_back(Step::gpu_wait);
  if (figures().host_waits > 0) used.push_back(Step::host_wait);
  EXPECT_EQ(used, std::vector{first});
  if (first < Step::caches) drop_caches();
}

INSTANTIATE_TEST_SUITE_P(Limits, OutOfMemoryOrder,
                         testing::Combine(every_limit(),
                                          testing::Values(Step::deferred, Step::kept, Step::moved, Step::anew,
                                                          Step::caches, Step::gpu_wait, Step::host_wait)),
                         [](const auto& tested) {
                           return to_string(std::get<Limit>(tested.param)) + "_" +
                                  testing::PrintToString(std::get<Step>(tested.param));
                         });

}  // namespace
}  // namespace vpmm::pool
