// SPDX-License-Identifier: Apache-2.0
// guard: begin and end of guarded allocations.
#include "guard/guarded.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/message.hpp"
#include "base/scope_exit.hpp"
#include "driver/context_scope.hpp"
#include "driver/driver_error.hpp"
#include "guard/description.hpp"
#include "observe/log.hpp"

namespace vpmm::guard {

using driver::Call;
using driver::CuResult;
using driver::RelaxedCaptureScope;

namespace {

constexpr Bytes kDefaultAlignment = 256;
constexpr Bytes kMarginBefore = 256;
constexpr Bytes kMarginAfter = 4 * kKiB;       // compared at most; larger alignments leave more
constexpr Bytes kLargestGap = 256 * kMiB;      // unmapped addresses behind an allocation
constexpr std::size_t kLooksUntilGivenUp = 8;  // then a stream that did not call counts as idle
constexpr auto kFilling = std::byte{0xA5};

bool is_broken(const Result<void>& result) {
  return !result && result.error().code == ErrorCode::poisoned;
}

}  // namespace

Guarded::Guarded(driver::Driver& driver, const driver::ChunkProperties& chunk,
                 time::Timelines& timelines, const Options& options)
    : driver_(driver),
      timelines_(timelines),
      options_(options),
      mapper_(driver, chunk),
      margins_(kPerCall * (kMarginBefore + kMarginAfter)),
      sampler_(options.every) {}

Bytes Guarded::pages_for(Bytes bytes, Bytes alignment) const {
  const Bytes least = std::max(alignment, kDefaultAlignment);
  return options_.page % least == 0 ? round_up(bytes, options_.page) : 0;
}

// --- address space

Result<void> Guarded::open() {
  if (reservation_.empty()) {
    VPMM_TRY_ASSIGN(reservation_, mapper_.reserve(options_.address_space, options_.page));
    next_ = reservation_.begin + options_.page;  // unmapped addresses before the first slot
    begin_.store(to_integer(reservation_.begin), std::memory_order_relaxed);
  }
  if (own_stream_ != driver::StreamHandle{}) return {};
  return driver::checked(Call::stream_create,
                         driver_.stream_create(driver::StreamFlags::non_blocking, own_stream_));
}

// Forgets blocks that are gone from these addresses. Returns false, and forgets none, if another
// block is in the way; `next`: out, the end of its slot.
bool Guarded::make_way(AddressRange slot, DevicePtr& next) {
  auto at = blocks_.upper_bound(slot.begin);
  if (at != blocks_.begin() && std::prev(at)->second.slot.end() > slot.begin) --at;
  const auto first = at;
  for (; at != blocks_.end() && at->second.slot.begin < slot.end(); ++at) {
    if (at->second.stage == Block::Stage::gone) continue;
    next = at->second.slot.end();
    return false;
  }
  blocks_.erase(first, at);
  return true;
}

// The next addresses that are not in use; after the last ones, the first again.
std::optional<AddressRange> Guarded::find_slot(Bytes pages) {
  const Bytes gap = std::clamp(round_down(pages, options_.page), options_.page, kLargestGap);
  AddressRange slot{next_, pages + round_up(gap, options_.page)};
  for (bool has_wrapped = false;;) {
    if (slot.end() > reservation_.end()) {
      if (has_wrapped) return std::nullopt;
      has_wrapped = true;
      slot.begin = reservation_.begin + options_.page;
      if (slot.end() > reservation_.end()) return std::nullopt;
    }
    if (make_way(slot, slot.begin)) break;
  }
  next_ = slot.end();
  return slot;
}

// --- counts

void Guarded::count_mapped(const Block& block, int change) {
  figures_.mapped += static_cast<Bytes>(change) * block.mapped.size;
  figures_.mappings += static_cast<std::uint64_t>(change);
}

// --- an allocation

Moment Guarded::moment_of(const pool::Caller& caller, std::uint32_t stack) const {
  return {driver_.now_ns(), caller.timeline == nullptr ? std::nullopt : caller.timeline->stream,
          stack};
}

Result<DevicePtr> Guarded::allocate(MutexLock& lock, const pool::Request& request,
                                    const pool::Caller& caller) {
  VPMM_TRY(open());
  const Bytes pages = pages_for(request.bytes, request.alignment);
  const std::optional<AddressRange> slot = find_slot(pages);
  if (!slot) return DevicePtr{};
  Block& block = blocks_[slot->begin];
  block.slot = *slot;
  block.mapped = {slot->begin, pages};
  const Bytes alignment = std::max(request.alignment, kDefaultAlignment);
  block.range = {align_down(block.mapped.end() - request.bytes, alignment), request.bytes};
  block.tag = request.tag;
  block.dead_contexts = dead_contexts_;
  block.allocated = moment_of(caller, request.guard_stack);
  if (caller.timeline != nullptr) block.timeline = caller.timeline->id;
  count_mapped(block, +1);
  const bool is_on_stream = caller.may_queue() && !options_.fills_apart;
  const auto stream = is_on_stream ? caller.stream : std::nullopt;
  Result<void> mapped;
  {
    const driver::StreamHandle own = own_stream_;
    const Unlocked unlocked(lock);
    mapped = map(block, stream ? *stream : own, !stream);
  }
  if (!mapped) {
    if (block.chunk == driver::ChunkHandle{}) {
      count_mapped(block, -1);
      blocks_.erase(slot->begin);
    } else {
      freed_.push_back(slot->begin);  // a later call tries to undo it again
      ++figures_.chunks_created;
      block.stage = Block::Stage::freed;
    }
    return std::move(mapped.error());
  }
  block.stage = Block::Stage::live;
  block.number = ++figures_.allocations;
  ++figures_.chunks_created;
  ++figures_.live;
  figures_.requested += request.bytes;
  figures_.allocated += pages;
  time::count_references(timelines_, block.timeline, block.other_uses, +1);
  return block.range.begin;
}

// Undoes what it did if a step fails, as far as the driver allows. Margins that cannot be filled
// are not compared later.
Result<void> Guarded::map(Block& block, driver::StreamHandle stream, bool is_for_any_stream) {
  VPMM_TRY_ASSIGN(block.chunk, mapper_.create(block.mapped.size));
  vm::MapOutcome outcome = mapper_.map_run(block.mapped, {{block.chunk, block.mapped}});
  block.is_mapped = !outcome.error || !outcome.still_mapped.empty();
  if (outcome.error) {
    static_cast<void>(unmap(block));  // the first error is the one to tell
    return std::move(*outcome.error);
  }
  Result<void> filled = fill(block, stream, is_for_any_stream);
  block.judgement.is_done = !filled;
  return is_broken(filled) ? std::move(filled) : Result<void>();
}

Guarded::Margins Guarded::margins_of(const Block& block) {
  const Bytes before = std::min(kMarginBefore, block.range.begin - block.mapped.begin);
  const Bytes after = std::min(kMarginAfter, block.mapped.end() - block.range.end());
  return {{block.range.begin - before, before}, {block.range.end(), after}};
}

// On the stream of the allocation: work of its user comes later. Memory for any stream must be
// ready, so the host waits for these two fills alone.
Result<void> Guarded::fill(const Block& block, driver::StreamHandle stream,
                           bool is_for_any_stream) {
  const RelaxedCaptureScope relaxed(driver_);
  const Margins margins = margins_of(block);
  driver::MemoryObserver* const observer = driver_.memory_observer();
  for (const AddressRange& margin : {margins.before, margins.after}) {
    if (margin.empty()) continue;
    if (observer != nullptr && is_for_any_stream) observer->on_allocate_any_stream(margin);
    if (observer != nullptr && !is_for_any_stream) observer->on_allocate(margin, stream);
    VPMM_TRY(
        driver::checked(Call::memset_d8_async,
                        driver_.memset_d8_async(margin.begin, static_cast<std::uint8_t>(kFilling),
                                                margin.size, stream)));
  }
  if (!is_for_any_stream) return {};
  return driver::checked(Call::stream_synchronize, driver_.stream_synchronize(stream));
}

// --- look-up

const Block* Guarded::known_around(DevicePtr p) const {
  const auto after = blocks_.upper_bound(p);
  if (after == blocks_.begin()) return nullptr;
  const Block& block = std::prev(after)->second;
  return block.slot.contains(p) && block.stage != Block::Stage::coming ? &block : nullptr;
}

const Block* Guarded::known_behind(DevicePtr p) const {
  for (auto at = blocks_.upper_bound(p); at != blocks_.end(); ++at)
    if (at->second.stage != Block::Stage::coming) return &at->second;
  return nullptr;
}

Vector<const Block*> Guarded::newest(std::size_t most) const {
  Vector<const Block*> found;
  for (const auto& [begin, block] : blocks_)
    if (block.number != 0) found.push_back(&block);
  const auto is_newer = [](const Block* a, const Block* b) { return a->number > b->number; };
  const std::size_t count = std::min(most, found.size());
  std::partial_sort(found.begin(), found.begin() + static_cast<std::ptrdiff_t>(count), found.end(),
                    is_newer);
  found.resize(count);
  return found;
}

Block* Guarded::live_around(DevicePtr p) {
  const auto after = blocks_.upper_bound(p);
  if (after == blocks_.begin()) return nullptr;
  Block& block = std::prev(after)->second;
  return block.stage == Block::Stage::live && block.range.contains(p) ? &block : nullptr;
}

// --- a free

// Asks the streams that used it for an event at their next call, so that it is soon unmapped.
void Guarded::free(Block& block, const time::Stamp& stamp, const pool::Caller& caller) {
  freed_.push_back(block.slot.begin);
  block.stage = Block::Stage::freed;
  block.stamp = stamp;
  block.freed = moment_of(caller, caller.guard_stack);
  for (const time::StampPart& part : stamp.parts())
    if (time::Timeline* const timeline = timelines_.find(part.timeline)) timeline->wanted = true;
  time::count_references(timelines_, block.timeline, block.other_uses, -1);
  --figures_.live;
  figures_.requested -= block.range.size;
  figures_.allocated -= block.mapped.size;
}

Result<void> Guarded::settle(MutexLock& lock, std::size_t most) {
  // Memory that another thread unmaps is free when that thread is done.
  if (is_settling_ && most == kAll)
    settled_.wait(lock, [this]() VPMM_REQUIRES(pool_lock) { return !is_settling_; });
  if (freed_.empty() || is_settling_) return {};
  is_settling_ = true;
  const ScopeExit end([&]() VPMM_REQUIRES(pool_lock) {
    is_settling_ = false;
    settled_.notify_all();
  });
  std::size_t looks = freed_.size();
  for (;;) {
    Vector<Block*> leaving;
    leaving.reserve(kPerCall);
    for (; looks > 0 && leaving.size() < std::min(most, kPerCall); --looks) {
      const DevicePtr slot = freed_.front();
      freed_.pop_front();
      Block& block = blocks_.at(slot);
      block.stamp = timelines_.reduce(block.stamp);
      if (block.stamp.is_complete()) {
        leaving.push_back(&block);
      } else {
        freed_.push_back(slot);
        look_for_proof(block);
      }
    }
    if (leaving.empty()) return {};
    most -= leaving.size();
    VPMM_TRY(leave(lock, leaving));
  }
}

void Guarded::look_for_proof(Block& block) {
  const auto parts = block.stamp.parts();
  const bool is_provable = std::all_of(
      parts.begin(), parts.end(), [&](const time::StampPart& part) VPMM_REQUIRES(pool_lock) {
        return timelines_.find(part.timeline)->numbers.provable >= part.sequence;
      });
  if (is_provable) return;
  ++block.looks;
  if (block.looks < kLooksUntilGivenUp) return;
  block.looks = 0;
  lacks_proof_ = true;
}

// A block that could not be unmapped stays freed, and a later call tries again.
Result<void> Guarded::leave(MutexLock& lock, const Vector<Block*>& leaving) {
  // Margins are compared on a stream for copies; after a reset there is none, and no comparison.
  Result<void> outcome = open();
  const bool has_stream = outcome.ok();
  for (Block* const block : leaving) drop_old_margins(*block);
  if (!is_broken(outcome)) outcome = {};
  {
    const driver::StreamHandle own = own_stream_;
    const Unlocked unlocked(lock);
    if (has_stream) outcome = compare(leaving, own);
    for (Block* const block : leaving) {
      if (!outcome) break;
      Result<void> unmapped = unmap(*block);
      if (is_broken(unmapped)) outcome = std::move(unmapped);
    }
  }
  for (Block* const block : leaving) {
    if (block->chunk != driver::ChunkHandle{}) {
      freed_.push_back(block->slot.begin);
      continue;
    }
    block->stage = Block::Stage::gone;
    if (block->is_damaged()) ++figures_.damaged;
    ++figures_.chunks_released;
    count_mapped(*block, -1);
    gone_.push_back({block->slot.begin, block->number});
  }
  remember();
  return is_broken(outcome) ? std::move(outcome) : Result<void>();
}

// Leaves out margins from before a reset, whose fill may be lost.
void Guarded::drop_old_margins(Block& block) const {
  if (block.dead_contexts != dead_contexts_) block.judgement.is_done = true;
}

// Forgets the oldest blocks that are gone beyond the bound.
void Guarded::remember() {
  while (gone_.size() > options_.remembered) {
    const auto found = blocks_.find(gone_.front().slot);
    if (found != blocks_.end() && found->second.stage == Block::Stage::gone &&
        found->second.number == gone_.front().number)
      blocks_.erase(found);
    gone_.pop_front();
  }
}

Result<void> Guarded::unmap(Block& block) {
  if (block.is_mapped) VPMM_TRY(mapper_.unmap(block.mapped));
  block.is_mapped = false;
  VPMM_TRY(mapper_.release(block.chunk));
  block.chunk = {};
  return {};
}

// --- margins

// A failed copy leaves the blocks unjudged; they are unmapped all the same, once the stream of the
// copies is done. Returns the failure of the wait for it.
Result<void> Guarded::compare(const Vector<Block*>& leaving, driver::StreamHandle own) {
  const RelaxedCaptureScope relaxed(driver_);
  std::byte* to = margins_.data();
  Result<void> copied;
  for (const Block* const block : leaving) {
    if (block->judgement.is_done) continue;
    const Margins margins = margins_of(*block);
    for (const AddressRange& margin : {margins.before, margins.after}) {
      if (margin.empty() || !copied) continue;
      copied =
          driver::checked(Call::memcpy_device_to_host_async,
                          driver_.memcpy_device_to_host_async(to, margin.begin, margin.size, own));
      to += margin.size;
    }
  }
  if (is_broken(copied)) return copied;
  VPMM_TRY(driver::checked(Call::stream_synchronize, driver_.stream_synchronize(own)));
  const std::byte* found = margins_.data();
  for (Block* const block : leaving) {
    if (block->judgement.is_done) continue;
    if (copied) judge(*block, found);
    found += margins_of(*block).size();
    block->judgement.is_done = true;
  }
  return {};
}

void Guarded::judge(Block& block, const std::byte* found) {
  const Margins margins = margins_of(block);
  const auto is_foreign = [](std::byte each) { return each != kFilling; };
  const std::byte* const middle = found + margins.before.size;
  const std::byte* const end = middle + margins.after.size;
  const auto before = std::count_if(found, middle, is_foreign);
  const auto after = std::count_if(middle, end, is_foreign);
  if (before + after == 0) return;
  block.judgement.found_damage = true;
  if (before > 0)
    observe::log(observe::LogLevel::error,
                 "memory before an allocation was overwritten: {} bytes, the first {} bytes before "
                 "its begin; {}",
                 before, middle - std::find_if(found, middle, is_foreign), describe(block));
  if (after > 0)
    observe::log(observe::LogLevel::error,
                 "memory beyond an allocation was overwritten: {} bytes, the first {} bytes beyond "
                 "its end; {}",
                 after, std::find_if(middle, end, is_foreign) - middle, describe(block));
}

// --- end

void Guarded::release_everything() {
  // Ignores failures at the end; each step is right without the one before. Copies of margins wait:
  // none may be left when their buffer goes.
  for (auto& [begin, block] : blocks_) {
    if (block.chunk == driver::ChunkHandle{}) continue;
    drop_old_margins(block);
    const Margins margins = margins_of(block);
    std::byte* const middle = margins_.data() + margins.before.size;
    const auto copy = [&](std::byte* to, const AddressRange& from) {
      return from.empty() ||
             driver_.memcpy_device_to_host(to, from.begin, from.size) == CuResult::success;
    };
    const bool is_known = !block.judgement.is_done && copy(margins_.data(), margins.before) &&
                          copy(middle, margins.after);
    if (is_known) judge(block, margins_.data());
    static_cast<void>(unmap(block));
  }
  if (own_stream_ != driver::StreamHandle{}) static_cast<void>(driver_.stream_destroy(own_stream_));
  if (!reservation_.empty()) static_cast<void>(mapper_.free_reservation(reservation_));
}

std::string Guarded::validate() const {
  Bytes requested = 0;
  Bytes mapped = 0;
  std::uint64_t live = 0;
  std::uint64_t mappings = 0;
  DevicePtr reached = reservation_.begin;
  for (const auto& [begin, block] : blocks_) {
    if (begin != block.slot.begin || begin < reached || block.slot.end() > reservation_.end())
      return message_of("the guarded addresses at {:#x} overlap others", to_integer(begin));
    reached = block.slot.end();
    if (!block.mapped.contains(block.range))
      return message_of("the guarded allocation at {:#x} is not in its pages",
                        to_integer(block.range.begin));
    if (block.stage != Block::Stage::gone) {
      mapped += block.mapped.size;
      ++mappings;
    }
    if (block.stage != Block::Stage::live) continue;
    requested += block.range.size;
    ++live;
  }
  if (requested != figures_.requested || live != figures_.live)
    return message_of("{} bytes in {} live guarded allocations, {} in {} counted", requested, live,
                      figures_.requested, figures_.live);
  if (mapped != figures_.mapped || mappings != figures_.mappings)
    return message_of("{} bytes in {} guarded mappings, {} in {} counted", mapped, mappings,
                      figures_.mapped, figures_.mappings);
  return {};
}

}  // namespace vpmm::guard
