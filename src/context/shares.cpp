// context: the table of shared allocations.
#include "context/shares.hpp"

#include <atomic>

#include "base/message.hpp"

namespace vpmm::context {
namespace {

// Over all contexts of the process, so that a number names one allocation of one of them, and no later one.
constinit std::atomic<std::uint64_t> last_id{0};

}  // namespace

Shares::Share& Shares::find_or_add(AddressRange allocation) {
  const auto [place, is_new] = by_begin_.try_emplace(allocation.begin);
  Share& share = place->second;
  if (!is_new) return share;
  share.id = ShareId{last_id.fetch_add(1) + 1};
  share.range = allocation;
  by_id_.emplace(static_cast<std::uint64_t>(share.id), allocation.begin);
  return share;
}

Shares::Share* Shares::find(DevicePtr begin) {
  const auto found = by_begin_.find(begin);
  return found == by_begin_.end() ? nullptr : &found->second;
}

const Shares::Share* Shares::find(DevicePtr begin) const {
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
