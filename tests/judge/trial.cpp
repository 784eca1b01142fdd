// judge: the simulated machine, its threads and streams, and the checks of a trial.
#include "judge/trial.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "support/watchdog.hpp"

namespace vpmm::judge {

using driver::CuResult;

namespace {

driver::sim::SimOptions options_of(const Setting& setting) {
  driver::sim::SimOptions options;
  options.capacity = setting.gpu_bytes;
  options.seed = setting.seed;
  options.schedule = static_cast<driver::sim::Schedule>(setting.schedule);
  options.lag_ns = setting.lag_ns;
  options.vmm_supported = setting.has_vmm != 0;
  options.memory_pools_supported = setting.has_driver_pool != 0;
  options.context_events_supported = setting.has_context_events != 0;
  return options;
}

Terms terms_of(const Setting& setting, const settings::Config& config) {
  constexpr std::uint64_t kAsManyAsItLikes = 10'000;
  const bool has_small =
      setting.has_driver_pool == 0 || config.small == settings::SmallRequests::pool;
  const bool is_own = setting.has_vmm != 0 && config.pool_enabled && has_small;
  return {config.page_size.value_or(2 * kMiB), is_own, config.max_mappings >= kAsManyAsItLikes,
          config.ipc_isolate};
}

}  // namespace

std::optional<settings::Config> config_of(const Setting& setting, std::string& problem) {
  settings::Config config;
  config.log = observe::LogLevel::quiet;
  config.va_size = 16 * kGiB;
  if (setting.frees_on_allocating != 0)
    config.unnamed_free = settings::UnnamedFree::allocating_stream;
  if (setting.crowds != 0) config.crowded_after = 0;
  for (const auto& [name, value] : setting.variables) {
    const auto set = settings::set(config, name, value);
    if (set) continue;
    problem = set.error().message;
    return std::nullopt;
  }
  return config;
}

Trial::Trial(const Setting& setting, const settings::Config& config, Flaw& flaw)
    : setting_(setting),
      config_(config),
      flaw_(flaw),
      sim_(options_of(setting)),
      reference_(terms_of(setting, config), setting.pools, setting.gpu_bytes, config.capacity),
      baton_(setting.threads),
      pools_(setting.pools) {
  expect(sim_.init(), "init");
  open();
  for (std::size_t number = 0; number < pools_.size(); ++number) {
    auto created = context::Context::create(flaw_.driver(sim_), 0, config_);
    if (!expect(created, "create")) return;
    pools_[number].context = std::move(created).value();
    listen(number);
  }
}

Trial::~Trial() = default;

void Trial::fail(const std::string& what) {
  if (failure_.empty()) failure_ = what;
}

void Trial::expect(CuResult result, const char* what) {
  if (result != CuResult::success)
    fail(fmt::format("driver: {}: {}", what, driver::to_string(result)));
}

template <typename T>
bool Trial::expect(const Result<T>& result, const char* what) {
  if (!result) fail(fmt::format("error: {}: {}", what, result.error().message));
  return result.ok();
}
template bool Trial::expect(const Result<void>&, const char*);
template bool Trial::expect(const Result<Bytes>&, const char*);
template bool Trial::expect(const Result<pool::ArenaId>&, const char*);
template bool Trial::expect(const Result<driver::MemInfo>&, const char*);

// Events tell the reference of arenas' stretches; those of allocations and frees are counted.
void Trial::listen(std::size_t number) {
  using report::EventKind;
  report::EventKinds kinds = bit_of(EventKind::arena_grow) | bit_of(EventKind::arena_shrink);
  if (setting_.listens != 0) kinds |= bit_of(EventKind::allocate) | bit_of(EventKind::free);
  pool(number).reports().add_event_callback(
      kinds, [this, number](const report::ReportedEvent& event) {
        if (event.kind == EventKind::arena_grow)
          reference_.grow_arena(number, event.arena, {event.ptr, event.bytes});
        if (event.kind == EventKind::arena_shrink)
          reference_.shrink_arena({event.ptr, event.bytes});
        if (event.kind == EventKind::allocate) ++pools_[number].allocated;
        if (event.kind == EventKind::free) ++pools_[number].freed;
      });
  if (setting_.frees_when_short != 0)
    pool(number).limits().out_of_memory_callbacks().set(
        [this, number](const context::OutOfMemory&) { return frees_one(number); });
}

// --- contexts and streams

// Retains the context, the first time or after a reset, and makes its streams.
void Trial::open() {
  expect(sim_.device_primary_ctx_retain(0, context_), "retain");
  for (std::size_t thread = 0; thread < baton_.size(); ++thread)
    baton_.on(thread, [this] { expect(sim_.ctx_set_current(context_), "set current"); });
  make_streams();
}

void Trial::make_streams() {
  streams_.clear();
  streams_.resize(1 + setting_.threads + setting_.streams);
  const auto legacy = setting_.seed % 2 == 0 ? driver::kNullStream : driver::kLegacyStream;
  streams_[0] = {next_key_++, legacy, 0, false, {}, {}, 0};
  for (std::size_t i = 1; i < streams_.size(); ++i) {
    streams_[i].thread = (i - 1) % baton_.size();
    if (i > setting_.threads) {
      make_stream(streams_[i], i % 2 == 0);
      continue;
    }
    streams_[i].key = next_key_++;
    streams_[i].handle = driver::kPerThreadStream;
    streams_[i].is_blocking = true;
  }
}

void Trial::make_stream(Stream& place, bool is_blocking) {
  place.key = next_key_++;
  place.is_blocking = is_blocking;
  const auto flags =
      is_blocking ? driver::StreamFlags::blocking : driver::StreamFlags::non_blocking;
  on(place, [&] { expect(sim_.stream_create(flags, place.handle), "create a stream"); });
}

Trial::Stream* Trial::find(std::uint64_t number) {
  return number < streams_.size() && streams_[number].key != 0 ? &streams_[number] : nullptr;
}

Trial::Stream* Trial::find_key(std::uint64_t key) {
  for (Stream& stream : streams_)
    if (key != 0 && stream.key == key) return &stream;
  return nullptr;
}

context::BoundStream* Trial::bound(Stream& stream, std::size_t pool) {
  const auto found = stream.bound.find(pool);
  if (found == stream.bound.end() || stream.bound_calls++ % 3 == 0) return nullptr;
  return found->second.get();
}

// While a blocking stream captures, the legacy stream may not be used.
bool Trial::is_usable(const Stream& stream) const {
  if (stream.capture) return false;
  if (&stream != &streams_.front()) return true;
  return std::none_of(streams_.begin(), streams_.end(),
                      [](const Stream& other) { return other.is_blocking && other.capture; });
}

bool Trial::is_capturing() const {
  return std::any_of(streams_.begin(), streams_.end(),
                     [](const Stream& stream) { return stream.capture.has_value(); });
}

void Trial::wait(const Stream& waiting, const Stream& first) {
  if (first.key == waiting.key) return;
  driver::EventHandle event{};
  on(first, [&] {
    expect(sim_.event_create(event), "create an event");
    expect(sim_.event_record(event, first.handle), "record");
  });
  on(waiting, [&] { expect(sim_.stream_wait_event(waiting.handle, event), "wait"); });
  expect(sim_.event_destroy(event), "destroy an event");
}

void Trial::order(const Operation& o) {
  const Stream* const first = find(o.stream);
  const Stream* const second = find(o.other);
  if (first == nullptr || second == nullptr || !is_usable(*first) || !is_usable(*second)) return;
  wait(*second, *first);
}

void Trial::spin(const Operation& o) {
  const Stream* const stream = find(o.stream);
  if (stream == nullptr || !is_usable(*stream)) return;
  on(*stream, [&] { expect(sim_.launch({"spin", o.ns, {}, {}}, stream->handle), "launch"); });
}

void Trial::bind(const Operation& o) {
  Stream* const stream = find(o.stream);
  if (stream == nullptr) return;
  if (stream->bound.erase(pool_number(o)) != 0 || !is_usable(*stream)) return;
  on(*stream, [&] {
    auto made = pool(pool_number(o)).bind(stream->handle);
    if (!made) return fail("error: bind: " + made.error().message);
    stream->bound[pool_number(o)] = std::move(made).value();
  });
}

void Trial::create_stream(const Operation& o) {
  if (o.stream <= setting_.threads || o.stream >= streams_.size() || streams_[o.stream].key != 0)
    return;
  make_stream(streams_[o.stream], o.flag != 0);
}

void Trial::destroy_stream(const Operation& o) {
  Stream* const old = find(o.stream);
  const Stream* const heir = find(o.other);
  if (old == nullptr || o.stream <= setting_.threads || old->capture || !is_done_with_arenas(*old))
    return;
  const bool moves = o.flag == 0 && heir != nullptr && heir != old && is_usable(*heir);
  if (moves) wait(*heir, *old);
  for (auto& [id, memory] : memory_)
    if (moves && memory.home == old->key) memory.home = heir->key;
  for (auto& [id, arena] : arenas_) arena.users.erase(old->key);
  on(*old, [&] {
    old->bound.clear();
    expect(sim_.stream_destroy(old->handle), "destroy a stream");
  });
  old->key = 0;
}

void Trial::pass(const Operation& o) { sim_.advance_host_ns(o.ns); }

void Trial::step(const Operation& o) {
  for (std::uint64_t i = 0; i < o.count && sim_.step(); ++i) {
  }
}

// --- checks

void Trial::run(const Operation& operation) {
  if (!failure_.empty()) return;
  switch (operation.verb) {
#define VPMM_VERB(name) \
  case Verb::name:      \
    return name(operation);
#include "judge/verbs.def"
#undef VPMM_VERB
  }
}

void Trial::check_pool(std::size_t number) {
  const observe::Statistics said = flaw_.statistics(pool(number));
  if (const std::string wrong = reference_.compare(number, said); !wrong.empty()) fail(wrong);
  if (const std::string broken = pool(number).reports().validate(); !broken.empty())
    fail("invariant: " + broken);
  const Pool& each = pools_[number];
  if (setting_.listens == 0) return;
  if (const std::string wrong = reference_.compare_events(number, each.allocated, each.freed);
      !wrong.empty())
    fail(wrong);
}

void Trial::check_simulator() {
  if (sim_.hazard_count() > 0) fail("hazard: " + sim_.hazards().front().describe());
  if (misread_ > 0)
    fail(fmt::format("contents: {} kernels read other contents than were written", misread_));
}

void Trial::check() {
  for (std::size_t number = 0; number < pools_.size() && failure_.empty(); ++number)
    check_pool(number);
  check_simulator();
}

// The regions of a picture divide the reserved address space.
void Trial::check_snapshot(std::size_t number) {
  const observe::PoolSnapshot snapshot = pool(number).reports().snapshot();
  Bytes bytes = 0;
  DevicePtr end{};
  for (const observe::RegionSnapshot& region : snapshot.regions) {
    if (region.range.begin < end)
      return fail(fmt::format("picture: two regions at {:#x}", to_integer(end)));
    end = region.range.end();
    bytes += region.range.size;
  }
  if (bytes != snapshot.statistics.reserved_bytes)
    fail(
        fmt::format("picture: {} bytes of {} reserved", bytes, snapshot.statistics.reserved_bytes));
}

// Each allocation is found by its last byte, and each arena knows its own.
void Trial::check_look_up(std::size_t number) {
  std::map<std::uint64_t, Vector<DevicePtr>> in_arenas;
  for (const auto& [id, memory] : memory_) {
    if (memory.pool != number) continue;
    const auto info = pool(number).query(memory.ptr + (memory.bytes - 1));
    if (!info || info.value().begin != memory.ptr || info.value().requested != memory.bytes)
      fail(fmt::format("query: {} bytes at {:#x} are not found", memory.bytes,
                       to_integer(memory.ptr)));
    in_arenas[memory.arena].push_back(memory.ptr);
  }
  for (const auto& [id, arena] : arenas_) {
    if (arena.pool != number) continue;
    Vector<DevicePtr>& known = in_arenas[id];
    std::sort(known.begin(), known.end());
    const auto live = pool(number).arenas().live(arena.id);  // and deferred frees
    if (!live ||
        !std::includes(live.value().begin(), live.value().end(), known.begin(), known.end()))
      fail(fmt::format("arena: {} has other live memory", id));
  }
}

void Trial::inspect(const Operation& o) {
  const std::size_t number = pool_number(o);
  check_pool(number);
  check_snapshot(number);
  check_look_up(number);
  if (const std::string wrong = reference_.compare(number, pool(number).reports().layout());
      !wrong.empty())
    fail(wrong);
  const auto info = pool(number).limits().memory_info();
  if (!info) return is_capturing() ? void() : fail("error: memory_info: " + info.error().message);
  const auto [free, total] = info.value();
  if (const std::string wrong = reference_.compare_free_memory(number, free, total); !wrong.empty())
    fail(wrong);
}

void Trial::finish() {
  end_captures();
  destroy_graphs();
  if (!failure_.empty()) return;
  for (auto memory = memory_.begin(); memory != memory_.end();) {
    auto each = memory++;  // freeing takes it away
    if (each->first % 2 == 0 && may_free_unnamed(each->second))
      free_unnamed(each->first, each->second);
  }
  sim_.run_until_idle();
  expect(sim_.ctx_synchronize(), "synchronize");
  while (!memory_.empty()) free_unnamed(memory_.begin()->first, memory_.begin()->second);
  while (!arenas_.empty())
    release_arena({.verb = Verb::release_arena, .id = arenas_.begin()->first});
  for (std::size_t number = 0; number < pools_.size() && failure_.empty(); ++number) {
    if (pools_[number].is_recording) record({.verb = Verb::record, .pool = number});
    if (pools_[number].defers_cleanup) defer_cleanup({.verb = Verb::defer_cleanup, .pool = number});
    const auto settled = pool(number).streams().synchronize();
    if (!settled && !pools_[number].had_unannounced_capture)
      fail("error: synchronize: " + settled.error().message);
    expect(pool(number).limits().trim(0), "trim");
    reference_.settle(number);
    check_pool(number);
    if (const std::string wrong = reference_.compare(number, pool(number).reports().layout());
        !wrong.empty())
      fail(wrong);
  }
  if (failure_.empty()) check_left();
}

void Trial::check_left() {
  for (Pool& each : pools_) {
    const Bytes mapped = each.context->reports().statistics().mapped_bytes;
    const bool is_exact = setting_.has_vmm != 0 && !each.had_unannounced_capture;
    if (is_exact && mapped != 0)
      fail(fmt::format("left: {} bytes are mapped after all was trimmed", mapped));
  }
  for (Stream& stream : streams_) stream.bound.clear();
  pools_.clear();
  const driver::sim::Census left = sim_.census();
  if ((left.chunks | left.mappings | left.reservations | left.pool_allocations | left.events) != 0)
    fail(fmt::format(
        "left: {} chunks, {} mappings, {} reservations, {} pool allocations, {} events",
        left.chunks, left.mappings, left.reservations, left.pool_allocations, left.events));
  check_simulator();
}

std::string failure_of(const Program& program, Look look, Flaw& flaw) {
  const std::size_t operations_per_check = look == Look::always ? 1 : 24;
  std::string problem;
  const auto config = config_of(program.setting, problem);
  if (!config) return "setting: " + problem;
  Trial trial(program.setting, *config, flaw);
  for (std::size_t i = 0; i < program.operations.size() && trial.failure().empty(); ++i) {
    test::Watchdog::doing("an operation");
    trial.run(program.operations[i]);
    if (i % operations_per_check == 0) trial.check();
  }
  test::Watchdog::doing("the end");
  if (trial.failure().empty()) trial.finish();
  return trial.failure();
}

std::string failure_of(const Program& program, Look look) {
  Flaw none;
  return failure_of(program, look, none);
}

}  // namespace vpmm::judge
