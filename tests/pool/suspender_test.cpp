// SPDX-License-Identifier: Apache-2.0
// pool: chunks leave allocations that are suspended and come back, whichever driver call fails.
#include "pool/suspender.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "pool/mover_world.hpp"
#include "pool/no_host_memory.hpp"

namespace vpmm::pool {
namespace {

using driver::Call;
using driver::CuResult;
using driver::FaultPlan;
using region::Region;
using Fate = Suspender::Fate;

// Two allocations with own chunks: of 3 pages in two chunks, and of 2 pages in one. Behind each is
// one that stays.
class SuspendWorld : public MoverWorld {
 public:
  explicit SuspendWorld(const settings::Config& of = config()) : MoverWorld(of) {
    first = own(0, {2, 1});
    allocated(3, 1);
    second = own(4, {2});
    allocated(6, 1);
  }
  ~SuspendWorld() override {
    faults.clear_plan();
    memory.mapping_observer = nullptr;
    for (Region* const region : {first, second})
      if (region->is_suspended) suspender.drop(region);
  }

  // In use, and no other allocation touches its chunks.
  Region* own(Bytes page_number, const Vector<Bytes>& sizes) {
    map_free(page_number, sizes);
    used(page_number, std::accumulate(sizes.begin(), sizes.end(), Bytes{0}));
    Region* const region = at(page_number);
    region->has_own_chunks = true;
    return region;
  }
  // All work is done, and the host knows.
  void see_done() {
    EXPECT_EQ(sim.stream_synchronize(stream), CuResult::success);
    finish_work();
  }
  Result<void> suspend(Fate fate) {
    see_done();
    Result<void> result = suspender.suspend(lock, {first, second}, fate);
    forget_suspended();
    return result;
  }
  // With memory that was allocated for it at pages 20 and 30.
  Result<void> resume(const std::optional<FaultPlan>& fault = std::nullopt,
                      MappingObserver* observer = nullptr) {
    refills = {{first, own(20, {1, 2})}, {second, own(30, {2})}};
    for (int i = 0; i < 2; ++i) contents[i] = (lives.end() - 2 + i)->content;
    see_done();
    memory.mapping_observer = observer;
    if (fault) faults.set_plan(*fault);
    Result<void> result = suspender.resume(lock, refills);
    const Region* const regions[] = {first, second};
    for (int i = 0; i < 2; ++i) {  // the memory lives on there, or nowhere
      if (refills[static_cast<std::size_t>(i)].memory != nullptr && regions[i]->is_suspended)
        continue;
      std::erase_if(lives,
                    [&](const Live& live) { return live.range.begin == page(i == 0 ? 20 : 30); });
      if (!regions[i]->is_suspended) lives.push_back({regions[i]->range, contents[i]});
    }
    return result;
  }
  void forget_suspended() {
    for (const Region* const region : {first, second})
      if (region->is_suspended)
        std::erase_if(lives, [&](const Live& live) { return live.range == region->range; });
  }
  // What the driver refused while it was out of order goes back, and nothing is lost.
  std::string broken_afterwards() {
    faults.clear_plan();
    if (std::string broken = this->broken(); !broken.empty()) return broken;
    for (int round = 0; round < 2; ++round)
      if (!reclaimer.sweep(lock, 1000)) return "a sweep fails";
    if (std::string broken = this->broken(); !broken.empty()) return broken + " after a sweep";
    Bytes suspended = 0;
    for (const Region* const region : {first, second})
      if (region->is_suspended) suspended += region->range.size;
    if (memory.suspended_bytes != suspended) return "the suspended bytes are counted wrongly";
    return {};
  }

  Suspender suspender{memory};
  Region* first = nullptr;
  Region* second = nullptr;
  Vector<Suspender::Refill> refills;
  std::uint8_t contents[2] = {};
};

// Where chunks come and go, in pages of the reservation.
class Journal : public MappingObserver {
 public:
  explicit Journal(const MoverWorld& world) : world_(world) {}
  void on_map(AddressRange chunk, DevicePtr before) noexcept override {
    text += message_of("{} {} from {}; ", chunk.size / kPage, number(chunk.begin), number(before));
  }
  void on_unmap(AddressRange chunk, Fate fate) noexcept override {
    text += message_of("{} {} {}; ", chunk.size / kPage, number(chunk.begin),
                       fate == Fate::lives_on ? "moves" : "ends");
  }
  std::string text;

