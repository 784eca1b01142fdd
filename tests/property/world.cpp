// SPDX-License-Identifier: Apache-2.0
// property tests: the simulated machine, its streams, and what must hold at any time.
#include "property/world.hpp"

#include <unistd.h>

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <span>

#include "ipc/exporter.hpp"
#include "property/other_process.hpp"
#include "support/watchdog.hpp"

namespace vpmm::property {

using driver::CuResult;

namespace {

// Calls that fail in the middle of others: of memory, of events and of the driver's own pool.
constexpr std::array kFaultingCalls = {
    driver::Call::mem_create,        driver::Call::mem_map,
    driver::Call::mem_set_access,    driver::Call::mem_unmap,
    driver::Call::mem_release,       driver::Call::mem_address_reserve,
    driver::Call::mem_create,        driver::Call::event_create,
    driver::Call::stream_wait_event, driver::Call::mem_alloc_from_pool_async,
    driver::Call::mem_free_async,    driver::Call::mem_pool_trim_to};
constexpr auto kOnce = fault::HostFaults::Repeat::once;

driver::FaultPlan plan_of(const Fault& fault) {
  const driver::Call call = kFaultingCalls[fault.call % kFaultingCalls.size()];
  std::vector<CuResult> results = driver::errors_that_matter(call);
  std::erase_if(results, [](CuResult each) { return driver::is_sticky(each); });
  return {{call},
          fault.nth + 1,
          results[fault.result % results.size()],
          driver::FaultPlan::Repeat::once};
}

const char* name(driver::sim::Schedule schedule) {
  switch (schedule) {
    case driver::sim::Schedule::timed: return "timed";
    case driver::sim::Schedule::random: return "random";
    case driver::sim::Schedule::manual: return "manual";
  }
  return "";
}

const char* name(settings::AnyStreamOrder order) {
  switch (order) {
    case settings::AnyStreamOrder::context: return "context";
    case settings::AnyStreamOrder::legacy: return "legacy";
    case settings::AnyStreamOrder::park: return "park";
  }
  return "";
}

const char* name(settings::Prefer prefer) {
  switch (prefer) {
    case settings::Prefer::footprint: return "footprint";
    case settings::Prefer::balanced: return "balanced";
    case settings::Prefer::latency: return "latency";
  }
  return "";
}

}  // namespace

std::string to_code(const Scene& scene) {
  const driver::sim::SimOptions& sim = scene.sim;
  const settings::Config& config = scene.config;
  std::string code = fmt::format(
      "scene.sim.device_count = {};\nscene.sim.capacity = {};\nscene.sim.seed = {};\n"
      "scene.sim.schedule = driver::sim::Schedule::{};\nscene.sim.lag_ns = "
      "{};\nscene.sim.vmm_supported = {};\n"
      "scene.sim.memory_pools_supported = {};\nscene.sim.context_events_supported = {};\n"
      "scene.sim.has_aliases = {};\n",
      sim.device_count, sim.capacity, sim.seed, name(sim.schedule), sim.lag_ns, sim.vmm_supported,
      sim.memory_pools_supported, sim.context_events_supported, sim.has_aliases);
  code += fmt::format(
      "scene.config.page_size = {};\nscene.config.va_size = {};\nscene.config.page_chunks = {};\n"
      "scene.config.chunk_max = {};\nscene.config.limits.max_mappings = {};\nscene.config.pages = "
      "{};\n"
      "scene.config.streams.any_stream = settings::AnyStreamOrder::{};\n",
      config.page_size.value_or(2 * kMiB), config.va_size, config.page_chunks, config.chunk_max,
      config.limits.max_mappings, config.pages, name(config.streams.any_stream));
  if (config.small == settings::SmallRequests::stream_ordered)
    code += "scene.config.small = settings::SmallRequests::stream_ordered;\n";
  if (config.prefer != settings::Prefer::balanced)
    code += fmt::format("scene.config.prefer = settings::Prefer::{};\n", name(config.prefer));
  if (config.limits.capacity)
    code += fmt::format("scene.config.limits.capacity = {};\n", *config.limits.capacity);
  if (config.limits.release_threshold)
    code += fmt::format("scene.config.limits.release_threshold = {};\n",
                        *config.limits.release_threshold);
  if (config.streams.unnamed_free == settings::UnnamedFree::allocating_stream)
    code += "scene.config.streams.unnamed_free = settings::UnnamedFree::allocating_stream;\n";
  if (config.streams.crowded_after == 0) code += "scene.config.streams.crowded_after = 0;\n";
  if (scene.has_threads) code += "scene.has_threads = true;\n";
  if (scene.threads != Scene{}.threads) code += fmt::format("scene.threads = {};\n", scene.threads);
  if (scene.streams != Scene{}.streams) code += fmt::format("scene.streams = {};\n", scene.streams);
  if (scene.pools_share_gpu) code += "scene.pools_share_gpu = true;\n";
  if (scene.listens) code += "scene.listens = true;\n";
  if (scene.has_importer) code += "scene.has_importer = true;\n";
  if (config.ipc_isolate) code += "scene.config.ipc_isolate = true;\n";
  if (scene.frees_when_short) code += "scene.frees_when_short = true;\n";
  if (config.checks.guard_every != 0)
    code += fmt::format("scene.config.checks.guard_every = {};\n", config.checks.guard_every);
  return code;
}

World::World(const Scene& scene, const Watch& watch)
    : scene_(scene),
      watch_(watch),
      sim_(scene.sim),
      flaw_(watch.flaw != nullptr ? *watch.flaw : no_flaw_),
      devices_(scene.pools_share_gpu ? 2 : static_cast<std::size_t>(scene.sim.device_count)),
      current_(scene.threads) {
  if (watch_.script != nullptr) watch_.script->begin(scene_);
  if (scene_.has_importer) expect(OtherProcess::instance().start(), "start another process");
  expect(sim_.init(), "init");
  for (int gpu = 0; gpu < scene.sim.device_count; ++gpu)
    references_.emplace_back(terms_of(scene), scene.pools_share_gpu ? 2 : 1, scene.sim.capacity,
                             scene.config.limits.capacity);
  for (std::size_t number = 0; number < devices_.size(); ++number) {
    open(number);
    say("pool[{}] = stage_pool({}, &config);", number, gpu_of(number));
    auto created = context::Context::create(flaw_.driver(meter_), static_cast<int>(gpu_of(number)),
                                            scene.config);
    if (!expect(created, "create")) return;
    devices_[number].pool = std::move(created).value();
    devices_[number].capacity = scene.config.limits.capacity;
    listen_to_stretches(number);
    if (has_pool()) {
      context::Suspension& suspension = devices_[number].pool->suspension();
      expect(suspension.make_suspendable(kBackup, {true, false}), "make suspendable");
      expect(suspension.make_suspendable(kDiscard, {false, false}), "make suspendable");
    }
    if (scene.frees_when_short)
      devices_[number].pool->limits().out_of_memory_callbacks().set(
          [this](const context::OutOfMemory&) { return frees_one(); });
    devices_[number].pool->limits().out_of_memory_callbacks().add(
        [this, number](const context::OutOfMemory&) { return call_back(number); });
  }
}

World::~World() {
  if (scene_.has_importer) leave_importer();
  for (const Device& each : devices_)
    if (!each.recording.empty()) unlink(each.recording.c_str());
}

World::Strike::Strike(World& world, Bears bears)
    : world_(world),
      visits_(world.meter_.visits()),
      is_armed_(bears == Bears::faults && world.armed_.has_value()) {
  world_.acted_ = true;
  world_.struck_ = false;
  for (Device& each : world_.devices_) each.made_by_callbacks = 0;
  if (!is_armed_) return;
  world_.strikes_ = true;
  const Fault& fault = *world_.armed_;
  if (fault.is_of_host)
    fault::HostFaults::arm(fault.nth + 1, kOnce);
  else
    world_.faulting_.set_plan(plan_of(fault));
}

World::Strike::~Strike() {
  ++world_.figures_.calls;
  if (world_.meter_.visits() != visits_) ++world_.figures_.misses;
  if (!is_armed_) return;
  const std::uint64_t fired =
      world_.armed_->is_of_host ? fault::HostFaults::fired() : world_.faulting_.fired();
  fault::HostFaults::disarm();
  world_.faulting_.clear_plan();
  world_.armed_.reset();
  world_.strikes_ = false;
  if (fired == 0) return;
  world_.struck_ = world_.had_faults_ = true;
  for (judge::Reference& reference : world_.references_) {
    reference.lose_count(0);
    if (world_.scene_.pools_share_gpu) reference.lose_count(1);
  }
  ++world_.figures_.faults;
  world_.current().reset();  // what the driver would not put back, the program does
}

void World::fail(std::string what) {
  if (failure_.empty()) failure_ = std::move(what);
}

void World::expect(CuResult result, const char* what) {
  if (result != CuResult::success) fail(fmt::format("{}: {}", what, driver::to_string(result)));
}

template <typename T>
bool World::expect(const Result<T>& result, const char* what) {
  if (!result) fail(fmt::format("{}: {}", what, result.error().message));
  return result.ok();
}
template bool World::expect(const Result<void>&, const char*);
template bool World::expect(const Result<bool>&, const char*);
template bool World::expect(const Result<Bytes>&, const char*);
template bool World::expect(const Result<std::string>&, const char*);
template bool World::expect(const Result<driver::MemInfo>&, const char*);

// --- contexts and streams

// Retains the context, the first time or after a reset, and makes its streams.
void World::open(std::size_t number) {
  Device& opened = devices_[number];
  expect(sim_.device_primary_ctx_retain(static_cast<int>(gpu_of(number)), opened.context),
         "retain");
  expect(sim_.ctx_set_current(opened.context), "set current");
  current() = number;
  expect(sim_.ctx_get_id(opened.context, opened.context_id), "get id");
  make_streams(opened);
}

void World::close_pool(std::size_t number) {
  context::Context* const pool = devices_[number].pool.get();
  say("stage_pool_close(pool[{}]);", number);
  if (scene_.has_importer && pool != nullptr) ipc::Exporter::of_process().forget(*pool);
  if (pool != nullptr) figures_.damaged += pool->reports().statistics().damaged_allocations;
  devices_[number].pool.reset();
}

void World::make_streams(Device& device) {
  device.other_process.reset();
  device.streams.clear();
  device.streams.push_back({driver::kLegacyStream, next_key_++, false, {}, {}});
  if (device.context_id == driver::ContextId{1}) device.streams.back().handle = driver::kNullStream;
  const bool has_per_thread =
      !scene_.has_threads && (!scene_.pools_share_gpu || number_of(device) == 0);
  if (has_per_thread)
    device.streams.push_back({driver::kPerThreadStream, next_key_++, true, {}, {}});
  for (const Stream& each : device.streams)
    say("s[{}] = (vpmm_stream){};", each.key, static_cast<std::uint64_t>(each.handle));
  if (!has_per_thread) device.streams.push_back(created_stream(driver::StreamFlags::blocking));
  for (std::size_t i = 0; i < scene_.streams; ++i)
    device.streams.push_back(created_stream(i % 2 == 0 ? driver::StreamFlags::non_blocking
                                                       : driver::StreamFlags::blocking));
}

World::Stream World::created_stream(driver::StreamFlags flags) {
  Stream stream{{}, next_key_++, flags == driver::StreamFlags::blocking, {}, {}};
  expect(sim_.stream_create(flags, stream.handle), "create a stream");
  say("s[{}] = stage_stream({}, {});", stream.key, *current(), stream.is_blocking ? 1 : 0);
  return stream;
}

void World::make_current(std::size_t device) {
  if (current() == device) return;
  expect(sim_.ctx_set_current(devices_[device].context), "set current");
  current() = device;
}

// While a blocking stream captures, the legacy stream may not be used.
bool World::is_usable(const Device& device, const Stream& stream) const {
  if (stream.capture) return false;
  if (&stream != &device.streams.front()) return true;
  return std::none_of(devices_.begin(), devices_.end(), [&](const Device& each) {
    return share_gpu(each, device) &&
           std::any_of(each.streams.begin(), each.streams.end(), [](const Stream& other) {
             return other.is_blocking && other.capture.has_value();
           });
  });
}

bool World::is_capturing(const Device& device) const {
  return std::any_of(devices_.begin(), devices_.end(), [&](const Device& each) {
    return share_gpu(each, device) &&
           std::any_of(each.streams.begin(), each.streams.end(),
                       [](const Stream& stream) { return stream.capture.has_value(); });
  });
}

bool World::is_capturing_anywhere() const {
  return std::any_of(devices_.begin(), devices_.end(),
                     [this](const Device& each) { return is_capturing(each); });
}

World::Stream* World::find_stream(Device& device, std::uint64_t key) {
  for (Stream& stream : device.streams)
    if (stream.key == key) return &stream;
  return nullptr;
}

// The device of both streams is current.
void World::order(const Stream& first, const Stream& second) {
  if (first.key == second.key) return;
  acted_ = true;
  say("stage_order({}, s[{}], s[{}]);", *current(), first.key, second.key);
  driver::EventHandle event{};
  expect(sim_.event_create(event), "create an event");
  expect(sim_.event_record(event, first.handle), "record");
  expect(sim_.stream_wait_event(second.handle, event), "wait");
  expect(sim_.event_destroy(event), "destroy an event");
}

void World::operator()(const Order& o) {
  Device& at = device(o.device);
  const Stream& first = at.streams[o.first % at.streams.size()];
  const Stream& second = at.streams[o.second % at.streams.size()];
  if (!is_usable(at, first) || !is_usable(at, second)) return;
  make_current(o.device % devices_.size());
  order(first, second);
}

void World::operator()(const Bind& o) {
  Device& at = device(o.device);
  Stream& stream = at.streams[o.stream % at.streams.size()];
  if (stream.bound != nullptr) {
    say("vpmm_stream_unbind(b[{}]);", stream.key);
    return stream.bound.reset();
  }
  if (!is_usable(at, stream)) return;
  make_current(o.device % devices_.size());
  say("CALL(vpmm_stream_bind(pool[{}], s[{}], &b[{}]));", o.device % devices_.size(), stream.key,
      stream.key);
  auto bound = call(Bears::nothing, [&] { return at.pool->bind(stream.handle); });
  if (!expect(bound, "bind")) return;
  stream.bound = std::move(bound).value();
  stream.bound_calls = 0;
}

context::BoundStream* World::bound(Stream& stream) {
  if (stream.bound == nullptr || stream.bound_calls++ % 3 == 0) return nullptr;
  return stream.bound.get();
}

void World::operator()(const Spin& o) {
  Device& at = device(o.device);
  const Stream& stream = at.streams[o.stream % at.streams.size()];
  if (!is_usable(at, stream)) return;
  make_current(o.device % devices_.size());
  say("stage_spin({}, s[{}], {}u);", *current(), stream.key, o.duration_ns);
  launch({"spin", o.duration_ns, {}, {}}, stream.handle);
}

void World::operator()(const ReplaceStream& o) {
  Device& at = device(o.device);
  const std::size_t number = 2 + o.stream % (at.streams.size() - 2);
  Stream& old = at.streams[number];
  if (old.capture || !is_done_with_arenas(old)) return;
  const Stream& heir = at.streams[1 + o.stream % 2 * (number % 4)];
  const std::size_t device_number = o.device % devices_.size();
  make_current(device_number);
  const bool moves = o.takes_allocations && is_usable(at, heir) && heir.key != old.key;
  if (moves) order(old, heir);
  for (Allocation& allocation : allocations_)
    if (moves && allocation.home == old.key) allocation.home = heir.key;
  for (Arena& arena : arenas_) arena.users.erase(old.key);
  if (old.bound != nullptr) say("vpmm_stream_unbind(b[{}]);", old.key);
  old.bound.reset();
  acted_ = true;
  say("stage_stream_destroy({}, s[{}]);", device_number, old.key);
  expect(sim_.stream_destroy(old.handle), "destroy a stream");
  old = created_stream(o.flags);
}

void World::launch(const driver::sim::Kernel& kernel, driver::StreamHandle stream) {
  acted_ = true;
  expect(sim_.launch(kernel, stream), "launch");
}

void World::operator()(const Pass& o) {
  acted_ = true;
  say("stage_pass({}u);", o.ns);
  sim_.advance_host_ns(o.ns);
}

void World::operator()(const Step& o) {
  acted_ = true;
  say("stage_step({}u);", o.count);
  for (std::uint64_t i = 0; i < o.count && sim_.step(); ++i) {
  }
}

void World::operator()(const Turn& o) {
  if (!scene_.has_threads) return;
  acted_ = true;
  if (!baton_) baton_.emplace(scene_.threads);
  turn_ = o.thread % scene_.threads;
  say("/* thread {} goes on */", turn_);
}

void World::operator()(const Fault& o) {
  armed_ = o;
  const driver::FaultPlan plan = plan_of(o);
  if (o.is_of_host)
    say("/* allocation {} of host memory fails in the next call */", o.nth + 1);
  else
    say("stage_fault({}, {}, {}u); /* {} gives {} */", static_cast<int>(plan.calls.front()),
        static_cast<int>(plan.result), plan.nth, driver::to_string(plan.calls.front()),
        driver::to_string(plan.result));
}

// --- what must hold

// Thread 0 makes captures, and processes, which end with their thread.
std::size_t World::thread_of(const Operation& operation) const {
  if (turn_ == 0) return 0;
  return std::holds_alternative<BeginCapture>(operation) ||
                 std::holds_alternative<KillImporter>(operation) || is_capturing_anywhere()
             ? 0
             : turn_;
}

// Returns whether invariants are to be looked at.
bool World::act(const Operation& operation) {
  if (is_broken_ && !std::holds_alternative<Exit>(operation)) return false;
  acted_ = false;
  if (!refuses_guarded(operation)) std::visit([this](const auto& o) { (*this)(o); }, operation);
  look_at_guarded();
  if (acted_) ++figures_.done[operation.index()];
  return !is_broken_ && run_++ % watch_.operations_per_check == 0;
}

// Operations in a row of one thread are one turn of it: each turn costs two wakes.
void World::run(std::span<const Operation> operations) {
  for (std::size_t next = 0; next < operations.size() && failure_.empty();) {
    bool is_check_due = false;
    running_ = thread_of(operations[next]);
    const auto take_turn = [&] {
      do {
        is_check_due = act(operations[next++]);
      } while (!is_check_due && next < operations.size() && failure_.empty() &&
               thread_of(operations[next]) == running_);
    };
    baton_ ? baton_->on(running_, take_turn) : take_turn();
    running_ = 0;
    if (is_check_due) check();
  }
}

void World::check() {
  for (const Device& each : devices_)
    if (each.pool != nullptr)
      if (std::string broken = each.pool->reports().validate(); !broken.empty())
        fail("invariant: " + broken);
  check_hazards();
  if (misread_ > 0) fail(fmt::format("{} kernels read what nobody had written", misread_));
  check_shared();
  check_asleep();
  check_damage();
  check_reference();
}

void World::finish() {
  if (is_broken_) return finish_broken();
  for (std::size_t number = 0; number < devices_.size() && failure_.empty(); ++number) {
    settle_captures(number);
    destroy_graphs(number);
  }
  if (!failure_.empty()) return;
  while (!arenas_.empty() && failure_.empty()) (*this)(ReleaseArena{0});
  end_leases(2);
  for (Allocation& allocation : allocations_)
    if (may_free_unnamed(allocation)) free_unnamed(allocation, false);
  allocations_.erase(std::remove_if(allocations_.begin(), allocations_.end(),
                                    [](const Allocation& a) { return is_null(a.ptr); }),
                     allocations_.end());
  say("stage_run_until_idle();");
  sim_.run_until_idle();
  for (std::size_t number = 0; number < devices_.size(); ++number) {
    make_current(number);
    expect(sim_.ctx_synchronize(), "synchronize");
  }
  for (Allocation& allocation : allocations_) free_unnamed(allocation, false);
  allocations_.clear();
  check();
  const bool ends_held =
      scene_.sim.seed % 4 == 0;  // the pool, while others still have memory of it
  if (!ends_held) end_leases(1);
  for (std::size_t number = 0; number < devices_.size() && failure_.empty(); ++number) {
    context::Context& pool = *devices_[number].pool;
    if (!devices_[number].recording.empty()) (*this)(Record{number});
    if (devices_[number].defers_cleanup) (*this)(DeferCleanup{number});
    comes_and_goes(number, 1);  // takes in what was freed deferred
    if (guards()) (*this)(Synchronize{number});
    const observe::Statistics now = pool.reports().statistics();
    if (!ends_held && now.live_allocations != 0)
      fail(fmt::format("{} allocations are left after all were freed", now.live_allocations));
    if (!ends_held && (now.live_bytes | now.allocated_bytes) != 0)
      fail(fmt::format("{} bytes live, {} allocated after all were freed", now.live_bytes,
                       now.allocated_bytes));
    check();
    for (Stream& stream : devices_[number].streams) {
      if (stream.bound != nullptr) say("vpmm_stream_unbind(b[{}]);", stream.key);
      stream.bound.reset();
    }
    close_pool(number);
    driver::ContextId id{};
    expect(sim_.ctx_get_id(devices_[number].context, id), "the context after the pool");
  }
  if (scene_.has_importer) check_that_nothing_opens();
  const driver::sim::Census left = sim_.census();
  if (failure_.empty() &&
      (left.chunks | left.mappings | left.reservations | left.pool_allocations | left.events) != 0)
    fail(fmt::format(
        "left: {} chunks, {} mappings, {} reservations, {} pool allocations, {} events",
        left.chunks, left.mappings, left.reservations, left.pool_allocations, left.events));
  check();
}

std::string failure_of(const Program& program, const Watch& watch) {
  World world(program.scene, watch);
  for (const Operation& each : program.operations) {
    test::Watchdog::doing("an operation");
    world.run(each);
  }
  test::Watchdog::doing("the end");
  if (world.failure().empty()) world.finish();
  return world.failure();
}

std::string failure_of(const Scene& scene, const std::vector<Operation>& operations) {
  return failure_of({scene, operations}, {.operations_per_check = 1});
}

}  // namespace vpmm::property
