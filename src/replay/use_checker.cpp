// SPDX-License-Identifier: Apache-2.0
// replay: slots, batches and comparisons behind the uses.
#include "replay/use_checker.hpp"

#include <fmt/format.h>

#include "driver/driver_error.hpp"

namespace vpmm::replay {
namespace {

using driver::Call;
using driver::CuResult;

constexpr std::size_t kSlotsPerBatch = 512;
constexpr std::size_t kBatchBytes = kSlotsPerBatch * kSpotBytes;
constexpr std::size_t kLeastBatches = 128;
constexpr std::size_t kMaxFindings = 5;

}  // namespace

UseChecker::UseChecker(driver::Driver& driver, std::vector<driver::StreamHandle> streams,
                       std::uint64_t seed, PassCopies pass_copies)
    : driver_(driver),
      streams_(std::move(streams)),
      seed_(seed),
      pass_copies_(std::move(pass_copies)),
      open_(streams_.size()) {}

Result<std::unique_ptr<UseChecker>> UseChecker::create(driver::Driver& driver,
                                                       std::vector<driver::StreamHandle> streams,
                                                       std::uint64_t seed, PassCopies pass_copies) {
  std::unique_ptr<UseChecker> checker(
      new UseChecker(driver, std::move(streams), seed, std::move(pass_copies)));
  VPMM_TRY(checker->make_batches());
  return checker;
}

UseChecker::~UseChecker() {
  driver_.ctx_synchronize();  // ignores failures: finish() has reported errors, and leftovers end
                              // with the process
  for (const Batch& batch : batches_) driver_.event_destroy(batch.complete);
  if (host_memory_ != nullptr) driver_.mem_free_host(host_memory_);
}

// Makes at least two batches per stream, so that each can have one open and others in flight.
Result<void> UseChecker::make_batches() {
  const std::size_t count = std::max(kLeastBatches, 2 * streams_.size());
  VPMM_TRY(
      checked(Call::mem_host_alloc, driver_.mem_host_alloc(count * kBatchBytes, 0, host_memory_)));
  batches_.reserve(count);
  for (std::size_t i = 0; i < count; ++i) {
    driver::EventHandle event{};
    VPMM_TRY(checked(Call::event_create, driver_.event_create(event)));
    batches_.push_back({static_cast<std::byte*>(host_memory_) + i * kBatchBytes, 0, {}, event});
  }
  for (Batch& batch : batches_) idle_.push_back(&batch);
  return {};
}

Result<void> UseChecker::first_use(const Use& use) {
  const std::uint64_t seed = seed_of(seed_, use.allocation);
  const Spots spots(use.memory.size, seed);
  for (const Spot& spot : touched(spots, use.stream, 1)) {
    VPMM_TRY_ASSIGN(const StreamSlot slot, take_slot(use.stream));
    if (!pass_copies_) fill(std::span(slot.memory, spot.size), seed, spot.offset);
    VPMM_TRY(
        checked(Call::memcpy_host_to_device_async,
                driver_.memcpy_host_to_device_async(use.memory.begin + spot.offset, slot.memory,
                                                    spot.size, streams_[use.stream])));
  }
  return {};
}

Result<void> UseChecker::last_use(const Use& use) {
  const Spots spots(use.memory.size, seed_of(seed_, use.allocation));
  for (const Spot& spot : touched(spots, use.stream, 2)) {
    const DevicePtr address = use.memory.begin + spot.offset;
    const driver::StreamHandle stream = streams_[use.stream];
    VPMM_TRY_ASSIGN(const StreamSlot slot, take_slot(use.stream));
    VPMM_TRY(checked(Call::memcpy_device_to_host_async,
                     driver_.memcpy_device_to_host_async(slot.memory, address, spot.size, stream)));
    if (!pass_copies_) slot.batch->reads.push_back({use.allocation, spot, slot.number});
    VPMM_TRY(checked(Call::memset_d8_async,
                     driver_.memset_d8_async(address, kLastUseByte, spot.size, stream)));
  }
  return {};
}

// The spots whose calls are made. Without contents a batch that has room for all takes the slots,
// the time of the calls passes, and the last spot's calls leave the stream as all would.
std::span<const Spot> UseChecker::touched(const Spots& spots, std::size_t stream,
                                          std::size_t calls_per_spot) {
  const std::span<const Spot> all(spots.begin(), spots.end());
  Batch* const batch = open_[stream];
  if (!pass_copies_ || all.size() < 2 || batch == nullptr ||
      batch->used_slots + all.size() > kSlotsPerBatch)
    return all;
  batch->used_slots += all.size() - 1;
  pass_copies_((all.size() - 1) * calls_per_spot);
  return all.last(1);
}

Result<void> UseChecker::finish() {
  for (std::size_t stream = 0; stream < streams_.size(); ++stream) {
    if (open_[stream] != nullptr) VPMM_TRY(close_batch(stream));
  }
  while (!closed_.empty()) VPMM_TRY(settle_oldest());
  return {};
}

Result<UseChecker::StreamSlot> UseChecker::take_slot(std::size_t stream) {
  if (open_[stream] != nullptr && open_[stream]->used_slots == kSlotsPerBatch)
    VPMM_TRY(close_batch(stream));
  if (open_[stream] == nullptr) {
    VPMM_TRY_ASSIGN(open_[stream], take_batch());
  }
  Batch& batch = *open_[stream];
  const std::size_t number = batch.used_slots++;
  return StreamSlot{&batch, number, batch.memory + number * kSpotBytes};
}

Result<UseChecker::Batch*> UseChecker::take_batch() {
  VPMM_TRY(settle_complete());
  if (idle_.empty()) VPMM_TRY(settle_oldest());
  Batch* const batch = idle_.back();
  idle_.pop_back();
  return batch;
}

Result<void> UseChecker::close_batch(std::size_t stream) {
  VPMM_TRY(
      checked(Call::event_record, driver_.event_record(open_[stream]->complete, streams_[stream])));
  closed_.push_back(std::exchange(open_[stream], nullptr));
  return {};
}

Result<void> UseChecker::settle_complete() {
  while (!closed_.empty()) {
    const CuResult result = driver_.event_query(closed_.front()->complete);
    if (result == CuResult::not_ready) return {};
    VPMM_TRY(checked(Call::event_query, result));
    VPMM_TRY(settle_oldest());
  }
  return {};
}

// Requires: some batch is closed.
Result<void> UseChecker::settle_oldest() {
  Batch& batch = *closed_.front();
  VPMM_TRY(checked(Call::event_synchronize, driver_.event_synchronize(batch.complete)));
  closed_.pop_front();
  compare(batch);
  batch.used_slots = 0;
  batch.reads.clear();
  idle_.push_back(&batch);
  return {};
}

void UseChecker::compare(Batch& batch) {
  for (const Read& read : batch.reads) {
    const std::span found(batch.memory + read.slot * kSpotBytes, read.spot.size);
    if (!holds(found, seed_of(seed_, read.allocation), read.spot.offset)) report(read);
  }
}

void UseChecker::report(const Read& read) {
  ++corruptions_;
  if (findings_.size() == kMaxFindings) return;
  findings_.push_back(fmt::format(
      "corruption: allocation {} of the trace (counted from 0) lost what was written at byte {}",
      read.allocation, read.spot.offset));
}

}  // namespace vpmm::replay
