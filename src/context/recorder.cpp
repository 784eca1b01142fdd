// context: telling of allocations and frees.
#include "context/recorder.hpp"

namespace vpmm::context {
namespace {

std::optional<std::uint64_t> stream_key(const pool::Caller& caller) {
  if (caller.timeline == nullptr || !caller.timeline->stream) return std::nullopt;
  return static_cast<std::uint64_t>(*caller.timeline->stream);
}

}  // namespace

void Recorder::allocated(DevicePtr begin, const Request& request, const pool::Caller& caller,
                         std::optional<AddressRange> block) {
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

void Recorder::freed(DevicePtr ptr, const pool::Caller& caller) {
  if (writer_) writer_->record_deallocate(ptr, stream_key(caller), device_.driver.now_ns() / 1000);
}

void Recorder::observe_begin(AddressRange range, const Stream& stream) const {
  if (observer_ == nullptr) return;
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
