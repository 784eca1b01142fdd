// pool: each driver call of a plan fails in turn, with every error that matters, once and from then on.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <optional>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "pool/mover_world.hpp"

namespace vpmm::pool {
namespace {

using driver::Call;
using driver::CuResult;
using driver::FaultPlan;

struct PlanCase {
  const char* name;
  std::function<void(MoverWorld&)> build;
  Bytes pages;
  const char* plan;
};
std::ostream& operator<<(std::ostream& out, const PlanCase& c) { return out << c.name; }

std::vector<PlanCase> plan_cases() {
  return {
      {"creates",
       [](MoverWorld& world) {
         world.allocated(0, 1);
         world.map_free(1, {1});
       },
       12, "12 = keep 1 create 8 create 3"},
      {"moves_and_creates",
       [](MoverWorld& world) {
         world.map_free(0, {2, 8});
         world.allocated(10, 1);
         world.map_pending(11, {4});
         world.allocated(15, 1);
       },
       17, "17 = move 10 of [-10] move 4 of [-4] create 3"},
      {"keeps_moves_and_splits",
       [](MoverWorld& world) {
         world.map_free(0, {8});
         world.allocated(8, 1);
         world.map_pending(9, {2});
         world.allocated(11, 1);
         world.map_pending(12, {1});
       },
       6, "6 = keep 1 move 2 of [-2] split 8 create 3"},
      {"keeps_several_regions_before_a_hole",
       [](MoverWorld& world) {
         world.allocated(0, 1);
         world.map_free(1, {2});
         world.allocated(3, 1);
         world.map_pending(20, {1});
         world.map_free(21, {2, 32});
         world.allocated(55, 1);
       },
       10, "10 = keep 3 move 2 of [-2] split 32 create 5"},
      {"splits_within_what_it_keeps_and_moves",
       [](MoverWorld& world) {
         world.allocated(0, 1);
         world.map_free(1, {2, 64, 4, 1});
       },
       17, "17 = keep 5 move 2 of [-71] split 64 create 8 create 2"},
      {"splits_and_leaves_the_back",
       [](MoverWorld& world) {
         world.allocated(0, 1);
         world.map_free(1, {16, 64});
         world.allocated(81, 1);
       },
       12, "12 = split 16 create 8 create 4"},
  };
}

// What was idle, to be compared with what is idle after a failure.
struct Idle {
  struct Piece {
    AddressRange range;
    time::Stamp stamp;
    std::uint64_t age;
    friend bool operator==(const Piece&, const Piece&) = default;
  };
  std::vector<Piece> regions;                               // without the one in which a chunk is split
  std::vector<std::pair<DevicePtr, std::uint64_t>> chunks;  // at which address, whose handle
  Bytes bytes = 0;
  Bytes held = 0;

  Idle(MoverWorld& world, const std::optional<AddressRange>& region_of_split, const AddressRange& split) {
    world.memory.index.for_each([&](const region::Region& region) {
      if (region.state != region::RegionState::free) return;
      if (!region_of_split || !region_of_split->overlaps(region.range))
        regions.push_back({region.range, region.stamp, region.age});
      for (const vm::Mapping& mapping : world.memory.chunks.inside(region.range))
        if (!split.contains(mapping.at))
          chunks.emplace_back(mapping.at, static_cast<std::uint64_t>(mapping.chunk->handle));
    });
    bytes = world.memory.index.bytes(region::RegionState::free);
    held = world.memory.held_bytes();
  }
};

class MoverFault : public testing::TestWithParam<PlanCase> {
 protected:
  // What is wrong after a run with this fault; empty: nothing. `fired`: whether it struck.
  std::string run(const FaultPlan& fault, bool& fired) {
    MoverWorld world;
    GetParam().build(world);
    const Plan plan = world.plan(world.ask(GetParam().pages));
    if (to_string(plan, kPage) != GetParam().plan) return "another plan: " + to_string(plan, kPage);
    const AddressRange split = plan.split ? plan.split->part.range : AddressRange{};
    std::optional<AddressRange> region_of_split;
    if (plan.split) region_of_split = plan.split->part.from->range;
    const Idle before(world, region_of_split, split);
    world.faults.set_plan(fault);
    const Result<region::Region*> result = world.carry_out(plan);
    fired = world.faults.fired() > 0;
    world.faults.clear_plan();
    if (std::string broken = world.broken(); !broken.empty()) return broken;
    const Idle after(world, region_of_split, split);
    std::string broken = result ? broken_success(world, plan, result.value(), before, after)
                                : broken_failure(world, plan, before, after);
    return broken.empty() ? broken_afterwards(world, result.ok()) : broken;
  }

