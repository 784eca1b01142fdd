// pool: windows, stitching, splitting and growth.
#include "pool/strategies.hpp"

#include <algorithm>
#include <functional>
#include <optional>
#include <tuple>
#include <utility>

namespace vpmm::pool {

using region::Region;
using region::RegionState;

namespace {

bool is_hole(const Region* region) { return region != nullptr && region->state == RegionState::hole; }

// --- windows --------------------------------------------------------------------------------------------------------

// Free regions looked at, smallest first, before it is stitched: looking at a few more finds hardly anything and costs
// as much as it finds; at half as many, requests of rare sizes are stitched more often.
constexpr std::size_t kRegionsLookedAt = 64;
// The same for chunks of stretches of several regions.
constexpr std::size_t kChunksLookedAt = 2048;

struct Window {
  Region* first = nullptr;  // of its stretch, or its region
  AddressRange range;
  // What it spoils: 0 it is all of its stretch, 1 it lies at an end of it, 2 within.
  int cut = 2;
};

// Of two windows, the one that spoils less; then the one with less slack.
bool is_better(const Window& a, const std::optional<Window>& b) {
  if (!b) return true;
  return std::tuple(a.cut, a.range.size, a.range.begin) < std::tuple(b->cut, b->range.size, b->range.begin);
}

// The chunks from the front, or from the back, of `free` that suffice.
std::optional<AddressRange> front_window(const View& view, const Ask& ask, AddressRange free) VPMM_REQUIRES(pool_lock) {
  AddressRange window;
  view.chunks.for_each_inside(free, [&](const vm::Mapping& mapping) {
    if (window.empty()) {
      if (!is_multiple(to_integer(mapping.at), ask.alignment)) return true;
      window.begin = mapping.at;
    }
    window.size += mapping.chunk->size;
    return window.size < ask.size;
  });
  if (window.size < ask.size || window.size > ask.size + ask.slack) return std::nullopt;
  return window;
}

std::optional<AddressRange> back_window(const View& view, const Ask& ask, AddressRange free) VPMM_REQUIRES(pool_lock) {
  AddressRange window{free.end(), 0};
  view.chunks.for_each_inside_backwards(free, [&](const vm::Mapping& mapping) {
    window.begin = mapping.at;
    window.size += mapping.chunk->size;
    return window.size < ask.size || !is_multiple(to_integer(window.begin), ask.alignment);
  });
  if (window.size < ask.size || window.size > ask.size + ask.slack) return std::nullopt;
  if (!is_multiple(to_integer(window.begin), ask.alignment)) return std::nullopt;
  return window;
}

void consider_ends(const View& view, const Ask& ask, Region* free, std::optional<Window>& best)
    VPMM_REQUIRES(pool_lock) {
  for (const auto find : {front_window, back_window}) {
    const std::optional<AddressRange> range = find(view, ask, free->range);
    if (!range) continue;
    const Window window{free, *range, range->size == free->range.size ? 0 : 1};
    if (is_better(window, best)) best = window;
  }
}

// Every window of a stretch, over the borders of its regions.
void consider_all(const View& view, const Ask& ask, Region* first, AddressRange stretch, std::size_t& looked_at,
                  std::optional<Window>& best) VPMM_REQUIRES(pool_lock) {
  Vector<vm::Mapping> inside;
  Bytes sum = 0;
  std::size_t from = 0;
  view.chunks.for_each_inside(stretch, [&](const vm::Mapping& mapping) {
    ++looked_at;
    inside.push_back(mapping);
    sum += mapping.chunk->size;
    while (sum - inside[from].chunk->size >= ask.size) sum -= inside[from++].chunk->size;
    const DevicePtr begin = inside[from].at;
    if (sum < ask.size || sum > ask.size + ask.slack || !is_multiple(to_integer(begin), ask.alignment)) return true;
    const bool is_front = begin == stretch.begin;
    const bool is_back = begin + sum == stretch.end();
    const Window window{first, {begin, sum}, is_front && is_back ? 0 : is_front || is_back ? 1 : 2};
    if (is_better(window, best)) best = window;
    return true;
  });
}

Plan hit(const View& view, const Ask& ask, const Window& window) VPMM_REQUIRES(pool_lock) {
  Plan plan;
  plan.request = ask.size;
  plan.slack = window.range.size - ask.size;
  plan.kept = view.parts_of(window.first, window.range);
  plan.allocation = window.range.begin;
  for (const Part& part : plan.kept) View::add_waits(part.stamp, ask.own, plan.waits);
  return plan;
}

}  // namespace

Decision fit(const View& view, const Ask& ask) {
  std::optional<Window> best;
  std::size_t looked_at = 0;
  const auto look = [&](Region* free) VPMM_REQUIRES(pool_lock) {
    consider_ends(view, ask, free, best);
    const bool is_good = best && (best->cut == 0 || best->range.size == ask.size);
    return !is_good && ++looked_at < kRegionsLookedAt;
  };
  if (!ask.takes_waiting) {
    view.index.for_each_fit(ask.size, ask.own, look);
  } else {
    view.index.for_each_free_by_age([&](Region* free) VPMM_REQUIRES(pool_lock) {
      return free->range.size < ask.size || !view.admits(free, ask) || look(free);
    });
  }
  if (best) return hit(view, ask, *best);
  looked_at = 0;
  view.index.for_each_run([&](const Vector<Region*>& run) VPMM_REQUIRES(pool_lock) {
    for (std::size_t i = 0; i < run.size(); ++i) {
      if (!view.admits(run[i], ask)) continue;
      Region* const first = run[i];
      AddressRange stretch = first->range;
      for (; i + 1 < run.size() && view.admits(run[i + 1], ask); ++i) stretch.size += run[i + 1]->range.size;
      if (stretch.size >= ask.size) consider_all(view, ask, first, stretch, looked_at, best);
    }
    return looked_at < kChunksLookedAt && !(best && best->cut == 0 && best->range.size == ask.size);
  });
  if (best) return hit(view, ask, *best);
  return NoPlan{NoPlan::Reason::memory, ask.size};
}

// --- stitching ------------------------------------------------------------------------------------------------------

namespace {

// The end of a stretch that stays where it is, beside a hole into which the rest of the allocation is mapped.
struct Kept {
  Region* first = nullptr;  // null: nothing is kept
  AddressRange range;
  Region* hole = nullptr;
  bool is_front = false;  // what is kept is the allocation's front; the hole is behind it
};

bool is_better(const Kept& a, const Kept& b) {
  if (a.range.size != b.range.size) return a.range.size > b.range.size;
  return b.first == nullptr || a.range.begin < b.range.begin;
}

// The chunks of the stretch that ends with `last`, from its back, as many as are not more than the request.
Kept kept_back(const View& view, const Ask& ask, Region* last) VPMM_REQUIRES(pool_lock) {
  Kept kept{nullptr, {last->range.end(), 0}, last->next, true};
  AddressRange reached = kept.range;
  bool has_room = true;
  for (Region* region = last; has_room && view.admits(region, ask); region = region->previous) {
    view.chunks.for_each_inside_backwards(region->range, [&](const vm::Mapping& mapping) {
      has_room = reached.size + mapping.chunk->size <= ask.size;
      if (!has_room) return false;
      reached = {mapping.at, reached.size + mapping.chunk->size};
      if (is_multiple(to_integer(reached.begin), ask.alignment)) {
        kept.range = reached;
        kept.first = region;
      }
      return true;
    });
  }
  return kept;
}

Kept kept_front(const View& view, const Ask& ask, Region* first) VPMM_REQUIRES(pool_lock) {
  Kept kept{nullptr, {first->range.begin, 0}, first->previous, false};
  bool has_room = true;
  for (Region* region = first; has_room && view.admits(region, ask); region = region->next) {
    view.chunks.for_each_inside(region->range, [&](const vm::Mapping& mapping) {
      has_room = kept.range.size + mapping.chunk->size <= ask.size;
      if (has_room) kept.range.size += mapping.chunk->size;
      return has_room;
    });
  }
  if (!kept.range.empty()) kept.first = first;
  return kept;
}

// The largest there is: it moves and creates least.
Kept best_kept(const View& view, const Ask& ask) VPMM_REQUIRES(pool_lock) {
  Kept best;
  const auto consider = [&](const Kept& kept) {
    if (kept.first != nullptr && kept.hole->range.size >= ask.size - kept.range.size && is_better(kept, best))
      best = kept;
  };
  const bool may_begin_anywhere = ask.alignment <= view.tuning.page_size;
  // Alone it is too small: without a look at its chunks, for most are.
  const auto is_beaten = [&](const Region& free, const Region* beside) VPMM_REQUIRES(pool_lock) {
    return free.range.size < best.range.size && !view.admits(beside, ask);
  };
  view.index.for_each_free_by_age([&](Region* free) VPMM_REQUIRES(pool_lock) {
    if (!view.admits(free, ask)) return true;
    if (is_hole(free->next) && !is_beaten(*free, free->previous)) consider(kept_back(view, ask, free));
    if (may_begin_anywhere && is_hole(free->previous) && !is_beaten(*free, free->next))
      consider(kept_front(view, ask, free));
    return true;
  });
  return best;
}

// An idle chunk, and what speaks for moving it before others of its size.
struct Idle {
  Region* from = nullptr;
  vm::Mapping chunk;
  std::uint64_t rank = 0;  // the least goes first

