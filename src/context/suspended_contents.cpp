// SPDX-License-Identifier: Apache-2.0
// context: copies contents of arenas to the host and back.
#include "context/suspended_contents.hpp"

#include <utility>

#include "base/host_memory.hpp"
#include "base/message.hpp"
#include "base/quantity.hpp"

namespace vpmm::context {

using arena::Residence;
using host_copy::CopyPiece;
using host_copy::CopyTo;
using pool::ArenaId;

namespace {

// Part of the host's free memory that a copy leaves: 1/32.
constexpr Bytes kHostReserveShare = 32;

// Neighbours as one piece: fewer copies.
Vector<CopyPiece> joined(const Vector<CopyPiece>& pieces) {
  Vector<CopyPiece> all;
  for (const CopyPiece& piece : pieces) {
    if (piece.bytes == 0) continue;
    CopyPiece* const last = all.empty() ? nullptr : &all.back();
    if (last != nullptr && last->device + last->bytes == piece.device &&
        last->host + last->bytes == piece.host)
      last->bytes += piece.bytes;
    else
      all.push_back(piece);
  }
  return all;
}

// Of the reserve, as a call that has begun cannot stop for it.
std::shared_ptr<HostCopy> new_copy() {
  return std::allocate_shared<HostCopy>(HostAllocator<HostCopy>());
}

// Runs `work` without the lock. Host memory that it lacks becomes the error.
template <typename F>
Result<void> without_lock(MutexLock& lock, F&& work) VPMM_REQUIRES(pool_lock) {
  const Unlocked unlocked(lock);
  try {
    return work();
  } catch (const std::bad_alloc&) {
    return no_host_memory();
  }
}

}  // namespace

// The copy of one arena in the making.
struct SuspendedContents::Copying {
  ArenaId id{};
  std::shared_ptr<HostCopy> copy;
  Bytes bytes = 0;
  bool is_pinned = false;
  host_copy::HostMemory other;  // new memory, then the old
  Vector<CopyPiece> pieces;
  bool takes_new() const { return copy->memory.size() < bytes; }
  host_copy::HostMemory& memory() { return takes_new() ? other : copy->memory; }
};

// A copy without its suspend is dropped later. Until all host memory is there, earlier copies stay
// as they are.
Result<void> SuspendedContents::copy_out(const Ids& ids, const SuspendHow& how, MutexLock& lock) {
  Vector<Copying> copying;
  Ids discarding;
  Bytes missing = 0;
  for (const ArenaId id : ids) {
    const TagOptions* const options = options_of(id);
    if (!how.has_backup.value_or(options == nullptr || options->has_backup)) {
      discarding.push_back(id);
      continue;
    }
    copying.push_back({id, parts_.host_copies.find(id), live_bytes(id), {}, {}, {}});
    Copying& each = copying.back();
    if (each.copy == nullptr) each.copy = new_copy();
    each.is_pinned = how.keeps_host_copy || (options != nullptr && options->keeps_host_copy);
    if (each.takes_new()) missing += each.bytes;
  }
  VPMM_TRY(check_host(missing));
  for (const Copying& each : copying) each.copy->is_in_use = true;  // frees leave it alone
  Result<void> done = take_memory(copying, lock);
  const bool has_memory = done.ok();
  if (has_memory) {
    enter(copying, how);
    done = fill(copying, lock);
  }
  for (const Copying& each : copying) {
    each.copy->is_in_use = false;
    if (has_memory && !done) drop(each.id);
  }
  for (const ArenaId id : discarding)
    if (done) discard(id);
  return device_.primary.noted(std::move(done));
}

// Takes and pins new host memory where the old is too small. After an error all of it is dropped.
Result<void> SuspendedContents::take_memory(Vector<Copying>& copying, MutexLock& lock) {
  const host_copy::CopyContext context = gpu_context();
  Result<void> done = without_lock(lock, [&]() -> Result<void> {
    for (Copying& each : copying) {
      if (each.bytes == 0) continue;
      if (each.takes_new()) each.other = host_copy::HostMemory(each.bytes);
      if (each.is_pinned) VPMM_TRY(each.memory().pin(device_.driver, context.id));
    }
    return {};
  });
  if (done) return done;
  const Unlocked unlocked(lock);
  for (Copying& each : copying) each.other.unpin();
  return done;
}

// Lists the live blocks as contents: without those that were freed meanwhile. From here on frees
// change the list, under the lock.
void SuspendedContents::enter(Vector<Copying>& copying, const SuspendHow& how) {
  for (Copying& each : copying) {
    HostCopy& copy = *each.copy;
    if (each.takes_new()) std::swap(copy.memory, each.other);
    copy.dropped = 0;
    copy.call_keeps = how.keeps_host_copy;
    copy.pieces.clear();
    std::byte* at = copy.memory.begin();
    for (const AddressRange range : parts_.arenas.find(each.id)->live_ranges()) {
      copy.pieces.push_back({range.begin, at, range.size});
      at += range.size;
    }
    each.pieces = joined(copy.pieces);
    parts_.host_copies.set(each.id, each.copy);
  }
}

Result<void> SuspendedContents::fill(Vector<Copying>& copying, MutexLock& lock) {
  const host_copy::CopyContext context = gpu_context();
  return without_lock(lock, [&]() -> Result<void> {
    for (Copying& each : copying) {
      each.other.unpin();
      each.other = host_copy::HostMemory();
    }
    for (const Copying& each : copying)
      VPMM_TRY(copy_pieces(*each.copy, each.pieces, CopyTo::host, context));
    return {};
  });
}

// Drops old contents, and their memory if the tag does not keep it.
void SuspendedContents::discard(ArenaId id) {
  const TagOptions* const options = options_of(id);
  if (const std::shared_ptr<HostCopy> copy = parts_.host_copies.find(id)) copy->pieces.clear();
  if (options == nullptr || !options->keeps_host_copy) drop_copy(id);
}

// Other calls may suspend, drop copies and free meanwhile: their arenas take nothing. All entries
// are made first, as an allocation that failed later would leave pinned memory behind; after an
// error they stay, without memory.
Result<void> SuspendedContents::provide(const Ids& ids, MutexLock& lock) {
  struct Provided {
    ArenaId id{};
    Bytes bytes = 0;
    bool is_pinned = false;
    host_copy::HostMemory memory;
  };
  Vector<Provided> provided;
  Bytes missing = 0;
  for (const ArenaId id : ids) {
    const TagOptions* const options = options_of(id);
    if (options != nullptr && !options->has_backup) continue;
    const Bytes bytes = live_bytes(id);
    const std::shared_ptr<HostCopy> copy = parts_.host_copies.find(id);
    if (bytes <= (copy == nullptr ? 0 : copy->memory.size())) continue;
    if (copy == nullptr) parts_.host_copies.set(id, new_copy());
    missing += bytes;
    provided.push_back({id, bytes, keeps(id), {}});
  }
  Result<void> done = check_host(missing);
  if (!done) return done;
  const host_copy::CopyContext context = gpu_context();
  done = without_lock(lock, [&]() -> Result<void> {
    for (Provided& each : provided) {
      each.memory = host_copy::HostMemory(each.bytes);
      each.memory.touch();
      if (each.is_pinned) VPMM_TRY(each.memory.pin(device_.driver, context.id));
    }
    return copier_.prepare(context);
  });
  for (Provided& each : provided) {
    const arena::ArenaEntry* const in = parts_.arenas.find(each.id);
    if (!done || in == nullptr || in->residence != Residence::resident) continue;
    const std::shared_ptr<HostCopy> copy = parts_.host_copies.find(each.id);
    if (copy == nullptr || copy->memory.size() >= each.bytes) continue;
    copy->pieces.clear();  // they are in the memory that goes
    copy->dropped = 0;
    std::swap(copy->memory, each.memory);
  }
  done = device_.primary.noted(std::move(done));
  const Unlocked unlocked(lock);
  for (Provided& each : provided) each.memory.unpin();
  return done;
}

const TagOptions* SuspendedContents::options_of(ArenaId id) const {
  return parts_.tags.find(parts_.arenas.find(id)->options.tag);
}

Bytes SuspendedContents::live_bytes(ArenaId id) const {
  Bytes sum = 0;
  for (const AddressRange range : parts_.arenas.find(id)->live_ranges()) sum += range.size;
  return sum;
}

Result<void> SuspendedContents::check_host(Bytes missing) {
  const std::optional<Bytes> available = host_copy::available_host_bytes();
  if (!available || missing <= *available - *available / kHostReserveShare) return {};
  return Error{ErrorCode::host_out_of_memory,
               message_of("the host has {} of free memory, and the copies take {}",
                          readable_bytes(*available), readable_bytes(missing))};
}

Result<void> SuspendedContents::copy_back(const Ids& ids, const ResumeHow& how, MutexLock& lock) {
  struct Returning {
    std::shared_ptr<HostCopy> copy;  // null: none
    Vector<CopyPiece> pieces;
    Vector<AddressRange> cleared;
  };
  Vector<Returning> contents;
  for (const ArenaId id : ids) {
    Returning each;
    each.copy = parts_.host_copies.find(id);
    if (each.copy != nullptr && how.copies_back) each.pieces = joined(each.copy->pieces);
    if (each.copy != nullptr) each.copy->is_in_use = true;
    if (each.pieces.empty() && how.clears) each.cleared = parts_.arenas.find(id)->live_ranges();
    contents.push_back(std::move(each));
  }
  const host_copy::CopyContext context = gpu_context();
  Result<void> done = without_lock(lock, [&]() -> Result<void> {
    for (const Returning& each : contents) {
      if (each.copy != nullptr)
        VPMM_TRY(copy_pieces(*each.copy, each.pieces, CopyTo::device, context));
      if (!each.cleared.empty()) VPMM_TRY(copier_.clear(each.cleared, context));
    }
    return {};
  });
  for (const Returning& each : contents)
    if (each.copy != nullptr) each.copy->is_in_use = false;
  return device_.primary.noted(std::move(done));
}

Result<void> SuspendedContents::copy_pieces(const HostCopy& of, const Vector<CopyPiece>& pieces,
                                            CopyTo to, const host_copy::CopyContext& context) {
  if (pieces.empty()) return {};
  return of.memory.is_pinned_in(context.id) ? copier_.copy_pinned(pieces, to, context)
                                            : copier_.copy(pieces, to, context);
}

host_copy::CopyContext SuspendedContents::gpu_context() const {
  return {device_.primary.handle(), device_.primary.id()};
}

// Kept memory stays.
void SuspendedContents::drop(ArenaId id) {
  const std::shared_ptr<HostCopy> copy = parts_.host_copies.find(id);
  if (copy == nullptr) return;
  copy->pieces.clear();
  if (!keeps(id)) drop_copy(id);
}

bool SuspendedContents::keeps(ArenaId id) const {
  const arena::ArenaEntry* const in = parts_.arenas.find(id);
  if (in == nullptr) return false;  // released meanwhile
  const std::shared_ptr<HostCopy> copy = parts_.host_copies.find(id);
  const TagOptions* const options = parts_.tags.find(in->options.tag);
  return (copy != nullptr && copy->call_keeps) || (options != nullptr && options->keeps_host_copy);
}

void SuspendedContents::drop_copy(ArenaId id) {
  if (const std::shared_ptr<HostCopy> copy = parts_.host_copies.take(id)) copy->memory.unpin();
}

void SuspendedContents::drop_dead() {
  parts_.host_copies.drop_unless(
      [this](ArenaId id) VPMM_REQUIRES(pool_lock) { return parts_.arenas.find(id) != nullptr; });
}

void SuspendedContents::release() {
  parts_.host_copies.for_each([](ArenaId /*id*/, HostCopy& copy) { copy.memory.unpin(); });
  copier_.release();
}

}  // namespace vpmm::context
