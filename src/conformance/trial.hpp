// SPDX-License-Identifier: Apache-2.0
// conformance: tools of the checks: verdicts, contents of memory, threads, a manager's bare slots.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "conformance/conformance.hpp"

namespace vpmm::conformance {

constexpr std::size_t kKiB = 1024;
constexpr std::size_t kMiB = 1024 * kKiB;

// --- verdicts ---

// Ends a check; no std::exception, so that it is not taken for an error of the manager.
struct Failed {
  std::string text;
};
struct Skipped {
  std::string text;
};

template <typename... Values>
void require(bool holds, fmt::format_string<Values...> otherwise, Values&&... values) {
  if (!holds) throw Failed{fmt::format(otherwise, std::forward<Values>(values)...)};
}

// Tells if the manager gave a reason.
bool has_text(const vpmm::error& error);
// Requires that `action` fails with this status and a text.
void require_error(vpmm_status status, std::string_view what, const std::function<void()>& action);

// --- contents ---

// Bytes that depend on the seed and the place.
std::vector<unsigned char> pattern(std::uint64_t seed, std::size_t offset, std::size_t bytes);
// Copy into and out of device-visible memory by the driver.
void write(const Subject& subject, void* device_pointer, std::size_t bytes, std::uint64_t seed);
void verify(const Subject& subject, const void* device_pointer, std::size_t bytes,
            std::uint64_t seed, std::string_view what);
// Same by the host.
void write_by_host(void* host_pointer, std::size_t bytes, std::uint64_t seed);
void verify_by_host(const void* host_pointer, std::size_t bytes, std::uint64_t seed,
                    std::string_view what);

// --- device memory ---

std::size_t device_bytes(const Subject& subject);  // total of the device
// Allocates `bytes` bytes and checks the rules of device memory.
emm::MemoryPointer allocate(const emm::Context& context, std::size_t bytes);
void require_device_memory(const emm::MemoryPointer& memory, std::size_t bytes);
void require_apart(std::span<const emm::MemoryPointer> blocks);
// Allocates, writes, verifies and drops: that a manager works at all.
void require_works(const Subject& subject, const emm::Context& context, std::string_view when);

// --- threads ---

// Runs `work` with the numbers from 0 on new threads without a current CUDA context, and waits.
// Rethrows an exception of one.
void on_threads(int count, const std::function<void(int)>& work);
inline void on_another_thread(const std::function<void()>& work) {
  on_threads(1, [&](int) { work(); });
}

// --- slots ---

// A manager by its slots, for rules that emm::MemoryManager would keep for it.
class BareManager {
 public:
  explicit BareManager(const Subject& subject);
  ~BareManager() { plugin_->destroy(manager_); }
  BareManager(const BareManager&) = delete;
  BareManager& operator=(const BareManager&) = delete;

  void initialize() const { done("initialize", plugin_->initialize(manager_)); }
  void reset() const { done("reset", plugin_->reset(manager_)); }
  emm::Block allocate(std::size_t bytes) const;
  void release(const emm::Block& block) const { plugin_->release(manager_, &block); }
  // By the plugin's claim, even without the slots.
  emm::Capabilities capabilities() const;

 private:
  void done(std::string_view slot, vpmm_status status) const;

  const vpmm_emm_plugin* plugin_;
  vpmm_emm_manager* manager_ = nullptr;
};

// --- the lists that all_checks() joins, by file ---

std::vector<Check> life_checks();
std::vector<Check> device_memory_checks();
std::vector<Check> cleanup_checks();
std::vector<Check> host_memory_checks();
std::vector<Check> capability_checks();

}  // namespace vpmm::conformance
