// SPDX-License-Identifier: Apache-2.0
// conformance: the suite finds the fault of managers that have exactly one.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <deque>
#include <map>
#include <mutex>
#include <ostream>
#include <set>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "conformance/conformance.hpp"

namespace vpmm::conformance {
namespace {

using emm::Block;

Block block_at(void* pointer) {
  Block block{};
  block.pointer = pointer;
  return block;
}
void* moved(void* pointer, std::ptrdiff_t bytes) {
  return static_cast<unsigned char*>(pointer) + bytes;
}

// The manager without a fault: the driver's memory, freed as Numba does. Those below change one
// thing each.
class Sound : public emm::HostOnlyMemoryManager {
 public:
  using HostOnlyMemoryManager::HostOnlyMemoryManager;
  emm::Capabilities capabilities() const noexcept override {
    emm::Capabilities has;
    has.host_memory = has.managed_memory = has.ipc = has.memory_info = true;
    return has;
  }

 protected:
  Block do_allocate(std::size_t bytes) override {
    return block_at(deallocations().attempt([&] { return driver().mem_alloc(bytes); }));
  }
  void do_release_device(const Block& block) noexcept override {
    deallocations().add(block.pointer, block.bytes, &emm::Driver::mem_free);
  }
  Block do_allocate_managed(std::size_t bytes, unsigned flags) override {
    return block_at(
        deallocations().attempt([&] { return driver().mem_alloc_managed(bytes, flags); }));
  }
  emm::IpcHandle do_get_ipc_handle(void* ptr, std::size_t bytes) override {
    return emm::legacy_ipc_handle(driver(), device(), ptr, bytes);
  }
  emm::MemoryInfo do_get_memory_info() override { return driver().mem_get_info(); }
};

// --- faults of classes ---

// Keeps what is dropped; the base class frees it when the manager goes.
class Leaks : public Sound {
 public:
  using Sound::Sound;
  ~Leaks() override {
    for (const Block& block : kept_) Sound::do_release_device(block);
  }

 protected:
  void do_release_device(const Block& block) noexcept override {
    const std::lock_guard<std::mutex> lock(mutex_);
    kept_.push_back(block);
  }
  std::mutex mutex_;
  std::vector<Block> kept_;
};

// Hands out what was dropped last, whatever the GPU still does with it.
class ReusesTooEarly : public Sound {
 public:
  using Sound::Sound;
  ~ReusesTooEarly() override { give_up(); }

 protected:
  Block do_allocate(std::size_t bytes) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (last_.pointer != nullptr && last_.bytes == bytes)
      return block_at(std::exchange(last_, Block{}).pointer);
    return Sound::do_allocate(bytes);
  }
  void do_release_device(const Block& block) noexcept override {
    if (block.kind != VPMM_EMM_DEVICE) return Sound::do_release_device(block);
    const std::lock_guard<std::mutex> lock(mutex_);
    give_up();
    last_ = block;
  }
  void do_reset() override {
    const std::lock_guard<std::mutex> lock(mutex_);
    give_up();
  }
  void give_up() noexcept {
    if (last_.pointer != nullptr) Sound::do_release_device(std::exchange(last_, Block{}));
  }
  std::mutex mutex_;
  Block last_{};
};

// The same, but it gives way when memory runs out: only figures tell.
class IgnoresReset : public Leaks {
 public:
  using Leaks::Leaks;

 protected:
  Block do_allocate(std::size_t bytes) override {
    try {
      return Leaks::do_allocate(bytes);
    } catch (const vpmm::out_of_memory&) {
      const std::lock_guard<std::mutex> lock(mutex_);
      if (kept_.empty()) throw;
      for (const Block& block : kept_) Sound::do_release_device(block);
      kept_.clear();
    }
    return Leaks::do_allocate(bytes);
  }
};

class Overlaps : public Sound {
 public:
  using Sound::Sound;

 protected:
  Block do_allocate(std::size_t bytes) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!live_.empty() && bytes + 256 <= live_.rbegin()->second) {
      Block inside = block_at(moved(live_.rbegin()->first, 256));
      inside.cookie = this;
      return inside;
    }
    const Block block = Sound::do_allocate(bytes);
    live_[block.pointer] = bytes;
    return block;
  }
  void do_release_device(const Block& block) noexcept override {
    if (block.cookie == this) return;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      live_.erase(block.pointer);
    }
    Sound::do_release_device(block);
  }

 private:
  std::mutex mutex_;
  std::map<void*, std::size_t> live_;
};

