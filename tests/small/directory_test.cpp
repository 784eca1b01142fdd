// small: from an address to what stands at its page.
#include <gtest/gtest.h>

#include <set>

#include "small/directory.hpp"

namespace vpmm::small {
namespace {

constexpr Bytes kPage = 2 * kMiB;

DevicePtr at(std::uint64_t address) { return DevicePtr{address}; }

TEST(Directory, has_an_entry_for_each_page_that_every_address_inside_it_finds) {
  for (const Bytes page : {kPage, 3 * kPage}) {
    Directory directory(page);
    const AddressRange reservation{at(64 * page), 10 * page};
    directory.cover(reservation);
    std::set<PageEntry*> entries;
    for (std::uint64_t i = 0; i < 10; ++i) {
      const DevicePtr begin = reservation.begin + i * page;
      PageEntry* entry = directory.at(begin);
      ASSERT_NE(entry, nullptr);
      EXPECT_EQ(directory.at(begin + 1), entry);
      EXPECT_EQ(directory.at(begin + (page - 1)), entry);
      EXPECT_EQ(entry->owner.load(), 0u) << "nothing stands there yet";
      entries.insert(entry);
    }
    EXPECT_EQ(entries.size(), 10u);
  }
}

TEST(Directory, knows_nothing_about_addresses_outside_its_reservations) {
  Directory directory(kPage);
  EXPECT_EQ(directory.at(at(kPage)), nullptr);
  directory.cover({at(64 * kPage), 10 * kPage});
  EXPECT_EQ(directory.at(at(64 * kPage) - 1), nullptr);
  EXPECT_EQ(directory.at(at(74 * kPage)), nullptr);
  EXPECT_EQ(directory.at(DevicePtr{}), nullptr);
  EXPECT_EQ(directory.at(at(~std::uint64_t{0})), nullptr);
}

TEST(Directory, covering_again_keeps_what_was_written) {
  Directory directory(kPage);
  const AddressRange reservation{at(64 * kPage), 10 * kPage};
  directory.cover(reservation);
  PageEntry* entry = directory.at(reservation.begin + 3 * kPage);
  entry->owner.store(42);
  directory.cover(reservation);
  EXPECT_EQ(directory.at(reservation.begin + 3 * kPage), entry);
  EXPECT_EQ(entry->owner.load(), 42u);
}

TEST(Directory, covers_the_first_sixteen_reservations_and_says_so_of_the_next) {
  Directory directory(kPage);
  std::set<PageEntry*> entries;
  for (std::uint64_t i = 0; i < 16; ++i) {
    directory.cover({at((i + 1) * 100 * kPage), kPage});
    entries.insert(directory.at(at((i + 1) * 100 * kPage)));
  }
  EXPECT_EQ(entries.size(), 16u);
  EXPECT_EQ(entries.count(nullptr), 0u);
  directory.cover({at(5000 * kPage), kPage});
  EXPECT_EQ(directory.at(at(5000 * kPage)), nullptr);
}

TEST(PageEntry, tells_an_arena_from_an_allocation_of_whole_pages) {
  Arena arena;
  region::Region region;
  EXPECT_TRUE(PageEntry::is_arena(PageEntry::of(&arena)));
  EXPECT_EQ(PageEntry::arena(PageEntry::of(&arena)), &arena);
  EXPECT_FALSE(PageEntry::is_arena(PageEntry::of(&region)));
  EXPECT_EQ(PageEntry::region(PageEntry::of(&region)), &region);
}

}  // namespace
}  // namespace vpmm::small
