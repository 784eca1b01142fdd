// SPDX-License-Identifier: Apache-2.0
// emm: NBEP 7's behaviours, one test each, through contexts and the registry of the process.
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "emm/emm_world.hpp"

namespace vpmm::emm_test {
namespace {

using driver::Call;
using emm::Block;
using emm::Context;
using emm::MemoryManager;

// What was asked of each manager of a test, in order.
std::vector<std::string>& asked() {
  static std::vector<std::string> list;
  return list;
}

// Plain allocations, and a list of what was asked.
class Listed : public MemoryManager {
 public:
  using MemoryManager::MemoryManager;

 private:
  Block do_allocate(std::size_t bytes) override {
    asked().push_back("allocate " + std::to_string(bytes));
    was_current = driver().ctx_get_current() == cuda_context();
    Block block{};
    block.pointer = driver().mem_alloc(bytes);
    return block;
  }
  void do_release(const Block& block) noexcept override {
    asked().push_back("release");
    (void)driver().table()->mem_free(driver().table(), block.pointer);
  }
  void do_initialize() override { asked().push_back("initialize"); }
  void do_reset() override { asked().push_back("reset"); }
  void do_defer_cleanup_begin() override { asked().push_back("defer"); }
  void do_defer_cleanup_end() noexcept override { asked().push_back("end"); }

 public:
  static inline bool was_current = false;
};

class OfAnotherVersion : public Listed {
 public:
  using Listed::Listed;
  int interface_version() const noexcept override { return 2; }
};

class Nbep7 : public testing::Test {
 protected:
  Nbep7() { asked().clear(); }
  ~Nbep7() override { emm::set_memory_manager(static_cast<const vpmm_emm_plugin*>(nullptr)); }
  using Calls = std::vector<std::string>;
};

TEST_F(Nbep7, a_manager_is_initialized_before_the_first_allocation_and_once) {
  emm::set_memory_manager<Listed>("listed");
  Context context = Context::create();
  EXPECT_EQ(asked(), Calls{}) << "making a context asks for nothing";
  context.initialize();
  context.initialize();
  (void)context.memalloc(5);
  context.initialize();
  EXPECT_EQ(asked(), (Calls{"initialize", "allocate 5", "release"}));
}

TEST_F(Nbep7, an_allocation_that_comes_first_initializes) {
  emm::set_memory_manager<Listed>("listed");
  const Context context = Context::create();
  (void)context.memalloc(5);
  EXPECT_EQ(asked(), (Calls{"initialize", "allocate 5", "release"}));
}

TEST_F(Nbep7, a_reset_may_come_before_initialize_and_twice_and_with_no_context_current) {
  emm::set_memory_manager<Listed>("listed");
  const Context context = Context::create();
  context.reset();
  EXPECT_EQ(asked(), Calls{});
  const emm::MemoryPointer memory = context.memalloc(5);
  EXPECT_EQ(emm::Driver::of_process().ctx_get_current(), nullptr);
  context.reset();
  context.reset();
  EXPECT_EQ(asked(), (Calls{"initialize", "allocate 5", "release", "reset", "reset"}));
}

TEST_F(Nbep7, memory_is_allocated_with_the_owning_context_current_and_the_callers_is_put_back) {
  emm::set_memory_manager<Listed>("listed");
  const Context context = Context::create();
  Listed::was_current = false;
  std::thread([&] {
    (void)context.memalloc(5);
    EXPECT_EQ(emm::Driver::of_process().ctx_get_current(), nullptr);
  }).join();
  EXPECT_TRUE(Listed::was_current);
}

TEST_F(Nbep7, defer_cleanup_reaches_the_manager_and_ends_with_an_exception) {
  emm::set_memory_manager<Listed>("listed");
  const Context context = Context::create();
  try {
    const emm::DeferCleanup outer = context.defer_cleanup();
    const emm::DeferCleanup inner = context.defer_cleanup();
    (void)context.memalloc(5);
    throw 1;
  } catch (int) {
  }
  EXPECT_EQ(asked(),
            (Calls{"initialize", "defer", "defer", "allocate 5", "release", "end", "end"}));
}

TEST_F(Nbep7, without_a_choice_contexts_use_the_process_wide_pool) {
  const Context context = Context::create();
  (void)default_pool().memory_info();  // carries out what other tests dropped
  const std::uint64_t before = default_pool().statistics().live_allocations;
  const emm::MemoryPointer memory = context.memalloc(kMiB);
  EXPECT_EQ(default_pool().statistics().live_allocations, before + 1);
}

TEST_F(Nbep7, two_contexts_of_a_device_share_its_pool) {
  const Context first = Context::create();
  const Context second = Context::create();
  EXPECT_NE(first.shared_memory_manager(), second.shared_memory_manager());
  const emm::MemoryPointer one = first.memalloc(kMiB);
  const emm::MemoryPointer two = second.memalloc(kMiB);
  const std::uint64_t before = default_pool().statistics().live_allocations;
  first.reset();
  const emm::MemoryPointer three = second.memalloc(kMiB);  // the pool looks at what was dropped
  EXPECT_EQ(default_pool().statistics().live_allocations, before)
      << "a reset frees what its own manager gave";
}

TEST_F(Nbep7, a_manager_that_is_exchanged_serves_new_contexts_and_old_ones_keep_theirs) {
  const Context old = Context::create();
  emm::set_memory_manager<Listed>("listed");
  (void)old.memalloc(5);
  EXPECT_EQ(asked(), Calls{});
  const Context young = Context::create();
  (void)young.memalloc(6);
  EXPECT_EQ(asked(), (Calls{"initialize", "allocate 6", "release"}));
  emm::set_memory_manager(emm::builtin_plugin("default"));
  (void)young.memalloc(7);
  EXPECT_EQ(asked().size(), 5u);
  const Context youngest = Context::create();
  (void)youngest.memalloc(8);
  EXPECT_EQ(asked().size(), 5u);
}

TEST_F(Nbep7, close_ends_a_context_and_a_new_one_gets_the_manager_that_is_set_then) {
  Context context = Context::create();
  emm::MemoryPointer memory = context.memalloc(kMiB);
  context.close();
  context.close();
  const Thrown thrown = thrown_by([&] { (void)context.memalloc(1); });
  EXPECT_EQ(thrown.status, VPMM_ERROR_INVALID_ARGUMENT);
  EXPECT_TRUE(thrown.names("closed")) << thrown.text;
  memory.reset();
  emm::set_memory_manager<Listed>("listed");
  context = Context::create();
  (void)context.memalloc(9);
  EXPECT_EQ(asked(), (Calls{"initialize", "allocate 9", "release"}));
}

// Whether the primary context is there still when a manager ends.
class Ending : public Listed {
 public:
  using Listed::Listed;
  ~Ending() override {
    const vpmm_emm_driver* const table = driver().table();
    const bool is_there = cuda_context() != nullptr &&
                          table->ctx_set_current(table, cuda_context()) == VPMM_OK &&
                          table->ctx_synchronize(table) == VPMM_OK;
    if (cuda_context() != nullptr)
      asked().push_back(is_there ? "end in the context" : "end too late");
    (void)table->ctx_set_current(table, nullptr);
  }
  static inline bool refuses_reset = false;