 private:
  Bytes number(DevicePtr at) const { return is_null(at) ? 0 : (at - world_.page(0)) / kPage; }
  const MoverWorld& world_;
};

TEST(Suspender, memory_that_stays_in_the_pool_is_free_elsewhere_in_one_piece) {
  SuspendWorld world;
  Journal journal(world);
  world.memory.mapping_observer = &journal;
  const observe::Statistics before = world.memory.counters;
  const Bytes held = world.memory.held_bytes();
  ASSERT_TRUE(world.suspend(Fate::stays_in_pool).ok());
  EXPECT_EQ(world.memory.index.picture(kPage), "[3][1][2][1][-5]");
  EXPECT_TRUE(world.at(7)->stamp.is_complete());
  EXPECT_TRUE(world.first->is_suspended && world.second->is_suspended);
  EXPECT_EQ(world.memory.suspended_bytes, 5 * kPage);
  EXPECT_EQ(world.memory.used_bytes(), 2 * kPage);
  EXPECT_EQ(world.memory.held_bytes(), held);
  EXPECT_EQ(world.memory.counters.chunks_moved, before.chunks_moved + 3);
  EXPECT_EQ(world.memory.counters.bytes_moved, before.bytes_moved + 5 * kPage);
  EXPECT_EQ(world.memory.counters.chunks_released, before.chunks_released);
  EXPECT_EQ(journal.text, "2 0 moves; 1 2 moves; 2 4 moves; 2 7 from 0; 1 9 from 2; 2 10 from 4; ");
  EXPECT_EQ(world.broken(), "");
}

TEST(Suspender, memory_that_goes_to_the_driver_is_held_no_more) {
  SuspendWorld world;
  Journal journal(world);
  world.memory.mapping_observer = &journal;
  ASSERT_TRUE(world.suspend(Fate::goes_to_driver).ok());
  EXPECT_EQ(world.memory.index.picture(kPage), "[3][1][2][1]");
  EXPECT_EQ(world.memory.suspended_bytes, 5 * kPage);
  EXPECT_EQ(world.memory.held_bytes(), 2 * kPage);
  EXPECT_EQ(world.memory.counters.chunks_released, 3u);
  EXPECT_EQ(world.memory.counters.chunks_moved, 0u);
  EXPECT_EQ(journal.text, "2 0 ends; 1 2 ends; 2 4 ends; ");
  EXPECT_EQ(world.broken(), "");
}

TEST(Suspender, nothing_to_do_makes_no_driver_call) {
  SuspendWorld world;
  world.faults.set_plan({{}, 1, CuResult::unknown, FaultPlan::Repeat::from_then_on});
  Vector<Suspender::Refill> none;
  EXPECT_TRUE(world.suspender.suspend(world.lock, {}, Fate::goes_to_driver).ok());
  EXPECT_TRUE(world.suspender.resume(world.lock, none).ok());
  EXPECT_EQ(world.faults.counted(), 0u);
}

TEST(Suspender, what_resumes_has_the_contents_of_the_memory_it_was_given) {
  for (const Fate fate : {Fate::stays_in_pool, Fate::goes_to_driver}) {
    SuspendWorld world;
    ASSERT_TRUE(world.suspend(fate).ok());
    const observe::Statistics before = world.memory.counters;
    Journal journal(world);
    ASSERT_TRUE(world.resume(std::nullopt, &journal).ok());
    world.memory.mapping_observer = nullptr;
    EXPECT_EQ(journal.text,
              "1 20 moves; 2 21 moves; 1 0 from 20; 2 1 from 21; 2 30 moves; 2 4 from 30; ");
    EXPECT_EQ(world.broken(), "") << "which compares contents";
    EXPECT_EQ(world.memory.index.picture(kPage),
              fate == Fate::stays_in_pool ? "[3][1][2][1][-5]" : "[3][1][2][1]");
    EXPECT_FALSE(world.first->is_suspended || world.second->is_suspended);
    EXPECT_EQ(world.memory.suspended_bytes, 0u);
    EXPECT_EQ(world.memory.used_bytes(), 7 * kPage);
    EXPECT_EQ(world.memory.counters.deallocations, before.deallocations + 2);
    EXPECT_EQ(world.memory.counters.chunks_moved, before.chunks_moved + 3);
    EXPECT_EQ(world.memory.counters.bytes_moved, before.bytes_moved + 5 * kPage);
  }
}

TEST(Suspender, the_address_of_what_is_dropped_is_a_hole) {
  SuspendWorld world;
  ASSERT_TRUE(world.suspend(Fate::goes_to_driver).ok());
  const observe::Statistics before = world.memory.counters;
  world.suspender.drop(world.first);
  EXPECT_EQ(world.memory.index.picture(kPage), "[*3][1][2][1]");
  EXPECT_EQ(world.memory.suspended_bytes, 2 * kPage);
  EXPECT_EQ(world.memory.counters.deallocations, before.deallocations + 1);
  EXPECT_EQ(world.broken(), "");
  world.first = world.second;
}

// Before one mapping is undone, each chunk has two.
TEST(Suspender, beyond_the_limit_of_mappings_memory_goes_to_the_driver) {
  for (const std::uint64_t limit : {std::uint64_t{8}, std::uint64_t{7}}) {
    for (const std::uint64_t elsewhere : {std::uint64_t{0}, std::uint64_t{2}}) {
      settings::Config config = SuspendWorld::config();
      // Two that stay, and three or twice three.
      config.limits.max_mappings = limit + elsewhere;
      SuspendWorld world(config);
      world.memory.others.mappings = elsewhere;
      ASSERT_TRUE(world.suspend(Fate::stays_in_pool).ok());
      EXPECT_EQ(world.memory.held_bytes(), (limit == 8 ? 7 : 2) * kPage);
      EXPECT_EQ(world.broken(), "");
    }
  }
}

TEST(Suspender, without_address_space_memory_goes_to_the_driver) {
  settings::Config config = SuspendWorld::config();
  config.va_size = 8 * kPage;
  SuspendWorld world(config);
  world.faults.set_plan(
      {{Call::mem_address_reserve}, 1, CuResult::out_of_memory, FaultPlan::Repeat::from_then_on});
  ASSERT_TRUE(world.suspend(Fate::stays_in_pool).ok());
  EXPECT_GE(world.faults.fired(), 1u);
  EXPECT_EQ(world.memory.held_bytes(), 2 * kPage);
  EXPECT_EQ(world.broken_afterwards(), "");
}

TEST(Suspender, a_suspend_that_is_undone_leaves_no_second_mapping) {
  SuspendWorld world;
  world.faults.set_plan({{Call::mem_unmap}, 1, CuResult::unknown});
  EXPECT_FALSE(world.suspend(Fate::stays_in_pool).ok());
  EXPECT_EQ(world.memory.quarantine.bytes(), 0u);
  EXPECT_EQ(world.memory.index.picture(kPage), "[3][1][2][1]");
  EXPECT_EQ(world.broken_afterwards(), "");
}

TEST(Suspender, a_broken_context_that_has_no_address_space_suspends_nothing) {
  settings::Config config = SuspendWorld::config();
  config.va_size = 8 * kPage;
  SuspendWorld world(config);
  world.faults.set_plan(
      {{Call::mem_address_reserve}, 1, CuResult::illegal_address, FaultPlan::Repeat::from_then_on});
  const Result<void> result = world.suspend(Fate::stays_in_pool);
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.error().code, ErrorCode::poisoned);
  EXPECT_FALSE(world.first->is_suspended || world.second->is_suspended);
  EXPECT_EQ(world.broken_afterwards(), "");
}

TEST(Suspender, a_context_that_breaks_while_the_driver_takes_chunks_is_told) {
  SuspendWorld world;
  world.faults.set_plan({{Call::mem_release}, 2, CuResult::illegal_address});
  const Result<void> result = world.suspend(Fate::goes_to_driver);
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.error().code, ErrorCode::poisoned);
  EXPECT_TRUE(world.first->is_suspended && world.second->is_suspended) << "all the same";
  EXPECT_EQ(world.broken_afterwards(), "");
}

