// SPDX-License-Identifier: Apache-2.0
// emm: the C tables that are made from classes, used as a program without the C++ headers would.
#include <cstddef>
#include <utility>
#include <vector>

#include "emm/emm_world.hpp"

namespace vpmm::emm_test {
namespace {

using driver::Call;

class Table : public testing::Test {
 protected:
  Table() {
    EXPECT_EQ(plugin->create(plugin, world.driver().table(), 0, &manager), VPMM_OK)
        << plugin->last_error();
    EXPECT_EQ(plugin->initialize(manager), VPMM_OK) << plugin->last_error();
  }
  ~Table() override { plugin->destroy(manager); }

  EmmWorld world;
  const vpmm_emm_plugin* plugin = emm::builtin_plugin("default");
  vpmm_emm_manager* manager = nullptr;
};

TEST_F(Table, fills_in_every_block_so_that_it_can_be_handed_back_unchanged) {
  std::vector<char> pages(2 * 4096);
  vpmm_emm_block blocks[6] = {};
  ASSERT_EQ(plugin->allocate(manager, 100, &blocks[VPMM_EMM_DEVICE]), VPMM_OK);
  ASSERT_EQ(
      plugin->allocate_managed(manager, 100, VPMM_EMM_ATTACH_GLOBAL, &blocks[VPMM_EMM_MANAGED]),
      VPMM_OK);
  ASSERT_EQ(plugin->allocate_host(manager, 100, 0, &blocks[VPMM_EMM_PINNED]), VPMM_OK);
  ASSERT_EQ(plugin->allocate_host(manager, 100, VPMM_EMM_DEVICE_MAPPED, &blocks[VPMM_EMM_MAPPED]),
            VPMM_OK);
  ASSERT_EQ(plugin->register_host(manager, pages.data(), 100, 0, &blocks[VPMM_EMM_REGISTERED]),
            VPMM_OK);
  plugin->release(manager, &blocks[VPMM_EMM_REGISTERED]);
  ASSERT_EQ(plugin->register_host(manager, pages.data(), 100, VPMM_EMM_DEVICE_MAPPED,
                                  &blocks[VPMM_EMM_REGISTERED_MAPPED]),
            VPMM_OK);
  for (std::uint32_t kind = 0; kind < 6; ++kind) {
    EXPECT_EQ(blocks[kind].kind, kind);
    EXPECT_EQ(blocks[kind].bytes, 100u) << kind;
    const bool is_seen = kind != VPMM_EMM_PINNED && kind != VPMM_EMM_REGISTERED;
    EXPECT_EQ(blocks[kind].device_pointer != nullptr, is_seen) << kind;
    if (kind != VPMM_EMM_REGISTERED) plugin->release(manager, &blocks[kind]);
  }
  EXPECT_EQ(plugin->reset(manager), VPMM_OK);
  EXPECT_EQ(world.calls().count(Call::mem_free), 2u);
  EXPECT_EQ(world.calls().count(Call::mem_free_host), 2u);
  EXPECT_EQ(world.calls().count(Call::mem_host_unregister), 2u);
}

TEST_F(Table, of_a_driver_that_is_too_short_is_refused_with_both_sizes) {
  vpmm_emm_driver older = *world.driver().table();
  older.size -= sizeof(void*);
  vpmm_emm_manager* none = nullptr;
  EXPECT_EQ(plugin->create(plugin, &older, 0, &none), VPMM_ERROR_UNSUPPORTED);
  EXPECT_NE(std::string(plugin->last_error()).find(std::to_string(older.size) + " bytes"),
            std::string::npos)
      << plugin->last_error();
  EXPECT_EQ(none, nullptr);
}

TEST_F(Table, of_a_plugin_that_lacks_a_slot_or_has_another_version_is_refused_by_a_context) {
  vpmm_emm_plugin bad = *plugin;
  bad.release = nullptr;
  EXPECT_TRUE(thrown_by([&] { (void)emm::Context::create(0, &bad); }).names("lacks `release`"));
  bad = *plugin;
  bad.interface_version = 2;
  EXPECT_TRUE(thrown_by([&] { (void)emm::Context::create(0, &bad); }).names("version 2"));
}

}  // namespace
}  // namespace vpmm::emm_test
