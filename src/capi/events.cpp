// SPDX-License-Identifier: Apache-2.0
// capi: callbacks for what happens in a pool.
#include "report/events.hpp"
#include "base/message.hpp"
#include "capi/call.hpp"

using namespace vpmm;
using namespace vpmm::capi;
using context::Context;
using report::EventKind;

namespace {

constexpr report::EventKinds kAllKinds = (report::EventKinds{1} << report::kEventKinds) - 1;

static_assert(mirrors(EventKind::allocate, VPMM_EVENT_ALLOCATE));
static_assert(mirrors(EventKind::free, VPMM_EVENT_FREE));
static_assert(mirrors(EventKind::map, VPMM_EVENT_MAP));
static_assert(mirrors(EventKind::unmap, VPMM_EVENT_UNMAP));
static_assert(mirrors(EventKind::out_of_memory, VPMM_EVENT_OUT_OF_MEMORY));
static_assert(mirrors(EventKind::record_use, VPMM_EVENT_RECORD_USE));
static_assert(mirrors(EventKind::trim, VPMM_EVENT_TRIM));
static_assert(mirrors(EventKind::arena_grow, VPMM_EVENT_ARENA_GROW));
static_assert(mirrors(EventKind::arena_shrink, VPMM_EVENT_ARENA_SHRINK));
static_assert(mirrors(EventKind::suspend, VPMM_EVENT_SUSPEND));
static_assert(mirrors(EventKind::resume, VPMM_EVENT_RESUME));

vpmm_event to_struct(const report::ReportedEvent& event) {
  vpmm_event out{};
  out.size = sizeof(out);
  out.kind = static_cast<std::uint32_t>(event.kind);
  out.tag = event.tag;
  out.ptr = to_pointer(event.ptr);
  out.bytes = event.bytes;
  const auto stream = event.stream.value_or(driver::StreamHandle{});
  out.stream = reinterpret_cast<vpmm_stream>(static_cast<std::uintptr_t>(stream));
  out.arena = event.arena;
  out.time_ns = event.time_ns;
  out.device = event.device;
  out.flags = event.stream ? 0 : VPMM_EVENT_NO_STREAM;
  return out;
}

Result<void> check_kinds(std::uint32_t kinds) {
  if (kinds == 0)
    return Error{ErrorCode::invalid_argument, "`kinds` is 0: it names no kind of event"};
  if ((kinds & ~kAllKinds) == 0) return {};
  return Error{ErrorCode::unsupported,
               message_of("kinds {:#x}: this version knows those of {:#x}", kinds, kAllKinds)};
}

}  // namespace

vpmm_status vpmm_add_event_callback(vpmm_pool* pool, uint32_t kinds, vpmm_event_callback callback,
                                    void* argument, uint64_t* id) {
  return with_pool(pool, [&](Context& context) -> Result<void> {
    VPMM_TRY(check_kinds(kinds));
    VPMM_TRY(require(reinterpret_cast<const void*>(callback), "callback"));
    VPMM_TRY(require(id, "id"));
    *id = context.reports().add_event_callback(
        kinds, [callback, argument](const report::ReportedEvent& event) {
          const vpmm_event told = to_struct(event);
          callback(argument, &told);
        });
    return {};
  });
}

vpmm_status vpmm_remove_event_callback(vpmm_pool* pool, uint64_t id) {
  return with_pool(
      pool, [&](Context& context) { return context.reports().remove_event_callback(id); },
      WhenEnding::do_nothing);
}