// --- driver calls that fail

const std::vector<Call> kCalls{Call::mem_unmap, Call::mem_release, Call::mem_map,
                               Call::mem_set_access};

// Runs `check` for each fault of a call, and of all of them, until none strikes.
template <typename Check>
void for_each_fault(Check&& check) {
  int cases = 0;
  std::vector<std::pair<std::vector<Call>, std::vector<CuResult>>> plans;
  for (const Call call : kCalls) plans.push_back({{call}, driver::errors_that_matter(call)});
  plans.push_back({kCalls, {CuResult::invalid_value, CuResult::illegal_address}});
  plans.push_back({{Call::mem_unmap, Call::mem_map}, {CuResult::invalid_value}});
  for (const auto& [calls, errors] : plans)
    for (const CuResult error : errors)
      for (const auto repeat : {FaultPlan::Repeat::once, FaultPlan::Repeat::from_then_on}) {
        bool fired = true;
        for (std::uint64_t nth = 1; fired; ++nth, ++cases) {
          const std::string broken = check(FaultPlan{calls, nth, error, repeat}, fired);
          ASSERT_EQ(broken, "") << driver::to_string(calls.front()) << " of " << calls.size()
                                << ", number " << nth << " gives " << driver::to_string(error)
                                << (repeat == FaultPlan::Repeat::once ? "" : " from then on");
        }
      }
  EXPECT_GT(cases, 30);
}

