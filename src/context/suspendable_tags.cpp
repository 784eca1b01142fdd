// SPDX-License-Identifier: Apache-2.0
// context: entries of tags, and the arenas of suspendable ones.
#include "context/suspendable_tags.hpp"

#include <algorithm>
#include <atomic>

namespace vpmm::context {
namespace {

constinit std::atomic<std::uint64_t> last_entry{0};  // even, so that there are numbers between
constinit std::atomic<std::uint64_t> last_thread{0};
// Note [Thread-local variables]
[[gnu::tls_model("initial-exec")]] constinit thread_local std::uint64_t own_number = 0;

// Number of the calling thread, unique for good: a thread may end inside a tag, and its id becomes
// another's.
std::uint64_t own_thread() {
  if (own_number == 0) own_number = last_thread.fetch_add(1) + 1;
  return own_number;
}

}  // namespace

// Callers with hot paths ask at every request, so it only reads.
std::uint64_t TagScopes::entries_so_far() {
  const std::uint64_t last = last_entry.load(std::memory_order_acquire);
  return last == 0 ? 0 : last + 1;
}

void TagScopes::enter(std::uint32_t tag, TagScope scope) {
  entries_.push_back({tag, scope, own_thread(), last_entry.fetch_add(2) + 2});
}

bool TagScopes::leave(std::uint32_t tag, TagScope scope) {
  const auto last = std::find_if(entries_.rbegin(), entries_.rend(), [&](const TagEntry& entry) {
    return entry.tag == tag && entry.scope == scope &&
           (scope == TagScope::process || entry.thread == own_thread());
  });
  if (last == entries_.rend()) return false;
  entries_.erase(std::next(last).base());
  return true;
}

TagScopes::Entered TagScopes::innermost() const {
  const auto of_thread = [](const TagEntry& entry) { return entry.thread == own_thread(); };
  const auto of_process = [](const TagEntry& entry) { return entry.scope == TagScope::process; };
  auto found = std::find_if(entries_.rbegin(), entries_.rend(), of_thread);
  if (found == entries_.rend())
    found = std::find_if(entries_.rbegin(), entries_.rend(), of_process);
  return found == entries_.rend() ? Entered{} : Entered{found->tag, found->number};
}

void SuspendableTags::make(std::uint32_t tag, TagOptions options) { tags_[tag].options = options; }

const TagOptions* SuspendableTags::find(std::uint32_t tag) const {
  const auto found = tags_.find(tag);
  return found == tags_.end() ? nullptr : &found->second.options;
}

Vector<std::uint32_t> SuspendableTags::all() const {
  Vector<std::uint32_t> all;
  for (const auto& [tag, of] : tags_) all.push_back(tag);
  return all;
}

void SuspendableTags::route(pool::Request& request) {
  if (request.arena != pool::ArenaId{}) {
    const arena::ArenaEntry* const in = arenas_.find(request.arena);
    if (request.tag == 0 && in != nullptr) request.tag = in->options.tag;
    if (request.tag == 0) request.tag = request.library;
    return;
  }
  if (request.tag == 0 && scopes_.has_any()) request.tag = scopes_.innermost().tag;
  if (request.tag == 0) request.tag = request.library;
  const auto found = request.tag == 0 ? tags_.end() : tags_.find(request.tag);
  if (found == tags_.end()) return;
  pool::ArenaId& arena = request.one_chunk ? found->second.one_chunk : found->second.shared;
  if (arena == pool::ArenaId{}) {
    arena = arenas_.create({request.one_chunk, !request.one_chunk, request.tag, false, true});
    // The first of its kind while the tag is suspended.
    const pool::ArenaId other = request.one_chunk ? found->second.shared : found->second.one_chunk;
    if (other != pool::ArenaId{} && arenas_.find(other)->residence == arena::Residence::suspended)
      arenas_.residency().begin_change(arena, arena::Residence::suspended);
  }
  request.arena = arena;
}

}  // namespace vpmm::context
