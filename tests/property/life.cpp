// SPDX-License-Identifier: Apache-2.0
// property tests: captures and their graphs, limits, and resets of a context.
#include <algorithm>

#include <fmt/format.h>

#include "property/world.hpp"

namespace vpmm::property {

using driver::CuResult;

namespace {
constexpr std::size_t kMostGraphs = 6;
constexpr Bytes kFirstInCapture = 3 * kMiB;
}  // namespace

// --- captures and graphs

// A capture that is not announced must be seen by the pool before anything else happens: an
// allocation on the stream. The pool of another device, of which this is a peer, does not see it
// and must be told; so with peers all are announced.
void World::operator()(const BeginCapture& o) {
  const std::size_t number = o.device % devices_.size();
  Device& at = devices_[number];
  const std::size_t index = 1 + o.stream % (at.streams.size() - 1);
  Stream& stream = at.streams[index];
  const bool other_announced =
      std::any_of(at.streams.begin(), at.streams.end(),
                  [](const Stream& other) { return other.capture && other.capture->is_announced; });
  if (stream.capture || graphs_.size() >= kMostGraphs || allocations_.size() >= kMostAllocations ||
      ((other_announced || has_peers()) && !o.is_announced))
    return;
  if (!is_done_with_arenas(stream)) return;
  make_current(number);
  if (!o.is_announced) stream.bound.reset();
  if (o.is_announced)
    for (const std::size_t each : pools_of(number)) {
      say("CALL(vpmm_capture_begin(pool[{}]));", each);
      expect(call(Bears::nothing, [&] { return devices_[each].pool->streams().capture_begin(); }),
             "capture_begin");
    }
  say("stage_capture_begin({}, s[{}], {});", number, stream.key, static_cast<int>(o.mode));
  expect(sim_.stream_begin_capture(stream.handle, o.mode), "begin a capture");
  driver::CaptureInfo info;
  expect(sim_.stream_get_capture_info(stream.handle, info), "capture info");
  stream.capture = Capture{next_key_++, o.is_announced, info.id};
  if (!o.is_announced) at.had_unannounced_capture = true;
  (*this)(Allocate{number, index, kFirstInCapture, 0});
}

void World::end_capture(std::size_t number, Stream& stream, bool is_kept) {
  make_current(number);
  Graph made{stream.capture->key, number, {}, {}, stream.capture->id, stream.capture->arenas};
  say("g[{}] = stage_capture_end({}, s[{}]);", made.key, number, stream.key);
  expect(sim_.stream_end_capture(stream.handle, made.graph), "end a capture");
  if (stream.capture->is_announced)
    for (const std::size_t each : pools_of(number)) {
      say("CALL(vpmm_capture_end(pool[{}]));", each);
      expect(call(Bears::nothing, [&] { return devices_[each].pool->streams().capture_end(); }),
             "capture_end");
    }
  stream.capture.reset();
  if (!failure_.empty()) return;
  if (!is_kept) return destroy(made, false);
  expect(sim_.graph_instantiate(made.graph, made.exec), "instantiate");
  graphs_.push_back(made);
}

void World::operator()(const EndCapture& o) {
  std::vector<std::pair<std::size_t, Stream*>> capturing;
  for (std::size_t number = 0; number < devices_.size(); ++number)
    for (Stream& stream : devices_[number].streams)
      if (stream.capture) capturing.emplace_back(number, &stream);
  if (capturing.empty()) return;
  const auto [number, stream] = capturing[o.capture % capturing.size()];
  end_capture(number, *stream, o.is_kept);
}

void World::operator()(const Launch& o) {
  if (graphs_.empty()) return;
  const Graph& graph = graphs_[o.graph % graphs_.size()];
  Device& at = devices_[graph.device];
  const Stream& stream = at.streams[o.stream % at.streams.size()];
  if (!is_usable(at, stream) || !may_launch(graph)) return;
  make_current(graph.device);
  for (const std::uint64_t key : graph.arenas) {
    Arena* const arena = find_arena(key);
    for (const std::uint64_t user : arena->users)
      if (const Stream* const first = find_stream(at, user)) order(*first, stream);
    arena->users.insert(stream.key);
  }
  acted_ = true;
  say("stage_launch({}, g[{}], s[{}]);", graph.device, graph.key, stream.key);
  expect(sim_.graph_launch(graph.exec, stream.handle), "launch a graph");
}

void World::operator()(const DestroyGraph& o) {
  if (graphs_.empty()) return;
  const Graph graph = graphs_[o.graph % graphs_.size()];
  acted_ = true;
  graphs_.erase(graphs_.begin() + static_cast<std::ptrdiff_t>(o.graph % graphs_.size()));
  // Memory that is no graph's any more is freed without a stream, and `legacy` leaves out launches
  // on streams that nobody named.
  const bool is_told =
      o.is_told && scene_.config.streams.any_stream != settings::AnyStreamOrder::legacy;
  for (const std::size_t each : pools_of(graph.device)) {
    if (!is_told) break;
    say("stage_capture_release(pool[{}], g[{}]);", each, graph.key);
    const auto told = call(Bears::nothing, [&] {
      return devices_[each].pool->streams().capture_release(graph.capture);
    });
    // Of most captures the pool keeps no memory.
    if (!told && told.error().code != ErrorCode::invalid_argument)
      fail("release a capture: " + told.error().message);
  }
  destroy(graph, o.frees_first);
}

// What was allocated in the capture lives on for its owner, who does not know on which streams the
// graph ran: it can only be freed without naming a stream, and not at all where that means the
// allocating stream.
void World::destroy(const Graph& graph, bool frees_first) {
  for (std::size_t i = allocations_.size(); i-- > 0;) {
    Allocation& allocation = allocations_[i];
    if (allocation.capture != graph.key) continue;
    if (frees_first || must_name_home() ||
        scene_.config.streams.any_stream == settings::AnyStreamOrder::legacy) {
      free_unnamed(allocation, false);
      forget(allocation);
      continue;
    }
    allocation.capture.reset();
    allocation.content.reset();
    allocation.covered.clear();
    allocation.home = 0;
  }
  say("stage_graph_destroy(g[{}]);", graph.key);
  if (graph.exec != driver::GraphExecHandle{})
    expect(sim_.graph_exec_destroy(graph.exec), "destroy a graph");
  expect(sim_.graph_destroy(graph.graph), "destroy a graph");
  reference(graph.device).let_go(graph.key);
}

void World::destroy_graphs(std::size_t number) {
  for (std::size_t i = graphs_.size(); i-- > 0;) {
    if (gpu_of(graphs_[i].device) != gpu_of(number)) continue;
    const Graph graph = graphs_[i];
    graphs_.erase(graphs_.begin() + static_cast<std::ptrdiff_t>(i));
    destroy(graph, i % 2 == 0);
  }
}

void World::settle_captures(std::size_t number) {
  for (Stream& stream : devices_[number].streams)
    if (stream.capture && failure_.empty()) end_capture(number, stream, false);
}

// --- limits

void World::operator()(const Trim& o) {
  context::Context& pool = *device(o.device).pool;
  say("CALL(vpmm_trim(pool[{}], {}u, 0));", o.device % devices_.size(), o.bytes_to_keep);
  const auto result = call(Bears::faults, [&] { return pool.limits().trim(o.bytes_to_keep); });
  if (!result && may_have_failed(result.error(), "trim")) return;
  if (!expect(result, "trim")) return;
  const auto info = call(Bears::nothing, [&] { return pool.limits().memory_info(); });
  if (!expect(info, "memory_info")) return;
  const std::size_t number = o.device % devices_.size();
  const std::string wrong =
      reference(number).compare_free_memory(seat_of(number), info.value().free, info.value().total);
  if (!wrong.empty()) fail(wrong);
}

void World::operator()(const Preallocate& o) {
  say("CALL(vpmm_preallocate(pool[{}], {}u));", o.device % devices_.size(), o.bytes);
  const auto result =
      call(Bears::faults, [&] { return device(o.device).pool->limits().preallocate(o.bytes); });
  if (!result && may_have_failed(result.error(), "preallocate")) return;
  if (!result && result.error().code != ErrorCode::out_of_memory &&
      result.error().code != ErrorCode::unsupported)
    fail("preallocate: " + result.error().message);
}

void World::operator()(const SetCapacity& o) {
  acted_ = true;
  say("CALL(vpmm_set_capacity(pool[{}], {}));", o.device % devices_.size(),
      o.bytes ? fmt::format("{}u", *o.bytes) : "UINT64_MAX");
  device(o.device).capacity = o.bytes;
  device(o.device).pool->limits().set_capacity(o.bytes);
  reference(o.device % devices_.size())
      .set_capacity(seat_of(o.device % devices_.size()), o.bytes,
                    device(o.device).pool->reports().statistics().mapped_bytes);
}

// Waiting for a whole context is not for times of capture, wherever the thread captures.
void World::operator()(const Synchronize& o) {
  for (const Device& each : devices_)
    if (&each != &device(o.device) && is_capturing(each)) return;
  Device& at = device(o.device);
  say("stage_synchronize(pool[{}], {});", o.device % devices_.size(), is_capturing(at) ? 1 : 0);
  const auto result = call(Bears::nothing, [&] { return at.pool->streams().synchronize(); });
  if (is_capturing(at) == result.ok() && (result || !at.had_unannounced_capture))
    fail(result ? "synchronize during a capture" : "synchronize: " + result.error().message);
  if (!result && result.error().code != ErrorCode::capture_active)
    fail("synchronize: " + result.error().message);
  if (!result) return;
  reference(o.device % devices_.size()).settle(seat_of(o.device % devices_.size()));
  check_unmapped(o.device % devices_.size());
}

// --- resets

void World::operator()(const Reset& o) {
  const std::size_t number = o.device % devices_.size();
  if (is_capturing_anywhere()) return;
  Device& at = devices_[number];
  destroy_graphs(number);
  if (!o.is_foreign) {
    say("CALL(vpmm_reset(pool[{}]));", number);
    const auto result = call(Bears::nothing, [&] { return at.pool->streams().reset(); });
    if (!result && result.error().code == ErrorCode::capture_active && at.had_unannounced_capture)
      return;
    if (!expect(result, "reset")) return;
    for (std::size_t each = 0; each < devices_.size(); ++each)
      if (gpu_of(each) == gpu_of(number)) notice_reset(each, true);
    return;
  }
  const bool is_idle =
      has_peers() || number % 2 == allocations_.size() % 2;  // others wait for what is queued here
  acted_ = true;
  say("stage_reset({}, {});", number, is_idle ? 1 : 0);
  if (is_idle) sim_.run_until_idle();
  expect(sim_.device_primary_ctx_reset(static_cast<int>(gpu_of(number))), "reset by somebody else");
  for (std::size_t each = 0; each < devices_.size(); ++each)
    if (gpu_of(each) == gpu_of(number)) notice_reset(each, is_idle);
}

// Streams and events are gone; memory of the pool is not, but what comes from the driver's own pool
// is. Without any of it nothing tells the pool of a reset by others but the next call, whichever
// that is.
void World::notice_reset(std::size_t number, bool keeps_contents) {
  Device& at = devices_[number];
  const std::vector<Stream> dead = std::move(at.streams);
  if (guards()) forget_margins(number);
  open(number);
  at.had_unannounced_capture = false;
  for (Arena& arena : arenas_)
    if (arena.device == number) arena.users.clear();
  for (Shared& shared : shared_)
    if (shared.device == number && !keeps_contents) shared.content.reset();
  if (has_drivers_pool() || next_key_ % 2 == 0) {
    expect(at.pool->limits().memory_info(), "memory_info after a reset");
    for (const Stream& stream : dead)
      if (stream.bound != nullptr) {
        if (stream.bound->allocate(kFirstInCapture, 0)) fail("a dead bound stream allocates");
        reference(number).count_refusal(seat_of(number));
      }
  }
  for (std::size_t i = allocations_.size(); i-- > 0;) {
    Allocation& allocation = allocations_[i];
    if (allocation.device != number) continue;
    if (!at.pool->query(allocation.ptr)) {
      if (has_pool() && (allocation.bytes >= page() || !has_drivers_pool()))
        fail("a reset lost memory of the pool");
      reference(number).lose(allocation.number);
      forget(allocation);
      continue;
    }
    if (!keeps_contents && !is_asleep(allocation)) allocation.content.reset();
    allocation.home = at.streams[2].key;
    allocation.covered.clear();
    if (!has_peers()) allocation.is_shared = find_shared(allocation) != nullptr;  // a peer reads on
  }
}

}  // namespace vpmm::property