class Unaligned : public Sound {
 public:
  using Sound::Sound;

 protected:
  Block do_allocate(std::size_t bytes) override {
    return block_at(moved(Sound::do_allocate(bytes + 8).pointer, 8));
  }
  void do_release_device(const Block& block) noexcept override {
    Block whole = block;
    if (block.kind == VPMM_EMM_DEVICE) whole.pointer = moved(block.pointer, -8);
    Sound::do_release_device(whole);
  }
  emm::IpcHandle do_get_ipc_handle(void* ptr, std::size_t bytes) override {
    return Sound::do_get_ipc_handle(ptr, bytes);
  }
};

// Keeps blocks of one size for reuse and writes each down twice.
class ReleasesTwice : public Sound {
 public:
  using Sound::Sound;
  ~ReleasesTwice() override {
    for (void* const pointer : std::set<void*>(kept_.begin(), kept_.end()))
      Sound::do_release_device(block_at(pointer));
  }

 protected:
  Block do_allocate(std::size_t bytes) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (bytes != kSize || kept_.empty()) return Sound::do_allocate(bytes);
    const Block block = block_at(kept_.back());
    kept_.pop_back();
    return block;
  }
  void do_release_device(const Block& block) noexcept override {
    if (block.bytes != kSize || block.kind != VPMM_EMM_DEVICE)
      return Sound::do_release_device(block);
    const std::lock_guard<std::mutex> lock(mutex_);
    kept_.insert(kept_.end(), 2, block.pointer);
  }

 private:
  static constexpr std::size_t kSize = 1 << 20;
  std::mutex mutex_;
  std::vector<void*> kept_;
};

class ForgetsNesting : public Sound {
 public:
  using Sound::Sound;

 protected:
  void do_defer_cleanup_begin() override { ++depth_; }
  void do_defer_cleanup_end() noexcept override {
    for (; depth_ > 1; --depth_) deallocations().end_deferral();
  }

 private:
  int depth_ = 0;
};

// The second deferral fails.
class RefusesToNest : public ForgetsNesting {
 public:
  using ForgetsNesting::ForgetsNesting;

 protected:
  void do_defer_cleanup_begin() override {
    if (deallocations().is_deferred() && is_deferred_) throw std::runtime_error("deferred already");
    is_deferred_ = true;
  }
  void do_defer_cleanup_end() noexcept override { is_deferred_ = false; }

 private:
  bool is_deferred_ = false;
};

class NeverEndsDeferral : public Sound {
 public:
  using Sound::Sound;

 protected:
  void do_defer_cleanup_begin() override { deallocations().defer(); }
};

class DefersWhateverItCosts : public Sound {
 public:
  using Sound::Sound;

 protected:
  Block do_allocate(std::size_t bytes) override {
    if (deallocations().is_deferred()) return block_at(driver().mem_alloc(bytes));
    return Sound::do_allocate(bytes);
  }
};

class NullWithoutError : public Sound {
 public:
  using Sound::Sound;

 protected:
  Block do_allocate(std::size_t) override { return {}; }
};

class WrongMemoryInfo : public Sound {
 public:
  using Sound::Sound;

 protected:
  emm::MemoryInfo do_get_memory_info() override {
    emm::MemoryInfo info = Sound::do_get_memory_info();
    info.free = info.total + 1;
    return info;
  }
};

class WrongTotal : public Sound {
 public:
  using Sound::Sound;

 protected:
  emm::MemoryInfo do_get_memory_info() override { return {1, 1}; }
};

class NoMemoryIsAnotherError : public Sound {
 public:
  using Sound::Sound;

 protected:
  Block do_allocate(std::size_t bytes) override {
    try {
      return Sound::do_allocate(bytes);
    } catch (const vpmm::out_of_memory& error) {
      throw std::runtime_error(error.what());
    }
  }
};

// Frees in whatever CUDA context is current.
class NeedsAContextToRelease : public Sound {
 public:
  using Sound::Sound;

