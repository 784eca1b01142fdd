// ipc: the driver's part of opening memory: asked for over a link, mapped batch by batch, undone
// when something fails.
#pragma once

#include <chrono>
#include <cstdint>
#include <list>
#include <optional>
#include <utility>

#include "driver/driver.hpp"
#include "ipc/link.hpp"

namespace vpmm::ipc {

// A device's primary context, retained until this goes or the context is reset, which takes all
// retains away.
class PrimaryContext {
 public:
  static Result<PrimaryContext> retain(driver::Driver& driver, driver::DeviceOrdinal device);
  PrimaryContext() = default;
  ~PrimaryContext() { release(); }
  PrimaryContext(PrimaryContext&& other) noexcept { *this = std::move(other); }
  PrimaryContext& operator=(PrimaryContext&& other) noexcept;

  driver::ContextHandle handle() const { return handle_; }
  // Then nothing runs that could use memory, and what was retained is gone. Mappings survive it.
  bool is_reset() const;

 private:
  void release() noexcept;

  driver::Driver* driver_ = nullptr;  // null: nothing is retained
  driver::DeviceOrdinal device_ = 0;
  driver::ContextHandle handle_{};
  driver::ContextId id_{};  // where the driver tells
};

// Address space, and what is mapped from its begin on.
struct Mapping {
  driver::Driver* driver = nullptr;
  driver::DeviceOrdinal device = 0;
  AddressRange reservation;
  Bytes mapped = 0;
};
// One, or none. It is made with the opening, and its node goes from list to list, so that giving
// memory back cannot fail for want of host memory.
using OwnMapping = std::list<Mapping>;

// One opening, from the question on. Unless it is kept, its end undoes what was mapped, with the
// context still retained, and closes it, also where the answer never came: the exporter hears both,
// one after the other.
class Opening {
 public:
  Opening(driver::Driver& driver, Link::Turn& turn, std::chrono::milliseconds patience);
  ~Opening();
  Opening(const Opening&) = delete;
  Opening& operator=(const Opening&) = delete;

  Deadline deadline() const { return Clock::now() + patience_; }  // for the next answer
  Result<void> ask(const TokenBytes& bytes, const Token& token);
  driver::DeviceOrdinal home() const { return home_; }
  // Maps all chunks for work on `device`, and retains its primary context.
  Result<void> map_all(driver::DeviceOrdinal device);
  DevicePtr begin() const { return mapping_.front().reservation.begin + terms_.offset; }

  // What is open is the caller's to give back and to close.
  struct Kept {
    PrimaryContext context;
    OwnMapping mapping;
    Closing closing;
  };
  Kept keep() &&;

 private:
  Result<void> map_batch(const Received& batch);

  driver::Driver& driver_;
  Link::Turn& turn_;
  const std::chrono::milliseconds patience_;
  const std::uint64_t number_;
  Closing closing_;  // empty: it was kept
  OwnMapping mapping_;
  PrimaryContext context_;
  bool is_asked_ = false;
  Message terms_;
  driver::DeviceOrdinal home_ = 0;
};

// Requires: nothing on the GPU uses it. An error means that all is as it was. Address space that
// the driver does not take back then is left over.
Result<void> unmap(driver::ContextHandle context, OwnMapping& mapping);
// Once more for what was left over.
void free_leftovers() noexcept;

// By CUDA's own IPC, in `context`.
Result<DevicePtr> open_legacy(driver::Driver& driver, driver::ContextHandle context,
                              const TokenBytes& token);
Result<void> close_legacy(driver::Driver& driver, driver::ContextHandle context, DevicePtr begin);

}  // namespace vpmm::ipc
