// SPDX-License-Identifier: Apache-2.0
// arena: changes of arenas between resident and suspended.
#include "arena/residency.hpp"

#include "base/message.hpp"

namespace vpmm::arena {

Vector<pool::ArenaId> Residency::with_tag(std::uint32_t tag) const {
  Vector<pool::ArenaId> found;
  for (const auto& [id, each] : table_.by_id)
    if (!each->options.is_external && each->options.tag == tag) found.push_back(each->id);
  return found;
}

Result<void> Residency::may_change(pool::ArenaId id) const {
  VPMM_TRY_ASSIGN(const ArenaEntry* const in, table_.entry(id));
  if (!in->options.is_external) return {};
  return Error{ErrorCode::unsupported,
               message_of("arena {} has memory of its caller, which cannot be suspended",
                          static_cast<std::uint64_t>(id))};
}

void Residency::prepare_change(pool::ArenaId id) {
  ArenaEntry& in = *table_.find(id);
  in.silent_frees.reserve(in.arena.live());
}

void Residency::end_change(pool::ArenaId id, Residence outcome, Bytes bytes) {
  ArenaEntry& in = *table_.find(id);
  note_suspended(id);
  observe_silent_frees(in);
  const bool is_resident = outcome == Residence::resident && regions_of(id, true).empty();
  const bool was_resident = in.residence == Residence::suspending;
  if (was_resident == (outcome == Residence::suspended))
    table_.recorder.arena_resides(
        was_resident ? report::EventKind::suspend : report::EventKind::resume, bytes,
        in.options.tag, id);
  in.residence = is_resident ? Residence::resident : Residence::suspended;
  table_.settle(in);
}

void Residency::observe_leave(pool::ArenaId id) {
  ArenaEntry& in = *table_.find(id);
  observe_silent_frees(in);
  in.for_each_used([&](AddressRange range) { table_.recorder.observe_end(range, std::nullopt); });
  in.has_left = true;
}

void Residency::observe_return(pool::ArenaId id) {
  ArenaEntry& in = *table_.find(id);
  in.for_each_used([&](AddressRange range) { table_.recorder.observe_begin(range, std::nullopt); });
  in.has_left = false;
}

// The call is done with them.
void Residency::observe_silent_frees(ArenaEntry& entry) {
  for (const AddressRange range : entry.silent_frees)
    table_.recorder.observe_end(range, std::nullopt);
  entry.silent_frees.clear();
}

void Residency::note_suspended(pool::ArenaId id) {
  ArenaEntry& in = *table_.find(id);
  Vector<const Stretch*> changed;
  in.arena.for_each_stretch([&](const Stretch& stretch) VPMM_REQUIRES(pool_lock) {
    const region::Region* const region = table_.region_of(stretch);
    if (region->is_suspended != stretch.is_suspended) changed.push_back(&stretch);
  });
  for (const Stretch* const stretch : changed) {
    const bool sleeps = !stretch->is_suspended;
    in.arena.for_each_block_in(
        stretch->range, [&](const ArenaBlock& block) VPMM_REQUIRES(pool_lock) {
          if (!block.is_live) return;
          if (sleeps)
            table_.small->ledger().block_sleeps(block.requested, block.range.size);
          else
            table_.small->ledger().block_wakes(block.requested, block.range.size);
        });
    in.arena.set_suspended(stretch->range.begin, sleeps);
  }
}

Vector<region::Region*> Residency::regions_of(pool::ArenaId id, bool are_suspended) const {
  Vector<region::Region*> regions;
  table_.find(id)->arena.for_each_stretch([&](const Stretch& stretch) VPMM_REQUIRES(pool_lock) {
    region::Region* const region = table_.region_of(stretch);
    if (region->is_suspended == are_suspended) regions.push_back(region);
  });
  return regions;
}

bool Residency::is_quiet(pool::ArenaId id) const {
  const Arena& arena = table_.find(id)->arena;
  bool is_quiet = !arena.is_pinned();
  arena.for_each_stretch([&](const Stretch& stretch) VPMM_REQUIRES(pool_lock) {
    is_quiet = is_quiet && table_.is_complete(arena, stretch);
  });
  return is_quiet;
}

}  // namespace vpmm::arena
