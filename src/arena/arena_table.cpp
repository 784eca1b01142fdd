// SPDX-License-Identifier: Apache-2.0
// arena: lookup of arenas, and the way of their stretches from and to the pool.
#include "arena/arena_table.hpp"

#include <string_view>

#include "base/host_memory.hpp"
#include "base/message.hpp"
#include "report/tags.hpp"

namespace vpmm::arena {

namespace {

// Two divisions: a region, a stretch, a block and two entries of maps each.
constexpr std::size_t kHostBytesPerPart = 4096;

}  // namespace

// --- an arena

void ArenaEntry::for_each_used(FunctionRef<void(AddressRange)> visit) const {
  arena.for_each_stretch([&](const Stretch& stretch) {
    if (arena.is_pinned()) return visit(stretch.range);
    arena.for_each_block_in(stretch.range, [&](const ArenaBlock& block) {
      if (block.is_live) visit(block.range);
    });
  });
}

Vector<AddressRange> ArenaEntry::live_ranges() const {
  Vector<AddressRange> ranges;
  ranges.reserve(arena.live());
  arena.for_each_live([&](const ArenaBlock& block) { ranges.push_back(block.range); });
  return ranges;
}

ArenaEntry::Amounts ArenaEntry::amounts() const {
  Amounts amounts;
  amounts.held = arena.held_bytes();
  arena.for_each_stretch([&](const Stretch& stretch) {
    if (stretch.is_suspended) amounts.suspended += stretch.range.size;
  });
  return amounts;
}

Bytes ArenaEntry::free_in_suspended() const {
  Bytes bytes = 0;
  arena.for_each_stretch([&](const Stretch& stretch) {
    if (!stretch.is_suspended) return;
    arena.for_each_block_in(stretch.range, [&](const ArenaBlock& block) {
      if (!block.is_live) bytes += block.range.size;
    });
  });
  return bytes;
}

// --- looking

ArenaEntry* ArenaTable::find(pool::ArenaId id) const {
  const auto found = by_id.find(id);
  return found == by_id.end() ? nullptr : found->second.get();
}

ArenaEntry* ArenaTable::open(pool::ArenaId id) const {
  ArenaEntry* const found = find(id);
  return found == nullptr || found->is_released ? nullptr : found;
}

Result<ArenaEntry*> ArenaTable::entry(pool::ArenaId id) const {
  if (ArenaEntry* const found = open(id)) return found;
  return Error{ErrorCode::invalid_argument, message_of("there is no arena {}, or it was released",
                                                       static_cast<std::uint64_t>(id))};
}

Result<ArenaEntry*> ArenaTable::resident(pool::ArenaId id) const {
  VPMM_TRY_ASSIGN(ArenaEntry* const in, entry(id));
  if (in->residence == Residence::resident) return in;
  const std::string_view name = report::tag_name(in->options.tag);
  return Error{ErrorCode::suspended,
               message_of("arena {}{}{}{} {}", static_cast<std::uint64_t>(id),
                          name.empty() ? "" : " of the tag \"", name, name.empty() ? "" : "\"",
                          in->keeps_stretches() ? "is being suspended or resumed by another thread"
                                                : "is suspended: resume it first")};
}

ArenaEntry* ArenaTable::around(DevicePtr p) const {
  const auto after = by_stretch.upper_bound(p);
  if (after == by_stretch.begin()) return nullptr;
  ArenaEntry* const before = std::prev(after)->second;
  return before->arena.stretch_around(p) == nullptr ? nullptr : before;
}

bool ArenaTable::is_complete(const Arena& arena, const Stretch& idle) const {
  bool complete = true;
  arena.for_each_block_in(idle.range, [&](const ArenaBlock& block) VPMM_REQUIRES(pool_lock) {
    complete = complete && timelines.reduce(block.stamp).is_complete();
  });
  return complete;
}

// --- stretches

void ArenaTable::add(ArenaEntry& entry, AddressRange stretch, StreamKey key) {
  by_stretch.emplace(stretch.begin, &entry);
  entry.arena.add(stretch, key);
}

// A stretch of a pinned arena gets the stamp of all work queued so far.
void ArenaTable::give_back(ArenaEntry& entry, const Stretch& idle) {
  const AddressRange range = idle.range;
  const bool is_suspended = idle.is_suspended;
  const bool is_pinned = entry.arena.is_pinned();
  region::Region* const region = region_of(idle);  // null: memory of a caller
  std::optional<time::Stamp> stamp;
  if (region != nullptr) {
    if (!is_pinned) stamp = entry.arena.stamp_of(idle);
    if (is_pinned && !entry.has_left) recorder.observe_end(range, std::nullopt);
    if (!stamp && !is_suspended) stamp = stamper.stamp_of_all(range.size);
  }
  recorder.arena_changed(report::EventKind::arena_shrink, range, entry.id);
  by_stretch.erase(range.begin);
  entry.arena.remove(idle);
  if (region == nullptr) return;
  small->ledger().stretch_ends(*region);
  if (is_suspended)
    pool->suspender().drop(region);
  else
    pool->deallocate(region, *stamp);
}

void ArenaTable::divide(ArenaEntry& entry, DevicePtr at) {
  pool->divide(region_of(*entry.arena.stretch_around(at)), at);
  small->ledger().stretch_is_divided();
  entry.arena.divide(at);
  by_stretch.emplace(at, &entry);
}

// Note [Stretches are divided at chunks]
// Free blocks of a stretch with a live block may cover whole chunks. Those become a stretch of
// their own and go back like any other. A division needs host memory; without it the chunks stay.
void ArenaTable::part_idle_chunks(ArenaEntry& entry) {
  const vm::ChunkTable& chunks = pool->memory().chunks;
  AddressRange run = entry.arena.free_run(DevicePtr{});
  for (; !run.empty(); run = entry.arena.free_run(run.end())) {
    const DevicePtr begin = chunks.first_border(run.begin);
    const DevicePtr end = chunks.last_border(run.end());
    if (begin >= end) continue;
    const HostPromise promise(kHostBytesPerPart);
    if (!promise.is_kept()) return;
    const AddressRange stretch = entry.arena.stretch_around(begin)->range;
    if (stretch.begin < begin) divide(entry, begin);
    if (end < stretch.end()) divide(entry, end);
  }
}

AddressRange ArenaTable::part_rest(ArenaEntry& entry, AddressRange idle, Bytes wanted) {
  const DevicePtr end = pool->memory().chunks.first_border(idle.begin + wanted);
  if (end >= idle.end()) return idle;
  const HostPromise promise(kHostBytesPerPart);
  if (!promise.is_kept()) return idle;
  divide(entry, end);
  return {idle.begin, end - idle.begin};
}

Bytes ArenaTable::give_back_idle(ArenaEntry& entry, Idle what) {
  Bytes bytes = 0;
  if (entry.keeps_stretches()) return bytes;
  if (what == Idle::chunks) part_idle_chunks(entry);
  DevicePtr begin{};
  while (const Stretch* const idle = entry.arena.idle_stretch(begin)) {
    begin = idle->range.begin;
    if (!idle->is_suspended) bytes += idle->range.size;
    give_back(entry, *idle);
  }
  return bytes;
}

void ArenaTable::settle(ArenaEntry& entry) {
  const bool keeps_addresses = entry.residence != Residence::suspended || entry.arena.is_pinned();
  if (!entry.is_released && keeps_addresses) return;
  give_back_idle(entry, Idle::stretches);
  if (entry.is_released && entry.arena.held_bytes() == 0 && !entry.keeps_stretches())
    by_id.erase(entry.id);
}

std::string ArenaTable::validate(const ArenaEntry& entry) const {
  const auto id = static_cast<std::uint64_t>(entry.id);
  std::string broken = entry.arena.validate();
  if (!broken.empty()) return message_of("arena {}: {}", id, broken);
  entry.arena.for_each_stretch([&](const Stretch& stretch) VPMM_REQUIRES(pool_lock) {
    const auto filed = by_stretch.find(stretch.range.begin);
    const region::Region* const region = region_of(stretch);
    const bool is_ours =
        entry.options.is_external
            ? region == nullptr
            : region != nullptr && region->range == stretch.range && region->holder == nullptr &&
                  (region->is_suspended == stretch.is_suspended || entry.keeps_stretches());
    if (!is_ours || filed == by_stretch.end() || filed->second != &entry)
      broken = message_of("arena {}: the pool does not have its stretch at {:#x}", id,
                          to_integer(stretch.range.begin));
  });
  if (entry.is_released && !entry.keeps_stretches() &&
      (entry.arena.held_bytes() == 0 || entry.arena.idle_stretch() != nullptr))
    return message_of("arena {} is released, and idle", id);
  return broken;
}

std::string ArenaTable::validate() const {
  std::size_t stretches = 0;
  for (const auto& [id, each] : by_id) {
    if (std::string broken = validate(*each); !broken.empty()) return broken;
    stretches += each->arena.stretches();
  }
  if (stretches == by_stretch.size()) return {};
  return message_of("{} stretches of arenas, {} filed", stretches, by_stretch.size());
}

}  // namespace vpmm::arena
