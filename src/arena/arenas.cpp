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

// Streams without a known id have keys above this number, beyond any id.
constexpr std::uint64_t kUnknownStreams = std::uint64_t{1} << 63;
// Number of handles from which on those without a block are forgotten. Each costs less than 100
// bytes.
constexpr std::size_t kNamesKept = 1024;

Error no_such_arena(pool::ArenaId id) {
  return {ErrorCode::invalid_argument,
          message_of("there is no arena {}, or it was released", static_cast<std::uint64_t>(id))};
}

}  // namespace

Error no_arenas() {
  return {ErrorCode::unsupported,
          "arenas need the virtual memory pool, which VPMM_PAGE_SIZE=max switches off, or the GPU "
          "does not support"};
}

// --- arenas

pool::ArenaId Arenas::create(const ArenaOptions& options) {
  Arena::Splitting splitting = options.is_exact ? Arena::Splitting::small : Arena::Splitting::yes;
  if (!options.splits || isolates_) splitting = Arena::Splitting::no;
  const pool::ArenaId id{last_id.fetch_add(1) + 1};
  by_id_.emplace(static_cast<std::uint64_t>(id),
                 std::make_unique<ArenaEntry>(id, options, pool_->memory().page_size(), splitting));
  return id;
}

Arenas::ArenaEntry* Arenas::find(pool::ArenaId id) const {
  const auto found = by_id_.find(static_cast<std::uint64_t>(id));
  return found == by_id_.end() || found->second->is_released ? nullptr : found->second.get();
}

Result<Arenas::ArenaEntry*> Arenas::entry(pool::ArenaId id) const {
  ArenaEntry* const found = find(id);
  if (found == nullptr) return no_such_arena(id);
  return found;
}

Arenas::ArenaEntry* Arenas::entry_around(DevicePtr p) const {
  const auto after = by_stretch_.upper_bound(p);
  if (after == by_stretch_.begin()) return nullptr;
  ArenaEntry* const before = std::prev(after)->second;
  return before->arena.stretch_around(p) == nullptr ? nullptr : before;
}

// Note [A capturing stream goes by its handle]
// A capturing stream has no id, but must be served with its earlier frees. So a handle stands for
// the stream that called with it last outside a capture. A handle seen only in captures has a key
// of its own until its id is known. Limit: a stream with the reused handle of a dead stream, and
// without calls outside captures, is taken for the dead one. Calls outside captures always find the
// right stream.
StreamKey Arenas::key_of(const Caller& caller) {
  if (!caller.stream) return kEverybody;
  const driver::StreamHandle handle =
      *caller.stream == driver::kNullStream ? driver::kLegacyStream : *caller.stream;
  const NamedStream name{
      handle, handle == driver::kPerThreadStream ? std::this_thread::get_id() : std::thread::id{}};
  const auto known = names_.find(name);
  if (caller.timeline == nullptr || !caller.timeline->stream) {
    if (known != names_.end()) return known->second;
    if (names_.size() >= kNamesKept) drop_unused_names();
    return names_[name] = StreamKey{kUnknownStreams + ++last_unknown_};
  }
  const StreamKey key{static_cast<std::uint64_t>(*caller.timeline->stream)};
  if (known != names_.end() && known->second == key) return key;
  if (known != names_.end() && static_cast<std::uint64_t>(known->second) >= kUnknownStreams)
    for (const auto& [id, each] : by_id_) each->arena.rename(known->second, key);
  if (names_.size() >= kNamesKept) drop_unused_names();
  return names_[name] = key;
}

std::uint64_t Arenas::stream_id_of(StreamKey key) {
  const auto number = static_cast<std::uint64_t>(key);
  return number < kUnknownStreams ? number : 0;
}

void Arenas::drop_unused_names() {
  std::erase_if(names_, [&](const auto& name) VPMM_REQUIRES(pool_lock) {
    return std::none_of(by_id_.begin(), by_id_.end(), [&](const auto& each) {
      return each.second->arena.is_used_by(name.second);
    });
  });
}

void Arenas::forget_streams() {
  names_.clear();
  for (const auto& [id, each] : by_id_) {
    refresh(*each);
    each->arena.forget_streams();
  }
}

// --- a request

Result<void> Arenas::enter(pool::ArenaId id, const Caller& caller) {
  VPMM_TRY_ASSIGN(ArenaEntry* const in, entry(id));
  if (in->residence != Residence::resident) return is_suspended(*in);
  if (caller.standing == Standing::capturing) in->arena.pin();
  return {};
}

