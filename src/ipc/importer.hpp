// ipc: the side that uses memory of another process: opens it, counts the openings, gives it back.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <tuple>
#include <vector>

#include "driver/driver.hpp"
#include "ipc/handle.hpp"
#include "ipc/link.hpp"

namespace vpmm::ipc {

// Which of a driver's devices has this identity. unsupported: none that this process sees.
Result<driver::DeviceOrdinal> device_with(driver::Driver& driver, const driver::Uuid& identity);

// Waits for the work that is queued on a device. capture_active: not now, for it would break a stream capture.
using Wait = std::function<Result<void>(driver::Driver& driver, driver::DeviceOrdinal device)>;
// By its primary context; captures of blocking streams are seen, others are not.
Result<void> wait_for_primary(driver::Driver& driver, driver::DeviceOrdinal device);

// One per process, never destroyed. Thread-safe: openings of one token wait for each other, and so do those from one
// exporter; nobody else waits for an exporter. A forked child has none of what its parent opened.
class Importer {
 public:
  static Importer& of_process();

  // The address of the memory, mapped for work on `device`; none: the device that it is on. Open already: the same
  // address, and one more close() is needed. Errors as vpmm_ipc_open has them. `driver` must live until it is closed.
  Result<DevicePtr> open(driver::Driver& driver, const IpcHandle& handle, std::optional<driver::DeviceOrdinal> device);
  // The last one waits for the work of the device first. invalid_pointer: `ptr` is not open. When it fails, the memory
  // stays open.
  Result<void> close(DevicePtr ptr, const Wait& wait = wait_for_primary);
  // For those who cannot be told: what cannot be closed now is tried again by later openings and closings.
  void close_some_time(DevicePtr ptr, const Wait& wait = wait_for_primary);

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
    std::uint64_t last_use = 0;       // the number of its latest opening or closing, of all that there were
    driver::ContextHandle context{};  // the device's primary one, retained
    driver::ContextId context_id{};
    AddressRange reservation;  // of a pool; empty: legacy
    Bytes mapped = 0;          // from its begin
    std::shared_ptr<Link> link;
    std::uint64_t number = 0;  // of the opening, on the link
  };

  Import* find(const IpcHandle& handle, Bytes offset, std::optional<driver::DeviceOrdinal> device);
  Result<void> open_first(const IpcHandle& handle, const std::optional<Token>& token,
                          std::optional<driver::DeviceOrdinal> device, Import& made);
  std::shared_ptr<Link> link_to(const Identity& exporter);
  void forget_link(const Identity& exporter, const std::shared_ptr<Link>& link);
  void say_what_is_unsaid();
  void close_late_ones();
  std::vector<std::pair<DevicePtr, Wait>> take_late_ones();

  std::mutex mutex_;  // over what follows; no wait for another process or the GPU is made under it
  std::map<Key, Import> imports_;
  std::map<DevicePtr, Key> by_address_;
  std::uint64_t last_use_ = 0;
  std::set<std::pair<TokenBytes, Bytes>> opening_;  // token and offset of what is being opened
  std::condition_variable opened_;
  std::map<Identity, std::shared_ptr<Link>> links_;
  std::vector<std::shared_ptr<Link>> old_links_;  // broken ones that still have something to say
  std::vector<std::pair<DevicePtr, Wait>> late_;
};

}  // namespace vpmm::ipc
