// SPDX-License-Identifier: Apache-2.0
// tests/sim: what calls about chunks and mappings take on the virtual clock.
#include "driver/sim/costs.hpp"

#include <gtest/gtest.h>

#include "sim/sim_fixture.hpp"

namespace vpmm::driver::sim {
namespace {

class SimCosts : public testing::TestWithParam<Costs> {
 protected:
  static SimOptions options() {
    SimOptions options = Sim::with_schedule(Schedule::timed);
    options.costs = GetParam();
    return options;
  }
  template <typename F>
  std::uint64_t ns_of(F&& call) {
    const std::uint64_t before = sim.driver.now_ns();
    call();
    return sim.driver.now_ns() - before;
  }

  Sim sim{options()};
  const MappingCosts& costs = mapping_costs(GetParam());
};
INSTANTIATE_TEST_SUITE_P(, SimCosts, testing::Values(Costs::busy, Costs::idle),
                         [](const auto& parameter) {
                           return parameter.param == Costs::busy ? "busy" : "idle";
                         });

TEST_P(SimCosts, memory_calls_take_what_the_table_says) {
  ChunkHandle small{};
  ChunkHandle large{};
  EXPECT_EQ(ns_of([&] { small = sim.create(2 * kMiB); }), costs.create.at(2 * kMiB));
  EXPECT_EQ(ns_of([&] { large = sim.create(kGiB); }), costs.create.at(kGiB));
  const AddressRange range = sim.reserve(2 * kGiB);
  EXPECT_EQ(ns_of([&] {
              ok(sim.driver.mem_map({range.begin, kGiB}, 0, large));
            }),
            costs.map.at(kGiB));
  EXPECT_EQ(ns_of([&] { sim.allow({range.begin, kGiB}, {0}); }), costs.set_access.at(kGiB));
  EXPECT_EQ(ns_of([&] { ok(sim.driver.mem_unmap({range.begin, kGiB})); }), costs.unmap.at(kGiB));
  EXPECT_EQ(ns_of([&] { ok(sim.driver.mem_release(large)); }), costs.release.at(kGiB));
  EXPECT_EQ(ns_of([&] { ok(sim.driver.mem_release(small)); }), costs.release.at(2 * kMiB));
}

TEST_P(SimCosts, asking_what_is_free_takes_what_the_table_says) {
  MemInfo info;
  EXPECT_EQ(ns_of([&] { ok(sim.driver.mem_get_info(info)); }), costs.mem_get_info_ns);
}

TEST_P(SimCosts, one_call_about_two_mappings_takes_as_long_as_two_calls) {
  const AddressRange both = sim.reserve(66 * kMiB);
  ok(sim.driver.mem_map({both.begin, 2 * kMiB}, 0, sim.create(2 * kMiB)));
  ok(sim.driver.mem_map({both.begin + 2 * kMiB, 64 * kMiB}, 0, sim.create(64 * kMiB)));
  EXPECT_EQ(ns_of([&] { sim.allow(both, {0}); }),
            costs.set_access.at(2 * kMiB) + costs.set_access.at(64 * kMiB));
  EXPECT_EQ(ns_of([&] { ok(sim.driver.mem_unmap(both)); }),
            costs.unmap.at(2 * kMiB) + costs.unmap.at(64 * kMiB));
}

TEST(SimCostTable, has_idle_figures_as_measured_and_larger_ones_for_a_busy_process) {
  EXPECT_EQ(kIdleCosts.create.at(2 * kMiB), 7'700U);
  EXPECT_EQ(kIdleCosts.create.at(9 * kMiB), 9'500U) << "half-way between 2 and 16 MiB";
  EXPECT_EQ(kIdleCosts.release.at(8 * kGiB), 3'428'000U) << "in proportion beyond 4 GiB";
  const auto is_dearer = [](const SizedCost& busy, const SizedCost& idle) {
    return busy.at(2 * kMiB) > idle.at(2 * kMiB) && busy.at(4 * kGiB) > idle.at(4 * kGiB);
  };
  EXPECT_TRUE(is_dearer(kBusyCosts.create, kIdleCosts.create));
  EXPECT_TRUE(is_dearer(kBusyCosts.map, kIdleCosts.map));
  EXPECT_TRUE(is_dearer(kBusyCosts.set_access, kIdleCosts.set_access));
  EXPECT_TRUE(is_dearer(kBusyCosts.unmap, kIdleCosts.unmap));
  EXPECT_TRUE(is_dearer(kBusyCosts.release, kIdleCosts.release));
  EXPECT_GT(kBusyCosts.mem_get_info_ns, kIdleCosts.mem_get_info_ns);
}

}  // namespace
}  // namespace vpmm::driver::sim
