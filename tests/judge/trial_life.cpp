// judge: captures and their graphs, arenas, limits, and resets of the context.
#include <fmt/format.h>

#include <unistd.h>

#include <algorithm>
#include <filesystem>

#include "judge/trial.hpp"

namespace vpmm::judge {

namespace {
constexpr std::size_t kMostGraphs = 6;
constexpr Bytes kFirstInCapture = 3 * kMiB;
}  // namespace

// --- captures and graphs

// A capture that is not announced must be seen by each pool before anything else happens: by an
// allocation on the stream. With several pools all are announced.
void Trial::begin_capture(const Operation& o) {
  Stream* const stream = find(o.stream);
  const bool is_announced = o.flag != 0 || pools_.size() > 1;
  const bool other_announced =
      std::any_of(streams_.begin(), streams_.end(),
                  [](const Stream& other) { return other.capture && other.capture->is_announced; });
  if (stream == nullptr || o.stream == 0 || stream->capture || !is_new(o.id) ||
      graphs_.size() >= kMostGraphs || (other_announced && !is_announced))
    return;
  if (!is_done_with_arenas(*stream)) return;
  if (!is_announced) stream->bound.clear();
  on(*stream, [&] {
    for (Pool& each : pools_)
      if (is_announced) expect(each.context->streams().capture_begin(), "capture_begin");
    expect(sim_.stream_begin_capture(stream->handle, static_cast<driver::CaptureMode>(o.count % 3)),
           "capture");
  });
  stream->capture = Capture{o.id, is_announced};
  pools_.front().had_unannounced_capture |= !is_announced;
  if (!is_announced)
    allocate({.verb = Verb::allocate, .id = o.id, .stream = o.stream, .bytes = kFirstInCapture});
  driver::CaptureInfo info;
  on(*stream, [&] { expect(sim_.stream_get_capture_info(stream->handle, info), "capture info"); });
  graphs_[o.id].capture = info.id;
}

// A capture may get memory of an arena that its stream, or an older one with its handle, freed. The
// order of that and of the graph is the program's business, and the simulator takes a captured use
// for one by the host. So the stream's work ends before its capture, and before its own end.
bool Trial::is_done_with_arenas(const Stream& stream) {
  const bool is_user = std::any_of(arenas_.begin(), arenas_.end(), [&](const auto& each) {
    return each.second.users.count(stream.key) != 0;
  });
  if (!is_user) return true;
  if (is_capturing()) return false;
  sim_.run_until_idle();
  expect(sim_.ctx_synchronize(), "synchronize");
  return true;
}

void Trial::end(Stream& stream, bool is_kept) {
  const Capture capture = *stream.capture;
  Graph& made = graphs_[capture.graph];
  on(stream, [&] {
    expect(sim_.stream_end_capture(stream.handle, made.graph), "end a capture");
    for (Pool& each : pools_)
      if (capture.is_announced) expect(each.context->streams().capture_end(), "capture_end");
  });
  stream.capture.reset();
  if (!failure_.empty()) return;
  if (is_kept) return expect(sim_.graph_instantiate(made.graph, made.exec), "instantiate");
  const Graph unused = made;
  graphs_.erase(capture.graph);
  destroy(capture.graph, unused, false);
}

void Trial::end_capture(const Operation& o) {
  for (Stream& stream : streams_)
    if (stream.capture && stream.capture->graph == o.id) return end(stream, o.flag == 0);
}

// Graphs of one arena run one after another, and in the order of all work on memory of the arena.
void Trial::launch(const Operation& o) {
  const auto graph = graphs_.find(o.id);
  const Stream* const stream = find(o.stream);
  if (graph == graphs_.end() || graph->second.exec == driver::GraphExecHandle{} ||
      stream == nullptr || !is_usable(*stream))
    return;
  for (const std::uint64_t id : graph->second.arenas) {
    const auto arena = arenas_.find(id);
    if (arena == arenas_.end()) return;  // released: its memory is others'
    for (const std::uint64_t user : arena->second.users)
      if (const Stream* const first = find_key(user); first != nullptr && !is_usable(*first))
        return;
  }
  for (const std::uint64_t id : graph->second.arenas) {
    for (const std::uint64_t user : arenas_[id].users)
      if (const Stream* const first = find_key(user)) wait(*stream, *first);
    arenas_[id].users.insert(stream->key);
  }
  on(*stream,
     [&] { expect(sim_.graph_launch(graph->second.exec, stream->handle), "launch a graph"); });
}

void Trial::destroy_graph(const Operation& o) {
  const auto found = graphs_.find(o.id);
  if (found == graphs_.end() || found->second.exec == driver::GraphExecHandle{}) return;
  const Graph graph = found->second;
  graphs_.erase(found);
  for (Pool& each : pools_) {
    if ((o.flag & kReleasedFirst) == 0) break;
    const auto released = each.context->streams().capture_release(graph.capture);
    const bool keeps_none = !released && released.error().code == ErrorCode::invalid_argument;
    if (!released && !keeps_none) fail("error: release a capture: " + released.error().message);
  }
  destroy(o.id, graph, (o.flag & kFreedFirst) != 0);
}

// Memory that was allocated in the capture lives on, but its owner does not know on which streams
// the graph ran. So it is freed without a stream, and at once where that means the allocating
// stream.
void Trial::destroy(std::uint64_t id, const Graph& graph, bool frees_first) {
  const bool must_free_first = frees_first || setting_.frees_on_allocating != 0 ||
                               config_.any_stream == settings::AnyStreamOrder::legacy;
  for (auto next = memory_.begin(); next != memory_.end();) {
    auto& [each, memory] = *next++;
    if (memory.graph != id) continue;
    if (must_free_first) {
      free_unnamed(each, memory);
      continue;
    }
    memory.graph = 0;
    memory.content.reset();
    memory.covered.clear();
    memory.home = 0;
  }
  if (graph.exec != driver::GraphExecHandle{})
    expect(sim_.graph_exec_destroy(graph.exec), "destroy a graph");
  expect(sim_.graph_destroy(graph.graph), "destroy a graph");
  reference_.let_go(id);
}

void Trial::end_captures() {
  for (Stream& stream : streams_)
    if (stream.capture && failure_.empty()) end(stream, false);
}

void Trial::destroy_graphs() {
  while (!graphs_.empty() && failure_.empty()) {
    const auto [id, graph] = *graphs_.begin();
    graphs_.erase(graphs_.begin());
    destroy(id, graph, id % 2 == 0);
  }
}

// The pool may not have heard of the end of a capture that was not announced.
bool Trial::may_seem_capturing(std::size_t pool) const {
  return is_capturing() || pools_[pool].had_unannounced_capture;
}

// --- arenas

void Trial::create_arena(const Operation& o) {
  if (setting_.has_vmm == 0 || !config_.pool_enabled || arenas_.count(o.id) != 0) return;
  const auto made = pool(pool_number(o))
                        .arenas()
                        .create({(o.flag & kArenaOneChunk) != 0, (o.flag & kArenaNoSplit) == 0});
  if (!expect(made, "create an arena")) return;
  arenas_[o.id] = {pool_number(o), made.value(), {}, false};
  if ((o.flag & kArenaNoSplit) != 0 || config_.ipc_isolate)
    reference_.keep_whole(static_cast<std::uint64_t>(made.value()));
}

void Trial::pin_arena(const Operation& o) {
  const auto arena = arenas_.find(o.id);
  if (arena == arenas_.end()) return;
  expect(pool(arena->second.pool).arenas().pin(arena->second.id), "pin an arena");
  reference_.pin_arena(static_cast<std::uint64_t>(arena->second.id));
}

void Trial::trim_arena(const Operation& o) {
  const auto arena = arenas_.find(o.id);
  if (arena == arenas_.end()) return;
  const auto trimmed = pool(arena->second.pool).arenas().trim(arena->second.id);
  if (!trimmed && !is_capturing()) fail("error: trim an arena: " + trimmed.error().message);
}

void Trial::release_arena(const Operation& o) {
  const auto arena = arenas_.find(o.id);
  if (arena == arenas_.end()) return;
  reference_.release_arena(o.id, static_cast<std::uint64_t>(arena->second.id));
  expect(pool(arena->second.pool).arenas().release(arena->second.id), "release an arena");
  arenas_.erase(arena);
}

// --- limits

void Trial::trim(const Operation& o) {
  expect(pool(pool_number(o)).limits().trim(o.bytes), "trim");
}

void Trial::preallocate(const Operation& o) {
  const auto result = pool(pool_number(o)).limits().preallocate(o.bytes);
  if (result || result.error().code == ErrorCode::out_of_memory ||
      result.error().code == ErrorCode::unsupported)
    return;
  fail("error: preallocate: " + result.error().message);
}

void Trial::set_capacity(const Operation& o) {
  const std::optional<Bytes> bytes = o.bytes != 0 ? std::optional(o.bytes) : std::nullopt;
  context::Context& at = pool(pool_number(o));
  at.limits().set_capacity(bytes);
  reference_.set_capacity(pool_number(o), bytes, at.reports().statistics().mapped_bytes);
}

void Trial::others_use(const Operation& o) {
  const Bytes bytes = std::min(o.bytes, setting_.gpu_bytes - sim_.census().physical_bytes);
  sim_.set_used_by_others(0, bytes);
  reference_.set_used_by_others(bytes);
}

void Trial::synchronize(const Operation& o) {
  const std::size_t number = pool_number(o);
  const auto result = pool(number).streams().synchronize();
  if (result) reference_.settle(number);
  if (result && is_capturing()) fail("error: synchronize during a capture");
  if (!result && (!may_seem_capturing(number) || result.error().code != ErrorCode::capture_active))
    fail("error: synchronize: " + result.error().message);
}

void Trial::defer_cleanup(const Operation& o) {
  Pool& at = pools_[pool_number(o)];
  at.defers_cleanup = !at.defers_cleanup;
  if (at.defers_cleanup) return at.context->limits().defer_cleanup_begin();
  expect(at.context->limits().defer_cleanup_end(), "defer_cleanup_end");
}

void Trial::record(const Operation& o) {
  Pool& at = pools_[pool_number(o)];
  const std::string path = (std::filesystem::temp_directory_path() /
                            fmt::format("vpmm-judge-{}-{}.rec", getpid(), pool_number(o)))
                               .string();
  if (!at.is_recording) {
    at.is_recording = expect(at.context->reports().start_recording(path, {}), "start a recording");
    return at.context->reports().mark("begin");
  }
  at.is_recording = false;
  expect(at.context->reports().stop_recording(), "stop a recording");
  std::filesystem::remove(path);
}

// --- resets

void Trial::reset(const Operation& o) {
  if (is_capturing()) return;
  destroy_graphs();
  if (o.flag == 0) {
    const auto result = pool(pool_number(o)).streams().reset();
    const bool may_refuse = may_seem_capturing(pool_number(o));
    if (!result && result.error().code == ErrorCode::capture_active && may_refuse) return;
    if (!expect(result, "reset")) return;
  } else {
    sim_.run_until_idle();
    expect(sim_.device_primary_ctx_reset(0), "reset by somebody else");
  }
  notice_reset();
}

// Streams and events are gone; memory of the pool is not, but memory of the driver's own pool is.
void Trial::notice_reset() {
  const std::vector<Stream> dead = std::move(streams_);
  open();
  for (Pool& each : pools_) {
    each.had_unannounced_capture = false;
    expect(each.context->limits().memory_info(), "memory_info after a reset");
  }
  for (auto& [id, arena] : arenas_) arena.users.clear();
  for (auto next = memory_.begin(); next != memory_.end();) {
    auto& [id, memory] = *next++;
    memory.home = streams_.back().key;
    memory.covered.clear();
    if (pool(memory.pool).query(memory.ptr)) continue;
    if (!may_be_lost(memory)) fail("reset: memory of the pool is lost");
    reference_.lose(id);
    memory_.erase(id);
  }
}

}  // namespace vpmm::judge
