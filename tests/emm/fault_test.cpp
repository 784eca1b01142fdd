// SPDX-License-Identifier: Apache-2.0
// emm: each driver call that a memory manager makes fails in turn; nothing is lost, and the manager
// goes on.
#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "emm/emm_world.hpp"

namespace vpmm::emm_test {
namespace {

using driver::Call;
using driver::CuResult;
using Make = std::function<std::shared_ptr<emm::MemoryManager>(EmmWorld&)>;

struct Case {
  std::string name;
  Make make;
};
std::ostream& operator<<(std::ostream& out, const Case& c) { return out << c.name; }

std::vector<Case> cases() {
  return {
      {"default_manager", [](EmmWorld& world) { return world.make<emm::DefaultMemoryManager>(); }},
      {"on_a_pool",
       [](EmmWorld& world) { return world.make<OnPool>(world.calls(), pool_config()); }},
      {"stream_ordered",
       [](EmmWorld& world) { return world.make<OnPool>(world.calls(), stream_ordered_config()); }}};
}

// A bit of everything. Whatever of it fails, what came before is used and given back.
void scenario(EmmWorld& world, emm::MemoryManager& manager) {
  const auto attempt = [](auto&& work) {
    try {
      work();
    } catch (const vpmm::error&) {
      // What is checked is what is left behind.
    }
  };
  std::vector<char> pages(2 * 4096);
  std::vector<emm::MemoryPointer> memory;
  attempt([&] { manager.initialize(); });
  for (const std::size_t bytes : {std::size_t{80}, std::size_t{100'000}, 3 * kMiB, 70 * kMiB})
    attempt([&] { memory.push_back(manager.memalloc(bytes)); });
  attempt([&] {
    const emm::DeferCleanup guard = manager.defer_cleanup();
    const auto pinned = manager.allocate_pinned(1000);
    const auto mapped = manager.allocate_mapped(1000);
    const auto managed = manager.allocate_managed(1000);
    memory.clear();
  });
  attempt([&] { const auto pinned = manager.pin_mapped(nullptr, {pages.data(), pages.size()}); });
  attempt([&] { const auto again = manager.pin(nullptr, {pages.data(), pages.size()}); });
  if (manager.capabilities().stream_order)
    attempt([&] {
      emm::MemoryPointer on_stream = manager.memalloc(5 * kMiB, default_stream);
      on_stream.release_on(default_stream);
    });
  for (int i = 0; i < 12; ++i) attempt([&] { memory.push_back(manager.memalloc(3 * kMiB)); });
  attempt([&] { (void)manager.get_memory_info(); });
  memory.clear();
  attempt([&] { manager.reset(); });
  world.sim().run_until_idle();
}

class EmmFault : public testing::TestWithParam<Case> {};

TEST_P(EmmFault, in_every_call_loses_nothing) {
  std::vector<Call> calls;
  {
    EmmWorld world;
    const auto manager = GetParam().make(world);
    world.calls().start_listing();
    scenario(world, *manager);
    for (const std::string& line : world.calls().stop_listing()) {
      const std::string name = line.substr(0, line.find(':'));
      for (std::size_t i = 0; i < driver::kCallCount; ++i)
        if (name == driver::to_string(static_cast<Call>(i))) calls.push_back(static_cast<Call>(i));
    }
  }
  std::uint64_t fired = 0;
  for (std::size_t n = 1; n <= calls.size(); ++n) {
    for (const CuResult error : driver::errors_that_matter(calls[n - 1])) {
      if (driver::is_sticky(error)) continue;  // the next test
      SCOPED_TRACE(GetParam().name + ": call " + std::to_string(n) + " (" +
                   driver::to_string(calls[n - 1]) + ") gives " + driver::to_string(error));
      EmmWorld world;
      auto manager = GetParam().make(world);
      driver::FaultPlan plan;
      plan.calls = {calls[n - 1]};
      plan.nth = static_cast<std::uint64_t>(
          std::count(calls.begin(), calls.begin() + static_cast<std::ptrdiff_t>(n), calls[n - 1]));
      plan.result = error;
      world.faulting().set_plan(plan);
      scenario(world, *manager);
      fired += world.faulting().fired();
      world.faulting().clear_plan();
      // It goes on as if nothing had been.
      std::vector<char> pages(2 * 4096);
      const emm::MemoryPointer memory = manager->memalloc(4 * kMiB);
      EXPECT_TRUE(memory);
      EXPECT_TRUE(manager->allocate_mapped(10));
      manager->reset();
      manager->reset();
      const bool may_be_lost = calls[n - 1] == Call::mem_free ||
                               calls[n - 1] == Call::mem_free_host ||
                               calls[n - 1] == Call::mem_host_unregister;
      if (!may_be_lost) {
        EXPECT_TRUE(manager->pin(nullptr, {pages.data(), pages.size()}));
      }
      manager.reset();
      if (!may_be_lost) {
        EXPECT_EQ(world.sim().census().plain_allocations, 0u);
      }
      if (testing::Test::HasFailure()) return;
    }
  }
  EXPECT_GT(fired, calls.size() / 2);
}

TEST_P(EmmFault, that_breaks_the_context_ends_in_errors_and_no_crash) {
  EmmWorld world;
  auto manager = GetParam().make(world);
  auto memory = manager->memalloc(3 * kMiB);
  auto mapped = manager->allocate_mapped(100);
  world.sim().break_context(0, CuResult::illegal_address);
  EXPECT_NE(thrown_by([&] {
              for (int i = 0; i < 20; ++i) (void)manager->memalloc(9 * kMiB);
            }).status,
            VPMM_OK);
  EXPECT_NE(thrown_by([&] { (void)manager->allocate_pinned(9 * kMiB); }).status, VPMM_OK);
  memory.reset();
  manager->reset();
  mapped.reset();
}

INSTANTIATE_TEST_SUITE_P(Emm, EmmFault, testing::ValuesIn(cases()),
                         [](const auto& each) { return each.param.name; });

}  // namespace
}  // namespace vpmm::emm_test
