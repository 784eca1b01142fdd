// SPDX-License-Identifier: Apache-2.0
// arena: keys of streams, by id or by handle.
#include "arena/stream_names.hpp"

#include <algorithm>

namespace vpmm::arena {

namespace {

// Streams without a known id have keys above this number, beyond any id.
constexpr std::uint64_t kUnknownStreams = std::uint64_t{1} << 63;
// Number of handles from which on those without a block are forgotten. Each costs less than 100
// bytes.
constexpr std::size_t kNamesKept = 1024;

}  // namespace

// Note [A capturing stream goes by its handle]
// A capturing stream has no id, but must be served with its earlier frees. So a handle stands for
// the stream that called with it last outside a capture. A handle seen only in captures has a key
// of its own until its id is known. Limit: a stream with the reused handle of a dead stream, and
// without calls outside captures, is taken for the dead one. Calls outside captures always find the
// right stream.
StreamKey StreamNames::key_of(const pool::Caller& caller) {
  if (!caller.stream) return kEverybody;
  const driver::StreamHandle handle =
      *caller.stream == driver::kNullStream ? driver::kLegacyStream : *caller.stream;
  const NamedStream name{
      handle, handle == driver::kPerThreadStream ? std::this_thread::get_id() : std::thread::id{}};
  const auto known = names_.find(name);
  if (caller.timeline == nullptr || !caller.timeline->stream) {
    if (known != names_.end()) return known->second;
    if (names_.size() >= kNamesKept) drop_unused();
    return names_[name] = StreamKey{kUnknownStreams + ++last_unknown_};
  }
  const StreamKey key{static_cast<std::uint64_t>(*caller.timeline->stream)};
  if (known != names_.end() && known->second == key) return key;
  if (known != names_.end() && static_cast<std::uint64_t>(known->second) >= kUnknownStreams)
    for (const auto& [id, each] : table_.by_id) each->arena.rename(known->second, key);
  if (names_.size() >= kNamesKept) drop_unused();
  return names_[name] = key;
}

std::uint64_t stream_id_of(StreamKey key) {
  const auto number = static_cast<std::uint64_t>(key);
  return number < kUnknownStreams ? number : 0;
}

void StreamNames::drop_unused() {
  std::erase_if(names_, [&](const auto& name) VPMM_REQUIRES(pool_lock) {
    return std::none_of(table_.by_id.begin(), table_.by_id.end(), [&](const auto& each) {
      return each.second->arena.is_used_by(name.second);
    });
  });
}

}  // namespace vpmm::arena
