// SPDX-License-Identifier: Apache-2.0
// conformance: page-locked host memory: allocated, mapped, and the user's own.
#include <cstdlib>
#include <memory>
#include <vector>

#include "conformance/trial.hpp"

namespace vpmm::conformance {
namespace {

constexpr std::size_t kSize = 256 * kKiB;

// Pages of their own, without other registrations.
std::shared_ptr<void> make_pages() {
  return {std::aligned_alloc(64 * kKiB, kSize), [](void* pages) { std::free(pages); }};
}

std::vector<emm::HostOptions> all_options() {
  return {{}, {true, false}, {false, true}, {true, true}};
}

std::string describe(emm::HostOptions options, const char* kind) {
  return fmt::format("{} memory{}{}", kind, options.portable ? ", portable" : "",
                     options.write_combined ? ", write-combined" : "");
}

// Requires that each side sees the other's writes.
void require_shared(const Subject& subject, const emm::MappedMemory& memory,
                    std::string_view what) {
  require(memory.host_pointer() != nullptr, "{} has no host pointer", what);
  require(memory.device_pointer() != nullptr, "{} has no device pointer", what);
  write_by_host(memory.host_pointer(), memory.size(), 1);
  verify(subject, memory.device_pointer(), memory.size(), 1,
         fmt::format("{}, seen by the device,", what));
  write(subject, memory.device_pointer(), memory.size(), 2);
  verify_by_host(memory.host_pointer(), memory.size(), 2,
                 fmt::format("{}, seen by the host,", what));
}

void pinned_memory_can_be_written_and_read(const Subject& subject) {
  const emm::Context context = subject.context();
  for (const emm::HostOptions options : all_options()) {
    for (const std::size_t bytes : {std::size_t{1}, std::size_t{4097}, kMiB}) {
      const emm::PinnedMemory memory = context.allocate_pinned(bytes, options);
      const std::string what = describe(options, "pinned");
      require(memory.host_pointer() != nullptr, "{} has no host pointer", what);
      require(memory.size() == bytes, "{} bytes of {} were asked for; {} came", bytes, what,
              memory.size());
      write_by_host(memory.host_pointer(), bytes, 1);
      verify_by_host(memory.host_pointer(), bytes, 1, what);
    }
  }
}

void mapped_memory_is_the_same_for_host_and_device(const Subject& subject) {
  const emm::Context context = subject.context();
  for (const emm::HostOptions options : all_options()) {
    const emm::MappedMemory memory = context.allocate_mapped(kSize, options);
    require_shared(subject, memory, describe(options, "mapped"));
    require_shared(subject, memory.view(4096, 1000), "a view of mapped memory");
  }
}

// Live and dropped by turns, so that both lie side by side.
void live_host_memory_keeps_its_contents(const Subject& subject) {
  const emm::Context context = subject.context();
  std::vector<emm::PinnedMemory> blocks;
  for (std::uint64_t i = 0; i < 40; ++i) {
    write_by_host(blocks.emplace_back(context.allocate_pinned(10'000)).host_pointer(), 10'000, i);
    write_by_host(context.allocate_pinned(10'000).host_pointer(), 10'000, 1000 + i);
  }
  for (std::uint64_t i = 0; i < blocks.size(); ++i)
    verify_by_host(blocks[i].host_pointer(), 10'000, i, "live pinned memory");
}

void pinning_leaves_address_and_contents_as_they_are(const Subject& subject) {
  const emm::Context context = subject.context();
  const std::shared_ptr<void> pages = make_pages();
  write_by_host(pages.get(), kSize, 1);
  {
    const emm::PinnedMemory pinned = context.pin(pages, {pages.get(), kSize});
    require(pinned.host_pointer() == pages.get(), "memory at {} was pinned; it is said to be at {}",
            pages.get(), pinned.host_pointer());
    verify_by_host(pinned.host_pointer(), kSize, 1, "memory that was pinned");
  }
  verify_by_host(pages.get(), kSize, 1, "memory that was pinned and is not any more");
}

void memory_pinned_as_mapped_is_seen_by_the_device(const Subject& subject) {
  if (subject.driver.device_get_attribute(emm::kCanMapHostMemory, subject.device) == 0)
    throw Skipped{"the device cannot map host memory"};
  const emm::Context context = subject.context();
  const std::shared_ptr<void> pages = make_pages();
  require_shared(subject, context.pin_mapped(pages, {pages.get(), kSize}),
                 "memory that was pinned as mapped");
}

void a_range_can_be_pinned_again_at_once_also_while_cleanup_is_deferred(const Subject& subject) {
  const emm::Context context = subject.context();
  const std::shared_ptr<void> pages = make_pages();
  const auto pin_again_and_again = [&](const char* when) {
    for (int i = 0; i < 20; ++i) {
      try {
        (void)context.pin(pages, {pages.get(), kSize});
      } catch (const vpmm::error& error) {
        throw Failed{fmt::format(
            "memory that was pinned and dropped must be unlocked at once; the same range {} could "
            "not be pinned again: {}",
            when, error.what())};
      }
    }
  };
  pin_again_and_again("outside of deferrals");
  const emm::DeferCleanup deferral = context.defer_cleanup();
  pin_again_and_again("in a deferral");
}

void the_owner_of_pinned_memory_lives_until_the_drop(const Subject& subject) {
  const emm::Context context = subject.context();
  const std::shared_ptr<void> pages = make_pages();
  auto owner = std::make_shared<int>(1);
  const std::weak_ptr<int> watch = owner;
  emm::PinnedMemory pinned = context.pin(std::move(owner), {pages.get(), kSize});
  require(!watch.expired(), "the owner of pinned memory was destroyed while the memory was in use");
  emm::PinnedMemory view = pinned.view(100, 100);
  pinned.reset();
  require(!watch.expired(),
          "the owner of pinned memory was destroyed while a view of it was in use");
  view.reset();
  require(watch.expired(), "the owner of pinned memory was kept after the memory had been dropped");
}

void pinning_what_is_pinned_is_an_error_and_leaves_it_pinned(const Subject& subject) {
  const emm::Context context = subject.context();
  const std::shared_ptr<void> pages = make_pages();
  emm::PinnedMemory first = context.pin(pages, {pages.get(), kSize});
  bool has_failed = false;
  try {
    (void)context.pin(pages, {pages.get(), kSize});
  } catch (const vpmm::error& error) {
    has_failed = true;
    require(has_text(error),
            "a range could not be pinned twice, as it must be, but without a text");
  }
  require(has_failed, "a range that is pinned was pinned again; that must be an error");
  // Still in force: a third attempt fails as the second did, and there is a pin to give back.
  try {
    (void)context.pin(pages, {pages.get(), kSize});
    throw Failed{"the failed second pinning of a range undid the first"};
  } catch (const vpmm::error&) {
  }
  first.reset();
  (void)context.pin(pages, {pages.get(), kSize});
}

}  // namespace

std::vector<Check> host_memory_checks() {
  constexpr auto kHostMemory = &emm::Capabilities::host_memory;
  return {
      {"pinned_memory_can_be_written_and_read", pinned_memory_can_be_written_and_read, kHostMemory},
      {"mapped_memory_is_the_same_for_host_and_device",
       mapped_memory_is_the_same_for_host_and_device, kHostMemory},
      {"live_host_memory_keeps_its_contents", live_host_memory_keeps_its_contents, kHostMemory},
      {"pinning_leaves_address_and_contents_as_they_are",
       pinning_leaves_address_and_contents_as_they_are, kHostMemory},
      {"memory_pinned_as_mapped_is_seen_by_the_device",
       memory_pinned_as_mapped_is_seen_by_the_device, kHostMemory},
      {"a_range_can_be_pinned_again_at_once_also_while_cleanup_is_deferred",
       a_range_can_be_pinned_again_at_once_also_while_cleanup_is_deferred, kHostMemory},
      {"the_owner_of_pinned_memory_lives_until_the_drop",
       the_owner_of_pinned_memory_lives_until_the_drop, kHostMemory},
      {"pinning_what_is_pinned_is_an_error_and_leaves_it_pinned",
       pinning_what_is_pinned_is_an_error_and_leaves_it_pinned, kHostMemory},
  };
}

}  // namespace vpmm::conformance
