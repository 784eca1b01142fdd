// pool: what a place pins, from the chunks at its two ends.
#include "pool/placement.hpp"

#include <algorithm>
#include <iterator>

#include "base/host_memory.hpp"
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

namespace {

// What an allocation of `part` in the free range `free` pins of a chunk in which it begins or ends.
std::int64_t pinned_of(const vm::Mapping& mapping, const AddressRange& free, const AddressRange& part) {
  const auto used = static_cast<std::int64_t>(overlap(mapping.range(), part).size);
  return free.contains(mapping.range()) ? static_cast<std::int64_t>(mapping.chunk->size) - used : -used;
}

}  // namespace

std::int64_t pinned_by(const vm::ChunkTable& chunks, const AddressRange& free, const AddressRange& part) {
  std::int64_t pinned = 0;
  DevicePtr counted{};
  const auto count = [&](const vm::Mapping& mapping) {
    if (mapping.at == counted) return;  // begins and ends in the same chunk
    counted = mapping.at;
    pinned += pinned_of(mapping, free, part);
  };
  chunks.for_each_around({part.begin, 1}, count);
  chunks.for_each_around({part.end() - 1, 1}, count);
  return pinned;
}

Place best_place(const vm::ChunkTable& chunks, Region* free, Bytes size, Bytes alignment, Placement where) {
  const AddressRange& range = free->range;
  const DevicePtr first = *region::RegionIndex::aligned_start(*free, size, alignment);
  const DevicePtr last = last_start(*free, size, alignment);
  std::optional<Place> best;
  const auto note = [&](DevicePtr begin, std::int64_t pinned) {
    if (!best || pinned < best->pinned || (pinned == best->pinned && begin < best->begin))
      best = Place{free, begin, pinned};
  };
  if (where != Placement::anywhere) {
    for (const DevicePtr begin : {first, last}) note(begin, pinned_by(chunks, range, {begin, size}));
    return *best;
  }
  Vector<vm::Mapping> around;
  chunks.for_each_around(range, [&](const vm::Mapping& mapping) { around.push_back(mapping); });
  const auto consider = [&](DevicePtr begin, const vm::Mapping& front, const vm::Mapping& back) {
    if (begin < first || begin > last || !is_multiple(to_integer(begin), alignment)) return;
    const AddressRange part{begin, size};
    note(begin, pinned_of(front, range, part) + (front.at == back.at ? 0 : pinned_of(back, range, part)));
  };
  const auto holder = [&](DevicePtr ptr) {
    return *std::partition_point(around.begin(), around.end(),
                                 [&](const vm::Mapping& mapping) { return mapping.range().end() <= ptr; });
  };
  for (const DevicePtr begin : {first, last}) consider(begin, holder(begin), holder(begin + (size - 1)));
  // Both go through the chunks once: where what begins with a chunk ends, and where what ends with it begins.
  auto back = around.begin();
  auto front = around.begin();
  for (const vm::Mapping& mapping : around) {
    if (!range.contains(mapping.range())) continue;
    while (std::next(back) != around.end() && back->range().end() < mapping.at + size) ++back;
    consider(mapping.at, mapping, *back);
    const DevicePtr end = mapping.range().end();
    if (to_integer(end) <= size) continue;
    while (std::next(front) != around.end() && front->range().end() <= end - size) ++front;
    consider(end - size, *front, mapping);
  }
  return *best;
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
