// pool: the way of a request through phases 0, 1, 1.5 and 2, and of a free.
#include "pool/pool.hpp"

#include <algorithm>
#include <limits>
#include <thread>
#include <utility>

#include <fmt/format.h>

#include "base/check.hpp"
#include "base/host_memory.hpp"
#include "base/message.hpp"
#include "observe/log.hpp"

namespace vpmm::pool {

using region::Region;
using region::RegionState;

namespace {

// Work that a single call does for everybody: bounded, so that no call stalls.
constexpr std::uint64_t kMappingsSweptPerCall = 16;
constexpr std::uint64_t kMappingsSweptWhenCrowded = 256;

// Note [Patience]
constexpr std::uint64_t kBetweenLooksNs = 20'000;   // asked for; the system may take several times that
constexpr std::size_t kTimelinesAskedPerLook = 16;  // so that no call stalls for others
constexpr std::uint64_t kCompanyNs = 10'000'000;    // who asked since then is at work

}  // namespace

Pool::Pool(driver::Driver& driver, const driver::ChunkProperties& properties, const Config& config, Bytes page_size,
           time::Timelines& timelines, Relief relief)
    : driver_(driver),
      config_(config),
      timelines_(timelines),
      relief_(std::move(relief)),
      index_(page_size),
      mapper_(driver, properties),
      policy_(make_chunk_policy(config, page_size)),
      planner_(index_, chunks_, timelines, *policy_, page_size),
      capacity_(config.capacity) {}

Pool::~Pool() = default;

// --- the way of a request -------------------------------------------------------------------------------------------

Result<DevicePtr> Pool::allocate(MutexLock& lock, const PageRequest& request, const Caller& caller) {
  Result<DevicePtr> result = attempt(lock, request, caller, Effort::by_policy);
  if (!result && result.error().code == ErrorCode::out_of_memory)
    result = allocate_short(lock, request, caller, std::move(result));
  if (result) ++counters_.allocations;
  if (!result) ++counters_.failed_allocations;
  return result;
}

Result<DevicePtr> Pool::attempt(MutexLock& lock, const PageRequest& request, const Caller& caller, Effort effort) {
  Pause pause;
  last_calls_.note(std::this_thread::get_id(), driver_.now_ns());
  if (effort == Effort::by_policy) make_way(lock, request, caller, pause);
  for (;;) {
    VPMM_TRY_ASSIGN(const DevicePtr served, serve(lock, request, caller, effort));
    if (!is_null(served)) return served;
    if (reunite()) continue;
    if (effort != Effort::by_policy) break;
    VPMM_TRY_ASSIGN(const bool has_more, wait_for_more(lock, request, caller, pause));
    if (!has_more) break;
  }
  return build(lock, request, caller, effort);
}

// What is mapped already. Null: nothing of it fits.
Result<DevicePtr> Pool::serve(MutexLock& lock, const PageRequest& request, const Caller& caller, Effort effort) {
  std::optional<Place> place = find_place(request, caller);
  const bool is_short = effort != Effort::by_policy;
  if (place && !is_short && is_set_apart(request, caller, *place)) {
    Result<DevicePtr> made = build(lock, request, caller, Effort::apart);
    if (made || made.error().code != ErrorCode::out_of_memory) return made;
    place = find_place(request, caller);
  }
  if (const std::optional<Plan> joint = place && !is_short ? joint_for(request, caller, *place) : std::nullopt) {
    spared_since_growth_ += joint->end_chunk_bytes();
    Result<DevicePtr> joined = carry_out(lock, *joint, request, caller);
    if (joined || joined.error().code == ErrorCode::poisoned) return joined;
    spared_since_growth_ += chunks_.chunk_bytes();  // no more attempts until it has grown
    place = find_place(request, caller);
  }
  if (const std::optional<Cut> cut = place && !is_short ? cut_for(request, *place) : std::nullopt) {
    VPMM_TRY(recut(lock, place->free, *cut));
    place = find_place(request, caller);
  }
  while (!place && relief_.recall && relief_.recall(caller, request.size, is_short))
    place = find_place(request, caller);
  Region* found = place ? take_fit(*place, request, caller) : nullptr;
  if (found == nullptr) {
    was_complete_ = false;
    VPMM_TRY_ASSIGN(found, take_run(request, caller, Waits::none));
  }
  if (found == nullptr && planner_.may_wait(need_of(request, caller), effort)) {
    if (is_covered_without_waits(request, caller, effort)) return build(lock, request, caller, Effort::move_first);
    VPMM_TRY_ASSIGN(found, take_run(request, caller, Waits::some));
    if (found == nullptr) {
      VPMM_TRY_ASSIGN(found, take_waiting(request, caller));
    }
  }
  if (found == nullptr) return DevicePtr{};
  ++counters_.hits;
  note_peaks();
  return found->range.begin;
}

DevicePtr Pool::allocate_hit(const PageRequest& request, const Caller& caller) {
  const std::optional<Place> place = find_place(request, caller);
  if (!place || is_worth_calls(request, caller, *place)) return {};
  ++counters_.hits;
  ++counters_.allocations;
  const DevicePtr begin = take_fit(*place, request, caller)->range.begin;
  note_peaks();
  return begin;
}

// Note [Patience]
// What other streams freed is often complete sooner than new memory is mapped. So before growth sets a record beyond
// the budget, the host looks, without the lock, whether it becomes so. No stream is put behind another, and a long
// kernel delays nobody by more than that moment. A pause lasts for what lacks by then, however much lacked when it
// began. What becomes complete meanwhile is for those who pause: a call that comes later and has nothing of its own
// stream's to use stands behind them. Else, while a large request waits in vain, a busy GPU's memory goes to whoever
// asks, and many that grow by little together set the record that it is to spare. A program that grows on and on beside
// a busy stream does not pause each time (PauseBudget).
//
// Where nothing is on its way, but other threads asked for memory a moment ago, some of what they use is likely to come
// back soon: threads that take turns on a busy pool make their large requests wait for the driver, so these meet
// although the program's own would not, and the pool would grow by what both need at once. That is hope, not knowledge.
// So such a pause is shorter, and nobody stands behind it: those whose memory it hopes for must not wait for it. Nor
// may two hope for each other's: only the call that would create the most hopes, and one with less grows at once.
void Pool::look_away(MutexLock& lock, Pause& pause) {
  if (!std::exchange(pause.is_counted, true)) ++counters_.pauses;
  const Unlocked unlocked(lock);
  driver_.sleep_ns(kBetweenLooksNs);
}

// Until nobody pauses, or all are over that did when it came.
void Pool::make_way(MutexLock& lock, const PageRequest& request, const Caller& caller, Pause& pause) {
  if (pausing_ == 0 || is_cleanup_held_) return;
  if (caller.own() && index_.own_fit(request.size, request.alignment, *caller.own()) != nullptr) return;
  for (const std::uint64_t end = pauses_end_ns_; pausing_ > 0 && driver_.now_ns() < end;) look_away(lock, pause);
}

Result<bool> Pool::wait_for_more(MutexLock& lock, const PageRequest& request, const Caller& caller, Pause& pause) {
  std::uint64_t now = driver_.now_ns();
  if (!pause.begin_ns && !pause_budget_.allows_pause(now)) return false;
  if (!pause.begin_ns) pause.begin_ns = now;
  const Patience patience = patience_for(request, caller);
  const std::uint64_t end = *pause.begin_ns + patience.ns;
  const std::uint64_t returned = returned_;
  bool is_over = patience.hoped > 0 && hoping_ != nullptr && hoped_bytes_ >= patience.hoped;
  while (returned_ == returned && now < end && !is_over) {
    if (patience.hoped > 0) {
      hoping_ = &pause;
      hoped_bytes_ = patience.hoped;
      look_away(lock, pause);
      is_over = hoping_ != &pause;
      if (!is_over) hoping_ = nullptr;
    } else {
      pauses_end_ns_ = pausing_ > 0 ? std::max(pauses_end_ns_, end) : end;
      ++pausing_;
      look_away(lock, pause);
      --pausing_;
    }
    const std::uint64_t before = std::exchange(now, driver_.now_ns());
    pause_budget_.charge(before, now);
    const Result<bool> learned = learn(kTimelinesAskedPerLook);
    if (!learned && learned.error().code == ErrorCode::poisoned) return learned.error();
    if (!learned) break;
  }
  return returned_ != returned;
}

// Whether other threads are at work. Who is served in hand (Relief::kept_bytes) is not seen here.
bool Pool::has_company() const {
  const std::uint64_t now = driver_.now_ns();
  return last_calls_.has_other(std::this_thread::get_id(), now - std::min(now, kCompanyNs));
}

Pool::Patience Pool::patience_for(const PageRequest& request, const Caller& caller) {
  const Need need = need_of(request, caller);
  if (is_cleanup_held_ || !grows_past_peak(need.size)) return {};
  const auto pending_on_others = [&](auto&& counts) {
    Bytes bytes = 0;
    timelines_.for_each([&](const time::Timeline& timeline) {
      if (&timeline != caller.timeline && counts(timeline)) bytes += index_.pending_bytes(timeline.id);
    });
    return bytes;
  };
  const Demand all = need.demand(need.size);
  const bool may_hope = has_company() && policy_->hope_ns(all) > 0;
  if (!may_hope && policy_->patience_ns(all, need.size) == 0) return {};
  if (!may_hope && pending_on_others([](const time::Timeline&) { return true; }) == 0) return {};
  const std::variant<Plan, NoPlan> planned = planner_.plan(need, Effort::by_policy);
  const Plan* const plan = std::get_if<Plan>(&planned);
  if (plan == nullptr || plan->creates.empty() || !grows_past_peak(plan->created_bytes())) return {};
  want_proof(request, caller);
  const Bytes on_its_way = pending_on_others(  // and an event will tell of it
      [](const time::Timeline& timeline) { return timeline.provable > timeline.complete; });
  const Bytes created = plan->created_bytes();
  const Demand demand = need.demand(created);
  const std::uint64_t hope = may_hope ? policy_->hope_ns(demand) : 0;
  if (on_its_way < created / 4) return {hope, created};
  return {std::max(hope, policy_->patience_ns(demand, on_its_way))};
}

// Phase 1: best fit among what the caller may use at once. No driver call.
std::optional<Place> Pool::find_place(const PageRequest& request, const Caller& caller) const {
  Region* free = index_.best_fit(request.size, request.alignment, caller.own());
  if (free == nullptr) return std::nullopt;
  VPMM_CHECK(region::RegionIndex::aligned_start(*free, request.size, request.alignment), index_.picture());
  return place_in(free, request, caller);
}

bool Pool::is_hit(const PageRequest& request, const Caller& caller) const {
  const std::optional<Place> place = find_place(request, caller);
  return place && !is_worth_calls(request, caller, *place);
}

// Whether driver calls are better than the place that was found.
bool Pool::is_worth_calls(const PageRequest& request, const Caller& caller, const Place& place) const {
  return is_set_apart(request, caller, place) || cut_for(request, place) || joint_for(request, caller, place);
}

// Only where nothing has to be asked or given up for the new chunk.
bool Pool::is_set_apart(const PageRequest& request, const Caller& caller, const Place& place) const {
  const Need need = need_of(request, caller);
  return policy_->sets_apart(need.demand(need.size), place.pinned) &&
         need.size <= std::min(need.growth_room, unasked_growth_) && chunks_.mapping_count() < config_.max_mappings;
}

// Note [Idle chunks are spared]
// Beyond the budget, what is left of an idle chunk that a request would use in part is pinned as long as that lives. So
// two ends of chunks that are in use anyway serve the request, where they suffice (Note [Ends of chunks in use]). Else
// the chunk is cut: it is given back, and two that meet where the request ends are created in its place. Somebody may
// take the memory in between; then the request finds another place or none, as though the GPU had had less from the
// start. Before it grows again a pool does this with no more than it has, so a program that does the same again and
// again comes to rest.
Demand Pool::demand_of(const PageRequest& request) const {
  return {request.size, 0, chunks_.chunk_bytes(), peak_used_, peak_asked()};
}

bool Pool::spares(const PageRequest& request, const Place& place) const {
  const Demand demand = demand_of(request);
  return policy_->spares(demand, place.pinned) && !is_cleanup_held_ && spared_since_growth_ < demand.mapped;
}

std::optional<Plan> Pool::joint_for(const PageRequest& request, const Caller& caller, const Place& place) const {
  if (!spares(request, place) || chunks_.mapping_count() + 2 > config_.max_mappings) return std::nullopt;
  return planner_.join(need_of(request, caller));
}

std::optional<Cut> Pool::cut_for(const PageRequest& request, const Place& place) const {
  if (!spares(request, place) || !place.free->stamp.is_complete()) return std::nullopt;
  if (is_granting_ || chunks_.mapping_count() >= config_.max_mappings) return std::nullopt;
  return best_cut(chunks_, place.free->range, {place.begin, request.size}, page_size(),
                  policy_->least_part(demand_of(request)));
}

Result<void> Pool::recut(MutexLock& lock, Region* free, const Cut& cut) {
  const AddressRange range = cut.chunk.range();
  spared_since_growth_ += range.size;  // also where it fails, so that it is not tried without end
  const Result<Bytes> released = release_idle(lock, range, free);
  Result<void> outcome;
  if (released) {
    unasked_growth_ += released.value();
    Region* const hole = index_.hole_around(range.begin);
    const bool is_there = hole != nullptr && hole->range.contains(range) && released.value() == range.size;
    if (is_there) outcome = fill_hole(lock, hole, range, {cut.at, range.size - cut.at});
  } else {
    outcome = released.error();
  }
  if (outcome) return outcome;
  observe::log(observe::LogLevel::info, "a chunk of {} bytes was not cut: {}", range.size, outcome.error().message);
  return outcome.error().code == ErrorCode::poisoned ? outcome : Result<void>();
}

Region* Pool::take_fit(const Place& place, const PageRequest& request, const Caller& caller) {
  was_complete_ = place.free->stamp.is_complete();
  region::Tenant tenant = tenant_of(request, caller);
  count_tenant(tenant, +1);
  return index_.allocate(place.free, {place.begin, request.size}, std::move(tenant));
}

// Which part of the best fit, or, where the footprint is worth a search, of any range: the first place found that
// breaks no chunk, else the best.
Place Pool::place_in(Region* best_fit, const PageRequest& request, const Caller& caller) const {
  const Placement where = policy_->placement(chunks_.chunk_bytes(), peak_used_);
  if (where == Placement::front || best_fit->range.size == request.size)
    return {best_fit, *region::RegionIndex::aligned_start(*best_fit, request.size, request.alignment)};
  Place best = best_place(chunks_, best_fit, request.size, request.alignment, where);
  if (where == Placement::ends || best.pinned <= 0) return best;
  index_.for_each_free_by_age([&](Region* free) {
    if (free == best_fit || !Planner::is_usable(*free, caller.own())) return true;
    if (!region::RegionIndex::aligned_start(*free, request.size, request.alignment)) return true;
    const Place other = best_place(chunks_, free, request.size, request.alignment, where);
    if (other.pinned < best.pinned) best = other;
    return best.pinned > 0;
  });
  return best;
}

// Where the policy moves before it waits: whether moves alone are enough.
bool Pool::is_covered_without_waits(const PageRequest& request, const Caller& caller, Effort effort) const {
  if (effort != Effort::by_policy || policy_->waiting() != Waiting::after_moves) return false;
  Need need = need_of(request, caller);
  need.growth_room = 0;
  const std::variant<Plan, NoPlan> planned = planner_.plan(need, Effort::move_first);
  const NoPlan* failure = std::get_if<NoPlan>(&planned);
  return failure == nullptr || failure->reason == NoPlan::Reason::address_space;
}

// Phase 1.5: neighbours whose stamps differ, as one stretch. No mapping call.
Result<Region*> Pool::take_run(const PageRequest& request, const Caller& caller, Waits waits_allowed) {
  const auto admits = [&](const Region& free) {
    return Planner::is_usable(free, caller.own()) ||
           (waits_allowed == Waits::some && planner_.is_waitable(free, caller.own()));
  };
  Vector<Region*> stretch;
  std::optional<AddressRange> part;
  index_.for_each_run([&](const Vector<Region*>& run) {
    stretch.clear();
    for (Region* free : run) {
      if (!admits(*free)) {
        stretch.clear();
        continue;
      }
      stretch.push_back(free);
      const DevicePtr start = align_up(stretch.front()->range.begin, request.alignment);
      if (start + request.size > free->range.end()) continue;
      part = AddressRange{start, request.size};
      return false;
    }
    return true;
  });
  if (!part) return static_cast<Region*>(nullptr);
  std::erase_if(stretch, [&](const Region* free) { return !free->range.overlaps(*part); });
  Vector<time::StampPart> waits;
  for (const Region* free : stretch) Planner::add_waits(free->stamp, caller.own(), waits);
  VPMM_TRY(queue_waits(waits, caller));
  region::Tenant tenant = tenant_of(request, caller);
  count_tenant(tenant, +1);
  return join_run(stretch, *part, tenant);
}

// A single range that other streams still use, behind waits of the GPU: nothing needs to be mapped.
Result<Region*> Pool::take_waiting(const PageRequest& request, const Caller& caller) {
  Region* best = nullptr;
  index_.for_each_free_by_age([&](Region* free) {
    if (best != nullptr && free->range.size >= best->range.size) return true;
    if (!region::RegionIndex::aligned_start(*free, request.size, request.alignment)) return true;
    if (planner_.is_waitable(*free, caller.own())) best = free;
    return true;
  });
  if (best == nullptr) return best;
  Vector<time::StampPart> waits;
  Planner::add_waits(best->stamp, caller.own(), waits);
  VPMM_TRY(queue_waits(waits, caller));
  const DevicePtr start = *region::RegionIndex::aligned_start(*best, request.size, request.alignment);
  region::Tenant tenant = tenant_of(request, caller);
  count_tenant(tenant, +1);
  return index_.allocate(best, {start, request.size}, std::move(tenant));
}

Region* Pool::join_run(const Vector<Region*>& run, AddressRange part, const region::Tenant& tenant) {
  Region* joined = nullptr;
  for (Region* free : run) {
    const DevicePtr begin = std::max(free->range.begin, part.begin);
    const DevicePtr end = std::min(free->range.end(), part.end());
    Region* piece = index_.detach(free, {begin, end - begin});
    joined = joined == nullptr ? piece : index_.join_in_flight(joined, piece);
  }
  return index_.attach_allocated(joined, tenant);
}

// --- the way of a free ----------------------------------------------------------------------------------------------

void Pool::deallocate(Region* region, const time::Stamp& stamp) {
  count_tenant(region->tenant, -1);
  index_.release(region, timelines_.reduce(stamp));
  ++returned_;
  ++counters_.deallocations;
}

void Pool::disown(Region* region) {
  if (region->tenant.timeline) count_tenant(region->tenant, -1);
  region->tenant.timeline.reset();
  while (region->range.size > page_size()) {
    region = index_.split_allocated(region, region->range.begin + page_size());
    ++counters_.allocations;
  }
}

DevicePtr Pool::pass_on(Region* region, const PageRequest& request, const Caller& caller) {
  count_tenant(region->tenant, -1);
  region::Tenant tenant = tenant_of(request, caller);
  count_tenant(tenant, +1);
  index_.hand_over(region, std::move(tenant));
  ++counters_.deallocations;
  ++counters_.allocations;
  ++counters_.hits;
  return region->range.begin;
}

// --- what is complete -----------------------------------------------------------------------------------------------

void Pool::advance(const Vector<time::StampPart>& done) {
  for (const time::StampPart& part : done) index_.advance(part.timeline, part.sequence);
  returned_ += done.size();
  if (relief_.advanced) relief_.advanced(done);
}

Result<bool> Pool::learn(std::size_t most) {
  Vector<time::StampPart> done;
  const Result<void> asked = timelines_.poll(most, done);
  advance(done);
  if (!asked) return asked.error();
  return !done.empty();
}

Result<void> Pool::settle(MutexLock& lock) {
  if (is_cleanup_held_) return {};
  const bool crowded = chunks_.mapping_count() > config_.max_mappings / 2;
  VPMM_TRY(sweep(lock, crowded ? kMappingsSweptWhenCrowded : kMappingsSweptPerCall));
  return {};
}

// --- tenants and figures --------------------------------------------------------------------------------------------

region::Tenant Pool::tenant_of(const PageRequest& request, const Caller& caller) const {
  region::Tenant tenant;
  tenant.requested = request.requested;
  if (caller.timeline != nullptr) tenant.timeline = caller.timeline->id;
  tenant.capture = caller.capture;
  return tenant;
}

void Pool::count_tenant(const region::Tenant& tenant, int change) {
  const auto count = [&](time::TimelineId id) {
    time::Timeline* timeline = timelines_.find(id);
    if (timeline != nullptr) timeline->tenants += static_cast<std::uint64_t>(static_cast<std::int64_t>(change));
  };
  if (tenant.timeline) count(*tenant.timeline);
  for (const time::TimelineId id : tenant.other_uses) count(id);
}

void Pool::record_use(Region* region, time::Timeline& timeline) {
  region::Tenant& tenant = region->tenant;
  if (std::find(tenant.other_uses.begin(), tenant.other_uses.end(), timeline.id) != tenant.other_uses.end()) return;
  tenant.other_uses.push_back(timeline.id);
  ++timeline.tenants;
}

Vector<vm::Mapping> Pool::mappings_around(AddressRange range) const {
  Vector<vm::Mapping> mappings;
  chunks_.for_each_around(range, [&](const vm::Mapping& mapping) { mappings.push_back(mapping); });
  return mappings;
}

Bytes Pool::quarantined_bytes() const {
  Bytes bytes = 0;
  for (const auto& [at, size] : stuck_) bytes += size;
  for (const vm::Chunk* orphan : orphans_) bytes += orphan->size;
  return bytes;
}

// A chunk counts while it exists, so those of a plan that was undone count, too.
void Pool::note_peaks(std::uint64_t undone_chunks, Bytes undone_bytes) {
  peak_used_ = std::max(peak_used_, wanted_bytes());
  counters_.peak_mapped_bytes =
      std::max(counters_.peak_mapped_bytes, chunks_.chunk_bytes() + undone_bytes + other_bytes_);
  counters_.peak_chunks = std::max(counters_.peak_chunks, chunks_.chunk_count() + undone_chunks);
  counters_.peak_mappings = std::max(counters_.peak_mappings, chunks_.mapping_count());
}

void Pool::reset_peaks() {
  peak_used_ = wanted_bytes();
  counters_.peak_mapped_bytes = chunks_.chunk_bytes() + other_bytes_;
  counters_.peak_chunks = chunks_.chunk_count();
  counters_.peak_mappings = chunks_.mapping_count();
}

Bytes Pool::peak_asked() const { return relief_.peak_requested ? relief_.peak_requested() : peak_used_; }

Bytes Pool::wanted_bytes() const {
  return used_bytes() - (relief_.kept_bytes ? std::min(used_bytes(), relief_.kept_bytes()) : 0);
}

Bytes Pool::growth_room() const {
  if (!capacity_) return std::numeric_limits<Bytes>::max();
  const Bytes held = chunks_.chunk_bytes() + other_bytes_;
  return held >= *capacity_ ? 0 : round_down(*capacity_ - held, page_size());
}

void Pool::fill(observe::Statistics& statistics) const {
  statistics = counters_;
  statistics.mapped_bytes = chunks_.chunk_bytes();
  statistics.live_bytes = index_.requested_bytes();
  statistics.allocated_bytes = used_bytes();
  statistics.free_bytes = index_.bytes(RegionState::free);
  statistics.pending_bytes = index_.pending_bytes();
  statistics.largest_free_bytes = index_.largest_free();
  for (const AddressRange& reservation : reservations_) statistics.reserved_bytes += reservation.size;
  statistics.hole_bytes = index_.bytes(RegionState::hole);
  statistics.zombie_bytes = index_.bytes(RegionState::zombie) + index_.bytes(RegionState::shadow);
  statistics.quarantined_bytes = quarantined_bytes();
  statistics.live_allocations = index_.count(RegionState::allocated);
  statistics.free_regions = index_.count(RegionState::free);
  statistics.zombie_regions = index_.count(RegionState::zombie) + index_.count(RegionState::shadow);
  statistics.chunks = chunks_.chunk_count();
  statistics.mappings = chunks_.mapping_count();
}

std::string Pool::validate() const {
  if (std::string broken = index_.validate(); !broken.empty()) return broken;
  if (std::string broken = chunks_.validate(); !broken.empty()) return broken;
  if (flights_ != 0) return {};  // the two below change hands while something is in flight
  std::string broken;
  index_.for_each([&](const Region& region) {
    if (!broken.empty()) return;
    const bool is_mapped = region.state != RegionState::hole;
    if (region.state == RegionState::in_flight) broken = message_of("in flight without a flight: {}", index_.picture());
    bool any = false;
    DevicePtr reached{};
    chunks_.for_each_around(region.range, [&](const vm::Mapping& mapping) {
      if (any && mapping.at != reached) broken = "a mapped region has a gap";
      if (!any && mapping.at > region.range.begin) broken = "a mapped region starts unmapped";
      any = true;
      reached = mapping.range().end();
    });
    if (any != is_mapped) broken = message_of("region [{}] is {}mapped", region.range.size, any ? "" : "not ");
    if (is_mapped && broken.empty() && reached < region.range.end()) broken = "a mapped region ends unmapped";
  });
  return broken.empty() ? validate_shadows() : broken;
}

std::string Pool::shortage_report(const PageRequest& request) noexcept {
  try {
    return written_shortage_report(request);
  } catch (...) {
    return kNoMemoryForMessage;
  }
}

std::string Pool::written_shortage_report(const PageRequest& request) {
  std::string report = fmt::format(
      "asked for {} bytes; live {}, free {}, of which pending {}, largest free range {}, mapped {}, limit {}",
      request.small.value_or(request.requested), used_bytes(), idle_bytes(), index_.pending_bytes(),
      index_.largest_free(), chunks_.chunk_bytes(), capacity_ ? fmt::format("{}", *capacity_) : "none");
  if (driver::MemInfo info; driver_.mem_get_info(info) == driver::CuResult::success) {
    const Bytes used = info.total - std::min(info.total, info.free);
    const Bytes ours = chunks_.chunk_bytes() + other_bytes_;
    report += fmt::format("; of the GPU's {} bytes {} are free and {} held by others", info.total, info.free,
                          used - std::min(used, ours));
  }
  timelines_.for_each([&](const time::Timeline& timeline) {
    const Bytes pending = index_.pending_bytes(timeline.id);
    if (pending > 0)
      report += fmt::format("; pending {} on {}", pending, timelines_.describe({timeline.id, timeline.last}));
  });
  return report;
}

}  // namespace vpmm::pool
