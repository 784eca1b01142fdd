// SPDX-License-Identifier: Apache-2.0
// arena: memory of callers, from and to them.
#include "arena/external_arenas.hpp"

#include "base/address.hpp"
#include "base/message.hpp"
#include "base/quantity.hpp"

namespace vpmm::arena {

bool ExternalArenas::has(pool::ArenaId id) const {
  const ArenaEntry* const in = table_.open(id);
  return in != nullptr && in->options.is_external;
}

Result<ArenaEntry*> ExternalArenas::entry(pool::ArenaId id) const {
  VPMM_TRY_ASSIGN(ArenaEntry* const in, table_.entry(id));
  if (in->options.is_external) return in;
  return Error{ErrorCode::invalid_argument, message_of("arena {} takes its memory from the pool",
                                                       static_cast<std::uint64_t>(id))};
}

// Reason against dividing `memory`; empty: none.
std::string_view ExternalArenas::objection_to(AddressRange memory,
                                              FunctionRef<bool(AddressRange)> is_owned) const {
  if (is_null(memory.begin) || memory.empty()) return "this is no memory";
  if (!is_multiple(memory.size, kGrain) || !is_multiple(to_integer(memory.begin), kGrain))
    return "not whole multiples of 512 bytes";
  if (memory.size > pool::kAddressSpace || memory.end() < memory.begin)
    return "more than any address space";
  const auto next = table_.by_stretch.lower_bound(memory.begin);
  if (is_owned(memory)) return "part of it is this pool's";
  if ((next != table_.by_stretch.end() && next->first < memory.end()) ||
      table_.around(memory.begin) != nullptr)
    return "part of it is an arena's already";
  return {};
}

Result<void> ExternalArenas::add(pool::ArenaId id, AddressRange memory,
                                 FunctionRef<bool(AddressRange)> is_owned) {
  VPMM_TRY_ASSIGN(ArenaEntry* const in, entry(id));
  if (const std::string_view objection = objection_to(memory, is_owned); !objection.empty())
    return Error{ErrorCode::invalid_argument, message_of("{} bytes at {:#x}: {}", memory.size,
                                                         to_integer(memory.begin), objection)};
  table_.add(*in, memory, kEverybody);
  table_.recorder.arena_changed(report::EventKind::arena_grow, memory, id);
  return {};
}

Result<bool> ExternalArenas::has_idle(pool::ArenaId id) const {
  VPMM_TRY_ASSIGN(const ArenaEntry* const in, entry(id));
  return !in->arena.is_pinned() && in->arena.idle_stretch() != nullptr;
}

Result<AddressRange> ExternalArenas::take(pool::ArenaId id) {
  VPMM_TRY_ASSIGN(ArenaEntry* const in, entry(id));
  if (in->arena.is_pinned()) return AddressRange{};
  const Stretch* found = nullptr;
  in->arena.for_each_stretch([&](const Stretch& stretch) VPMM_REQUIRES(pool_lock) {
    if (found == nullptr && stretch.live == 0 && table_.is_complete(in->arena, stretch))
      found = &stretch;
  });
  if (found == nullptr) return AddressRange{};
  const AddressRange memory = found->range;
  table_.give_back(*in, *found);
  return memory;
}

void ExternalArenas::for_each_stretch(FunctionRef<void(DevicePtr)> visit) const {
  for (const auto& [begin, entry] : table_.by_stretch)
    if (entry->options.is_external) visit(begin);
}

Error ExternalArenas::no_room_for(const pool::Request& request) const {
  const Arena& arena = table_.find(request.arena)->arena;
  return {
      ErrorCode::out_of_memory,
      message_of("arena {} has no room for {} in the {} that it was given, of which live {}",
                 static_cast<std::uint64_t>(request.arena), readable_and_exact_bytes(request.bytes),
                 readable_bytes(arena.held_bytes()), readable_bytes(arena.allocated_bytes()))};
}

}  // namespace vpmm::arena
