// SPDX-License-Identifier: Apache-2.0
// conformance: deferred cleanup: driver calls of the manager meanwhile, and memory that must not
// run out.
#include <atomic>
#include <exception>
#include <memory>
#include <optional>
#include <type_traits>
#include <vector>

#include "conformance/trial.hpp"

namespace vpmm::conformance {
namespace {

// The driver's table with a count of frees, the calls that wait for the device. One for the
// process, because managers may keep the table; a manager with a driver of its own goes uncounted.
class FreeCounter {
 public:
  static FreeCounter& of(const emm::Driver& driver) {
    static auto* const one = new FreeCounter(driver.table());
    return *one;
  }
  emm::Driver driver() const { return emm::Driver(&spy_.table); }
  int frees() const { return spy_.frees.load(); }

 private:
  struct Spy {
    vpmm_emm_driver table;  // first: each slot gets its address
    const vpmm_emm_driver* real;
    mutable std::atomic<int> frees{0};
  };
  static_assert(std::is_standard_layout_v<Spy>);

  explicit FreeCounter(const vpmm_emm_driver* real) : spy_{*real, real, {}} {
    spy_.table.mem_free = [](const vpmm_emm_driver* table, void* ptr) {
      return counted(table)->mem_free(counted_table(table), ptr);
    };
    spy_.table.mem_free_host = [](const vpmm_emm_driver* table, void* ptr) {
      return counted(table)->mem_free_host(counted_table(table), ptr);
    };
  }
  static const vpmm_emm_driver* counted_table(const vpmm_emm_driver* table) {
    return reinterpret_cast<const Spy*>(table)->real;
  }
  static const vpmm_emm_driver* counted(const vpmm_emm_driver* table) {
    reinterpret_cast<const Spy*>(table)->frees.fetch_add(1);
    return counted_table(table);
  }

  Spy spy_;
};

struct Watched {
  explicit Watched(const Subject& subject)
      : counter(FreeCounter::of(subject.driver)),
        manager(std::make_shared<emm::PluginMemoryManager>(
            emm::Creation{counter.driver(), subject.device}, subject.plugin)) {
    const bool has_slots = subject.plugin->size >= offsetof(vpmm_emm_plugin, defer_cleanup_end);
    if (!has_slots || subject.plugin->defer_cleanup_begin == nullptr)
      throw Skipped{"the manager does not defer cleanup"};
    const emm::CurrentContext current(subject.driver, subject.primary);
    manager->initialize();
  }
  // More than Numba's limits let wait.
  void allocate_and_drop() const {
    const bool has_host_memory = manager->capabilities().host_memory;
    for (int i = 0; i < 40; ++i) {
      (void)manager->memalloc(kMiB);
      if (has_host_memory) (void)manager->allocate_pinned(4 * kKiB);
    }
  }
  int frees_of_dropping() const {
    const int before = counter.frees();
    allocate_and_drop();
    return counter.frees() - before;
  }
  void require_none_freed(std::string_view when) const {
    const int frees = frees_of_dropping();
    require(frees == 0,
            "nothing may be freed while cleanup is deferred; the driver was asked to {} times {}",
            frees, when);
  }

  FreeCounter& counter;
  std::shared_ptr<emm::PluginMemoryManager> manager;
};

void nothing_is_freed_while_cleanup_is_deferred_once_or_twice(const Subject& subject) {
  const Watched watched(subject);
  emm::DeferCleanup outer = watched.manager->defer_cleanup();
  watched.require_none_freed("in a deferral");
  {
    const emm::DeferCleanup inner = watched.manager->defer_cleanup();
    watched.require_none_freed("in a deferral within another");
  }
  watched.require_none_freed("in a deferral after one within it had ended");
  outer.end();
}

void deferrals_may_overlap_and_end_on_other_threads(const Subject& subject) {
  const Watched watched(subject);
  emm::DeferCleanup first = watched.manager->defer_cleanup();
  std::optional<emm::DeferCleanup> second;
  on_another_thread([&] { second.emplace(watched.manager->defer_cleanup()); });
  first.end();
  watched.require_none_freed("in a deferral of one thread after another thread's had ended");
  on_another_thread([&] {
    watched.require_none_freed("in a deferral of another thread");
    second->end();
  });
  require_works(subject, subject.context(), "after deferrals that overlapped");
}

// A manager that frees dropped memory before a deferral must do so again after it.
void an_exception_ends_a_deferral(const Subject& subject) {
  const Watched watched(subject);
  const int before = watched.frees_of_dropping();
  try {
    const emm::DeferCleanup outer(watched.manager);
    const emm::DeferCleanup inner(watched.manager);
    watched.allocate_and_drop();
    throw Skipped{};
  } catch (const Skipped&) {
    const int after = watched.frees_of_dropping();
    require(before == 0 || after > 0,
            "the driver was asked to free {} times before a deferral; after one that an exception "
            "ended, never",
            before);
  }
}

void memory_can_be_allocated_and_used_while_cleanup_is_deferred(const Subject& subject) {
  const emm::Context context = subject.context();
  const emm::DeferCleanup deferral = context.defer_cleanup();
  std::vector<emm::MemoryPointer> blocks;
  for (std::uint64_t i = 0; i < 64; ++i) {
    write(subject, blocks.emplace_back(allocate(context, 100'000)).device_pointer(), 100'000, i);
    (void)allocate(context, 100'000);
  }
  for (std::uint64_t i = 0; i < blocks.size(); ++i)
    verify(subject, blocks[i].device_pointer(), 100'000, i,
           "memory that was allocated in a deferral");
}

// Fills the device, drops everything in a deferral and asks for half of it again.
void running_out_of_memory_comes_before_a_deferral(const Subject& subject) {
  const emm::Context context = subject.context();
  const std::size_t bytes = device_bytes(subject) / 32;
  const emm::DeferCleanup deferral = context.defer_cleanup();
  std::vector<emm::MemoryPointer> blocks;
  try {
    while (blocks.size() < 64) blocks.push_back(allocate(context, bytes));
    throw Skipped{"twice the device's memory could be allocated"};
  } catch (const vpmm::out_of_memory&) {
    require(blocks.size() >= 2,
            "not even two blocks of {} bytes, a 32nd of the device, could be allocated", bytes);
  }
  const std::size_t wanted = blocks.size() / 2;
  blocks.clear();
  try {
    while (blocks.size() < wanted) blocks.push_back(allocate(context, bytes));
  } catch (const vpmm::out_of_memory& error) {
    throw Failed{fmt::format(
        "{} blocks of {} bytes were dropped in a deferral; only {} could be allocated again: {}",
        2 * wanted, bytes, blocks.size(), error.what())};
  }
}

}  // namespace

std::vector<Check> cleanup_checks() {
  return {
      {"nothing_is_freed_while_cleanup_is_deferred_once_or_twice",
       nothing_is_freed_while_cleanup_is_deferred_once_or_twice},
      {"deferrals_may_overlap_and_end_on_other_threads",
       deferrals_may_overlap_and_end_on_other_threads},
      {"an_exception_ends_a_deferral", an_exception_ends_a_deferral},
      {"memory_can_be_allocated_and_used_while_cleanup_is_deferred",
       memory_can_be_allocated_and_used_while_cleanup_is_deferred},
      {"running_out_of_memory_comes_before_a_deferral",
       running_out_of_memory_comes_before_a_deferral},
  };
}

}  // namespace vpmm::conformance
