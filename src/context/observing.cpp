// context: figures, pictures and limits.
#include <algorithm>

#include "base/message.hpp"
#include "base/scope_exit.hpp"
#include "context/headroom.hpp"
#include "context/neighbours.hpp"
#include "context/process_gate.hpp"
#include "context/recordings.hpp"
#include "context/summary.hpp"
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
  timelines.for_each(
      [&](const time::Timeline& timeline) { found = found || timeline.provable < timeline.last; });
  return found;
}

}  // namespace

Result<AllocationInfo> DeviceContext::query(DevicePtr ptr) const {
  const PoolLock lock(mutex_);
  return allocations_.query(ptr);
}

// --- limits

Result<Bytes> DeviceContext::trim(Bytes bytes_to_keep) {
  Visit visit(*this);
  VPMM_TRY(visit.status());
  MutexLock& lock = visit.lock();
  allocations_.drain(lock);
  footprint_.flush_caches();
  arenas_.give_back_idle();
  // Work that is over must not keep memory because nobody asked.
  if (has_unproven(device_.timelines)) prover_.prove_everything();
  VPMM_TRY(device_.primary.noted(prover_.settle(lock)));
  Bytes released = 0;
  if (footprint_.held() > bytes_to_keep) {
    VPMM_TRY_ASSIGN(released, footprint_.trim_driver_pool(lock));
  }
  if (device_.pool != nullptr) {
    VPMM_TRY_ASSIGN(const Bytes from_pool,
                    device_.primary.noted(device_.pool->trim(lock, bytes_to_keep)));
    released += from_pool;
  }
  recorder_.trimmed(released);
  return released;
}

// Nobody asked for this, so nobody is told how it went.
void DeviceContext::trim_above_threshold(MutexLock& lock) {
  if (!footprint_.is_above_threshold()) return;
  footprint_.flush_caches();
  arenas_.give_back_idle();
  if (device_.pool->idle_bytes() == 0 || !device_.primary.noted(prover_.settle(lock))) return;
  const Result<Bytes> released =
      device_.primary.noted(device_.pool->trim(lock, *device_.config.release_threshold));
  if (released && released.value() > 0) recorder_.trimmed(released.value());
}

Result<void> DeviceContext::preallocate(Bytes bytes) {
  if (bytes > kAddressSpace)
    return Error{ErrorCode::out_of_memory,
                 message_of("{} bytes is more than any address space", bytes)};
  Result<void> done = preallocate_mapped(bytes);
  if (done || done.error().code != ErrorCode::out_of_memory) return done;
  const Bytes held = statistics().mapped_bytes;
  return ask_for_idle(bytes - std::min(bytes, held)) > 0 ? preallocate_mapped(bytes) : done;
}

Result<void> DeviceContext::preallocate_mapped(Bytes bytes) {
  Visit visit(*this);
  VPMM_TRY(visit.status());
  if (device_.pool == nullptr)
    return Error{ErrorCode::unsupported, "the virtual memory pool is off or not supported here"};
  Result<void> done = device_.primary.noted(device_.pool->preallocate(visit.lock(), bytes));
  footprint_.note_peaks();
  return done;
}

// What has to become free on the GPU before it can give us `bytes` more, or as much of that as our
// own limit allows. 0: that would not help, or others cannot be asked now, for their events could
// break a capture that only we know of.
Bytes DeviceContext::missing_on_gpu(Bytes bytes) {
  driver::MemInfo info;
  if (device_.driver.mem_get_info(info) != driver::CuResult::success) return 0;
  if (!prover_.may_record_context_event()) return 0;
  Bytes in_use = 0;
  if (device_.pool != nullptr) {
    device_.pool->set_cached_bytes(device_.small->caches().cached_bytes());
    in_use = device_.pool->wanted_bytes();
  }
  const Bytes held = footprint_.held();
  const std::optional<Bytes> capacity = footprint_.capacity();
  const Bytes wanted = round_up(bytes, device_.page_size);
  if (wanted > info.total - std::min(info.total, in_use))
    return 0;  // nobody could make room for it
  const Bytes growth = capacity ? std::min(wanted, *capacity - std::min(*capacity, held)) : wanted;
  return growth - std::min(growth, info.free);
}

// Has the other pools of the GPU give back what lacks for `bytes` more. Their waits and events are
// like ours: a capture begins before they are asked, and then they are not, or afterwards.
Bytes DeviceContext::ask_for_idle(Bytes bytes) {
  Bytes missing = 0;
  {
    Visit visit(*this);
    if (visit.status()) missing = missing_on_gpu(bytes);
    if (missing == 0) return 0;
    prover_.begin_wait();
  }
  const ScopeExit end_wait([this] {
    const PoolLock lock(mutex_);
    prover_.end_wait();
  });
  return ask_neighbours(*this, missing);
}

