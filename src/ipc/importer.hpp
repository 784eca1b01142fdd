// ipc: the side that uses memory of another process: opens it, counts the openings, gives it back.
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

// Which of a driver's devices has this identity. unsupported: none that this process sees.
Result<driver::DeviceOrdinal> device_with(driver::Driver& driver, const driver::Uuid& identity);

// Waits for the work that is queued on a device. capture_active: not now, for it would break a
// stream capture.
using Wait = std::function<Result<void>(driver::Driver& driver, driver::DeviceOrdinal device)>;
// By its primary context; captures of blocking streams are seen, others are not.
Result<void> wait_for_primary(driver::Driver& driver, driver::DeviceOrdinal device);

// One per process, never destroyed. Thread-safe: openings of one token wait for each other, and so
// do those from one exporter; nobody else waits for an exporter. A forked child has none of what
// its parent opened.
class Importer {
 public:
  static Importer& of_process();

  // The address of the memory, mapped for work on `device`; none: the device that it is on. Open
  // already: the same address, and one more close() is needed. Errors as vpmm_ipc_open has them.
  // `driver` must live until it is closed.
  Result<DevicePtr> open(driver::Driver& driver, const IpcHandle& handle,
                         std::optional<driver::DeviceOrdinal> device) VPMM_EXCLUDES(mutex_);
  // The last one waits for the work of the device first. invalid_pointer: `ptr` is not open. When
  // it fails, the memory stays open.
  Result<void> close(DevicePtr ptr, const Wait& wait = wait_for_primary) VPMM_EXCLUDES(mutex_);
  // For those who cannot be told: what cannot be closed now is tried again by later openings and
  // closings.
  void close_some_time(DevicePtr ptr, Wait wait = wait_for_primary) noexcept VPMM_EXCLUDES(mutex_);

 private:
  struct Key {
    TokenBytes token{};
    Bytes offset = 0;  // legacy tokens do not have it
    driver::DeviceOrdinal device = 0;
    friend bool operator<(const Key& a, const Key& b) {
      return std::tie(a.token, a.offset, a.device) < std::tie(b.token, b.offset, b.device);
    }
  };
  struct Import {
    driver::Driver* driver = nullptr;
    Key key;
    driver::DeviceOrdinal home = 0;  // that the memory is on
    DevicePtr ptr{};
    std::uint64_t opens = 1;
    std::uint64_t last_use =
        0;  // the number of its latest opening or closing, of all that there were
    PrimaryContext context;
    OwnMapping mapping;  // of memory of a pool; none: legacy
    std::shared_ptr<Link> link;
    Closing closing;  // on the link
    Wait late;        // not empty: it is to be closed, and could not be yet
  };
  // By token and offset.
  using What = std::pair<TokenBytes, Bytes>;
  using Imports = std::map<Key, Import>;
  using Addresses = std::map<DevicePtr, Key>;

  std::optional<DevicePtr> join_or_begin(const What& what, const IpcHandle& handle,
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
  void end_opening(const What& what) VPMM_EXCLUDES(mutex_);
  std::shared_ptr<Link> link_to(const Identity& exporter) VPMM_EXCLUDES(mutex_);
  std::shared_ptr<Link> link_at(std::size_t place) VPMM_EXCLUDES(mutex_);
  void say_what_is_unsaid() noexcept VPMM_EXCLUDES(mutex_);
  Result<void> close_now(DevicePtr ptr, const Wait& wait) VPMM_EXCLUDES(mutex_);
  bool close_or_note(DevicePtr ptr, Wait wait) noexcept VPMM_EXCLUDES(mutex_);
  std::optional<std::pair<DevicePtr, Wait>> take_late_one(std::optional<DevicePtr> after)
      VPMM_EXCLUDES(mutex_);
  void close_late_ones() noexcept VPMM_EXCLUDES(mutex_);

  Mutex mutex_;  // no wait for another process or the GPU is made under it
  Imports imports_ VPMM_GUARDED_BY(mutex_);
  Addresses by_address_ VPMM_GUARDED_BY(mutex_);
  std::uint64_t last_use_ VPMM_GUARDED_BY(mutex_) = 0;
  std::set<What> opening_ VPMM_GUARDED_BY(mutex_);  // what is being opened
  std::condition_variable_any opened_;
  std::vector<std::shared_ptr<Link>> links_
      VPMM_GUARDED_BY(mutex_);  // broken ones as long as something is open
};

}  // namespace vpmm::ipc
