// SPDX-License-Identifier: Apache-2.0
// emm: a plugin is a table: which tables are refused, what an older one lacks, and what an
// exception becomes.
#include <functional>
#include <memory>
#include <new>
#include <stdexcept>
#include <string>
#include <utility>

#include "emm/emm_world.hpp"

namespace vpmm::emm_test {
namespace {

using emm::Block;

// Does what the test says.
class Scripted : public emm::MemoryManager {
 public:
  using MemoryManager::MemoryManager;
  emm::Capabilities capabilities() const noexcept override {
    emm::Capabilities has;
    has.memory_info = has.stream_order = true;
    return has;
  }
  static inline std::function<void()> on_allocate;

 private:
  Block do_allocate(std::size_t bytes) override {
    if (on_allocate) on_allocate();
    Block block{};
    block.pointer = driver().mem_alloc(bytes);
    return block;
  }
  void do_release(const Block& block) noexcept override {
    (void)driver().table()->mem_free(driver().table(), block.pointer);
  }
  emm::MemoryInfo do_get_memory_info() override { return {1, 2}; }
};

class PluginTable : public testing::Test {
 protected:
  PluginTable() { Scripted::on_allocate = nullptr; }

  emm::Factory factory = [](const emm::Creation& creation) {
    return std::make_shared<Scripted>(creation);
  };
  vpmm_emm_plugin plugin = emm::make_plugin("scripted", &factory);

  Thrown refused() {
    return thrown_by([this] { check(vpmm_emm_check_plugin(&plugin)); });
  }
  std::shared_ptr<emm::MemoryManager> make(EmmWorld& world) {
    return std::make_shared<emm::PluginMemoryManager>(world.creation(), &plugin);
  }
};

TEST_F(PluginTable, of_another_version_is_refused_with_both_versions) {
  plugin.interface_version = 2;
  const Thrown thrown = refused();
  EXPECT_EQ(thrown.status, VPMM_ERROR_BAD_CONFIGURATION);
  EXPECT_TRUE(thrown.names("version 2") && thrown.names("version 1")) << thrown.text;
  EXPECT_EQ(thrown_by([&] { emm::set_memory_manager(&plugin); }).status,
            VPMM_ERROR_BAD_CONFIGURATION);
}

TEST_F(PluginTable, that_lacks_what_is_needed_is_refused_by_the_name_of_the_slot) {
  EXPECT_EQ(refused().status, VPMM_OK);
  plugin.release = nullptr;
  EXPECT_TRUE(refused().names("`scripted` lacks `release`")) << refused().text;
  plugin.size = VPMM_EMM_PLUGIN_LEAST_SIZE - 1;
  EXPECT_TRUE(refused().names(std::to_string(plugin.size) + " bytes")) << refused().text;
}

TEST_F(PluginTable, with_half_of_a_pair_is_refused_by_both_names) {
  plugin.release_on_stream = nullptr;
  EXPECT_TRUE(refused().names("`allocate_on_stream` without `release_on_stream`"))
      << refused().text;
  plugin.allocate_on_stream = nullptr;
  EXPECT_EQ(refused().status, VPMM_OK);
}

TEST_F(PluginTable, of_an_older_plugin_is_accepted_and_what_lies_beyond_it_is_never_read) {
  plugin.size = VPMM_EMM_PLUGIN_LEAST_SIZE;
  EXPECT_EQ(refused().status, VPMM_OK);
  EmmWorld world;
  const auto manager = make(world);
  EXPECT_TRUE(manager->memalloc(100));
  EXPECT_EQ(thrown_by([&] { (void)manager->get_memory_info(); }).status, VPMM_ERROR_UNSUPPORTED);
  EXPECT_EQ(thrown_by([&] { (void)manager->memalloc(100, default_stream); }).status,
            VPMM_ERROR_UNSUPPORTED);
  const emm::DeferCleanup guard = manager->defer_cleanup();
}

TEST_F(PluginTable, whose_capabilities_are_unasked_has_what_its_slots_say) {
  plugin.capabilities = nullptr;
  plugin.allocate_managed = nullptr;
  EmmWorld world;
  const auto manager = make(world);
  EXPECT_TRUE(manager->capabilities().ipc);
  EXPECT_FALSE(manager->capabilities().managed_memory);
}

TEST_F(PluginTable, turns_what_its_author_throws_into_status_and_text) {
  EmmWorld world;
  const auto manager = make(world);
  const auto thrown_with = [&](std::function<void()> what) {
    Scripted::on_allocate = std::move(what);
    return thrown_by([&] { (void)manager->memalloc(100); });
  };
  const Thrown own =
      thrown_with([] { throw_error(VPMM_ERROR_OUT_OF_MEMORY, "the arena is full"); });
  EXPECT_EQ(own.status, VPMM_ERROR_OUT_OF_MEMORY);
  EXPECT_TRUE(own.names("the arena is full")) << own.text;
  EXPECT_EQ(thrown_with([] { throw std::bad_alloc(); }).status, VPMM_ERROR_HOST_OUT_OF_MEMORY);
  const Thrown standard = thrown_with([] { throw std::runtime_error("the author's words"); });
  EXPECT_EQ(standard.status, VPMM_ERROR_DRIVER_FAILED);
  EXPECT_TRUE(standard.names("the author's words")) << standard.text;
  EXPECT_TRUE(thrown_with([] { throw 1; }).names("no std::exception"));
  Scripted::on_allocate = nullptr;
  EXPECT_TRUE(manager->memalloc(100)) << "none of it is the end";
}

}  // namespace
}  // namespace vpmm::emm_test
