// SPDX-License-Identifier: Apache-2.0
// small: from an address to what stands at its page.
#include <gtest/gtest.h>

#include <set>
#include <vector>

#include "small/pagemap.hpp"
#include "small/segment.hpp"
#include "support/page_size.hpp"

namespace vpmm::small {
namespace {

DevicePtr at(std::uint64_t address) { return DevicePtr{address}; }

TEST(Pagemap, has_an_entry_for_each_page_that_every_address_inside_it_finds) {
  for (const Bytes page : {kPage, 3 * kPage}) {
    Pagemap pagemap(page);
    const AddressRange reservation{at(64 * page), 10 * page};
    pagemap.cover(reservation);
    std::set<PagemapEntry*> entries;
    for (std::uint64_t i = 0; i < 10; ++i) {
      const DevicePtr begin = reservation.begin + i * page;
      PagemapEntry* entry = pagemap.at(begin);
      ASSERT_NE(entry, nullptr);
      EXPECT_EQ(pagemap.at(begin + 1), entry);
      EXPECT_EQ(pagemap.at(begin + (page - 1)), entry);
      EXPECT_EQ(entry->content(), Content{}) << "nothing stands there yet";
      entries.insert(entry);
    }
    EXPECT_EQ(entries.size(), 10u);
  }
}

TEST(Pagemap, knows_nothing_about_addresses_outside_its_reservations) {
  Pagemap pagemap(kPage);
  EXPECT_EQ(pagemap.at(at(kPage)), nullptr);
  pagemap.cover({at(64 * kPage), 10 * kPage});
  EXPECT_EQ(pagemap.at(at(64 * kPage) - 1), nullptr);
  EXPECT_EQ(pagemap.at(at(74 * kPage)), nullptr);
  EXPECT_EQ(pagemap.at(DevicePtr{}), nullptr);
  EXPECT_EQ(pagemap.at(at(~std::uint64_t{0})), nullptr);
}

TEST(Pagemap, covering_again_keeps_what_was_written) {
  Pagemap pagemap(kPage);
  const AddressRange reservation{at(64 * kPage), 10 * kPage};
  pagemap.cover(reservation);
  PagemapEntry* entry = pagemap.at(reservation.begin + 3 * kPage);
  const PageRun run;
  entry->enter(run, 0);
  pagemap.cover(reservation);
  EXPECT_EQ(pagemap.at(reservation.begin + 3 * kPage), entry);
  EXPECT_EQ(entry->content().run(), &run);
}

TEST(Pagemap, covers_any_number_of_reservations) {
  Pagemap pagemap(kPage);
  std::set<PagemapEntry*> entries;
  for (std::uint64_t i = 0; i < 100; ++i) {
    pagemap.cover({at((i + 1) * 100 * kPage), kPage});
    entries.insert(pagemap.at(at((i + 1) * 100 * kPage)));
  }
  EXPECT_EQ(entries.size(), 100u);
  EXPECT_EQ(entries.count(nullptr), 0u);
  for (std::uint64_t i = 0; i < 100; ++i)
    EXPECT_EQ(entries.count(pagemap.at(at((i + 1) * 100 * kPage))), 1u);
  EXPECT_EQ(pagemap.at(at(50'000 * kPage)), nullptr);
}

TEST(Pagemap, for_which_there_is_no_host_memory_knows_nothing_and_covers_others) {
  Pagemap pagemap(kPage);
  pagemap.cover({at(kPage), ~Bytes{0} - 2 * kPage});
  EXPECT_EQ(pagemap.at(at(64 * kPage)), nullptr);
  pagemap.cover({at(64 * kPage), 10 * kPage});
  EXPECT_NE(pagemap.at(at(64 * kPage)), nullptr);
}

TEST(Pagemap, how_far_into_its_page_an_address_is) {
  for (const Bytes page : {kPage, 3 * kMiB}) {
    Pagemap pagemap(page);
    pagemap.cover({at(64 * kPage), 10 * page});
    const DevicePtr begin = at(64 * kPage) + 7 * page;
    EXPECT_EQ(pagemap.find(begin).offset, 0u);
    EXPECT_EQ(pagemap.find(begin + 777).offset, 777u);
    EXPECT_EQ(pagemap.find(begin + (page - 1)).offset, page - 1);
    EXPECT_EQ(pagemap.find(begin + (page - 1)).entry, pagemap.at(begin));
  }
}

// Whoever asks about memory that is nobody's any more may see the content of one time and what was
// beside it at another.
TEST(PagemapEntry, what_stands_beside_the_owner_says_of_which_kind_it_is) {
  PagemapEntry entry;
  const std::vector<std::uint64_t> words(16);
  const auto* const cache = reinterpret_cast<const StreamCache*>(words.data());
  region::Region pages;
  Slab slab;
  PageRun run;
  std::atomic<Content> contents[4];
  run.contents = contents;
  EXPECT_EQ(entry.cache(), nullptr);
  entry.enter(pages, cache);
  EXPECT_EQ(entry.content().region(), &pages);
  EXPECT_EQ(entry.cache(), cache);
  EXPECT_EQ(entry.unit_contents(), nullptr);
  entry.enter(slab);
  EXPECT_EQ(entry.content(), Content(slab, 0));
  EXPECT_EQ(entry.cache(), nullptr);
  EXPECT_EQ(entry.unit_contents(), nullptr);
  entry.enter(run, 0);
  EXPECT_EQ(entry.content().run(), &run);
  EXPECT_EQ(entry.unit_contents(), contents);
  EXPECT_EQ(entry.cache(), nullptr);
  entry.leave();
  EXPECT_EQ(entry.content(), Content{});
}

TEST(Content, is_of_one_kind_and_no_other) {
  const Slab slab;
  const Segment segment;
  const PageRun run;
  const region::Region region;
  const auto kinds = [](Content content) {
    return std::vector<bool>{content.slab() != nullptr, content.segment() != nullptr,
                             content.run() != nullptr, content.region() != nullptr};
  };
  EXPECT_EQ(kinds(Content{}), (std::vector{false, false, false, false}));
  EXPECT_EQ(kinds(Content(slab, 0)), (std::vector{true, false, false, false}));
  EXPECT_EQ(kinds(Content(&segment)), (std::vector{false, true, false, false}));
  EXPECT_EQ(kinds(Content(&run)), (std::vector{false, false, true, false}));
  EXPECT_EQ(kinds(Content(&region)), (std::vector{false, false, false, true}));
  EXPECT_EQ(Content(slab, 0).slab(), &slab);
  EXPECT_EQ(Content(&segment).segment(), &segment);
  EXPECT_EQ(Content(&run).run(), &run);
  EXPECT_EQ(Content(&region).region(), &region);
}

TEST(Content, of_a_slab_names_its_class_and_unit) {
  Slab slab;
  for (const std::size_t slab_class : {std::size_t{0}, kSlabClasses - 1})
    for (const std::uint64_t unit : {0U, 1U, 127U, 1023U, 1024U, 2047U}) {
      slab.slab_class = static_cast<std::uint8_t>(slab_class);
      const Content content(slab, unit);
      EXPECT_EQ(content.slab(), &slab);
      EXPECT_EQ(content.slab_class(), slab_class);
      EXPECT_EQ(content.unit(), unit % 1024);
      EXPECT_EQ(content.segment(), nullptr);
    }
}

}  // namespace
}  // namespace vpmm::small
