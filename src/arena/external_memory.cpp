// SPDX-License-Identifier: Apache-2.0
// arena: external arenas, which divide memory of callers.
#include <algorithm>

#include "arena/arenas.hpp"
#include "base/address.hpp"
#include "base/message.hpp"
#include "base/quantity.hpp"

namespace vpmm::arena {

bool Arenas::is_external(pool::ArenaId id) const {
  const ArenaEntry* const in = find(id);
  return in != nullptr && in->options.is_external;
}

Result<Arenas::ArenaEntry*> Arenas::external_entry(pool::ArenaId id) const {
  VPMM_TRY_ASSIGN(ArenaEntry* const in, entry(id));
  if (in->options.is_external) return in;
  return Error{ErrorCode::invalid_argument, message_of("arena {} takes its memory from the pool",
                                                       static_cast<std::uint64_t>(id))};
}

// Reason against dividing `memory`; empty: none.
std::string_view Arenas::objection_to(AddressRange memory,
                                      FunctionRef<bool(AddressRange)> is_owned) const {
  if (is_null(memory.begin) || memory.empty()) return "this is no memory";
  if (!is_multiple(memory.size, kGrain) || !is_multiple(to_integer(memory.begin), kGrain))
    return "not whole multiples of 512 bytes";
  if (memory.size > pool::kAddressSpace || memory.end() < memory.begin)
    return "more than any address space";
  const auto next = by_stretch_.lower_bound(memory.begin);
  if (is_owned(memory)) return "part of it is this pool's";
  if ((next != by_stretch_.end() && next->first < memory.end()) || has(memory.begin))
    return "part of it is an arena's already";
  return {};
}

Result<void> Arenas::add_external(pool::ArenaId id, AddressRange memory,
                                  FunctionRef<bool(AddressRange)> is_owned) {
  VPMM_TRY_ASSIGN(ArenaEntry* const in, external_entry(id));
  if (const std::string_view objection = objection_to(memory, is_owned); !objection.empty())
    return Error{ErrorCode::invalid_argument, message_of("{} bytes at {:#x}: {}", memory.size,
                                                         to_integer(memory.begin), objection)};
  by_stretch_.emplace(memory.begin, in);
  in->arena.add(memory, kEverybody);
  recorder_.arena_changed(report::EventKind::arena_grow, memory, id);
  return {};
}

Result<bool> Arenas::has_idle_external(pool::ArenaId id) const {
  VPMM_TRY_ASSIGN(const ArenaEntry* const in, external_entry(id));
  return !in->arena.is_pinned() && in->arena.idle_stretch() != nullptr;
}

bool Arenas::is_complete(const Arena& arena, const Stretch& idle) const {
  bool complete = true;
  arena.for_each_block_in(idle.range, [&](const ArenaBlock& block) VPMM_REQUIRES(pool_lock) {
    complete = complete && timelines_.reduce(block.stamp).is_complete();
  });
  return complete;
}

Result<AddressRange> Arenas::take_external(pool::ArenaId id) {
  VPMM_TRY_ASSIGN(ArenaEntry* const in, external_entry(id));
  if (in->arena.is_pinned()) return AddressRange{};
  const Stretch* found = nullptr;
  in->arena.for_each_stretch([&](const Stretch& stretch) VPMM_REQUIRES(pool_lock) {
    if (found == nullptr && stretch.live == 0 && is_complete(in->arena, stretch)) found = &stretch;
  });
  if (found == nullptr) return AddressRange{};
  const AddressRange memory = found->range;
  drop_external(*in, *found);
  return memory;
}

void Arenas::drop_external(ArenaEntry& entry, const Stretch& idle) {
  const AddressRange memory = idle.range;
  by_stretch_.erase(memory.begin);
  entry.arena.remove(idle);
  recorder_.arena_changed(report::EventKind::arena_shrink, memory, entry.id);
}

void Arenas::for_each_external(FunctionRef<void(DevicePtr)> visit) const {
  for (const auto& [begin, entry] : by_stretch_)
    if (entry->options.is_external) visit(begin);
}

Error Arenas::no_room_for(const pool::Request& request) const {
  const Arena& arena = find(request.arena)->arena;
  return {
      ErrorCode::out_of_memory,
      message_of("arena {} has no room for {} in the {} that it was given, of which live {}",
                 static_cast<std::uint64_t>(request.arena), readable_and_exact_bytes(request.bytes),
                 readable_bytes(arena.held_bytes()), readable_bytes(arena.allocated_bytes()))};
}

}  // namespace vpmm::arena
