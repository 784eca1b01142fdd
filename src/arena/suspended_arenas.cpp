// SPDX-License-Identifier: Apache-2.0
// arena: arenas with stretches that have no physical memory. Note [Suspended arenas]
#include <string_view>

#include "arena/arenas.hpp"
#include "base/message.hpp"
#include "report/tags.hpp"

namespace vpmm::arena {

Error Arenas::is_suspended(const ArenaEntry& entry) const {
  const std::string_view name = report::tag_name(entry.options.tag);
  return {ErrorCode::suspended,
          message_of("arena {}{}{}{} {}", static_cast<std::uint64_t>(entry.id),
                     name.empty() ? "" : " of the tag \"", name, name.empty() ? "" : "\"",
                     entry.keeps_stretches() ? "is being suspended or resumed by another thread"
                                             : "is suspended: resume it first")};
}

Vector<pool::ArenaId> Arenas::with_tag(std::uint32_t tag) const {
  Vector<pool::ArenaId> found;
  for (const auto& [id, each] : by_id_)
    if (!each->options.is_external && each->options.tag == tag) found.push_back(each->id);
  return found;
}

Result<void> Arenas::may_reside(pool::ArenaId id) const {
  VPMM_TRY_ASSIGN(const ArenaEntry* const in, entry(id));
  if (!in->options.is_external) return {};
  return Error{ErrorCode::unsupported,
               message_of("arena {} has memory of its caller, which cannot be suspended",
                          static_cast<std::uint64_t>(id))};
}

Arenas::Residence Arenas::residence_of(pool::ArenaId id) const {
  return by_id_.find(static_cast<std::uint64_t>(id))->second->residence;
}

std::uint32_t Arenas::tag_of(pool::ArenaId id) const {
  return by_id_.find(static_cast<std::uint64_t>(id))->second->options.tag;
}

void Arenas::prepare_change(pool::ArenaId id) {
  ArenaEntry& in = *by_id_.find(static_cast<std::uint64_t>(id))->second;
  in.silent_frees.reserve(in.arena.live());
}

void Arenas::begin_change(pool::ArenaId id, Residence change) {
  by_id_.find(static_cast<std::uint64_t>(id))->second->residence = change;
}

void Arenas::end_change(pool::ArenaId id, Residence outcome, Bytes bytes) {
  ArenaEntry& in = *by_id_.find(static_cast<std::uint64_t>(id))->second;
  note_suspended(id);
  observe_silent_frees(in);
  const bool is_resident = outcome == Residence::resident && regions_of(id, true).empty();
  const bool was_resident = in.residence == Residence::suspending;
  if (was_resident == (outcome == Residence::suspended))
    recorder_.arena_resides(was_resident ? report::EventKind::suspend : report::EventKind::resume,
                            bytes, in.options.tag, id);
  in.residence = is_resident ? Residence::resident : Residence::suspended;
  if (!in.is_released && (is_resident || in.arena.is_pinned())) return;
  give_back_idle(in);
  drop_if_over(in);
}

// All of a pinned stretch is in use: graphs use its free blocks, too.
void Arenas::for_each_used(pool::ArenaId id, FunctionRef<void(AddressRange)> visit) const {
  const Arena& arena = by_id_.find(static_cast<std::uint64_t>(id))->second->arena;
  arena.for_each_stretch([&](const Stretch& stretch) VPMM_REQUIRES(pool_lock) {
    if (arena.is_pinned()) return visit(stretch.range);
    arena.for_each_block_in(stretch.range, [&](const ArenaBlock& block) {
      if (block.is_live) visit(block.range);
    });
  });
}

void Arenas::observe_leave(pool::ArenaId id) {
  ArenaEntry& in = *by_id_.find(static_cast<std::uint64_t>(id))->second;
  observe_silent_frees(in);
  for_each_used(id, [&](AddressRange range) { recorder_.observe_end(range, std::nullopt); });
  in.has_left = true;
}

void Arenas::observe_return(pool::ArenaId id) {
  for_each_used(id, [&](AddressRange range) { recorder_.observe_begin(range, std::nullopt); });
  by_id_.find(static_cast<std::uint64_t>(id))->second->has_left = false;
}

// The call is done with them.
void Arenas::observe_silent_frees(ArenaEntry& entry) {
  for (const AddressRange range : entry.silent_frees) recorder_.observe_end(range, std::nullopt);
  entry.silent_frees.clear();
}

void Arenas::note_suspended(pool::ArenaId id) {
  ArenaEntry& in = *by_id_.find(static_cast<std::uint64_t>(id))->second;
  Vector<const Stretch*> changed;
  in.arena.for_each_stretch([&](const Stretch& stretch) VPMM_REQUIRES(pool_lock) {
    const region::Region* const region =
        pool_->memory().index.allocated_around(stretch.range.begin);
    if (region->is_suspended != stretch.is_suspended) changed.push_back(&stretch);
  });
  for (const Stretch* const stretch : changed) {
    const bool sleeps = !stretch->is_suspended;
    in.arena.for_each_block_in(stretch->range,
                               [&](const ArenaBlock& block) VPMM_REQUIRES(pool_lock) {
                                 if (!block.is_live) return;
                                 if (sleeps)
                                   small_->ledger().block_sleeps(block.requested, block.range.size);
                                 else
                                   small_->ledger().block_wakes(block.requested, block.range.size);
                               });
    in.arena.set_suspended(stretch->range.begin, sleeps);
  }
}

Vector<region::Region*> Arenas::regions_of(pool::ArenaId id, bool are_suspended) const {
  Vector<region::Region*> regions;
  by_id_.find(static_cast<std::uint64_t>(id))
      ->second->arena.for_each_stretch([&](const Stretch& stretch) VPMM_REQUIRES(pool_lock) {
        region::Region* const region = pool_->memory().index.allocated_around(stretch.range.begin);
        if (region->is_suspended == are_suspended) regions.push_back(region);
      });
  return regions;
}

bool Arenas::is_quiet(pool::ArenaId id) const {
  const Arena& arena = by_id_.find(static_cast<std::uint64_t>(id))->second->arena;
  bool is_quiet = !arena.is_pinned();
  arena.for_each_stretch([&](const Stretch& stretch) VPMM_REQUIRES(pool_lock) {
    is_quiet = is_quiet && is_complete(arena, stretch);
  });
  return is_quiet;
}

Vector<AddressRange> Arenas::live_ranges(pool::ArenaId id) const {
  const Arena& arena = by_id_.find(static_cast<std::uint64_t>(id))->second->arena;
  Vector<AddressRange> ranges;
  ranges.reserve(arena.live());
  arena.for_each_live([&](const ArenaBlock& block) { ranges.push_back(block.range); });
  return ranges;
}

pool::Chunks Arenas::chunks_of(pool::ArenaId id) const {
  return by_id_.find(static_cast<std::uint64_t>(id))->second->options.one_chunk
             ? pool::Chunks::one
             : pool::Chunks::exact;
}

Arenas::Amounts Arenas::amounts_of(pool::ArenaId id) const {
  const Arena& arena = by_id_.find(static_cast<std::uint64_t>(id))->second->arena;
  Amounts amounts;
  amounts.held = arena.held_bytes();
  arena.for_each_live([&](const ArenaBlock& block) { amounts.live += block.requested; });
  arena.for_each_stretch([&](const Stretch& stretch) {
    if (stretch.is_suspended) amounts.suspended += stretch.range.size;
  });
  return amounts;
}

bool Arenas::is_resident(DevicePtr p) const {
  const ArenaEntry* const in = entry_around(p);
  return in == nullptr || in->residence == Residence::resident;
}

// Most pools have no suspended arena.
Bytes Arenas::free_in_suspended(const Arena& arena) const {
  if (pool_->memory().suspended_bytes == 0) return 0;
  Bytes bytes = 0;
  arena.for_each_stretch([&](const Stretch& stretch) {
    if (!stretch.is_suspended) return;
    arena.for_each_block_in(stretch.range, [&](const ArenaBlock& block) {
      if (!block.is_live) bytes += block.range.size;
    });
  });
  return bytes;
}

}  // namespace vpmm::arena
