// small: from an address to what stands at its page.
#include <gtest/gtest.h>

#include <set>
#include <vector>

#include "small/directory.hpp"
#include "small/extent.hpp"

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
      EXPECT_TRUE(entry->owner.load().is_none()) << "nothing stands there yet";
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
  const Arena arena;
  entry->owner.store(Owner(&arena));
  directory.cover(reservation);
  EXPECT_EQ(directory.at(reservation.begin + 3 * kPage), entry);
  EXPECT_EQ(entry->owner.load().arena(), &arena);
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

TEST(Directory, how_far_into_its_page_an_address_is) {
  for (const Bytes page : {kPage, 3 * kMiB}) {
    const Directory directory(page);
    EXPECT_EQ(directory.in_page(at(12 * page)), 0u);
    EXPECT_EQ(directory.in_page(at(12 * page) + 777), 777u);
    EXPECT_EQ(directory.in_page(at(13 * page) - 1), page - 1);
  }
}

TEST(Owner, is_of_one_kind_and_no_other) {
  const Slab slab;
  const Extent extent;
  const Arena arena;
  const region::Region region;
  const auto kinds = [](Owner owner) {
    return std::vector<bool>{owner.slab() != nullptr, owner.extent() != nullptr, owner.arena() != nullptr,
                             owner.region() != nullptr};
  };
  EXPECT_TRUE(Owner{}.is_none());
  EXPECT_EQ(kinds(Owner{}), (std::vector{false, false, false, false}));
  EXPECT_EQ(kinds(Owner(&slab)), (std::vector{true, false, false, false}));
  EXPECT_EQ(kinds(Owner(&extent)), (std::vector{false, true, false, false}));
  EXPECT_EQ(kinds(Owner(&arena)), (std::vector{false, false, true, false}));
  EXPECT_EQ(kinds(Owner(&region)), (std::vector{false, false, false, true}));
  EXPECT_EQ(Owner(&slab).slab(), &slab);
  EXPECT_EQ(Owner(&extent).extent(), &extent);
  EXPECT_EQ(Owner(&arena).arena(), &arena);
  EXPECT_EQ(Owner(&region).region(), &region);
  EXPECT_FALSE(Owner(&region).is_none());
}

}  // namespace
}  // namespace vpmm::small
