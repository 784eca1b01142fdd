// context: calls that are served from what their stream has in hand: no lock but its shard's, no driver work.
//
// Note [What the fast path may skip]
// It makes no event, no wait and no mapping call, so nothing that other calls guard against can go wrong on it: a reset
// by others matters before an event is touched, a capture before work is queued. What it must know is which stream
// calls. A raw handle is asked for its id, for handles are used again, after asking whether it captures, for a
// capturing stream has no id; a bound stream has been asked before.
#include <algorithm>
#include <utility>

#include "base/message.hpp"
#include "context/bound.hpp"
#include "context/process_gate.hpp"
#include "context/visit.hpp"
#include "driver/driver_error.hpp"

namespace vpmm::context {

using driver::CuResult;
using small::CacheGuard;
using small::Extent;
using small::Shard;
using small::Slab;
using Location = small::SmallPool::Location;

namespace {

// Others that missed want events for this stream's frees: one for at least so many bytes, not sooner than that after
// the last, and only so many, so that a program in a steady state pays for none. Of many streams each has fewer: all of
// them together make at most eight in a millisecond. To look at the clock costs as much as a free, so whoever found it
// too early frees twice as much before it looks again.
constexpr Bytes kBytesPerEvent = 8 * kMiB;
constexpr Bytes kMostBytesPerLook = 64 * kMiB;
constexpr std::uint64_t kEventIntervalNs = 500'000;  // of up to four streams
constexpr std::uint64_t kStreamsPerInterval = 4;
constexpr std::uint64_t kEventsPerMiss = 64;

// Requests that may be served while deferred frees wait for somebody to carry them out.
constexpr std::uint64_t kServedBesideDeferred = 64;

bool is_default(driver::StreamHandle stream) {
  return stream == driver::kNullStream || stream == driver::kLegacyStream || stream == driver::kPerThreadStream;
}

}  // namespace

void DeviceContext::refresh_fast_path() {
  // Only a change is written: every other thread reads them on every call.
  const auto note = [](std::atomic<bool>& flag, bool is_set) {
    if (flag.load(std::memory_order_relaxed) != is_set) flag.store(is_set);
  };
  note(is_fast_, small_ != nullptr && primary_.load() != 0 && !is_poisoned_.load() && !recording_);
  note(may_capture_, announced_captures_ != 0 || !seen_capturing_.empty());
}

DeviceContext::Known DeviceContext::known(driver::StreamHandle stream) const {
  if (!is_fast_.load(std::memory_order_relaxed) || process_is_ending()) return {};
  if (is_default(stream)) {
    // These belong to the context that is current, and their ids outlive a reset.
    driver::ContextHandle current{};
    driver::ContextId id{};
    const driver::ContextHandle primary{primary_.load(std::memory_order_relaxed)};
    if (inner_driver_.ctx_get_current(current) != CuResult::success || current != primary) return {};
    if (!has_context_ids_ || inner_driver_.ctx_get_id(primary, id) != CuResult::success ||
        id != driver::ContextId{primary_id_.load(std::memory_order_relaxed)})
      return {};
  }
  driver::CaptureStatus status{};
  driver::StreamId id{};
  if (inner_driver_.stream_is_capturing(stream, status) != CuResult::success || status != driver::CaptureStatus::none)
    return {};
  if (inner_driver_.stream_get_id(stream, id) != CuResult::success) return {};
  return {streams_.find(static_cast<std::uint64_t>(id)), id, stream};
}

// --- in hand -------------------------------------------------------------------------------------------------------
// `flatten` makes one function of a warm call, without a record of where things are between two: a tenth of a pair.

static_assert(small::kLeastRun < small::kLeastPage, "a block is smaller than any page that is cut");

bool DeviceContext::is_ever_in_hand(Bytes bytes, Bytes alignment) const {
  return pool_ != nullptr && bytes <= small::kMostPages * page_size_ && alignment <= small::kGrain &&
         (alignment & (alignment - 1)) == 0;
}

[[gnu::flatten]] DevicePtr DeviceContext::take_in_hand(const Known& known, Bytes bytes) {
  Shard& shard = *known.shard;
  DevicePtr begin{};
  Bytes size = 0;
  const CacheGuard guard(shard);
  if (shard.stream.load(std::memory_order_relaxed) != static_cast<std::uint64_t>(known.id) ||
      shard.wants_attention.load(std::memory_order_relaxed))
    return {};
  if (serves_small_ && bytes <= small::kLargestBlock) {
    const std::size_t slab_class = small::slab_class(bytes);
    begin = shard.take_block(slab_class, bytes);
    size = small::kShapes[slab_class].block;
  } else if (serves_small_ && small_->serves(bytes, 0)) {
    begin = shard.take_run(bytes);
    size = small::run_units(bytes) * small::kUnit;
  } else if (somm_ == nullptr || bytes >= page_size_) {
    const std::uint64_t pages = page_unit_.pages_up(bytes);
    if (pages > small::kMostPages || config_.page_chunks) return {};
    region::Region* const region = shard.take_pages(pages);
    if (region == nullptr) return {};
    begin = region->range.begin;
    size = region->range.size;
    region->asked = bytes;
    shard.tally.begin(bytes, size);
  }
  if (is_null(begin)) return {};
  ++shard.activity;
  if (observer_ != nullptr && known.stream) observer_->on_allocate({begin, size}, *known.stream);
  if (observer_ != nullptr && !known.stream) observer_->on_allocate_any_stream({begin, size});
  return begin;
}

[[gnu::flatten]] bool DeviceContext::keep_in_hand(const Known& known, DevicePtr ptr) {
  const Location at = small_->locate(ptr);
  if (at.shard == nullptr || at.shard != known.shard) return false;
  Shard& shard = *at.shard;
  const CacheGuard guard(shard);
  if (shard.stream.load(std::memory_order_relaxed) != static_cast<std::uint64_t>(known.id) ||
      shard.wants_attention.load(std::memory_order_relaxed))
    return false;
  return keep_locked(at, ptr, known.stream);
}

// Note [A free may go by the handle]
// Handles are used again, so which stream an *allocation* is for is asked every time. A free that names the handle by
// which the stream of that very allocation called last need not ask: whether it is still that stream, or a later one
// with its handle, the memory goes where the first would have put it. Only that stream's own later work takes it from
// there without proof, and a stream that is no more has none; everybody else needs an event of the whole context,
// which covers the later stream as well. A stream that is being captured cannot harm either: it gets no ordinary memory
// before the capture is over. Nor can a stream of a context that others made since a reset: what is in hand when that
// is noticed waits for an event of the new context (Note [In hand at a reset]). That the later stream belongs to
// another context of the device, and calls for the first time with this free, is the one thing that is not noticed.
[[gnu::flatten]] DeviceContext::Kept DeviceContext::keep_by_handle(DevicePtr ptr, driver::StreamHandle stream) {
  if (!is_fast_.load(std::memory_order_relaxed) || process_is_ending()) return Kept::no;
  if (static_cast<std::uint64_t>(stream) == small::kNoHandle) return Kept::no;
  const Location at = small_->locate(ptr);
  Shard* const shard = at.shard;
  if (shard == nullptr || shard->handle.load(std::memory_order_relaxed) != static_cast<std::uint64_t>(stream))
    return Kept::not_asked;
  const CacheGuard guard(*shard);
  const bool is_in_service = shard->handle.load(std::memory_order_relaxed) == static_cast<std::uint64_t>(stream) &&
                             !shard->wants_attention.load(std::memory_order_relaxed);
  // Of the two streams it may be, neither is named.
  return is_in_service && keep_locked(at, ptr, std::nullopt) ? Kept::yes : Kept::no;
}

// What is anybody else's, was used elsewhere, or is no live allocation at all, is for the way through the pool's lock.
bool DeviceContext::keep_locked(const Location& at, DevicePtr ptr, const Stream& stream) {
  Shard& shard = *at.shard;
  if (region::Region* const pages = at.owner.region()) return keep_pages(shard, *at.entry, *pages, ptr, stream);
  if (at.owner.extent() != nullptr) {
    Extent& extent = *at.owner.extent();
    if (extent.shard() != &shard || !extent.range().contains(ptr)) return false;
    const std::uint64_t unit = extent.unit_of(ptr);
    if (extent.at(unit) != ptr || !extent.has_run_at(unit) || extent.is_used_elsewhere(unit)) return false;
    const Bytes requested = extent.requested(unit);
    if (!may_keep(shard, {ptr, small::run_units(requested) * small::kUnit}, stream)) return false;
    shard.give_run(extent, unit, requested);
    return true;
  }
  Slab* const slab = at.owner.slab();
  if (slab == nullptr || slab->shard() != &shard) return false;
  const std::uint64_t index = slab->index_of(ptr);
  if (!slab->is_live(index) || slab->block(index) != ptr || slab->is_used_elsewhere(index)) return false;
  if (!may_keep(shard, {ptr, slab->block_bytes()}, stream)) return false;
  shard.give_block(slab, index);
  return true;
}

bool DeviceContext::keep_pages(Shard& shard, const small::PageEntry& entry, region::Region& region, DevicePtr ptr,
                               const Stream& stream) {
  // What is listed leaves its entry under the lock of the shard that stands there: who came too late finds another one.
  if (entry.owner() != small::Owner(&region) || entry.shard() != &shard) return false;
  const std::uint64_t pages = page_unit_.pages_up(region.tenant.requested);
  if (pages > small::kMostPages || config_.page_chunks) return false;
  if (region.range.begin != ptr || small::holder_of(region) != nullptr || region.tenant.timeline != shard.timeline ||
      !region.tenant.other_uses.empty() || region.tenant.capture != 0)
    return false;
  if (!shard.pages.provide(pages) || !may_keep(shard, region.range, stream)) return false;
  shard.tally.end(region.asked, region.range.size);
  shard.keep_pages(&region, pages);
  return true;
}

// False: others wait for an event on this stream, and this free is the one to record it at.
bool DeviceContext::may_keep(Shard& shard, AddressRange range, const Stream& stream) {
  if (is_event_due(shard, range.size)) return false;
  ++shard.activity;
  if (observer_ == nullptr) return true;
  if (stream)
    observer_->on_deallocate(range, *stream);
  else
    observer_->on_deallocate_any_stream(range);
  return true;
}

bool DeviceContext::is_event_due(Shard& shard, Bytes freed) const {
  if (shard.misses_seen != small_->misses()) {
    shard.misses_seen = small_->misses();
    const bool was_satisfied = std::exchange(shard.closings_left, kEventsPerMiss) == 0;
    if (was_satisfied) shard.bytes_per_look = kBytesPerEvent;
  }
  if (shard.closings_left == 0) return false;
  shard.bytes_freed += freed;
  if (shard.bytes_freed < shard.bytes_per_look) return false;
  shard.bytes_freed = 0;
  const std::uint64_t now = inner_driver_.now_ns();
  const std::uint64_t streams = std::max(kStreamsPerInterval, small_->stream_count());
  if (now - shard.closed_ns < kEventIntervalNs * streams / kStreamsPerInterval) {
    shard.bytes_per_look = std::min(2 * shard.bytes_per_look, kMostBytesPerLook);
    return false;
  }
  shard.bytes_per_look = kBytesPerEvent;
  shard.closed_ns = now;
  --shard.closings_left;
  shard.wants_event = true;
  return true;
}

// A free that came here only to have an event recorded behind it stays in hand: whoever takes it from there finds the
// event, and its own stream need not come back for it.
bool DeviceContext::keep_before_event(const pool::Caller& caller, DevicePtr ptr) {
  if (!is_fast_.load(std::memory_order_relaxed) || caller.timeline == nullptr || !caller.stream ||
      caller.standing != pool::Standing::ordinary || caller.timeline->is_over)
    return false;
  Shard& shard = small_->shard_of(*caller.timeline);
  {
    const CacheGuard guard(shard);
    if (!shard.wants_event) return false;
  }
  return keep_in_hand({&shard, *caller.timeline->stream, *caller.stream}, ptr);
}

// The call took the pool's lock, so it can do what others asked this stream for.
void DeviceContext::answer_attention(const pool::Caller& caller) {
  if (small_ == nullptr || caller.timeline == nullptr || caller.standing != pool::Standing::ordinary) return;
  Shard& shard = small_->shard_of(*caller.timeline);
  {
    const CacheGuard guard(shard);
    shard.wants_attention.store(false, std::memory_order_relaxed);
    ++shard.activity;
    caller.timeline->wanted = std::exchange(shard.wants_event, false) || caller.timeline->wanted;
  }
  const std::uint64_t stream = shard.stream.load(std::memory_order_relaxed);
  if (stream != 0) streams_.note(stream, shard);
  const bool is_primary = caller.timeline->context_id == timelines_.primary_id();
  if (is_primary && caller.stream && *caller.stream != driver::kPerThreadStream)
    shard.handle.store(static_cast<std::uint64_t>(*caller.stream), std::memory_order_relaxed);
}

// --- public calls --------------------------------------------------------------------------------------------------

Result<DevicePtr> DeviceContext::allocate(const Request& request) {
  if (request.bytes == 0) return DevicePtr{};
  if (request.stream && is_ever_in_hand(request.bytes, request.alignment)) {
    const Known caller = known(*request.stream);
    if (caller.shard != nullptr) {
      const DevicePtr begin = take_in_hand(caller, request.bytes);
      if (!is_null(begin)) return begin;
    }
  }
  return allocate_slowly(request, nullptr);
}

// Note [What is ready for any stream]
// What any-stream users have in hand is complete, and so is what the pool gives them. So a request is served from
// either without asking anybody; for the pool's lock nobody waits. A python program calls this with its interpreter
// locked. Frees that finalizers deferred are carried out by the ordinary calls, so after some requests that found such
// frees waiting, and for whole pages at once, the answer is no.
DevicePtr DeviceContext::allocate_if_ready(Bytes bytes, Bytes alignment) {
  if (bytes == 0 || !is_fast_.load(std::memory_order_relaxed) || process_is_ending()) return {};
  const bool is_small = serves_small_ && small_->serves(bytes, alignment);
  if (!is_small) return take_pages_if_ready(bytes, alignment);
  if (!is_ever_in_hand(bytes, alignment)) return {};
  if (!deferred_.empty() && served_beside_deferred_.fetch_add(1, std::memory_order_relaxed) >= kServedBesideDeferred)
    return {};
  return take_in_hand({&small_->any_stream_shard(), driver::StreamId{}, std::nullopt}, bytes);
}

DevicePtr DeviceContext::take_pages_if_ready(Bytes bytes, Bytes alignment) {
  const bool is_for_the_pool = somm_ == nullptr || bytes >= page_size_;
  if (!is_for_the_pool || config_.page_chunks || bytes > kAddressSpace || !deferred_.empty()) return {};
  const Bytes natural = pool_->page_alignment();
  if (alignment > natural || (alignment & (alignment - 1)) != 0) return {};
  if (!mutex_.try_lock()) return {};
  const PoolLock lock(mutex_, std::adopt_lock);
  const HostPromise promise;
  if (!has_preallocated_ || recording_ || !promise.is_kept()) return {};
  const pool::Caller caller;
  deferred_.provide(live_allocations() + 1);  // it may throw, so before anything is taken
  const std::optional<pool::Placed> found = pool_->find({bytes, round_up(bytes, page_size_), natural}, caller);
  if (!found) return {};
  const DevicePtr begin = found->begin;
  afterwards([&]() VPMM_REQUIRES(pool_lock) {
    announce_allocation(begin, {bytes, alignment, std::nullopt}, caller);
    note_peaks(caller);
  });
  return begin;
}

Result<void> DeviceContext::deallocate(DevicePtr ptr, Stream stream) {
  if (is_null(ptr)) return {};
  const Kept kept = stream ? keep_by_handle(ptr, *stream) : Kept::no;
  if (kept == Kept::yes) return {};
  if (kept == Kept::not_asked) {
    const Known caller = known(*stream);
    if (caller.shard != nullptr && keep_in_hand(caller, ptr)) return {};
  }
  return deallocate_slowly(ptr, stream, nullptr);
}

// The stream is asked for its id once. All or none, also when the out-of-memory callback throws.
Result<void> DeviceContext::allocate_many(std::span<const Bytes> bytes, Stream stream, std::span<DevicePtr> out) {
  if (bytes.size() != out.size())
    return Error{ErrorCode::invalid_argument, message_of("{} sizes and {} results", bytes.size(), out.size())};
  const Known caller = stream ? known(*stream) : Known{};
  const auto take_back = [&](std::size_t made) {
    for (const DevicePtr ptr : out.first(made)) free_surely(ptr, stream);
    std::fill(out.begin(), out.end(), DevicePtr{});
  };
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    out[i] = DevicePtr{};
    if (bytes[i] == 0) continue;
    if (caller.shard != nullptr && is_ever_in_hand(bytes[i], 0)) out[i] = take_in_hand(caller, bytes[i]);
    if (!is_null(out[i])) continue;
    try {
      Result<DevicePtr> slow = allocate_slowly({bytes[i], 0, stream}, nullptr);
      if (slow) {
        out[i] = slow.value();
        continue;
      }
      take_back(i);
      return std::move(slow.error());
    } catch (...) {
      take_back(i);
      throw;
    }
  }
  return {};
}

