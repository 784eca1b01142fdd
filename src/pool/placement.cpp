// pool: what a place pins, from the chunks at its two ends.
#include "pool/placement.hpp"

#include <algorithm>

#include "region/region_index.hpp"

namespace vpmm::pool {

using region::Region;

namespace {

// What a larger chunk takes to be given back, a millisecond and more, is too much for one request.
constexpr Bytes kLargestCut = 256 * kMiB;

// The last place in `free`; none below its begin.
DevicePtr last_start(const Region& free, Bytes size, Bytes alignment) {
  return DevicePtr{round_down(to_integer(free.range.end()) - size, alignment)};
}

}  // namespace

AddressRange overlap(const AddressRange& a, const AddressRange& b) {
  const DevicePtr begin = std::max(a.begin, b.begin);
  const DevicePtr end = std::min(a.end(), b.end());
  return {begin, begin < end ? end - begin : 0};
}

std::int64_t pinned_by(const vm::ChunkTable& chunks, const AddressRange& free, const AddressRange& part) {
  std::int64_t pinned = 0;
  DevicePtr counted{};
  const auto count = [&](const vm::Mapping& mapping) {
    if (mapping.at == counted) return;  // begins and ends in the same chunk
    counted = mapping.at;
    const auto used = static_cast<std::int64_t>(overlap(mapping.range(), part).size);
    const bool was_idle = overlap(mapping.range(), free).size == mapping.chunk->size;
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

std::optional<Cut> best_cut(const vm::ChunkTable& chunks, const AddressRange& free, const AddressRange& part,
                            Bytes page_size, Bytes least) {
  std::optional<Cut> best;
  Bytes most = std::max<Bytes>(least, 1);
  const auto consider = [&](const vm::Mapping& mapping) {
    const AddressRange chunk = mapping.range();
    if (!free.contains(chunk) || mapping.chunk->mappings > 1 || chunk.size > kLargestCut) return;
    const bool is_front_used = part.begin <= chunk.begin;
    if (is_front_used == (part.end() >= chunk.end())) return;
    const Bytes at =
        is_front_used ? round_up(part.end() - chunk.begin, page_size) : round_down(part.begin - chunk.begin, page_size);
    const Bytes rest = is_front_used ? chunk.size - at : at;
    if (rest < most) return;
    most = rest + 1;
    best = Cut{mapping, at};
  };
  chunks.for_each_around({part.begin, 1}, consider);
  chunks.for_each_around({part.end() - 1, 1}, consider);
  return best;
}

}  // namespace vpmm::pool
