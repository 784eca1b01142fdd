// context: memory that other processes map: which chunks are behind it, and its free when the last of them let go.
#include <new>

#include "base/host_memory.hpp"
#include "base/message.hpp"
#include "base/race_window.hpp"
#include "context/visit.hpp"

namespace vpmm::context {

Result<SharedRange> DeviceContext::share(AddressRange range) {
  const PoolLock lock(mutex_);
  VPMM_TRY_ASSIGN(const AllocationInfo info, look_up(range.begin));
  if (primary_.poison()) return *primary_.poison();
  const HostPromise promise;
  if (!promise.is_cached()) return no_host_memory();
  if (pool_ == nullptr || pool_->allocated_around(range.begin) == nullptr)
    return Error{
        ErrorCode::unsupported,
        message_of("{:#x} is memory of the driver's stream-ordered pool, which cannot be shared: {}",
                   to_integer(range.begin),
                   pool_ == nullptr ? "there is no virtual memory pool on this device" : "VPMM_SMALL is not \"pool\"")};
  if (!pool_->can_export())
    return Error{ErrorCode::unsupported,
                 message_of("device {} cannot export memory as a file descriptor", primary_.device())};
  if (range.size == 0 || range.size > info.usable - (range.begin - info.begin))
    return Error{ErrorCode::invalid_argument,
                 message_of("{} bytes at {:#x} are not inside the allocation of {} bytes at {:#x}", range.size,
                            to_integer(range.begin), info.usable, to_integer(info.begin))};
  VPMM_RACE_WINDOW("what is to be shared was found");
  if (!mark_used_everywhere(info.begin)) return not_inside(range.begin);  // freed at the same time
  Shares::Share& share = shares_.find_or_add({info.begin, info.usable});
  ++share.handles;
  return SharedRange{share.id, info.begin, range.begin - info.begin};
}

// The mark that record_use leaves: frees of it take no short cut. False: it is not live any more.
bool DeviceContext::mark_used_everywhere(DevicePtr begin) {
  if (shares_.find(begin) != nullptr) return true;
  region::Region* const region = pool_->allocated_around(begin);
  if (small::SmallPool::is_arena(*region)) return small_->record_use(*region, begin, all_streams());
  return small_->record_use(*region, all_streams());
}

Result<SharedChunks> DeviceContext::lease(ShareId id, Bytes offset, Bytes size) {
  const PoolLock lock(mutex_);
  if (primary_.poison()) return *primary_.poison();
  const HostPromise promise;
  if (!promise.is_cached()) return no_host_memory();
  Shares::Share* const share = shares_.find(id);
  if (share == nullptr || (share->is_freed && share->handles == 0))
    return Error{ErrorCode::not_shared, "the memory was freed by the process that exported it"};
  if (size == 0 || size > share->range.size || offset > share->range.size - size)
    return Error{
        ErrorCode::invalid_argument,
        message_of("{} bytes at offset {} are not inside an allocation of {} bytes", size, offset, share->range.size)};
  const AddressRange range{share->range.begin + offset, size};
  SharedChunks shared;
  for (const vm::Mapping& mapping : pool_->mappings_around(range)) {
    if (shared.chunks.empty()) shared.offset = range.begin - mapping.at;
    shared.chunks.push_back({mapping.chunk->handle, mapping.chunk->size});
  }
  ++share->imports;
  return shared;
}

// Whoever holds the lease tries again where there is no host memory.
void DeviceContext::end_lease(ShareId id, Holder holder) {
  const HostPromise promise;
  if (!promise.is_cached()) throw std::bad_alloc();
  const PoolLock lock(mutex_);
  Shares::Share* const share = shares_.find(id);
  if (share == nullptr) return;
  std::uint64_t& count = holder == Holder::handle ? share->handles : share->imports;
  if (count == 0 || --count != 0 || share->is_held() || !share->is_freed) return;
  const DevicePtr begin = share->range.begin;
  shares_.erase(*share);
  free_shared(begin);
}

// Whoever used it named no stream here, so all work queued so far may be the last to use it.
void DeviceContext::free_shared(DevicePtr begin) {
  region::Region* const region = pool_->allocated_around(begin);
  if (!small::SmallPool::is_arena(*region)) {
    if (small_->end(*region)) free_pages(region, std::nullopt, pool::Caller{});
  } else if (const auto ended = small_->end(*region, begin)) {
    free_small(*ended, std::nullopt, pool::Caller{});
  }
}

// A free of what may be shared. True: others still hold it, and that was all there is to do now.
bool DeviceContext::keep_for_holders(DevicePtr begin) {
  Shares::Share* const share = shares_.find(begin);
  if (share == nullptr) return false;
  share->is_freed = share->is_held();
  if (share->is_freed) return true;
  shares_.erase(*share);  // its tokens are of the past from here on
  return false;
}

bool DeviceContext::is_kept_for_holders(DevicePtr begin) const {
  const Shares::Share* const share = shares_.find(begin);
  return share != nullptr && share->is_freed;
}

std::optional<small::Allocation> DeviceContext::find_live(const region::Region& page, DevicePtr ptr) const {
  std::optional<small::Allocation> small = small_->find(page, ptr);
  if (small && is_kept_for_holders(small->range.begin)) small.reset();
  return small;
}

}  // namespace vpmm::context