void Arenas::refresh(ArenaEntry& entry) const {
  entry.arena.refresh([this](const time::Stamp& stamp)
                          VPMM_REQUIRES(pool_lock) { return timelines_.reduce(stamp); });
}

// Looks for newly complete blocks only after a first search failed.
DevicePtr Arenas::take(const pool::Request& request, const Caller& caller, Arena::Reach room) {
  ArenaEntry* const in = find(request.arena);
  // The lock was dropped since enter().
  if (in == nullptr || in->residence != Residence::resident) return {};
  const Arena::Wish wish{round_up(request.bytes, kGrain), std::max(request.alignment, kGrain),
                         key_of(caller)};
  std::optional<AddressRange> part = in->arena.find(wish, room);
  if (!part) {
    refresh(*in);
    part = in->arena.find(wish, room);
  }
  return part ? begin(*in, *part, request.bytes, caller) : DevicePtr{};
}

bool Arenas::waits_for_proof(const pool::Request& request, const Caller& caller) {
  const ArenaEntry* const in = find(request.arena);
  return in != nullptr && in->arena.has_pending_for(key_of(caller));
}

// Graphs still use free memory of a pinned arena: observers see its end at the next allocation of
// it.
DevicePtr Arenas::begin(ArenaEntry& entry, AddressRange part, Bytes requested,
                        const Caller& caller) {
  std::optional<time::TimelineId> timeline;
  if (caller.timeline != nullptr) timeline = caller.timeline->id;
  entry.arena.take(part, {requested, key_of(caller), timeline});
  count_reference(timeline, +1);
  if (entry.options.is_external) return part.begin;
  small_->ledger().block_begins(requested, part.size);
  if (entry.arena.is_pinned()) recorder_.observe_end(part, caller.stream);
  return part.begin;
}

pool::PageRequest Arenas::stretch_for(const pool::Request& request) const {
  const Bytes page = pool_->memory().page_size();
  pool::PageRequest stretch;
  stretch.size = round_up(request.bytes, page);
  stretch.requested = stretch.size;
  stretch.alignment = std::max(request.alignment, pool_->memory().page_alignment());
  const ArenaEntry* const in = find(request.arena);
  stretch.chunks = pool::Chunks::own;
  if (in != nullptr && in->options.is_exact) stretch.chunks = pool::Chunks::exact;
  if (in != nullptr && in->options.one_chunk) stretch.chunks = pool::Chunks::one;
  return stretch;
}

Result<void> Arenas::add(pool::ArenaId id, const pool::Placed& stretch, const Caller& caller) {
  region::Region* const region = pool_->memory().index.allocated_around(stretch.begin);
  ArenaEntry* const in = find(id);
  if (in == nullptr || in->residence != Residence::resident) {
    pool_->deallocate(region, {});  // the lock was dropped while the pool mapped
    return in == nullptr ? no_such_arena(id) : is_suspended(*in);
  }
  by_stretch_.emplace(region->range.begin, in);
  in->arena.add(region->range, key_of(caller));
  small_->ledger().stretch_begins(*region);
  recorder_.arena_changed(report::EventKind::arena_grow, region->range, id);
  return {};
}

Result<DevicePtr> Arenas::take_at(pool::ArenaId id, AddressRange part, const Caller& caller) {
  VPMM_TRY(enter(id, caller));
  ArenaEntry& in = *find(id);
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
  const ArenaEntry* const in = entry_around(p);
  const ArenaBlock* const block = in == nullptr ? nullptr : in->arena.block_around(p);
  return block != nullptr && block->is_live ? block : nullptr;
}

// Empty range: external memory, without observers.
std::optional<AddressRange> Arenas::range_of(DevicePtr begin) const {
  const ArenaBlock* const block = live_around(begin);
  if (block == nullptr) return std::nullopt;
  return entry_around(begin)->options.is_external ? AddressRange{} : block->range;
}

pool::ArenaId Arenas::arena_of(DevicePtr p) const {
  const ArenaEntry* const in = entry_around(p);
  return in == nullptr ? pool::ArenaId{} : in->id;
}

void Arenas::record_use(DevicePtr begin, time::Timeline& user) {
  if (entry_around(begin)->arena.record_use(begin, user.id)) ++user.references;
}

void Arenas::count_reference(std::optional<time::TimelineId> timeline, int change) {
  time::Timeline* const counted = timeline ? timelines_.find(*timeline) : nullptr;
  if (counted != nullptr)
    counted->references += static_cast<std::uint64_t>(static_cast<std::int64_t>(change));
}