// What cannot be freed now for want of host memory is freed later.
void DeviceContext::free_surely(DevicePtr ptr, Stream stream) noexcept {
  try {
    const Result<void> freed = deallocate(ptr, stream);
    if (freed || freed.error().code != ErrorCode::host_out_of_memory) return;
  } catch (...) {  // NOLINT(bugprone-empty-catch): no host memory, likewise
  }
  deallocate_deferred(ptr);
}

Result<void> DeviceContext::deallocate_many(std::span<const DevicePtr> pointers, Stream stream) {
  const Known caller = stream ? known(*stream) : Known{};
  Result<void> first;
  for (const DevicePtr ptr : pointers) {
    if (is_null(ptr) || (caller.shard != nullptr && keep_in_hand(caller, ptr))) continue;
    Result<void> freed = deallocate_slowly(ptr, stream, nullptr);
    if (!freed && first) first = std::move(freed);
  }
  return first;
}

// --- bound streams -------------------------------------------------------------------------------------------------

Result<std::unique_ptr<BoundStream>> DeviceContext::bind(driver::StreamHandle stream) {
  Visit visit(*this);
  VPMM_TRY(visit.status());
  VPMM_TRY_ASSIGN(const pool::Caller caller, visit.identify(stream));
  if (caller.timeline == nullptr)
    return Error{ErrorCode::capture_active, "a stream that is being captured cannot be bound"};
  Known known{nullptr, *caller.timeline->stream, stream};
  if (small_ != nullptr) known.shard = &small_->shard_of(*caller.timeline);
  std::unique_ptr<BoundStream> bound = std::make_unique<Bound>(*this, known, caller.timeline->id);
  ++caller.timeline->callers;  // which its end takes back
  return bound;
}

