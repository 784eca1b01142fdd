// ipc: the driver's part of opening memory: asked for over a link, mapped batch by batch, undone when something fails.
#pragma once

#include <chrono>
#include <cstdint>

#include "driver/driver.hpp"
#include "ipc/link.hpp"

namespace vpmm::ipc {

// One opening, from the question on. Unless it is kept, its end undoes what was mapped and closes it, also where the
// answer never came: the exporter hears both, one after the other.
class Opening {
 public:
  Opening(driver::Driver& driver, Link::Turn& turn, std::chrono::milliseconds patience);
  ~Opening();
  Opening(const Opening&) = delete;
  Opening& operator=(const Opening&) = delete;

  Deadline deadline() const { return Clock::now() + patience_; }  // for the next answer
  Result<void> ask(const TokenBytes& bytes, const Token& token);
  driver::DeviceOrdinal home() const { return home_; }
  // Maps all chunks for work on `device`, whose primary context is `context`.
  Result<void> map_all(driver::DeviceOrdinal device, driver::ContextHandle context);
  DevicePtr begin() const { return reservation_.begin + terms_.offset; }
  AddressRange reservation() const { return reservation_; }
  // The opening's number; what is open is the caller's to close.
  std::uint64_t keep();

 private:
  Result<void> map_batch(const Received& batch, driver::DeviceOrdinal device);

  driver::Driver& driver_;
  Link::Turn& turn_;
  const std::chrono::milliseconds patience_;
  const std::uint64_t number_;
  bool is_asked_ = false;
  bool is_kept_ = false;
  Message terms_;
  driver::DeviceOrdinal home_ = 0;
  driver::ContextHandle context_{};
  AddressRange reservation_;
  Bytes mapped_ = 0;  // from its begin
};

// Requires: nothing on the GPU uses it. An error means that all is as it was. Address space that the driver does not
// take back then is left over, and free_leftovers() tries again.
Result<void> unmap(driver::Driver& driver, driver::ContextHandle context, AddressRange mapped,
                   AddressRange reservation);
void free_leftovers();

// By CUDA's own IPC, in `context`.
Result<DevicePtr> open_legacy(driver::Driver& driver, driver::ContextHandle context, const TokenBytes& token);
Result<void> close_legacy(driver::Driver& driver, driver::ContextHandle context, DevicePtr begin);

}  // namespace vpmm::ipc
