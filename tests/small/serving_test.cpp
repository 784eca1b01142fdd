// SPDX-License-Identifier: Apache-2.0
// small: which server a request has, whether its memory may stay in a cache, and for whom pages are
// cut.
#include "small/serving.hpp"

#include <gtest/gtest.h>

#include "driver/sim/sim_driver.hpp"
#include "support/page_size.hpp"

namespace vpmm::small {
namespace {

class ServingTest : public ::testing::Test {
 protected:
  pool::Memory memory_of(Bytes page, bool has_page_chunks = false) {
    settings::Config config;
    config.page_chunks = has_page_chunks;
    return {sim, driver::ChunkProperties{}, config, page, timelines};
  }
  Serving serving_of(BelowAPage below_a_page) {
    ServingOptions options;
    options.below_a_page = below_a_page;
    return {options, memory};
  }

  driver::sim::SimDriver sim;
  time::Timelines timelines{sim, {}};
  const pool::Memory memory{memory_of(kPage)};
};

TEST_F(ServingTest, size_and_alignment_decide_who_serves) {
  struct Case {
    Bytes bytes, alignment;
    Server where_pages_are_cut, where_the_driver_has_a_pool;
  };
  for (const Case& each : {
           Case{1, 0, Server::blocks, Server::driver_pool},
           {kLargestBlock, kGrain, Server::blocks, Server::driver_pool},
           {kLargestBlock, kGrain + 1, Server::blocks, Server::pages},
           {kLargestBlock, 2 * kGrain, Server::blocks, Server::pages},
           {1, kPage / 2, Server::blocks, Server::pages},
           {1, kPage, Server::pages, Server::pages},
           {kLargestBlock + 1, 0, Server::spans, Server::driver_pool},
           {kLargestBlock + 1, kGrain, Server::spans, Server::driver_pool},
           {kLargestBlock + 1, kPage / 2, Server::spans, Server::pages},
           {kLargestBlock + 1, kPage, Server::pages, Server::pages},
           {kPage - 4 * kUnit, 0, Server::spans, Server::driver_pool},
           {kPage - 1, 0, Server::pages, Server::driver_pool},  // a page after rounding
           {kPage, 0, Server::pages, Server::pages},
           {kPage, 2 * kPage, Server::pages, Server::pages},
       }) {
    const auto server = [&](BelowAPage below_a_page) {
      return serving_of(below_a_page).server_of(each.bytes, each.alignment);
    };
    SCOPED_TRACE(::testing::Message() << each.bytes << " at multiples of " << each.alignment);
    EXPECT_EQ(server(BelowAPage::cut), each.where_pages_are_cut);
    EXPECT_EQ(server(BelowAPage::driver_pool), each.where_the_driver_has_a_pool);
    EXPECT_EQ(server(BelowAPage::whole_pages), Server::pages);
  }
}

TEST_F(ServingTest, what_may_stay_in_a_cache_has_four_pages_and_no_alignment_of_its_own) {
  const Serving serving = serving_of(BelowAPage::cut);
  for (const Bytes alignment : {Bytes{0}, Bytes{1}, Bytes{2}, kGrain}) {
    EXPECT_TRUE(serving.may_be_cached(1, alignment)) << alignment;
    EXPECT_TRUE(serving.may_be_cached(4 * kPage, alignment)) << alignment;
    EXPECT_FALSE(serving.may_be_cached(4 * kPage + 1, alignment)) << alignment;
  }
  for (const Bytes alignment : {Bytes{3}, Bytes{96}, kGrain + 1, 2 * kGrain})
    EXPECT_FALSE(serving.may_be_cached(1, alignment)) << alignment;
  EXPECT_EQ(serving.size_of_pages(1), kPage);
  EXPECT_EQ(serving.size_of_pages(kPage + 1), kPage + 64 * kKiB);
  EXPECT_EQ(serving.page_size(), kPage);
}

TEST_F(ServingTest, whole_pages_are_kept_unless_they_are_not_to_be) {
  for (const bool caches_pages : {true, false}) {
    ServingOptions options;
    options.caches_pages = caches_pages;
    const Serving serving(options, memory);
    EXPECT_EQ(serving.keeps_pages(kPage), caches_pages);
    EXPECT_EQ(serving.keeps_pages(4 * kPage), caches_pages);
    EXPECT_FALSE(serving.keeps_pages(4 * kPage + 64 * kKiB));
    EXPECT_FALSE(serving.proves_frees());
    options.proves_frees = true;
    EXPECT_TRUE(Serving(options, memory).proves_frees());
  }
}

// Pages are cut for requests of a page and more only where they are cut for smaller ones, may be
// kept as a whole, lie side by side, and are large.
TEST_F(ServingTest, pages_are_cut_for_a_stream_that_crowds_where_that_is_of_use) {
  struct Case {
    BelowAPage below_a_page;
    bool caches_pages;
    Bytes page;
    bool has_page_chunks, cuts;
  };
  for (const Case& each : {
           Case{BelowAPage::cut, true, kPage, false, true},
           {BelowAPage::cut, true, kMiB, false, true},
           {BelowAPage::cut, true, kMiB / 2, false, false},
           {BelowAPage::cut, true, kPage, true, false},
           {BelowAPage::cut, true, 3 * kMiB, false, false},
           {BelowAPage::cut, false, kPage, false, false},
           {BelowAPage::whole_pages, true, kPage, false, false},
           {BelowAPage::driver_pool, true, kPage, false, false},
           {BelowAPage::whole_pages, false, kPage, false, false},
       }) {
    const pool::Memory pages = memory_of(each.page, each.has_page_chunks);
    for (const std::uint32_t crowded_after : {0U, 2U}) {
      const Serving serving({each.below_a_page, each.caches_pages, false, crowded_after}, pages);
      Crowding crowding;
      for (std::uint32_t misses = 0; misses <= 2; ++misses) {
        EXPECT_EQ(serving.cuts_pages_for(crowding), each.cuts && misses >= crowded_after)
            << "pages of " << each.page << " after " << misses;
        serving.note_miss(crowding, true);
      }
    }
  }
}

}  // namespace
}  // namespace vpmm::small
