// SPDX-License-Identifier: Apache-2.0
// judge: the naive allocator.
#include "judge/reference.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

namespace vpmm::judge {
namespace {

constexpr Bytes kSmallAlignment = 256;
constexpr Bytes kRounding =
    8;  // at most an eighth is added, which may reach into another page or chunk

std::string to_text(AddressRange range) {
  return fmt::format("{} bytes at {:#x}", range.size, to_integer(range.begin));
}

// The parts of `whole` before and behind `part`; each perhaps empty.
std::array<AddressRange, 2> parts_beside(AddressRange whole, AddressRange part) {
  const DevicePtr begin = std::max(whole.begin, part.begin);
  const DevicePtr end = std::min(whole.end(), part.end());
  return {AddressRange{whole.begin, begin - whole.begin}, AddressRange{end, whole.end() - end}};
}

std::string differs(const char* name, std::uint64_t is, std::uint64_t least, std::uint64_t most) {
  if (least <= is && is <= most) return "";
  return fmt::format("figures: {} is {}, not {}{}", name, is, least,
                     least == most ? "" : fmt::format(" to {}", most));
}

}  // namespace

Reference::Reference(const Terms& terms, std::size_t pools, Bytes gpu_bytes,
                     std::optional<Bytes> capacity)
    : terms_(terms),
      gpu_bytes_(gpu_bytes),
      capacity_(pools, capacity),
      most_mapped_(pools),
      counts_(pools) {}

// --- events

// Memory that a graph may use at its next launch is for others only if they share an arena.
bool Reference::excludes(const Block& other, const Block& made) {
  if (!other.range.overlaps(made.range)) return false;
  if (other.state == State::live || other.is_kept) return true;
  return other.graph != 0 && other.graph != made.graph &&
         (other.arena == 0 || other.arena != made.arena);
}

// Memory that is in use again ends the frees before it. Of one that is pending the rest stays so.
void Reference::cut_out(AddressRange range) {
  std::vector<Block> rests;
  std::erase_if(blocks_, [&](const Block& block) {
    if (!block.range.overlaps(range) || block.state == State::held) return false;
    for (const AddressRange rest : parts_beside(block.range, range)) {
      if (block.state != State::pending || rest.empty()) continue;
      rests.push_back(block);
      rests.back().range = rest;
    }
    return true;
  });
  blocks_.insert(blocks_.end(), rests.begin(), rests.end());
}

std::string Reference::hand_out(const Block& made, Bytes alignment) {
  ++counts_[made.pool].allocations;
  for (const Block& other : blocks_)
    if (excludes(other, made))
      return fmt::format("overlap: {} were handed out while {} are {}", to_text(made.range),
                         to_text(other.range),
                         other.is_kept                ? "another process's"
                         : other.state == State::live ? "live"
                                                      : "a graph's");
  cut_out(made.range);
  blocks_.push_back(made);
  if (is_aligned(made.range.begin, std::max(alignment, kSmallAlignment))) return "";
  return fmt::format("alignment: {} are not aligned to {}", to_text(made.range), alignment);
}

// A failure is allowed where the chunks that memory in use touches, and the request in whole pages,
// exceed a limit: what is idle in those chunks is trapped, and all else can move.
std::string Reference::refuse(const Refused& refused, const Error& error) {
  if (error.code == ErrorCode::capture_active && !refused.may_wait) return "";
  if (error.code == ErrorCode::unsupported && !terms_.is_own) return "";
  if (error.code != ErrorCode::out_of_memory) return "error: " + error.message;
  if (!terms_.is_own || !terms_.is_exact || !refused.may_wait || has_unknown(refused.pool))
    return "";
  const auto is_used = [&](const Block& block) {
    return block.state == State::live || block.is_kept || block.held_by != 0 || block.was_graphs ||
           block.pool != refused.pool;
  };
  ++judged_;
  Bytes all = refused.bytes + refused.trapped_before;
  for (std::size_t pool = 0; pool < refused.chunks.size(); ++pool)
    all += chunks_of(is_used, pool, refused);
  const Bytes own =
      refused.bytes + refused.trapped_before + chunks_of(is_used, refused.pool, refused);
  const Bytes gpu = gpu_bytes_ - used_by_others_;
  if (own > limit(refused.pool) || all > gpu || !may_all_be_asked(refused.pool)) return "";
  return fmt::format(
      "refused: {} bytes though {} with it and what is trapped are in use of {}, and {} by all "
      "pools of {}: {}",
      refused.bytes, own, limit(refused.pool), all, gpu, error.message);
}

void Reference::undo_many(std::size_t pool, std::uint64_t graph, Undo undo,
                          const observe::Statistics& said) {
  undone_.push_back({pool, graph, graph != 0 || undo == Undo::perhaps_deferred});
  if (!terms_.is_own || counts_[pool].is_lost) return;
  const std::uint64_t undone = said.allocations - counts_[pool].allocations;
  counts_[pool].allocations += undone;
  counts_[pool].deallocations += undone;
}

void Reference::give_back(std::uint64_t id, State state, std::uint64_t graph) {
  for (Block& block : blocks_) {
    if (block.id != id || block.state != State::live) continue;
    ++counts_[block.pool].deallocations;
    block.held_by = block.graph != 0 ? block.graph : graph;
    block.state = block.was_graphs ? State::deferred : state;
    if (block.held_by != 0 && state != State::deferred) block.state = State::held;
  }
  // Only pools beside this one wait for its work.
  std::erase_if(blocks_, [&](const Block& block) {
    return counts_.size() == 1 && block.id == id && block.state == State::pending && !block.is_kept;
  });
}

void Reference::pin_around(DevicePtr ptr) {
  for (const Stretch& stretch : stretches_)
    if (stretch.memory.contains(ptr)) pinned_.insert(stretch.arena);
}

void Reference::keep(std::uint64_t id) {
  for (Block& block : blocks_)
    if (block.id == id) block.is_kept = true;
}

void Reference::end_keeping(std::uint64_t id) {
  for (Block& block : blocks_)
    if (block.id == id && std::exchange(block.is_kept, false) && block.state == State::pending)
      block.state = State::deferred;
}

void Reference::lose(std::uint64_t id) {
  give_back(id, State::pending, 0);
  std::erase_if(blocks_, [id](const Block& block) { return block.id == id; });
}

// The memory of a pinned arena is free behind all work that is queued.
void Reference::release_arena(std::uint64_t id, std::uint64_t arena) {
  for (Block& block : blocks_)
    if (block.arena == id) block.graph = 0;
  if (pinned_.erase(arena) == 0) return;
  for (const Stretch& stretch : stretches_)
    if (stretch.arena == arena)
      blocks_.push_back({0, stretch.pool, stretch.memory, 0, id, State::pending});
}

void Reference::let_go(std::uint64_t graph) {
  for (Undone& undone : undone_)
    if (undone.graph == graph) undone.graph = 0;
  for (Block& block : blocks_) {
    block.was_graphs |= block.graph == graph || block.held_by == graph;
    if (block.graph == graph) block.graph = 0;
    if (block.held_by != graph) continue;
    block.held_by = 0;
    if (block.state == State::held) block.state = State::deferred;
  }
}

// The last launch of a graph that is destroyed may end in this very wait, too late for the pool to
// see it.
void Reference::settle(std::size_t pool) {
  std::erase_if(undone_,
                [pool](const Undone& undone) { return undone.pool == pool && undone.graph == 0; });
  std::erase_if(blocks_, [pool](Block& block) {
    if (block.pool != pool || block.held_by != 0 || block.is_kept || block.state == State::live)
      return false;
    return !std::exchange(block.was_graphs, false);
  });
}

void Reference::set_capacity(std::size_t pool, std::optional<Bytes> bytes, Bytes mapped) {
  capacity_[pool] = bytes;
  most_mapped_[pool] = mapped;
}

void Reference::grow_arena(std::size_t pool, std::uint64_t arena, AddressRange stretch) {
  stretches_.push_back({pool, arena, stretch, false});
}

void Reference::shrink_arena(AddressRange part) {
  const auto whole =
      std::find_if(stretches_.begin(), stretches_.end(),
                   [part](const Stretch& each) { return each.memory.contains(part); });
  if (whole == stretches_.end()) return;
  const Stretch stretch = *whole;
  const AddressRange& memory = stretch.memory;
  stretches_.erase(whole);
  for (const AddressRange rest : parts_beside(memory, part))
    if (!rest.empty()) stretches_.push_back({stretch.pool, stretch.arena, rest, stretch.is_asleep});
}

void Reference::put_to_sleep(std::uint64_t arena, bool is_asleep) {
  for (Stretch& stretch : stretches_) {
    if (stretch.arena != arena) continue;
    stretch.is_asleep = is_asleep;
    for (Block& block : blocks_)
      if (stretch.memory.contains(block.range.begin)) block.is_asleep = is_asleep;
  }
}

// --- sums

// Such blocks.
Vector<AddressRange> Reference::ranges_of(const Is& is, Extent extent,
                                          std::optional<std::size_t> pool) const {
  Vector<AddressRange> ranges;
  for (const Block& block : blocks_) {
    const Bytes size =
        terms_.has_own_chunks ? round_up(block.range.size, terms_.page) : block.range.size;
    const Bytes taken = extent == Extent::rounded ? size + size / kRounding : block.range.size;
    if ((!pool || block.pool == *pool) && is(block)) ranges.push_back({block.range.begin, taken});
  }
  add_whole_stretches(ranges, is, pool);
  return ranges;
}

// Note [A stretch is in use as a whole]
// A pinned arena keeps each of its stretches. Where no two allocations share a stretch, it belongs
// to its allocation.
void Reference::add_whole_stretches(Vector<AddressRange>& ranges, const Is& is,
                                    std::optional<std::size_t> pool) const {
  for (const Stretch& stretch : stretches_) {
    const auto is_inside = [&](const Block& block) {
      return is(block) && stretch.memory.contains(block.range.begin);
    };
    if (stretch.is_asleep || (pool && stretch.pool != *pool)) continue;
    if (pinned_.count(stretch.arena) != 0 ||
        (whole_.count(stretch.arena) != 0 &&
         std::any_of(blocks_.begin(), blocks_.end(), is_inside)))
      ranges.push_back(stretch.memory);
  }
}

// Bytes of the pages that they touch.
Bytes Reference::pages_of(const Is& is, Extent extent, std::optional<std::size_t> pool) const {
  std::set<std::uint64_t> pages;
  for (const AddressRange& range : ranges_of(is, extent, pool))
    for (std::uint64_t page = to_integer(range.begin) / terms_.page;
         page * terms_.page < to_integer(range.end()); ++page)
      pages.insert(page);
  return pages.size() * terms_.page;
}

// Bytes of the chunks that they touch, and of those that are kept.
Bytes Reference::chunks_of(const Is& is, std::size_t pool, const Refused& refused) const {
  Vector<AddressRange> ranges = ranges_of(is, Extent::rounded, pool);
  ranges.insert(ranges.end(), refused.kept[pool].begin(), refused.kept[pool].end());
  Bytes bytes = 0;
  for (const AddressRange& chunk : refused.chunks[pool])
    if (std::any_of(ranges.begin(), ranges.end(),
                    [&](const AddressRange& used) { return used.overlaps(chunk); }))
      bytes += chunk.size;
  return bytes;
}

// Memory above a lowered capacity stays mapped, and the driver's pool keeps pending memory.
Bytes Reference::most_mapped(std::size_t pool) const {
  return terms_.is_own ? std::max(limit(pool), most_mapped_[pool]) : gpu_bytes_;
}

Bytes Reference::limit(std::size_t pool) const {
  return std::min(capacity_[pool].value_or(gpu_bytes_), gpu_bytes_);
}

// Frees that the pool may not have carried out.
Reference::Sum Reference::open_frees(std::size_t pool) const {
  Sum open;
  for (const Block& block : blocks_)
    if (block.pool == pool &&
        (block.state == State::deferred || block.state == State::held || block.is_kept))
      open.add(block);
  return open;
}

Reference::Sum Reference::live(std::size_t pool) const {
  Sum live;
  for (const Block& block : blocks_)
    if (block.pool == pool && block.state == State::live && !block.is_asleep) live.add(block);
  return live;
}

bool Reference::has_unknown(std::size_t pool) const {
  return std::any_of(undone_.begin(), undone_.end(),
                     [pool](const Undone& undone) { return undone.pool == pool && undone.stays; });
}

// Whether the memory of the other pools is known.
bool Reference::may_all_be_asked(std::size_t pool) const {
  return std::all_of(undone_.begin(), undone_.end(),
                     [pool](const Undone& undone) { return undone.pool == pool; });
}

// --- comparisons

std::string Reference::compare(std::size_t pool, const observe::Statistics& said) {
  if (has_unknown(pool)) return "";
  const Sum live = this->live(pool);
  const Sum open = open_frees(pool);
  const auto has_memory = [](const Block& block) {
    return block.state == State::live && !block.is_asleep;
  };
  const Bytes used = terms_.is_own ? pages_of(has_memory, Extent::requested, pool) : live.bytes;
  for (const std::string& wrong :
       {differs("live_bytes", said.live_bytes, live.bytes, live.bytes + open.bytes),
        differs("live_allocations", said.live_allocations, live.count, live.count + open.count),
        differs("mapped_bytes", said.mapped_bytes, used, most_mapped(pool)),
        differs("allocated_bytes", said.allocated_bytes, live.bytes, said.mapped_bytes)})
    if (!wrong.empty()) return wrong;
  return compare_counts(pool, said);
}

// A count that was lost is taken from the pool when no free is open.
std::string Reference::compare_counts(std::size_t pool, const observe::Statistics& said) {
  Counts& counts = counts_[pool];
  const Sum open = open_frees(pool);
  if (counts.is_lost) {
    if (open.count == 0)
      counts = {said.allocations, said.deallocations, said.failed_allocations, false};
    return "";
  }
  // Memory of the driver's pool may be made and freed within a call that fails.
  const std::uint64_t undone =
      terms_.is_own ? 0 : said.allocations - std::min(said.allocations, counts.allocations);
  for (const std::string& wrong :
       {differs("allocations", said.allocations - undone, counts.allocations, counts.allocations),
        differs("deallocations", said.deallocations - undone, counts.deallocations - open.count,
                counts.deallocations),
        differs("failed_allocations", said.failed_allocations, counts.refusals, counts.refusals)})
    if (!wrong.empty()) return wrong;
  return "";
}

// Every live block is in the picture, at its place and with its size, and beside them only frees
// not carried out.
std::string Reference::compare(std::size_t pool, const report::Layout& said) const {
  if (has_unknown(pool)) return "";
  std::map<DevicePtr, const Block*> known;
  std::uint64_t missing = 0;
  for (const Block& block : blocks_) {
    if (block.pool != pool || (block.state == State::pending && !block.is_kept)) continue;
    known[block.range.begin] = &block;
    missing += block.state == State::live ? 1 : 0;
  }
  for (const report::LayoutBlock& block : said.blocks) {
    if (block.state != region::RegionState::allocated) continue;
    const auto found = known.find(block.range.begin);
    if (found == known.end()) return fmt::format("picture: {} are free", to_text(block.range));
    if (block.requested != found->second->range.size || block.range.size < block.requested)
      return fmt::format("picture: {} ({} requested) are {}", to_text(block.range), block.requested,
                         to_text(found->second->range));
    missing -= found->second->state == State::live ? 1 : 0;
  }
  return missing == 0 ? "" : fmt::format("picture: {} live allocations are not in it", missing);
}

std::string Reference::compare_events(std::size_t pool, std::uint64_t allocated,
                                      std::uint64_t freed) const {
  if (has_unknown(pool) || !terms_.is_own) return "";
  const Counts& counts = counts_[pool];
  const std::string wrong =
      differs("events of allocations", allocated, counts.allocations, counts.allocations);
  if (!wrong.empty()) return wrong;
  return differs("events of frees", freed, counts.deallocations - open_frees(pool).count,
                 counts.deallocations);
}

std::string Reference::compare_free_memory(std::size_t pool, Bytes free, Bytes total) const {
  const std::string wrong = differs("total memory", total, 0, gpu_bytes_);
  const Bytes bytes = live(pool).bytes;
  return !wrong.empty()
             ? wrong
             : differs("free memory", free, 0, limit(pool) - std::min(limit(pool), bytes));
}

}  // namespace vpmm::judge
