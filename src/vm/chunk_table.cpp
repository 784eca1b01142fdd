// vm: bookkeeping of chunks and mappings.
#include "vm/chunk_table.hpp"

#include <algorithm>
#include <iterator>

#include "base/check.hpp"
#include "base/function_ref.hpp"
#include "base/host_memory.hpp"
#include "base/message.hpp"

namespace vpmm::vm {

void ChunkTable::provide(std::size_t count) {
  const auto make_room = [count](auto& table) {
    const auto room = static_cast<std::size_t>(static_cast<float>(table.bucket_count()) * table.max_load_factor());
    if (table.size() + count > room) table.reserve(std::max(2 * room, table.size() + count));
  };
  make_room(chunks_);
  make_room(by_begin_);
  make_room(by_end_);
}

Chunk* ChunkTable::add(driver::ChunkHandle handle, Bytes size) {
  auto chunk = std::make_unique<Chunk>();
  chunk->handle = handle;
  chunk->size = size;
  Chunk* added = chunk.get();
  chunks_.emplace(added, std::move(chunk));
  chunk_bytes_ += size;
  return added;
}

void ChunkTable::map(Chunk* chunk, DevicePtr at) {
  const auto [mapping, is_new] = mappings_.emplace(at, chunk);
  VPMM_CHECK(is_new, "two chunks mapped at one address");
  by_begin_.emplace(to_integer(at), mapping);
  by_end_.emplace(to_integer(at + chunk->size), mapping);
  ++chunk->mappings;
}

void ChunkTable::unmap(AddressRange range) {
  auto mapping = mappings_.lower_bound(range.begin);
  while (mapping != mappings_.end() && mapping->first < range.end()) {
    Chunk* chunk = mapping->second;
    VPMM_CHECK(mapping->first + chunk->size <= range.end(), "part of a mapping forgotten");
    by_begin_.erase(to_integer(mapping->first));
    by_end_.erase(to_integer(mapping->first + chunk->size));
    mapping = mappings_.erase(mapping);
    --chunk->mappings;
    if (chunk->mappings == 0 && !chunk->handle_held) forget(chunk);
  }
}

void ChunkTable::handle_released(Chunk* chunk) {
  chunk->handle_held = false;
  if (chunk->mappings == 0) forget(chunk);
}

void ChunkTable::forget(Chunk* chunk) {
  chunk_bytes_ -= chunk->size;
  chunks_.erase(chunk);
}

ChunkTable::Mappings::const_iterator ChunkTable::from(DevicePtr p) const {
  const auto begins = by_begin_.find(to_integer(p));
  return begins != by_begin_.end() ? Mappings::const_iterator(begins->second) : mappings_.lower_bound(p);
}

ChunkTable::Mappings::const_iterator ChunkTable::up_to(DevicePtr p) const {
  const auto ends = by_end_.find(to_integer(p));
  return ends != by_end_.end() ? std::next(Mappings::const_iterator(ends->second)) : mappings_.lower_bound(p);
}

void ChunkTable::for_each_inside(AddressRange range, FunctionRef<bool(const Mapping&)> visit) const {
  for (auto mapping = from(range.begin); mapping != mappings_.end(); ++mapping) {
    if (mapping->first + mapping->second->size > range.end()) return;
    if (!visit({mapping->first, mapping->second})) return;
  }
}

void ChunkTable::for_each_inside_backwards(AddressRange range, FunctionRef<bool(const Mapping&)> visit) const {
  for (auto mapping = up_to(range.end()); mapping != mappings_.begin();) {
    --mapping;
    if (mapping->first + mapping->second->size > range.end()) continue;
    if (mapping->first < range.begin || !visit({mapping->first, mapping->second})) return;
  }
}

Vector<Mapping> ChunkTable::inside(AddressRange range) const {
  Vector<Mapping> found;
  for_each_inside(range, [&](const Mapping& mapping) {
    found.push_back(mapping);
    return true;
  });
  return found;
}

void ChunkTable::for_each_around(AddressRange range, FunctionRef<void(const Mapping&)> visit) const {
  auto mapping = mappings_.upper_bound(range.begin);
  if (mapping != mappings_.begin()) --mapping;
  for (; mapping != mappings_.end() && mapping->first < range.end(); ++mapping)
    if (mapping->first + mapping->second->size > range.begin) visit({mapping->first, mapping->second});
}

void ChunkTable::for_each_chunk(FunctionRef<void(Chunk&)> visit) const {
  for (const auto& [key, chunk] : chunks_) visit(*chunk);
}

void ChunkTable::for_each_mapping(FunctionRef<void(const Mapping&)> visit) const {
  for (const auto& [at, chunk] : mappings_) visit({at, chunk});
}

std::string ChunkTable::validate() const {
  Bytes bytes = 0;
  std::uint64_t mapped = 0;
  for (const auto& [key, chunk] : chunks_) {
    bytes += chunk->size;
    mapped += chunk->mappings;
    if (!chunk->handle_held && chunk->mappings == 0) return "a chunk without handle and mapping is still counted";
  }
  if (bytes != chunk_bytes_) return message_of("{} bytes of chunks, {} counted", bytes, chunk_bytes_);
  if (by_begin_.size() != mappings_.size() || by_end_.size() != mappings_.size())
    return "a mapping is not found by where it begins, or ends";
  if (mapped != mappings_.size()) return message_of("{} mappings, chunks say {}", mappings_.size(), mapped);
  DevicePtr reached{};
  for (const auto& [at, chunk] : mappings_) {
    if (at < reached) return message_of("mappings overlap at {:#x}", to_integer(at));
    reached = at + chunk->size;
  }
  return {};
}

}  // namespace vpmm::vm
