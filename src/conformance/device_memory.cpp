// SPDX-License-Identifier: Apache-2.0
// conformance: device memory: place, contents, reuse and exhaustion.
#include <algorithm>
#include <array>
#include <vector>

#include "conformance/busy_stream.hpp"
#include "conformance/trial.hpp"

namespace vpmm::conformance {
namespace {

constexpr std::size_t kImpossible = std::size_t{1} << 60;
constexpr std::uint64_t kTolerance =
    64 * kMiB;  // of free memory: pages that are kept, and other processes

void memory_of_any_size_is_aligned_and_keeps_its_contents(const Subject& subject) {
  const emm::Context context = subject.context();
  std::vector<emm::MemoryPointer> blocks;
  for (const std::size_t bytes :
       {std::size_t{1}, std::size_t{3}, std::size_t{255}, std::size_t{256}, std::size_t{257},
        std::size_t{4097}, kMiB, 2 * kMiB + 1, 100 * kMiB})
    blocks.push_back(allocate(context, bytes));
  require_apart(blocks);
  for (std::uint64_t i = 0; i < blocks.size(); ++i)
    write(subject, blocks[i].device_pointer(), blocks[i].size(), i);
  for (std::uint64_t i = 0; i < blocks.size(); ++i)
    verify(subject, blocks[i].device_pointer(), blocks[i].size(), i,
           fmt::format("memory of {} bytes", blocks[i].size()));
}

// Replaces every other block in two rounds, so that dropped memory is reused beside live memory.
void live_memory_is_never_given_to_anybody_else(const Subject& subject) {
  constexpr std::array<std::size_t, 6> kSizes{1, 100, 513, 5000, 70'000, 300'000};
  const emm::Context context = subject.context();
  std::vector<emm::MemoryPointer> blocks(300);
  std::vector<std::uint64_t> seeds(blocks.size());
  const auto replace = [&](std::size_t i, std::uint64_t seed) {
    blocks[i] = allocate(context, kSizes[seed % kSizes.size()]);
    seeds[i] = seed;
    write(subject, blocks[i].device_pointer(), blocks[i].size(), seed);
  };
  for (std::size_t i = 0; i < blocks.size(); ++i) replace(i, i);
  for (std::uint64_t round = 1; round <= 2; ++round) {
    for (std::size_t i = round; i < blocks.size(); i += 2) blocks[i].reset();
    for (std::size_t i = round; i < blocks.size(); i += 2) replace(i, 1000 * round + i);
    require_apart(blocks);
    for (std::size_t i = 0; i < blocks.size(); ++i)
      verify(subject, blocks[i].device_pointer(), blocks[i].size(), seeds[i],
             fmt::format("live memory of {} bytes", blocks[i].size()));
  }
}

void no_bytes_are_no_memory(const Subject& subject) {
  const emm::Context context = subject.context();
  const emm::MemoryPointer memory = context.memalloc(0);
  require(!memory && memory.size() == 0, "0 bytes must be a null pointer; {} bytes came at {}",
          memory.size(), memory.device_pointer());
}

// Four times the device, in pieces, with two live at a time.
void dropped_memory_is_used_again(const Subject& subject) {
  const emm::Context context = subject.context();
  const std::size_t bytes = device_bytes(subject) / 256;
  emm::MemoryPointer last;
  for (int round = 0; round < 1024; ++round) {
    try {
      last = allocate(context, bytes);
    } catch (const vpmm::out_of_memory& error) {
      throw Failed{fmt::format(
          "memory that was dropped must serve again; after {} blocks of {} bytes, of which two "
          "were live at most, there was none left: {}",
          round, bytes, error.what())};
    }
  }
}

void an_impossible_request_is_out_of_memory_and_does_no_harm(const Subject& subject) {
  const emm::Context context = subject.context();
  const emm::MemoryPointer memory = allocate(context, kMiB);
  write(subject, memory.device_pointer(), kMiB, 1);
  for (int i = 0; i < 3; ++i) {
    require_error(VPMM_ERROR_OUT_OF_MEMORY, fmt::format("an allocation of {} bytes", kImpossible),
                  [&] { (void)context.memalloc(kImpossible); });
  }
  require_works(subject, context, "after an impossible request");
  verify(subject, memory.device_pointer(), kMiB, 1,
         "memory that was live during an impossible request");
}

void a_view_keeps_the_memory_and_it_is_given_back_once(const Subject& subject) {
  const emm::Context context = subject.context();
  emm::MemoryPointer whole = allocate(context, kMiB);
  write(subject, whole.device_pointer(), kMiB, 1);
  emm::MemoryPointer first = whole.view(0, kMiB);
  emm::MemoryPointer second = first.view(4096, 1000);
  require(second.device_pointer() == static_cast<unsigned char*>(whole.device_pointer()) + 4096,
          "a view at offset 4096 of memory at {} is at {}", whole.device_pointer(),
          second.device_pointer());
  whole.reset();
  first.reset();
  std::vector<emm::MemoryPointer> others;
  for (std::uint64_t i = 0; i < 8; ++i)
    write(subject, others.emplace_back(allocate(context, kMiB)).device_pointer(), kMiB, 10 + i);
  write(subject, second.device_pointer(), 1000, 2);
  for (std::uint64_t i = 0; i < 8; ++i)
    verify(subject, others[i].device_pointer(), kMiB, 10 + i, "memory beside a view");
  second.reset();
  // After a double release, two of these would be the same.
  for (std::uint64_t i = 0; i < 8; ++i) others.push_back(allocate(context, kMiB));
  require_apart(others);
}

// Twice the device, so that memory such a thread cannot give back is missed.
void memory_may_be_dropped_on_a_thread_without_a_cuda_context(const Subject& subject) {
  const emm::Context context = subject.context();
  const std::size_t bytes = device_bytes(subject) / 32;
  for (int i = 0; i < 64; ++i) {
    emm::MemoryPointer memory;
    try {
      memory = allocate(context, bytes);
    } catch (const vpmm::out_of_memory& error) {
      throw Failed{fmt::format(
          "memory dropped on a thread without a CUDA context must serve again; after {} blocks of "
          "{} bytes there was none left: {}",
          i, bytes, error.what())};
    }
    on_another_thread([&] {
      memory.reset();
      require(subject.driver.ctx_get_current() == nullptr,
              "no CUDA context was current on the thread that dropped memory; afterwards one was");
    });
  }
}

void eight_threads_allocate_write_and_drop(const Subject& subject) {
  const emm::Context context = subject.context();
  on_threads(8, [&](int thread) {
    for (std::uint64_t round = 0; round < 25; ++round) {
      const std::uint64_t seed = 1000 * static_cast<std::uint64_t>(thread + 1) + round;
      std::vector<emm::MemoryPointer> blocks;
      for (const std::size_t bytes :
           {std::size_t{10}, std::size_t{5000}, std::size_t{40'000}, std::size_t{150'000}})
        write(subject, blocks.emplace_back(allocate(context, bytes)).device_pointer(), bytes,
              seed + bytes);
      for (const emm::MemoryPointer& block : blocks)
        verify(subject, block.device_pointer(), block.size(), seed + block.size(),
               "memory of one of eight threads");
    }
  });
}

void free_memory_is_part_of_the_total_and_allocating_does_not_add_to_it(const Subject& subject) {
  const emm::Context context = subject.context();
  context.initialize();
  const emm::MemoryInfo before = context.get_memory_info();
  const std::uint64_t total = device_bytes(subject);
  require(before.total == total, "the total must be the driver's, {} bytes; {} came", total,
          before.total);
  require(before.free <= before.total, "{} bytes are said to be free of {}", before.free,
          before.total);
  const emm::MemoryPointer memory = allocate(context, 100 * kMiB);
  const emm::MemoryInfo after = context.get_memory_info();
  require(after.free <= before.free + kTolerance,
          "{} bytes were free; after an allocation of 100 MiB, {} are said to be (tolerance {})",
          before.free, after.free, kTolerance);
}

void after_reset_as_much_memory_is_free_as_before(const Subject& subject) {
  const emm::Context context = subject.context();
  require_works(subject, context, "at first");
  context.reset();
  const std::uint64_t before = context.get_memory_info().free;
  std::vector<emm::MemoryPointer> left;
  for (int i = 0; i < 200; ++i) {
    (void)allocate(context, kMiB);
    left.push_back(allocate(context, kMiB));
  }
  context.reset();
  const std::uint64_t after = context.get_memory_info().free;
  require(after + kTolerance >= before,
          "{} bytes were free; after 400 MiB were allocated and a reset, {} are (tolerance {})",
          before, after, kTolerance);
}

// A copy out of the memory waits behind other work when the memory is dropped; the next owner
// writes to it at once.
void memory_that_queued_work_uses_serves_nobody_else_before_it_is_done(const Subject& subject) {
  constexpr std::uint64_t kOthers = 4;
  const emm::Context context = subject.context();
  for (const std::size_t bytes : {4 * kKiB, 300 * kKiB, 6 * kMiB}) {
    BusyStream stream(subject);
    emm::MemoryPointer source = allocate(context, bytes);
    const emm::MemoryPointer copy = allocate(context, bytes);
    write(subject, source.device_pointer(), bytes, 1);
    stream.work_for_a_while();
    stream.copy(copy.device_pointer(), source.device_pointer(), bytes);
    source.reset();
    std::vector<emm::MemoryPointer> others;
    for (std::uint64_t i = 0; i < kOthers; ++i) {
      others.push_back(allocate(context, bytes));
      write(subject, others.back().device_pointer(), bytes, 100 + i);
    }
    stream.wait();
    verify(subject, copy.device_pointer(), bytes, 1,
           fmt::format("what a stream read from {} bytes that were dropped before it came to them",
                       bytes));
  }
}

}  // namespace

std::vector<Check> device_memory_checks() {
  constexpr auto kMemoryInfo = &emm::Capabilities::memory_info;
  return {
      {"memory_of_any_size_is_aligned_and_keeps_its_contents",
       memory_of_any_size_is_aligned_and_keeps_its_contents},
      {"live_memory_is_never_given_to_anybody_else", live_memory_is_never_given_to_anybody_else},
      {"no_bytes_are_no_memory", no_bytes_are_no_memory},
      {"dropped_memory_is_used_again", dropped_memory_is_used_again},
      {"an_impossible_request_is_out_of_memory_and_does_no_harm",
       an_impossible_request_is_out_of_memory_and_does_no_harm},
      {"a_view_keeps_the_memory_and_it_is_given_back_once",
       a_view_keeps_the_memory_and_it_is_given_back_once},
      {"memory_that_queued_work_uses_serves_nobody_else_before_it_is_done",
       memory_that_queued_work_uses_serves_nobody_else_before_it_is_done},
      {"memory_may_be_dropped_on_a_thread_without_a_cuda_context",
       memory_may_be_dropped_on_a_thread_without_a_cuda_context},
      {"eight_threads_allocate_write_and_drop", eight_threads_allocate_write_and_drop},
      {"free_memory_is_part_of_the_total_and_allocating_does_not_add_to_it",
       free_memory_is_part_of_the_total_and_allocating_does_not_add_to_it, kMemoryInfo},
      {"after_reset_as_much_memory_is_free_as_before", after_reset_as_much_memory_is_free_as_before,
       kMemoryInfo},
  };
}

}  // namespace vpmm::conformance
