// context: the table of shared allocations.
#include "context/shares.hpp"

#include <atomic>

#include "base/message.hpp"
#include "base/scope_exit.hpp"

namespace vpmm::context {
namespace {

// Over all contexts of the process, so that a number names one allocation of one of them, and no later one.
constinit std::atomic<std::uint64_t> last_id{0};

}  // namespace

Shares::Share& Shares::find_or_add(AddressRange allocation) {
  const auto found = by_begin_.find(allocation.begin);
  if (found != by_begin_.end()) return found->second;
  const ShareId id{last_id.fetch_add(1) + 1};
  by_id_.emplace(static_cast<std::uint64_t>(id), allocation.begin);
  ScopeExit undo([&]() VPMM_REQUIRES(pool_lock) {
    by_id_.erase(static_cast<std::uint64_t>(id));
  });  // short of host memory: in both or in none
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
  erase(*share);  // its tokens are of the past from here on
  return false;
}

bool Shares::is_kept(DevicePtr begin) const {
  const auto found = by_begin_.find(begin);
  return found != by_begin_.end() && found->second.is_freed;
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
