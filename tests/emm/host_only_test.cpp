// SPDX-License-Identifier: Apache-2.0
// emm: host memory from the base class, for managers that care for device memory alone.
#include <memory>
#include <vector>

#include "emm/emm_world.hpp"

namespace vpmm::emm_test {
namespace {

using driver::Call;
using emm::Block;

// A driver whose slots a test can exchange. Made before the manager that it is for.
class Patched {
 public:
  explicit Patched(EmmWorld& world) : table(*world.driver().table()) {}
  emm::Creation creation() const { return {emm::Driver(&table), 0}; }
  vpmm_emm_driver table;
};

// What a third party writes at the least, and each method that may be overridden, without a call to
// a base's.
class Minimal : public emm::HostOnlyMemoryManager {
 public:
  using HostOnlyMemoryManager::HostOnlyMemoryManager;
  int overridden = 0;

 private:
  Block do_allocate(std::size_t bytes) override {
    Block block{};
    block.pointer = driver().mem_alloc(bytes);
    return block;
  }
  void do_release_device(const Block& block) noexcept override {
    (void)driver().table()->mem_free(driver().table(), block.pointer);
  }
  void do_initialize() override { ++overridden; }
  void do_reset() override { ++overridden; }
  void do_defer_cleanup_begin() override { ++overridden; }
  void do_defer_cleanup_end() noexcept override { ++overridden; }
};

TEST(HostOnly, a_class_on_it_writes_two_methods_and_no_override_has_to_call_the_base) {
  EmmWorld world;
  const auto manager = world.make<Minimal>();
  EXPECT_TRUE(manager->memalloc(100));
  (void)manager->allocate_pinned(100);
  EXPECT_EQ(manager->pending().count(), 1u) << "the base was initialized: it has limits";
  {
    const emm::DeferCleanup guard = manager->defer_cleanup();
    EXPECT_TRUE(manager->pending().is_deferred());
  }
  EXPECT_FALSE(manager->pending().is_deferred());
  manager->reset();
  EXPECT_EQ(manager->pending().count(), 0u);
  EXPECT_EQ(world.calls().count(Call::mem_free_host), 1u);
  EXPECT_EQ(manager->overridden, 4);
}

TEST(HostOnly, options_reach_the_driver) {
  static std::vector<unsigned> flags;
  flags.clear();
  EmmWorld world;
  Patched driver(world);
  static auto* const allocate = driver.table.mem_host_alloc;
  static auto* const lock = driver.table.mem_host_register;
  driver.table.mem_host_alloc = [](const vpmm_emm_driver* table, std::size_t bytes, unsigned asked,
                                   void** ptr) {
    flags.push_back(asked);
    return allocate(table, bytes, asked, ptr);
  };
  driver.table.mem_host_register = [](const vpmm_emm_driver* table, void* ptr, std::size_t bytes,
                                      unsigned asked) {
    flags.push_back(asked);
    return lock(table, ptr, bytes, asked);
  };
  const auto manager = std::make_shared<Minimal>(driver.creation());
  std::vector<char> pages(4096);
  (void)manager->allocate_pinned(100);
  (void)manager->allocate_pinned(100, {true, false});
  (void)manager->allocate_mapped(100, {false, true});
  (void)manager->pin(nullptr, {pages.data(), pages.size()}, {true, false});
  (void)manager->pin_mapped(nullptr, {pages.data(), pages.size()});
  constexpr unsigned kPortable = 1, kMapped = 2, kWriteCombined = 4;
  EXPECT_EQ(flags,
            (std::vector<unsigned>{0, kPortable, kMapped | kWriteCombined, kPortable, kMapped}));
  manager->reset();
}

TEST(HostOnly, pinning_as_mapped_is_refused_where_the_device_cannot_map_host_memory) {
  EmmWorld world;
  Patched driver(world);
  driver.table.device_get_attribute = [](const vpmm_emm_driver*, int attribute, int, int* value) {
    *value = attribute == emm::kCanMapHostMemory ? 0 : 1;
    return VPMM_OK;
  };
  const auto manager = std::make_shared<Minimal>(driver.creation());
  std::vector<char> pages(4096);
  const Thrown thrown = thrown_by([&] {
    (void)manager->pin_mapped(nullptr, {pages.data(), pages.size()});
  });
  EXPECT_EQ(thrown.status, VPMM_ERROR_UNSUPPORTED);
  EXPECT_TRUE(thrown.names("device 0 cannot map host memory")) << thrown.text;
  EXPECT_EQ(world.calls().count(Call::mem_host_register), 0u);
  EXPECT_TRUE(manager->pin(nullptr, {pages.data(), pages.size()}))
      << "the device need not see this";
}

}  // namespace
}  // namespace vpmm::emm_test
