// SPDX-License-Identifier: Apache-2.0
// conformance: contents, threads and slots for the checks.
#include "conformance/trial.hpp"

#include <algorithm>
#include <cstring>
#include <exception>
#include <thread>

namespace vpmm::conformance {
namespace {

constexpr std::size_t kPiece = kMiB;  // bytes of one copy; a multiple of 8
constexpr std::size_t kAlignment = 256;

// SplitMix64's: neighbours have no likeness.
std::uint64_t mix(std::uint64_t value) {
  value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9;
  value = (value ^ (value >> 27)) * 0x94D049BB133111EB;
  return value ^ (value >> 31);
}

void require_same(const unsigned char* found, std::span<const unsigned char> expected,
                  std::size_t offset, std::string_view what) {
  const auto [bad, good] = std::mismatch(found, found + expected.size(), expected.begin());
  require(good == expected.end(), "{} lost its contents: byte {} was written as {} and is {}", what,
          offset + static_cast<std::size_t>(bad - found), good == expected.end() ? 0 : *good,
          good == expected.end() ? 0 : *bad);
}

// Calls `work` with an offset and a number of bytes for each piece.
template <typename Work>
void for_pieces(std::size_t bytes, Work&& work) {
  for (std::size_t offset = 0; offset < bytes; offset += kPiece)
    work(offset, std::min(kPiece, bytes - offset));
}

}  // namespace

bool has_text(const vpmm::error& error) { return std::string_view(error.what()) != emm::kNoReason; }

void require_error(vpmm_status status, std::string_view what, const std::function<void()>& action) {
  try {
    action();
  } catch (const vpmm::error& error) {
    require(error.status() == status, "{} must fail with status {}; it failed with status {}: {}",
            what, static_cast<int>(status), static_cast<int>(error.status()), error.what());
    require(has_text(error), "{} failed as it must, but without a text", what);
    return;
  }
  throw Failed{
      fmt::format("{} must fail with status {}; it succeeded", what, static_cast<int>(status))};
}

std::vector<unsigned char> pattern(std::uint64_t seed, std::size_t offset, std::size_t bytes) {
  std::vector<unsigned char> out(bytes);
  for (std::size_t at = 0; at < bytes; at += 8) {
    const std::uint64_t word = mix((seed << 40) + offset + at);
    std::memcpy(out.data() + at, &word, std::min<std::size_t>(8, bytes - at));
  }
  return out;
}

void write(const Subject& subject, void* device_pointer, std::size_t bytes, std::uint64_t seed) {
  const emm::CurrentContext current(subject.driver, subject.primary);
  for_pieces(bytes, [&](std::size_t offset, std::size_t size) {
    subject.driver.memcpy_host_to_device(static_cast<unsigned char*>(device_pointer) + offset,
                                         pattern(seed, offset, size).data(), size);
  });
}

void verify(const Subject& subject, const void* device_pointer, std::size_t bytes,
            std::uint64_t seed, std::string_view what) {
  const emm::CurrentContext current(subject.driver, subject.primary);
  std::vector<unsigned char> found(std::min(bytes, kPiece));
  for_pieces(bytes, [&](std::size_t offset, std::size_t size) {
    subject.driver.memcpy_device_to_host(
        found.data(), static_cast<const unsigned char*>(device_pointer) + offset, size);
    require_same(found.data(), pattern(seed, offset, size), offset, what);
  });
}

void write_by_host(void* host_pointer, std::size_t bytes, std::uint64_t seed) {
  std::memcpy(host_pointer, pattern(seed, 0, bytes).data(), bytes);
}

void verify_by_host(const void* host_pointer, std::size_t bytes, std::uint64_t seed,
                    std::string_view what) {
  require_same(static_cast<const unsigned char*>(host_pointer), pattern(seed, 0, bytes), 0, what);
}

std::size_t device_bytes(const Subject& subject) {
  const emm::CurrentContext current(subject.driver, subject.primary);
  return subject.driver.mem_get_info().total;
}

emm::MemoryPointer allocate(const emm::Context& context, std::size_t bytes) {
  emm::MemoryPointer memory = context.memalloc(bytes);
  require_device_memory(memory, bytes);
  return memory;
}

void require_device_memory(const emm::MemoryPointer& memory, std::size_t bytes) {
  require(memory.device_pointer() != nullptr, "{} bytes were asked for; a null pointer came",
          bytes);
  require(memory.size() == bytes, "{} bytes were asked for; {} came", bytes, memory.size());
  require(reinterpret_cast<std::uintptr_t>(memory.device_pointer()) % kAlignment == 0,
          "memory must be aligned to {} bytes; {} bytes came at {}", kAlignment, bytes,
          memory.device_pointer());
}

void require_apart(std::span<const emm::MemoryPointer> blocks) {
  std::vector<std::pair<std::uintptr_t, std::size_t>> ranges;
  ranges.reserve(blocks.size());
  for (const emm::MemoryPointer& block : blocks)
    ranges.emplace_back(reinterpret_cast<std::uintptr_t>(block.device_pointer()), block.size());
  std::sort(ranges.begin(), ranges.end());
  for (std::size_t i = 1; i < ranges.size(); ++i) {
    const auto& [before, bytes] = ranges[i - 1];
    require(before + bytes <= ranges[i].first,
            "live memory must not overlap; {} bytes at {:#x} reach into {:#x}", bytes, before,
            ranges[i].first);
  }
}

void require_works(const Subject& subject, const emm::Context& context, std::string_view when) {
  const emm::MemoryPointer memory = allocate(context, kMiB);
  write(subject, memory.device_pointer(), kMiB, 99);
  verify(subject, memory.device_pointer(), kMiB, 99,
         fmt::format("memory that was allocated {}", when));
}

void on_threads(int count, const std::function<void(int)>& work) {
  std::vector<std::exception_ptr> problems(static_cast<std::size_t>(count));
  std::vector<std::thread> threads;
  threads.reserve(problems.size());
  for (int i = 0; i < count; ++i) {
    threads.emplace_back([&work, &problem = problems[static_cast<std::size_t>(i)], i] {
      try {
        work(i);
      } catch (...) {
        problem = std::current_exception();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::exception_ptr& problem : problems) {
    if (problem) std::rethrow_exception(problem);
  }
}

BareManager::BareManager(const Subject& subject) : plugin_(subject.plugin) {
  done("create", plugin_->create(plugin_, subject.driver.table(), subject.device, &manager_));
}

emm::Block BareManager::allocate(std::size_t bytes) const {
  emm::Block block{};
  done("allocate", plugin_->allocate(manager_, bytes, &block));
  require(block.pointer != nullptr, "allocate of {} bytes gave a null pointer", bytes);
  block.bytes = bytes;
  block.device_pointer = block.pointer;
  return block;
}

emm::Capabilities BareManager::capabilities() const {
  const bool has_slot = plugin_->size >= offsetof(vpmm_emm_plugin, get_memory_info);
  if (!has_slot || plugin_->capabilities == nullptr) return {};
  const std::uint32_t bits = plugin_->capabilities(manager_);
  emm::Capabilities has;
  has.host_memory = (bits & VPMM_EMM_HAS_HOST_MEMORY) != 0;
  has.managed_memory = (bits & VPMM_EMM_HAS_MANAGED_MEMORY) != 0;
  has.stream_order = (bits & VPMM_EMM_HAS_STREAM_ORDER) != 0;
  has.ipc = (bits & VPMM_EMM_HAS_IPC) != 0;
  has.memory_info = (bits & VPMM_EMM_HAS_MEMORY_INFO) != 0;
  return has;
}

void BareManager::done(std::string_view slot, vpmm_status status) const {
  if (status == VPMM_OK) return;
  throw Failed{fmt::format("{} failed with status {}: {}", slot, static_cast<int>(status),
                           std::string(plugin_->last_error()))};
}

}  // namespace vpmm::conformance
