// SPDX-License-Identifier: Apache-2.0
// property tests: requests of special kinds, calls that only try, and memory that others use.
#include <algorithm>

#include <fmt/format.h>

#include "property/world.hpp"

namespace vpmm::property {

namespace {
constexpr std::uint32_t kTag = 7;  // never suspended
}  // namespace

void World::operator()(const AllocateSpecial& o) {
  if (allocations_.size() >= kMostAllocations || o.bytes == 0 || !has_pool()) return;
  const std::size_t number = o.device % devices_.size();
  Device& at = devices_[number];
  const bool is_named = o.stream != kAnyStream;
  const Stream& stream =
      at.streams[is_named ? o.stream % at.streams.size() : o.bytes % at.streams.size()];
  pool::Request request{o.bytes, 0, is_named ? pool::Stream(stream.handle) : std::nullopt};
  request.one_chunk = o.one_chunk;
  request.tag = o.is_tagged ? kTag : 0;
  say("stage_allocate_tagged(pool[{}], {}u, {}, {}, s[{}], {}, &p[{}]);", number, o.bytes,
      request.tag, o.one_chunk ? 1 : 0, stream.key, is_named ? 1 : 0, next_number_);
  const auto result = call(Bears::faults, [&] { return at.pool->allocate(request); });
  if (!result && may_have_failed(result.error(), "allocate")) return;
  if (!result) return judge_request(number, result.error(), {round_up(o.bytes, page()), 0});
  take_over(number, stream, is_named, {result.value(), o.bytes, 0, 0});
}

// A call that only tries neither maps nor waits.
void World::check_prompt(const observe::Statistics& before, const observe::Statistics& after) {
  const std::uint64_t calls = after.driver_calls - before.driver_calls;
  const std::uint64_t waits = after.host_waits + after.pauses - before.host_waits - before.pauses;
  if (calls + waits != 0)
    fail(fmt::format("try: the call made {} calls for memory and waited {} times", calls, waits));
}

void World::operator()(const TryAllocate& o) {
  if (allocations_.size() >= kMostAllocations || o.bytes == 0) return;
  const std::size_t number = o.device % devices_.size();
  Device& at = devices_[number];
  const bool is_named = o.stream != kAnyStream;
  const Stream& stream =
      at.streams[is_named ? o.stream % at.streams.size() : o.bytes % at.streams.size()];
  if (is_named)
    say("vpmm_try_allocate(pool[{}], {}u, 0, s[{}], &p[{}]);", number, o.bytes, stream.key,
        next_number_);
  else
    say("vpmm_try_allocate_any_stream(pool[{}], {}u, 0, &p[{}]);", number, o.bytes, next_number_);
  const observe::Statistics before = at.pool->reports().statistics();
  const auto result = call(Bears::nothing, [&]() -> Result<DevicePtr> {
    return is_named ? at.pool->allocate_if_ready(o.bytes, 0, stream.handle)
                    : at.pool->allocate_if_ready(o.bytes, 0);
  });
  check_prompt(before, at.pool->reports().statistics());
  if (!result || is_null(result.value())) return;
  take_over(number, stream, is_named, {result.value(), o.bytes, 0, 0});
}

void World::operator()(const TryFree& o) {
  Allocation* const allocation = pick(o.allocation);
  if (allocation == nullptr) return;
  Device& at = devices_[allocation->device];
  const Stream* const home = find_stream(at, allocation->home);
  if (home == nullptr) return;
  if (const Stream* const stream = work_stream(*allocation)) read(*allocation, *stream);
  say("vpmm_try_deallocate(pool[{}], p[{}], s[{}]);", allocation->device, allocation->number,
      home->key);
  const observe::Statistics before = at.pool->reports().statistics();
  const auto result = call(Bears::nothing, [&]() -> Result<bool> {
    return at.pool->deallocate_if_ready(allocation->ptr, home->handle);
  });
  check_prompt(before, at.pool->reports().statistics());
  if (!result || !result.value()) return;
  note_freed(*allocation, Shared::Freed::yes, home);
  forget(*allocation);
}

void World::operator()(const OthersUse& o) {
  const std::size_t gpu = gpu_of(o.device % devices_.size());
  const Bytes bytes = std::min(
      o.bytes, scene_.sim.capacity - std::min(scene_.sim.capacity, sim_.census().physical_bytes));
  acted_ = true;
  say("stage_others_use({}, {}u);", gpu, bytes);
  sim_.set_used_by_others(static_cast<int>(gpu), bytes);
  references_[gpu].set_used_by_others(bytes);
}

void World::operator()(const DeferCleanup& o) {
  const std::size_t number = o.device % devices_.size();
  Device& at = devices_[number];
  at.defers_cleanup = !at.defers_cleanup;
  acted_ = true;
  say("CALL(vpmm_defer_cleanup_{}(pool[{}]));", at.defers_cleanup ? "begin" : "end", number);
  if (at.defers_cleanup) return at.pool->limits().defer_cleanup_begin();
  expect(call(Bears::nothing, [&] { return at.pool->limits().defer_cleanup_end(); }),
         "defer_cleanup_end");
}

}  // namespace vpmm::property
