// SPDX-License-Identifier: Apache-2.0
// vm: bookkeeping of chunks and mappings.
#include "vm/chunk_table.hpp"

#include <algorithm>
#include <new>
#include <utility>

#include "base/check.hpp"
#include "base/function_ref.hpp"
#include "base/host_memory.hpp"
#include "base/message.hpp"

namespace vpmm::vm {

namespace {

Bytes trapped_in(const Chunk& chunk) {
  return chunk.partly_used == 0 ? 0 : chunk.size - chunk.partly_used;
}

}  // namespace

void ChunkTable::cover(AddressRange reservation) {
  tables_.reserve(tables_.size() + 1);
  auto pages = zeroed_array<Mapping>(unit_.pages(reservation.size));
  if (pages == nullptr) throw std::bad_alloc();
  tables_.push_back({reservation, std::move(pages)});
}

// Reservations are large, so there are few, and nearly always one.
Mapping* ChunkTable::page_of(DevicePtr p) const {
  for (const Table& table : tables_) {
    const Bytes offset = to_integer(p) - to_integer(table.range.begin);  // huge if p lies below
    if (offset < table.range.size) return &table.pages[unit_.pages(offset)];
  }
  return nullptr;
}

Mapping ChunkTable::around(DevicePtr p) const {
  const Mapping* const page = page_of(p);
  return page == nullptr ? Mapping{} : *page;
}

void ChunkTable::set(AddressRange range, const Mapping& mapping) {
  Mapping* const first = page_of(range.begin);
  VPMM_CHECK(first != nullptr, "a chunk mapped where nothing is reserved");
  std::fill_n(first, unit_.pages(range.size), mapping);
}

void ChunkTable::provide(std::size_t count) {
  const auto room = static_cast<std::size_t>(static_cast<float>(chunks_.bucket_count()) *
                                             chunks_.max_load_factor());
  if (chunks_.size() + count > room) chunks_.reserve(std::max(2 * room, chunks_.size() + count));
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
  VPMM_CHECK(around(at).chunk == nullptr, "two chunks mapped at one address");
  set({at, chunk->size}, {at, chunk});
  ++chunk->mappings;
  ++mapping_count_;
}

void ChunkTable::unmap(AddressRange range) {
  for (const Mapping& mapping : inside(range)) {
    Chunk* const chunk = mapping.chunk;
    set(mapping.range(), {});
    --mapping_count_;
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

void ChunkTable::change_use(AddressRange range, void (ChunkTable::*change)(Chunk&, Bytes)) {
  const Mapping first = around(range.begin);
  if (first.end() >= range.end()) {
    if (range != first.range()) (this->*change)(*first.chunk, range.size);
    return;
  }
  if (first.at < range.begin) (this->*change)(*first.chunk, first.end() - range.begin);
  const Mapping last = around(range.end() - 1);
  if (last.end() > range.end()) (this->*change)(*last.chunk, range.end() - last.at);
}

void ChunkTable::more(Chunk& chunk, Bytes bytes) {
  trapped_bytes_ -= trapped_in(chunk);
  chunk.partly_used += bytes;
  trapped_bytes_ += trapped_in(chunk);
}

void ChunkTable::less(Chunk& chunk, Bytes bytes) {
  trapped_bytes_ -= trapped_in(chunk);
  chunk.partly_used -= bytes;
  trapped_bytes_ += trapped_in(chunk);
}

DevicePtr ChunkTable::first_border(DevicePtr p) const {
  const Mapping mapping = around(p);
  return mapping.chunk == nullptr || mapping.at == p ? p : mapping.end();
}

DevicePtr ChunkTable::last_border(DevicePtr p) const {
  const Mapping mapping = around(p - 1);
  return mapping.end() == p ? p : mapping.at;
}

void ChunkTable::for_each_inside(AddressRange range,
                                 FunctionRef<bool(const Mapping&)> visit) const {
  for (DevicePtr p = first_border(range.begin); p < range.end();) {
    const Mapping mapping = around(p);
    if (mapping.chunk == nullptr) {
      p = p + unit_.bytes();
      continue;
    }
    if (mapping.end() > range.end() || !visit(mapping)) return;
    p = mapping.end();
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

void ChunkTable::for_each_around(AddressRange range,
                                 FunctionRef<void(const Mapping&)> visit) const {
  for (DevicePtr p = range.begin; p < range.end();) {
    const Mapping mapping = around(p);
    if (mapping.chunk != nullptr) visit(mapping);
    p = mapping.chunk != nullptr ? mapping.end() : p + unit_.bytes();
  }
}

void ChunkTable::for_each_chunk(FunctionRef<void(Chunk&)> visit) const {
  for (const auto& [key, chunk] : chunks_) visit(*chunk);
}

std::string ChunkTable::validate() const {
  Bytes bytes = 0;
  Bytes trapped = 0;
  std::uint64_t mapped = 0;
  for (const auto& [key, chunk] : chunks_) {
    bytes += chunk->size;
    mapped += chunk->mappings;
    trapped += trapped_in(*chunk);
    if (chunk->partly_used > chunk->size) return "more of a chunk is used than it has";
    if (!chunk->handle_held && chunk->mappings == 0)
      return "a chunk without handle and mapping is still counted";
  }
  if (bytes != chunk_bytes_)
    return message_of("{} bytes of chunks, {} counted", bytes, chunk_bytes_);
  if (trapped != trapped_bytes_)
    return message_of("{} bytes are trapped, {} counted", trapped, trapped_bytes_);
  if (mapped != mapping_count_)
    return message_of("{} mappings, chunks say {}", mapping_count_, mapped);
  return {};
}

}  // namespace vpmm::vm