DeviceContext::Bound::~Bound() {
  if (process_is_ending()) return;
  const PoolLock lock(context_.mutex_);
  if (time::Timeline* timeline = context_.timelines_.find(timeline_)) --timeline->callers;
}

bool DeviceContext::Bound::is_fast() const {
  return known_.shard != nullptr && context_.is_fast_.load(std::memory_order_relaxed) &&
         !context_.may_capture_.load(std::memory_order_relaxed) && !process_is_ending();
}

DevicePtr DeviceContext::Bound::allocate_in_hand(Bytes bytes, Bytes alignment) {
  if (bytes == 0 || !is_fast() || !context_.is_ever_in_hand(bytes, alignment)) return {};
  return context_.take_in_hand(known_, bytes);
}

bool DeviceContext::Bound::deallocate_in_hand(DevicePtr ptr) {
  return !is_null(ptr) && is_fast() && context_.keep_in_hand(known_, ptr);
}

Result<DevicePtr> DeviceContext::Bound::allocate_beyond(Bytes bytes, Bytes alignment) {
  if (bytes == 0) return DevicePtr{};
  return context_.allocate_slowly({bytes, alignment, known_.stream}, this);
}

Result<void> DeviceContext::Bound::deallocate_beyond(DevicePtr ptr) {
  if (is_null(ptr)) return {};
  return context_.deallocate_slowly(ptr, known_.stream, this);
}

}  // namespace vpmm::context
