// SPDX-License-Identifier: Apache-2.0
// replay: uses each allocation on its stream as a program would, and checks that its contents
// survive.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/address.hpp"
#include "base/result.hpp"
#include "driver/driver.hpp"
#include "replay/pattern.hpp"

namespace vpmm::replay {

struct Use {
  std::size_t allocation = 0;
  AddressRange memory;
  std::size_t stream = 0;  // index into the streams given at creation
};

// Uses do not wait for the GPU. Bytes travel through slots of pinned host memory. Consecutive slots
// of one stream form a batch; an event closes a full batch, and once complete its reads are
// compared and its slots reused. The host waits for the oldest batch only if all are in flight.
// Single-threaded; the device's context is current in every call, construction and destruction
// included.
class UseChecker {
 public:
  // Passes the time that some calls which queue copies or fills would take.
  using PassCopies = std::function<void(std::size_t calls)>;
  // `driver` and the streams must outlive the checker. Pass the driver itself, not the counting
  // decorator: the checker's calls are not measured. With `pass_copies`, for a driver that keeps no
  // contents, nothing is compared, and calls that only take time are passed instead of made.
  static Result<std::unique_ptr<UseChecker>> create(driver::Driver& driver,
                                                    std::vector<driver::StreamHandle> streams,
                                                    std::uint64_t seed,
                                                    PassCopies pass_copies = {});
  ~UseChecker();  // waits for the GPU
  UseChecker(const UseChecker&) = delete;
  UseChecker& operator=(const UseChecker&) = delete;

  // Right after allocation: writes the allocation's pattern.
  Result<void> first_use(const Use& use);
  // Right before deallocation: reads the pattern back and then overwrites it, so that memory handed
  // on too early spoils its new owner's contents.
  Result<void> last_use(const Use& use);
  // Waits until every read is compared.
  Result<void> finish();

  std::uint64_t corruptions() const { return corruptions_; }              // changed spots
  const std::vector<std::string>& findings() const { return findings_; }  // the first few, in words

 private:
  struct Read {
    std::size_t allocation;
    Spot spot;
    std::size_t slot;
  };
  struct Batch {
    std::byte* memory = nullptr;
    std::size_t used_slots = 0;
    std::vector<Read> reads;
    driver::EventHandle complete{};
  };
  struct StreamSlot {
    Batch* batch;
    std::size_t number;
    std::byte* memory;
  };

  UseChecker(driver::Driver& driver, std::vector<driver::StreamHandle> streams, std::uint64_t seed,
             PassCopies pass_copies);
  Result<void> make_batches();
  std::span<const Spot> touched(const Spots& spots, std::size_t stream, std::size_t calls_per_spot);
  Result<StreamSlot> take_slot(std::size_t stream);
  Result<Batch*> take_batch();
  Result<void> close_batch(std::size_t stream);
  Result<void> settle_oldest();
  Result<void> settle_complete();
  void compare(Batch& batch);
  void report(const Read& read);

  driver::Driver& driver_;
  const std::vector<driver::StreamHandle> streams_;
  const std::uint64_t seed_;
  const PassCopies pass_copies_;
  void* host_memory_ = nullptr;
  std::vector<Batch> batches_;
  // Each batch is in exactly one of these three.
  std::vector<Batch*> open_;   // by stream; null: none open
  std::deque<Batch*> closed_;  // in the order of their events
  std::vector<Batch*> idle_;
  std::uint64_t corruptions_ = 0;
  std::vector<std::string> findings_;
};

}  // namespace vpmm::replay
