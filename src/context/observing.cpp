// context: figures, pictures, limits and recording.
#include <algorithm>

#include "base/message.hpp"
#include "base/scope_exit.hpp"
#include "context/neighbours.hpp"
#include "context/process_gate.hpp"
#include "context/recordings.hpp"
#include "context/visit.hpp"
#include "driver/driver_error.hpp"

namespace vpmm::context {

using driver::Call;
using region::RegionState;

namespace {

char kind_of(RegionState state) {
  switch (state) {
    case RegionState::hole: return '*';
    case RegionState::free: return '-';
    case RegionState::allocated: return ' ';
    case RegionState::zombie: return '~';
    case RegionState::in_flight: return '#';
  }
  return '?';
}

bool has_unproven(const time::Timelines& timelines) VPMM_REQUIRES(pool_lock) {
  bool found = false;
  timelines.for_each([&](const time::Timeline& timeline) { found = found || timeline.provable < timeline.last; });
  return found;
}

}  // namespace

Error not_inside(DevicePtr ptr) {
  return {ErrorCode::invalid_pointer,
          message_of("{:#x} is not inside a live allocation of this pool", to_integer(ptr))};
}

Result<AllocationInfo> DeviceContext::query(DevicePtr ptr) const {
  const PoolLock lock(mutex_);
  return look_up(ptr);
}

Result<AllocationInfo> DeviceContext::look_up(DevicePtr ptr) const {
  const region::Region* region = pool_ == nullptr ? nullptr : pool_->allocated_around(ptr);
  if (region != nullptr && small::SmallPool::is_arena(*region)) {
    if (const auto small = find_live(*region, ptr))
      return AllocationInfo{small->range.begin, small->requested, small->range.size};
  } else if (region != nullptr && is_live(region)) {
    return AllocationInfo{region->range.begin, small_->requested_of(*region), region->range.size};
  }
  if (const driver_pool::Block* block = driver_pool_ == nullptr ? nullptr : driver_pool_->block_around(ptr))
    return AllocationInfo{block->begin, block->requested, block->requested};
  return not_inside(ptr);
}

bool DeviceContext::is_over_capacity() const {
  return capacity_ && (pool_ == nullptr ? 0 : pool_->mapped_bytes()) + driver_pool_bytes_ > *capacity_;
}

// --- limits ---------------------------------------------------------------------------------------------------------

Result<Bytes> DeviceContext::trim(Bytes bytes_to_keep) {
  Visit visit(*this);
  VPMM_TRY(visit.status());
  MutexLock& lock = visit.lock();
  drain_deferred(lock);
  flush_caches();
  if (has_unproven(timelines_)) prove_everything();  // work that is over must not keep memory because nobody asked
  VPMM_TRY(noted(settle(lock)));
  Bytes released = 0;
  const Bytes held = (pool_ == nullptr ? 0 : pool_->mapped_bytes()) + driver_pool_bytes_;
  if (driver_pool_ != nullptr && held > bytes_to_keep) {
    VPMM_TRY_ASSIGN(released, noted(driver_pool_->trim(lock)));
    driver_pool_bytes_ = driver_pool_->reserved_bytes();
  }
  if (pool_ == nullptr) return released;
  pool_->set_other_bytes(driver_pool_bytes_);
  VPMM_TRY_ASSIGN(const Bytes from_pool, noted(pool_->trim(lock, bytes_to_keep)));
  return released + from_pool;
}

// VPMM_RELEASE_THRESHOLD: idle memory above it goes back without being asked for.
Result<void> DeviceContext::trim_above_threshold(MutexLock& lock) {
  if (pool_ == nullptr || !config_.release_threshold || cleanup_holds_ != 0) return {};
  if (pool_->mapped_bytes() + driver_pool_bytes_ <= *config_.release_threshold) return {};
  flush_caches();
  if (pool_->idle_bytes() == 0) return {};
  VPMM_TRY(settle(lock));
  pool_->set_other_bytes(driver_pool_bytes_);
  VPMM_TRY(pool_->trim(lock, *config_.release_threshold));
  return {};
}

Result<void> DeviceContext::preallocate(Bytes bytes) {
  if (bytes > kAddressSpace)
    return mistake({ErrorCode::invalid_argument, message_of("{} bytes is more than any address space", bytes)});
  Result<void> done = preallocate_mapped(bytes);
  if (done || done.error().code != ErrorCode::out_of_memory) return done;
  const Bytes held = statistics().mapped_bytes;
  return ask_for_idle(bytes - std::min(bytes, held)) > 0 ? preallocate_mapped(bytes) : done;
}

Result<void> DeviceContext::preallocate_mapped(Bytes bytes) {
  Visit visit(*this);
  VPMM_TRY(visit.status());
  if (pool_ == nullptr) return Error{ErrorCode::unsupported, "the virtual memory pool is off or not supported here"};
  pool_->set_other_bytes(driver_pool_bytes_);
  Result<void> done = noted(pool_->preallocate(visit.lock(), bytes));
  note_peaks(Bytes{0});
  return done;
}

// What has to become free on the GPU before it can give us `bytes` more, or as much of that as our own limit allows. 0:
// that would not help, or others cannot be asked now, for their events could break a capture that only we know of.
Bytes DeviceContext::missing_on_gpu(Bytes bytes) {
  driver::MemInfo info;
  if (driver_.mem_get_info(info) != driver::CuResult::success) return 0;
  if (!may_record_context_event()) return 0;
  const Bytes in_use = pool_ == nullptr ? 0 : pool_->wanted_bytes();
  const Bytes held = (pool_ == nullptr ? 0 : pool_->mapped_bytes()) + driver_pool_bytes_;
  const Bytes wanted = round_up(bytes, page_size_);
  if (wanted > info.total - std::min(info.total, in_use)) return 0;  // nobody could make room for it
  const Bytes growth = capacity_ ? std::min(wanted, *capacity_ - std::min(*capacity_, held)) : wanted;
  return growth - std::min(growth, info.free);
}

// Has the other pools of the GPU give back what lacks for `bytes` more. Their waits and events are like ours: a capture
// begins before they are asked, and then they are not, or afterwards.
Bytes DeviceContext::ask_for_idle(Bytes bytes) {
  Bytes missing = 0;
  {
    Visit visit(*this);
    if (visit.status()) missing = missing_on_gpu(bytes);
    if (missing == 0) return 0;
    ++context_waits_;
  }
  const ScopeExit end_wait([this] {
    const PoolLock lock(mutex_);
    --context_waits_;
    context_wait_ended_.notify_all();
  });
  return ask_neighbours(*this, missing);
}

void DeviceContext::set_capacity(std::optional<Bytes> bytes) {
  const PoolLock lock(mutex_);
  capacity_ = bytes;
  if (pool_ != nullptr) pool_->set_capacity(bytes);
}

void DeviceContext::set_out_of_memory_callback(OutOfMemoryCallback callback) {
  const PoolLock lock(mutex_);
  out_of_memory_ = std::move(callback);
}

// --- figures --------------------------------------------------------------------------------------------------------

std::uint64_t DeviceContext::live_allocations() const {
  std::uint64_t live = driver_pool_ == nullptr ? 0 : driver_pool_->live_allocations();
  if (pool_ != nullptr) live += pool_->live_allocations() + small_->most_live();
  return live;
}

void DeviceContext::note_peaks(const pool::Caller& caller) {
  note_peaks(small_ == nullptr ? 0 : small_->take_peak(caller));
}

void DeviceContext::note_peaks(Bytes peak_requested) {
  const Bytes mapped = (pool_ == nullptr ? 0 : pool_->mapped_bytes()) + driver_pool_bytes_;
  peak_mapped_ = std::max(peak_mapped_, mapped);
  peak_of_pool_ = std::max(peak_of_pool_, peak_requested);
  peak_live_ = std::max(peak_live_, peak_requested + (driver_pool_ == nullptr ? 0 : driver_pool_->requested_bytes()));
}

// What streams have cached and nobody uses goes back to the pool.
bool DeviceContext::flush_caches() {
  if (small_ == nullptr) return false;
  note_peaks(small_->take_peak(pool::Caller{}));
  return small_->flush();
}

void DeviceContext::reset_peaks() {
  const PoolLock lock(mutex_);
  if (pool_ != nullptr) pool_->reset_peaks();
  const auto peak = [&]() VPMM_REQUIRES(pool_lock) { return small_ == nullptr ? 0 : small_->take_peak_everywhere(); };
  peak();  // what warm calls had at most before
  peak_mapped_ = peak_live_ = peak_of_pool_ = 0;
  note_peaks(peak());
}

observe::Statistics DeviceContext::statistics() const {
  const PoolLock lock(mutex_);
  return figures();
}

observe::Statistics DeviceContext::figures() const {
  observe::Statistics figures;
  if (pool_ != nullptr) {
    pool_->fill(figures);
    const small::Tally small = small_->tally();
    figures.live_bytes += static_cast<Bytes>(small.requested);
    figures.allocated_bytes += static_cast<Bytes>(small.allocated);
    figures.free_bytes += small_->cached_pages_bytes();
    figures.pending_bytes += small_->pending_bytes();
    figures.small_bytes = small_->arena_bytes();
    figures.small_free_bytes = small_->idle_in_arenas_bytes();
    figures.live_allocations += static_cast<std::uint64_t>(small.live());
    figures.allocations += static_cast<std::uint64_t>(small.allocations);
    figures.hits += static_cast<std::uint64_t>(small.allocations);
    figures.deallocations += static_cast<std::uint64_t>(small.deallocations);
    const Bytes high = pool_->requested_bytes() + static_cast<Bytes>(small.requested_high);
    figures.peak_live_bytes = std::max(high, small_->peak_noted());
  }
  if (driver_pool_ != nullptr) {
    figures.stream_ordered_bytes = driver_pool_bytes_;
    figures.mapped_bytes += driver_pool_bytes_;
    figures.live_bytes += driver_pool_->requested_bytes();
    figures.peak_live_bytes += driver_pool_->requested_bytes();
    figures.allocated_bytes += driver_pool_->requested_bytes();
    figures.pending_bytes += driver_pool_->pending_bytes();
    figures.live_allocations += driver_pool_->live_allocations();
    figures.allocations += driver_pool_->allocations();
    figures.hits += driver_pool_->allocations();
    figures.deallocations += driver_pool_->deallocations();
  }
  figures.peak_mapped_bytes = std::max({peak_mapped_, figures.mapped_bytes, figures.peak_mapped_bytes});
  figures.peak_live_bytes = std::max({peak_live_, figures.live_bytes, figures.peak_live_bytes});
  figures.leased_bytes = shares_.freed_bytes();
  figures.timelines = timelines_.stream_count();
  figures.outstanding_events = timelines_.outstanding_events();
  figures.events_recorded = timelines_.events_recorded();
  figures.failed_allocations = failed_allocations_;
  figures.caller_mistakes = caller_mistakes_;
  figures.host_waits += host_waits_;
  figures.pauses = pauses_;
  figures.driver_calls = driver_.memory_call_count();
  figures.driver_ns = driver_.memory_call_ns();
  return figures;
}

Result<driver::MemInfo> DeviceContext::memory_info() {
  Visit visit(*this);
  VPMM_TRY(visit.status());
  drain_deferred(visit.lock());
  driver::MemInfo info;
  VPMM_TRY(noted(driver::checked(Call::mem_get_info, driver_.mem_get_info(info))));
  if (pool_ != nullptr) info.free += pool_->idle_bytes() + small_->idle_bytes();
  if (driver_pool_ != nullptr && driver_pool_bytes_ > driver_pool_->requested_bytes())
    info.free += driver_pool_bytes_ - driver_pool_->requested_bytes();
  return info;
}

observe::PoolSnapshot DeviceContext::snapshot() const {
  const PoolLock lock(mutex_);
  observe::PoolSnapshot snapshot;
  snapshot.device = device_;
  snapshot.driver = driver_.name();
  snapshot.policy = pool_ == nullptr ? "stream_ordered" : pool_->policy_name();
  snapshot.statistics = figures();
  if (pool_ == nullptr) return snapshot;
  snapshot.page_size = pool_->page_size();
  const Vector<AddressRange>& reservations = pool_->reservations();
  snapshot.reservations.assign(reservations.begin(), reservations.end());
  std::sort(snapshot.reservations.begin(), snapshot.reservations.end(),
            [](const AddressRange& a, const AddressRange& b) { return a.begin < b.begin; });
  const auto live_by_page = small_->live_by_page();
  pool_->for_each_region([&](const region::Region& region) VPMM_REQUIRES(pool_lock) {
    observe::RegionSnapshot picture;
    picture.range = region.range;
    picture.kind = kind_of(region.state);
    picture.complete = region.stamp.is_complete();
    if (small::SmallPool::is_cached(region)) {
      picture.kind = kind_of(RegionState::free);
      picture.complete = false;  // nobody has asked
    } else if (small::SmallPool::is_arena(region)) {
      const auto live = live_by_page.find(&region);
      picture.small_allocations = live == live_by_page.end() ? 0 : live->second.allocations;
      picture.requested = live == live_by_page.end() ? 0 : live->second.requested;
    } else if (region.state == RegionState::allocated) {
      picture.requested = small_->requested_of(region);
    }
    for (const time::StampPart& part : region.stamp.parts())
      picture.stamp += (picture.stamp.empty() ? "" : " and ") + timelines_.describe(part);
    if (region.state == RegionState::allocated && region.owner.timeline)
      picture.stamp = timelines_.describe_stream(*region.owner.timeline);
    snapshot.regions.push_back(std::move(picture));
  });
  return snapshot;
}

std::string DeviceContext::validate() const {
  const PoolLock lock(mutex_);
  if (std::string broken = timelines_.validate(); !broken.empty()) return broken;
  if (std::string broken = shares_.validate(); !broken.empty()) return broken;
  if (driver_pool_ != nullptr)
    if (std::string broken = driver_pool_->validate(); !broken.empty()) return broken;
  if (pool_ == nullptr) return {};
  if (std::string broken = small_->validate(); !broken.empty()) return broken;
  return pool_->validate();
}

// --- recording ------------------------------------------------------------------------------------------------------

Result<void> DeviceContext::start_recording(const std::string& path) {
  if (process_is_ending()) return process_ending_error();
  const Error running{ErrorCode::invalid_argument, "a recording is running already"};
  {
    const PoolLock lock(mutex_);
    if (recording_) return running;  // before a file is replaced, perhaps the one that is being written
  }
  VPMM_TRY_ASSIGN(auto created, observe::TraceWriter::create(path, driver_.now_ns() / 1000));
  const std::shared_ptr<observe::TraceWriter> writer = std::move(created);
  finish_at_exit(writer);
  const PoolLock lock(mutex_);
  if (recording_) return running;
  recording_ = writer;
  refresh_fast_path();
  return {};
}

// Frees that finalizers deferred happened while it ran. Where the device cannot be entered any more they stay out.
Result<void> DeviceContext::stop_recording() {
  if (!deferred_.empty()) {
    Visit visit(*this);
    if (visit.status()) drain_deferred(visit.lock());
  }
  std::shared_ptr<observe::TraceWriter> writer;
  {
    const PoolLock lock(mutex_);
    writer.swap(recording_);
    refresh_fast_path();
  }
  if (!writer) return Error{ErrorCode::invalid_argument, "no recording is running"};
  return writer->close();
}

}  // namespace vpmm::context
