// SPDX-License-Identifier: Apache-2.0
// context: tags that threads entered, and tags with memory of their own.
#pragma once

#include <cstdint>

#include "arena/arenas.hpp"
#include "base/host_memory.hpp"
#include "base/mutex.hpp"
#include "base/result.hpp"
#include "pool/request.hpp"

namespace vpmm::context {

enum class TagScope { process, thread };

// Note [Entered tags]
// A request without an arena and a tag has the tag that its thread entered last, for itself or for
// the process; if the thread entered none, the one that was last entered for the process. While any
// is entered, all calls take the pool's lock, so streams' caches need not know of tags.
class TagScopes {
 public:
  // A number for each entry of the process, ascending.
  struct Entered {
    std::uint32_t tag = 0;  // 0: none
    std::uint64_t number = 0;
  };
  void enter(std::uint32_t tag, TagScope scope) VPMM_REQUIRES(pool_lock);
  // Returns false if it is not entered. Any thread ends an entry of the process.
  bool leave(std::uint32_t tag, TagScope scope) VPMM_REQUIRES(pool_lock);
  bool has_any() const VPMM_REQUIRES(pool_lock) { return !entries_.empty(); }
  // The entry of the calling thread that came last.
  Entered innermost() const VPMM_REQUIRES(pool_lock);
  // A number above those of all entries so far, and below those to come; 0: none so far.
  static std::uint64_t entries_so_far();

 private:
  struct TagEntry {
    std::uint32_t tag = 0;
    TagScope scope = TagScope::process;
    std::uint64_t thread = 0;
    std::uint64_t number = 0;
  };
  Vector<TagEntry> entries_ VPMM_GUARDED_BY(pool_lock);  // by number
};

struct TagOptions {
  bool has_backup = false;
  bool keeps_host_copy = false;
};

// Memory of a suspendable tag comes from arenas of the tag: one for requests of one chunk, and one
// for all others. Large allocations have stretches of their own there, which go back whole: loaders
// allocate and free large memory beside the weights that stay.
class SuspendableTags {
 public:
  explicit SuspendableTags(arena::Arenas& arenas) : arenas_(arenas) {}

  // Tags that threads entered, suspendable or not.
  TagScopes& scopes() { return scopes_; }
  const TagScopes& scopes() const { return scopes_; }

  void make(std::uint32_t tag, TagOptions options) VPMM_REQUIRES(pool_lock);
  // Null: not suspendable.
  const TagOptions* find(std::uint32_t tag) const VPMM_REQUIRES(pool_lock);
  Vector<std::uint32_t> all() const VPMM_REQUIRES(pool_lock);  // ascending
  // Gives a request without an arena the tag that is entered, and the arena of its tag. Throws
  // std::bad_alloc.
  void route(pool::Request& request) VPMM_REQUIRES(pool_lock);

 private:
  struct OfTag {
    TagOptions options;
    pool::ArenaId shared{};  // 0: none yet, here and below
    pool::ArenaId one_chunk{};
  };
  arena::Arenas& arenas_;
  TagScopes scopes_;
  Map<std::uint32_t, OfTag> tags_ VPMM_GUARDED_BY(pool_lock);
};

}  // namespace vpmm::context