void DeviceContext::set_capacity(std::optional<Bytes> bytes) {
  const PoolLock lock(mutex_);
  footprint_.set_capacity(bytes);
}

std::optional<Bytes> DeviceContext::capacity() const {
  const PoolLock lock(mutex_);
  return footprint_.capacity();
}

Result<void> DeviceContext::remove_out_of_memory_callback(std::uint64_t id) {
  if (out_of_memory_.remove(id)) return {};
  return Error{ErrorCode::invalid_argument,
               message_of("no out-of-memory callback of this pool has the number {}", id)};
}

// --- listeners

std::uint64_t DeviceContext::add_event_callback(EventKinds kinds, EventCallback callback) {
  const PoolLock lock(mutex_);
  const std::uint64_t id = recorder_.add_listener(kinds, std::move(callback));
  front_.refresh();
  return id;
}

Result<void> DeviceContext::remove_event_callback(std::uint64_t id) {
  const PoolLock lock(mutex_);
  const bool is_there = recorder_.remove_listener(id);
  front_.refresh();
  if (is_there) return {};
  return Error{ErrorCode::invalid_argument,
               message_of("no event callback of this pool has the number {}", id)};
}

// --- figures

void DeviceContext::reset_peaks() {
  const PoolLock lock(mutex_);
  footprint_.reset_peaks();
}

// At exit a thread may be stuck inside a driver call, with the lock.
void DeviceContext::summarize() const noexcept {
  if (!has_summary_) return;
  if (!mutex_.try_lock()) return;
  try {
    const PoolLock lock(mutex_, std::adopt_lock);
    const observe::Statistics now = figures();
    if (now.allocations + now.failed_allocations > 0)
      print_summary(summary(device(), now, footprint_.capacity()));
  } catch (...) {  // NOLINT(bugprone-empty-catch): no memory for the text
  }
}

observe::Statistics DeviceContext::statistics() const {
  const PoolLock lock(mutex_);
  return figures();
}

observe::Statistics DeviceContext::figures() const {
  observe::Statistics figures;
  device_.fill(figures);
  footprint_.fill(figures);
  figures.free_bytes += arenas_.free_bytes();
  figures.pending_bytes += arenas_.pending_bytes();
  figures.leased_bytes = shares_.freed_bytes();
  figures.timelines = device_.timelines.stream_count();
  figures.outstanding_events = device_.timelines.outstanding_events();
  figures.events_recorded = device_.timelines.events_recorded();
  figures.failed_allocations = failed_allocations_;
  figures.caller_mistakes = allocations_.mistakes();
  figures.host_waits += prover_.host_waits();
  figures.pauses = slow_path_.pauses();
  figures.driver_calls = device_.driver.memory_call_count();
  figures.driver_ns = device_.driver.memory_call_ns();
  return figures;
}

// Bytes of chunks that any request may have, once what streams and arenas keep has come back.
Bytes DeviceContext::movable_bytes() const {
  const Set<Bytes> used_pages = device_.small->figures().used_pages();
  return device_.pool->movable_bytes([&](const region::Region& region) VPMM_REQUIRES(pool_lock) {
    if (small::is_cut(region))
      return !used_pages.contains(to_integer(region.range.begin) / device_.page_size);
    return small::is_cached(region) || arenas_.is_idle(region.range.begin);
  });
}

Result<driver::MemInfo> DeviceContext::memory_info() {
  Visit visit(*this);
  VPMM_TRY(visit.status());
  allocations_.drain(visit.lock());
  driver::MemInfo info;
  VPMM_TRY(device_.primary.noted(
      driver::checked(Call::mem_get_info, device_.driver.mem_get_info(info))));
  Bytes idle = footprint_.idle_in_driver_pool();
  if (device_.pool != nullptr) idle += movable_bytes();
  const std::optional<Bytes> capacity = footprint_.capacity();
  const Bytes gpu_free =
      device_.pool == nullptr ? info.free : info.free / device_.page_size * device_.page_size;
  info.free = Headroom(footprint_.held(), idle, gpu_free, capacity).left();
  info.total = std::min(info.total, capacity.value_or(info.total));
  return info;
}