TEST(SuspenderFault, a_suspend_loses_nothing_and_the_next_try_succeeds) {
  for (const Fate fate : {Fate::stays_in_pool, Fate::goes_to_driver})
    for_each_fault([&](const FaultPlan& plan, bool& fired) -> std::string {
      SuspendWorld world;
      world.faults.set_plan(plan);
      const Result<void> result = world.suspend(fate);
      fired = world.faults.fired() > 0;
      const bool are_suspended = world.first->is_suspended && world.second->is_suspended;
      const bool is_one = world.first->is_suspended || world.second->is_suspended;
      if (result && !are_suspended) return "a success suspends not all";
      if (!result && is_one && plan.repeat == FaultPlan::Repeat::once &&
          result.error().code != ErrorCode::poisoned)
        return "a failure that could be undone suspends";
      if (std::string broken = world.broken_afterwards(); !broken.empty()) return broken;
      world.see_done();
      Vector<Region*> rest;
      for (Region* const region : {world.first, world.second})
        if (!region->is_suspended) rest.push_back(region);
      if (!world.suspender.suspend(world.lock, rest, fate)) return "the next try fails";
      world.forget_suspended();
      if (!world.resume()) return "a resume fails";
      return world.broken_afterwards();
    });
}

TEST(SuspenderFault, a_resume_loses_nothing_and_the_next_try_succeeds) {
  for (const Fate fate : {Fate::stays_in_pool, Fate::goes_to_driver})
    for_each_fault([&](const FaultPlan& plan, bool& fired) -> std::string {
      SuspendWorld world;
      if (!world.suspend(fate)) return "the suspend fails";
      const Result<void> result = world.resume(plan);
      fired = world.faults.fired() > 0;
      if (result && (world.first->is_suspended || world.second->is_suspended))
        return "a success leaves some suspended";
      if (!result && !world.first->is_suspended && !world.second->is_suspended)
        return "a failure resumes all";
      if (!result && plan.repeat == FaultPlan::Repeat::once &&
          result.error().code != ErrorCode::poisoned) {
        if (!world.first->is_suspended || !world.second->is_suspended)
          return "a failure that could be undone resumes";
        if (world.refills[0].memory == nullptr || world.refills[1].memory == nullptr)
          return "a failure that could be undone loses memory";
      }
      if (std::string broken = world.broken_afterwards(); !broken.empty()) return broken;
      Vector<Suspender::Refill> again;
      const Vector<Suspender::Refill> before = world.refills;
      for (const Suspender::Refill& refill : before) {
        if (!refill.suspended->is_suspended) continue;
        Region* memory = refill.memory;
        const bool is_first = refill.suspended == world.first;
        if (memory == nullptr) memory = world.own(is_first ? 50 : 60, {is_first ? 3U : 2U});
        again.push_back({refill.suspended, memory});
        for (MoverWorld::Live& live : world.lives)
          if (live.range == memory->range) live.range = refill.suspended->range;
      }
      world.see_done();
      if (!world.suspender.resume(world.lock, again)) return "the next try fails";
      if (world.first->is_suspended || world.second->is_suspended) return "some stay suspended";
      return world.broken_afterwards();
    });
}

TEST(SuspenderFault, after_a_map_that_fails_nothing_more_is_moved) {
  SuspendWorld world;
  ASSERT_TRUE(world.suspend(Fate::goes_to_driver).ok());
  const FaultPlan second{{Call::mem_unmap, Call::mem_map}, 2, CuResult::invalid_value, {}};
  EXPECT_FALSE(world.resume(second).ok());
  EXPECT_EQ(world.faults.counted(), 4u) << "an unmap, the map, and two maps where the memory was";
  EXPECT_EQ(world.broken_afterwards(), "");
}

// --- host memory

TEST(SuspenderFault, without_host_memory_nothing_has_changed) {
  SuspendWorld world;
  world.see_done();
  const Vector<Region*> regions{world.first, world.second};
  for (const Fate fate : {Fate::stays_in_pool, Fate::goes_to_driver}) {
    Result<void> result;
    {
      const NoHostMemory none;
      result = world.suspender.suspend(world.lock, regions, fate);
    }
    ASSERT_FALSE(result.ok());
    EXPECT_EQ(result.error().code, ErrorCode::host_out_of_memory);
    EXPECT_EQ(world.memory.index.picture(kPage), "[3][1][2][1]");
    EXPECT_EQ(world.broken(), "");
  }
  ASSERT_TRUE(world.suspend(Fate::goes_to_driver).ok());
  Vector<Suspender::Refill> refills{{world.first, world.own(20, {3})}};
  world.see_done();
  Result<void> result;
  {
    const NoHostMemory none;
    result = world.suspender.resume(world.lock, refills);
  }
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.error().code, ErrorCode::host_out_of_memory);
  EXPECT_TRUE(world.first->is_suspended);
  EXPECT_EQ(world.broken(), "");
}

}  // namespace
}  // namespace vpmm::pool
