// SPDX-License-Identifier: Apache-2.0
// capi: bound streams, and many allocations at once.
#include <algorithm>
#include <span>
#include <string>
#include <vector>

#include "capi/call.hpp"

using namespace vpmm;
using namespace vpmm::capi;
using context::BoundStream;
using context::Context;

namespace {

// A handle of the C ABI is the object's address.
BoundStream* stream_of(vpmm_bound_stream* bound) { return reinterpret_cast<BoundStream*>(bound); }

// Needs no gate: no driver call, and no lock that a fork could leave taken.
template <typename Work>
bool served_from_cache(Work&& work) noexcept {
  try {
    return std::forward<Work>(work)();
  } catch (...) {
    return false;  // the slow way meets and reports the same
  }
}

Result<void> check_count(std::size_t count) {
  if (count <= std::vector<DevicePtr>().max_size()) return {};
  return Error{ErrorCode::invalid_argument,
               "`count` is " + std::to_string(count) + ": more than memory could hold"};
}

// Separate functions, so that calls served from a cache skip their set-up.
[[gnu::noinline]] vpmm_status allocate_beyond(vpmm_bound_stream* bound, std::size_t bytes,
                                              std::size_t alignment, void** ptr) noexcept {
  return gated(WhenEnding::fail, [&]() -> Result<void> {
    VPMM_TRY(require(bound, "bound"));
    VPMM_TRY(require(ptr, "ptr"));
    VPMM_TRY_ASSIGN(const DevicePtr begin, stream_of(bound)->allocate_beyond(bytes, alignment));
    *ptr = to_pointer(begin);
    return {};
  });
}

[[gnu::noinline]] vpmm_status deallocate_beyond(vpmm_bound_stream* bound, void* ptr) noexcept {
  return gated(WhenEnding::do_nothing, [&]() -> Result<void> {
    VPMM_TRY(require(bound, "bound"));
    return stream_of(bound)->deallocate_beyond(to_device_ptr(ptr));
  });
}

}  // namespace

vpmm_status vpmm_stream_bind(vpmm_pool* pool, vpmm_stream stream, vpmm_bound_stream** bound) {
  return with_pool(pool, [&](Context& context) -> Result<void> {
    VPMM_TRY(require(bound, "bound"));
    VPMM_TRY_ASSIGN(auto created, context.bind(to_stream(stream)));
    *bound = reinterpret_cast<vpmm_bound_stream*>(created.release());
    return {};
  });
}

void vpmm_stream_unbind(vpmm_bound_stream* bound) {
  if (bound == nullptr) return;
  const process::GateEntry entry;
  if (entry.open()) delete stream_of(bound);
}

vpmm_status vpmm_bound_allocate(vpmm_bound_stream* bound, size_t bytes, size_t alignment,
                                void** ptr) {
  if (bound != nullptr && ptr != nullptr) {
    const bool is_done = served_from_cache([&] {
      const DevicePtr begin = stream_of(bound)->try_allocate(bytes, alignment);
      if (is_null(begin)) return false;
      *ptr = to_pointer(begin);
      return true;
    });
    if (is_done) return VPMM_OK;
  }
  return allocate_beyond(bound, bytes, alignment, ptr);
}

vpmm_status vpmm_bound_deallocate(vpmm_bound_stream* bound, void* ptr) {
  if (ptr == nullptr) return VPMM_OK;
  if (bound != nullptr &&
      served_from_cache([&] { return stream_of(bound)->try_deallocate(to_device_ptr(ptr)); }))
    return VPMM_OK;
  return deallocate_beyond(bound, ptr);
}

vpmm_status vpmm_allocate_many(vpmm_pool* pool, const size_t* bytes, size_t count,
                               vpmm_stream stream, void** ptrs) {
  return with_pool(pool, [&](Context& context) -> Result<void> {
    if (count == 0) return {};
    VPMM_TRY(require(bytes, "bytes"));
    VPMM_TRY(require(ptrs, "ptrs"));
    VPMM_TRY(check_count(count));
    const std::vector<Bytes> sizes(bytes, bytes + count);
    std::vector<DevicePtr> begins(count);
    VPMM_TRY(context.allocate_many(sizes, to_stream(stream), begins));
    std::transform(begins.begin(), begins.end(), ptrs, to_pointer);
    return {};
  });
}

vpmm_status vpmm_deallocate_many(vpmm_pool* pool, void* const* ptrs, size_t count,
                                 vpmm_stream stream) {
  return with_pool(
      pool,
      [&](Context& context) -> Result<void> {
        if (count == 0) return {};
        VPMM_TRY(require(ptrs, "ptrs"));
        VPMM_TRY(check_count(count));
        std::vector<DevicePtr> begins(count);
        std::transform(ptrs, ptrs + count, begins.begin(), to_device_ptr);
        return context.deallocate_many(begins, to_stream(stream));
      },
      WhenEnding::do_nothing);
}