// Each as a region of its own.
void DeviceContext::add_blocks_of_arena(DevicePtr stretch, observe::PoolSnapshot& snapshot) const {
  arenas_.for_each_block_around(stretch, [&](const arena::Block& block,
                                             bool is_pinned) VPMM_REQUIRES(pool_lock) {
    observe::RegionSnapshot picture;
    picture.range = block.range;
    picture.kind = kind_of(block.is_live ? RegionState::allocated : RegionState::free);
    picture.requested = block.requested;
    const time::Stamp stamp = device_.timelines.reduce(block.stamp);
    picture.complete = block.is_live || (!is_pinned && stamp.is_complete());
    for (const time::StampPart& part : stamp.parts())
      picture.stamp += (picture.stamp.empty() ? "" : " and ") + device_.timelines.describe(part);
    if (block.is_live && block.timeline)
      picture.stamp = device_.timelines.describe_stream(*block.timeline);
    if (!block.is_live && is_pinned && picture.stamp.empty()) picture.stamp = "in a pinned arena";
    snapshot.regions.push_back(std::move(picture));
  });
}

observe::PoolSnapshot DeviceContext::snapshot() const {
  const PoolLock lock(mutex_);
  observe::PoolSnapshot snapshot;
  snapshot.device = device_.primary.device();
  snapshot.driver = device_.driver.name();
  snapshot.policy = device_.pool == nullptr ? "stream_ordered" : device_.pool->policy_name();
  snapshot.statistics = figures();
  if (device_.pool == nullptr) return snapshot;
  snapshot.page_size = device_.pool->page_size();
  const Vector<AddressRange>& reservations = device_.pool->reservations();
  snapshot.reservations.assign(reservations.begin(), reservations.end());
  std::sort(snapshot.reservations.begin(), snapshot.reservations.end(),
            [](const AddressRange& a, const AddressRange& b) { return a.begin < b.begin; });
  const auto live_by_page = device_.small->figures().live_by_page();
  device_.pool->for_each_region([&](const region::Region& region) VPMM_REQUIRES(pool_lock) {
    if (arenas_.has(region.range.begin)) return add_blocks_of_arena(region.range.begin, snapshot);
    observe::RegionSnapshot picture;
    picture.range = region.range;
    picture.kind = kind_of(region.state);
    picture.complete = region.stamp.is_complete();
    if (small::is_cached(region)) {
      picture.kind = kind_of(RegionState::free);
      picture.complete = false;  // nobody has asked
    } else if (small::is_cut(region)) {
      const auto live = live_by_page.find(&region);
      picture.small_allocations = live == live_by_page.end() ? 0 : live->second.allocations;
      picture.requested = live == live_by_page.end() ? 0 : live->second.requested;
    } else if (region.state == RegionState::allocated) {
      picture.requested = device_.small->ownership().requested_of(region);
    }
    for (const time::StampPart& part : region.stamp.parts())
      picture.stamp += (picture.stamp.empty() ? "" : " and ") + device_.timelines.describe(part);
    if (region.state == RegionState::allocated && region.owner.timeline)
      picture.stamp = device_.timelines.describe_stream(*region.owner.timeline);
    snapshot.regions.push_back(std::move(picture));
  });
  return snapshot;
}

std::string DeviceContext::validate() const {
  const PoolLock lock(mutex_);
  if (std::string broken = device_.timelines.validate(); !broken.empty()) return broken;
  if (std::string broken = arenas_.validate(); !broken.empty()) return broken;
  if (std::string broken = shares_.validate(); !broken.empty()) return broken;
  return device_.validate();
}

// --- other GPUs

Result<void> DeviceContext::set_peer_access(driver::DeviceOrdinal peer) {
  if (peer == device()) return {};
  const Result<bool> can_access = peers_.can_access(peer);
  if (!can_access)
    return can_access.error().code == ErrorCode::invalid_argument ? mistake(can_access.error())
                                                                  : can_access.error();
  const auto unsupported = [&](std::string_view why) {
    return Error{ErrorCode::unsupported,
                 message_of("device {} cannot use memory of device {}: {}", peer, device(), why)};
  };
  if (!can_access.value()) return unsupported("the driver reports no peer access between them");
  if (device_.pool == nullptr)
    return unsupported(device_.config.pool_enabled
                           ? "the latter does not support virtual memory management"
                           : "VPMM_PAGE_SIZE switches the virtual memory pool off");
  if (device_.driver_pool != nullptr)
    return unsupported(
        device_.config.small == SmallRequests::stream_ordered
            ? "VPMM_SMALL=stream_ordered takes requests below a page from the driver's own pool"
            : "with this VPMM_PAGE_SIZE requests below a page come from the driver's own pool");
  Visit visit(*this);
  VPMM_TRY(visit.status());
  VPMM_TRY(device_.primary.noted(device_.pool->set_peer_access(visit.lock(), peer)));
  peers_.add(peer);
  return {};
}

}  // namespace vpmm::context
