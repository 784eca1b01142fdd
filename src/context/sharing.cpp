// context: sharing an allocation, and leases of its chunks.
#include "context/sharing.hpp"

#include "base/message.hpp"
#include "base/race_window.hpp"

namespace vpmm::context {

Result<SharedRange> Sharing::share(const AllocationInfo& of, AddressRange range) {
  if (servers_.allocated_around(range.begin) == nullptr)
    return Error{ErrorCode::unsupported,
                 message_of("{:#x} is memory of the driver's stream-ordered pool, which cannot be shared: {}",
                            to_integer(range.begin),
                            servers_.pool == nullptr ? "there is no virtual memory pool on this device"
                                                     : "VPMM_SMALL is not \"pool\"")};
  if (!servers_.pool->can_export())
    return Error{ErrorCode::unsupported, message_of("device {} cannot export memory as a file descriptor", device_)};
  if (range.size == 0 || range.size > of.usable - (range.begin - of.begin))
    return Error{ErrorCode::invalid_argument,
                 message_of("{} bytes at {:#x} are not inside the allocation of {} bytes at {:#x}", range.size,
                            to_integer(range.begin), of.usable, to_integer(of.begin))};
  VPMM_RACE_WINDOW("what is to be shared was found");
  if (!mark_used_everywhere(of.begin)) return not_inside(range.begin);  // freed at the same time
  Shares::Share& share = shares_.find_or_add({of.begin, of.usable});
  ++share.handles;
  return SharedRange{share.id, of.begin, range.begin - of.begin};
}

// The mark that record_use leaves: frees of it take no short cut. False: it is not live any more.
bool Sharing::mark_used_everywhere(DevicePtr begin) {
  if (shares_.find(begin) != nullptr) return true;
  region::Region* const region = servers_.allocated_around(begin);
  if (small::SmallPool::is_arena(*region)) return servers_.small->record_use(*region, begin, prover_.all_streams());
  return servers_.small->record_use(*region, prover_.all_streams());
}

Result<SharedChunks> Sharing::lease(ShareId id, Bytes offset, Bytes size) {
  Shares::Share* const share = shares_.find(id);
  if (share == nullptr || (share->is_freed && share->handles == 0))
    return Error{ErrorCode::not_shared, "the memory was freed by the process that exported it"};
  if (size == 0 || size > share->range.size || offset > share->range.size - size)
    return Error{
        ErrorCode::invalid_argument,
        message_of("{} bytes at offset {} are not inside an allocation of {} bytes", size, offset, share->range.size)};
  const AddressRange range{share->range.begin + offset, size};
  SharedChunks shared;
  for (const vm::Mapping& mapping : servers_.pool->mappings_around(range)) {
    if (shared.chunks.empty()) shared.offset = range.begin - mapping.at;
    shared.chunks.push_back({mapping.chunk->handle, mapping.chunk->size});
  }
  ++share->imports;
  return shared;
}

void Sharing::end_lease(ShareId id, Holder holder) {
  Shares::Share* const share = shares_.find(id);
  if (share == nullptr) return;
  std::uint64_t& count = holder == Holder::handle ? share->handles : share->imports;
  if (count == 0 || --count != 0 || share->is_held() || !share->is_freed) return;
  const DevicePtr begin = share->range.begin;
  shares_.erase(*share);
  // Whoever used it named no stream here, so all work queued so far may be the last to use it.
  allocations_.end(begin, std::nullopt, pool::Caller{});
}

}  // namespace vpmm::context
