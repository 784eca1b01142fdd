// SPDX-License-Identifier: Apache-2.0
// capi: arenas.
#include <memory>

#include "capi/arena.hpp"
#include "capi/call.hpp"

using namespace vpmm;
using namespace vpmm::capi;
using context::Context;

namespace {

constexpr std::uint32_t kKnownArenaFlags =
    VPMM_ARENA_ONE_CHUNK | VPMM_ARENA_NO_SPLIT | VPMM_ARENA_EXTERNAL;

Result<void> create(Context& context, std::uint32_t flags, std::uint32_t tag, vpmm_arena** arena) {
  VPMM_TRY(require(arena, "arena"));
  if ((flags & ~kKnownArenaFlags) != 0)
    return Error{ErrorCode::invalid_argument,
                 "`flags` is " + std::to_string(flags) +
                     ": this version of the library knows only bits 1, 2 and 4"};
  auto made = std::make_unique<vpmm_arena>();
  made->context = &context;
  const arena::ArenaOptions options{(flags & VPMM_ARENA_ONE_CHUNK) != 0,
                                    (flags & VPMM_ARENA_NO_SPLIT) == 0, tag,
                                    (flags & VPMM_ARENA_EXTERNAL) != 0};
  VPMM_TRY_ASSIGN(made->id, context.arenas().create(options));
  *arena = made.release();
  return {};
}

}  // namespace

vpmm_status vpmm_arena_create(vpmm_pool* pool, uint32_t flags, uint32_t tag, vpmm_arena** arena) {
  return with_pool(pool, [&](Context& context) { return create(context, flags, tag, arena); });
}

vpmm_status vpmm_arena_id(vpmm_arena* arena, uint64_t* id) {
  return with_arena(arena, [&](Context&) -> Result<void> {
    VPMM_TRY(require(id, "id"));
    *id = static_cast<std::uint64_t>(arena->id);
    return {};
  });
}

vpmm_status vpmm_arena_set_library(vpmm_arena* arena, uint32_t library) {
  return with_arena(arena, [&](Context&) -> Result<void> {
    arena->library = library;
    return {};
  });
}

vpmm_status vpmm_arena_allocate(vpmm_arena* arena, size_t bytes, size_t alignment,
                                vpmm_stream stream, void** ptr) {
  return with_arena(arena, [&](Context& context) -> Result<void> {
    VPMM_TRY(require(ptr, "ptr"));
    pool::Request request{bytes, alignment, to_stream(stream), arena->id};
    request.library = arena->library;
    VPMM_TRY_ASSIGN(const DevicePtr memory, context.allocate(request));
    *ptr = to_pointer(memory);
    return {};
  });
}

vpmm_status vpmm_arena_allocate_at(vpmm_arena* arena, void* ptr, size_t bytes, vpmm_stream stream) {
  return with_arena(arena, [&](Context& context) -> Result<void> {
    VPMM_TRY(require(ptr, "ptr"));
    VPMM_TRY(context.arenas().allocate_at(arena->id, {to_device_ptr(ptr), bytes}, to_stream(stream),
                                          arena->library));
    return {};
  });
}

vpmm_status vpmm_arena_pin(vpmm_arena* arena) {
  return with_arena(arena, [&](Context& context) { return context.arenas().pin(arena->id); });
}

vpmm_status vpmm_arena_add_memory(vpmm_arena* arena, void* ptr, size_t bytes) {
  return with_arena(arena, [&](Context& context) -> Result<void> {
    VPMM_TRY(require(ptr, "ptr"));
    return context.arenas().add(arena->id, {to_device_ptr(ptr), bytes});
  });
}

vpmm_status vpmm_arena_take_memory(vpmm_arena* arena, void** ptr, size_t* bytes) {
  return with_arena(arena, [&](Context& context) -> Result<void> {
    VPMM_TRY(require(ptr, "ptr"));
    VPMM_TRY_ASSIGN(const AddressRange memory, context.arenas().take(arena->id));
    *ptr = to_pointer(memory.begin);
    if (bytes != nullptr) *bytes = memory.size;
    return {};
  });
}

vpmm_status vpmm_arena_trim(vpmm_arena* arena, size_t* released) {
  return with_arena(arena, [&](Context& context) -> Result<void> {
    VPMM_TRY_ASSIGN(const Bytes bytes, context.arenas().trim(arena->id));
    if (released != nullptr) *released = bytes;
    return {};
  });
}

vpmm_status vpmm_arena_live(vpmm_arena* arena, void** ptrs, size_t capacity, size_t* count) {
  return with_arena(arena, [&](Context& context) -> Result<void> {
    VPMM_TRY(require(count, "count"));
    if (capacity != 0) VPMM_TRY(require(ptrs, "ptrs"));
    VPMM_TRY_ASSIGN(const auto live, context.arenas().live(arena->id));
    for (std::size_t i = 0; i < live.size() && i < capacity; ++i) ptrs[i] = to_pointer(live[i]);
    *count = live.size();
    return {};
  });
}

// At process end the system takes all memory back.
vpmm_status vpmm_arena_release(vpmm_arena* arena) {
  if (arena == nullptr) return VPMM_OK;
  return with_arena(
      arena,
      [&](Context& context) -> Result<void> {
        VPMM_TRY(context.arenas().release(arena->id));
        delete arena;
        return {};
      },
      WhenEnding::do_nothing);
}
