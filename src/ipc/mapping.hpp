// SPDX-License-Identifier: Apache-2.0
// ipc: driver calls of an opening: chunks asked for over a link, mapped batch by batch, undone on
// failure.
#pragma once

#include <chrono>
#include <cstdint>
#include <list>
#include <optional>
#include <utility>

#include "driver/driver.hpp"
#include "ipc/link.hpp"

namespace vpmm::ipc {

// A device's primary context, retained until destruction or a reset of the context, which ends all
// retains.
class RetainedContext {
 public:
  static Result<RetainedContext> retain(driver::Driver& driver, driver::DeviceOrdinal device);
  RetainedContext() = default;
  ~RetainedContext();
  RetainedContext(RetainedContext&& other) noexcept { *this = std::move(other); }
  // `other` gets the earlier one.
  RetainedContext& operator=(RetainedContext&& other) noexcept;

  driver::ContextHandle handle() const { return handle_; }
  // Tells if the context was reset: then no work uses memory, and the retain is gone. Mappings
  // survive.
  bool is_reset() const;

 private:
  driver::Driver* driver_ = nullptr;  // null: not retained
  driver::DeviceOrdinal device_ = 0;
  driver::ContextHandle handle_{};
  driver::ContextId id_{};  // if the driver tells
};

// Address space, mapped from its begin for `mapped` bytes.
struct MappedRange {
  driver::Driver* driver = nullptr;
  driver::DeviceOrdinal device = 0;
  AddressRange reservation{};
  Bytes mapped = 0;
};
// One mapping, or none. Made with the opening, and moved as a list node, so that giving memory back
// cannot fail for want of host memory.
using OwnMapping = std::list<MappedRange>;

// One opening, from the question on. Unless kept, its destructor unmaps, with the context still
// retained, and then closes, also without an answer: the exporter gets both messages in order.
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

  // The caller gives back and closes the open memory.
  struct Kept {
    RetainedContext context;
    OwnMapping mapping;
    ClosedOpenings closing;
  };
  Kept keep() &&;

 private:
  Result<void> map_batch(Received& batch);

  driver::Driver& driver_;
  Link::Turn& turn_;
  const std::chrono::milliseconds patience_;
  const std::uint64_t number_;
  ClosedOpenings closing_;  // empty: kept
  OwnMapping mapping_;
  RetainedContext context_;
  bool is_asked_ = false;
  Message terms_;
  driver::DeviceOrdinal home_ = 0;
};

// Unmaps. Requires: no use on the GPU. An error leaves all as it was. Address space that the driver
// refuses to take back is left over.
Result<void> unmap(driver::ContextHandle context, OwnMapping& mapping);
// Retries the leftovers.
void free_leftovers() noexcept;

// Opens by CUDA's own IPC, in `context`. Returns the memory up to its end, or without an end if
// the driver does not know it.
Result<AddressRange> open_legacy(driver::Driver& driver, driver::ContextHandle context,
                                 const TokenBytes& token);
Result<void> close_legacy(driver::Driver& driver, driver::ContextHandle context, DevicePtr begin);

}  // namespace vpmm::ipc