// A free is in order if it names the only stream that used the block: that stream may have the
// block at once. In a capture the graph is the order, and stamps do not count.
bool Arenas::end(DevicePtr begin, const pool::Stream& stream, const Caller& caller) {
  const ArenaBlock* const block = live_around(begin);
  if (block == nullptr || block->range.begin != begin) return false;
  ArenaEntry& in = *entry_around(begin);
  const bool captures = caller.standing == Standing::capturing;
  const StreamKey key = key_of(caller);
  if (captures) in.arena.pin();
  const pool::Stamper::Uses uses{block->timeline, block->other_uses, block->range.size};
  const bool is_own = block->other_uses.empty() && (block->key == key || block->key == kEverybody);
  const bool is_in_order = is_own && (captures || uses.are_of(caller));
  const bool is_pools = !in.options.is_external;
  if (is_pools && !in.arena.is_pinned() && !in.has_left) {
    if (in.keeps_stretches())
      in.silent_frees.push_back(block->range);
    else
      recorder_.observe_end(block->range, is_in_order ? stream : std::nullopt);
  }
  time::Stamp stamp;
  if (!captures || !is_in_order) stamp = timelines_.reduce(stamper_.stamp_of(uses, caller));
  count_reference(block->timeline, -1);
  for (const time::TimelineId other : block->other_uses) count_reference(other, -1);
  if (block->stretch->is_suspended)
    small_->ledger().block_wakes(block->requested, block->range.size);
  if (is_pools) small_->ledger().block_ends(block->requested, block->range.size);
  in.arena.end(begin, {is_in_order ? key : block->key, stamp, !is_in_order});
  return true;
}

void Arenas::ended(DevicePtr p) {
  ArenaEntry* const in = entry_around(p);
  if (in == nullptr) return;
  const bool keeps_addresses = in->residence != Residence::suspended || in->arena.is_pinned();
  if (!in->is_released && keeps_addresses) return;
  give_back_idle(*in);
  drop_if_over(*in);
}

Result<Vector<DevicePtr>> Arenas::live_in(pool::ArenaId id) const {
  VPMM_TRY_ASSIGN(const ArenaEntry* const in, entry(id));
  Vector<DevicePtr> live;
  live.reserve(in->arena.live());
  in->arena.for_each_live([&](const ArenaBlock& block) { live.push_back(block.range.begin); });
  return live;
}

// --- giving back

Result<void> Arenas::pin(pool::ArenaId id) {
  VPMM_TRY_ASSIGN(ArenaEntry* const in, entry(id));
  in->arena.pin();
  return {};
}

Result<Bytes> Arenas::trim(pool::ArenaId id) {
  VPMM_TRY_ASSIGN(ArenaEntry* const in, entry(id));
  return in->arena.is_pinned() || in->options.is_external ? Bytes{0} : give_back_idle(*in);
}

Result<void> Arenas::release(pool::ArenaId id) {
  VPMM_TRY_ASSIGN(ArenaEntry* const in, entry(id));
  in->is_released = true;
  give_back_idle(*in);
  drop_if_over(*in);
  return {};
}

void Arenas::drop_if_over(ArenaEntry& entry) {
  if (entry.is_released && entry.arena.held_bytes() == 0 && !entry.keeps_stretches())
    by_id_.erase(static_cast<std::uint64_t>(entry.id));
}

Bytes Arenas::give_back_idle() {
  Bytes bytes = 0;
  for (const auto& [id, each] : by_id_)
    if (!each->arena.is_pinned() && !each->options.is_external) bytes += give_back_idle(*each);
  return bytes;
}

Bytes Arenas::give_back_idle(ArenaEntry& entry) {
  Bytes bytes = 0;
  if (entry.keeps_stretches()) return bytes;
  for (const Stretch* idle = entry.arena.idle_stretch(); idle != nullptr;
       idle = entry.arena.idle_stretch()) {
    if (!idle->is_suspended) bytes += idle->range.size;
    give_back(entry, *idle);
  }
  return bytes;
}

