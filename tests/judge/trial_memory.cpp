// judge: allocating, using and freeing by the rules.
#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "judge/trial.hpp"

namespace vpmm::judge {

using driver::sim::MemoryAccess;
using State = Reference::State;

namespace {

constexpr Bytes kArenaAlignment = 512;
constexpr std::uint32_t kTag = 7;

// First, middle and last byte: all of a large allocation would fill the memory of the host.
std::array<std::uint8_t*, 3> samples(DevicePtr begin, Bytes bytes) {
  auto* first = reinterpret_cast<std::uint8_t*>(to_integer(begin));
  return {first, first + bytes / 2, first + bytes - 1};
}

}  // namespace

// --- allocating

Trial::Memory* Trial::find_memory(std::uint64_t id) {
  const auto found = memory_.find(id);
  return found == memory_.end() ? nullptr : &found->second;
}

Trial::Arena* Trial::find_arena(std::uint64_t id) {
  const auto found = arenas_.find(id);
  return found == arenas_.end() ? nullptr : &found->second;
}

// Memory of the driver's own pool.
bool Trial::may_be_lost(const Memory& memory) const {
  const bool is_virtual = setting_.has_vmm != 0 && config_.pool_enabled;
  const bool is_below_page = memory.bytes < page();
  return !is_virtual || (is_below_page && memory.arena == 0 &&
                         config_.small == settings::SmallRequests::stream_ordered);
}

// `stream` null: none is named.
Result<DevicePtr> Trial::request(const Operation& o, Stream* stream) {
  const std::size_t number = pool_number(o);
  const pool::Stream named = stream != nullptr ? pool::Stream(stream->handle) : std::nullopt;
  if (flaw_.refuses()) return Error{ErrorCode::out_of_memory, "a flaw"};
  pool::Request request{o.bytes, o.alignment, named};
  request.one_chunk = (o.flag & kOneChunk) != 0 && setting_.has_vmm != 0 && config_.pool_enabled;
  request.tag = (o.flag & kTagged) != 0 ? kTag : 0;
  if (o.arena == 0) {
    context::BoundStream* const by_object =
        stream != nullptr && o.flag == 0 ? bound(*stream, number) : nullptr;
    const auto result = by_object != nullptr ? by_object->allocate(o.bytes, o.alignment)
                                             : pool(number).allocate(request);
    return flaw_.allocated(pool(number), result);
  }
  request.arena = find_arena(o.arena)->id;
  request.one_chunk = false;
  return pool(number).allocate(request);
}

bool Trial::is_new(std::uint64_t id) const {
  return memory_.count(id) == 0 && freed_.count(id) == 0 && graphs_.count(id) == 0;
}

void Trial::on_thread_of(const Operation& o, const Stream* stream,
                         const std::function<void()>& work) {
  baton_.on(stream != nullptr ? stream->thread : o.id % baton_.size(), work);
}

// A request or a free of a capture pins the arena. Its memory is for captures alone from then on,
// for the program would have to order their uses.
void Trial::leave_to_graphs(Arena& arena) {
  arena.is_for_graphs = true;
  reference_.pin_arena(static_cast<std::uint64_t>(arena.id));
}

bool Trial::may_allocate_in(const Operation& o, const Stream* stream) {
  const Arena* const arena = find_arena(o.arena);
  if (arena == nullptr || stream == nullptr || arena->pool != pool_number(o)) return false;
  return stream->capture || (!arena->is_for_graphs && is_usable(*stream));
}

void Trial::allocate(const Operation& o) {
  Stream* const stream = find(o.stream);
  if (o.bytes == 0 || !is_new(o.id) || (o.stream != kNoStream && stream == nullptr)) return;
  if (o.arena != 0 && !may_allocate_in(o, stream)) return;
  if (Arena* const arena = find_arena(o.arena); arena != nullptr && stream->capture)
    leave_to_graphs(*arena);
  Result<DevicePtr> result = DevicePtr{};
  on_thread_of(o, stream, [&] { result = request(o, stream); });
  if (result) return take_over(o.id, o, stream, result.value(), o.bytes);
  refuse(o, round_up(o.bytes, page()), result.error(), 0);
}

// `made_before`: that many others were made in the same call, and freed.
void Trial::refuse(const Operation& o, Bytes whole_pages, const Error& error, Bytes made_before) {
  Reference::Refused refused{
      pool_number(o), whole_pages, !may_seem_capturing(pool_number(o)), {}, 0};
  for (std::size_t number = 0; number < pools_.size(); ++number)
    refused.chunks.push_back(pool(number).reports().layout().chunks);
  for (const AddressRange& chunk : refused.chunks[refused.pool])
    refused.trapped_before = std::max(refused.trapped_before, 2 * made_before * chunk.size);
  reference_.count_refusal(refused.pool);
  const std::string wrong = reference_.refuse(refused, error);
  if (!wrong.empty()) fail(wrong);
}

void Trial::try_allocate(const Operation& o) {
  Stream* const stream = find(o.stream);
  if (o.bytes == 0 || !is_new(o.id) || (o.stream != kNoStream && stream == nullptr)) return;
  DevicePtr ptr{};
  context::Context& from = pool(pool_number(o));
  const observe::Statistics before = from.reports().statistics();
  on_thread_of(o, stream, [&] {
    ptr = stream != nullptr ? from.allocate_if_ready(o.bytes, 0, stream->handle)
                            : from.allocate_if_ready(o.bytes, 0);
  });
  check_prompt(before, from.reports().statistics());
  if (!is_null(ptr)) take_over(o.id, o, stream, ptr, o.bytes);
}

// A call that only tries neither maps nor waits.
void Trial::check_prompt(const observe::Statistics& before, const observe::Statistics& after) {
  const std::uint64_t calls = after.driver_calls - before.driver_calls;
  const std::uint64_t waits = after.host_waits + after.pauses - before.host_waits - before.pauses;
  if (calls + waits != 0)
    fail(fmt::format("try: the call made {} calls for memory and waited {} times", calls, waits));
}

void Trial::allocate_many(const Operation& o) {
  Stream* const stream = find(o.stream);
  std::vector<Bytes> sizes;
  Bytes whole_pages = 0;
  for (std::uint64_t i = 0; i < o.count; ++i) {
    if (!is_new(o.id + i)) return;
    sizes.push_back(std::max<Bytes>(1, o.bytes >> i % 3));
    whole_pages += round_up(sizes.back(), page());
  }
  if (sizes.empty() || (o.stream != kNoStream && stream == nullptr)) return;
  std::vector<DevicePtr> made(sizes.size());
  Result<void> result;
  on_thread_of(o, stream, [&] {
    const pool::Stream named = stream != nullptr ? pool::Stream(stream->handle) : std::nullopt;
    result = pool(pool_number(o)).allocate_many(sizes, named, made);
  });
  for (std::size_t i = 0; result && i < sizes.size(); ++i)
    take_over(o.id + i, o, stream, made[i], sizes[i]);
  if (result) return;
  if (std::any_of(made.begin(), made.end(), [](DevicePtr ptr) { return !is_null(ptr); }))
    fail("error: some of many allocations are there though they failed");
  reference_.undo_many(pool_number(o),
                       stream != nullptr && stream->capture ? stream->capture->graph : 0,
                       flaw_.statistics(pool(pool_number(o))));
  refuse(o, whole_pages, result.error(), sizes.size() - 1);
}

void Trial::take_over(std::uint64_t id, const Operation& o, Stream* stream, DevicePtr ptr,
                      Bytes bytes) {
  Memory made{pool_number(o), ptr, bytes, 0, {}, true, {}, false, 0, o.arena};
  Stream* const user = stream != nullptr ? stream : find(o.id % streams_.size());
  // The pool waits for no stream that captures, or may not be used because another does.
  if (stream != nullptr && is_usable(*stream)) {
    made.is_any_stream = false;
    made.covered.insert(stream->key);
  }
  if (user != nullptr) made.home = user->key;
  if (stream != nullptr && stream->capture) made.graph = stream->capture->graph;
  if (Arena* const arena = find_arena(o.arena)) {
    arena->users.insert(made.home);
    if (made.graph != 0) graphs_[made.graph].arenas.insert(o.arena);
  }
  Bytes usual = o.arena != 0 ? kArenaAlignment : 0;
  if (o.arena == 0 && bytes >= page() && !may_be_lost(made))
    usual = config_.page_chunks ? page() : std::max(64 * kKiB, page() / 32);
  const std::string wrong = reference_.hand_out({id, made.pool, {ptr, bytes}, made.graph, o.arena},
                                                std::max(o.alignment, usual));
  if (!wrong.empty()) fail(wrong);
  Memory& memory = memory_[id] = std::move(made);
  if (const Stream* on = failure_.empty() ? work_stream(memory) : nullptr) write_on(memory, *on);
}

// --- using

// Ordinary memory is not used on a capturing stream: the graph would use it at every launch.
Trial::Stream* Trial::work_stream(const Memory& memory) {
  Stream* stream = find_key(memory.home);
  if (stream == nullptr) return nullptr;
  if (memory.graph != 0)
    return stream->capture && stream->capture->graph == memory.graph ? stream : nullptr;
  return is_usable(*stream) ? stream : nullptr;
}

void Trial::launch(const Memory& memory, driver::sim::Kernel kernel, const Stream& stream) {
  if (Arena* const arena = find_arena(memory.arena)) arena->users.insert(stream.key);
  on(stream, [&] { expect(sim_.launch(kernel, stream.handle), "launch"); });
}

void Trial::write_on(Memory& memory, const Stream& stream) {
  if (memory.is_shared) return;
  const std::uint8_t value = next_content_++;
  memory.content = value;
  driver::sim::Kernel kernel{
      "writer", 2000, {{{memory.ptr, memory.bytes}, MemoryAccess::Kind::write}}, {}};
  kernel.body = [ptr = memory.ptr, bytes = memory.bytes, value] {
    for (std::uint8_t* byte : samples(ptr, bytes)) *byte = value;
  };
  launch(memory, kernel, stream);
}

void Trial::read_on(const Memory& memory, const Stream& stream) {
  if (!memory.content) return;
  driver::sim::Kernel kernel{
      "reader", 2000, {{{memory.ptr, memory.bytes}, MemoryAccess::Kind::read}}, {}};
  kernel.body = [this, ptr = memory.ptr, bytes = memory.bytes, content = *memory.content] {
    const auto bytes_read = samples(ptr, bytes);
    const bool is_right =
        std::all_of(bytes_read.begin(), bytes_read.end(),
                    [content](const std::uint8_t* byte) { return *byte == content; });
    misread_ += is_right ? 0 : 1;
  };
  launch(memory, kernel, stream);
}

void Trial::write(const Operation& o) {
  Memory* const memory = find_memory(o.id);
  const Stream* const stream = memory != nullptr ? work_stream(*memory) : nullptr;
  if (stream != nullptr) write_on(*memory, *stream);
}

void Trial::read(const Operation& o) {
  const Memory* const memory = find_memory(o.id);
  const Stream* const stream = memory != nullptr ? work_stream(*memory) : nullptr;
  if (stream != nullptr) read_on(*memory, *stream);
}

void Trial::read_on(const Operation& o) {
  Memory* const memory = find_memory(o.id);
  const Stream* const stream = find(o.stream);
  const Stream* const home =
      memory != nullptr && memory->graph == 0 ? work_stream(*memory) : nullptr;
  if (home == nullptr || stream == nullptr || !is_usable(*stream) || stream == home) return;
  wait(*stream, *home);
  read_on(*memory, *stream);
  on(*stream, [&] {
    expect(flaw_.record_use(pool(memory->pool), memory->ptr, stream->handle), "record_use");
  });
  memory->covered.insert(stream->key);
  memory->is_shared = true;
}

void Trial::move(const Operation& o) {
  Memory* const memory = find_memory(o.id);
  const Stream* const stream = find(o.stream);
  const Stream* const home =
      memory != nullptr && memory->graph == 0 ? work_stream(*memory) : nullptr;
  if (home == nullptr || stream == nullptr || !is_usable(*stream)) return;
  wait(*stream, *home);
  memory->home = stream->key;
  if (Arena* const arena = find_arena(memory->arena)) arena->users.insert(stream->key);
  if (o.flag == 0) return;
  on(*stream, [&] {
    expect(flaw_.record_use(pool(memory->pool), memory->ptr, stream->handle), "record_use");
  });
  memory->covered.insert(stream->key);
}

// --- freeing

void Trial::note_freed(std::uint64_t id, State state, const Stream* stream) {
  const Memory& memory = memory_[id];
  freed_[id] = {memory.pool, memory.ptr};
  reference_.give_back(id, state,
                       stream != nullptr && stream->capture ? stream->capture->graph : 0);
  memory_.erase(id);
}

void Trial::free_on(std::uint64_t id, Memory& memory, Stream& stream) {
  if (Arena* const arena = find_arena(memory.arena); arena != nullptr && stream.capture)
    leave_to_graphs(*arena);
  context::Context& from = pool(memory.pool);
  context::BoundStream* const by_object = bound(stream, memory.pool);
  on(stream, [&] {
    expect(by_object != nullptr ? by_object->deallocate(memory.ptr)
                                : flaw_.deallocate(from, memory.ptr, stream.handle),
           "deallocate");
  });
  note_freed(id, State::pending, &stream);
}

void Trial::free(const Operation& o) {
  Memory* const memory = find_memory(o.id);
  Stream* const home = memory != nullptr ? find_key(memory->home) : nullptr;
  if (home == nullptr) return;
  if (const Stream* const stream = work_stream(*memory)) read_on(*memory, *stream);
  free_on(o.id, *memory, *home);
}

void Trial::try_free(const Operation& o) {
  Memory* const memory = find_memory(o.id);
  Stream* const home = memory != nullptr ? find_key(memory->home) : nullptr;
  if (home == nullptr) return;
  if (const Stream* const stream = work_stream(*memory)) read_on(*memory, *stream);
  bool is_freed = false;
  context::Context& from = pool(memory->pool);
  const observe::Statistics before = from.reports().statistics();
  on(*home, [&] { is_freed = from.deallocate_if_ready(memory->ptr, home->handle); });
  check_prompt(before, from.reports().statistics());
  if (is_freed) note_freed(o.id, State::pending, home);
}

// Without order the pool itself must wait for the stream that the memory is used on, so that stream
// must be covered. True: it is, or it is ordered before `stream` now.
bool Trial::may_free_on(Memory& memory, const Stream& stream, bool is_ordered) {
  const Stream* const home = work_stream(memory);
  if (home != nullptr) read_on(memory, *home);
  const bool needs_no_order = memory.graph != 0 || memory.covered.count(memory.home) != 0;
  const bool can_order = home != nullptr && memory.graph == 0 && is_usable(stream);
  if (!needs_no_order && !can_order) return false;
  if (can_order && (is_ordered || !needs_no_order)) wait(stream, *home);
  return true;
}

void Trial::free_on(const Operation& o) {
  Memory* const memory = find_memory(o.id);
  Stream* const stream = find(o.stream);
  if (memory == nullptr || stream == nullptr || !may_free_on(*memory, *stream, o.flag != 0)) return;
  free_on(o.id, *memory, *stream);
}

void Trial::free_many(const Operation& o) {
  const Stream* const stream = find(o.stream);
  const Memory* const first = find_memory(o.id);
  if (stream == nullptr || first == nullptr) return;
  const std::size_t number = first->pool;
  std::vector<DevicePtr> freed;
  for (std::uint64_t id = o.id; id < o.id + o.count; ++id) {
    Memory* const memory = find_memory(id);
    if (memory == nullptr || memory->pool != number || memory->arena != 0 ||
        !may_free_on(*memory, *stream, false))
      continue;
    freed.push_back(memory->ptr);
    note_freed(id, State::pending, stream);
  }
  on(*stream,
     [&] { expect(pool(number).deallocate_many(freed, stream->handle), "deallocate_many"); });
}

// Where VPMM_ANY_STREAM is legacy, only the work of streams that the legacy stream waits for ends
// before the memory is used again, and that of streams named by record_use.
bool Trial::may_free_unnamed(const Memory& memory) {
  if (memory.graph != 0) return true;
  if (setting_.frees_on_allocating != 0 && !memory.is_any_stream)
    return memory.covered.count(memory.home) != 0;
  if (config_.any_stream != settings::AnyStreamOrder::legacy) return true;
  const Stream* const home = find_key(memory.home);
  return home != nullptr && (home == &streams_.front() || home->is_blocking);
}

void Trial::free_unnamed(std::uint64_t id, Memory& memory) {
  expect(flaw_.deallocate(pool(memory.pool), memory.ptr, std::nullopt), "deallocate");
  note_freed(id, State::pending, nullptr);
}

void Trial::free_any(const Operation& o) {
  Memory* const memory = find_memory(o.id);
  if (memory == nullptr || !may_free_unnamed(*memory)) return;
  if (const Stream* const stream = work_stream(*memory)) read_on(*memory, *stream);
  on_thread_of(o, nullptr, [&] { free_unnamed(o.id, *memory); });
}

void Trial::free_deferred(const Operation& o) {
  Memory* const memory = find_memory(o.id);
  if (memory == nullptr || !may_free_unnamed(*memory)) return;
  if (const Stream* const stream = work_stream(*memory)) read_on(*memory, *stream);
  on_thread_of(o, nullptr, [&] { pool(memory->pool).deallocate_deferred(memory->ptr); });
  note_freed(o.id, State::deferred, nullptr);
}

bool Trial::frees_one(std::size_t number) {
  for (auto& [id, memory] : memory_) {
    if (memory.pool != number || !may_free_unnamed(memory)) continue;
    free_unnamed(id, memory);
    return true;
  }
  return false;
}

void Trial::free_inside(const Operation& o) {
  const Memory* const memory = find_memory(o.id);
  if (memory == nullptr) return;
  const auto result = pool(memory->pool).deallocate(memory->ptr + 1, std::nullopt);
  if (result || result.error().code != ErrorCode::invalid_pointer)
    fail("mistake: a pointer inside memory was freed");
}

void Trial::free_again(const Operation& o) {
  const auto freed = freed_.find(o.id);
  if (freed == freed_.end()) return;
  const auto [number, ptr] = freed->second;
  if (pool(number).query(ptr).ok()) return;  // handed out again
  const auto result = pool(number).deallocate(ptr, std::nullopt);
  if (result || result.error().code != ErrorCode::invalid_pointer)
    fail("mistake: memory was freed twice");
}

}  // namespace vpmm::judge
