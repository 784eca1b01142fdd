// SPDX-License-Identifier: Apache-2.0
// region: junctions are entered at the page where two free regions touch.
#include "region/junctions.hpp"

namespace vpmm::region {

bool Junctions::touches_free_before(const Region& region) const {
  return region.reservation->table.free_ends_at(first_page(region, unit_));
}

bool Junctions::touches_free_behind(const Region& region) const {
  return region.reservation->table.free_begins_at(first_page(region, unit_) +
                                                  unit_.pages(region.range.size));
}

void Junctions::add(Region* behind) {
  PageTable& table = behind->reservation->table;
  if (table.is_junction(first_page(*behind, unit_))) return;
  if (!table.has_junctions()) joined_.insert(behind->reservation);
  table.add_junction(first_page(*behind, unit_), behind);
  ++count_;
}

void Junctions::remove(Reservation& reservation, DevicePtr border) {
  const std::uint64_t page = unit_.pages(border - reservation.range.begin);
  if (!reservation.table.is_junction(page)) return;
  reservation.table.remove_junction(page);
  --count_;
  if (!reservation.table.has_junctions()) joined_.erase(&reservation);
}

void Junctions::visit(FunctionRef<std::optional<DevicePtr>(Region* behind)> visit) const {
  for (const Reservation* reservation : joined_) {
    const PageTable& table = reservation->table;
    Region* behind = table.first_behind_junction(0);
    while (behind != nullptr) {
      const std::optional<DevicePtr> next = visit(behind);
      if (!next) return;
      behind = table.first_behind_junction(unit_.pages(*next - reservation->range.begin));
    }
  }
}

}  // namespace vpmm::region
