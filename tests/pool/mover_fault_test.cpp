// SPDX-License-Identifier: Apache-2.0
// pool: each driver call of a plan fails in turn, with every error that matters, once and from then
// on; and each allocation of host memory.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "base/host_memory.hpp"
#include "fault/host_faults.hpp"
#include "pool/mover_world.hpp"
#include "pool/no_host_memory.hpp"

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
  Bytes alignment = 0;  // in pages; 0: none
};
std::ostream& operator<<(std::ostream& out, const PlanCase& c) { return out << c.name; }

std::vector<PlanCase> plan_cases() {
  return {
      {"creates",
       [](MoverWorld& world) {
         world.allocated(0, 1);
         world.map_free(1, {1});
       },
       12, "12 = keep 1 create 8 create 8"},
      {"moves_and_creates",
       [](MoverWorld& world) {
         world.map_free(0, {2, 8});
         world.allocated(10, 1);
         world.map_pending(11, {4});
         world.allocated(15, 1);
       },
       17, "17 = move 4 of [-4] move 10 of [-10] create 8"},
      {"keeps_and_moves_and_leaves_what_is_complete",
       [](MoverWorld& world) {
         world.map_free(0, {8});
         world.allocated(8, 1);
         world.map_pending(9, {2});
         world.allocated(11, 1);
         world.map_pending(12, {1});
       },
       6, "6 = keep 1 move 2 of [-2] move 8 of [-8]"},
      {"moves_and_leaves_what_is_pending",
       [](MoverWorld& world) {
         world.map_free(0, {2});
         world.allocated(2, 1);
         world.map_pending(3, {8});
         world.allocated(11, 1);
       },
       5, "5 = move 2 of [-2] move 8 of [-8]"},
      {"keeps_several_regions_behind_a_hole",
       [](MoverWorld& world) {
         world.allocated(0, 1);
         world.map_free(1, {2});
         world.allocated(3, 1);
         world.map_pending(20, {1});
         world.map_free(21, {2});
         world.allocated(23, 1);
       },
       6, "6 = keep 3 move 2 of [-2] create 8"},
      {"keeps_what_is_idle_of_a_chunk_and_leaves_a_part_of_another",
       [](MoverWorld& world) {
         world.map_free(0, {8});
         world.used(0, 3);
         world.allocated(30, 1);
         world.map_pending(31, {8, 4});
         world.used(39, 4);
       },
       9, "9 = keep 5 move 8 of [-8]"},
      {"moves_beside_what_it_keeps_of_one_region",
       [](MoverWorld& world) {
         world.allocated(0, 1);
         world.map_free(1, {1, 1, 1, 1, 1});
       },
       4, "4 = keep 2 move 2 of [-5]", 4},
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
  std::vector<Piece> regions;
  std::vector<std::pair<DevicePtr, std::uint64_t>> chunks;  // at which address, whose handle
  Bytes bytes = 0;
  Bytes held = 0;
  Bytes trapped = 0;

  explicit Idle(MoverWorld& world) {
    world.memory.index.for_each([&](const region::Region& region) {
      if (region.state != region::RegionState::free) return;
      regions.push_back({region.range, region.stamp, region.age()});
      world.memory.chunks.for_each_around(region.range, [&](const vm::Mapping& mapping) {
        chunks.emplace_back(mapping.at, static_cast<std::uint64_t>(mapping.chunk->handle));
      });
    });
    bytes = world.memory.index.bytes(region::RegionState::free);
    held = world.memory.held_bytes();
    trapped = world.memory.chunks.trapped_bytes();
  }
};

Plan plan_of(MoverWorld& world, const PlanCase& c) {
  Ask ask = world.ask(c.pages);
  if (c.alignment != 0) ask.alignment = c.alignment * kPage;
  return world.plan(ask);
}

class MoverFault : public testing::TestWithParam<PlanCase> {
 protected:
  // What is wrong after a run with this fault; empty: nothing. `fired`: whether it struck.
  std::string run(const FaultPlan& fault, bool& fired) {
    MoverWorld world;
    GetParam().build(world);
    const Plan plan = plan_of(world, GetParam());
    if (to_string(plan, kPage) != GetParam().plan) return "another plan: " + to_string(plan, kPage);
    const Idle before(world);
    world.faults.set_plan(fault);
    const Result<region::Region*> result = world.carry_out(plan);
    fired = world.faults.fired() > 0;
    world.faults.clear_plan();
    if (std::string broken = world.broken(); !broken.empty()) return broken;
    std::string broken = result ? broken_success(world, plan, result.value(), before)
                                : broken_failure(world, before);
    return broken.empty() ? broken_afterwards(world, result.ok()) : broken;
  }

 private:
  static std::string broken_success(MoverWorld& world, const Plan& plan, region::Region* region,
                                    const Idle& before) {
    if (region->range != plan.range()) return "another allocation";
    world.use(region);
    const Bytes excess = plan.kept_bytes() + plan.mapped.size - plan.request;
    if (Idle(world).bytes + plan.request != before.bytes + plan.growth())
      return "other idle memory";
    if (excess == 0) return {};
    const region::Region* const beside =
        plan.is_mapped_in_front() ? region->previous : region->next;
    if (beside->state != region::RegionState::free || beside->range.size != excess)
      return "what is too much is lost";
    const time::Stamp stamp = plan.creates.empty() ? plan.moves.back().part.stamp : time::Stamp();
    return beside->stamp == stamp ? "" : "what is too much has another stamp";
  }
  // Everything is where it was.
  static std::string broken_failure(MoverWorld& world, const Idle& before) {
    const Idle after(world);
    if (after.regions != before.regions)
      return "another state of idle regions: " + world.memory.index.picture();
    if (after.chunks != before.chunks) return "other idle chunks: " + world.memory.index.picture();
    if (after.trapped != before.trapped) return "more or less is trapped";
    if (after.held - world.memory.quarantine.bytes() > before.held) return "more is held";
    if (world.memory.counters.failed_plans != 1) return "the failure is not counted";
    return {};
  }
  // The faults are gone: what was quarantined goes back, and the request succeeds.
  static std::string broken_afterwards(MoverWorld& world, bool is_served) {
    world.finish_work();
    for (int round = 0; round < 2; ++round)
      if (!world.reclaimer.sweep(world.lock, 1000)) return "a sweep fails";
    if (world.memory.quarantine.bytes() > 0)
      return "the quarantine is not empty: " + world.memory.index.picture();
    if (world.memory.index.bytes(region::RegionState::zombie) > 0) return "a zombie is left";
    if (std::string broken = world.broken(); !broken.empty()) return broken + " after a sweep";
    if (is_served) return {};
    const Result<region::Region*> taken = world.carry_out(plan_of(world, GetParam()));
    if (!taken) return "the request fails although the driver works";
    world.use(taken.value());
    return world.broken();
  }
};

TEST_P(MoverFault, loses_nothing_but_what_the_driver_took_and_the_next_try_succeeds) {
  int failures = 0;
  int cases = 0;
  for (const Call call :
       {Call::mem_unmap, Call::mem_release, Call::mem_create, Call::mem_map, Call::mem_set_access})
    for (const CuResult error : driver::errors_that_matter(call))
      for (const auto repeat : {FaultPlan::Repeat::once, FaultPlan::Repeat::from_then_on}) {
        bool fired = true;
        for (std::uint64_t nth = 1; fired && failures < 5; ++nth, ++cases) {
          const std::string broken = run({{call}, nth, error, repeat}, fired);
          if (broken.empty()) continue;
          ADD_FAILURE() << driver::to_string(call) << " " << nth << " gives "
                        << driver::to_string(error)
                        << (repeat == FaultPlan::Repeat::once ? " once: " : " from then on: ")
                        << broken;
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

// What it created is gone with its mapping, which a sweep takes away later.
TEST_P(MoverFault, loses_nothing_where_what_it_mapped_can_be_neither_used_nor_unmapped) {
  for (const Call call : {Call::mem_set_access, Call::mem_map}) {
    bool fired = true;
    for (std::uint64_t nth = 1; fired; ++nth) {
      const FaultPlan fault{
          {call, Call::mem_unmap}, nth, CuResult::invalid_value, FaultPlan::Repeat::from_then_on};
      ASSERT_EQ(run(fault, fired), "") << driver::to_string(call) << " " << nth;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Plans, MoverFault, testing::ValuesIn(plan_cases()),
                         [](const auto& c) { return std::string(c.param.name); });

// --- host memory

class MoverHostFault : public testing::TestWithParam<PlanCase> {
 protected:
  void TearDown() override { fault::HostFaults::disarm(); }
  // What is wrong where the `n`-th allocation of host memory fails, and those behind it, too, or
  // not.
  std::string run(std::uint64_t n, fault::HostFaults::Repeat repeat, std::uint64_t& counted) {
    MoverWorld world;
    GetParam().build(world);
    const Plan plan = plan_of(world, GetParam());
    const region::Owner owner{plan.request, world.own->id, {}, 0};
    Result<region::Region*> taken = nullptr;
    {
      fault::HostFaults::arm(n, repeat);
      const fault::InsidePool inside;
      taken = world.mover.carry_out(world.lock, plan, owner);
    }
    counted = fault::HostFaults::counted();
    fault::HostFaults::disarm();
    if (!taken) return "the plan fails although there is a reserve";
    if (taken.value()->range != plan.range()) return "another allocation";
    world.use(taken.value());
    return world.broken();
  }
};

TEST_P(MoverHostFault, a_plan_is_carried_out_whichever_allocation_of_host_memory_fails) {
  std::uint64_t all = 0;
  std::uint64_t counted = 0;
  ASSERT_EQ(run(0, fault::HostFaults::Repeat::once, all), "") << "without any fault";
  ASSERT_GT(all, 0u);
  for (std::uint64_t n = 1; n <= all; ++n)
    for (const auto repeat :
         {fault::HostFaults::Repeat::once, fault::HostFaults::Repeat::from_then_on}) {
      ASSERT_EQ(run(n, repeat, counted), "") << "allocation " << n << " of " << all;
      ASSERT_GE(counted, n);
    }
  EXPECT_EQ(host_reserve::used(), 0u) << "what the reserve gave came back";
}

TEST_P(MoverHostFault, a_plan_whose_host_memory_nobody_promises_changes_nothing) {
  MoverWorld world;
  GetParam().build(world);
  const Plan plan = plan_of(world, GetParam());
  const Idle before(world);
  const std::string picture = world.memory.index.picture(kPage);
  world.faults.set_plan({{}, 1'000'000, CuResult::out_of_memory, FaultPlan::Repeat::once});
  Result<region::Region*> refused = nullptr;
  {
    const NoHostMemory none;
    refused = world.carry_out(plan);
  }
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, ErrorCode::host_out_of_memory);
  EXPECT_EQ(world.faults.counted(), 0u) << "calls of the driver";
  EXPECT_EQ(world.memory.index.picture(kPage), picture);
  EXPECT_EQ(Idle(world).regions, before.regions);
  EXPECT_EQ(world.memory.counters.failed_plans, 0u) << "it has not begun";
  EXPECT_EQ(world.broken(), "");
  const Result<region::Region*> taken = world.carry_out(plan);
  ASSERT_TRUE(taken.ok()) << "once there is some again";
  world.use(taken.value());
}

INSTANTIATE_TEST_SUITE_P(Plans, MoverHostFault, testing::ValuesIn(plan_cases()),
                         [](const auto& c) { return std::string(c.param.name); });

}  // namespace
}  // namespace vpmm::pool
