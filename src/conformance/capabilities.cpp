// SPDX-License-Identifier: Apache-2.0
// conformance: optional abilities: managed memory, the order of streams, IPC handles; and their
// refusal.
#include <array>
#include <cstring>
#include <optional>
#include <vector>

#include "conformance/trial.hpp"

namespace vpmm::conformance {
namespace {

void a_capability_has_its_slots(const Subject& subject) {
  const std::uint32_t claimed = BareManager(subject).capabilities().bits();
  const std::uint32_t usable = subject.context().memory_manager().capabilities().bits();
  require((claimed & ~usable) == 0,
          "the manager says that it has the capabilities {:#x}; of these {:#x} have no slots in "
          "its table",
          claimed, claimed & ~usable);
  const emm::Context context = subject.context();
  context.initialize();
  const std::uint32_t later = context.memory_manager().capabilities().bits();
  require(later == usable, "the manager had the capabilities {:#x}; after initialize it has {:#x}",
          usable, later);
}

void what_it_does_not_offer_is_refused_as_unsupported(const Subject& subject) {
  const emm::Context context = subject.context();
  const emm::Capabilities has = context.memory_manager().capabilities();
  const auto require_refused = [](const char* what, const std::function<void()>& action) {
    require_error(VPMM_ERROR_UNSUPPORTED, what, action);
  };
  std::vector<unsigned char> bytes(kMiB);
  if (!has.host_memory) {
    require_refused("pinned memory", [&] { (void)context.allocate_pinned(kMiB); });
    require_refused("mapped memory", [&] { (void)context.allocate_mapped(kMiB); });
    require_refused("pinning", [&] { (void)context.pin(nullptr, {bytes.data(), bytes.size()}); });
  }
  if (!has.managed_memory)
    require_refused("managed memory", [&] { (void)context.allocate_managed(kMiB); });
  if (!has.stream_order) {
    require_refused("memory on a stream", [&] { (void)context.memalloc(kMiB, default_stream); });
    emm::MemoryPointer memory = allocate(context, kMiB);
    require_refused("a release on a stream", [&] { memory.release_on(default_stream); });
    write(subject, memory.device_pointer(), kMiB, 1);
    verify(subject, memory.device_pointer(), kMiB, 1,
           "memory whose release on a stream was refused");
  }
  if (!has.ipc)
    require_refused("an IPC handle",
                    [&] { (void)context.get_ipc_handle(allocate(context, kMiB)); });
  if (!has.memory_info) require_refused("free memory", [&] { (void)context.get_memory_info(); });
}

void managed_memory_is_the_same_for_host_and_device(const Subject& subject) {
  const emm::Context context = subject.context();
  for (const emm::ManagedAttach attach : {emm::ManagedAttach::global, emm::ManagedAttach::host}) {
    const emm::ManagedMemory memory = context.allocate_managed(kMiB, attach);
    require(memory.host_pointer() != nullptr && memory.host_pointer() == memory.device_pointer(),
            "managed memory must have one address; the host's is {}, the device's {}",
            memory.host_pointer(), memory.device_pointer());
    write_by_host(memory.host_pointer(), kMiB, 1);
    verify_by_host(memory.host_pointer(), kMiB, 1, "managed memory");
    if (attach == emm::ManagedAttach::host)
      continue;  // the host's alone on devices that cannot share it
    verify(subject, memory.device_pointer(), kMiB, 1, "managed memory, written by the host,");
    write(subject, memory.device_pointer(), kMiB, 2);
    verify_by_host(memory.host_pointer(), kMiB, 2, "managed memory, written by the device,");
  }
}

void managed_memory_that_is_dropped_can_be_allocated_again(const Subject& subject) {
  const emm::Context context = subject.context();
  for (std::uint64_t i = 0; i < 100; ++i) {
    const emm::ManagedMemory memory = context.allocate_managed(kMiB);
    write_by_host(memory.host_pointer(), 4096, i);
    verify(subject, memory.device_pointer(), 4096, i, "managed memory");
  }
}

void memory_of_a_stream_is_given_back_in_its_order_or_dropped(const Subject& subject) {
  const emm::Context context = subject.context();
  for (std::uint64_t i = 0; i < 100; ++i) {
    emm::MemoryPointer memory = context.memalloc(1000 + 1000 * i, default_stream);
    require_device_memory(memory, 1000 + 1000 * i);
    write(subject, memory.device_pointer(), memory.size(), i);
    verify(subject, memory.device_pointer(), memory.size(), i, "memory of a stream");
    if (i % 2 == 0) memory.release_on(default_stream);
  }
  emm::MemoryPointer of_no_stream = allocate(context, kMiB);
  of_no_stream.release_on(default_stream);
  require(!of_no_stream, "memory that was released on a stream must be empty afterwards");
}

void memory_is_given_back_on_a_stream_once(const Subject& subject) {
  const emm::Context context = subject.context();
  emm::MemoryPointer memory = context.memalloc(kMiB, default_stream);
  emm::MemoryPointer copy = memory;
  memory.release_on(default_stream);
  require_error(VPMM_ERROR_INVALID_POINTER, "a second release on a stream",
                [&] { copy.release_on(default_stream); });
  copy.reset();
  std::vector<emm::MemoryPointer> others(8);
  for (emm::MemoryPointer& other : others) other = context.memalloc(kMiB, default_stream);
  require_apart(others);
}

// Opening takes another process.
void an_ipc_handle_tells_size_offset_and_device_also_of_a_view(const Subject& subject) {
  const emm::Context context = subject.context();
  const emm::MemoryPointer memory = allocate(context, kMiB);
  std::optional<emm::IpcHandle> whole;
  try {
    whole = context.get_ipc_handle(memory);
  } catch (const vpmm::error& error) {
    if (error.status() != VPMM_ERROR_UNSUPPORTED) throw;
    throw Skipped{fmt::format("this device does not share the manager's memory: {}", error.what())};
  }
  require(whole->bytes == kMiB, "the IPC handle of {} bytes says {}", kMiB, whole->bytes);
  const emm::IpcHandle view = context.get_ipc_handle(memory.view(4096, 1000));
  require(view.bytes == 1000, "the IPC handle of a view of 1000 bytes says {}", view.bytes);
  require(
      view.offset == whole->offset + 4096,
      "the memory of an IPC handle is at offset {}; a view 4096 bytes behind is said to be at {}",
      whole->offset, view.offset);
  std::array<unsigned char, 16> uuid{};
  subject.driver.done(
      subject.driver.table()->device_get_uuid(subject.driver.table(), subject.device, uuid.data()));
  require(std::memcmp(whole->device_uuid, uuid.data(), uuid.size()) == 0,
          "the IPC handle names another device than the one that the memory is on");
}

}  // namespace

std::vector<Check> capability_checks() {
  using emm::Capabilities;
  return {
      {"a_capability_has_its_slots", a_capability_has_its_slots},
      {"what_it_does_not_offer_is_refused_as_unsupported",
       what_it_does_not_offer_is_refused_as_unsupported},
      {"managed_memory_is_the_same_for_host_and_device",
       managed_memory_is_the_same_for_host_and_device, &Capabilities::managed_memory},
      {"managed_memory_that_is_dropped_can_be_allocated_again",
       managed_memory_that_is_dropped_can_be_allocated_again, &Capabilities::managed_memory},
      {"memory_of_a_stream_is_given_back_in_its_order_or_dropped",
       memory_of_a_stream_is_given_back_in_its_order_or_dropped, &Capabilities::stream_order},
      {"memory_is_given_back_on_a_stream_once", memory_is_given_back_on_a_stream_once,
       &Capabilities::stream_order},
      {"an_ipc_handle_tells_size_offset_and_device_also_of_a_view",
       an_ipc_handle_tells_size_offset_and_device_also_of_a_view, &Capabilities::ipc},
  };
}

}  // namespace vpmm::conformance
