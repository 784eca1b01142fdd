// SPDX-License-Identifier: Apache-2.0
// conformance: begin, reset and end of a manager.
#include <array>
#include <vector>

#include "conformance/trial.hpp"

namespace vpmm::conformance {
namespace {

void it_has_a_name_and_this_version_of_the_interface(const Subject& subject) {
  vpmm::check(vpmm_emm_check_plugin(subject.plugin));
  const int version = subject.context().memory_manager().interface_version();
  require(version == VPMM_EMM_INTERFACE_VERSION,
          "the interface has version {}; the manager says {}", VPMM_EMM_INTERFACE_VERSION, version);
}

void initialize_may_come_again_and_changes_nothing(const Subject& subject) {
  const emm::CurrentContext current(subject.driver, subject.primary);
  const BareManager manager(subject);
  manager.initialize();
  manager.initialize();
  const emm::Block block = manager.allocate(kMiB);
  write(subject, block.pointer, kMiB, 1);
  manager.initialize();
  const emm::Block other = manager.allocate(kMiB);
  write(subject, other.pointer, kMiB, 2);
  verify(subject, block.pointer, kMiB, 1, "memory from before a second initialize");
  manager.release(block);
  manager.release(other);
}

void reset_may_come_before_initialize(const Subject& subject) {
  const BareManager manager(subject);
  {
    const emm::CurrentContext none(subject.driver, nullptr);
    manager.reset();
  }
  const emm::CurrentContext current(subject.driver, subject.primary);
  manager.reset();
  manager.initialize();
  const emm::Block block = manager.allocate(kMiB);
  write(subject, block.pointer, kMiB, 1);
  verify(subject, block.pointer, kMiB, 1, "memory of a manager that was reset before initialize");
  manager.release(block);
}

void reset_may_come_twice_and_without_a_current_context(const Subject& subject) {
  const emm::Context context = subject.context();
  const emm::MemoryPointer before = allocate(context, kMiB);
  const emm::CurrentContext none(subject.driver, nullptr);
  context.reset();
  context.reset();
  require_works(subject, context, "after two resets");
}

void memory_dropped_after_reset_changes_nothing(const Subject& subject) {
  const emm::Context context = subject.context();
  std::vector<emm::MemoryPointer> old(8);
  for (emm::MemoryPointer& each : old) each = allocate(context, kMiB);
  const emm::MemoryPointer view = old.front().view(1024, 1024);
  context.reset();
  std::vector<emm::MemoryPointer> blocks;
  for (std::uint64_t i = 0; i < 4; ++i)
    write(subject, blocks.emplace_back(allocate(context, kMiB)).device_pointer(), kMiB, i);
  old.clear();
  for (std::uint64_t i = 4; i < 12; ++i)
    write(subject, blocks.emplace_back(allocate(context, kMiB)).device_pointer(), kMiB, i);
  require_apart(blocks);
  for (std::uint64_t i = 0; i < blocks.size(); ++i)
    verify(subject, blocks[i].device_pointer(), kMiB, i, "memory that was allocated after a reset");
}

void memory_may_outlive_its_context_and_manager(const Subject& subject) {
  emm::MemoryPointer memory;
  {
    emm::Context context = subject.context();
    memory = allocate(context, kMiB);
    context.close();
  }
  memory.reset();
  emm::MemoryPointer never_closed;
  std::shared_ptr<emm::MemoryManager> manager;
  {
    const emm::Context context = subject.context();
    never_closed = allocate(context, kMiB);
    manager = context.shared_memory_manager();
  }
  never_closed.reset();
  manager.reset();
  require_works(subject, subject.context(), "after contexts were closed with memory left");
}

void two_contexts_on_one_device_do_not_disturb_each_other(const Subject& subject) {
  const emm::Context one = subject.context();
  const emm::Context other = subject.context();
  std::vector<emm::MemoryPointer> of_one;
  std::vector<emm::MemoryPointer> of_other;
  for (std::uint64_t i = 0; i < 8; ++i) {
    write(subject, of_one.emplace_back(allocate(one, kMiB)).device_pointer(), kMiB, 2 * i);
    write(subject, of_other.emplace_back(allocate(other, kMiB)).device_pointer(), kMiB, 2 * i + 1);
  }
  std::vector<emm::MemoryPointer> all = of_one;
  all.insert(all.end(), of_other.begin(), of_other.end());
  require_apart(all);
  all.clear();
  one.reset();
  for (std::uint64_t i = 0; i < 8; ++i)
    verify(subject, of_other[i].device_pointer(), kMiB, 2 * i + 1,
           "memory of a context while another was reset");
  require_works(subject, one, "in a context that was reset while another was in use");
  require_works(subject, other, "while another context was reset");
}

// Checks the current context after each step: the caller's own must stay, and none may appear.
void the_current_cuda_context_is_left_as_it_was(const Subject& subject) {
  for (const vpmm_cuda_context wanted :
       std::array<vpmm_cuda_context, 2>{subject.primary, nullptr}) {
    const emm::CurrentContext current(subject.driver, wanted);
    const auto require_unchanged = [&](const char* what) {
      const vpmm_cuda_context found = subject.driver.ctx_get_current();
      require(found == wanted, "the CUDA context {} was current before {}; afterwards it was {}",
              wanted, what, found);
    };
    emm::Context context = subject.context();
    require_unchanged("a context was made");
    context.initialize();
    require_unchanged("initialize");
    emm::MemoryPointer memory = allocate(context, kMiB);
    require_unchanged("an allocation");
    memory.reset();
    require_unchanged("memory was dropped");
    context.defer_cleanup().end();
    require_unchanged("cleanup was deferred");
    if (context.memory_manager().capabilities().host_memory) {
      (void)context.allocate_pinned(4 * kKiB);
      require_unchanged("host memory was allocated and dropped");
    }
    context.reset();
    require_unchanged("reset");
    context.close();
    require_unchanged("close");
  }
}

}  // namespace

std::vector<Check> life_checks() {
  return {
      {"it_has_a_name_and_this_version_of_the_interface",
       it_has_a_name_and_this_version_of_the_interface},
      {"initialize_may_come_again_and_changes_nothing",
       initialize_may_come_again_and_changes_nothing},
      {"reset_may_come_before_initialize", reset_may_come_before_initialize},
      {"reset_may_come_twice_and_without_a_current_context",
       reset_may_come_twice_and_without_a_current_context},
      {"memory_dropped_after_reset_changes_nothing", memory_dropped_after_reset_changes_nothing},
      {"memory_may_outlive_its_context_and_manager", memory_may_outlive_its_context_and_manager},
      {"two_contexts_on_one_device_do_not_disturb_each_other",
       two_contexts_on_one_device_do_not_disturb_each_other},
      {"the_current_cuda_context_is_left_as_it_was", the_current_cuda_context_is_left_as_it_was},
  };
}

}  // namespace vpmm::conformance
