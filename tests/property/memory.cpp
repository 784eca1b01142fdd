// SPDX-License-Identifier: Apache-2.0
// property tests: allocating, using and freeing by the rules.
#include <unistd.h>

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>

#include "property/world.hpp"

namespace vpmm::property {

using driver::sim::MemoryAccess;

namespace {

constexpr std::size_t kMostFreed = 32;

driver::sim::Kernel kernel_on(AddressRange range, MemoryAccess::Kind kind) {
  driver::sim::Kernel kernel;
  kernel.name = kind == MemoryAccess::Kind::write ? "writer" : "reader";
  kernel.duration_ns = 2000;
  kernel.accesses = {{range, kind}};
  return kernel;
}

}  // namespace

std::array<std::uint8_t*, 3> samples(DevicePtr begin, Bytes bytes) {
  auto* first = reinterpret_cast<std::uint8_t*>(to_integer(begin));
  return {first, first + bytes / 2, first + bytes - 1};
}

// --- allocating

void World::operator()(const Allocate& o) {
  if (allocations_.size() >= kMostAllocations || o.bytes == 0) return;
  const std::size_t number = o.device % devices_.size();
  Device& at = devices_[number];
  const bool is_named = o.stream != kAnyStream;
  Stream& stream =
      at.streams[is_named ? o.stream % at.streams.size() : o.bytes % at.streams.size()];
  context::BoundStream* const by_object = is_named ? bound(stream) : nullptr;
  if (by_object != nullptr)
    say("CALL(vpmm_bound_allocate(b[{}], {}u, {}u, &p[{}]));", stream.key, o.bytes, o.alignment,
        next_number_);
  else
    say("{}", c_request(number, o.bytes, o.alignment, is_named ? &stream : nullptr));
  const auto result = call(Bears::faults, [&]() -> Result<DevicePtr> {
    if (flaw_.refuses()) return Error{ErrorCode::out_of_memory, "a flaw"};
    const pool::Stream named = is_named ? pool::Stream(stream.handle) : std::nullopt;
    return flaw_.allocated(*at.pool, by_object != nullptr
                                         ? by_object->allocate(o.bytes, o.alignment)
                                         : at.pool->allocate({o.bytes, o.alignment, named}));
  });
  if (!result && may_have_failed(result.error(), "allocate")) return;
  if (!result) return judge_request(number, result.error(), {round_up(o.bytes, page()), 0});
  const Bytes grain = scene_.config.page_chunks ? page() : std::max(64 * kKiB, page() / 32);
  const Bytes promised =
      std::max(o.alignment, o.bytes >= page() && has_pool() && !guards() ? grain : 0);
  take_over(number, stream, is_named, {result.value(), o.bytes, promised, 0});
}

std::string World::c_request(std::size_t number, Bytes bytes, Bytes alignment,
                             const Stream* stream) {
  if (stream == nullptr)
    return fmt::format("CALL(vpmm_allocate_any_stream(pool[{}], {}u, {}u, &p[{}]));", number, bytes,
                       alignment, next_number_);
  if (alignment == 0)
    return fmt::format("CALL(vpmm_allocate(pool[{}], {}u, s[{}], &p[{}]));", number, bytes,
                       stream->key, next_number_);
  return fmt::format("CALL(vpmm_allocate_aligned(pool[{}], {}u, {}u, s[{}], &p[{}]));", number,
                     bytes, alignment, stream->key, next_number_);
}

void World::operator()(const AllocateMany& o) {
  const std::size_t number = o.device % devices_.size();
  Device& at = devices_[number];
  const bool is_named = o.stream != kAnyStream;
  const Stream& stream =
      at.streams[is_named ? o.stream % at.streams.size() : o.bytes % at.streams.size()];
  std::vector<Bytes> sizes;
  Bytes whole_pages = 0;
  for (std::size_t i = 0; i < o.count && allocations_.size() + i < kMostAllocations; ++i) {
    sizes.push_back(std::max<Bytes>(1, o.bytes >> i % 3));
    whole_pages += round_up(sizes.back(), page());
  }
  std::vector<DevicePtr> made(sizes.size());
  std::string list;
  for (const Bytes each : sizes) list += fmt::format("{}u,", each);
  if (!sizes.empty() && is_named)
    say("CALL(vpmm_allocate_many(pool[{}], (size_t[]){{{}}}, {}, s[{}], &p[{}]));", number, list,
        sizes.size(), stream.key, next_number_);
  else if (!sizes.empty())
    say("stage_allocate_many_any_stream(pool[{}], (size_t[]){{{}}}, {}, &p[{}]);", number, list,
        sizes.size(), next_number_);
  const auto result = call(Bears::faults, [&] {
    return at.pool->allocate_many(sizes, is_named ? pool::Stream(stream.handle) : std::nullopt,
                                  made);
  });
  if (!result) {
    if (std::any_of(made.begin(), made.end(), [](DevicePtr ptr) { return !is_null(ptr); }))
      fail("some of many allocations are there though they failed");
    const bool is_captured = is_named && stream.capture;
    using Undo = judge::Reference::Undo;
    reference(number).undo_many(seat_of(number), is_captured ? stream.capture->key : 0,
                                struck_ ? Undo::perhaps_deferred : Undo::at_once,
                                at.pool->reports().statistics());
    if (may_have_failed(result.error(), "allocate_many")) return;
    return judge_request(number, result.error(), {whole_pages, sizes.size() - 1});
  }
  for (std::size_t i = 0; i < sizes.size(); ++i)
    take_over(number, stream, is_named, {made[i], sizes[i], 0, 0});
}

void World::take_over(std::size_t number, const Stream& stream, bool is_named, const Made& what) {
  // A stream that captures, or may not be used because another does, is nobody the pool will wait
  // for.
  const bool is_tenant = is_named && is_usable(devices_[number], stream);
  Allocation made{next_number_++, number, what.ptr, what.bytes, stream.key, {},
                  !is_tenant,     {},     false,    0,          what.arena, {}};
  if (is_tenant) made.covered.insert(stream.key);
  if (is_named && stream.capture) made.capture = stream.capture->key;
  const std::string wrong = reference(number).hand_out(
      {made.number, seat_of(number), {what.ptr, what.bytes}, made.capture.value_or(0), what.arena},
      what.alignment);
  if (!wrong.empty()) fail(wrong);
  if (Arena* const arena = find_arena(what.arena)) arena->users.insert(stream.key);
  if (guards()) note_guarded(made);
  allocations_.push_back(made);
  if (const Stream* on = work_stream(made)) write(allocations_.back(), *on);
}

bool World::has_drivers_pool() const {
  if (!scene_.sim.memory_pools_supported) return false;
  return !has_pool() || scene_.config.small == settings::SmallRequests::stream_ordered;
}

void World::forget(const Allocation& allocation) {
  allocations_.erase(allocations_.begin() + (&allocation - allocations_.data()));
}

// --- using

// Ordinary memory is not used on a capturing stream: the graph would use it at every launch.
World::Stream* World::work_stream(const Allocation& allocation) {
  Device& at = devices_[allocation.device];
  Stream* stream = find_stream(at, allocation.home);
  if (stream == nullptr || is_asleep(allocation)) return nullptr;
  if (allocation.capture)
    return stream->capture && stream->capture->key == *allocation.capture ? stream : nullptr;
  return is_usable(at, *stream) ? stream : nullptr;
}

void World::write(Allocation& allocation, const Stream& stream) {
  if (allocation.is_shared) return;
  if (Arena* const arena = find_arena(allocation.arena)) arena->users.insert(stream.key);
  const std::uint8_t value = next_content_++;
  allocation.content = value;
  make_current(allocation.device);
  acted_ = true;
  say("stage_write({}, p[{}], {}u, {}, s[{}]);", allocation.device, allocation.number,
      allocation.bytes, value, stream.key);
  if (allocation.bytes <= 4 * kKiB) {
    expect(sim_.memset_d8_async(allocation.ptr, value, allocation.bytes, stream.handle), "fill");
    return;
  }
  driver::sim::Kernel kernel =
      kernel_on({allocation.ptr, allocation.bytes}, MemoryAccess::Kind::write);
  kernel.body = [ptr = allocation.ptr, bytes = allocation.bytes, value] {
    for (std::uint8_t* byte : samples(ptr, bytes)) *byte = value;
  };
  launch(kernel, stream.handle);
}

void World::read(const Allocation& allocation, const Stream& stream) {
  if (!allocation.content) return;
  if (Arena* const arena = find_arena(allocation.arena)) arena->users.insert(stream.key);
  make_current(allocation.device);
  const AddressRange whole{allocation.ptr, allocation.bytes};
  say("stage_read({}, p[{}], {}u, {}, s[{}]);", allocation.device, allocation.number,
      allocation.bytes, *allocation.content, stream.key);
  read(whole, whole, *allocation.content, stream.handle);
}

void World::read(AddressRange whole, AddressRange part, std::uint8_t content,
                 driver::StreamHandle stream) {
  driver::sim::Kernel kernel = kernel_on(part, MemoryAccess::Kind::read);
  kernel.body = [this, whole, part, content] {
    for (const std::uint8_t* byte : samples(whole.begin, whole.size)) {
      const DevicePtr at{reinterpret_cast<std::uint64_t>(byte)};
      misread_ += part.contains(at) && *byte != content ? 1 : 0;
    }
  };
  launch(kernel, stream);
}

void World::operator()(const Write& o) {
  Allocation* allocation = pick(o.allocation);
  if (allocation == nullptr) return;
  if (const Stream* stream = work_stream(*allocation)) write(*allocation, *stream);
}

void World::operator()(const Read& o) {
  const Allocation* allocation = pick(o.allocation);
  if (allocation == nullptr) return;
  if (const Stream* stream = work_stream(*allocation)) read(*allocation, *stream);
}

void World::record_use(const Allocation& allocation, const Stream& stream) {
  context::Context& pool = *devices_[allocation.device].pool;
  say("CALL(vpmm_record_use(pool[{}], p[{}], s[{}]));", allocation.device, allocation.number,
      stream.key);
  expect(
      call(Bears::nothing, [&] { return flaw_.record_use(pool, allocation.ptr, stream.handle); }),
      "record_use");
}

void World::operator()(const ReadElsewhere& o) {
  Allocation* allocation = pick(o.allocation);
  if (allocation == nullptr || allocation->capture) return;
  Device& at = devices_[allocation->device];
  const Stream* home = work_stream(*allocation);
  const Stream& stream = at.streams[o.stream % at.streams.size()];
  if (home == nullptr || !is_usable(at, stream) || stream.key == home->key) return;
  make_current(allocation->device);
  order(*home, stream);
  read(*allocation, stream);
  if (watch_.defect == Defect::crashes) std::abort();
  while (watch_.defect == Defect::hangs) usleep(1000);
  if (watch_.defect != Defect::uses_untold) record_use(*allocation, stream);
  allocation->covered.insert(stream.key);
  allocation->is_shared = true;
}

void World::operator()(const Move& o) {
  Allocation* allocation = pick(o.allocation);
  if (allocation == nullptr || allocation->capture) return;
  Device& at = devices_[allocation->device];
  const Stream* home = work_stream(*allocation);
  const Stream& stream = at.streams[o.stream % at.streams.size()];
  if (home == nullptr || !is_usable(at, stream)) return;
  make_current(allocation->device);
  order(*home, stream);
  if (Arena* const arena = find_arena(allocation->arena)) arena->users.insert(stream.key);
  allocation->home = stream.key;
  if (!o.is_recorded) return;
  record_use(*allocation, stream);
  allocation->covered.insert(stream.key);
}

// --- freeing

Result<void> World::free_on(Device& at, DevicePtr ptr, Stream& stream) {
  context::BoundStream* const by_object = bound(stream);
  return call(Bears::faults, [&] {
    return by_object != nullptr ? by_object->deallocate(ptr)
                                : flaw_.deallocate(*at.pool, ptr, stream.handle);
  });
}

// The memory lives on if a fault struck, and is gone otherwise.
bool World::is_freed_on(const Allocation& allocation, Stream& stream) {
  Device& at = devices_[allocation.device];
  const bool is_bound = stream.bound != nullptr && stream.bound_calls % 3 != 0;
  if (is_bound)
    say("CALL(vpmm_bound_deallocate(b[{}], p[{}]));", stream.key, allocation.number);
  else
    say("CALL(vpmm_deallocate(pool[{}], p[{}], s[{}]));", allocation.device, allocation.number,
        stream.key);
  if (stream.capture) reference(allocation.device).pin_around(allocation.ptr);
  const auto result = free_on(at, allocation.ptr, stream);
  if (result || !may_have_failed(result.error(), "deallocate")) return expect(result, "deallocate");
  if (!at.pool->query(allocation.ptr)) fail("the free failed, but the memory is gone");
  // To the hazard checker the allocation begins anew on the stream of the free.
  const Stream* const home = find_stream(at, allocation.home);
  if (home != nullptr && home->key != stream.key) order(stream, *home);
  return false;
}

// `stream`: of the free; null: none is named.
void World::note_freed(const Allocation& allocation, Shared::Freed how, const Stream* stream) {
  judge::Reference& reference = this->reference(allocation.device);
  if (Arena* const arena = find_arena(allocation.arena);
      arena != nullptr && stream != nullptr && stream->capture)
    arena->is_for_graphs = true;
  if (Shared* const shared = find_shared(allocation)) {
    shared->freed = how;
    if (shared->is_held()) reference.keep(allocation.number);
  }
  const bool is_deferred = how == Shared::Freed::deferred;
  using When = Guarding::When;
  if (allocation.is_guarded)
    note_freed_guarded(allocation, is_deferred                            ? When::deferred
                                   : stream != nullptr && stream->capture ? When::captured
                                                                          : When::now);
  reference.give_back(
      allocation.number,
      is_deferred ? judge::Reference::State::deferred : judge::Reference::State::pending,
      stream != nullptr && stream->capture ? stream->capture->key : 0);
  if (is_deferred) return;
  freed_.emplace_back(allocation.device, allocation.ptr);
  if (freed_.size() > kMostFreed) freed_.pop_front();
}

void World::operator()(const Free& o) {
  Allocation* allocation = pick(o.allocation);
  if (allocation == nullptr) return;
  Stream* home = find_stream(devices_[allocation->device], allocation->home);
  if (home == nullptr) return;
  if (const Stream* stream = work_stream(*allocation)) read(*allocation, *stream);
  if (!is_freed_on(*allocation, *home)) return;
  note_freed(*allocation, Shared::Freed::yes, home);
  forget(*allocation);
}

// Without order the pool itself must wait for the stream that the memory is used on, so that stream
// must be covered. True: it is, or it is ordered before `stream` now.
bool World::may_free_on(Allocation& allocation, const Stream& stream, bool is_ordered) {
  const Device& at = devices_[allocation.device];
  const Stream* home = work_stream(allocation);
  if (home != nullptr) read(allocation, *home);
  const bool needs_no_order = allocation.capture || is_covered(allocation);
  const bool can_order = home != nullptr && !allocation.capture && is_usable(at, stream);
  if (!needs_no_order && !can_order) return false;
  if (can_order && (is_ordered || !needs_no_order)) {
    make_current(allocation.device);
    order(*home, stream);
  }
  return true;
}

void World::operator()(const FreeElsewhere& o) {
  Allocation* allocation = pick(o.allocation);
  if (allocation == nullptr) return;
  Device& at = devices_[allocation->device];
  Stream& stream = at.streams[o.stream % at.streams.size()];
  if (!may_free_on(*allocation, stream, o.is_ordered)) return;
  if (!is_freed_on(*allocation, stream)) return;
  note_freed(*allocation, Shared::Freed::yes, &stream);
  forget(*allocation);
}

void World::operator()(const FreeMany& o) {
  const Allocation* first = pick(o.allocation);
  if (first == nullptr) return;
  const std::size_t number = first->device;
  Device& at = devices_[number];
  const Stream& stream = at.streams[o.stream % at.streams.size()];
  std::vector<DevicePtr> freed;
  std::string list;
  for (std::size_t i = o.allocation % allocations_.size();
       i < allocations_.size() && freed.size() < o.count; ++i) {
    if (allocations_[i].device != number || !may_free_on(allocations_[i], stream, false)) continue;
    freed.push_back(allocations_[i].ptr);
    list += fmt::format("p[{}],", allocations_[i].number);
    if (stream.capture) reference(number).pin_around(allocations_[i].ptr);
    note_freed(allocations_[i], Shared::Freed::yes, &stream);
  }
  if (!freed.empty())
    say("CALL(vpmm_deallocate_many(pool[{}], (void* const[]){{{}}}, {}, s[{}]));", number, list,
        freed.size(), stream.key);
  expect(call(Bears::nothing, [&] { return at.pool->deallocate_many(freed, stream.handle); }),
         "deallocate_many");
  std::erase_if(allocations_, [&](const Allocation& allocation) {
    return allocation.device == number &&
           std::find(freed.begin(), freed.end(), allocation.ptr) != freed.end();
  });
}

void World::operator()(const FreeAnyStream& o) {
  Allocation* allocation = pick(o.allocation);
  if (allocation == nullptr || !may_free_unnamed(*allocation)) return;
  if (const Stream* stream = work_stream(*allocation)) read(*allocation, *stream);
  free_unnamed(*allocation, o.is_deferred);
  forget(*allocation);
}

// Where VPMM_ANY_STREAM is legacy, only the work of streams that the legacy stream waits for ends
// before the memory is used again, and that of streams named by record_use.
bool World::may_free_unnamed(const Allocation& allocation) const {
  if (allocation.capture) return true;
  if (must_name_home() && !allocation.is_any_stream) return is_covered(allocation);
  if (scene_.config.streams.any_stream != settings::AnyStreamOrder::legacy) return true;
  for (const Stream& stream : devices_[allocation.device].streams)
    if (stream.key == allocation.home)
      return &stream == &devices_[allocation.device].streams.front() || stream.is_blocking;
  return false;
}

void World::free_unnamed(Allocation& allocation, bool is_deferred) {
  context::Context& pool = *devices_[allocation.device].pool;
  // The allocating stream may capture, or when the free is carried out.
  if (must_name_home() && (is_deferred || is_capturing_anywhere()))
    reference(allocation.device).pin_around(allocation.ptr);
  if (is_deferred) {
    say("vpmm_deallocate_deferred(pool[{}], p[{}]);", allocation.device, allocation.number);
    acted_ = true;
    pool.deallocate_deferred(allocation.ptr);
    note_freed(allocation, Shared::Freed::deferred, nullptr);
  } else {
    say("CALL(vpmm_deallocate_any_stream(pool[{}], p[{}]));", allocation.device, allocation.number);
    expect(
        call(Bears::nothing, [&] { return flaw_.deallocate(pool, allocation.ptr, std::nullopt); }),
        "deallocate");
    note_freed(allocation, Shared::Freed::yes, nullptr);
  }
  allocation.ptr = DevicePtr{};
}

// Calls of callbacks inside of a call that a fault may strike would meet it instead.
bool World::frees_one() {
  if (strikes_) return false;
  const auto found =
      std::find_if(allocations_.begin(), allocations_.end(),
                   [this](const Allocation& allocation) { return may_free_unnamed(allocation); });
  if (found == allocations_.end()) return false;
  free_unnamed(*found, false);
  allocations_.erase(found);
  return true;
}

void World::operator()(const FreeWrongly& o) {
  const Allocation* allocation = pick(o.allocation);
  if (allocation == nullptr) return;
  say("EXPECT(VPMM_ERROR_INVALID_POINTER, vpmm_deallocate_any_stream(pool[{}], (char*)p[{}] + 1));",
      allocation->device, allocation->number);
  const auto result = call(Bears::nothing, [&] {
    return devices_[allocation->device].pool->deallocate(allocation->ptr + 1, std::nullopt);
  });
  if (result || result.error().code != ErrorCode::invalid_pointer)
    fail("a pointer inside an allocation was freed");
}

void World::operator()(const FreeTwice& o) {
  std::vector<std::pair<std::size_t, DevicePtr>> freed(freed_.begin(), freed_.end());
  for (const Shared& shared : shared_)
    if (is_kept(shared)) freed.emplace_back(shared.device, shared.range.begin);
  if (freed.empty()) return;
  const auto [number, ptr] = freed[o.freed % freed.size()];
  Device& at = devices_[number];
  if (at.pool->query(ptr).ok()) return;  // somebody else's by now
  Stream& stream = at.streams[o.stream % at.streams.size()];
  say("EXPECT(VPMM_ERROR_INVALID_POINTER, vpmm_deallocate(pool[{}], (void*){:#x}u, s[{}]));",
      number, to_integer(ptr), stream.key);
  const auto result = free_on(at, ptr, stream);
  if (struck_) return;
  if (result || result.error().code != ErrorCode::invalid_pointer) fail("memory was freed twice");
}

}  // namespace vpmm::property
