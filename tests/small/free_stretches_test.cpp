// SPDX-License-Identifier: Apache-2.0
// small: rows of units that are cut into as many free stretches as there can be.
#include "small/free_stretches.hpp"

#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <set>

namespace vpmm::small {
namespace {

// Neighbours in the memory of the process: one that writes behind its memory changes another.
using Rows = std::array<FreeStretches, 4>;

// Every second unit is free.
void cut_up(FreeStretches& row, std::uint64_t from, std::uint64_t to) {
  for (std::uint64_t unit = from; unit < to; unit += 2) row.give({unit, 1});
}

void expect_cut_up(const FreeStretches& row, std::uint64_t units) {
  std::set<std::uint64_t> free;
  ASSERT_EQ(row.count(), (units + 1) / 2);
  for (std::size_t i = 0; i < row.count(); ++i) {
    ASSERT_EQ(row[i].length, 1u) << i;
    ASSERT_EQ(row[i].first % 2, 0u) << i;
    ASSERT_LT(row[i].first, units) << i;
    free.insert(row[i].first);
  }
  EXPECT_EQ(free.size(), row.count());
  EXPECT_EQ(row.longest(), 1u);
}

// Frees the rest, too: all of each row is one stretch.
void expect_whole(Rows& rows, std::uint64_t units) {
  for (FreeStretches& row : rows) {
    for (std::uint64_t unit = 1; unit < units; unit += 2) row.give({unit, 1});
    EXPECT_EQ(row.count(), 1u);
    EXPECT_EQ(row.longest(), units);
    EXPECT_EQ(row[0].first, 0u);
    EXPECT_EQ(row[0].length, units);
  }
}

TEST(FreeStretches, may_be_every_second_unit_of_a_row_of_any_length) {
  for (const std::uint64_t units : {1u, 2u, 7u, 8u, 9u, 64u, 1000u, 4096u}) {
    SCOPED_TRACE(units);
    Rows rows;
    for (FreeStretches& row : rows) row.clear(units);
    for (FreeStretches& row : rows) cut_up(row, 0, units);
    for (const FreeStretches& row : rows) expect_cut_up(row, units);
    expect_whole(rows, units);
  }
}

TEST(FreeStretches, may_be_every_second_unit_of_what_a_row_has_grown_to) {
  constexpr std::uint64_t kBefore = 8, kUnits = 1000;
  Rows rows, rooms;
  for (FreeStretches& row : rows) row.clear(kBefore);
  for (FreeStretches& room : rooms) room.clear(kUnits);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    cut_up(rows[i], 0, kBefore);
    rows[i].grow(rooms[i]);
    expect_cut_up(rows[i], kBefore);
  }
  rooms = {};  // the old memory
  for (FreeStretches& row : rows) cut_up(row, kBefore, kUnits);
  for (const FreeStretches& row : rows) expect_cut_up(row, kUnits);
  expect_whole(rows, kUnits);
}

}  // namespace
}  // namespace vpmm::small
