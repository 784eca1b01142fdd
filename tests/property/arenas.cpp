// SPDX-License-Identifier: Apache-2.0
// property tests: memory that is kept together in arenas.
#include <algorithm>

#include <fmt/format.h>

#include "property/world.hpp"

namespace vpmm::property {

namespace {
constexpr std::size_t kMostArenas = 4;
}  // namespace

void World::operator()(const MakeArena& o) {
  if (!has_pool() || arenas_.size() >= kMostArenas) return;
  const std::size_t number = o.device % devices_.size();
  arena::ArenaOptions options;
  options.one_chunk = o.one_chunk;
  options.splits = o.splits;
  const std::uint64_t key = next_key_++;
  say("CALL(vpmm_arena_create(pool[{}], {}{}, 0, &a[{}]));", number,
      o.one_chunk ? "VPMM_ARENA_ONE_CHUNK | " : "", o.splits ? "0" : "VPMM_ARENA_NO_SPLIT", key);
  const auto made =
      call(Bears::nothing, [&] { return devices_[number].pool->arenas().create(options); });
  if (!made) return fail("create an arena: " + made.error().message);
  arenas_.push_back({key, number, made.value()});
  if (!o.splits || scene_.config.ipc_isolate)
    reference(number).keep_whole(arena_id(number, static_cast<std::uint64_t>(made.value())));
}

World::Arena* World::find_arena(std::uint64_t key) {
  for (Arena& arena : arenas_)
    if (key != 0 && arena.key == key) return &arena;
  return nullptr;
}

// A capture may get memory of an arena that its stream, or an older one with its handle, freed. The
// order of that and of the graph is the program's business, and the simulator takes a captured use
// for one by the host. So the stream's work ends before its capture, and before its own end.
bool World::is_done_with_arenas(const Stream& stream) {
  const bool is_user = std::any_of(arenas_.begin(), arenas_.end(), [&](const Arena& each) {
    return each.users.contains(stream.key);
  });
  if (!is_user) return true;
  if (is_capturing_anywhere()) return false;
  say("stage_run_until_idle();");
  sim_.run_until_idle();
  for (std::size_t number = 0; number < devices_.size(); ++number) {
    make_current(number);
    expect(sim_.ctx_synchronize(), "synchronize");
  }
  return true;
}

// Graphs of one arena run one after another, and in the order of all work on memory of the arena.
bool World::may_launch(const Graph& graph) {
  return std::all_of(graph.arenas.begin(), graph.arenas.end(), [&](std::uint64_t key) {
    const Arena* const arena = find_arena(key);
    if (arena == nullptr) return false;  // released: its memory is others'
    Device& at = devices_[graph.device];
    return std::all_of(arena->users.begin(), arena->users.end(), [&](std::uint64_t user) {
      const Stream* const stream = find_stream(at, user);
      return stream == nullptr || is_usable(at, *stream);
    });
  });
}

// What a graph may use at each launch is for captures alone, or the program would have to order all
// uses.
void World::operator()(const AllocateInArena& o) {
  if (arenas_.empty() || allocations_.size() >= kMostAllocations || o.bytes == 0) return;
  Arena& arena = arenas_[o.arena % arenas_.size()];
  Device& at = devices_[arena.device];
  Stream& stream = at.streams[o.stream % at.streams.size()];
  if (!stream.capture && (arena.is_for_graphs || !is_usable(at, stream))) return;
  if (stream.capture) {
    arena.is_for_graphs = true;
    stream.capture->arenas.insert(arena.key);
    reference(arena.device).pin_arena(arena_id(arena.device, static_cast<std::uint64_t>(arena.id)));
  }
  pool::Request request{o.bytes, 0, stream.handle};
  request.arena = arena.id;
  say("CALL(vpmm_arena_allocate(a[{}], {}u, 0, s[{}], &p[{}]));", arena.key, o.bytes, stream.key,
      next_number_);
  const auto result = call(Bears::faults, [&] { return at.pool->allocate(request); });
  if (!result && may_have_failed(result.error(), "allocate in an arena")) return;
  if (!result) return judge_request(arena.device, result.error(), {round_up(o.bytes, page()), 0});
  constexpr Bytes kAlignment = 512;
  take_over(arena.device, stream, true, {result.value(), o.bytes, kAlignment, arena.key});
}

void World::operator()(const PinArena& o) {
  if (arenas_.empty()) return;
  const Arena& arena = arenas_[o.arena % arenas_.size()];
  say("CALL(vpmm_arena_pin(a[{}]));", arena.key);
  context::Context& pool = *devices_[arena.device].pool;
  expect(call(Bears::nothing, [&] { return pool.arenas().pin(arena.id); }), "pin an arena");
  reference(arena.device).pin_arena(arena_id(arena.device, static_cast<std::uint64_t>(arena.id)));
}

void World::operator()(const TrimArena& o) {
  if (arenas_.empty()) return;
  const Arena& arena = arenas_[o.arena % arenas_.size()];
  say("CALL(vpmm_arena_trim(a[{}], 0));", arena.key);
  context::Context& pool = *devices_[arena.device].pool;
  const auto trimmed = call(Bears::nothing, [&] { return pool.arenas().trim(arena.id); });
  if (!trimmed && !may_be_capturing()) fail("trim an arena: " + trimmed.error().message);
}

void World::operator()(const ReleaseArena& o) {
  if (arenas_.empty()) return;
  const auto arena = arenas_.begin() + static_cast<std::ptrdiff_t>(o.arena % arenas_.size());
  say("CALL(vpmm_arena_release(a[{}]));", arena->key);
  reference(arena->device)
      .release_arena(arena->key, arena_id(arena->device, static_cast<std::uint64_t>(arena->id)));
  context::Context& pool = *devices_[arena->device].pool;
  expect(call(Bears::nothing, [&] { return pool.arenas().release(arena->id); }),
         "release an arena");
  arenas_.erase(arena);
}

}  // namespace vpmm::property
