// vm: the table of chunks and mappings.
#include "vm/chunk_table.hpp"

#include <gtest/gtest.h>

#include <vector>

namespace vpmm::vm {
namespace {

constexpr DevicePtr kStart{0x7000'0000'0000};
constexpr Bytes kUnit = 2 * kMiB;

DevicePtr at(Bytes unit) { return kStart + unit * kUnit; }
AddressRange span(Bytes first, Bytes count) { return {at(first), count * kUnit}; }

class ChunkTableTest : public testing::Test {
 protected:
  ~ChunkTableTest() override { EXPECT_EQ(table.validate(), ""); }
  Chunk* chunk(Bytes units) { return table.add(driver::ChunkHandle{next_++}, units * kUnit); }
  // The units at which the mappings begin.
  static Vector<Bytes> begins(const Vector<Mapping>& mappings) {
    Vector<Bytes> units;
    for (const Mapping& mapping : mappings) units.push_back((mapping.at - kStart) / kUnit);
    return units;
  }
  ChunkTable table;
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
  Chunk* one = chunk(1);
  table.map(one, at(0));
  table.handle_released(one);
  EXPECT_EQ(table.chunk_bytes(), kUnit) << "the mapping keeps the memory";
  table.unmap(span(0, 1));
  EXPECT_EQ(table.chunk_bytes(), 0u);
  Chunk* other = chunk(1);
  table.map(other, at(0));
  table.unmap(span(0, 1));
  EXPECT_EQ(table.chunk_bytes(), kUnit) << "the handle keeps the memory";
  table.handle_released(other);
  EXPECT_EQ(table.chunk_bytes(), 0u);
}

TEST_F(ChunkTableTest, only_whole_mappings_are_inside_a_range) {
  table.map(chunk(2), at(0));
  table.map(chunk(2), at(2));
  table.map(chunk(2), at(4));
  EXPECT_EQ(begins(table.inside(span(1, 4))), (Vector<Bytes>{2}));
  EXPECT_EQ(begins(table.inside(span(0, 6))), (Vector<Bytes>{0, 2, 4}));
  EXPECT_TRUE(table.inside(span(1, 2)).empty());
}

TEST_F(ChunkTableTest, everything_that_overlaps_is_around_a_range) {
  table.map(chunk(2), at(0));
  table.map(chunk(2), at(2));
  table.map(chunk(2), at(8));
  Vector<Mapping> found;
  table.for_each_around(span(1, 2), [&](const Mapping& mapping) { found.push_back(mapping); });
  EXPECT_EQ(begins(found), (Vector<Bytes>{0, 2}));
}

TEST_F(ChunkTableTest, a_visit_ends_when_it_is_told_to) {
  for (Bytes i = 0; i < 5; ++i) table.map(chunk(1), at(i));
  int visited = 0;
  table.for_each_inside(span(0, 5), [&](const Mapping&) { return ++visited < 3; });
  EXPECT_EQ(visited, 3);
}

using ChunkTableDeath = ChunkTableTest;

TEST_F(ChunkTableDeath, two_chunks_at_one_address_abort) {
  table.map(chunk(1), at(0));
  Chunk* other = chunk(1);
  EXPECT_DEATH(table.map(other, at(0)), "two chunks mapped at one address");
}

TEST_F(ChunkTableDeath, forgetting_part_of_a_mapping_aborts) {
  table.map(chunk(2), at(0));
  EXPECT_DEATH(table.unmap(span(0, 1)), "part of a mapping forgotten");
}

}  // namespace
}  // namespace vpmm::vm
