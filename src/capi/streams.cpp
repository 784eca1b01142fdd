// capi: bound streams, and many allocations at once.
#include <span>
#include <string>
#include <vector>

#include "base/line_allocator.hpp"
#include "capi/call.hpp"

using namespace vpmm;
using namespace vpmm::capi;
using context::Context;

// Read at every call, so nothing else is on its line.
struct alignas(kCacheLine) vpmm_bound_stream {
  std::unique_ptr<context::BoundStream> stream;
};

namespace {

// No driver call and no lock that a fork could leave taken, so it needs no gate.
template <typename Work>
bool in_hand(Work&& work) noexcept {
  try {
    return std::forward<Work>(work)();
  } catch (...) {
    return false;  // the slow way meets the same and reports it
  }
}

Result<void> check_count(std::size_t count) {
  if (count <= std::vector<DevicePtr>().max_size()) return {};
  return Error{ErrorCode::invalid_argument, "`count` is " + std::to_string(count) + ": more than memory could hold"};
}

}  // namespace

vpmm_status vpmm_stream_bind(vpmm_pool* pool, vpmm_stream stream, vpmm_bound_stream** bound) {
  return with_pool(pool, [&](Context& context) -> Result<void> {
    VPMM_TRY(require(bound, "bound"));
    auto created = std::make_unique<vpmm_bound_stream>();
    VPMM_TRY_ASSIGN(created->stream, context.bind(to_stream(stream)));
    *bound = created.release();
    return {};
  });
}

void vpmm_stream_unbind(vpmm_bound_stream* bound) {
  if (bound == nullptr) return;
  const context::GateEntry entry;
  if (entry.open()) delete bound;
}

vpmm_status vpmm_bound_allocate(vpmm_bound_stream* bound, size_t bytes, size_t alignment, void** ptr) {
  if (bound != nullptr && ptr != nullptr) {
    const bool is_done = in_hand([&] {
      const DevicePtr begin = bound->stream->allocate_in_hand(bytes, alignment);
      if (is_null(begin)) return false;
      *ptr = to_pointer(begin);
      return true;
    });
    if (is_done) return VPMM_OK;
  }
  return gated(WhenEnding::fail, [&]() -> Result<void> {
    VPMM_TRY(require(bound, "bound"));
    VPMM_TRY(require(ptr, "ptr"));
    VPMM_TRY_ASSIGN(const DevicePtr begin, bound->stream->allocate_beyond(bytes, alignment));
    *ptr = to_pointer(begin);
    return {};
  });
}

vpmm_status vpmm_bound_deallocate(vpmm_bound_stream* bound, void* ptr) {
  if (ptr == nullptr) return VPMM_OK;
  if (bound != nullptr && in_hand([&] { return bound->stream->deallocate_in_hand(to_device_ptr(ptr)); }))
    return VPMM_OK;
  return gated(WhenEnding::do_nothing, [&]() -> Result<void> {
    VPMM_TRY(require(bound, "bound"));
    return bound->stream->deallocate_beyond(to_device_ptr(ptr));
  });
}

vpmm_status vpmm_allocate_many(vpmm_pool* pool, const size_t* bytes, size_t count, vpmm_stream stream, void** ptrs) {
  return with_pool(pool, [&](Context& context) -> Result<void> {
    if (count == 0) return {};
    VPMM_TRY(require(bytes, "bytes"));
    VPMM_TRY(require(ptrs, "ptrs"));
    VPMM_TRY(check_count(count));
    const std::vector<Bytes> sizes(bytes, bytes + count);
    std::vector<DevicePtr> begins(count);
    VPMM_TRY(context.allocate_many(sizes, to_stream(stream), begins));
    for (std::size_t i = 0; i < count; ++i) ptrs[i] = to_pointer(begins[i]);
    return {};
  });
}

vpmm_status vpmm_deallocate_many(vpmm_pool* pool, void* const* ptrs, size_t count, vpmm_stream stream) {
  return with_pool(
      pool,
      [&](Context& context) -> Result<void> {
        if (count == 0) return {};
        VPMM_TRY(require(ptrs, "ptrs"));
        VPMM_TRY(check_count(count));
        std::vector<DevicePtr> begins(count);
        for (std::size_t i = 0; i < count; ++i) begins[i] = to_device_ptr(ptrs[i]);
        return context.deallocate_many(begins, to_stream(stream));
      },
      WhenEnding::do_nothing);
}
