// SPDX-License-Identifier: Apache-2.0
// fault tests: doing, remembering, and comparing afterwards.
#include "fault/fault_world.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "observe/render.hpp"

namespace vpmm::fault {

using driver::CuResult;
using driver::StreamFlags;
using driver::StreamHandle;
using driver::sim::MemoryAccess;

FaultWorld::FaultWorld(const driver::sim::SimOptions& options, const settings::Config& config)
    : sim_(options), config_(config) {
  must(sim_.init(), "init");
  enter();
}

// Graphs end when their last launch is over, and what the pool tied to them with them.
FaultWorld::~FaultWorld() {
  sim_.run_until_idle();
  sim_.advance_host_ns(1);
}

void FaultWorld::enter() {
  must(sim_.device_primary_ctx_retain(0, context_), "retain");
  must(sim_.ctx_set_current(context_), "set current");
  must(sim_.ctx_get_id(context_, context_id_), "get id");
  streams_ = {driver::kLegacyStream};
  for (const StreamFlags flags :
       {StreamFlags::non_blocking, StreamFlags::non_blocking, StreamFlags::blocking}) {
    must(sim_.stream_create(flags, streams_.emplace_back()), "create a stream");
  }
}

void FaultWorld::fail(std::string what) {
  if (failure_.empty()) failure_ = std::move(what);
}

void FaultWorld::must(CuResult result, const char* what) {
  if (result != CuResult::success) fail(fmt::format("{}: {}", what, driver::to_string(result)));
}

template <typename T>
bool FaultWorld::done(const Result<T>& result, const char* what) {
  check_pool(what);
  // What the driver would not put back, the user does.
  if (faulting_.fired() > 0) static_cast<void>(sim_.ctx_set_current(context_));
  if (result) return true;
  if (result.error().code == ErrorCode::poisoned) is_poisoned_ = true;
  if (result.error().code == ErrorCode::invalid_pointer)
    fail(fmt::format("{}: {}", what, result.error().message));
  return false;
}

void FaultWorld::check_pool(const char* what) {
  if (std::string broken = pool_->reports().validate(); !broken.empty())
    fail(fmt::format("invariant after {}: {}", what, broken));
  check_leases(what);
}

// What is freed and held keeps its address, so that nobody else is live there.
void FaultWorld::check_leases(const char* what) {
  Bytes kept = 0;
  for (const Shared& shared : shared_)
    if (shared.is_held() && !pool_->query(shared.of.ptr).ok()) kept += shared.usable;
  if (pool_->reports().statistics().leased_bytes != kept)
    fail(fmt::format("{} leased bytes after {}, and {} are freed and held",
                     pool_->reports().statistics().leased_bytes, what, kept));
}

// --- what scenarios are made of

void FaultWorld::open() {
  auto created = within([&] { return context::Context::create(recorder_, 0, config_); });
  if (created) pool_ = std::move(created).value();
  if (!created && faulting_.fired() == 0 && HostFaults::fired() == 0)
    fail("open: " + created.error().message);
}

std::size_t FaultWorld::allocate(Bytes bytes, pool::Stream stream) {
  return allocate(pool::Request{bytes, 0, stream});
}

std::size_t FaultWorld::allocate(const pool::Request& request) {
  allocations_.emplace_back();
  if (pool_ == nullptr) return allocations_.size() - 1;
  return take_over(within([&] { return pool_->allocate(request); }), request.bytes,
                   request.stream.value_or(streams_[1]));
}

std::size_t FaultWorld::make_arena(const arena::ArenaOptions& options) {
  arenas_.emplace_back();
  if (pool_ == nullptr) return arenas_.size() - 1;
  const auto made = within([&] { return pool_->arenas().create(options); });
  if (done(made, "create an arena")) arenas_.back() = made.value();
  return arenas_.size() - 1;
}

std::size_t FaultWorld::allocate_in(std::size_t arena, Bytes bytes, pool::Stream stream) {
  allocations_.emplace_back();
  if (pool_ == nullptr || arenas_[arena] == pool::ArenaId{}) return allocations_.size() - 1;
  return take_over(within([&] {
                     return pool_->allocate({bytes, 0, stream, arenas_[arena]});
                   }),
                   bytes, stream.value_or(streams_[1]));
}

std::size_t FaultWorld::allocate_again(std::size_t arena, DevicePtr begin, Bytes bytes,
                                       pool::Stream stream) {
  allocations_.emplace_back();
  if (pool_ == nullptr || is_null(begin) || arenas_[arena] == pool::ArenaId{})
    return allocations_.size() - 1;
  must(sim_.ctx_synchronize(), "wait");
  return take_over(within([&] {
                     return pool_->arenas().allocate_at(arenas_[arena], {begin, bytes}, stream);
                   }),
                   bytes, stream.value_or(streams_[1]));
}

void FaultWorld::trim_arena(std::size_t arena) {
  if (pool_ == nullptr || arenas_[arena] == pool::ArenaId{}) return;
  done(within([&] { return pool_->arenas().trim(arenas_[arena]); }), "trim an arena");
}

// Contents without a host copy are undefined once the memory is suspended.
void FaultWorld::forget_discarded() {
  for (std::optional<Live>& live : allocations_)
    if (live && is_suspended(*live) && !pool_->suspension().host_copy({live->ptr, live->bytes}))
      live->content = 0;
}

bool FaultWorld::is_suspended(const Live& live) {
  const auto is = pool_->suspension().is_suspended(live.ptr);
  return is && is.value();
}

void FaultWorld::suspend_arena(std::size_t arena, const context::SuspendHow& how) {
  if (pool_ == nullptr || arenas_[arena] == pool::ArenaId{}) return;
  done(within([&] { return pool_->suspension().suspend(arenas_[arena], how); }), "suspend");
  forget_discarded();
}

void FaultWorld::resume_arena(std::size_t arena, const context::ResumeHow& how) {
  if (pool_ == nullptr || arenas_[arena] == pool::ArenaId{}) return;
  const bool is_resumed =
      done(within([&] { return pool_->suspension().resume(arenas_[arena], how); }), "resume");
  if (!is_resumed && !is_poisoned_) check_host_copies();
}

void FaultWorld::check_host_copies() {
  for (const std::optional<Live>& live : allocations_)
    if (live && live->content != 0 && is_suspended(*live) &&
        !pool_->suspension().host_copy({live->ptr, live->bytes}))
      fail("a resume failed, and the host copy is gone");
}

void FaultWorld::make_suspendable(std::uint32_t tag, context::TagOptions options) {
  if (pool_ == nullptr || told_asleep_.contains(tag)) return;
  const bool is_made =
      done(within([&] { return pool_->suspension().make_suspendable(tag, options); }),
           "make a tag suspendable");
  if (!is_made) return;
  const auto before = [this](int, std::uint32_t of) { return ++told_asleep_.at(of), true; };
  const auto after = [this](int, std::uint32_t of) { --told_asleep_.at(of); };
  const auto added = within([&]() -> Result<std::uint64_t> {
    return pool_->suspension().add_hooks({tag, before, after});
  });
  if (done(added, "add hooks")) told_asleep_[tag] = 0;
}

void FaultWorld::prepare_tag(std::uint32_t tag) {
  if (pool_ == nullptr || !told_asleep_.contains(tag)) return;
  done(within([&] { return pool_->suspension().prepare(tag); }), "prepare a suspend");
}

void FaultWorld::suspend_tag(std::uint32_t tag, const context::SuspendHow& how) {
  if (pool_ == nullptr || !told_asleep_.contains(tag)) return;
  const bool was_asleep = told_asleep_.at(tag) != 0;
  const bool is_done =
      done(within([&] { return pool_->suspension().suspend(tag, how); }), "suspend a tag");
  check_tag(tag, is_done || was_asleep, "a suspend");
  forget_discarded();
}

void FaultWorld::resume_tag(std::uint32_t tag, const context::ResumeHow& how) {
  if (pool_ == nullptr || !told_asleep_.contains(tag)) return;
  const bool was_asleep = told_asleep_.at(tag) != 0;
  const bool is_done =
      done(within([&] { return pool_->suspension().resume(tag, how); }), "resume a tag");
  check_tag(tag, was_asleep && !is_done, "a resume");
  if (!is_done && !is_poisoned_) check_host_copies();
}

// A driver that refuses the undo, too, leaves a part asleep; the hooks are not told that it is
// back.
void FaultWorld::check_tag(std::uint32_t tag, bool is_asleep, const char* what) {
  if (is_poisoned_) return;
  const context::TagInfo info = pool_->suspension().info(tag);
  if (info.amounts.held == 0) return;  // nobody is told then
  const bool is_live = info.state == context::TagState::live;
  const bool is_whole = info.amounts.suspended == (is_live ? 0 : info.amounts.held);
  if (faulting_.fired() < 2 ? is_live == is_asleep || !is_whole : is_live && !is_whole)
    fail(fmt::format("after {} tag {} is half asleep", what, tag));
  if (told_asleep_.at(tag) != (is_live ? 0 : 1))
    fail(fmt::format("after {} the hooks of tag {} do not match", what, tag));
}

// With the faults gone, what is suspended comes back.
void FaultWorld::resume_all() {
  for (const pool::ArenaId arena : arenas_)
    if (arena != pool::ArenaId{})
      if (const auto resumed = pool_->suspension().resume(arena, {});
          !resumed && resumed.error().code != ErrorCode::unsupported)
        fail("it does not resume any more: " + resumed.error().message);
  for (const auto& [tag, told] : told_asleep_) resume_tag(tag, {});
  check_pool("resume");
}

void FaultWorld::release_arena(std::size_t arena) {
  if (pool_ == nullptr || arenas_[arena] == pool::ArenaId{}) return;
  if (done(within([&] { return pool_->arenas().release(arenas_[arena]); }), "release an arena"))
    arenas_[arena] = pool::ArenaId{};
}

void FaultWorld::add_memory(std::size_t arena, Bytes bytes) {
  if (pool_ == nullptr || arenas_[arena] == pool::ArenaId{}) return;
  AddressRange memory{{}, bytes};
  must(sim_.mem_alloc(bytes, memory.begin), "allocate memory for an arena");
  if (done(within([&] { return pool_->arenas().add(arenas_[arena], memory); }),
           "add memory to an arena"))
    given_.push_back(memory);
  else
    must(sim_.mem_free(memory.begin), "free what the arena did not take");
}

void FaultWorld::take_memory(std::size_t arena) {
  if (pool_ == nullptr || arenas_[arena] == pool::ArenaId{}) return;
  const auto taken = within([&] { return pool_->arenas().take(arenas_[arena]); });
  if (!done(taken, "take memory from an arena") || taken.value().empty()) return;
  if (std::erase(given_, taken.value()) != 1)
    return fail("an arena gives back what it was not given");
  for (const std::optional<Live>& live : allocations_)
    if (live && taken.value().contains(live->ptr))
      fail("an arena gives back memory in which something lives");
  must(sim_.mem_free(taken.value().begin), "free memory that an arena gave back");
}

std::size_t FaultWorld::take_over(const Result<DevicePtr>& result, Bytes bytes,
                                  StreamHandle stream) {
  if (done(result, "allocate")) {
    allocations_.back() = Live{result.value(), bytes, 0};
    write(*allocations_.back(), stream);
  }
  return allocations_.size() - 1;
}

context::BoundStream* FaultWorld::bound(std::size_t stream) {
  if (pool_ == nullptr) return nullptr;
  bound_.resize(streams_.size());
  if (bound_[stream] != nullptr) return bound_[stream].get();
  auto made = within([&] { return pool_->bind(streams_[stream]); });
  if (done(made, "bind")) bound_[stream] = std::move(made).value();
  return bound_[stream].get();
}

std::size_t FaultWorld::allocate_bound(Bytes bytes, std::size_t stream) {
  context::BoundStream* const by_object = bound(stream);
  if (by_object == nullptr) return allocate(bytes, streams_[stream]);
  allocations_.emplace_back();
  return take_over(within([&] { return by_object->allocate(bytes, 0); }), bytes, streams_[stream]);
}

void FaultWorld::write(Live& live, StreamHandle stream) {
  live.content = next_content_++;
  driver::sim::Kernel kernel;
  kernel.name = "writer";
  kernel.duration_ns = 50'000;
  kernel.accesses = {{{live.ptr, live.bytes}, MemoryAccess::Kind::write}};
  kernel.body = [ptr = live.ptr, bytes = live.bytes, content = live.content] {
    auto* first = reinterpret_cast<std::uint8_t*>(to_integer(ptr));
    first[0] = first[bytes / 2] = first[bytes - 1] = content;
  };
  const CuResult launched = sim_.launch(kernel, stream);
  if (launched == CuResult::stream_capture_invalidated && faulting_.fired() > 0)
    return;  // a fault broke the capture
  must(launched, "launch");
}

// A free that fails has freed nothing; one that succeeds has, whatever else went wrong.
void FaultWorld::deallocate(std::size_t number, pool::Stream stream) {
  if (pool_ == nullptr || !allocations_[number]) return;
  const DevicePtr ptr = allocations_[number]->ptr;
  note_free(number, within([&] { return pool_->deallocate(ptr, stream); }));
}

void FaultWorld::deallocate_bound(std::size_t number, std::size_t stream) {
  context::BoundStream* const by_object = bound(stream);
  if (by_object == nullptr) return deallocate(number, streams_[stream]);
  if (!allocations_[number]) return;
  const DevicePtr ptr = allocations_[number]->ptr;
  note_free(number, within([&] { return by_object->deallocate(ptr); }));
}

// An error does not say which of them it was.
void FaultWorld::deallocate_many(const std::vector<std::size_t>& numbers, pool::Stream stream) {
  if (pool_ == nullptr) return;
  std::vector<DevicePtr> pointers;
  for (const std::size_t number : numbers)
    if (allocations_[number]) pointers.push_back(allocations_[number]->ptr);
  const bool are_freed =
      done(within([&] { return pool_->deallocate_many(pointers, stream); }), "deallocate_many");
  for (const std::size_t number : numbers) {
    if (!allocations_[number] || pool_->query(allocations_[number]->ptr).ok()) continue;
    allocations_[number].reset();
  }
  if (are_freed &&
      std::any_of(numbers.begin(), numbers.end(), [&](std::size_t n) { return allocations_[n]; }))
    fail("freed, and still live");
}

void FaultWorld::note_free(std::size_t number, const Result<void>& result) {
  const bool is_freed = done(result, "deallocate");
  if (!is_poisoned_ && is_freed == pool_->query(allocations_[number]->ptr).ok())
    fail(is_freed ? "freed, and still live" : "the free failed, but the memory is gone");
  if (is_freed) allocations_[number].reset();
}

void FaultWorld::deallocate_deferred(std::size_t number) {
  if (pool_ == nullptr || !allocations_[number]) return;
  {
    const InsidePool inside;
    pool_->deallocate_deferred(allocations_[number]->ptr);
  }
  allocations_[number].reset();
  ++deferred_;
}

void FaultWorld::record_use(std::size_t number, StreamHandle stream) {
  if (pool_ == nullptr || !allocations_[number]) return;
  done(within([&] { return pool_->record_use(allocations_[number]->ptr, stream); }), "record_use");
}

void FaultWorld::set_peer_access() {
  if (pool_ == nullptr) return;
  if (!peer_stream_) {
    driver::ContextHandle peer{};
    must(sim_.device_primary_ctx_retain(1, peer), "retain the peer's");
    must(sim_.ctx_set_current(peer), "set the peer's current");
    must(sim_.stream_create(StreamFlags::non_blocking, peer_stream_.emplace()),
         "create a stream of the peer");
    must(sim_.ctx_set_current(context_), "set current");
  }
  has_peer_access_ =
      done(within([&] { return pool_->sharing().set_peer_access(1); }), "set_peer_access") ||
      has_peer_access_;
}

// Behind everything that device 0 has queued, as a user would order it.
void FaultWorld::write_on_peer(std::size_t number) {
  if (!has_peer_access_ || !allocations_[number]) return;
  must(sim_.ctx_synchronize(), "wait before the peer writes");
  write(*allocations_[number], *peer_stream_);
}

std::size_t FaultWorld::share(std::size_t number) {
  shared_.emplace_back();
  if (pool_ == nullptr || !allocations_[number]) return shared_.size() - 1;
  const Live& live = *allocations_[number];
  const auto shared = within([&] { return pool_->sharing().share({live.ptr, live.bytes}); });
  // Where chunks are refused a file descriptor they are made without one, and cannot be shared.
  if (!done(shared, "share") && !is_poisoned_ && shared.error().code != ErrorCode::unsupported &&
      shared.error().code != ErrorCode::host_out_of_memory)
    fail("share: " + shared.error().message);
  if (shared)
    shared_.back() = {shared.value().share, live, pool_->query(live.ptr).value().usable, {}, 1, 0};
  return shared_.size() - 1;
}

void FaultWorld::lease(std::size_t number) {
  Shared& shared = shared_[number];
  if (!shared.is_held()) return;
  const auto leased = within([&] { return pool_->sharing().lease(shared.id, 0, shared.of.bytes); });
  if (!done(leased, "lease")) {
    if (!is_poisoned_ && leased.error().code != ErrorCode::host_out_of_memory)
      fail("lease: " + leased.error().message);
    return;
  }
  const driver::ChunkHandle first = leased.value().chunks.front().handle;
  if (shared.first_chunk != driver::ChunkHandle{} && shared.first_chunk != first)
    fail("another chunk than before");
  shared.first_chunk = first;
  ++shared.importers;
}

void FaultWorld::end_lease(std::size_t number, context::Holder holder) {
  Shared& shared = shared_[number];
  std::uint64_t& count = holder == context::Holder::handle ? shared.handles : shared.importers;
  if (count == 0) return;
  if (!is_poisoned_) {
    must(sim_.ctx_synchronize(), "wait for what was written");
    check_contents(shared.of);
  }
  --count;
  {
    const InsidePool inside;
    pool_->sharing().end_lease(shared.id, holder);
  }
  check_pool("end_lease");
}

void FaultWorld::end_leases() {
  for (std::size_t number = 0; number < shared_.size(); ++number) {
    while (shared_[number].handles > 0) end_lease(number, context::Holder::handle);
    while (shared_[number].importers > 0) end_lease(number, context::Holder::importer);
  }
}

void FaultWorld::trim(Bytes bytes_to_keep) {
  if (pool_ != nullptr) done(within([&] { return pool_->limits().trim(bytes_to_keep); }), "trim");
}

void FaultWorld::preallocate(Bytes bytes) {
  if (pool_ != nullptr)
    done(within([&] { return pool_->limits().preallocate(bytes); }), "preallocate");
}

void FaultWorld::synchronize() {
  if (pool_ != nullptr) done(within([&] { return pool_->streams().synchronize(); }), "synchronize");
}

void FaultWorld::look() {
  if (pool_ == nullptr) return;
  const auto dumped = within([&]() -> Result<std::size_t> {
    static_cast<void>(pool_->reports().statistics());
    const observe::PoolSnapshot snapshot = pool_->reports().snapshot();
    return observe::to_json(snapshot).size() + observe::to_text(snapshot).size() +
           pool_->reports().layout().blocks.size();
  });
  if (done(dumped, "dump") && dumped.value() == 0) fail("an empty dump");
}

void FaultWorld::record() {
  if (pool_ != nullptr)
    done(within([&] { return pool_->reports().start_recording("/dev/null"); }), "start_recording");
}

void FaultWorld::listen() {
  if (pool_ == nullptr) return;
  const report::EventKinds all = (report::EventKinds{1} << report::kEventKinds) - 1;
  done(within([&]() -> Result<std::uint64_t> {
         return pool_->reports().add_event_callback(
             all, [this](const report::ReportedEvent&) { ++events_; });
       }),
       "add_event_callback");
}

// After a reset that failed half-way the context may be gone or not.
void FaultWorld::reset() {
  if (pool_ == nullptr) return;
  done(within([&] { return pool_->streams().reset(); }), "reset");
  if (is_poisoned_) return;
  const driver::ContextId before = context_id_;
  bound_.clear();
  enter();
  if (context_id_ != before) forget_small();
}

void FaultWorld::reset_by_others() {
  sim_.run_until_idle();
  must(sim_.device_primary_ctx_reset(0), "reset");
  bound_.clear();
  enter();
  forget_small();
}

// Memory of the driver's own pool dies with its context.
void FaultWorld::forget_small() {
  if (config_.small == settings::SmallRequests::pool) return;
  for (std::optional<Live>& live : allocations_)
    if (live && live->bytes < config_.page_size.value_or(2 * kMiB)) live.reset();
}

void FaultWorld::capture(StreamHandle stream, Announced announced) {
  if (pool_ == nullptr) return;
  if (announced == Announced::yes)
    done(within([&] { return pool_->streams().capture_begin(); }), "capture_begin");
  must(sim_.stream_begin_capture(stream, driver::CaptureMode::global), "begin a capture");
  std::vector<std::size_t> inside = {allocate(8 * kMiB, stream)};
  deallocate(inside[0], stream);
  for (const Bytes bytes : {3 * kMiB, 2 * kMiB, 6 * kMiB})
    inside.push_back(allocate(bytes, stream));
  for (const std::size_t part : {1U, 2U}) deallocate(inside[part], stream);
  inside.push_back(allocate(8 * kMiB, stream));
  run_graph(stream, inside);
  if (announced == Announced::yes)
    done(within([&] { return pool_->streams().capture_end(); }), "capture_end");
}

void FaultWorld::capture_in(std::size_t arena, StreamHandle stream) {
  if (pool_ == nullptr) return;
  must(sim_.ctx_synchronize(), "wait");
  must(sim_.stream_begin_capture(stream, driver::CaptureMode::global), "begin a capture");
  std::vector<std::size_t> inside = {allocate_in(arena, 3000, stream),
                                     allocate_in(arena, 6 * kMiB, stream)};
  deallocate(inside[1], stream);
  inside.push_back(allocate_in(arena, 5 * kMiB, stream));
  run_graph(stream, inside);
  must(sim_.ctx_synchronize(), "wait");  // what the graph uses may serve its stream
}

// A capture that faults have broken ends without a graph; its memory is free then, too.
void FaultWorld::run_graph(StreamHandle stream, const std::vector<std::size_t>& inside) {
  driver::GraphHandle graph{};
  if (sim_.stream_end_capture(stream, graph) == CuResult::success) {
    driver::GraphExecHandle exec{};
    must(sim_.graph_instantiate(graph, exec), "instantiate");
    must(sim_.graph_launch(exec, streams_[2]), "launch a graph");
    must(sim_.graph_exec_destroy(exec), "destroy a graph");
    must(sim_.graph_destroy(graph), "destroy a graph");
  } else if (faulting_.fired() == 0) {
    fail("the pool broke a capture");
  }
  for (const std::size_t number : inside) {
    if (!allocations_[number]) continue;
    allocations_[number]->content = 0;  // written by launches only
    deallocate(number, std::nullopt);
  }
}

// --- what must hold

void FaultWorld::check_aftermath() {
  if (pool_ != nullptr && !is_poisoned_) {
    allocate(2 * kMiB, streams_[1]);  // notices a broken context, if nobody has yet
    check_contents();
  }
  if (pool_ == nullptr) return;
  if (is_poisoned_) return check_poison();
  faulting_.clear_plan();
  resume_all();
  check_contents();
  check_use();
  if (sim_.hazard_count() > 0) fail("hazard: " + sim_.hazards().front().describe());
}

void FaultWorld::check_contents() {
  if (sim_.ctx_synchronize() != CuResult::success) return fail("the user's context is broken");
  if (peer_stream_) must(sim_.stream_synchronize(*peer_stream_), "wait for the peer");
  for (const std::optional<Live>& live : allocations_)
    if (live) check_contents(*live);
}

void FaultWorld::check_contents(const Live& live) {
  if (live.content == 0 || is_suspended(live)) return;
  for (const Bytes offset : {Bytes{0}, live.bytes / 2, live.bytes - 1}) {
    std::uint8_t read = 0;
    must(sim_.memcpy_device_to_host(&read, live.ptr + offset, 1), "read back");
    if (read != live.content) fail("the contents of live or leased memory changed");
  }
}

void FaultWorld::check_poison() {
  faulting_.clear_plan();
  const std::uint64_t calls = recorder_.total_count();
  const auto is_poison = [](const auto& result) {
    return !result && result.error().code == ErrorCode::poisoned;
  };
  if (!is_poison(pool_->allocate({2 * kMiB, 0, streams_[1]}))) fail("poisoned, but it allocates");
  if (!is_poison(pool_->allocate({64, 0, std::nullopt}))) fail("poisoned, but it allocates little");
  for (const std::optional<Live>& live : allocations_)
    if (live && !is_poison(pool_->deallocate(live->ptr, streams_[1])))
      fail("poisoned, but it frees");
  if (!is_poison(pool_->streams().synchronize()) || !is_poison(pool_->limits().trim(0)) ||
      !is_poison(pool_->streams().reset()))
    fail("poisoned, but it works");
  if (!is_poison(pool_->limits().preallocate(kGiB)) || !is_poison(pool_->limits().memory_info()))
    fail("poisoned, but it works");
  end_leases();
  check_pool("poison");
  static_cast<void>(pool_->reports().statistics());
  if (recorder_.total_count() != calls) fail("driver calls after poison");
}

// Everything works, and after the last free nothing is live or refused any more.
void FaultWorld::check_use() {
  end_leases();
  for (std::size_t number = 0; number < allocations_.size(); ++number) {
    if (allocations_[number]) deallocate(number, std::nullopt);
  }
  for (std::size_t arena = 0; arena < arenas_.size(); ++arena) release_arena(arena);
  const std::size_t last = allocate(16 * kMiB, streams_[1]);
  if (!allocations_[last]) fail("it does not allocate, with all memory free and no more faults");
  deallocate(last, streams_[1]);
  const auto synchronized = pool_->streams().synchronize();
  if (!synchronized) fail("it does not synchronize any more: " + synchronized.error().message);
  if (!done(pool_->limits().trim(0), "trim")) fail("it does not trim any more");
  const observe::Statistics now = pool_->reports().statistics();
  if (now.live_allocations != 0)
    fail(fmt::format("{} allocations live after all were freed", now.live_allocations));
  if (now.quarantined_bytes != 0)
    fail("memory is quarantined although the driver takes it back now");
  if (now.zombie_bytes != 0 || now.pending_bytes != 0)
    fail("zombies or pending memory after synchronize and trim");
  if (now.mapped_bytes != 0)
    fail(fmt::format("{} bytes are mapped after trim(0)", now.mapped_bytes));
}

void FaultWorld::close(Left allowed) {
  const std::uint64_t calls = recorder_.total_count();
  bound_.clear();
  pool_.reset();
  if (is_poisoned_ && recorder_.total_count() != calls)
    fail("driver calls of a poisoned pool that ends");
  if (is_poisoned_) return;
  const driver::sim::Census left = sim_.census();
  const std::uint64_t held =
      left.chunks + left.mappings + left.reservations + left.pool_allocations + left.events;
  if (allowed == Left::nothing && held != 0)
    fail(fmt::format(
        "left: {} chunks, {} mappings, {} reservations, {} pool allocations, {} events",
        left.chunks, left.mappings, left.reservations, left.pool_allocations, left.events));
}

}  // namespace vpmm::fault
