// pool: chunks of which different parts are in use at different addresses.
#include <algorithm>

#include "base/check.hpp"
#include "base/host_memory.hpp"
#include "base/message.hpp"
#include "pool/pool.hpp"

namespace vpmm::pool {

using region::Region;
using region::RegionState;

// Note [A chunk may be in two mappings]
// Of a chunk one of whose ends was taken (Note [Ends of chunks in use]) every byte belongs to one of its mappings; in
// the others the addresses of that byte are a shadow. A shadow lies inside one mapping, which cannot be unmapped in
// parts. Where nothing but shadows is left of a mapping it becomes a zombie, with all their stamps. When all parts of a
// chunk are free they come together in one mapping, without a driver call, so that the chunk can move, or be given
// back, again. A free needs to know nothing of this: it is looked for when a request finds no memory, and at a trim.

// A mapping of which some is a shadow.
struct PartialMapping {
  vm::Mapping mapping;
  Region* near = nullptr;  // a shadow in it
};

namespace {

// The regions of a mapping, by address. `near` is one of them.
Vector<Region*> regions_of(const vm::Mapping& mapping, Region* near) {
  while (near->range.begin > mapping.at) near = near->previous;
  Vector<Region*> regions;
  for (; near != nullptr && near->range.begin < mapping.range().end(); near = near->next) regions.push_back(near);
  return regions;
}

bool is_shadow(const Region* region) { return region->state == RegionState::shadow; }
bool is_free_or_shadow(const Region* region) { return region->state == RegionState::free || is_shadow(region); }

// Where the chunk of `mappings`, all of whose parts are free, comes together: beside the most free memory. Null: some
// part is in use.
const PartialMapping* home_of(const Vector<PartialMapping>& mappings) {
  const PartialMapping* home = nullptr;
  Bytes most = 0;
  Bytes free = 0;
  for (const PartialMapping& partial : mappings) {
    const Vector<Region*> regions = regions_of(partial.mapping, partial.near);
    if (!std::all_of(regions.begin(), regions.end(), is_free_or_shadow)) return nullptr;
    for (const Region* region : regions) {
      if (is_shadow(region)) continue;
      free += overlap(region->range, partial.mapping.range()).size;
      if (region->range.size <= most) continue;
      most = region->range.size;
      home = &partial;
    }
  }
  return free == mappings.front().mapping.chunk->size ? home : nullptr;
}

}  // namespace

// `taken`, in flight, is a part of `mapping` whose memory is in use elsewhere from now on.
void Pool::leave_shadow(Region* taken, const vm::Mapping& mapping) {
  retire({mapping, index_.attach_shadow(taken, timelines_.reduce(taken->stamp))});
}

// True: the mapping is nothing but shadows, and a zombie now. A stamp has two parts at most, so shadows that wait for
// more timelines stay until some of them are done; whoever reunites asks again.
bool Pool::retire(const PartialMapping& partial) {
  const Vector<Region*> shadows = regions_of(partial.mapping, partial.near);
  if (!std::all_of(shadows.begin(), shadows.end(), is_shadow)) return false;
  Vector<time::StampPart> parts;
  for (const Region* shadow : shadows) Planner::add_waits(shadow->stamp, std::nullopt, parts);
  if (parts.size() > 2) return false;
  Region* zombie = nullptr;
  for (Region* shadow : shadows) {
    Region* const flying = index_.detach(shadow, shadow->range);
    zombie = zombie == nullptr ? flying : index_.join_in_flight(zombie, flying);
  }
  VPMM_CHECK(zombie->range == partial.mapping.range(), index_.picture());
  time::Stamp stamp;
  for (const time::StampPart& part : parts) {
    stamp = stamp.is_complete() ? time::Stamp(part) : time::Stamp(stamp.parts().front(), part);
    time::Timeline* const timeline = timelines_.find(part.timeline);
    if (timeline != nullptr && timeline->provable < part.sequence) timeline->wanted = true;  // else it stays for ever
  }
  index_.attach_zombie(zombie, stamp);
  return true;
}

// All parts of a chunk, which are free, go to the mapping `home`.
void Pool::bring_home(const Vector<PartialMapping>& mappings, const PartialMapping& home) {
  struct Part {
    Region* taken = nullptr;
    const vm::Mapping& from;
  };
  // All are taken before any is put back, where it becomes one with its neighbours.
  Vector<Part> parts;
  for (const PartialMapping& partial : mappings) {
    if (&partial == &home) continue;
    for (Region* region : regions_of(partial.mapping, partial.near))
      if (!is_shadow(region))
        parts.push_back({index_.detach(region, overlap(region->range, partial.mapping.range())), partial.mapping});
  }
  Region* near = home.near;
  for (const Part& part : parts) {
    const DevicePtr begin = home.mapping.at + (part.taken->range.begin - part.from.at);
    for (DevicePtr at = begin; at < begin + part.taken->range.size;) {
      const Vector<Region*> regions = regions_of(home.mapping, near);
      Region* const shadow = *std::find_if(regions.begin(), regions.end(),
                                           [&](const Region* region) { return region->range.contains(at); });
      const AddressRange piece = overlap(shadow->range, {begin, part.taken->range.size});
      near = index_.attach_free(index_.detach(shadow, piece), timelines_.reduce(part.taken->stamp), part.taken->age);
      at = piece.end();
    }
  }
  for (const Part& part : parts) leave_shadow(part.taken, part.from);
}

// True: some chunk whose parts are free came together. By address, so that the same calls give the same plans.
bool Pool::reunite() {
  Map<DevicePtr, PartialMapping> by_address;
  index_.for_each_shadow([&](Region* shadow) {
    chunks_.for_each_around({shadow->range.begin, 1}, [&](const vm::Mapping& mapping) {
      by_address.try_emplace(mapping.at, PartialMapping{mapping, shadow});
    });
    return true;
  });
  Vector<Vector<PartialMapping>> chunks;
  Map<const vm::Chunk*, std::size_t> number_of;
  for (const auto& [at, partial] : by_address) {
    if (retire(partial)) continue;
    const auto [number, is_new] = number_of.try_emplace(partial.mapping.chunk, chunks.size());
    if (is_new) chunks.emplace_back();
    chunks[number->second].push_back(partial);
  }
  bool any = false;
  for (const Vector<PartialMapping>& mappings : chunks) {
    const PartialMapping* const home = home_of(mappings);
    if (home == nullptr) continue;
    bring_home(mappings, *home);
    any = true;
  }
  return any;
}

// Requires: nothing is in flight.
std::string Pool::validate_shadows() const {
  std::string broken;
  Map<const vm::Chunk*, Bytes> owned;
  index_.for_each([&](const Region& region) {
    if (region.state == RegionState::hole || region.state == RegionState::zombie) return;
    bool is_inside = false;
    chunks_.for_each_around(region.range, [&](const vm::Mapping& mapping) {
      is_inside = mapping.range().contains(region.range) && mapping.chunk->size > region.range.size;
      Bytes& bytes = owned[mapping.chunk];
      if (!is_shadow(&region)) bytes += overlap(region.range, mapping.range()).size;
    });
    if (is_shadow(&region) && !is_inside) broken = "a shadow is not a part of one mapping";
  });
  for (const auto& [chunk, bytes] : owned)
    if (bytes != chunk->size) broken = message_of("of a chunk of {} bytes {} belong to somebody", chunk->size, bytes);
  return broken;
}

}  // namespace vpmm::pool
