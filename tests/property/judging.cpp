// SPDX-License-Identifier: Apache-2.0
// property tests: what the reference of tests/judge says of a program.
#include <fmt/format.h>

#include <algorithm>

#include "fault/host_faults.hpp"
#include "property/world.hpp"

namespace vpmm::property {

judge::Terms World::terms_of(const Scene& scene) {
  constexpr std::uint64_t kAsManyAsItLikes = 10'000;
  const bool has_pool = scene.sim.vmm_supported && scene.config.pool_enabled;
  const bool has_small =
      !scene.sim.memory_pools_supported || scene.config.small == settings::SmallRequests::pool;
  // Guarded memory takes pages of the device.
  const bool guards = scene.config.checks.guard_every != 0 && !scene.config.ipc_isolate;
  const Bytes page = scene.config.page_size.value_or(2 * kMiB);
  return {guards ? std::min(page, scene.sim.granularity) : page, has_pool && has_small,
          scene.config.limits.max_mappings > kAsManyAsItLikes, scene.config.ipc_isolate};
}

void World::listen_to_stretches(std::size_t number) {
  using report::EventKind;
  report::EventKinds kinds = bit_of(EventKind::arena_grow) | bit_of(EventKind::arena_shrink) |
                             bit_of(EventKind::suspend) | bit_of(EventKind::resume);
  if (scene_.listens) kinds |= bit_of(EventKind::allocate) | bit_of(EventKind::free);
  devices_[number].pool->reports().add_event_callback(
      kinds, [this, number](const report::ReportedEvent& event) {
        const fault::Exempt exempt;  // the pool drops failures of listeners
        const std::uint64_t arena = arena_id(number, event.arena);
        switch (event.kind) {
          case EventKind::allocate: ++devices_[number].told_allocated; return;
          case EventKind::free: ++devices_[number].told_freed; return;
          case EventKind::arena_shrink:
            return reference(number).shrink_arena({event.ptr, event.bytes});
          case EventKind::arena_grow:
            return reference(number).grow_arena(seat_of(number), arena, {event.ptr, event.bytes});
          default: reference(number).put_to_sleep(arena, event.kind == EventKind::suspend);
        }
      });
}

void World::judge_request(std::size_t number, const Error& error, const Refused& refused) {
  reference(number).count_refusal(seat_of(number));
  judge_refusal(number, error, refused);
}

// What is pending can be waited for, except while somebody captures.
bool World::may_wait(std::size_t number) const {
  const Device& at = devices_[number];
  if (is_capturing(at) || at.had_unannounced_capture) return false;
  return !has_peers() || !is_capturing_anywhere();
}

// Free memory that cannot be given to others although no block is in use there. A pool beside the
// one that refuses does not wait for its GPU work; the reference knows what it freed by address,
// and chunks with that work may have moved. What was cut once for a stream, or for requests without
// one (a segment), stays theirs until all of that is free, so that a block in use keeps what is
// beside it in the cut, also in a page or chunk beside its own.
Vector<AddressRange> World::kept_ranges(const report::Layout& layout, bool is_beside) {
  const auto is_kept = [](const report::LayoutBlock& block) {
    return block.state == region::RegionState::free && !block.is_complete;
  };
  const auto is_used = [](const report::LayoutBlock& block) {
    return block.state == region::RegionState::allocated;
  };
  const auto is_other_cut = [&](const report::LayoutBlock& one, const report::LayoutBlock& next) {
    const auto is_cut = [&](const auto& block) {
      return block.is_small && (is_kept(block) || is_used(block));
    };
    return !is_cut(one) || !is_cut(next) || one.range.end() != next.range.begin;
  };
  Vector<AddressRange> kept;
  for (auto begin = layout.blocks.begin(); begin != layout.blocks.end();) {
    const auto last = std::adjacent_find(begin, layout.blocks.end(), is_other_cut);
    const auto end = last == layout.blocks.end() ? last : last + 1;
    if (is_beside || std::any_of(begin, end, is_used))
      for (; begin != end; ++begin)
        if (is_kept(*begin)) kept.push_back(begin->range);
    begin = end;
  }
  return kept;
}

void World::judge_refusal(std::size_t number, const Error& error, const Refused& refused) {
  if (!has_pool() && error.code == ErrorCode::capture_active) return;
  judge::Reference::Refused judged{
      seat_of(number), refused.whole_pages, may_wait(number), {}, {}, 0};
  for (const Device& each : devices_) {
    if (!share_gpu(each, devices_[number])) continue;
    const report::Layout layout = each.pool->reports().layout();
    judged.chunks.push_back(layout.chunks);
    judged.kept.push_back(kept_ranges(layout, &each != &devices_[number]));
    // Memory that the driver refused to take back is mapped, and serves nobody.
    judged.bytes += each.pool->reports().statistics().quarantined_bytes;
  }
  const Bytes made = refused.made_before + devices_[number].made_by_callbacks;
  for (const AddressRange& chunk : judged.chunks[judged.pool])
    judged.trapped_before = std::max(judged.trapped_before, 2 * made * chunk.size);
  const std::uint64_t before = reference(number).judged();
  const std::string wrong = reference(number).refuse(judged, error);
  figures_.judged += reference(number).judged() - before;
  if (!wrong.empty()) fail(wrong);
}

bool World::comes_and_goes(std::size_t number, Bytes bytes) {
  constexpr std::uint64_t kNumber = ~std::uint64_t{0};
  context::Context& pool = *devices_[number].pool;
  const std::size_t seat = seat_of(number);
  const auto made = pool.allocate({bytes, 0, std::nullopt});
  if (!made) return reference(number).count_refusal(seat), false;
  if (const std::string wrong =
          reference(number).hand_out({kNumber, seat, {made.value(), bytes}}, 0);
      !wrong.empty())
    fail(wrong);
  if (!pool.query(made.value())) fail("memory that was handed out is not there");
  const auto freed = pool.deallocate(made.value(), std::nullopt);
  if (!freed) fail("deallocate: " + freed.error().message);
  reference(number).give_back(kNumber, judge::Reference::State::pending, 0);
  return true;
}

// Each allocation is found by its last byte, and regions divide the reserved addresses.
void World::check_look_up(std::size_t number) {
  const context::Context& pool = *devices_[number].pool;
  for (const Allocation& each : allocations_) {
    if (each.device != number) continue;
    const auto info = pool.query(each.ptr + (each.bytes - 1));
    if (!info || info.value().begin != each.ptr || info.value().requested != each.bytes)
      fail(fmt::format("query: {} bytes at {:#x} are not found", each.bytes, to_integer(each.ptr)));
  }
  const observe::PoolSnapshot snapshot = devices_[number].pool->reports().snapshot();
  Bytes bytes = 0;
  DevicePtr end{};
  for (const observe::RegionSnapshot& region : snapshot.regions) {
    if (region.range.begin < end) fail("picture: two regions at one place");
    end = region.range.end();
    bytes += region.range.size;
  }
  // Addresses of guarded memory are no regions.
  const Bytes reserved = snapshot.statistics.reserved_bytes;
  if (guards() && reserved == bytes + scene_.config.va_size) bytes = reserved;
  if (bytes != reserved) fail(fmt::format("picture: {} bytes of {} reserved", bytes, reserved));
}

void World::check_reference() {
  for (std::size_t number = 0; number < devices_.size(); ++number) {
    const Device& at = devices_[number];
    if (at.pool == nullptr) continue;
    const std::size_t seat = seat_of(number);
    for (const std::string& wrong :
         {reference(number).compare(seat, flaw_.statistics(*at.pool)),
          reference(number).compare(seat, at.pool->reports().layout()),
          scene_.listens && !had_faults_
              ? reference(number).compare_events(seat, at.told_allocated, at.told_freed)
              : std::string()})
      if (!wrong.empty()) fail(wrong);
    check_look_up(number);
  }
}

}  // namespace vpmm::property
