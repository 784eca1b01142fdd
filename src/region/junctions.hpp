// SPDX-License-Identifier: Apache-2.0
// region: the borders between touching free regions.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/address.hpp"
#include "base/function_ref.hpp"
#include "base/host_memory.hpp"
#include "base/page_unit.hpp"
#include "region/region.hpp"
#include "region/reservation.hpp"

namespace vpmm::region {

// They stand in the tables of the reservations. Invariant: count() is their number.
class Junctions {
 public:
  explicit Junctions(const PageUnit& unit) : unit_(unit) {}

  // Tells if an entered free region ends at the begin, or begins at the end, of `region`.
  bool touches_free_before(const Region& region) const;
  bool touches_free_behind(const Region& region) const;
  // Files or removes the border between two neighbours; no effect if done already.
  void add(Region* behind);
  void remove(Reservation& reservation, DevicePtr border);
  // Visits the regions behind junctions, by address; `visit` returns the address to go on from, or
  // nullopt to stop.
  void visit(FunctionRef<std::optional<DevicePtr>(Region* behind)> visit) const;
  std::uint64_t count() const { return count_; }

  // Difference between the table and `regions`, if these are all regions; empty if equal.
  std::string difference(const Vector<const Region*>& regions) const;

 private:
  struct ByAddress {
    bool operator()(const Reservation* a, const Reservation* b) const {
      return a->range.begin < b->range.begin;
    }
  };

  PageUnit unit_;
  Set<Reservation*, ByAddress> joined_;  // reservations that have any
  std::uint64_t count_ = 0;
};

}  // namespace vpmm::region
