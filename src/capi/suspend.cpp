// SPDX-License-Identifier: Apache-2.0
// capi: tags that are entered, suspended and resumed.
#include <algorithm>
#include <cstddef>

#include "base/message.hpp"
#include "capi/arena.hpp"
#include "capi/call.hpp"
#include "capi/callback.hpp"
#include "capi/settings.hpp"
#include "capi/versioned_struct.hpp"
#include "context/suspension.hpp"
#include "report/tags.hpp"
#include "settings/portion.hpp"

using namespace vpmm;
using namespace vpmm::capi;
using context::Context;

namespace {

constexpr std::size_t kFirstInfo = offsetof(vpmm_tag_info, host_bytes) + sizeof(std::uint64_t);

constexpr LimitWords kTagLimit{"limit", 0, "VPMM_SHARE_OF_CAPACITY of 1 to 100, or VPMM_NO_LIMIT"};

Result<void> check_flags(std::uint32_t flags, std::uint32_t known) {
  if ((flags & ~known) == 0) return {};
  return Error{ErrorCode::invalid_argument,
               message_of("`flags` is {}: this version of the library knows only the bits of {}",
                          flags, known)};
}

Result<void> copy_tags(const Vector<std::uint32_t>& all, std::uint32_t* tags, std::size_t capacity,
                       std::size_t* count) {
  VPMM_TRY(require(count, "count"));
  if (capacity != 0) VPMM_TRY(require(tags, "tags"));
  std::copy_n(all.begin(), std::min(all.size(), capacity), tags);
  *count = all.size();
  return {};
}

Result<void> check_tag(std::uint32_t tag) {
  if (tag != 0) return {};
  return Error{ErrorCode::invalid_argument, "tag 0 stands for none"};
}

Result<context::TagScope> to_scope(vpmm_tag_scope scope) {
  if (scope == VPMM_TAG_OF_PROCESS) return context::TagScope::process;
  if (scope == VPMM_TAG_OF_THREAD) return context::TagScope::thread;
  return Error{ErrorCode::invalid_argument,
               message_of("scope {} is none of this version", static_cast<int>(scope))};
}

Result<context::SuspendHow> to_suspend(std::uint32_t flags, vpmm_stream stream) {
  VPMM_TRY(check_flags(flags, VPMM_SUSPEND_BACKUP | VPMM_SUSPEND_DISCARD |
                                  VPMM_SUSPEND_KEEP_HOST_COPY | VPMM_SUSPEND_TO_DRIVER |
                                  VPMM_SUSPEND_AFTER_STREAM));
  constexpr std::uint32_t kBoth = VPMM_SUSPEND_BACKUP | VPMM_SUSPEND_DISCARD;
  if ((flags & kBoth) == kBoth)
    return Error{ErrorCode::invalid_argument, "`flags` asks to copy and to discard"};
  context::SuspendHow how;
  if ((flags & kBoth) != 0) how.has_backup = (flags & VPMM_SUSPEND_BACKUP) != 0;
  how.keeps_host_copy = (flags & VPMM_SUSPEND_KEEP_HOST_COPY) != 0;
  how.to_driver = (flags & VPMM_SUSPEND_TO_DRIVER) != 0;
  if ((flags & VPMM_SUSPEND_AFTER_STREAM) != 0) how.after = to_stream(stream);
  return how;
}

Result<context::ResumeHow> to_resume(std::uint32_t flags) {
  VPMM_TRY(check_flags(flags, VPMM_RESUME_ZERO | VPMM_RESUME_WITHOUT_COPY));
  return context::ResumeHow{(flags & VPMM_RESUME_ZERO) != 0,
                            (flags & VPMM_RESUME_WITHOUT_COPY) == 0};
}

static_assert(mirrors(context::TagState::live, VPMM_TAG_LIVE));
static_assert(mirrors(context::TagState::suspended, VPMM_TAG_SUSPENDED));
static_assert(mirrors(context::TagState::discarded, VPMM_TAG_DISCARDED));
static_assert(mirrors(context::TagState::changing, VPMM_TAG_CHANGING));

}  // namespace

