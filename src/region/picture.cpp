// SPDX-License-Identifier: Apache-2.0
// region: the index in the notation of the project: [4][-6][1][*10][~2].
#include <fmt/format.h>

#include "base/check.hpp"
#include "region/region_index_private.hpp"

namespace vpmm::region {
namespace {

const char* sign(RegionState state) {
  switch (state) {
    case RegionState::hole: return "*";
    case RegionState::free: return "-";
    case RegionState::allocated: return "";
    case RegionState::zombie: return "~";
    case RegionState::in_flight: return "#";
  }
  return "?";
}

// Up to two decimals, without trailing zeros; "0.00": less than 0.005.
std::string in_units(Bytes size, Bytes unit) {
  if (is_multiple(size, unit)) return fmt::format("{}", size / unit);
  std::string text = fmt::format("{:.2f}", static_cast<double>(size) / static_cast<double>(unit));
  if (text == "0.00") return text;
  text.erase(text.find_last_not_of('0') + 1);
  if (text.back() == '.') text.pop_back();
  return text;
}

}  // namespace

std::string RegionIndex::picture(std::optional<Bytes> in) const {
  const Bytes unit = in.value_or(page_size_);
  VPMM_CHECK(unit > 0, "a picture needs a unit");
  std::string text;
  for (const auto& [begin, reservation] : private_->reservations) {
    for (const Region* region = reservation.first; region != nullptr; region = region->next) {
      if (region->state == RegionState::hole && region->next == nullptr) break;
      text += fmt::format("[{}{}]", sign(region->state), in_units(region->range.size, unit));
    }
  }
  return text;
}

}  // namespace vpmm::region
