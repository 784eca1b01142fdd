// ipc: the side that uses memory of another process: opens it, counts the openings, gives it back.
#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>

#include "driver/driver.hpp"
#include "ipc/channel.hpp"
#include "ipc/handle.hpp"

namespace vpmm::ipc {

// Which of a driver's devices has this identity. unsupported: none that this process sees.
Result<driver::DeviceOrdinal> device_with(driver::Driver& driver, const driver::Uuid& identity);

// One per process, never destroyed. Thread-safe; one opening at a time, for mapping calls slow each other down. A
// forked child has none of what its parent opened.
class Importer {
 public:
  static Importer& of_process();

  // The address of the memory, mapped for work on `device`; none: the device that it is on. Open already: the same
  // address, and one more close() is needed. Errors as vpmm_ipc_open has them. `driver` must live until it is closed.
  Result<DevicePtr> open(driver::Driver& driver, const IpcHandle& handle, std::optional<driver::DeviceOrdinal> device);
  // Waits for the work of the device's context, unless the memory stays open. invalid_pointer: `ptr` is not open.
  Result<void> close(DevicePtr ptr);

 private:
  struct Key {
    TokenBytes token{};
    Bytes offset = 0;  // legacy tokens do not have it
    driver::DeviceOrdinal device = 0;
    friend auto operator<=>(const Key&, const Key&) = default;
  };
  // What is between this process and one exporter, as long as anything of it is open.
  struct Link {
    Channel channel;
    std::uint64_t last_number = 0;
  };
  struct Import {
    driver::Driver* driver = nullptr;
    Key key;
    DevicePtr ptr{};
    std::uint64_t opens = 1;
    driver::ContextHandle context{};  // the device's primary one, retained
    driver::ContextId context_id{};
    AddressRange reservation;  // of a pool; empty: legacy
    Bytes mapped = 0;          // from its begin
    std::shared_ptr<Link> link;
    std::uint64_t number = 0;  // of the opening, on the link
  };

  Import* find(const Key& key);
  Result<void> open_legacy(const IpcHandle& handle, Import& made);
  Result<void> open_pool(const IpcHandle& handle, const Token& token, std::optional<driver::DeviceOrdinal> device,
                         Import& made);
  Result<std::shared_ptr<Link>> link_to(const Identity& exporter, Deadline deadline);
  static Result<Received> hear(Import& made, Deadline deadline);
  Result<void> map_all(const Message& granted, Import& made);
  static Result<void> map_batch(const Received& batch, Import& made);
  static Result<void> retain(Import& made);
  static bool is_reset(const Import& import);
  static Result<void> synchronize(const Import& import);
  static Result<void> give_back(Import& import);
  static Result<void> unmap(Import& import);
  static void say_closed(const Import& import);

  std::mutex mutex_;
  std::map<Key, Import> imports_;
  std::map<DevicePtr, Key> by_address_;
  std::map<Identity, std::weak_ptr<Link>> links_;
};

}  // namespace vpmm::ipc
