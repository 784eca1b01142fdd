// SPDX-License-Identifier: Apache-2.0
// host_copy: memory of the process, and how much of it is left.
#include "host_copy/host_memory.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <new>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/address.hpp"
#include "base/quiet_thread.hpp"
#include "base/scope_exit.hpp"
#include "driver/context_scope.hpp"
#include "driver/driver_error.hpp"

namespace vpmm::host_copy {
namespace {

constexpr Bytes kHugePage = 2 * kMiB;
constexpr Bytes kSmallPage = 4 * kKiB;
constexpr Bytes kSharedOut = 256 * kMiB;
constexpr Bytes kThreads = 8;
constexpr Bytes kNotSet = ~Bytes{0};

constinit std::atomic<Bytes> set_for_test{kNotSet};

// The number behind `name` in a file of lines "name number", which counts `unit` bytes.
std::optional<Bytes> number_in(const std::string& path, const std::string& name, Bytes unit) {
  std::ifstream file(path);
  std::string word;
  while (file >> word) {
    Bytes number = 0;
    if (word == name && file >> number) return number * unit;
  }
  return std::nullopt;
}

// Reads a file with a single number; nullopt also for "max".
std::optional<Bytes> number_of(const std::string& path) {
  std::ifstream file(path);
  Bytes number = 0;
  if (file >> number) return number;
  return std::nullopt;
}

}  // namespace

void set_available_host_bytes(std::optional<Bytes> bytes) {
  set_for_test = bytes.value_or(kNotSet);
}

// A container sees the files of its own control group at the root of the hierarchy (version 2).
std::optional<Bytes> available_host_bytes(const std::string& root) {
  if (const Bytes set = set_for_test; set != kNotSet) return set;
  const auto available = number_in(root + "/proc/meminfo", "MemAvailable:", kKiB);
  const std::string group = root + "/sys/fs/cgroup/memory.";
  const std::optional<Bytes> most = number_of(group + "max");
  const std::optional<Bytes> used = number_of(group + "current");
  if (!most || !used) return available;
  const Bytes cached = number_in(group + "stat", "inactive_file", 1).value_or(Bytes{0});
  const Bytes taken = *used - std::min(*used, cached);
  return std::min(available.value_or(*most), *most - std::min(*most, taken));
}

HostMemory::HostMemory(Bytes size)
    : begin_(static_cast<std::byte*>(
          ::operator new (round_up(size, kHugePage), std::align_val_t{kHugePage}))),
      size_(size) {
  static_cast<void>(::madvise(begin_, round_up(size, kHugePage), MADV_HUGEPAGE));
}

HostMemory::~HostMemory() {
  if (driver_ != nullptr) return;
  share_out([this](std::byte* begin, Bytes bytes) { forget(begin, bytes); });
  ::operator delete (begin_, std::align_val_t{kHugePage});
}

// A single thread would take gigabytes, or give them back, for a good part of the time that their
// copy takes.
template <typename Work>
void HostMemory::share_out(Work&& work) const noexcept {
  if (size_ < kSharedOut) return work(begin_, size_);
  const Bytes share = round_up(size_ / kThreads, kHugePage);
  try {
    std::vector<std::thread> threads;
    threads.reserve(kThreads);
    const QuietThreads quiet;
    const ScopeExit join([&] {
      for (std::thread& each : threads) each.join();
    });
    for (Bytes at = 0; at < size_; at += share)
      threads.emplace_back([&work, begin = begin_ + at, bytes = std::min(share, size_ - at)] {
        work(begin, bytes);
      });
  } catch (...) {  // NOLINT(bugprone-empty-catch): then the caller's next step does it
  }
}

void HostMemory::touch() const noexcept {
  share_out([](std::byte* begin, Bytes bytes) {
    for (Bytes at = 0; at < bytes; at += kSmallPage) {
      volatile std::byte& byte = begin[at];
      byte = byte;
    }
  });
}

HostMemory::HostMemory(HostMemory&& other) noexcept
    : begin_(std::exchange(other.begin_, nullptr)),
      size_(std::exchange(other.size_, 0)),
      driver_(std::exchange(other.driver_, nullptr)),
      pinned_in_(other.pinned_in_) {}

HostMemory& HostMemory::operator=(HostMemory&& other) noexcept {
  std::swap(begin_, other.begin_);
  std::swap(size_, other.size_);
  std::swap(driver_, other.driver_);
  std::swap(pinned_in_, other.pinned_in_);
  return *this;
}

bool HostMemory::forget(std::byte* begin, Bytes bytes) const {
  const auto from = round_up(reinterpret_cast<std::uintptr_t>(begin), kSmallPage);
  const auto to = round_down(reinterpret_cast<std::uintptr_t>(begin) + bytes, kSmallPage);
  if (driver_ != nullptr) return false;
  if (from >= to) return true;
  static_cast<void>(::madvise(begin_ + (from - reinterpret_cast<std::uintptr_t>(begin_)), to - from,
                              MADV_DONTNEED));
  return true;
}

// A registration that a context has left behind serves as well.
Result<void> HostMemory::pin(driver::Driver& driver, driver::ContextId context) {
  if (is_pinned_in(context)) return {};
  unpin();
  touch();  // the driver would do it with one thread
  const driver::RelaxedCaptureScope relaxed(driver);
  const driver::CuResult result = driver.mem_host_register(begin_, round_up(size_, kHugePage), 0);
  if (result != driver::CuResult::host_memory_already_registered)
    VPMM_TRY(driver::checked(driver::Call::mem_host_register, result));
  driver_ = &driver;
  pinned_in_ = context;
  return {};
}

// A context that is gone may have taken the registration with it.
void HostMemory::unpin() {
  if (driver_ == nullptr) return;
  const driver::RelaxedCaptureScope relaxed(*driver_);
  const driver::CuResult result = driver_->mem_host_unregister(begin_);
  if (result == driver::CuResult::success || result == driver::CuResult::host_memory_not_registered)
    driver_ = nullptr;
}

}  // namespace vpmm::host_copy
