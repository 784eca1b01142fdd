// SPDX-License-Identifier: Apache-2.0
// ipc: importer: opens memory of another process, counts the openings, gives it back.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <tuple>
#include <vector>

#include "base/mutex.hpp"
#include "driver/driver.hpp"
#include "ipc/handle.hpp"
#include "ipc/link.hpp"
#include "ipc/mapping.hpp"

namespace vpmm::ipc {

// Returns the device with this identity. unsupported: not visible to this process.
Result<driver::DeviceOrdinal> device_with(driver::Driver& driver, const driver::Uuid& identity);

// Waits for the queued work of a device. capture_active: the wait would break a stream capture.
using Wait = std::function<Result<void>(driver::Driver& driver, driver::DeviceOrdinal device)>;
// Waits for the primary context; sees captures of blocking streams only.
Result<void> wait_for_primary(driver::Driver& driver, driver::DeviceOrdinal device);

// One per process, never destroyed. Thread-safe: openings of one token, or from one exporter, wait
// for each other, and a closing waits a second for its exporter. No call waits for the answer of
// another exporter. A forked child stops at the gate.
class Importer {
 public:
  static Importer& of_process();

  // Returns the address of the memory, mapped for work on `device`; nullopt: on its own. If open
  // already: the same address, and one more close(). Errors as of vpmm_ipc_open. `driver` must
  // outlive the opening.
  Result<DevicePtr> open(driver::Driver& driver, const IpcHandle& handle,
                         std::optional<driver::DeviceOrdinal> device) VPMM_EXCLUDES(mutex_);
  // Ends one opening; the last one first waits for the work of the device. invalid_pointer: `ptr`
  // is not open. After another failure the memory stays open.
  Result<void> close(DevicePtr ptr, const Wait& wait = wait_for_primary) VPMM_EXCLUDES(mutex_);
  // Closes without a report of failure: later openings and closings retry.
  void close_some_time(DevicePtr ptr, Wait wait = wait_for_primary) noexcept VPMM_EXCLUDES(mutex_);

 private:
  struct OpenKey {
    TokenBytes token{};
    Bytes offset = 0;  // missing in legacy tokens
    driver::DeviceOrdinal device = 0;
    friend bool operator<(const OpenKey& a, const OpenKey& b) {
      return std::tie(a.token, a.offset, a.device) < std::tie(b.token, b.offset, b.device);
    }
  };
  struct Import {
    driver::Driver* driver = nullptr;
    OpenKey key;
    driver::DeviceOrdinal home = 0;  // device of memory of a pool
    DevicePtr ptr{};
    std::uint64_t opens = 1;
    std::uint64_t last_use =
        0;  // number of its latest opening or closing, counted over all imports
    // From `ptr` to the end of memory of CUDA's own IPC.
    Bytes legacy_size = 0;
    RetainedContext context;
    OwnMapping mapping;  // of memory of a pool; empty: legacy
    std::shared_ptr<Link> link;
    ClosedOpenings closing;  // on the link
    Wait late;               // not empty: a close is due that failed before
  };
  using TokenAndOffset = std::pair<TokenBytes, Bytes>;
  using Imports = std::map<OpenKey, Import>;
  using Addresses = std::map<DevicePtr, OpenKey>;

  std::optional<DevicePtr> join_or_begin(const TokenAndOffset& what, const IpcHandle& handle,
                                         std::optional<driver::DeviceOrdinal> device)
      VPMM_EXCLUDES(mutex_);
  Import* find(const IpcHandle& handle, Bytes offset, std::optional<driver::DeviceOrdinal> device)
      VPMM_REQUIRES(mutex_);
  Result<DevicePtr> open_new(driver::Driver& driver, const IpcHandle& handle,
                             const std::optional<Token>& token,
                             std::optional<driver::DeviceOrdinal> device, Bytes offset)
      VPMM_EXCLUDES(mutex_);
  Result<void> open_legacy_memory(const IpcHandle& handle, Import& made);
  Result<void> open_pool_memory(const IpcHandle& handle, const Token& token,
                                std::optional<driver::DeviceOrdinal> device, Import& made)
      VPMM_EXCLUDES(mutex_);
  void end_opening(const TokenAndOffset& what) VPMM_EXCLUDES(mutex_);
  std::shared_ptr<Link> link_to(const Identity& exporter) VPMM_EXCLUDES(mutex_);
  std::shared_ptr<Link> link_at(std::size_t place) VPMM_EXCLUDES(mutex_);
  std::shared_ptr<Link> take_unused_link() VPMM_EXCLUDES(mutex_);
  void say_what_is_unsaid() noexcept VPMM_EXCLUDES(mutex_);
  Result<void> close_now(DevicePtr ptr, const Wait& wait, Link::Patience patience)
      VPMM_EXCLUDES(mutex_);
  bool close_or_note(DevicePtr ptr, Wait wait, Link::Patience patience) noexcept
      VPMM_EXCLUDES(mutex_);
  std::optional<std::pair<DevicePtr, Wait>> take_late_one(std::optional<DevicePtr> after)
      VPMM_EXCLUDES(mutex_);
  void close_late_ones() noexcept VPMM_EXCLUDES(mutex_);

  Mutex mutex_;  // never held during a wait for another process or the GPU
  Imports imports_ VPMM_GUARDED_BY(mutex_);
  Addresses by_address_ VPMM_GUARDED_BY(mutex_);
  std::uint64_t last_use_ VPMM_GUARDED_BY(mutex_) = 0;
  std::set<TokenAndOffset> opening_ VPMM_GUARDED_BY(mutex_);
  std::condition_variable_any opened_;
  std::vector<std::shared_ptr<Link>> links_
      VPMM_GUARDED_BY(mutex_);  // broken ones as long as memory is open through them
};

}  // namespace vpmm::ipc