vpmm_status vpmm_tag_with_name(const char* name, uint32_t* tag) {
  return gated(WhenEnding::fail, [&]() -> Result<void> {
    VPMM_TRY(require(name, "name"));
    VPMM_TRY(require(tag, "tag"));
    if (*name == '\0') return Error{ErrorCode::invalid_argument, "a tag's name has no letters"};
    *tag = report::tag_with_name(name);
    return {};
  });
}

vpmm_status vpmm_library_tag(const char* library, uint32_t* tag) {
  return guarded([&]() -> Result<void> {
    VPMM_TRY(require(library, "library"));
    VPMM_TRY(require(tag, "tag"));
    if (*library == '\0') return Error{ErrorCode::invalid_argument, "a tag's name has no letters"};
    VPMM_TRY_ASSIGN(const bool is_tagged, settings::is_library_tagged(library));
    *tag = is_tagged ? report::tag_with_name(library) : 0;
    report::note_library(library, is_tagged);
    return {};
  });
}

vpmm_status vpmm_tag_make_suspendable(vpmm_pool* pool, uint32_t tag, uint32_t flags) {
  return with_pool(pool, [&](Context& context) -> Result<void> {
    VPMM_TRY(check_tag(tag));
    VPMM_TRY(check_flags(flags, VPMM_TAG_BACKUP | VPMM_TAG_KEEP_HOST_COPY));
    return context.suspension().make_suspendable(
        tag, {(flags & VPMM_TAG_BACKUP) != 0, (flags & VPMM_TAG_KEEP_HOST_COPY) != 0});
  });
}

vpmm_status vpmm_tag_enter(vpmm_pool* pool, uint32_t tag, vpmm_tag_scope scope) {
  return with_pool(pool, [&](Context& context) -> Result<void> {
    VPMM_TRY(check_tag(tag));
    VPMM_TRY_ASSIGN(const context::TagScope of, to_scope(scope));
    return context.suspension().enter(tag, of);
  });
}

vpmm_status vpmm_tag_leave(vpmm_pool* pool, uint32_t tag, vpmm_tag_scope scope) {
  return with_pool(
      pool,
      [&](Context& context) -> Result<void> {
        VPMM_TRY_ASSIGN(const context::TagScope of, to_scope(scope));
        return context.suspension().leave(tag, of);
      },
      WhenEnding::do_nothing);
}

vpmm_status vpmm_tag_entered(vpmm_pool* pool, uint32_t* tag, uint64_t* entry) {
  return with_pool(pool, [&](Context& context) -> Result<void> {
    VPMM_TRY(require(tag, "tag"));
    const context::TagScopes::Entered entered = context.suspension().entered();
    *tag = entered.tag;
    if (entry != nullptr) *entry = entered.number;
    return {};
  });
}

uint64_t vpmm_tag_entries(void) { return context::TagScopes::entries_so_far(); }

vpmm_status vpmm_suspend(vpmm_pool* pool, uint32_t tag, uint32_t flags, vpmm_stream stream) {
  return with_pool(pool, [&](Context& context) -> Result<void> {
    VPMM_TRY_ASSIGN(const context::SuspendHow how, to_suspend(flags, stream));
    return context.suspension().suspend(tag, how);
  });
}

vpmm_status vpmm_arena_suspend(vpmm_arena* arena, uint32_t flags, vpmm_stream stream) {
  return with_arena(arena, [&](Context& context) -> Result<void> {
    VPMM_TRY_ASSIGN(const context::SuspendHow how, to_suspend(flags, stream));
    return context.suspension().suspend(arena->id, how);
  });
}

vpmm_status vpmm_prepare_suspend(vpmm_pool* pool, uint32_t tag) {
  return with_pool(pool, [&](Context& context) { return context.suspension().prepare(tag); });
}

vpmm_status vpmm_resume(vpmm_pool* pool, uint32_t tag, uint32_t flags) {
  return with_pool(pool, [&](Context& context) -> Result<void> {
    VPMM_TRY_ASSIGN(const context::ResumeHow how, to_resume(flags));
    return context.suspension().resume(tag, how);
  });
}

vpmm_status vpmm_arena_resume(vpmm_arena* arena, uint32_t flags) {
  return with_arena(arena, [&](Context& context) -> Result<void> {
    VPMM_TRY_ASSIGN(const context::ResumeHow how, to_resume(flags));
    return context.suspension().resume(arena->id, how);
  });
}

