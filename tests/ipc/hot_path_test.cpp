// SPDX-License-Identifier: Apache-2.0
// ipc tests: what a pool costs is the same as long as nothing of it is shared, and for what is not
// shared afterwards.
#include <gtest/gtest.h>

#include <cstring>

#include "ipc/process.hpp"

namespace vpmm::ipc_test::hot_path_test {
namespace {

constexpr std::array<Bytes, 4> kSizes = {64, 1000, 100 * kKiB, 4 * kMiB};

struct Costs {
  std::uint64_t driver_calls = 0;
  std::uint64_t hits = 0;
  std::uint64_t plans = 0;
  std::uint64_t events_recorded = 0;
  friend bool operator==(const Costs&, const Costs&) = default;
};
void PrintTo(const Costs& costs, std::ostream* out) {
  *out << costs.driver_calls << " driver calls, " << costs.hits << " hits, " << costs.plans
       << " plans, " << costs.events_recorded << " events";
}

// Of a loop that the pool has seen before.
Costs costs_of_a_warm_loop(Process& process) {
  const Work loop = [](Parcel& parcel) {
    driver_of_actor();
    vpmm_pool* const pool = pool_of_actor();
    for (int i = 0; i < 500; ++i) {
      std::array<void*, kSizes.size()> pointers{};
      for (std::size_t k = 0; k < kSizes.size(); ++k)
        parcel.take(vpmm_allocate(pool, kSizes[k], nullptr, &pointers[k]));
      for (void* const pointer : pointers) parcel.take(vpmm_deallocate(pool, pointer, nullptr));
    }
  };
  expect_ok(process.call(loop));
  const vpmm_statistics before = process.statistics();
  expect_ok(process.call(loop));
  const vpmm_statistics after = process.statistics();
  return {after.driver_calls - before.driver_calls, after.hits - before.hits,
          after.plans - before.plans, after.events_recorded - before.events_recorded};
}

TEST(IpcHotPath, a_process_that_shares_nothing_has_no_thread_socket_or_descriptor_for_it) {
  Process process;
  process.belongings();
  const Belongings before = process.belongings();
  const auto names = names_in(socket_folder_of_tests());
  EXPECT_EQ(before.threads, 1U);
  EXPECT_EQ(before.sockets, 1U) << "to the test";
  costs_of_a_warm_loop(process);
  const Belongings after = process.belongings();
  EXPECT_EQ(after.threads, before.threads);
  EXPECT_EQ(after.descriptors, before.descriptors);
  EXPECT_EQ(names_in(socket_folder_of_tests()), names);
  process.allocate_shared(kMiB, 1);
  const Belongings sharing = process.belongings();
  EXPECT_EQ(sharing.threads, before.threads + kFirstThread);
  EXPECT_EQ(sharing.sockets, before.sockets + 1);
  EXPECT_EQ(sharing.descriptors, before.descriptors + 1);
  // Whoever begins sweeps away what killed processes of other tests left.
  EXPECT_EQ(names_in(socket_folder_of_tests()).size(), 1U);
}

TEST(IpcHotPath, a_warm_loop_costs_the_same_while_another_allocation_is_shared) {
  Process process;
  Process importer;
  const Address large = process.allocate(4 * kMiB);
  const Address small = process.allocate(1000);
  const Costs before = costs_of_a_warm_loop(process);
  EXPECT_GT(before.hits, 0U);
  const vpmm_ipc_handle of_large = process.share(large, 4 * kMiB);
  const vpmm_ipc_handle of_small = process.share(small, 1000);
  EXPECT_EQ(costs_of_a_warm_loop(process), before);
  importer.open(of_large);
  importer.open(of_small);
  EXPECT_EQ(costs_of_a_warm_loop(process), before);
  process.free(large);
  process.free(small);
  EXPECT_GT(process.leased(), 0U);
  EXPECT_EQ(costs_of_a_warm_loop(process), before);
}

}  // namespace
}  // namespace vpmm::ipc_test::hot_path_test