 protected:
  void do_release_device(const Block& block) noexcept override {
    (void)driver().table()->mem_free(driver().table(), block.pointer);
  }
};

class ChangesTheCurrentContext : public Sound {
 public:
  using Sound::Sound;

 protected:
  void do_release_device(const Block& block) noexcept override {
    Sound::do_release_device(block);
    (void)driver().table()->ctx_set_current(driver().table(), nullptr);
  }
};

// All managers of the process are one.
class ResetsOthers : public Sound {
 public:
  using Sound::Sound;

 protected:
  Block do_allocate(std::size_t bytes) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    const Block block = Sound::do_allocate(bytes);
    live_.insert(block.pointer);
    return block;
  }
  void do_release_device(const Block& block) noexcept override {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (block.kind != VPMM_EMM_DEVICE || live_.erase(block.pointer) == 1)
      Sound::do_release_device(block);
  }
  void do_reset() override {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (void* const pointer : live_) driver().mem_free(pointer);
    live_.clear();
  }

 private:
  static inline std::mutex mutex_;
  static inline std::set<void*> live_;
};

class WrongIpcOffset : public Sound {
 public:
  using Sound::Sound;

 protected:
  emm::IpcHandle do_get_ipc_handle(void* ptr, std::size_t bytes) override {
    emm::IpcHandle handle = Sound::do_get_ipc_handle(ptr, bytes);
    handle.offset = 0;
    return handle;
  }
};

// --- faults of tables ---

using Change = void (*)(vpmm_emm_plugin&);

const vpmm_emm_plugin& sound() {
  static const vpmm_emm_plugin* const plugin = emm::new_plugin<Sound>("sound");
  return *plugin;
}

const vpmm_emm_plugin* changed(Change change) {
  static std::deque<vpmm_emm_plugin> tables;  // a table lives as long as the process
  change(tables.emplace_back(sound()));
  return &tables.back();
}

vpmm_status refuse(vpmm_emm_manager*) { return VPMM_ERROR_DRIVER_FAILED; }

// Managers that were initialized, or hold a block back.
std::mutex table_mutex;
std::set<vpmm_emm_manager*> initialized;
std::map<vpmm_emm_manager*, std::vector<Block>> held_back;

void initialize_only_once(vpmm_emm_plugin& plugin) {
  plugin.initialize = [](vpmm_emm_manager* manager) {
    const std::lock_guard<std::mutex> lock(table_mutex);
    return initialized.insert(manager).second ? sound().initialize(manager) : refuse(manager);
  };
  plugin.destroy = [](vpmm_emm_manager* manager) {
    const std::lock_guard<std::mutex> lock(table_mutex);
    initialized.erase(manager);
    sound().destroy(manager);
  };
}

void reset_only_after_initialize(vpmm_emm_plugin& plugin) {
  initialize_only_once(plugin);
  plugin.initialize = [](vpmm_emm_manager* manager) {
    const std::lock_guard<std::mutex> lock(table_mutex);
    initialized.insert(manager);
    return sound().initialize(manager);
  };
  plugin.reset = [](vpmm_emm_manager* manager) {
    const std::lock_guard<std::mutex> lock(table_mutex);
    return initialized.count(manager) == 1 ? sound().reset(manager) : refuse(manager);
  };
}

void unlock_late(vpmm_emm_plugin& plugin) {
  plugin.release = [](vpmm_emm_manager* manager, const Block* block) {
    if (block->kind != VPMM_EMM_REGISTERED) return sound().release(manager, block);
    const std::lock_guard<std::mutex> lock(table_mutex);
    held_back[manager].push_back(*block);
  };
  plugin.destroy = [](vpmm_emm_manager* manager) {
    const std::lock_guard<std::mutex> lock(table_mutex);
    for (const Block& block : held_back[manager]) sound().release(manager, &block);
    held_back.erase(manager);
    sound().destroy(manager);
  };
}

