// SPDX-License-Identifier: Apache-2.0
// context: shared allocations, leases of their chunks, and the table of both.
#include "context/shares.hpp"

#include <atomic>
#include <variant>

#include "base/message.hpp"
#include "base/race_window.hpp"
#include "base/scope_exit.hpp"

namespace vpmm::context {
namespace {

// Shared by all contexts of the process: a number names one allocation for ever.
constinit std::atomic<std::uint64_t> next_id{1};

}  // namespace

Error not_inside(DevicePtr ptr) {
  return {ErrorCode::invalid_pointer,
          message_of("{:#x} is not inside a live allocation of this pool", to_integer(ptr))};
}

Result<SharedRange> Shares::share(const AllocationInfo& of, AddressRange range) {
  const OwnedBy owner = owners_.of(range.begin);
  if (std::holds_alternative<ArenaMemory>(owner) &&
      device_.allocated_around(range.begin) == nullptr)
    return Error{
        ErrorCode::unsupported,
        message_of("{:#x} is memory that an arena was given, which is its owner's to share",
                   to_integer(range.begin))};
  if (std::holds_alternative<DriverBlock>(owner))
    return Error{
        ErrorCode::unsupported,
        message_of(
            "{:#x} is memory of the driver's stream-ordered pool, which cannot be shared: {}",
            to_integer(range.begin),
            device_.pool == nullptr ? "there is no virtual memory pool on this device"
                                    : "VPMM_SMALL is not \"pool\"")};
  if (std::holds_alternative<GuardedMemory>(owner))
    return Error{ErrorCode::unsupported,
                 message_of("{:#x} is a guarded allocation, which cannot be shared; with "
                            "VPMM_IPC_ISOLATE=1 or VPMM_GUARD=0 none is guarded",
                            to_integer(range.begin))};
  if (!device_.pool->can_export())
    return Error{ErrorCode::unsupported,
                 message_of("device {} cannot export memory as a file descriptor",
                            device_.primary.device())};
  if (!arenas_.is_resident(range.begin))
    return Error{
        ErrorCode::suspended,
        message_of("{:#x} is suspended: resume it before it is shared", to_integer(range.begin))};
  if (range.size == 0 || range.size > of.usable - (range.begin - of.begin))
    return Error{ErrorCode::invalid_argument,
                 message_of("{} bytes at {:#x} are not inside the allocation of {} bytes at {:#x}",
                            range.size, to_integer(range.begin), of.usable, to_integer(of.begin))};
  VPMM_RACE_WINDOW("what is to be shared was found");
  if (!mark_used_everywhere(of.begin)) return not_inside(range.begin);  // freed at the same time
  Share& share = find_or_add({of.begin, of.usable});
  ++share.handles;
  return SharedRange{share.id, of.begin, range.begin - of.begin};
}

// Marks the allocation as record_use does: frees take the pool's lock. Returns false if the
// allocation has ended.
bool Shares::mark_used_everywhere(DevicePtr begin) {
  time::Timeline& all = device_.stamper.all_streams();
  return std::visit(Overloaded{[&](ArenaMemory) VPMM_REQUIRES(pool_lock) {
                                 arenas_.record_use(begin, all);
                                 return true;
                               },
                               [&](CutPage cut) VPMM_REQUIRES(pool_lock) {
                                 return device_.small->ownership().record_use(*cut.page, begin,
                                                                              all);
                               },
                               [&](Pages pages) VPMM_REQUIRES(pool_lock) {
                                 return device_.small->ownership().record_use(*pages.region, all);
                               },
                               [](const auto&) { return false; }},
                    owners_.of(begin));
}

Result<SharedChunks> Shares::lease(ShareId id, Bytes offset, Bytes size) {
  Share* const share = find(id);
  if (share == nullptr || (share->is_freed && share->handles == 0))
    return Error{ErrorCode::not_shared, "the memory was freed by the process that exported it"};
  if (size == 0 || size > share->range.size || offset > share->range.size - size)
    return Error{ErrorCode::invalid_argument,
                 message_of("{} bytes at offset {} are not inside an allocation of {} bytes", size,
                            offset, share->range.size)};
  const AddressRange range{share->range.begin + offset, size};
  // Memory whose handles had ended could be suspended.
  if (!arenas_.is_resident(range.begin))
    return Error{ErrorCode::suspended,
                 message_of("{:#x} is suspended: resume it first", to_integer(range.begin))};
  SharedChunks shared;
  device_.pool->memory().chunks.for_each_around(range, [&](const vm::Mapping& mapping) {
    if (shared.chunks.empty()) shared.offset = range.begin - mapping.at;
    shared.chunks.push_back({mapping.chunk->handle, mapping.chunk->size});
  });
  ++share->imports;
  return shared;
}

std::optional<DevicePtr> Shares::end_lease(ShareId id, Holder holder) {
  Share* const share = find(id);
  if (share == nullptr) return std::nullopt;
  std::uint64_t& count = holder == Holder::handle ? share->handles : share->imports;
  if (count == 0) return std::nullopt;
  --count;
  if (share->is_held() || !share->is_freed) return std::nullopt;
  const DevicePtr begin = share->range.begin;
  erase(*share);
  return begin;
}

Shares::Share& Shares::find_or_add(AddressRange allocation) {
  const auto found = by_begin_.find(allocation.begin);
  if (found != by_begin_.end()) return found->second;
  const ShareId id{next_id.fetch_add(1)};
  by_id_.emplace(static_cast<std::uint64_t>(id), allocation.begin);
  ScopeExit undo([&]() VPMM_REQUIRES(pool_lock) {
    by_id_.erase(static_cast<std::uint64_t>(id));
  });  // both tables or none, if host memory is short
  Share& share = by_begin_[allocation.begin];
  undo.dismiss();
  share.id = id;
  share.range = allocation;
  return share;
}

Shares::Share* Shares::find(DevicePtr begin) {
  const auto found = by_begin_.find(begin);
  return found == by_begin_.end() ? nullptr : &found->second;
}

Shares::Share* Shares::find(ShareId id) {
  const auto found = by_id_.find(static_cast<std::uint64_t>(id));
  return found == by_id_.end() ? nullptr : find(found->second);
}

void Shares::erase(const Share& share) {
  by_id_.erase(static_cast<std::uint64_t>(share.id));
  by_begin_.erase(share.range.begin);
}

bool Shares::keep(DevicePtr begin) {
  Share* const share = find(begin);
  if (share == nullptr) return false;
  share->is_freed = share->is_held();
  if (share->is_freed) return true;
  erase(*share);  // ends the validity of its id
  return false;
}

bool Shares::is_kept(DevicePtr begin) const {
  const auto found = by_begin_.find(begin);
  return found != by_begin_.end() && found->second.is_freed;
}

std::string Shares::holder_in(AddressRange range) const {
  for (auto each = by_begin_.lower_bound(range.begin);
       each != by_begin_.end() && each->first < range.end(); ++each) {
    const Share& share = each->second;
    if (share.is_held())
      return message_of(
          "the allocation of {} bytes at {:#x} is held (openings in other processes: {}, "
          "handles for them: {})",
          share.range.size, to_integer(share.range.begin), share.imports, share.handles);
  }
  return {};
}

Bytes Shares::freed_bytes() const {
  Bytes bytes = 0;
  for (const auto& [begin, share] : by_begin_)
    if (share.is_freed) bytes += share.range.size;
  return bytes;
}

std::string Shares::validate() const {
  if (by_begin_.size() != by_id_.size())
    return message_of("{} shares by address, {} by number", by_begin_.size(), by_id_.size());
  for (const auto& [begin, share] : by_begin_) {
    const auto found = by_id_.find(static_cast<std::uint64_t>(share.id));
    if (found == by_id_.end() || found->second != begin || share.range.begin != begin)
      return message_of("the share at {:#x} is not filed under its number", to_integer(begin));
    if (share.is_freed && !share.is_held())
      return message_of("the share at {:#x} is freed and nobody holds it", to_integer(begin));
  }
  return {};
}

}  // namespace vpmm::context