  Bytes size() const { return chunk.chunk->size; }
  friend bool operator<(const Idle& a, const Idle& b) {
    return std::tuple(a.rank, a.chunk.at) < std::tuple(b.rank, b.chunk.at);
  }
};

// Largest size first. Note [The smallest stretch gives first]
using IdleBySize = Map<Bytes, Vector<Idle>, std::greater<>>;

// Note [The smallest stretch gives first]
// Chunks that are not too large move, the largest first: a moved chunk costs the same whatever its size. Of chunks of
// one size, those of the smallest stretch move, so that large stretches stay what they are, and hits stay likely.
struct Supply {
  IdleBySize at_once;
  IdleBySize behind_waits;  // the caller's stream has to wait for others
  Bytes bytes = 0;
  std::size_t chunks = 0;
  bool is_all = true;
};

// All there are; or, of very many, those of the first stretches by age that give `enough` bytes.
enum class Look { until_enough, at_all };
Supply idle_chunks(const View& view, const Ask& ask, AddressRange except, Bytes enough, Look look)
    VPMM_REQUIRES(pool_lock) {
  Supply supply;
  const bool is_oldest_first = view.tuning.order == Tuning::Order::oldest_first;
  view.for_each_stretch(ask, [&](Region* first, AddressRange stretch) VPMM_REQUIRES(pool_lock) {
    for (Region* region = first; region != nullptr && region->range.begin < stretch.end(); region = region->next) {
      IdleBySize& idle = View::is_usable(*region, ask.own) ? supply.at_once : supply.behind_waits;
      const std::uint64_t rank = is_oldest_first ? region->age : stretch.size;
      view.chunks.for_each_inside(region->range, [&](const vm::Mapping& mapping) {
        if (except.contains(mapping.at)) return true;
        idle[mapping.chunk->size].push_back({region, mapping, rank});
        supply.bytes += mapping.chunk->size;
        ++supply.chunks;
        return true;
      });
    }
    supply.is_all = look == Look::at_all || supply.chunks < kChunksLookedAt || supply.bytes < enough;
    return supply.is_all;
  });
  return supply;
}

// Of `idle`, the first of each size, as long as they are not too large. Takes them from `left`.
void pick(IdleBySize& idle, Bytes& left, Vector<Idle>& picked) {
  for (auto& [size, chunks] : idle) {
    const std::size_t count = std::min<std::size_t>(chunks.size(), left / size);
    if (count == 0) continue;
    const auto end = chunks.begin() + static_cast<std::ptrdiff_t>(count);
    std::partial_sort(chunks.begin(), end, chunks.end());
    picked.insert(picked.end(), chunks.begin(), end);
    chunks.erase(chunks.begin(), end);
    left -= count * size;
  }
}

// The smallest chunk that is larger than `left` and suits; null: there is none.
template <typename Suits>
const Idle* smallest_above(const IdleBySize& idle, Bytes left, const Suits& suits) {
  for (auto size = idle.rbegin(); size != idle.rend(); ++size) {
    if (size->first <= left) continue;
    const Idle* best = nullptr;
    for (const Idle& each : size->second)
      if (suits(each) && (best == nullptr || each < *best)) best = &each;
    if (best != nullptr) return best;
  }
  return nullptr;
}

// Chunks that lie side by side in one region leave it together.
Vector<Move> moves_of(const Vector<Idle>& picked) {
  Vector<Move> moves;
  Vector<Region*> regions;  // in the order in which they give first
  for (const Idle& idle : picked)
    if (std::find(regions.begin(), regions.end(), idle.from) == regions.end()) regions.push_back(idle.from);
  for (Region* from : regions) {
    Vector<vm::Mapping> chunks;
    for (const Idle& idle : picked)
      if (idle.from == from) chunks.push_back(idle.chunk);
    std::sort(chunks.begin(), chunks.end(), [](const vm::Mapping& a, const vm::Mapping& b) { return a.at < b.at; });
    for (const vm::Mapping& chunk : chunks) {
      const bool is_beside =
          !moves.empty() && moves.back().part.from == from && moves.back().part.range.end() == chunk.at;
      if (!is_beside) moves.push_back({{from, {chunk.at, 0}, from->stamp}, {}});
      moves.back().part.range.size += chunk.chunk->size;
      moves.back().chunks.push_back(chunk);
    }
  }
  return moves;
}

// Requires: the chunk is complete, mapped once, and larger than `wanted`.
Split split_of(const View& view, const Idle& idle, Bytes wanted) {
  const AddressRange chunk = idle.chunk.range();
  const Bytes left = chunk.size - wanted;
  const auto is_free = [](const Region* region) { return region != nullptr && region->state == RegionState::free; };
  const bool is_free_before = chunk.begin > idle.from->range.begin || is_free(idle.from->previous);
  const bool is_free_behind = chunk.end() < idle.from->range.end() || is_free(idle.from->next);
  const DevicePtr begin = is_free_behind && !is_free_before ? chunk.begin + wanted : chunk.begin;
  return {{idle.from, chunk, idle.from->stamp}, idle.chunk, {begin, left}, view.tuning.chunk_sizes(left)};
}

// What of `wanted` bytes the supply gives: chunks that are not too large; then a larger one, whole if its slack is
// allowed, else split. Returns what it lacks.
Bytes gather(const View& view, const Ask& ask, Supply& supply, Bytes wanted, Plan& plan) VPMM_REQUIRES(pool_lock) {
  Vector<Idle> picked;
  Bytes left = wanted;
  pick(supply.at_once, left, picked);
  pick(supply.behind_waits, left, picked);
  const auto larger = [&](const auto& suits) {
    const Idle* const chunk = smallest_above(supply.at_once, left, suits);
    return chunk != nullptr ? chunk : smallest_above(supply.behind_waits, left, suits);
  };
  const auto is_splittable = [](const Idle& idle) {
    return idle.from->stamp.is_complete() && idle.chunk.chunk->mappings == 1;
  };
  if (left > 0) {
    const Idle* const whole = larger([](const Idle&) { return true; });
    const Idle* const to_split = larger(is_splittable);
    if (whole != nullptr && whole->size() - left <= ask.slack) {
      plan.slack = whole->size() - left;
      picked.push_back(*whole);
      left = 0;
    } else if (to_split != nullptr) {
      plan.split = split_of(view, *to_split, left);
      plan.creates = view.tuning.chunk_sizes(left);
      left = 0;
    } else if (whole != nullptr) {
      plan.blocked = left;
    }
  }
  plan.moves = moves_of(picked);
  return left;
}

// Finds room for what is mapped: in the hole beside what is kept, else in the smallest that is large enough.
Decision laid_out(const View& view, const Ask& ask, const Kept& kept, Plan plan) VPMM_REQUIRES(pool_lock) {
  for (const Move& move : plan.moves) View::add_waits(move.part.stamp, ask.own, plan.waits);
  const Bytes bytes = plan.moved_bytes() + plan.created_bytes();
  if (bytes == 0) {
    plan.allocation = kept.range.begin;
    return plan;
  }
  if (kept.first == nullptr) {
    plan.hole = view.index.smallest_hole(bytes, ask.alignment);
    if (plan.hole == nullptr) return NoPlan{NoPlan::Reason::address_space, bytes};
    plan.mapped = {align_up(plan.hole->range.begin, ask.alignment), bytes};
    plan.allocation = plan.mapped.begin;
    return plan;
  }
  plan.hole = kept.hole;
  if (kept.hole->range.size < bytes) return NoPlan{NoPlan::Reason::address_space, bytes};
  plan.mapped = {kept.is_front ? kept.range.end() : kept.range.begin - bytes, bytes};
  plan.allocation = kept.is_front ? kept.range.begin : plan.mapped.begin;
  return plan;
}

Plan beginning_with(const View& view, const Ask& ask, const Kept& kept) VPMM_REQUIRES(pool_lock) {
  Plan plan;
  plan.request = ask.size;
  if (kept.first == nullptr) return plan;
  plan.kept = view.parts_of(kept.first, kept.range);
  for (const Part& part : plan.kept) View::add_waits(part.stamp, ask.own, plan.waits);
  return plan;
}

Decision stitched(const View& view, const Ask& ask, const Kept& kept) VPMM_REQUIRES(pool_lock) {
  const Bytes wanted = ask.size - kept.range.size;
  Plan plan;
  Bytes lacking = wanted;
  for (const Look look : {Look::until_enough, Look::at_all}) {
    plan = beginning_with(view, ask, kept);
    Supply supply = idle_chunks(view, ask, kept.range, wanted, look);
    lacking = gather(view, ask, supply, wanted, plan);
    if (lacking == 0 || supply.is_all) break;
  }
  if (lacking > ask.growth_room) return NoPlan{NoPlan::Reason::memory, lacking - ask.growth_room};
  const Vector<Bytes> created = view.tuning.chunk_sizes(lacking);
  plan.creates.insert(plan.creates.end(), created.begin(), created.end());
  return laid_out(view, ask, kept, std::move(plan));
}

Decision stitched_anywhere(const View& view, const Ask& ask, const Kept& kept) VPMM_REQUIRES(pool_lock) {
  Decision decision = stitched(view, ask, kept);
  const NoPlan* const none = std::get_if<NoPlan>(&decision);
  const bool is_hole_too_small = none != nullptr && none->reason == NoPlan::Reason::address_space;
  return is_hole_too_small && kept.first != nullptr ? stitched(view, ask, Kept{}) : decision;
}

Decision grown(const View& view, const Ask& ask, const Kept& kept) VPMM_REQUIRES(pool_lock) {
  if (ask.early_growth == 0) return NoPlan{NoPlan::Reason::memory, ask.size};
  const Bytes lacking = ask.size - kept.range.size;
  const Bytes most = std::min(ask.growth_room, ask.early_growth);
  if (lacking > most) return NoPlan{NoPlan::Reason::memory, lacking - most};
  Plan plan = beginning_with(view, ask, kept);
  plan.creates = view.tuning.chunk_sizes(lacking);
  return laid_out(view, ask, kept, std::move(plan));
}

std::uint64_t cost_us(const View& view, const Plan& plan) {
  const Price price = plan.price();
  return price.driver_us + view.tuning.growth_weight * price.growth_us;
}

// The plan that costs less; of two that there are not, the one that misses less. The first among equals.
Decision better(const View& view, Decision a, Decision b) {
  const Plan* const plan_a = std::get_if<Plan>(&a);
  const Plan* const plan_b = std::get_if<Plan>(&b);
  if (plan_a != nullptr && plan_b != nullptr)
    return cost_us(view, *plan_b) < cost_us(view, *plan_a) ? std::move(b) : std::move(a);
  if (plan_a != nullptr || plan_b != nullptr) return plan_a != nullptr ? std::move(a) : std::move(b);
  const NoPlan& none_a = std::get<NoPlan>(a);
  const NoPlan& none_b = std::get<NoPlan>(b);
  if (none_b.reason == NoPlan::Reason::address_space) return b;
  const bool is_less = none_a.reason == NoPlan::Reason::memory && none_b.missing < none_a.missing;
  return is_less ? std::move(b) : std::move(a);
}

}  // namespace

Decision stitch(const View& view, const Ask& ask) { return stitched_anywhere(view, ask, best_kept(view, ask)); }

Decision grow(const View& view, const Ask& ask) { return grown(view, ask, best_kept(view, ask)); }

Decision grow_or_stitch(const View& view, const Ask& ask) {
  const Kept kept = best_kept(view, ask);
  return better(view, grown(view, ask, kept), stitched_anywhere(view, ask, kept));
}

Decision fit_one_chunk(const View& view, const Ask& ask) {
  std::optional<Plan> found;
  view.index.for_each_free_by_age([&](Region* free) VPMM_REQUIRES(pool_lock) {
    if (!view.admits(free, ask)) return true;
    view.chunks.for_each_inside(free->range, [&](const vm::Mapping& mapping) VPMM_REQUIRES(pool_lock) {
      if (mapping.chunk->size != ask.size || !is_multiple(to_integer(mapping.at), ask.alignment)) return true;
      found.emplace();
      found->request = ask.size;
      found->allocation = mapping.at;
      found->kept = {{free, mapping.range(), free->stamp}};
      View::add_waits(free->stamp, ask.own, found->waits);
      return false;
    });
    return !found;
  });
  if (found) return std::move(*found);
  return NoPlan{NoPlan::Reason::memory, ask.size};
}

Decision grow_in_one_chunk(const View& view, const Ask& ask) {
  if (ask.size > ask.growth_room) return NoPlan{NoPlan::Reason::memory, ask.size - ask.growth_room};
  Plan plan;
  plan.request = ask.size;
  plan.creates = {ask.size};
  return laid_out(view, ask, Kept{}, std::move(plan));
}

Decision cheapest(std::span<const Strategy> strategies, const View& view, const Ask& ask) {
  Decision best = NoPlan{NoPlan::Reason::memory, ask.size + 1};
  for (const Strategy strategy : strategies) {
    best = better(view, std::move(best), strategy(view, ask));
    if (const Plan* const plan = std::get_if<Plan>(&best); plan != nullptr && plan->is_hit()) break;
  }
  return best;
}

}  // namespace vpmm::pool
