// context: telling of allocations, frees and what else happens.
#include "context/recorder.hpp"

namespace vpmm::context {
namespace {

std::optional<std::uint64_t> stream_key(const pool::Caller& caller) {
  if (caller.timeline == nullptr || !caller.timeline->stream) return std::nullopt;
  return static_cast<std::uint64_t>(*caller.timeline->stream);
}

}  // namespace

// --- listeners ------------------------------------------------------------------------------------------------------

std::uint64_t Recorder::add_listener(EventKinds kinds, EventCallback callback) {
  listeners_.push_back({last_listener_ + 1, kinds, std::move(callback)});
  listen();
  return ++last_listener_;
}

bool Recorder::remove_listener(std::uint64_t id) {
  const bool is_there = std::erase_if(listeners_, [&](const Listener& listener) { return listener.id == id; }) != 0;
  listen();
  return is_there;
}

void Recorder::listen() {
  wanted_ = 0;
  for (const Listener& listener : listeners_) wanted_ |= listener.kinds;
  const bool wants_mappings = wants(EventKind::map) || wants(EventKind::unmap);
  if (device_.pool != nullptr) device_.pool->set_mapping_observer(wants_mappings ? this : nullptr);
}

// The pool is in the middle of its work, so nothing that is thrown may pass.
void Recorder::tell(Event event) noexcept {
  if (!wants(event.kind)) return;
  event.time_ns = device_.driver.now_ns();
  event.device = device_.primary.device();
  for (const Listener& listener : listeners_) {
    if ((listener.kinds & bit_of(event.kind)) == 0) continue;
    try {
      listener.callback(event);
    } catch (...) {  // NOLINT(bugprone-empty-catch): said to be lost
    }
  }
}

// --- what happens ---------------------------------------------------------------------------------------------------

void Recorder::allocated(DevicePtr begin, const Request& request, const pool::Caller& caller,
                         std::optional<AddressRange> block) {
  if (request.tag != 0) tags_.add(begin, request.bytes, request.tag);
  tell({EventKind::allocate, begin, request.bytes, request.stream, request.tag,
        static_cast<std::uint64_t>(request.arena)});
  if (writer_) writer_->record_allocate(begin, request.bytes, stream_key(caller), device_.driver.now_ns() / 1000);
  if (observer_ == nullptr) return;
  const region::Region* const region = device_.allocated_around(begin);
  AddressRange range{begin, request.bytes};
  if (block)
    range = *block;
  else if (region != nullptr)
    range = small::SmallPool::is_arena(*region) ? device_.small->find(*region, begin)->range : region->range;
  observe_begin(range, request.stream);
}

std::uint32_t Recorder::freed(DevicePtr ptr, const Told& told, const pool::Caller& caller) {
  const std::uint32_t tag = tags_.empty() ? 0 : tags_.take(ptr);
  tell({EventKind::free, ptr, told.requested, caller.stream, tag, static_cast<std::uint64_t>(told.arena)});
  if (writer_) writer_->record_deallocate(ptr, stream_key(caller), device_.driver.now_ns() / 1000);
  return tag;
}

void Recorder::free_failed(AddressRange range, std::uint32_t tag, const pool::Caller& caller) {
  if (tag != 0) tags_.add(range.begin, range.size, tag);
  tell({EventKind::allocate, range.begin, range.size, caller.stream, tag});
  observe_begin(range, caller.stream);
}

void Recorder::used(DevicePtr ptr, const Told& told, driver::StreamHandle stream) {
  tell({EventKind::record_use, ptr, told.requested, stream, tags_.of(ptr), static_cast<std::uint64_t>(told.arena)});
}

void Recorder::arena_changed(EventKind kind, AddressRange stretch, ArenaId arena) {
  tell({kind, stretch.begin, stretch.size, std::nullopt, 0, static_cast<std::uint64_t>(arena)});
}

void Recorder::out_of_memory(const Request& request) {
  tell({EventKind::out_of_memory, DevicePtr{}, request.bytes, request.stream, request.tag});
}

void Recorder::trimmed(Bytes released) { tell({EventKind::trim, DevicePtr{}, released, std::nullopt}); }

void Recorder::on_map(AddressRange chunk) noexcept { tell({EventKind::map, chunk.begin, chunk.size, std::nullopt}); }

void Recorder::on_unmap(AddressRange chunk) noexcept {
  tell({EventKind::unmap, chunk.begin, chunk.size, std::nullopt});
}

void Recorder::forget_lost(FunctionRef<bool(DevicePtr)> is_elsewhere) {
  tags_.forget_unless([&](DevicePtr begin) VPMM_REQUIRES(pool_lock) {
    return device_.allocated_around(begin) != nullptr || device_.block_around(begin) != nullptr || is_elsewhere(begin);
  });
}

void Recorder::observe_begin(AddressRange range, const Stream& stream) const {
  if (observer_ == nullptr || range.empty()) return;
  if (stream)
    observer_->on_allocate(range, *stream);
  else
    observer_->on_allocate_any_stream(range);
}

void Recorder::observe_end(AddressRange range, const Stream& last) const {
  if (observer_ == nullptr) return;
  if (last)
    observer_->on_deallocate(range, *last);
  else
    observer_->on_deallocate_any_stream(range);
}

}  // namespace vpmm::context
