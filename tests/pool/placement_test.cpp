// pool: which part of free memory a request takes, from the chunks that would be partly used.
#include "pool/placement.hpp"

#include <optional>
#include <string>

#include "plan_world.hpp"

namespace vpmm::pool {
namespace {

class PlacementTest : public PlanWorld {
 protected:
  // The page at which a request begins, and the pages it adds to those pinned.
  std::pair<Bytes, std::int64_t> place(region::Region* free, Bytes pages, Placement where, Bytes alignment = kPage) {
    const Place place = best_place(chunks, free, pages * kPage, alignment, where);
    return {(place.begin - kStart) / kPage, place.pinned / static_cast<std::int64_t>(kPage)};
  }
  using Answer = std::pair<Bytes, std::int64_t>;
};

TEST_F(PlacementTest, an_end_that_uses_a_chunk_up_is_taken_rather_than_one_that_breaks_a_chunk) {
  region::Region* free = map_free(0, {8, 3});
  EXPECT_EQ(place(free, 3, Placement::ends), Answer(8, 0));
  EXPECT_EQ(place(free, 8, Placement::ends), Answer(0, 0));
}

TEST_F(PlacementTest, the_rest_of_a_chunk_partly_in_use_is_taken_first) {
  region::Region* free = map_free(0, {8, 8});
  region::Region* used = index.allocate(free, {page(0), 2 * kPage}, {});
  EXPECT_EQ(place(used->next, 6, Placement::ends), Answer(2, -6));
  EXPECT_EQ(place(used->next, 4, Placement::ends), Answer(2, -4));
  EXPECT_EQ(place(used->next, 8, Placement::ends), Answer(2, 0)) << "either end leaves 6 of one chunk";
}

TEST_F(PlacementTest, of_equal_places_the_lowest_is_taken) {
  EXPECT_EQ(place(map_free(0, {4, 4, 4}), 4, Placement::anywhere), Answer(0, 0));
}

TEST_F(PlacementTest, a_chunk_in_the_middle_of_a_range_is_found_only_by_the_search_of_all_places) {
  region::Region* free = map_free(0, {7, 3, 7});
  EXPECT_EQ(place(free, 3, Placement::ends), Answer(0, 4));
  EXPECT_EQ(place(free, 3, Placement::anywhere), Answer(7, 0));
}

TEST_F(PlacementTest, a_request_inside_one_chunk_is_counted_once) {
  region::Region* free = map_free(0, {10});
  EXPECT_EQ(pinned_by(chunks, free->range, {page(2), 3 * kPage}), static_cast<std::int64_t>(7 * kPage));
  EXPECT_EQ(place(free, 3, Placement::anywhere), Answer(0, 7));
}

TEST_F(PlacementTest, alignment_is_kept_at_either_end) {
  region::Region* free = map_free(1, {8, 3});  // pages 1 to 11
  EXPECT_EQ(place(free, 2, Placement::ends, 4 * kPage), Answer(4, 6));
  region::Region* higher = map_free(16, {4, 8, 4});
  EXPECT_EQ(place(higher, 5, Placement::ends), Answer(16, 7));
  EXPECT_EQ(place(map_free(41, {8, 3}), 3, Placement::ends, 4 * kPage), Answer(44, 5)) << "48 would leave 7 and 1";
}

class CutTest : public PlanWorld {
 protected:
  CutTest() : PlanWorld(Config{}) {}
  // "5 of 8 at 0": the chunk of eight pages at page 0 is cut behind its fifth.
  std::string cut(region::Region* free, AddressRange part, Bytes least = 1) {
    const std::optional<Cut> cut = best_cut(chunks, free->range, part, kPage, least * kPage);
    if (!cut) return "none";
    return std::to_string(cut->at / kPage) + " of " + std::to_string(cut->chunk.chunk->size / kPage) + " at " +
           std::to_string((cut->chunk.at - kStart) / kPage);
  }
  static AddressRange pages(Bytes first, Bytes count) { return {page(first), count * kPage}; }
};

TEST_F(CutTest, a_chunk_is_cut_where_the_request_ends_in_it_or_begins) {
  region::Region* free = map_free(0, {8});
  EXPECT_EQ(cut(free, pages(0, 3)), "3 of 8 at 0");
  EXPECT_EQ(cut(free, pages(5, 3)), "5 of 8 at 0");
  EXPECT_EQ(cut(free, pages(0, 8)), "none");
  EXPECT_EQ(cut(free, pages(2, 3)), "none") << "it would take three pieces";
}

TEST_F(CutTest, of_two_chunks_that_would_break_the_one_of_which_more_is_left_is_cut) {
  region::Region* free = map_free(0, {8, 9});
  EXPECT_EQ(cut(free, pages(6, 4)), "2 of 9 at 8");
  EXPECT_EQ(cut(free, pages(7, 5)), "7 of 8 at 0");
  EXPECT_EQ(cut(free, pages(0, 10)), "2 of 9 at 8") << "the first is used up";
}

TEST_F(CutTest, what_is_left_has_whole_pages_and_is_worth_it) {
  region::Region* free = map_free(0, {8});
  EXPECT_EQ(cut(free, {page(0), 2 * kPage + kPage / 8}), "3 of 8 at 0");
  EXPECT_EQ(cut(free, {page(6) - kPage / 8, 2 * kPage + kPage / 8}), "5 of 8 at 0");
  EXPECT_EQ(cut(free, {page(0), 8 * kPage - kPage / 8}), "none");
  EXPECT_EQ(cut(free, pages(0, 3), 5), "3 of 8 at 0");
  EXPECT_EQ(cut(free, pages(0, 3), 6), "none");
}

TEST_F(CutTest, a_chunk_that_takes_long_to_be_given_back_stays_whole) {
  EXPECT_EQ(cut(map_free(0, {128}), pages(0, 3)), "3 of 128 at 0");
  EXPECT_EQ(cut(map_free(200, {129}), pages(200, 3)), "none");
}

TEST_F(CutTest, a_chunk_that_is_in_use_or_still_has_an_old_mapping_stays_whole) {
  region::Region* free = map_free(0, {8, 8});
  chunks.for_each_inside(pages(0, 8), [&](const vm::Mapping& mapping) {
    chunks.map(mapping.chunk, page(100));
    return false;
  });
  EXPECT_EQ(cut(free, pages(0, 3)), "none");
  region::Region* used = index.allocate(free, pages(8, 1), {});
  EXPECT_EQ(cut(used->next, pages(9, 3)), "none");
}

TEST_F(PlacementTest, page_mode_takes_the_front_and_the_adaptive_policy_an_end) {
  EXPECT_EQ(policy->placement(kGiB, kGiB), Placement::front);
  Config config;
  EXPECT_EQ(make_chunk_policy(config, kPage)->placement(kGiB, kGiB), Placement::ends);
  EXPECT_EQ(make_chunk_policy(config, kPage)->placement(103 * kGiB, 100 * kGiB), Placement::anywhere);
  config.prefer = Prefer::footprint;
  EXPECT_EQ(make_chunk_policy(config, kPage)->placement(kGiB, kGiB), Placement::anywhere);
}

}  // namespace
}  // namespace vpmm::pool
