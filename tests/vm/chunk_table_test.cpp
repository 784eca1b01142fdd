// SPDX-License-Identifier: Apache-2.0
// vm: the table of chunks and mappings, and how much of each chunk is used.
#include "vm/chunk_table.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <new>
#include <random>
#include <utility>
#include <vector>

namespace vpmm::vm {
namespace {

constexpr DevicePtr kStart{0x7000'0000'0000};
constexpr Bytes kUnit = 2 * kMiB;
constexpr Bytes kGrain = kUnit / 32;  // allocations may begin and end at any of them

DevicePtr at(Bytes unit) { return kStart + unit * kUnit; }
AddressRange span(Bytes first, Bytes count) { return {at(first), count * kUnit}; }
AddressRange grains(Bytes first, Bytes count) { return {kStart + first * kGrain, count * kGrain}; }

class ChunkTableTest : public testing::Test {
 protected:
  ChunkTableTest() { table.cover(span(0, 100)); }
  ~ChunkTableTest() override { EXPECT_EQ(table.validate(), ""); }
  Chunk* chunk(Bytes units) { return table.add(driver::ChunkHandle{next_++}, units * kUnit); }
  Chunk* map(Bytes first, Bytes units) {
    Chunk* const mapped = chunk(units);
    table.map(mapped, at(first));
    return mapped;
  }
  // The units at which the mappings begin.
  static Vector<Bytes> begins(const Vector<Mapping>& mappings) {
    Vector<Bytes> units;
    for (const Mapping& mapping : mappings) units.push_back((mapping.at - kStart) / kUnit);
    return units;
  }
  Bytes trapped_grains() const { return table.trapped_bytes() / kGrain; }
  ChunkTable table{kUnit};
  std::uint64_t next_ = 1;
};

TEST_F(ChunkTableTest, counts_a_chunk_once_however_often_it_is_mapped) {
  Chunk* two = chunk(2);
  table.map(two, at(0));
  table.map(two, at(10));
  EXPECT_EQ(table.chunk_bytes(), 2 * kUnit);
  EXPECT_EQ(table.chunk_count(), 1u);
  EXPECT_EQ(table.mapping_count(), 2u);
  EXPECT_EQ(two->mappings, 2u);
}

TEST_F(ChunkTableTest, a_chunk_lives_until_its_handle_and_its_last_mapping_are_gone) {
  Chunk* one = map(0, 1);
  table.handle_released(one);
  EXPECT_EQ(table.chunk_bytes(), kUnit) << "the mapping keeps the memory";
  table.unmap(span(0, 1));
  EXPECT_EQ(table.chunk_bytes(), 0u);
  Chunk* other = map(0, 1);
  table.unmap(span(0, 1));
  EXPECT_EQ(table.chunk_bytes(), kUnit) << "the handle keeps the memory";
  table.handle_released(other);
  EXPECT_EQ(table.chunk_bytes(), 0u);
}

TEST_F(ChunkTableTest, only_whole_mappings_are_inside_a_range) {
  map(0, 2);
  map(2, 2);
  map(4, 2);
  EXPECT_EQ(begins(table.inside(span(1, 4))), (Vector<Bytes>{2}));
  EXPECT_EQ(begins(table.inside(span(0, 6))), (Vector<Bytes>{0, 2, 4}));
  EXPECT_TRUE(table.inside(span(1, 2)).empty());
  EXPECT_TRUE(table.inside({at(0), 0}).empty());
}

TEST_F(ChunkTableTest, a_range_may_begin_and_end_within_pages) {
  map(0, 1);
  map(1, 2);
  map(3, 1);
  EXPECT_EQ(begins(table.inside(grains(0, 96))), (Vector<Bytes>{0, 1}));
  EXPECT_EQ(begins(table.inside(grains(0, 95))), (Vector<Bytes>{0}));
  EXPECT_EQ(begins(table.inside(grains(1, 127))), (Vector<Bytes>{1, 3}));
}

TEST_F(ChunkTableTest, what_is_not_mapped_is_passed_over) {
  map(2, 2);
  map(7, 1);
  EXPECT_EQ(begins(table.inside(span(0, 20))), (Vector<Bytes>{2, 7}));
  Vector<Mapping> found;
  table.for_each_around(span(0, 20), [&](const Mapping& mapping) { found.push_back(mapping); });
  EXPECT_EQ(begins(found), (Vector<Bytes>{2, 7}));
}

TEST_F(ChunkTableTest, everything_that_overlaps_is_around_a_range) {
  map(0, 2);
  map(2, 2);
  map(8, 2);
  Vector<Mapping> found;
  table.for_each_around(span(1, 2), [&](const Mapping& mapping) { found.push_back(mapping); });
  EXPECT_EQ(begins(found), (Vector<Bytes>{0, 2}));
}

TEST_F(ChunkTableTest, a_mapping_that_begins_where_a_range_ends_is_not_around_it) {
  map(0, 2);
  map(2, 2);
  Vector<Mapping> found;
  table.for_each_around(span(1, 1), [&](const Mapping& mapping) { found.push_back(mapping); });
  EXPECT_EQ(begins(found), (Vector<Bytes>{0}));
}

TEST_F(ChunkTableTest, every_chunk_is_visited_with_its_handle_mapped_or_not) {
  map(0, 1);
  chunk(3);
  map(1, 2);
  table.provide(1000);
  map(7, 4);
  Vector<std::pair<std::uint64_t, Bytes>> found;
  table.for_each_chunk([&](const Chunk& each) {
    found.emplace_back(static_cast<std::uint64_t>(each.handle), each.size / kUnit);
  });
  EXPECT_THAT(found, testing::UnorderedElementsAre(std::pair(1, 1), std::pair(2, 3),
                                                   std::pair(3, 2), std::pair(4, 4)));
}

TEST(ChunkTable, a_reservation_too_large_to_keep_account_of_changes_nothing) {
  ChunkTable table(4096);  // no table of 2^51 pages has memory
  table.cover({kStart, 4096});
  EXPECT_THROW(table.cover({DevicePtr{}, Bytes{1} << 63}), std::bad_alloc);
  EXPECT_EQ(table.around(kStart + (Bytes{1} << 50)).chunk, nullptr);
  Chunk* const one = table.add(driver::ChunkHandle{1}, 4096);
  table.map(one, kStart);
  EXPECT_EQ(table.around(kStart).chunk, one);
}

TEST_F(ChunkTableTest, a_mapping_is_found_by_every_byte_of_it) {
  Chunk* const first = map(1, 2);
  Chunk* const second = map(3, 1);
  EXPECT_EQ(table.around(at(1) - 1).chunk, nullptr);
  for (const DevicePtr p : {at(1), at(2) - 1, at(2), at(3) - 1}) {
    EXPECT_EQ(table.around(p).chunk, first);
    EXPECT_EQ(table.around(p).at, at(1));
  }
  EXPECT_EQ(table.around(at(3)).chunk, second);
  EXPECT_EQ(table.around(at(4)).chunk, nullptr);
  table.unmap(span(1, 2));
  EXPECT_EQ(table.around(at(1)).chunk, nullptr);
  EXPECT_EQ(table.around(at(3)).chunk, second);
}

TEST_F(ChunkTableTest, nothing_is_mapped_where_nothing_is_reserved) {
  EXPECT_EQ(table.around(at(0) - 1).chunk, nullptr);
  EXPECT_EQ(table.around(at(100)).chunk, nullptr);
  EXPECT_EQ(table.around(DevicePtr{}).chunk, nullptr);
}

TEST_F(ChunkTableTest, several_reservations_are_covered_wherever_they_lie) {
  table.cover(span(1000, 2));
  table.cover({at(0) - 4 * kUnit, 4 * kUnit});
  Chunk* const high = map(1000, 2);
  Chunk* const low = chunk(1);
  table.map(low, at(0) - kUnit);
  Chunk* const middle = map(99, 1);
  EXPECT_EQ(table.around(at(1001)).chunk, high);
  EXPECT_EQ(table.around(at(0) - 1).chunk, low);
  EXPECT_EQ(table.around(at(99)).chunk, middle);
  EXPECT_EQ(table.around(at(500)).chunk, nullptr);
}

TEST_F(ChunkTableTest, a_border_is_where_a_whole_mapping_begins_or_ends) {
  map(0, 2);
  map(2, 3);
  EXPECT_EQ(table.first_border(at(0)), at(0));
  EXPECT_EQ(table.first_border(at(0) + kGrain), at(2));
  EXPECT_EQ(table.first_border(at(1)), at(2));
  EXPECT_EQ(table.first_border(at(2)), at(2));
  EXPECT_EQ(table.first_border(at(5) - kGrain), at(5));
  EXPECT_EQ(table.last_border(at(5)), at(5));
  EXPECT_EQ(table.last_border(at(5) - kGrain), at(2));
  EXPECT_EQ(table.last_border(at(2)), at(2));
  EXPECT_EQ(table.last_border(at(2) - kGrain), at(0));
  EXPECT_EQ(table.last_border(at(0) + kGrain), at(0));
}

TEST_F(ChunkTableTest, a_visit_ends_when_it_is_told_to) {
  for (Bytes i = 0; i < 5; ++i) map(i, 1);
  int visited = 0;
  table.for_each_inside(span(0, 5), [&](const Mapping&) { return ++visited < 3; });
  EXPECT_EQ(visited, 3);
}

// --- Note [Trapped memory]

class TrappedMemory : public ChunkTableTest {
 protected:
  void begin(Bytes first, Bytes count) { table.begin_use(grains(first, count)); }
  void end(Bytes first, Bytes count) { table.end_use(grains(first, count)); }
};

TEST_F(TrappedMemory, what_an_allocation_within_a_chunk_leaves_of_it_is_trapped) {
  Chunk* const two = map(0, 2);
  begin(5, 10);
  EXPECT_EQ(trapped_grains(), 54u);
  EXPECT_EQ(two->partly_used, 10 * kGrain);
  end(5, 10);
  EXPECT_EQ(trapped_grains(), 0u);
  EXPECT_EQ(two->partly_used, 0u);
}

TEST_F(TrappedMemory, an_allocation_of_exactly_a_chunk_traps_nothing) {
  map(0, 1);
  Chunk* const two = map(1, 2);
  table.begin_use(span(1, 2));
  EXPECT_EQ(table.trapped_bytes(), 0u);
  EXPECT_EQ(two->partly_used, 0u) << "it has all of it";
  table.end_use(span(1, 2));
  EXPECT_EQ(table.validate(), "");
}

TEST_F(TrappedMemory, an_allocation_over_two_chunks_traps_what_it_leaves_of_both) {
  map(0, 1);
  map(1, 1);
  begin(30, 10);
  EXPECT_EQ(trapped_grains(), 30u + 24u);
  end(30, 10);
  EXPECT_EQ(trapped_grains(), 0u);
}

TEST_F(TrappedMemory, an_allocation_over_many_chunks_traps_only_at_its_ends) {
  Vector<Chunk*> chunks;
  for (Bytes i = 0; i < 5; ++i) chunks.push_back(map(i, 1));
  begin(20, 32 * 3 + 15);
  EXPECT_EQ(trapped_grains(), 20u + 29u);
  EXPECT_EQ(chunks[0]->partly_used, 12 * kGrain);
  for (std::size_t i = 1; i < 4; ++i) EXPECT_EQ(chunks[i]->partly_used, 0u);
  EXPECT_EQ(chunks[4]->partly_used, 3 * kGrain);
  end(20, 32 * 3 + 15);
  EXPECT_EQ(trapped_grains(), 0u);
}

TEST_F(TrappedMemory, an_end_at_the_border_of_chunks_traps_nothing) {
  map(0, 1);
  map(1, 1);
  begin(0, 40);
  EXPECT_EQ(trapped_grains(), 24u);
  end(0, 40);
  begin(10, 54);
  EXPECT_EQ(trapped_grains(), 10u);
  end(10, 54);
}

TEST_F(TrappedMemory, neighbours_that_together_fill_a_chunk_trap_nothing) {
  Chunk* const two = map(0, 2);
  begin(0, 10);
  begin(10, 54);
  EXPECT_EQ(trapped_grains(), 0u);
  EXPECT_EQ(two->partly_used, two->size);
  end(0, 10);
  EXPECT_EQ(trapped_grains(), 10u) << "what one of them frees the other traps";
  end(10, 54);
  EXPECT_EQ(trapped_grains(), 0u) << "wholly idle, it may move";
}

TEST_F(TrappedMemory, each_chunk_has_its_own_count) {
  map(0, 1);
  map(1, 1);
  map(2, 1);
  begin(0, 8);
  begin(16, 20);
  begin(70, 10);
  EXPECT_EQ(trapped_grains(), (32u - 8 - 16) + (32u - 4) + (32u - 10));
  end(16, 20);
  EXPECT_EQ(trapped_grains(), 24u + 0u + 22u);
  end(0, 8);
  end(70, 10);
}

TEST_F(TrappedMemory, a_chunk_that_is_used_in_part_may_be_mapped_a_second_time) {
  Chunk* const one = chunk(1);
  table.map(one, at(50));
  table.map(one, at(0));
  begin(4, 8);
  table.unmap(span(50, 1));
  EXPECT_EQ(trapped_grains(), 24u);
  end(4, 8);
}

// Allocations come and go; what the table counts is what a look at each of them says.
TEST_F(TrappedMemory, is_what_a_look_at_every_allocation_says) {
  std::mt19937_64 random(7);
  const auto below = [&](std::uint64_t n) {
    return std::uniform_int_distribution<std::uint64_t>(0, n - 1)(random);
  };
  Vector<std::pair<Chunk*, AddressRange>> chunks;
  Bytes units = 0;
  while (units < 60) {
    const Bytes size = 1 + below(6);
    chunks.emplace_back(map(units, size), span(units, size));
    units += size;
  }
  const Bytes all = units * 32;
  Vector<AddressRange> live;
  for (int step = 0; step < 4000; ++step) {
    const Bytes size = below(3) == 0 ? 32 * (1 + below(6)) : 1 + below(150);
    const Bytes first = below(2) == 0 ? below(units) * 32 : below(all);
    const AddressRange range = grains(first, std::min(size, all - first));
    const bool is_free = std::none_of(live.begin(), live.end(),
                                      [&](const auto& other) { return other.overlaps(range); });
    if (is_free) {
      live.push_back(range);
      table.begin_use(range);
    } else {
      const std::size_t one = below(live.size());
      table.end_use(live[one]);
      live.erase(live.begin() + static_cast<std::ptrdiff_t>(one));
    }
    Bytes trapped = 0;
    for (const auto& [chunk, place] : chunks) {
      Bytes partly = 0;
      for (const AddressRange& other : live) {
        if (!other.overlaps(place) || other.contains(place)) continue;
        partly += std::min(other.end(), place.end()) - std::max(other.begin, place.begin);
      }
      ASSERT_EQ(chunk->partly_used, partly);
      if (partly > 0) trapped += place.size - partly;
    }
    ASSERT_EQ(table.trapped_bytes(), trapped);
    ASSERT_EQ(table.validate(), "");
  }
  for (const AddressRange& range : live) table.end_use(range);
  EXPECT_EQ(table.trapped_bytes(), 0u);
}

// --- what must not be

using ChunkTableDeath = ChunkTableTest;

TEST_F(ChunkTableDeath, two_chunks_at_one_address_abort) {
  map(0, 1);
  Chunk* other = chunk(1);
  EXPECT_DEATH(table.map(other, at(0)), "two chunks mapped at one address");
}

TEST_F(ChunkTableDeath, a_chunk_where_nothing_is_reserved_aborts) {
  Chunk* other = chunk(1);
  EXPECT_DEATH(table.map(other, at(100)), "a chunk mapped where nothing is reserved");
}

}  // namespace
}  // namespace vpmm::vm