void throw_from_allocate(vpmm_emm_plugin& plugin) {
  plugin.allocate = [](vpmm_emm_manager*, std::size_t, Block*) -> vpmm_status {
    throw std::logic_error("a slip");
  };
}
void throw_a_number_from_initialize(vpmm_emm_plugin& plugin) {
  plugin.initialize = [](vpmm_emm_manager*) -> vpmm_status { throw 7; };
}
void say_nothing(vpmm_emm_plugin& plugin) {
  plugin.last_error = [] { return ""; };
}
void be_of_version_2(vpmm_emm_plugin& plugin) { plugin.interface_version = 2; }
void claim_what_has_no_slot(vpmm_emm_plugin& plugin) { plugin.get_ipc_handle = nullptr; }
void hide_mapped_memory(vpmm_emm_plugin& plugin) {
  plugin.allocate_host = [](vpmm_emm_manager* manager, std::size_t bytes, unsigned flags,
                            Block* block) {
    const vpmm_status status = sound().allocate_host(manager, bytes, flags, block);
    block->device_pointer = nullptr;
    return status;
  };
}

void pin_what_is_pinned(vpmm_emm_plugin& plugin) {
  plugin.register_host = [](vpmm_emm_manager* manager, void* ptr, std::size_t bytes, unsigned flags,
                            Block* block) {
    if (sound().register_host(manager, ptr, bytes, flags, block) != VPMM_OK) *block = block_at(ptr);
    return VPMM_OK;
  };
}
void give_the_same_host_memory_to_all(vpmm_emm_plugin& plugin) {
  static std::vector<unsigned char> memory(2 << 20);
  plugin.allocate_host = [](vpmm_emm_manager*, std::size_t, unsigned, Block* block) {
    block->pointer = block->device_pointer = memory.data();
    return VPMM_OK;
  };
  plugin.release = [](vpmm_emm_manager* manager, const Block* block) {
    if (block->pointer != memory.data()) sound().release(manager, block);
  };
}

// --- what is expected ---

struct Fault {
  const char* name;
  const vpmm_emm_plugin* plugin;
  const char* check;  // fails
  const char* text;   // is part of what it says
};
void PrintTo(const Fault& fault, std::ostream* out) { *out << fault.name; }

template <typename Manager>
const vpmm_emm_plugin* of() {
  static const vpmm_emm_plugin* const plugin = emm::new_plugin<Manager>("broken");
  return plugin;
}

const char* const kFirst = "memory_of_any_size_is_aligned_and_keeps_its_contents";

