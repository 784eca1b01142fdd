// SPDX-License-Identifier: Apache-2.0
// emm: what programs and authors of managers get wrong is said, and nothing is lost over it.
#include <memory>

#include "emm/emm_world.hpp"

namespace vpmm::emm_test {
namespace {

using emm::Block;
using emm::Context;
using emm::MemoryManager;

// Plain memory, and a fault of its author's in one place.
class Faulty : public MemoryManager {
 public:
  using MemoryManager::MemoryManager;
  emm::Capabilities capabilities() const noexcept override {
    emm::Capabilities has;
    has.host_memory = true;
    return has;
  }
  bool asks_itself = false;
  int releases = 0;

 private:
  void do_initialize() override {
    if (asks_itself) (void)memalloc(1);
  }
  Block do_allocate(std::size_t bytes) override {
    Block block{};
    block.pointer = driver().mem_alloc(bytes);
    return block;
  }
  // It forgets the device's address.
  Block do_allocate_host(std::size_t bytes, unsigned flags) override {
    Block block{};
    block.pointer = driver().mem_host_alloc(bytes, flags);
    return block;
  }
  void do_release(const Block& block) noexcept override {
    ++releases;
    const vpmm_emm_driver* const table = driver().table();
    const bool is_host = block.kind == VPMM_EMM_PINNED || block.kind == VPMM_EMM_MAPPED;
    (void)(is_host ? table->mem_free_host(table, block.pointer)
                   : table->mem_free(table, block.pointer));
  }
};

TEST(Misuse, a_manager_that_asks_itself_for_memory_while_it_is_initialized_is_told) {
  EmmWorld world;
  const auto manager = world.make<Faulty>();
  manager->asks_itself = true;
  const Thrown thrown = thrown_by([&] { manager->initialize(); });
  EXPECT_EQ(thrown.status, VPMM_ERROR_INVALID_ARGUMENT);
  EXPECT_TRUE(thrown.names("while it is initialized")) << thrown.text;
  manager->asks_itself = false;
  EXPECT_TRUE(manager->memalloc(1)) << "it can be tried again";
}

TEST(Misuse, mapped_memory_without_a_device_address_is_given_back_and_refused) {
  EmmWorld world;
  const auto manager = world.make<Faulty>();
  const Thrown thrown = thrown_by([&] { (void)manager->allocate_mapped(100); });
  EXPECT_EQ(thrown.status, VPMM_ERROR_DRIVER_FAILED);
  EXPECT_TRUE(thrown.names("without its device address")) << thrown.text;
  EXPECT_EQ(manager->releases, 1);
  EXPECT_TRUE(manager->allocate_pinned(100));
}

TEST(Misuse, memory_at_address_null_is_not_pinned) {
  EmmWorld world;
  const auto manager = world.make<emm::DefaultMemoryManager>();
  EXPECT_TRUE(thrown_by([&] { (void)manager->pin(nullptr, {nullptr, 100}); }).names("null"));
}

TEST(Misuse, an_ipc_handle_is_for_memory_of_the_manager_that_is_still_there) {
  const Context mine = Context::create(0, emm::builtin_plugin("default"));
  const Context other = Context::create(0, emm::builtin_plugin("default"));
  const emm::MemoryPointer memory = other.memalloc(100);
  EXPECT_EQ(thrown_by([&] { (void)mine.get_ipc_handle(memory); }).status,
            VPMM_ERROR_INVALID_POINTER);
  EXPECT_EQ(thrown_by([&] { (void)other.get_ipc_handle(memory); }).status, VPMM_OK);
  other.reset();
  EXPECT_EQ(thrown_by([&] { (void)other.get_ipc_handle(memory); }).status,
            VPMM_ERROR_INVALID_POINTER);
}

TEST(Misuse, an_empty_factory_is_refused) {
  const Thrown thrown = thrown_by([] { emm::set_memory_manager(emm::Factory()); });
  EXPECT_EQ(thrown.status, VPMM_ERROR_INVALID_ARGUMENT);
  EXPECT_TRUE(thrown.names("factory")) << thrown.text;
}

TEST(Misuse, a_plugin_without_a_reason_for_a_failure_does_not_take_the_program_down) {
  vpmm_emm_plugin silent = *emm::builtin_plugin("default");
  silent.last_error = []() -> const char* { return nullptr; };
  const Context context = Context::create(0, &silent);
  const Thrown thrown = thrown_by([&] { (void)context.memalloc(std::size_t{1} << 60); });
  EXPECT_EQ(thrown.status, VPMM_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(thrown.text, emm::kNoReason);
}

// The driver's table of the test's world, but another context is the device's primary one.
TEST(Misuse, a_pool_is_refused_in_a_context_that_is_not_the_primary_one) {
  EmmWorld world;
  vpmm_emm_driver table = *world.driver().table();
  table.device_primary_ctx_retain = [](const vpmm_emm_driver*, int, vpmm_cuda_context* context) {
    static int other;
    *context = &other;
    return VPMM_OK;
  };
  table.device_primary_ctx_release = [](const vpmm_emm_driver*, int) { return VPMM_OK; };
  const emm::Creation creation{emm::Driver(&table), 0};
  const auto pool = std::make_shared<emm::VpmmMemoryManager>(creation);
  const Thrown thrown = thrown_by([&] { (void)pool->memalloc(1); });
  EXPECT_EQ(thrown.status, VPMM_ERROR_UNSUPPORTED);
  EXPECT_TRUE(thrown.names("primary context") && thrown.names("default")) << thrown.text;
  const auto plain = std::make_shared<emm::DefaultMemoryManager>(creation);
  EXPECT_TRUE(plain->memalloc(1)) << "which the default manager serves";
}

TEST(Misuse, a_guard_before_the_first_use_ends_no_deferral_but_its_own) {
  const Context context = Context::create();
  const emm::DeferCleanup outer = context.defer_cleanup();
  const emm::CurrentContext current(emm::Driver::of_process(), context.cuda_context());
  { const emm::DeferCleanup inner(emm::make_manager<emm::VpmmMemoryManager>()); }
  const pool_ref pool = default_pool();
  EXPECT_EQ(vpmm_defer_cleanup_end(pool.handle()), VPMM_OK) << "the outer one is still there";
  EXPECT_EQ(vpmm_defer_cleanup_begin(pool.handle()), VPMM_OK);
}

}  // namespace
}  // namespace vpmm::emm_test
