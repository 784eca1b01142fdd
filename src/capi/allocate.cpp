// SPDX-License-Identifier: Apache-2.0
// capi: allocates and gives back.
#include "capi/call.hpp"
#include "capi/versioned_struct.hpp"

using namespace vpmm;
using namespace vpmm::capi;
using context::Context;

namespace {

constexpr std::size_t kFirstInfoVersion = offsetof(vpmm_allocation_info, usable) + sizeof(uint64_t);

constexpr std::size_t kFirstRequest = offsetof(vpmm_request, tag) + sizeof(uint32_t);
constexpr std::uint32_t kKnownFlags = VPMM_ALLOCATE_ANY_STREAM | VPMM_ALLOCATE_ONE_CHUNK;

Result<pool::Request> to_request(const vpmm_request* theirs) {
  VPMM_TRY(require(theirs, "request"));
  VPMM_TRY(check_size(theirs->size, kFirstRequest, "vpmm_request"));
  vpmm_request known{};
  VPMM_TRY(copy_in(theirs, known, "vpmm_request"));
  if ((known.flags & ~kKnownFlags) != 0)
    return Error{ErrorCode::unsupported,
                 message_of("vpmm_request.flags is {:#x}: this version knows those of {:#x}",
                            known.flags, kKnownFlags)};
  pool::Request request{known.bytes, known.alignment, to_stream(known.stream)};
  if ((known.flags & VPMM_ALLOCATE_ANY_STREAM) != 0) request.stream.reset();
  request.one_chunk = (known.flags & VPMM_ALLOCATE_ONE_CHUNK) != 0;
  request.tag = known.tag;
  request.library = known.library;
  return request;
}

vpmm_status allocate(vpmm_pool* pool, const pool::Request& request, void** ptr) {
  return with_pool(pool, [&](Context& context) -> Result<void> {
    VPMM_TRY(require(ptr, "ptr"));
    VPMM_TRY_ASSIGN(const DevicePtr memory, context.allocate(request));
    *ptr = to_pointer(memory);
    return {};
  });
}

vpmm_status deallocate(vpmm_pool* pool, void* ptr, pool::Stream stream) {
  if (ptr == nullptr) return VPMM_OK;
  return with_pool(
      pool, [&](Context& context) { return context.deallocate(to_device_ptr(ptr), stream); },
      WhenEnding::do_nothing);
}

// Keeps the thread's last error, as a success does: no failure yet. After an exception the ordinary
// function meets and reports the same.
template <typename Allocate>
vpmm_status try_allocate(vpmm_pool* pool, void** ptr, Allocate&& allocate_if_ready) noexcept {
  const process::GateEntry entry;
  if (pool == nullptr || ptr == nullptr || !entry.open()) return VPMM_WOULD_BLOCK;
  try {
    const DevicePtr begin = allocate_if_ready();
    if (is_null(begin)) return VPMM_WOULD_BLOCK;
    *ptr = to_pointer(begin);
    return VPMM_OK;
  } catch (...) {
    return VPMM_WOULD_BLOCK;
  }
}

}  // namespace

vpmm_status vpmm_allocate(vpmm_pool* pool, size_t bytes, vpmm_stream stream, void** ptr) {
  return allocate(pool, {bytes, 0, to_stream(stream)}, ptr);
}

vpmm_status vpmm_allocate_aligned(vpmm_pool* pool, size_t bytes, size_t alignment,
                                  vpmm_stream stream, void** ptr) {
  return allocate(pool, {bytes, alignment, to_stream(stream)}, ptr);
}

vpmm_status vpmm_allocate_any_stream(vpmm_pool* pool, size_t bytes, size_t alignment, void** ptr) {
  return allocate(pool, {bytes, alignment, std::nullopt}, ptr);
}

vpmm_status vpmm_allocate_with(vpmm_pool* pool, const vpmm_request* request, void** ptr) {
  return with_pool(pool, [&](Context& context) -> Result<void> {
    VPMM_TRY(require(ptr, "ptr"));
    VPMM_TRY_ASSIGN(const pool::Request known, to_request(request));
    VPMM_TRY_ASSIGN(const DevicePtr memory, context.allocate(known));
    *ptr = to_pointer(memory);
    return {};
  });
}

vpmm_status vpmm_try_allocate(vpmm_pool* pool, size_t bytes, size_t alignment, vpmm_stream stream,
                              void** ptr) {
  return try_allocate(pool, ptr, [&] {
    return pool->context->allocate_if_ready(bytes, alignment, to_stream(stream));
  });
}

vpmm_status vpmm_try_allocate_any_stream(vpmm_pool* pool, size_t bytes, size_t alignment,
                                         void** ptr) {
  return try_allocate(pool, ptr,
                      [&] { return pool->context->allocate_if_ready(bytes, alignment); });
}

vpmm_status vpmm_deallocate(vpmm_pool* pool, void* ptr, vpmm_stream stream) {
  return deallocate(pool, ptr, to_stream(stream));
}

vpmm_status vpmm_try_deallocate(vpmm_pool* pool, void* ptr, vpmm_stream stream) {
  if (ptr == nullptr) return VPMM_OK;
  const process::GateEntry entry;
  if (pool == nullptr || !entry.open()) return VPMM_WOULD_BLOCK;
  try {
    return pool->context->deallocate_if_ready(to_device_ptr(ptr), to_stream(stream))
               ? VPMM_OK
               : VPMM_WOULD_BLOCK;
  } catch (...) {
    return VPMM_WOULD_BLOCK;
  }
}

vpmm_status vpmm_deallocate_any_stream(vpmm_pool* pool, void* ptr) {
  return deallocate(pool, ptr, std::nullopt);
}

void vpmm_deallocate_deferred(vpmm_pool* pool, void* ptr) {
  if (pool == nullptr || ptr == nullptr) return;
  const process::GateEntry entry;
  if (entry.open()) pool->context->deallocate_deferred(to_device_ptr(ptr));
}

// Null is the result for zero bytes, without a use.
vpmm_status vpmm_record_use(vpmm_pool* pool, void* ptr, vpmm_stream stream) {
  return with_pool(pool, [&](Context& context) -> Result<void> {
    if (ptr == nullptr) return {};
    return context.record_use(to_device_ptr(ptr), to_stream(stream));
  });
}

vpmm_status vpmm_stream_wait(vpmm_pool* pool, vpmm_stream waiting, vpmm_stream first) {
  return with_pool(pool, [&](Context& context) {
    return context.streams().make_wait(to_stream(waiting), to_stream(first));
  });
}

vpmm_status vpmm_query(vpmm_pool* pool, const void* ptr, vpmm_allocation_info* info) {
  return with_pool(pool, [&](Context& context) -> Result<void> {
    VPMM_TRY(require(info, "info"));
    VPMM_TRY(check_size(info->size, kFirstInfoVersion, "vpmm_allocation_info"));
    VPMM_TRY_ASSIGN(const auto found, context.query(to_device_ptr(ptr)));
    copy_out(vpmm_allocation_info{0, to_pointer(found.begin), found.requested, found.usable}, info);
    return {};
  });
}

vpmm_status vpmm_usable_size(vpmm_pool* pool, const void* ptr, size_t* bytes) {
  return with_pool(pool, [&](Context& context) -> Result<void> {
    VPMM_TRY(require(bytes, "bytes"));
    if (ptr == nullptr) return *bytes = 0, Result<void>{};
    VPMM_TRY_ASSIGN(const auto found, context.query(to_device_ptr(ptr)));
    *bytes = found.usable;
    return {};
  });
}
