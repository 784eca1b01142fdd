// SPDX-License-Identifier: Apache-2.0
// context: host copies by arena and by address.
#include "context/host_copies.hpp"

#include <algorithm>
#include <utility>

namespace vpmm::context {

using host_copy::CopyPiece;

std::shared_ptr<HostCopy> HostCopies::find(pool::ArenaId arena) const {
  const auto found = copies_.find(static_cast<std::uint64_t>(arena));
  return found == copies_.end() ? nullptr : found->second;
}

void HostCopies::set(pool::ArenaId arena, std::shared_ptr<HostCopy> copy) {
  copies_[static_cast<std::uint64_t>(arena)] = std::move(copy);
}

std::shared_ptr<HostCopy> HostCopies::take(pool::ArenaId arena) {
  const auto found = copies_.find(static_cast<std::uint64_t>(arena));
  if (found == copies_.end()) return nullptr;
  std::shared_ptr<HostCopy> copy = std::move(found->second);
  copies_.erase(found);
  return copy;
}

CopyPiece* HostCopies::piece_around(HostCopy& copy, DevicePtr at) {
  const auto behind =
      std::upper_bound(copy.pieces.begin(), copy.pieces.end(), at,
                       [](DevicePtr p, const CopyPiece& piece) { return p < piece.device; });
  if (behind == copy.pieces.begin()) return nullptr;
  CopyPiece& piece = *std::prev(behind);
  return at - piece.device < piece.bytes ? &piece : nullptr;
}

void HostCopies::drop_unless(FunctionRef<bool(pool::ArenaId)> exists) {
  std::erase_if(copies_, [&](const auto& each) {
    if (exists(pool::ArenaId{each.first})) return false;
    each.second->memory.unpin();
    return true;
  });
}

void HostCopies::drop_block(DevicePtr begin) {
  for (const auto& [arena, copy] : copies_) {
    CopyPiece* const piece = piece_around(*copy, begin);
    if (piece == nullptr || piece->device != begin) continue;
    const bool is_ours = piece->host != nullptr && !copy->is_in_use;
    if (is_ours && copy->memory.forget(piece->host, piece->bytes)) copy->dropped += piece->bytes;
    piece->bytes = 0;
    return;
  }
}

std::byte* HostCopies::find(AddressRange part) const {
  for (const auto& [arena, copy] : copies_) {
    const CopyPiece* const piece = piece_around(*copy, part.begin);
    if (piece == nullptr) continue;
    const Bytes offset = part.begin - piece->device;
    return part.size <= piece->bytes - offset ? piece->host + offset : nullptr;
  }
  return nullptr;
}

Bytes HostCopies::bytes() const {
  Bytes bytes = 0;
  for (const auto& [arena, copy] : copies_) bytes += copy->held();
  return bytes;
}

}  // namespace vpmm::context
