// SPDX-License-Identifier: Apache-2.0
// pool: bounds of a request, and the choice among strategies.
#include "pool/planner.hpp"

#include "pool/grow_delay.hpp"
#include "pool/strategies.hpp"

namespace vpmm::pool {

namespace {

// Early growth leaves 1/4 of the pool's GPU memory; below it memory is scarce. Halved: a program
// near the GPU's end has grown more, and moves more from there on; doubled: it moves sooner.
constexpr Bytes kEarlyGrowthOfRoom = 4;
// Several streams place memory if the placing stream changed within so many placements.
constexpr std::uint64_t kPlacementsLookedBack = 4096;

}  // namespace

bool Planner::takes_waiting(const Caller& caller, Effort effort) const {
  if (!caller.may_queue()) return false;
  return effort == Effort::wait_too ||
         (effort == Effort::by_policy && memory_.tuning.waiting == Tuning::Waiting::before_moves);
}

Ask Planner::ask_of(const PageRequest& request, const Caller& caller) const {
  const Bytes page = memory_.page_size();
  const Bytes held = memory_.claimed_bytes();
  Ask ask;
  ask.size = request.size;
  ask.alignment = request.alignment;
  ask.own = caller.own();
  const bool is_by_use = memory_.tuning.choice == Tuning::Choice::by_use;
  ask.own_first = is_by_use && caller.own().has_value() && has_several_placers_ &&
                  memory_.counters.allocations - placer_changed_ < kPlacementsLookedBack;
  ask.growth_room = round_down(room_.below_capacity(held), page);
  ask.early_growth =
      round_down(early_growth(std::max(peak_live_, wanted_bytes() + request.size)), page);
  ask.chunk = memory_.tuning.chunk_size(request.size, held, room_.all(held));
  ask.chunks = chunks_of(request);
  if (ask.chunks == Chunks::one) ask.chunk = request.size;
  if (ask.chunks == Chunks::exact) ask.chunk = memory_.tuning.chunk_max;
  ask.goes_low = is_by_use && request.goes_low;
  ask.spares_chunks = is_by_use && held >= most_early();
  return ask;
}

void Planner::note_placed(const std::optional<time::TimelineId>& timeline) {
  note_peak();
  if (timeline == last_placer_) return;
  has_several_placers_ = last_placer_.has_value();
  placer_changed_ = memory_.counters.allocations;
  last_placer_ = timeline;
}

// Note [One knob]. Memory grown early is idle and moves when needed: no program fails because of
// it.
Bytes Planner::early_growth(Bytes peak) const {
  const Bytes held = memory_.claimed_bytes();
  const Bytes most = std::min(peak + peak / 1000 * memory_.tuning.growth_permille, most_early());
  return most - std::min(most, held);
}

Bytes Planner::most_early() const {
  return room_.all(memory_.claimed_bytes()) / kEarlyGrowthOfRoom * (kEarlyGrowthOfRoom - 1);
}

// Looks for a hit again: the lock may have been dropped since find().
Decision Planner::decide(const Ask& ask, const Caller& caller, Effort effort) const {
  const View view = memory_.view();
  if (effort == Effort::few_mappings) return grow_in_one_chunk(view, ask);
  Ask within = ask;
  within.takes_waiting = takes_waiting(caller, effort);
  if (effort != Effort::by_policy) within.early_growth = 0;
  if (Decision found = fit(view, within); std::holds_alternative<Plan>(found)) return found;
  if (effort == Effort::by_policy && memory_.tuning.waiting == Tuning::Waiting::before_growth &&
      caller.may_queue()) {
    Ask without_growth = within;
    without_growth.growth_room = without_growth.early_growth = 0;
    Decision moved = stitch(view, without_growth);
    if (std::holds_alternative<Plan>(moved)) return moved;
    without_growth.takes_waiting = within.takes_waiting = true;
    moved = fit(view, without_growth);
    if (std::holds_alternative<NoPlan>(moved)) moved = stitch(view, without_growth);
    if (std::holds_alternative<Plan>(moved)) return moved;
  }
  return stitch(view, within);
}

bool Planner::can_find(const PageRequest& request, const Caller& caller) const {
  return std::holds_alternative<Plan>(fit(memory_.view(), ask_of(request, caller)));
}

// Note [Caches shrink before the footprint grows]
// Below the largest footprint so far, giving cached memory back gains none; past it, the peak would
// carry every cached byte for ever.
bool Planner::grows_past_peak(Bytes growth) const {
  return memory_.claimed_bytes() + growth > memory_.counters.peak_mapped_bytes;
}

// Bytes of `plan.growth()` that pending memory of other streams may replace, as far as an event
// proves its end.
Bytes Planner::on_its_way(const Plan& plan, const Caller& caller) const {
  Bytes bytes = 0;
  memory_.timelines.for_each([&](const time::Timeline& timeline) VPMM_REQUIRES(pool_lock) {
    if (timeline.numbers.provable <= timeline.numbers.complete) return;
    if (&timeline != caller.timeline) bytes += memory_.index.pending_bytes(timeline.id);
  });
  return std::min(bytes, plan.growth());
}

std::uint64_t Planner::delay_until(const Plan& plan, const Caller& caller,
                                   std::uint64_t began_ns) const {
  if (!memory_.tuning.delays_growth) return 0;
  if (plan.growth() == 0 || !grows_past_peak(plan.growth())) return 0;
  if (plan.growth() <= early_growth(peak_live_)) return 0;
  return began_ns + GrowDelay::longest_ns(on_its_way(plan, caller), memory_.mapped_bytes());
}

bool Planner::may_grow_early(Bytes size) const {
  const Bytes peak = std::max(peak_live_, wanted_bytes() + size);
  return size <= early_growth(peak);  // which leaves a part of the pool's limit
}

bool Planner::would_set_record(const PageRequest& request, const Caller& caller) const {
  if (!grows_past_peak(request.size) || request.size <= early_growth(peak_live_)) return false;
  const Bytes own = caller.own() ? memory_.index.pending_bytes(*caller.own()) : 0;
  const Bytes pending = memory_.index.pending_bytes();
  const Bytes of_others = pending - std::min(pending, own);
  const Bytes idle = memory_.idle_bytes();
  return idle - std::min(idle, of_others) < request.size;
}

}  // namespace vpmm::pool
