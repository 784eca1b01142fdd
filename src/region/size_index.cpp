// SPDX-License-Identifier: Apache-2.0
// region: files regions by size.
#include "region/size_index.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "base/check.hpp"

namespace vpmm::region {

void SizeIndex::add_large(Region* region) {
  const std::pair key{region->range.size, region->range.begin};
  if (spare_.empty()) {
    large_.emplace(key, region);
    return;
  }
  spare_.key() = key;
  spare_.mapped() = region;
  large_.insert(std::move(spare_));
}

void SizeIndex::remove_large(const Region* region) {
  spare_ = large_.extract({region->range.size, region->range.begin});
  VPMM_CHECK(!spare_.empty(),
             fmt::format("region at {:#x} was not filed", to_integer(region->range.begin)));
}

// Every region of size + alignment or more fits.
Fit SizeIndex::first_fit(Bytes size, Bytes alignment) const {
  for (std::uint64_t pages = next_size(unit_.pages_up(size)); pages < kHeaps;
       pages = next_size(pages + 1)) {
    const Bytes each = pages * unit_.bytes();
    if (Region* const found = heap(pages).lowest_fitting(each, size, alignment))
      return {found->range.begin, each, found};
  }
  return first_large_fit(size, alignment);
}

Fit SizeIndex::lowest_fit(Bytes size, Bytes alignment) const {
  Fit lowest;
  const auto consider = [&](Region* region) {
    if (lowest.region == nullptr || region->range.begin < lowest.begin)
      lowest = {region->range.begin, region->range.size, region};
  };
  for (std::uint64_t pages = next_size(unit_.pages_up(size)); pages < kHeaps;
       pages = next_size(pages + 1))
    if (Region* const found = heap(pages).lowest_fitting(pages * unit_.bytes(), size, alignment))
      consider(found);
  for (auto it = large_.lower_bound({size, DevicePtr{}}); it != large_.end(); ++it)
    if (aligned_start(it->second->range, size, alignment)) consider(it->second);
  return lowest;
}

Fit SizeIndex::first_large_fit(Bytes size, Bytes alignment) const {
  for (auto it = large_.lower_bound({size, DevicePtr{}}); it != large_.end(); ++it)
    if (aligned_start(it->second->range, size, alignment))
      return {it->first.second, it->first.first, it->second};
  return {};
}

Bytes SizeIndex::largest() const {
  if (!large_.empty()) return large_.rbegin()->first.first;
  if (occupied_blocks_ == 0) return 0;
  const int block = 63 - std::countl_zero(occupied_blocks_);
  const int last = 63 - std::countl_zero(occupied_[static_cast<std::size_t>(block)]);
  return static_cast<Bytes>(block * 64 + last) * unit_.bytes();
}

bool SizeIndex::is_sound() const {
  for (std::uint64_t block = 0; block < blocks_.size(); ++block) {
    if ((occupied_[block] != 0) != ((occupied_blocks_ & bit(block)) != 0)) return false;
    if (!blocks_[block] && occupied_[block] != 0) return false;
    for (std::uint64_t pages = block * 64; blocks_[block] && pages < block * 64 + 64; ++pages) {
      if (heap(pages).empty() == ((occupied_[block] & bit(pages)) != 0)) return false;
      bool is_of_its_size = true;
      heap(pages).visit([&](const Region* region) {
        is_of_its_size &= region->range.size == pages * unit_.bytes();
      });
      if (!is_of_its_size || !heap(pages).is_sound()) return false;
    }
  }
  return std::all_of(large_.begin(), large_.end(), [this](const auto& entry) {
    const AddressRange& range = entry.second->range;
    return entry.first == std::pair{range.size, range.begin} &&
           range.size >= kHeaps * unit_.bytes();
  });
}

Ranking SizeIndex::ranking() const {
  Ranking all;
  const auto collect = [&](const Region* region) {
    all.push_back({region->range.size, region->range.begin, region});
  };
  for (std::uint64_t pages = next_size(0); pages < kHeaps; pages = next_size(pages + 1))
    heap(pages).visit(collect);
  for (const auto& [key, region] : large_) collect(region);
  std::sort(all.begin(), all.end());
  return all;
}

}  // namespace vpmm::region