 private:
  void do_reset() override {
    if (refuses_reset) throw_error(VPMM_ERROR_DRIVER_FAILED, "refused");
  }
};

const std::vector<std::string> kTwoLives{"initialize", "end in the context",
                                         "initialize", "allocate 5",
                                         "release",    "end in the context"};

// Each begins anew, for a pool of this process would keep the primary context too.
class PrimaryContextDeathTest : public testing::Test {
 protected:
  void SetUp() override { GTEST_FLAG_SET(death_test_style, "threadsafe"); }
};

TEST_F(PrimaryContextDeathTest, outlives_the_manager_also_when_memory_keeps_that_beyond_close) {
  EXPECT_EXIT(
      {
        emm::set_memory_manager<Ending>("ending");
        Context::create().initialize();
        Context context = Context::create();
        emm::MemoryPointer memory = context.memalloc(5);
        context.close();
        memory.reset();
        std::_Exit(asked() == kTwoLives ? 42 : 1);
      },
      testing::ExitedWithCode(42), "");
}

TEST_F(PrimaryContextDeathTest, is_released_also_when_the_manager_fails_to_reset) {
  EXPECT_EXIT(
      {
        emm::set_memory_manager<Ending>("ending");
        Context context = Context::create();
        context.initialize();
        const vpmm_cuda_context primary = context.cuda_context();
        Ending::refuses_reset = true;
        const bool is_refused = thrown_by([&] { context.close(); }).names("refused");
        const Thrown gone = thrown_by([&] {
          const emm::CurrentContext current(emm::Driver::of_process(), primary);
          emm::Driver::of_process().ctx_synchronize();
        });
        std::_Exit(is_refused && gone.status != VPMM_OK ? 42 : 1);
      },
      testing::ExitedWithCode(42), "");
}

TEST_F(Nbep7, a_manager_of_another_interface_version_is_refused_with_both_versions) {
  const Thrown thrown = thrown_by([] { emm::set_memory_manager<OfAnotherVersion>("newer"); });
  EXPECT_EQ(thrown.status, VPMM_ERROR_BAD_CONFIGURATION);
  EXPECT_TRUE(thrown.names("version 2") && thrown.names("version 1")) << thrown.text;
  EXPECT_STREQ(emm::get_memory_manager()->name, "vpmm") << "what was set before stays";
}

TEST_F(Nbep7, memory_information_is_of_the_device) {
  for (const char* name : {"vpmm", "stream_ordered", "default"}) {
    const Context context = Context::create(0, emm::builtin_plugin(name));
    const emm::MemoryInfo info = context.get_memory_info();
    EXPECT_LE(info.free, info.total);
    const emm::CurrentContext current(emm::Driver::of_process(), context.cuda_context());
    EXPECT_EQ(info.total, emm::Driver::of_process().mem_get_info().total) << name;
  }
}

TEST_F(Nbep7, a_manager_that_cannot_say_how_much_is_free_says_that) {
  emm::set_memory_manager<Listed>("listed");
  const Context context = Context::create();
  const Thrown thrown = thrown_by([&] { (void)context.get_memory_info(); });
  EXPECT_EQ(thrown.status, VPMM_ERROR_UNSUPPORTED);
  EXPECT_TRUE(thrown.names("how much memory is free")) << thrown.text;
  EXPECT_EQ(thrown_by([&] { (void)context.allocate_pinned(1); }).status, VPMM_ERROR_UNSUPPORTED);
  EXPECT_EQ(thrown_by([&] { (void)context.get_ipc_handle(context.memalloc(1)); }).status,
            VPMM_ERROR_UNSUPPORTED);
  EXPECT_EQ(thrown_by([&] { (void)context.memalloc(1, default_stream); }).status,
            VPMM_ERROR_UNSUPPORTED);
  EXPECT_EQ(thrown_by([&] { (void)context.allocate_managed(1); }).status, VPMM_ERROR_UNSUPPORTED);
}

TEST_F(Nbep7, pinned_memory_is_the_hosts_and_mapped_memory_is_seen_by_the_device) {
  for (const char* name : {"vpmm", "stream_ordered", "default"}) {
    SCOPED_TRACE(name);
    const Context context = Context::create(0, emm::builtin_plugin(name));
    const emm::PinnedMemory pinned = context.allocate_pinned(100, {true, false});
    std::memset(pinned.host_pointer(), 1, pinned.size());
    const emm::MappedMemory mapped = context.allocate_mapped(100, {false, true});
    std::memset(mapped.host_pointer(), 7, mapped.size());
    char byte = 0;
    const emm::CurrentContext current(emm::Driver::of_process(), context.cuda_context());
    emm::Driver::of_process().memcpy_device_to_host(&byte, mapped.view(99).device_pointer(), 1);
    EXPECT_EQ(byte, 7);
    std::vector<char> pages(2 * 4096);
    const emm::MappedMemory registered = context.pin_mapped(nullptr, {pages.data(), pages.size()});
    EXPECT_EQ(registered.host_pointer(), pages.data());
    EXPECT_NE(registered.device_pointer(), nullptr);
  }
}

TEST_F(Nbep7, memory_that_exists_cannot_be_pinned_write_combined) {
  std::vector<char> pages(2 * 4096);
  const emm::HostSpan span{pages.data(), pages.size()};
  const Context context = Context::create();
  const emm::HostOptions options{false, true};
  for (const Thrown& thrown :
       {thrown_by([&] { (void)context.pin(nullptr, span, options); }),
        thrown_by([&] { (void)context.pin_mapped(nullptr, span, options); })}) {
    EXPECT_EQ(thrown.status, VPMM_ERROR_INVALID_ARGUMENT);
    EXPECT_TRUE(thrown.names("write_combined")) << thrown.text;
  }
}

TEST_F(Nbep7, managed_memory_is_one_address_for_host_and_device) {
  for (const char* name : {"vpmm", "stream_ordered", "default"}) {
    SCOPED_TRACE(name);
    const Context context = Context::create(0, emm::builtin_plugin(name));
    const emm::ManagedMemory memory = context.allocate_managed(100);
    EXPECT_EQ(memory.host_pointer(), memory.device_pointer());
    std::memset(memory.host_pointer(), 7, memory.size());
    char byte = 0;
    const emm::CurrentContext current(emm::Driver::of_process(), context.cuda_context());
    emm::Driver::of_process().memcpy_device_to_host(&byte, memory.view(99).device_pointer(), 1);
    EXPECT_EQ(byte, 7);
  }
}

TEST_F(Nbep7, memory_that_a_stream_gives_back_is_that_streams_again_at_once) {
  const Context context = Context::create();
  emm::MemoryPointer memory = context.memalloc(3 * kMiB, default_stream);
  const void* const address = memory.device_pointer();
  memory.release_on(default_stream);
  EXPECT_EQ(context.memalloc(3 * kMiB, default_stream).device_pointer(), address);
}

TEST_F(Nbep7, a_pool_may_use_dropped_memory_again_inside_a_guard_but_gives_none_back) {
  EmmWorld world;
  settings::Config config = pool_config();
  config.limits.release_threshold = 0;
  const auto manager = world.make<OnPool>(world.calls(), config);
  manager->initialize();
  const std::uint64_t tried_out =
      world.calls().count(Call::mem_create);  // when the pool was opened
  const auto given_back = [&] { return world.calls().count(Call::mem_release) - tried_out; };
  const auto release_three_times = [&] {  // such a free looks at the threshold
    for (int i = 0; i < 3; ++i) {
      manager->memalloc(200 * kMiB, default_stream).release_on(default_stream);
      world.driver().ctx_synchronize();
    }
  };
  {
    const emm::DeferCleanup guard = manager->defer_cleanup();
    for (int i = 0; i < 8; ++i) {
      (void)manager->memalloc(64 * kMiB);
      world.driver().ctx_synchronize();
    }
    EXPECT_LT(world.calls().count(Call::mem_create) - tried_out, 8 * 8u) << "chunks of 8 MiB";
    release_three_times();
    EXPECT_EQ(given_back(), 0u);
  }
  release_three_times();
  EXPECT_GT(given_back(), 0u);
}

TEST_F(Nbep7, a_context_of_somebody_elses_is_wrapped_and_left_alone) {
  const emm::Driver driver = emm::Driver::of_process();
  const vpmm_cuda_context foreign = driver.device_primary_ctx_retain(0);
  {
    const Context context = Context::wrap(foreign);
    EXPECT_EQ(context.cuda_context(), foreign);
    EXPECT_TRUE(context.memalloc(100));
    context.synchronize();
  }
  const emm::CurrentContext still_there(driver, foreign);
  EXPECT_EQ(driver.ctx_get_device(), 0);
  driver.device_primary_ctx_release(0);
  EXPECT_EQ(thrown_by([] { (void)Context::wrap(nullptr); }).status, VPMM_ERROR_INVALID_ARGUMENT);
}

TEST_F(Nbep7, two_libraries_whose_classes_have_one_name_are_two_managers) {
  for (const auto& [path, name] :
       {std::pair{VPMM_TEST_PLUGIN_one, "one"}, {VPMM_TEST_PLUGIN_other, "other"}}) {
    const vpmm_emm_plugin* const plugin = emm::load_plugin(path);
    EXPECT_STREQ(plugin->name, name);
    EXPECT_EQ(emm::load_plugin(path), plugin) << "loaded once";
    const Context context = Context::create(0, plugin);
    EXPECT_TRUE(
        thrown_by([&] { (void)context.memalloc(1); }).names(std::string("this is ") + name));
  }
}

TEST_F(Nbep7, a_device_that_does_not_exist_is_named) {
  const Thrown thrown = thrown_by([] { (void)Context::create(7); });
  EXPECT_EQ(thrown.status, VPMM_ERROR_INVALID_ARGUMENT);
  EXPECT_TRUE(thrown.names("device 7")) << thrown.text;
}

TEST_F(Nbep7, a_manager_without_a_current_context_says_what_is_missing) {
  const auto manager = emm::make_manager<emm::DefaultMemoryManager>();
  const Thrown thrown = thrown_by([&] { (void)manager->memalloc(1); });
  EXPECT_EQ(thrown.status, VPMM_ERROR_INVALID_ARGUMENT);
  EXPECT_TRUE(thrown.names("no CUDA context is current")) << thrown.text;
}

TEST_F(Nbep7, ipc_handles_of_plain_memory_name_a_view_by_its_offset) {
  const Context context = Context::create(0, emm::builtin_plugin("default"));
  const emm::MemoryPointer memory = context.memalloc(kMiB);
  const emm::IpcHandle whole = context.get_ipc_handle(memory);
  const emm::IpcHandle part = context.get_ipc_handle(memory.view(4096, 10));
  EXPECT_EQ(whole.bytes, kMiB);
  EXPECT_EQ(whole.offset, 0u);
  EXPECT_EQ(part.bytes, 10u);
  EXPECT_EQ(part.offset, 4096u);
  EXPECT_NE(whole, part);
  EXPECT_EQ(std::memcmp(whole.token, part.token, sizeof(whole.token)), 0);
  const emm::IpcHandle copy = part;
  EXPECT_EQ(copy, part);
}

TEST_F(Nbep7, opening_an_ipc_handle_in_the_process_that_made_it_is_an_error) {
  const Context context = Context::create(0, emm::builtin_plugin("default"));
  const emm::MemoryPointer memory = context.memalloc(kMiB);
  const emm::IpcHandle handle = context.get_ipc_handle(memory);
  const emm::CurrentContext current(emm::Driver::of_process(), context.cuda_context());
  EXPECT_NE(
      thrown_by([&] { (void)emm::LegacyIpcMemory(emm::Driver::of_process(), handle); }).status,
      VPMM_OK);
  emm::IpcHandle unknown = handle;
  unknown.kind = 77;
  EXPECT_TRUE(thrown_by([&] {
                (void)emm::LegacyIpcMemory(emm::Driver::of_process(), unknown);
              }).names("legacy"));
}

TEST_F(Nbep7, memory_that_legacy_ipc_does_not_share_is_refused_with_the_reason) {
  const Context context = Context::create();
  const emm::MemoryPointer memory = context.memalloc(3 * kMiB);
  const emm::CurrentContext current(emm::Driver::of_process(), context.cuda_context());
  const Thrown thrown = thrown_by(
      [&] { (void)legacy_ipc_handle(emm::Driver::of_process(), 0, memory.device_pointer(), 10); });
  EXPECT_EQ(thrown.status, VPMM_ERROR_UNSUPPORTED);
  EXPECT_TRUE(thrown.names("legacy IPC")) << thrown.text;
}

// Each begins anew, for what the variable names is kept for the life of a process.
class VariableDeathTest : public testing::Test {
 protected:
  void SetUp() override { GTEST_FLAG_SET(death_test_style, "threadsafe"); }
};

TEST_F(VariableDeathTest, names_the_manager_and_makes_the_setter_warn_and_do_nothing) {
  EXPECT_EXIT(
      {
        setenv("VPMM_MEMORY_MANAGER", "default", 1);
        emm::set_memory_manager<Listed>("listed");
        const Context context = Context::create();
        (void)context.memalloc(5);
        std::_Exit(asked().empty() && std::strcmp(emm::get_memory_manager()->name, "default") == 0
                       ? 42
                       : 1);
      },
      testing::ExitedWithCode(42),
      "set_memory_manager does nothing: VPMM_MEMORY_MANAGER=default is set");
}

// Where there is no GPU as well as where there is one.
TEST_F(VariableDeathTest, that_is_not_set_lets_a_program_choose_before_CUDA_is_touched) {
  EXPECT_EXIT(
      {
        setenv("VPMM_DRIVER", "cuda", 1);
        unsetenv("VPMM_MEMORY_MANAGER");
        emm::set_memory_manager<Listed>("listed");
        std::_Exit(std::strcmp(emm::get_memory_manager()->name, "listed") == 0 ? 42 : 1);
      },
      testing::ExitedWithCode(42), "^$");
}

TEST_F(VariableDeathTest, that_names_no_library_is_an_error_that_names_both) {
  EXPECT_EXIT(
      {
        setenv("VPMM_MEMORY_MANAGER", "/nowhere/manager.so", 1);
        const Thrown thrown = thrown_by([] { (void)Context::create(); });
        const bool is_named = thrown.status == VPMM_ERROR_BAD_FILE &&
                              thrown.names("VPMM_MEMORY_MANAGER=/nowhere/manager.so: ");
        std::_Exit(is_named ? 42 : 1);
      },
      testing::ExitedWithCode(42), "");
}

}  // namespace
}  // namespace vpmm::emm_test