std::vector<Fault> faults() {
  return {
      {"leaks", of<Leaks>(), "dropped_memory_is_used_again",
       "memory that was dropped must serve again"},
      {"reuses_too_early", of<ReusesTooEarly>(),
       "memory_that_queued_work_uses_serves_nobody_else_before_it_is_done",
       "that were dropped before it came to them"},
      {"ignores_reset", of<IgnoresReset>(), "after_reset_as_much_memory_is_free_as_before",
       "bytes were free; after"},
      {"overlaps", of<Overlaps>(), "live_memory_is_never_given_to_anybody_else",
       "live memory must not overlap"},
      {"unaligned", of<Unaligned>(), kFirst, "must be aligned to 256 bytes"},
      {"releases_twice", of<ReleasesTwice>(), "a_view_keeps_the_memory_and_it_is_given_back_once",
       "live memory must not overlap"},
      {"forgets_nesting", of<ForgetsNesting>(),
       "nothing_is_freed_while_cleanup_is_deferred_once_or_twice",
       "in a deferral after one within it had ended"},
      {"refuses_to_nest", of<RefusesToNest>(), "deferrals_may_overlap_and_end_on_other_threads",
       "deferred already"},
      {"never_ends_deferral", of<NeverEndsDeferral>(), "an_exception_ends_a_deferral",
       "an exception ended, never"},
      {"defers_whatever_it_costs", of<DefersWhateverItCosts>(),
       "running_out_of_memory_comes_before_a_deferral", "were dropped in a deferral; only 0"},
      {"null_without_error", of<NullWithoutError>(), kFirst, "neither memory nor an error"},
      {"wrong_memory_info", of<WrongMemoryInfo>(),
       "free_memory_is_part_of_the_total_and_allocating_does_not_add_to_it",
       "bytes are said to be free of"},
      {"wrong_total", of<WrongTotal>(),
       "free_memory_is_part_of_the_total_and_allocating_does_not_add_to_it",
       "the total must be the driver's"},
      {"no_memory_is_another_error", of<NoMemoryIsAnotherError>(),
       "an_impossible_request_is_out_of_memory_and_does_no_harm",
       "must fail with status 3; it failed with status 8"},
      {"needs_a_context_to_release", of<NeedsAContextToRelease>(),
       "memory_may_be_dropped_on_a_thread_without_a_cuda_context", "there was none left"},
      {"changes_the_current_context", of<ChangesTheCurrentContext>(),
       "the_current_cuda_context_is_left_as_it_was", "was current before memory was dropped"},
      {"resets_others", of<ResetsOthers>(), "two_contexts_on_one_device_do_not_disturb_each_other",
       "memory of a context while another was reset"},
      {"wrong_ipc_offset", of<WrongIpcOffset>(),
       "an_ipc_handle_tells_size_offset_and_device_also_of_a_view",
       "a view 4096 bytes behind is said to be at 0"},
      {"initialize_only_once", changed(initialize_only_once),
       "initialize_may_come_again_and_changes_nothing", "initialize failed with status 8"},
      {"reset_only_after_initialize", changed(reset_only_after_initialize),
       "reset_may_come_before_initialize", "reset failed with status 8"},
      {"unlock_late", changed(unlock_late),
       "a_range_can_be_pinned_again_at_once_also_while_cleanup_is_deferred",
       "must be unlocked at once"},
      {"throw_from_allocate", changed(throw_from_allocate), kFirst,
       "an exception came through: a slip"},
      {"throw_a_number_from_initialize", changed(throw_a_number_from_initialize), kFirst,
       "something came through"},
      {"say_nothing", changed(say_nothing),
       "an_impossible_request_is_out_of_memory_and_does_no_harm", "without a text"},
      {"be_of_version_2", changed(be_of_version_2),
       "it_has_a_name_and_this_version_of_the_interface", "version 2"},
      {"claim_what_has_no_slot", changed(claim_what_has_no_slot), "a_capability_has_its_slots",
       "have no slots"},
      {"hide_mapped_memory", changed(hide_mapped_memory),
       "mapped_memory_is_the_same_for_host_and_device", "without its device address"},
      {"pin_what_is_pinned", changed(pin_what_is_pinned),
       "pinning_what_is_pinned_is_an_error_and_leaves_it_pinned", "was pinned again"},
      {"give_the_same_host_memory_to_all", changed(give_the_same_host_memory_to_all),
       "live_host_memory_keeps_its_contents", "live pinned memory lost its contents"},
  };
}

std::vector<std::string> failures_of(const vpmm_emm_plugin* plugin) {
  const Suite suite(plugin, 0);
  std::vector<std::string> failures;
  for (const Check& check : all_checks()) {
    const Finding finding = suite.run(check);
    if (finding.verdict == Verdict::failed)
      failures.push_back(std::string(check.name) + ": " + finding.text);
  }
  return failures;
}

TEST(Conformance, a_manager_without_a_fault_passes) {
  EXPECT_THAT(failures_of(&sound()), testing::IsEmpty());
}

TEST(Conformance, a_table_that_ends_before_the_slots_that_may_be_null_passes) {
  const vpmm_emm_plugin* const shortest =
      changed([](vpmm_emm_plugin& plugin) { plugin.size = VPMM_EMM_PLUGIN_LEAST_SIZE; });
  EXPECT_THAT(failures_of(shortest), testing::IsEmpty());
}

class Broken : public testing::TestWithParam<Fault> {};

// The whole suite runs: whatever else the fault spoils, the process survives it.
TEST_P(Broken, manager_is_found_out) {
  using testing::AllOf;
  using testing::Contains;
  using testing::HasSubstr;
  using testing::StartsWith;
  EXPECT_THAT(failures_of(GetParam().plugin),
              Contains(AllOf(StartsWith(GetParam().check), HasSubstr(GetParam().text))));
}

std::string name_of_fault(const testing::TestParamInfo<Fault>& info) { return info.param.name; }
INSTANTIATE_TEST_SUITE_P(One, Broken, testing::ValuesIn(faults()), name_of_fault);

}  // namespace
}  // namespace vpmm::conformance