vpmm_status vpmm_tag_get_info(vpmm_pool* pool, uint32_t tag, vpmm_tag_info* info) {
  return with_pool(pool, [&](Context& context) -> Result<void> {
    VPMM_TRY(require(info, "info"));
    VPMM_TRY(check_size(info->size, kFirstInfo, "vpmm_tag_info"));
    VPMM_TRY(check_tag(tag));
    const context::TagInfo of = context.suspension().info(tag);
    vpmm_tag_info out{};
    if (of.options.has_backup) out.flags |= VPMM_TAG_BACKUP;
    if (of.options.keeps_host_copy) out.flags |= VPMM_TAG_KEEP_HOST_COPY;
    out.state = static_cast<int>(of.state);
    out.live_bytes = of.amounts.live;
    out.mapped_bytes = of.amounts.held - of.amounts.suspended;
    out.suspended_bytes = of.amounts.suspended;
    out.host_bytes = of.host_bytes;
    out.limit_bytes = of.limit.value_or(VPMM_NO_LIMIT);
    out.library_bytes = of.of_library;
    copy_out(out, info);
    return {};
  });
}

vpmm_status vpmm_tags(vpmm_pool* pool, uint32_t* tags, size_t capacity, size_t* count) {
  return with_pool(pool, [&](Context& context) {
    return copy_tags(context.suspension().all_tags(), tags, capacity, count);
  });
}

vpmm_status vpmm_suspendable_tags(vpmm_pool* pool, uint32_t* tags, size_t capacity, size_t* count) {
  return with_pool(pool, [&](Context& context) {
    return copy_tags(context.suspension().suspendable_tags(), tags, capacity, count);
  });
}

vpmm_status vpmm_tag_set_limit(vpmm_pool* pool, uint32_t tag, uint64_t bytes) {
  return with_pool(pool, [&](Context& context) -> Result<void> {
    VPMM_TRY(check_tag(tag));
    VPMM_TRY_ASSIGN(const auto limit, to_limit(bytes, kTagLimit));
    context.limits().set_tag_limit(tag, limit);
    return {};
  });
}

vpmm_status vpmm_is_suspended(vpmm_pool* pool, const void* ptr, int* is_suspended) {
  return with_pool(pool, [&](Context& context) -> Result<void> {
    VPMM_TRY(require(is_suspended, "is_suspended"));
    VPMM_TRY_ASSIGN(*is_suspended, context.suspension().is_suspended(to_device_ptr(ptr)));
    return {};
  });
}

vpmm_status vpmm_host_copy(vpmm_pool* pool, const void* ptr, size_t bytes, void** host) {
  return with_pool(pool, [&](Context& context) -> Result<void> {
    VPMM_TRY(require(host, "host"));
    VPMM_TRY_ASSIGN(*host, context.suspension().host_copy({to_device_ptr(ptr), bytes}));
    return {};
  });
}

vpmm_status vpmm_add_suspend_hooks(vpmm_pool* pool, uint32_t tag, vpmm_suspend_hook before_unmap,
                                   vpmm_suspend_hook after_map, void* argument, uint64_t* id) {
  return with_pool(pool, [&](Context& context) -> Result<void> {
    VPMM_TRY(check_tag(tag));
    VPMM_TRY(require(id, "id"));
    context::SuspendHooks hooks;
    hooks.tag = tag;
    if (before_unmap != nullptr)
      hooks.before_unmap = [before_unmap, argument](int device, std::uint32_t of) {
        return run_callback([&] { return before_unmap(argument, device, of); }) == 0;
      };
    if (after_map != nullptr)
      hooks.after_map = [after_map, argument](int device, std::uint32_t of) {
        static_cast<void>(run_callback([&] { return after_map(argument, device, of); }));
      };
    *id = context.suspension().add_hooks(std::move(hooks));
    return {};
  });
}

vpmm_status vpmm_remove_suspend_hooks(vpmm_pool* pool, uint64_t id) {
  return with_pool(
      pool,
      [&](Context& context) -> Result<void> {
        if (context.suspension().remove_hooks(id)) return {};
        return Error{ErrorCode::invalid_argument,
                     message_of("no hooks of this pool have the number {}", id)};
      },
      WhenEnding::do_nothing);
}