 private:
  static std::string broken_success(MoverWorld& world, const Plan& plan, region::Region* region, const Idle& before,
                                    const Idle& after) {
    if (region->range != AddressRange{plan.allocation, plan.request}) return "another allocation";
    world.use(region);
    Bytes taken = plan.kept_bytes() + plan.moved_bytes();
    if (plan.split) taken += plan.split->part.range.size;
    const Bytes left = plan.split ? plan.split->left.size : 0;
    if (after.bytes + taken != before.bytes && after.bytes + taken != before.bytes + left) return "other idle memory";
    return {};
  }
  // Everything is where it was, but for a chunk that was split.
  static std::string broken_failure(MoverWorld& world, const Plan& plan, const Idle& before, const Idle& after) {
    if (after.regions != before.regions) return "another state of idle regions: " + world.memory.index.picture();
    if (!std::includes(after.chunks.begin(), after.chunks.end(), before.chunks.begin(), before.chunks.end()))
      return "an idle chunk is lost: " + world.memory.index.picture();
    const Bytes split = plan.split ? plan.split->part.range.size : 0;
    if (after.bytes + split < before.bytes) return "more than the chunk that was split is lost";
    if (after.held - world.memory.quarantine.bytes() > before.held) return "more is held";
    if (world.memory.counters.failed_plans != 1) return "the failure is not counted";
    return {};
  }
  // The faults are gone: what was quarantined goes back, and the request succeeds.
  static std::string broken_afterwards(MoverWorld& world, bool is_served) {
    world.finish_work();
    for (int round = 0; round < 2; ++round)
      if (!world.reclaimer.sweep(world.lock, 1000)) return "a sweep fails";
    if (world.memory.quarantine.bytes() > 0) return "the quarantine is not empty: " + world.memory.index.picture();
    if (world.memory.index.bytes(region::RegionState::zombie) > 0) return "a zombie is left";
    if (std::string broken = world.broken(); !broken.empty()) return broken + " after a sweep";
    if (is_served) return {};
    const Bytes idle = world.memory.index.bytes(region::RegionState::free);
    const Plan again = world.plan(world.ask(GetParam().pages));
    if (again.growth() != again.request - std::min(again.request, idle)) return "growth is not what is lacking";
    const Result<region::Region*> taken = world.carry_out(again);
    if (!taken) return "the request fails although the driver works";
    world.use(taken.value());
    return world.broken();
  }
};

TEST_P(MoverFault, loses_nothing_but_what_the_driver_took_and_the_next_try_succeeds) {
  int failures = 0;
  int cases = 0;
  for (const Call call : {Call::mem_unmap, Call::mem_release, Call::mem_create, Call::mem_map, Call::mem_set_access})
    for (const CuResult error : driver::errors_that_matter(call))
      for (const auto repeat : {FaultPlan::Repeat::once, FaultPlan::Repeat::from_then_on}) {
        bool fired = true;
        for (std::uint64_t nth = 1; fired && failures < 5; ++nth, ++cases) {
          const std::string broken = run({{call}, nth, error, repeat}, fired);
          if (broken.empty()) continue;
          ADD_FAILURE() << driver::to_string(call) << " " << nth << " gives " << driver::to_string(error)
                        << (repeat == FaultPlan::Repeat::once ? " once: " : " from then on: ") << broken;
          ++failures;
        }
      }
  EXPECT_GT(cases, 40);
}

TEST_P(MoverFault, loses_nothing_when_every_call_fails_from_one_on) {
  for (const CuResult error : {CuResult::invalid_value, CuResult::illegal_address}) {
    bool fired = true;
    for (std::uint64_t nth = 1; fired; ++nth) {
      const std::string broken = run({{}, nth, error, FaultPlan::Repeat::from_then_on}, fired);
      ASSERT_EQ(broken, "") << "call " << nth << " gives " << driver::to_string(error);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Plans, MoverFault, testing::ValuesIn(plan_cases()),
                         [](const auto& c) { return std::string(c.param.name); });

// --- what a split leaves --------------------------------------------------------------------------------------------

class SplitFault : public testing::Test, protected MoverWorld {
 protected:
  SplitFault() {
    map_free(0, {64});
    allocated(64, 1);
  }
  // Of the calls so far, one of `call` fails.
  Result<region::Region*> take(Call call, std::uint64_t nth) {
    const Plan splitting = plan(ask(10));
    EXPECT_EQ(to_string(splitting, kPage), "10 = split 64 create 8 create 2");
    faults.set_plan({{call}, nth, CuResult::out_of_memory, FaultPlan::Repeat::once});
    Result<region::Region*> taken = carry_out(splitting);
    EXPECT_EQ(faults.fired(), 1u);
    faults.clear_plan();
    EXPECT_EQ(broken(), "");
    if (taken) use(taken.value());
    return taken;
  }
};

TEST_F(SplitFault, the_chunk_stays_where_it_cannot_be_unmapped) {
  EXPECT_FALSE(take(Call::mem_unmap, 1).ok());
  EXPECT_EQ(memory.index.picture(), "[-64][1]");
}

TEST_F(SplitFault, a_chunk_that_cannot_be_released_is_quarantined) {
  EXPECT_FALSE(take(Call::mem_release, 1).ok());
  EXPECT_EQ(memory.index.picture(), "[*64][1]");
  EXPECT_EQ(memory.quarantine.bytes(), 64 * kPage);
}

TEST_F(SplitFault, the_chunk_is_gone_where_none_can_be_created_in_its_place) {
  EXPECT_FALSE(take(Call::mem_create, 3).ok());
  EXPECT_EQ(memory.index.picture(), "[*64][1]");
  EXPECT_EQ(memory.held_bytes(), kPage);
}

TEST_F(SplitFault, the_request_succeeds_without_what_would_be_left) {
  EXPECT_TRUE(take(Call::mem_map, 1).ok());
  EXPECT_EQ(memory.index.picture(), "[*64][1][10]");
  EXPECT_EQ(memory.held_bytes(), 11 * kPage);
}

TEST_F(SplitFault, what_is_left_is_free_where_the_request_cannot_be_mapped) {
  EXPECT_FALSE(take(Call::mem_map, 4).ok());
  EXPECT_EQ(memory.index.picture(), "[-54][*10][1]");
}

}  // namespace
}  // namespace vpmm::pool
