// pool: what a place pins, from the chunks at its two ends.
#include "pool/placement.hpp"

#include <algorithm>

#include "region/region_index.hpp"

namespace vpmm::pool {

using region::Region;

namespace {

Bytes overlap(const AddressRange& a, const AddressRange& b) {
  const DevicePtr begin = std::max(a.begin, b.begin);
  const DevicePtr end = std::min(a.end(), b.end());
  return begin < end ? end - begin : 0;
}

// The last place in `free`; none below its begin.
DevicePtr last_start(const Region& free, Bytes size, Bytes alignment) {
  return DevicePtr{round_down(to_integer(free.range.end()) - size, alignment)};
}

}  // namespace

std::int64_t pinned_by(const vm::ChunkTable& chunks, const AddressRange& free, const AddressRange& part) {
  std::int64_t pinned = 0;
  DevicePtr counted{};
  const auto count = [&](const vm::Mapping& mapping) {
    if (mapping.at == counted) return;  // begins and ends in the same chunk
    counted = mapping.at;
    const auto used = static_cast<std::int64_t>(overlap(mapping.range(), part));
    const bool was_idle = overlap(mapping.range(), free) == mapping.chunk->size;
    pinned += was_idle ? static_cast<std::int64_t>(mapping.chunk->size) - used : -used;
  };
  chunks.for_each_around({part.begin, 1}, count);
  chunks.for_each_around({part.end() - 1, 1}, count);
  return pinned;
}

Place best_place(const vm::ChunkTable& chunks, Region* free, Bytes size, Bytes alignment, Placement where) {
  const DevicePtr first = *region::RegionIndex::aligned_start(*free, size, alignment);
  const DevicePtr last = last_start(*free, size, alignment);
  Place best{free, first, pinned_by(chunks, free->range, {first, size})};
  const auto consider = [&](DevicePtr begin) {
    if (begin < first || begin > last || !is_multiple(to_integer(begin), alignment)) return;
    const std::int64_t pinned = pinned_by(chunks, free->range, {begin, size});
    if (pinned < best.pinned || (pinned == best.pinned && begin < best.begin)) best = {free, begin, pinned};
  };
  consider(last);
  if (where != Placement::anywhere) return best;
  chunks.for_each_inside(free->range, [&](const vm::Mapping& mapping) {
    consider(mapping.at);
    if (to_integer(mapping.range().end()) > size) consider(mapping.range().end() - size);
    return true;
  });
  return best;
}

}  // namespace vpmm::pool
