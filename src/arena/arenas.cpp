// SPDX-License-Identifier: Apache-2.0
// arena: requests and frees in arenas, and their memory.
#include "arena/arenas.hpp"

#include <algorithm>
#include <atomic>

#include "base/address.hpp"
#include "base/message.hpp"

namespace vpmm::arena {

using pool::Caller;
using pool::Standing;

namespace {

// Shared by all contexts of the process.
constinit std::atomic<std::uint64_t> last_id{0};

}  // namespace

Error no_arenas() {
  return {ErrorCode::unsupported,
          "arenas need the virtual memory pool, which VPMM_PAGE_SIZE=max switches off, or the GPU "
          "does not support"};
}

// --- arenas

pool::ArenaId Arenas::create(const ArenaOptions& options) {
  Splitting splitting = options.is_exact ? Splitting::small : Splitting::yes;
  if (!options.splits || isolates_) splitting = Splitting::no;
  const pool::ArenaId id{last_id.fetch_add(1) + 1};
  table_.by_id.emplace(
      id, std::make_unique<ArenaEntry>(id, options, table_.pool->memory().page_size(), splitting));
  return id;
}

void Arenas::forget_streams() {
  names_.clear();
  for (const auto& [id, each] : table_.by_id) {
    refresh(*each);
    each->arena.forget_streams();
  }
}

// --- a request

Result<void> Arenas::enter(pool::ArenaId id, const Caller& caller) {
  VPMM_TRY_ASSIGN(ArenaEntry* const in, table_.resident(id));
  if (caller.standing == Standing::capturing) in->arena.pin();
  return {};
}

void Arenas::refresh(ArenaEntry& entry) const {
  entry.arena.refresh([this](const time::Stamp& stamp)
                          VPMM_REQUIRES(pool_lock) { return table_.timelines.reduce(stamp); });
}

// Looks for newly complete blocks only after a first search failed.
DevicePtr Arenas::take(const pool::Request& request, const Caller& caller, Reach room) {
  ArenaEntry* const in = table_.open(request.arena);
  // The lock was dropped since enter().
  if (in == nullptr || in->residence != Residence::resident) return {};
  const Wish wish{round_up(request.bytes, kGrain), std::max(request.alignment, kGrain),
                  names_.key_of(caller)};
  std::optional<AddressRange> part = in->arena.find(wish, room);
  if (!part) {
    refresh(*in);
    part = in->arena.find(wish, room);
  }
  if (!part) return {};
  if (!in->arena.splits() && !in->options.is_external)
    part = table_.part_rest(*in, *part, round_up(wish.size, table_.pool->memory().page_size()));
  return begin(*in, *part, request.bytes, caller);
}

bool Arenas::waits_for_proof(const pool::Request& request, const Caller& caller) {
  const ArenaEntry* const in = table_.open(request.arena);
  return in != nullptr && in->residence == Residence::resident &&
         in->arena.has_pending_for(names_.key_of(caller), request.bytes);
}

// Graphs still use free memory of a pinned arena: observers see its end at the next allocation of
// it.
DevicePtr Arenas::begin(ArenaEntry& entry, AddressRange part, Bytes requested,
                        const Caller& caller) {
  std::optional<time::TimelineId> timeline;
  if (caller.timeline != nullptr) timeline = caller.timeline->id;
  entry.arena.take(part, {requested, names_.key_of(caller), timeline});
  time::count_references(table_.timelines, timeline, {}, +1);
  if (entry.options.is_external) return part.begin;
  table_.small->ledger().block_begins(requested, part.size);
  if (entry.arena.is_pinned()) table_.recorder.observe_end(part, caller.stream);
  return part.begin;
}

pool::PageRequest Arenas::stretch_for(const pool::Request& request, Bytes pages) const {
  const Bytes page = table_.pool->memory().page_size();
  pool::PageRequest stretch;
  stretch.size = pages * page;
  stretch.alignment = std::max(request.alignment, table_.pool->memory().page_alignment());
  const ArenaEntry* const in = table_.open(request.arena);
  stretch.chunks = pool::Chunks::own;
  if (in != nullptr && in->options.is_exact) stretch.chunks = pool::Chunks::exact;
  if (in != nullptr && in->options.one_chunk) stretch.chunks = pool::Chunks::one;
  return stretch;
}

Bytes Arenas::least_pages(const pool::Request& request) const {
  return round_up(request.bytes, table_.pool->memory().page_size()) /
         table_.pool->memory().page_size();
}

// Note [Shared stretches]
// A stretch for one request wastes what rounding to pages adds: nine tenths of a page for 1.1
// pages. Requests of half a page to five pages therefore share stretches of up to ten pages, as in
// PyTorch's allocator, but of no more than a 16th of what the arena holds, which bounds what they
// leave free. Of the sizes that leave at most a 32nd behind requests of this size, the largest;
// otherwise the one that leaves the least.
Bytes Arenas::pages_for(const pool::Request& request) const {
  constexpr Bytes kMostSharedPages = 10;
  constexpr Bytes kShareOfHeld = 16;
  constexpr Bytes kLeftShare = 32;
  const Bytes page = table_.pool->memory().page_size();
  const Bytes least = least_pages(request);
  const ArenaEntry* const in = table_.open(request.arena);
  if (in == nullptr || !in->arena.splits() || request.bytes <= page / 2 ||
      request.bytes > kMostSharedPages / 2 * page || request.alignment > kGrain)
    return least;
  const Bytes most = std::min(kMostSharedPages, in->arena.held_bytes() / kShareOfHeld / page);
  const Bytes block = round_up(request.bytes, kGrain);
  Bytes best = least;
  for (Bytes pages = least + 1; pages <= most; ++pages) {
    const Bytes left = pages * page % block;
    const Bytes least_left = best * page % block;
    if (left <= pages * page / kLeftShare || left * best < least_left * pages) best = pages;
  }
  return best;
}

Result<void> Arenas::add(pool::ArenaId id, const pool::Placed& stretch, const Caller& caller) {
  region::Region* const region = table_.pool->memory().index.allocated_around(stretch.begin);
  const Result<ArenaEntry*> in = table_.resident(id);
  if (!in) {
    table_.pool->deallocate(region, {});  // the lock was dropped while the pool mapped
    return in.error();
  }
  table_.add(*in.value(), region->range, names_.key_of(caller));
  table_.small->ledger().stretch_begins(*region);
  table_.recorder.arena_changed(report::EventKind::arena_grow, region->range, id);
  return {};
}

Result<DevicePtr> Arenas::take_at(pool::ArenaId id, AddressRange part, const Caller& caller) {
  VPMM_TRY(enter(id, caller));
  ArenaEntry& in = *table_.find(id);
  const Stretch* const stretch = in.arena.stretch_around(part.begin);
  if (stretch == nullptr)
    return Error{ErrorCode::invalid_pointer,
                 message_of("{:#x} is not in memory of arena {}", to_integer(part.begin),
                            static_cast<std::uint64_t>(id))};
  if (!is_multiple(part.begin - stretch->range.begin, kGrain))
    return Error{ErrorCode::invalid_argument,
                 message_of("{:#x} is no whole multiple of {} bytes from where its memory "
                            "begins",
                            to_integer(part.begin), kGrain)};
  AddressRange whole{part.begin, round_up(part.size, kGrain)};
  if (!in.arena.splits() && part.begin == stretch->range.begin && part.size <= stretch->range.size)
    whole = stretch->range;
  if ((!in.arena.splits() && whole != stretch->range) || !in.arena.is_free(whole))
    return Error{ErrorCode::invalid_argument,
                 message_of("{} bytes at {:#x} are not free in arena {}", part.size,
                            to_integer(part.begin), static_cast<std::uint64_t>(id))};
  return begin(in, whole, part.size, caller);
}

// --- live blocks

const ArenaBlock* Arenas::live_around(DevicePtr p) const {
  const ArenaBlock* const block = table_.around(p)->arena.block_around(p);
  return block->is_live ? block : nullptr;
}

// Empty range: external memory, without observers.
std::optional<AddressRange> Arenas::range_of(DevicePtr begin) const {
  const ArenaBlock* const block = live_around(begin);
  if (block == nullptr) return std::nullopt;
  return table_.around(begin)->options.is_external ? AddressRange{} : block->range;
}

bool Arenas::is_resident(DevicePtr p) const {
  const ArenaEntry* const in = table_.around(p);
  return in == nullptr || in->residence == Residence::resident;
}

void Arenas::record_use(DevicePtr begin, time::Timeline& user) {
  if (table_.around(begin)->arena.record_use(begin, user.id)) ++user.references;
}

// A free is in order if it names the only stream that used the block: that stream may have the
// block at once. In a capture the graph is the order, and stamps do not count. A stream without a
// known id may be taken for a later one with its handle, so memory of no stream waits there.
bool Arenas::end(DevicePtr begin, const pool::Stream& stream, const Caller& caller) {
  const ArenaBlock* const block = live_around(begin);
  if (block == nullptr || block->range.begin != begin) return false;
  ArenaEntry& in = *table_.around(begin);
  const bool captures = caller.standing == Standing::capturing;
  const StreamKey key = names_.key_of(caller);
  if (captures) in.arena.pin();
  const pool::Stamper::Uses uses{block->timeline, block->other_uses, block->range.size};
  const bool is_own = block->other_uses.empty() &&
                      (block->key == key || (block->key == kEverybody && stream_id_of(key) != 0));
  const bool is_in_order = is_own && (captures || uses.are_of(caller));
  const bool is_pools = !in.options.is_external;
  if (is_pools && !in.arena.is_pinned() && !in.has_left) {
    if (in.keeps_stretches())
      in.silent_frees.push_back(block->range);
    else
      table_.recorder.observe_end(block->range, is_in_order ? stream : std::nullopt);
  }
  time::Stamp stamp;
  if (!captures || !is_in_order)
    stamp = table_.timelines.reduce(table_.stamper.stamp_of(uses, caller));
  time::count_references(table_.timelines, block->timeline, block->other_uses, -1);
  if (block->stretch->is_suspended)
    table_.small->ledger().block_wakes(block->requested, block->range.size);
  if (is_pools) table_.small->ledger().block_ends(block->requested, block->range.size);
  in.arena.end(begin, {is_in_order ? key : block->key, stamp, !is_in_order});
  return true;
}

void Arenas::ended(DevicePtr p) {
  if (ArenaEntry* const in = table_.around(p)) table_.settle(*in);
}

Result<Vector<DevicePtr>> Arenas::live_in(pool::ArenaId id) const {
  VPMM_TRY_ASSIGN(const ArenaEntry* const in, table_.entry(id));
  Vector<DevicePtr> live;
  live.reserve(in->arena.live());
  in->arena.for_each_live([&](const ArenaBlock& block) { live.push_back(block.range.begin); });
  return live;
}

// --- giving back

Result<void> Arenas::pin(pool::ArenaId id) {
  VPMM_TRY_ASSIGN(ArenaEntry* const in, table_.entry(id));
  in->arena.pin();
  return {};
}

Result<Bytes> Arenas::trim(pool::ArenaId id) {
  VPMM_TRY_ASSIGN(ArenaEntry* const in, table_.entry(id));
  return in->keeps_idle() ? Bytes{0} : table_.give_back_idle(*in, Idle::chunks);
}

Result<void> Arenas::release(pool::ArenaId id) {
  VPMM_TRY_ASSIGN(ArenaEntry* const in, table_.entry(id));
  in->is_released = true;
  table_.settle(*in);
  return {};
}

Bytes Arenas::give_back_idle(Idle what) {
  Bytes bytes = 0;
  for (const auto& [id, each] : table_.by_id)
    if (!each->keeps_idle()) bytes += table_.give_back_idle(*each, what);
  return bytes;
}

// --- figures

std::uint64_t Arenas::live() const {
  std::uint64_t live = 0;
  for (const auto& [id, each] : table_.by_id) live += each->arena.live();
  return live;
}

Bytes Arenas::free_bytes() const {
  Bytes bytes = 0;
  for (const auto& [id, each] : table_.by_id)
    if (!each->options.is_external) {
      bytes += each->arena.held_bytes() - each->arena.allocated_bytes();
      // Most pools have no suspended arena.
      if (table_.pool->memory().suspended_bytes != 0) bytes -= each->free_in_suspended();
    }
  return bytes;
}

Bytes Arenas::pending_bytes() const {
  const auto reduce = [this](const time::Stamp& stamp)
                          VPMM_REQUIRES(pool_lock) { return table_.timelines.reduce(stamp); };
  Bytes bytes = 0;
  for (const auto& [id, each] : table_.by_id)
    if (!each->options.is_external && each->residence == Residence::resident)
      bytes += each->arena.pending_bytes(reduce);
  return bytes;
}

bool Arenas::is_idle(AddressRange part) const {
  const ArenaEntry* const in = table_.around(part.begin);
  return in != nullptr && !in->keeps_idle() && in->residence == Residence::resident &&
         in->arena.is_free(part);
}

std::vector<report::ArenaHolding> Arenas::holdings() const {
  std::vector<report::ArenaHolding> holdings;
  for (const auto& [id, each] : table_.by_id) {
    const Arena& arena = each->arena;
    const bool holds = arena.held_bytes() != 0 && each->residence != Residence::suspended;
    if (!holds || each->options.is_external) continue;
    holdings.push_back({static_cast<std::uint64_t>(id), each->options.tag, arena.is_pinned(),
                        each->is_released, arena.held_bytes(), arena.allocated_bytes()});
  }
  return holdings;
}

void Arenas::for_each_block_around(DevicePtr p,
                                   FunctionRef<void(const ArenaBlock&, bool)> visit) const {
  const Arena& in = table_.around(p)->arena;
  in.for_each_block_in(in.stretch_around(p)->range,
                       [&](const ArenaBlock& block) { visit(block, in.is_pinned()); });
}

}  // namespace vpmm::arena
