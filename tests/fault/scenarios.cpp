// SPDX-License-Identifier: Apache-2.0
// fault tests: the programs.
#include "fault/scenarios.hpp"

#include <random>

#include <fmt/format.h>

namespace vpmm::fault {
namespace {

constexpr pool::Stream kAny = std::nullopt;

void growth(FaultWorld& w) {
  w.allocate(4 * kMiB, w.stream(1));
  w.allocate(20 * kMiB, w.stream(2));
  w.allocate(6 * kMiB, w.stream(0));
}

// Free memory on both sides of a live allocation, smaller than the request: chunks move.
void moving(FaultWorld& w) {
  const auto first = w.allocate(12 * kMiB, w.stream(1));
  w.allocate(2 * kMiB, w.stream(1));
  const auto second = w.allocate(12 * kMiB, w.stream(1));
  w.deallocate(first, w.stream(1));
  w.deallocate(second, w.stream(1));
  w.allocate(22 * kMiB, w.stream(1));
  w.allocate(12 * kMiB,
             w.stream(2));  // of what a failed move left free, nothing that stream 1 still uses
  w.pass(1'000'000);
  w.allocate(2 * kMiB, w.stream(1));
}

// Fourteen chunks of 32 MiB, two of them partly in use, in a pool beyond its budget: what is free
// of the two serves 44 MiB, and where that is not enough an idle chunk is cut.
void sparing_idle_chunks(FaultWorld& w) {
  constexpr Bytes kUnit = 4 * kMiB;
  w.allocate(kUnit, w.stream(2));
  w.allocate(18 * kUnit, w.stream(1));
  w.deallocate(w.allocate(112 * kUnit, w.stream(1)), w.stream(1));
  std::vector<std::size_t> live;
  for (const Bytes units : {2U, 6U, 8U, 5U, 3U})
    live.push_back(w.allocate(units * kUnit, w.stream(1)));
  w.deallocate(live[1], w.stream(1));
  w.deallocate(live[3], w.stream(1));
  w.pass(1'000'000);
  if (w.pool() != nullptr) w.pool()->reports().reset_peaks();
  const auto joined = w.allocate(11 * kUnit, w.stream(1));
  w.allocate(10 * kUnit, w.stream(1));
  w.deallocate(joined, w.stream(1));
  for (const std::size_t number : {live[0], live[2], live[4]}) w.deallocate(number, w.stream(1));
  w.pass(1'000'000);
  w.allocate(100 * kUnit, w.stream(1));
}

// Free ranges of an only stream, first what its cache kept.
void hits(FaultWorld& w) {
  w.deallocate(w.allocate(16 * kMiB, w.stream(1)), w.stream(1));
  w.deallocate(w.allocate(8 * kMiB, w.stream(1)), w.stream(1));
  const auto small = w.allocate(6 * kMiB, w.stream(1));
  const auto large = w.allocate(10 * kMiB, w.stream(1));
  w.deallocate(small, w.stream(1));
  w.deallocate(large, w.stream(1));
  w.allocate(14 * kMiB, w.stream(1));
}

void crossing_streams(FaultWorld& w) {
  const auto first = w.allocate(12 * kMiB, w.stream(1));
  const auto second = w.allocate(12 * kMiB, w.stream(2));
  w.record_use(second, w.stream(3));
  w.deallocate(first, w.stream(1));
  w.deallocate(second, w.stream(2));
  w.allocate(2 * kMiB, w.stream(1));
  w.allocate(2 * kMiB, w.stream(2));
  w.allocate(18 * kMiB, w.stream(3));
}

void without_streams(FaultWorld& w) {
  const auto first = w.allocate(8 * kMiB, kAny);
  const auto second = w.allocate(8 * kMiB, w.stream(2));
  const auto third = w.allocate(8 * kMiB, kAny);
  w.deallocate(first, kAny);
  w.deallocate_deferred(second);
  w.deallocate(third, w.stream(1));
  w.pass(1'000'000);
  w.allocate(10 * kMiB, kAny);
}

// Tags, one chunk each, and somebody who hears of everything.
void told_and_tagged(FaultWorld& w) {
  const auto request = [&](Bytes bytes, bool one_chunk) {
    pool::Request made{bytes, 0, w.stream(1)};
    made.tag = 7;
    made.one_chunk = one_chunk;
    return made;
  };
  w.listen();
  std::vector<std::size_t> tagged;
  for (const Bytes bytes : {Bytes{3000}, 4 * kMiB, 24 * kMiB})
    tagged.push_back(w.allocate(request(bytes, false)));
  w.deallocate(w.allocate(request(10 * kMiB, true)), w.stream(1));
  moving(w);
  w.allocate(request(10 * kMiB, true));
  w.look();
  w.record_use(tagged[0], w.stream(2));
  for (const std::size_t number : tagged) w.deallocate(number, w.stream(1));
  w.pass(1'000'000);
  w.trim(0);
}

// Idle chunks that are given back for it.
void making_one_chunk(FaultWorld& w) {
  std::vector<std::size_t> pages;
  for (int i = 0; i < 12; ++i) pages.push_back(w.allocate(2 * kMiB, w.stream(1)));
  for (const std::size_t number : pages) w.deallocate(number, w.stream(1));
  w.pass(1'000'000);
  pool::Request request{20 * kMiB, 0, w.stream(2)};
  request.one_chunk = true;
  w.allocate(request);
}

// Whole chunks are kept, moved and created; idle ones that fit nowhere are given back, first for
// early growth, then because memory is short.
void with_own_chunks(FaultWorld& w) {
  moving(w);
  std::vector<std::size_t> live;
  for (const Bytes bytes : {Bytes{100}, 10 * kMiB, 2 * kMiB, 16 * kMiB, 300 * kKiB})
    live.push_back(w.allocate(bytes, w.stream(1)));
  w.deallocate(live[1], w.stream(1));
  w.deallocate(live[3], w.stream(2));
  live.push_back(w.allocate(9 * kMiB, w.stream(1)));
  live.push_back(w.allocate(22 * kMiB, w.stream(2)));
  for (const std::size_t number : {live[0], live[2], live[4], live[6]})
    w.deallocate(number, w.stream(1));
  w.pass(1'000'000);
  w.deallocate(w.allocate(35 * kMiB, w.stream(3)), w.stream(3));
  const auto arena = w.make_arena();
  w.allocate_in(arena, 3000, w.stream(1));
  w.allocate_in(arena, 6 * kMiB, w.stream(1));
  w.release_arena(arena);
}

// Pages of their own, with and without a stream, freed by others and unmapped when complete.
void guarded(FaultWorld& w) {
  const auto first = w.allocate(3000, w.stream(1));
  const auto second = w.allocate(2 * kMiB + 100, w.stream(2));
  const auto third = w.allocate(500, kAny);
  w.record_use(second, w.stream(3));
  w.deallocate(first, w.stream(1));
  w.deallocate(second, w.stream(2));
  w.deallocate(third, kAny);
  w.look();
  w.pass(1'000'000);
  w.allocate(3000, w.stream(1));
  w.deallocate(w.allocate(20 * kMiB, w.stream(2)), w.stream(1));
  w.pass(1'000'000);
  w.trim(0);
}

void looked_at(FaultWorld& w) {
  w.record();
  moving(w);
  w.look();
  for (const Bytes bytes : {Bytes{100}, Bytes{5000}, Bytes{300'000}})
    w.deallocate(w.allocate(bytes, w.stream(1)), w.stream(2));
  w.look();
}

void unannounced_capture(FaultWorld& w) {
  const auto before = w.allocate(4 * kMiB, w.stream(1));
  w.capture(w.stream(1), FaultWorld::Announced::no);
  w.deallocate(before, w.stream(1));
  w.allocate(6 * kMiB, w.stream(1));
}

void announced_capture(FaultWorld& w) {
  const auto before = w.allocate(4 * kMiB, kAny);
  w.deallocate(before, kAny);
  w.capture(w.stream(3), FaultWorld::Announced::yes);
  w.allocate(6 * kMiB, w.stream(0));
}

void trimming(FaultWorld& w) {
  w.preallocate(24 * kMiB);
  const auto first = w.allocate(8 * kMiB, w.stream(1));
  w.allocate(4 * kMiB, w.stream(1));
  w.deallocate(first, w.stream(1));
  w.synchronize();
  w.trim(8 * kMiB);
  w.trim(0);
}

void small_requests(FaultWorld& w) {
  const auto first = w.allocate(1000, w.stream(1));
  const auto second = w.allocate(2000, w.stream(1));
  const auto third = w.allocate(3000, kAny);
  w.record_use(second, w.stream(2));
  w.deallocate(first, w.stream(1));
  w.deallocate(second, w.stream(2));
  w.deallocate(third, kAny);
  w.synchronize();
  w.allocate(100, w.stream(2));
  w.trim(0);
}

// The first page that is cut, another, runs and blocks in it that two streams use, and the pages go
// back.
void cutting_pages(FaultWorld& w) {
  const auto first = w.allocate(1, w.stream(1));
  const auto run = w.allocate(700 * kKiB, w.stream(1));
  const auto second = w.allocate(900 * kKiB, w.stream(2));
  const auto third = w.allocate(1500 * kKiB, w.stream(2));
  w.record_use(run, w.stream(2));
  w.deallocate(second, w.stream(2));
  w.deallocate(run, w.stream(1));
  w.deallocate(first, w.stream(2));
  w.allocate(800 * kKiB, w.stream(3));
  w.pass(1'000'000);
  w.allocate(60'000, kAny);
  w.deallocate_deferred(third);
  w.synchronize();
  w.trim(0);
}

// 16 MiB of device: pages that small memory was cut from have to come back.
void short_of_pages_to_cut(FaultWorld& w) {
  std::vector<std::size_t> live;
  for (std::size_t i = 0; i < 16; ++i) live.push_back(w.allocate(kMiB, w.stream(1 + i % 2)));
  for (std::size_t i = 0; i < 16; ++i) w.deallocate(live[i], w.stream(1 + i % 2));
  w.allocate(900 * kKiB, w.stream(3));
  w.allocate(13 * kMiB, w.stream(3));
}

void bound_streams(FaultWorld& w) {
  for (const Bytes bytes : {Bytes{1000}, Bytes{300 * kKiB}, Bytes{4 * kMiB}}) {
    const auto first = w.allocate_bound(bytes, 1);
    const auto second = w.allocate_bound(bytes, 2);
    w.deallocate_bound(first, 1);
    w.deallocate_bound(second, 1);
    const auto third = w.allocate_bound(bytes, 1);
    w.deallocate(third, kAny);
    w.pass(100'000);
  }
  w.deallocate_many({w.allocate_bound(5000, 2), w.allocate_bound(6 * kMiB, 2)}, w.stream(1));
  w.allocate_bound(10 * kMiB, 2);
}

void bound_in_a_reset(FaultWorld& w) {
  const auto first = w.allocate_bound(1000, 1);
  w.deallocate_bound(w.allocate_bound(2 * kMiB, 1), 1);
  w.deallocate_bound(w.allocate_bound(70'000, 1), 1);
  w.reset();
  w.deallocate_bound(first, 1);
  w.reset_by_others();
  w.allocate_bound(50'000, 2);
}

void resetting(FaultWorld& w) {
  const auto first = w.allocate(8 * kMiB, w.stream(1));
  w.allocate(100, w.stream(1));
  w.allocate(2 * kMiB, w.stream(2));
  w.deallocate(first, w.stream(1));
  w.reset();
  w.allocate(10 * kMiB, w.stream(1));
}

void resetting_by_others(FaultWorld& w) {
  const auto first = w.allocate(8 * kMiB, w.stream(1));
  w.allocate(100, w.stream(1));
  w.allocate(2 * kMiB, w.stream(2));
  w.deallocate(first, w.stream(1));
  w.reset_by_others();
  w.allocate(10 * kMiB, w.stream(1));
}

// 32 MiB of device: the pool has to wait for what others still use.
void running_short(FaultWorld& w) {
  const auto first = w.allocate(14 * kMiB, w.stream(1));
  const auto second = w.allocate(14 * kMiB, w.stream(2));
  w.deallocate(first, w.stream(1));
  w.deallocate(second, kAny);
  w.allocate(20 * kMiB, w.stream(3));
  w.allocate(20 * kMiB, kAny);
  w.allocate(1000, w.stream(1));
}

// Idle chunks are enough and cannot move, for the number of mappings is at its limit: they are made
// anew.
void making_chunks_anew(FaultWorld& w) {
  std::vector<std::size_t> live(16);
  for (std::size_t& number : live) number = w.allocate(2 * kMiB, w.stream(1));
  for (std::size_t i = 0; i < live.size(); i += 2) w.deallocate(live[i], w.stream(1));
  w.synchronize();
  w.allocate(12 * kMiB, w.stream(1));
  w.allocate(4 * kMiB, w.stream(2));
}

// More than the budget is missing while other streams use the rest: waits, moves, and a place that
// keeps chunks whole.
void beyond_the_budget(FaultWorld& w) {
  const auto first = w.allocate(40 * kMiB, w.stream(1));
  const auto second = w.allocate(12 * kMiB, w.stream(2));
  w.allocate(6 * kMiB, w.stream(1));
  w.deallocate(first, w.stream(1));
  w.deallocate(second, w.stream(2));
  w.allocate(10 * kMiB, w.stream(3));
  w.allocate(38 * kMiB, w.stream(3));
  w.pass(1'000'000);
  w.allocate(4 * kMiB, w.stream(1));
}

// Twice, for the first may fail half-way.
void sharing_with_a_peer(FaultWorld& w) {
  std::vector<std::size_t> shared = {w.allocate(8 * kMiB, w.stream(1)), w.allocate(3000, kAny)};
  w.deallocate(w.allocate(6 * kMiB, kAny), kAny);
  w.set_peer_access();
  w.set_peer_access();
  shared.push_back(w.allocate(10 * kMiB, kAny));
  for (const std::size_t number : shared) w.write_on_peer(number);
  w.deallocate(shared[2], kAny);
  w.deallocate(shared[1], kAny);
  w.allocate(10 * kMiB, w.stream(2));
  w.pass(1'000'000);
  w.write_on_peer(w.allocate(12 * kMiB, w.stream(2)));
  w.synchronize();
  w.reset();
  w.allocate(2 * kMiB, kAny);
}

// 32 MiB of device: memory runs out beside what is freed and held, and is enough when that is let
// go.
void held_by_other_processes(FaultWorld& w) {
  std::vector<std::size_t> live;
  for (const Bytes bytes : {8 * kMiB, Bytes{3000}, 700 * kKiB, 6 * kMiB})
    live.push_back(w.allocate(bytes, w.stream(1)));
  std::vector<std::size_t> shared;
  shared.reserve(live.size());
  for (const std::size_t number : live) shared.push_back(w.share(number));
  for (const std::size_t share : shared) w.lease(share);
  w.deallocate(live[0], w.stream(1));
  w.deallocate(live[1], kAny);
  w.deallocate_deferred(live[2]);
  w.allocate(14 * kMiB, w.stream(2));
  w.allocate(8 * kMiB, w.stream(2));
  for (const std::size_t share : shared) w.lease(share);
  w.trim(0);
  w.end_lease(shared[0], context::Holder::handle);
  w.end_lease(shared[0], context::Holder::importer);
  w.end_lease(shared[0], context::Holder::importer);
  w.end_lease(shared[3], context::Holder::handle);
  w.deallocate(live[3], w.stream(2));
  w.allocate(8 * kMiB, w.stream(3));
  w.reset();
  w.end_lease(shared[1], context::Holder::handle);
  w.reset_by_others();
  for (const std::size_t share : shared) w.end_lease(share, context::Holder::importer);
  w.allocate(1000, kAny);
  w.trim(0);
}

// 32 MiB of device: what one arena has idle serves another, and the pool.
void arenas(FaultWorld& w) {
  const auto first = w.make_arena();
  const auto second = w.make_arena();
  std::vector<std::size_t> live;
  for (const Bytes bytes : {Bytes{1000}, 12 * kMiB, Bytes{300'000}})
    live.push_back(w.allocate_in(first, bytes, w.stream(1)));
  w.record_use(live[2], w.stream(2));
  const DevicePtr begin = w.address_of(live[2]);
  w.deallocate(live[1], w.stream(1));
  w.deallocate(live[2], w.stream(1));
  if (is_null(w.address_of(live[2]))) w.allocate_again(first, begin, 2000, w.stream(3));
  w.allocate_in(first, 10 * kMiB, w.stream(1));
  live.push_back(w.allocate_in(second, 14 * kMiB, w.stream(2)));
  w.deallocate(live[3], kAny);
  w.allocate(16 * kMiB, w.stream(3));
  w.trim_arena(second);
  w.release_arena(first);
  w.deallocate_deferred(live[0]);
  w.allocate_in(second, 1000, kAny);
  w.reset();
  w.allocate_in(second, 5000, w.stream(1));
  w.reset_by_others();
  w.allocate_in(second, 5000, w.stream(1));
}

// 32 MiB of device: what is idle between an arena's live blocks serves the pool.
void busy_stretches(FaultWorld& w) {
  const auto arena = w.make_arena();
  const auto front = w.allocate_in(arena, 20 * kMiB - 300'000, w.stream(1));
  const auto last = w.allocate_in(arena, 2000, w.stream(2));
  w.deallocate(front, w.stream(1));
  const auto middle = w.allocate_in(arena, 3 * kMiB, w.stream(1));
  w.allocate(20 * kMiB, w.stream(3));
  w.trim_arena(arena);
  w.suspend_arena(arena, {true, false, false, std::nullopt});
  w.look();
  w.resume_arena(arena, {});
  w.deallocate(last, w.stream(2));
  w.deallocate(middle, w.stream(1));
  w.allocate_in(arena, 3 * kMiB, w.stream(1));
  w.trim(0);
  w.release_arena(arena);
}

// 112 MiB of device: stretches that blocks share, until there is room for the request alone, and a
// block of another stream that the GPU still uses.
void shared_stretches(FaultWorld& w) {
  const auto arena = w.make_arena();
  w.allocate_in(arena, 96 * kMiB, w.stream(1));
  std::vector<std::size_t> live;
  for (int i = 0; i < 8; ++i) live.push_back(w.allocate_in(arena, 2'300'000, w.stream(1)));
  w.deallocate(live[0], w.stream(1));
  w.allocate_in(arena, 2'200'000, w.stream(2));
  w.deallocate(live[1], kAny);
  w.trim_arena(arena);
  w.allocate(2 * kMiB, w.stream(2));
  w.release_arena(arena);
}

// 32 MiB of device: stretches of one allocation each, which chunks beyond a request leave.
void stretches_of_their_own(FaultWorld& w) {
  const auto arena = w.make_arena({false, false});
  const auto small = w.allocate_in(arena, 3 * kMiB, w.stream(1));
  const auto large = w.allocate_in(arena, 26 * kMiB, w.stream(1));
  w.deallocate(large, w.stream(1));
  const auto front = w.allocate_in(arena, 15 * kMiB, w.stream(1));
  const auto back = w.allocate_in(arena, 6 * kMiB, w.stream(2));
  w.deallocate(front, w.stream(2));
  w.allocate_in(arena, 8 * kMiB, w.stream(2));
  w.deallocate(back, w.stream(2));
  w.trim_arena(arena);
  w.deallocate(small, w.stream(1));
  w.release_arena(arena);
}

void captures_in_arenas(FaultWorld& w) {
  const auto arena = w.make_arena();
  w.deallocate(w.allocate_in(arena, 6 * kMiB, w.stream(1)), w.stream(1));
  w.capture_in(arena, w.stream(1));
  w.capture_in(arena, w.stream(1));
  w.allocate_in(arena, 4 * kMiB, w.stream(1));
  w.release_arena(arena);
  w.allocate(6 * kMiB, w.stream(1));
}

// 24 MiB of device: what sleeps makes room for others.
void suspended_arenas(FaultWorld& w) {
  const auto weights = w.make_arena();
  const auto cache = w.make_arena();
  const auto first = w.allocate_in(weights, 3 * kMiB, w.stream(1));
  w.allocate_in(weights, 3000, w.stream(2));
  w.allocate_in(cache, 7 * kMiB, w.stream(1));
  const context::SuspendHow copies{true, false, false, std::nullopt};
  const context::SuspendHow keeps{true, true, true, std::nullopt};
  const context::SuspendHow discards{false, false, true, w.stream(1)};
  w.suspend_arena(weights, copies);
  w.suspend_arena(cache, discards);
  w.look();
  const auto phase = w.allocate(16 * kMiB, w.stream(3));
  w.resume_arena(weights, {});
  w.deallocate(phase, w.stream(3));
  w.resume_arena(weights, {});
  w.resume_arena(cache, {true, true});
  w.suspend_arena(weights, keeps);
  w.deallocate(first, w.stream(1));
  w.reset();
  w.resume_arena(weights, {});
  w.suspend_arena(cache, copies);
  w.release_arena(cache);
}

// 32 MiB of device: a tag over two arenas, with hooks, with and without memory prepared for it.
void suspended_tags(FaultWorld& w) {
  constexpr std::uint32_t kWeights = 9, kCache = 10;
  const auto tagged = [&](std::uint32_t tag, Bytes bytes, bool one_chunk) {
    pool::Request made{bytes, 0, w.stream(1)};
    made.tag = tag;
    made.one_chunk = one_chunk;
    return w.allocate(made);
  };
  w.make_suspendable(kWeights, {true, false});
  w.make_suspendable(kCache, {false, false});
  tagged(kWeights, 3 * kMiB, false);
  const auto whole = tagged(kWeights, 4 * kMiB, true);
  tagged(kCache, 5 * kMiB, false);
  w.prepare_tag(kWeights);
  w.suspend_tag(kWeights, {});
  w.suspend_tag(kCache, {std::nullopt, false, true, std::nullopt});
  const auto phase = w.allocate(20 * kMiB, w.stream(2));
  w.look();
  w.resume_tag(kWeights, {});  // a shortage
  w.deallocate(phase, w.stream(2));
  w.resume_tag(kWeights, {});
  w.resume_tag(kCache, {true, true});
  w.suspend_tag(kWeights, {std::nullopt, true, true, w.stream(1)});
  w.deallocate(whole, w.stream(1));
  w.resume_tag(kWeights, {});
  w.prepare_tag(kWeights);
  w.suspend_tag(kWeights, {});
}

void memory_given_to_arenas(FaultWorld& w) {
  const auto arena = w.make_arena({false, true, 0, true});
  w.listen();
  w.add_memory(arena, 8 * kMiB);
  const auto first = w.allocate_in(arena, 3000, w.stream(1));
  const auto second = w.allocate_in(arena, 6 * kMiB, w.stream(2));
  w.record_use(second, w.stream(1));
  w.allocate_in(arena, 6 * kMiB, w.stream(1));  // it fails, and the pool is not asked
  w.add_memory(arena, 2 * kMiB);
  w.deallocate(first, kAny);
  w.deallocate_deferred(second);
  w.look();
  for (int i = 0; i < 3; ++i) w.take_memory(arena);
  w.add_memory(arena, 4 * kMiB);
  w.allocate_in(arena, 3 * kMiB, w.stream(3));
  w.look();
  w.take_memory(arena);
  w.release_arena(arena);
}

void crowding(FaultWorld& w) {
  const auto first = w.allocate(5 * kMiB, w.stream(1));
  const auto second = w.allocate(7 * kMiB, w.stream(1));
  w.allocate(3 * kMiB, w.stream(2));
  w.record_use(second, w.stream(2));
  w.deallocate(first, w.stream(1));
  w.allocate(2 * kMiB, w.stream(1));
  w.deallocate(second, w.stream(1));
  w.allocate(8 * kMiB, w.stream(2));
  w.allocate(6 * kMiB, w.stream(1));
  w.allocate(24 * kMiB, w.stream(1));
  w.trim(0);
}

void many_mappings(FaultWorld& w) {
  const auto first = w.allocate(20 * kMiB, w.stream(1));
  w.allocate(2 * kMiB, w.stream(1));
  w.deallocate(first, w.stream(1));
  w.allocate(24 * kMiB, w.stream(1));
}

}  // namespace

std::vector<Scenario> scenarios() {
  return {
      {"growth", growth},
      {"moving", moving},
      {"sparing_idle_chunks", sparing_idle_chunks},
      {"hits", hits},
      {"crossing_streams", crossing_streams},
      {"without_streams", without_streams},
      {"looked_at", looked_at},
      {"told_and_tagged", told_and_tagged},
      {"making_one_chunk", making_one_chunk, 32 * kMiB},
      {"with_own_chunks", with_own_chunks, 128 * kMiB, 60'000, settings::SmallRequests::pool, true},
      {"unannounced_capture", unannounced_capture},
      {"announced_capture", announced_capture},
      {"trimming", trimming},
      {"small_requests", small_requests},
      {"small_requests_of_the_drivers_pool", small_requests, kGiB, 60'000,
       settings::SmallRequests::stream_ordered},
      {"cutting_pages", cutting_pages},
      {"short_of_pages_to_cut", short_of_pages_to_cut, 16 * kMiB},
      {"bound_streams", bound_streams},
      {"bound_in_a_reset", bound_in_a_reset},
      {"resetting", resetting},
      {"resetting_by_others", resetting_by_others},
      {"resetting_the_drivers_pool", resetting, kGiB, 60'000,
       settings::SmallRequests::stream_ordered},
      {"running_short_with_the_drivers_pool", running_short, 32 * kMiB, 60'000,
       settings::SmallRequests::stream_ordered},
      {"running_short", running_short, 32 * kMiB},
      {"making_chunks_anew", making_chunks_anew, 32 * kMiB, 16},
      {"beyond_the_budget", beyond_the_budget},
      {"sharing_with_a_peer", sharing_with_a_peer},
      {"held_by_other_processes", held_by_other_processes, 32 * kMiB},
      {"arenas", arenas, 32 * kMiB},
      {"busy_stretches", busy_stretches, 32 * kMiB},
      {"shared_stretches", shared_stretches, 112 * kMiB},
      {"stretches_of_their_own", stretches_of_their_own, 32 * kMiB},
      {"captures_in_arenas", captures_in_arenas},
      {"suspended_arenas", suspended_arenas, 24 * kMiB},
      {"suspended_tags", suspended_tags, 32 * kMiB},
      {"memory_given_to_arenas", memory_given_to_arenas},
      {"crowding", crowding, kGiB, 60'000, settings::SmallRequests::pool, false, 0},
      {"crowding_where_memory_is_short", crowding, 32 * kMiB, 60'000, settings::SmallRequests::pool,
       false, 0},
      {"many_mappings", many_mappings, kGiB, 16},
      {"guarded", guarded, kGiB, 60'000, settings::SmallRequests::pool, false, 4, 1},
      {"guarded_and_filled", guarded, 32 * kMiB, 60'000, settings::SmallRequests::pool, false, 4, 1,
       true}};
}

Scenario random_scenario(std::uint64_t seed) {
  const auto run = [seed](FaultWorld& w) {
    std::mt19937_64 random(seed);
    const auto below = [&](std::uint64_t n) { return random() % n; };
    const auto stream = [&] { return below(5) == 0 ? kAny : pool::Stream(w.stream(below(4))); };
    std::vector<std::pair<std::size_t, pool::Stream>> live;
    for (int i = 0; i < 16; ++i) {
      const std::uint64_t what = below(16);
      if (what < 8 || live.empty()) {
        const pool::Stream on = stream();
        const Bytes bytes = below(3) == 0 ? 1 + below(2 * kMiB) : (1 + below(10)) * 2 * kMiB;
        live.emplace_back(w.allocate(bytes, on), on);
      } else if (what < 14) {
        const auto [number, on] = live[below(live.size())];
        w.deallocate(number, below(3) == 0 ? kAny : on);
      } else if (what == 14) {
        w.trim(below(20) * kMiB);
      } else {
        w.pass(below(200'000));
      }
    }
  };
  const auto small =
      seed % 3 == 0 ? settings::SmallRequests::stream_ordered : settings::SmallRequests::pool;
  const std::uint32_t crowded_after = seed % 2 == 0 ? settings::Config{}.streams.crowded_after : 0;
  const Bytes capacity = (seed % 2 == 0 ? 64 : 1024) * kMiB;
  return {
      fmt::format("random_{}", seed), run, capacity, 60'000, small, seed % 4 == 1, crowded_after};
}

// --- cases

std::vector<Case> cases() {
  std::vector<Scenario> all = scenarios();
  for (std::uint64_t seed = 1; seed <= 6; ++seed) all.push_back(random_scenario(seed));
  std::vector<Case> cases;
  for (const Scenario& scenario : all)
    for (const bool page_chunks : {true, false}) cases.push_back({scenario, page_chunks});
  return cases;
}

std::string name_of(const Case& c) {
  return c.scenario.name + (c.page_chunks ? "_in_pages" : "_adaptive");
}

std::ostream& operator<<(std::ostream& out, const Case& c) { return out << name_of(c); }

driver::sim::SimOptions options_of(const Case& c) {
  driver::sim::SimOptions options;
  options.device_count = 2;
  options.capacity = c.scenario.capacity;
  options.lag_ns = 20'000;
  return options;
}

settings::Config config_of(const Case& c) {
  settings::Config config;
  config.va_size = kGiB;
  config.page_chunks = c.page_chunks;
  config.limits.max_mappings = c.scenario.max_mappings;
  config.small = c.scenario.small;
  config.ipc_isolate = c.scenario.ipc_isolate;
  config.checks.guard_every = c.scenario.guard_every;
  config.checks.fill_new = config.checks.fill_freed = c.scenario.fills;
  config.streams.crowded_after = c.scenario.crowded_after;
  config.log = observe::LogLevel::quiet;
  return config;
}

}  // namespace vpmm::fault