// A stretch of a pinned arena gets the stamp of all work queued so far.
void Arenas::give_back(ArenaEntry& entry, const Stretch& idle) {
  if (entry.options.is_external) return drop_external(entry, idle);
  const AddressRange range = idle.range;
  const bool is_suspended = idle.is_suspended;
  std::optional<time::Stamp> stamp;
  if (!entry.arena.is_pinned()) stamp = entry.arena.stamp_of(idle);
  if (entry.arena.is_pinned() && !entry.has_left) recorder_.observe_end(range, std::nullopt);
  if (!stamp && !is_suspended) stamp = stamper_.stamp_of_all(range.size);
  region::Region* const region = pool_->memory().index.allocated_around(range.begin);
  recorder_.arena_changed(report::EventKind::arena_shrink, range, entry.id);
  small_->ledger().stretch_ends(*region);
  by_stretch_.erase(range.begin);
  entry.arena.remove(idle);
  if (is_suspended)
    pool_->suspender().drop(region);
  else
    pool_->deallocate(region, *stamp);
}

// --- figures

std::uint64_t Arenas::live() const {
  std::uint64_t live = 0;
  for (const auto& [id, each] : by_id_) live += each->arena.live();
  return live;
}

Bytes Arenas::free_bytes() const {
  Bytes bytes = 0;
  for (const auto& [id, each] : by_id_)
    if (!each->options.is_external)
      bytes +=
          each->arena.held_bytes() - each->arena.allocated_bytes() - free_in_suspended(each->arena);
  return bytes;
}

Bytes Arenas::pending_bytes() const {
  const auto reduce = [this](const time::Stamp& stamp)
                          VPMM_REQUIRES(pool_lock) { return timelines_.reduce(stamp); };
  Bytes bytes = 0;
  for (const auto& [id, each] : by_id_)
    if (!each->options.is_external && each->residence == Residence::resident)
      bytes += each->arena.pending_bytes(reduce);
  return bytes;
}

bool Arenas::is_idle(DevicePtr stretch) const {
  const ArenaEntry* const in = entry_around(stretch);
  return in != nullptr && !in->arena.is_pinned() && !in->options.is_external &&
         in->residence == Residence::resident && in->arena.stretch_around(stretch)->live == 0;
}

std::vector<report::ArenaHolding> Arenas::holdings() const {
  std::vector<report::ArenaHolding> holdings;
  for (const auto& [id, each] : by_id_) {
    const Arena& arena = each->arena;
    const bool holds = arena.held_bytes() != 0 && each->residence != Residence::suspended;
    if (!holds || each->options.is_external) continue;
    holdings.push_back({id, each->options.tag, arena.is_pinned(), each->is_released,
                        arena.held_bytes(), arena.allocated_bytes()});
  }
  return holdings;
}

void Arenas::for_each_block_around(DevicePtr p,
                                   FunctionRef<void(const ArenaBlock&, bool)> visit) const {
  const ArenaEntry* const in = entry_around(p);
  if (in == nullptr) return;
  in->arena.for_each_block_in(in->arena.stretch_around(p)->range, [&](const ArenaBlock& block) {
    visit(block, in->arena.is_pinned());
  });
}

std::string Arenas::validate(const ArenaEntry& entry) const {
  const auto id = static_cast<std::uint64_t>(entry.id);
  std::string broken = entry.arena.validate();
  if (!broken.empty()) return message_of("arena {}: {}", id, broken);
  entry.arena.for_each_stretch([&](const Stretch& stretch) VPMM_REQUIRES(pool_lock) {
    const auto filed = by_stretch_.find(stretch.range.begin);
    const region::Region* const region =
        pool_->memory().index.allocated_around(stretch.range.begin);
    const bool is_ours =
        entry.options.is_external
            ? region == nullptr
            : region != nullptr && region->range == stretch.range && region->holder == nullptr &&
                  (region->is_suspended == stretch.is_suspended || entry.keeps_stretches());
    if (!is_ours || filed == by_stretch_.end() || filed->second != &entry)
      broken = message_of("arena {}: the pool does not have its stretch at {:#x}", id,
                          to_integer(stretch.range.begin));
  });
  if (entry.is_released && !entry.keeps_stretches() && entry.arena.idle_stretch() != nullptr)
    return message_of("arena {} is released and keeps an idle stretch", id);
  return broken;
}

std::string Arenas::validate() const {
  std::size_t stretches = 0;
  for (const auto& [id, each] : by_id_) {
    if (std::string broken = validate(*each); !broken.empty()) return broken;
    stretches += each->arena.stretches();
  }
  if (stretches == by_stretch_.size()) return {};
  return message_of("{} stretches of arenas, {} filed", stretches, by_stretch_.size());
}

}  // namespace vpmm::arena
