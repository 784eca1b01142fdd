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
      EXPECT_EQ(entry->owner(), Owner{}) << "nothing stands there yet";
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
  entry->enter(arena, 0);
  directory.cover(reservation);
  EXPECT_EQ(directory.at(reservation.begin + 3 * kPage), entry);
  EXPECT_EQ(entry->owner().arena(), &arena);
}

TEST(Directory, covers_any_number_of_reservations) {
  Directory directory(kPage);
  std::set<PageEntry*> entries;
  for (std::uint64_t i = 0; i < 100; ++i) {
    directory.cover({at((i + 1) * 100 * kPage), kPage});
    entries.insert(directory.at(at((i + 1) * 100 * kPage)));
  }
  EXPECT_EQ(entries.size(), 100u);
  EXPECT_EQ(entries.count(nullptr), 0u);
  for (std::uint64_t i = 0; i < 100; ++i) EXPECT_EQ(entries.count(directory.at(at((i + 1) * 100 * kPage))), 1u);
  EXPECT_EQ(directory.at(at(50'000 * kPage)), nullptr);
}

TEST(Directory, how_far_into_its_page_an_address_is) {
  for (const Bytes page : {kPage, 3 * kMiB}) {
    Directory directory(page);
    directory.cover({at(64 * kPage), 10 * page});
    const DevicePtr begin = at(64 * kPage) + 7 * page;
    EXPECT_EQ(directory.find(begin).offset, 0u);
    EXPECT_EQ(directory.find(begin + 777).offset, 777u);
    EXPECT_EQ(directory.find(begin + (page - 1)).offset, page - 1);
    EXPECT_EQ(directory.find(begin + (page - 1)).entry, directory.at(begin));
  }
}

// Whoever asks about memory that is nobody's any more may see the owner of one time and what was beside it at another.
TEST(PageEntry, what_stands_beside_the_owner_says_of_which_kind_it_is) {
  PageEntry entry;
  const std::vector<std::uint64_t> words(16);
  const auto* const shard = reinterpret_cast<const Shard*>(words.data());
  region::Region pages;
  Slab slab;
  Arena arena;
  std::atomic<Owner> owners[4];
  arena.owners = owners;
  EXPECT_EQ(entry.shard(), nullptr);
  entry.enter(pages, shard);
  EXPECT_EQ(entry.owner().region(), &pages);
  EXPECT_EQ(entry.shard(), shard);
  EXPECT_EQ(entry.unit_owners(), nullptr);
  entry.enter(slab);
  EXPECT_EQ(entry.owner(), Owner(slab, 0));
  EXPECT_EQ(entry.shard(), nullptr);
  EXPECT_EQ(entry.unit_owners(), nullptr);
  entry.enter(arena, 0);
  EXPECT_EQ(entry.owner().arena(), &arena);
  EXPECT_EQ(entry.unit_owners(), owners);
  EXPECT_EQ(entry.shard(), nullptr);
  entry.leave();
  EXPECT_EQ(entry.owner(), Owner{});
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
  EXPECT_EQ(kinds(Owner{}), (std::vector{false, false, false, false}));
  EXPECT_EQ(kinds(Owner(slab, 0)), (std::vector{true, false, false, false}));
  EXPECT_EQ(kinds(Owner(&extent)), (std::vector{false, true, false, false}));
  EXPECT_EQ(kinds(Owner(&arena)), (std::vector{false, false, true, false}));
  EXPECT_EQ(kinds(Owner(&region)), (std::vector{false, false, false, true}));
  EXPECT_EQ(Owner(slab, 0).slab(), &slab);
  EXPECT_EQ(Owner(&extent).extent(), &extent);
  EXPECT_EQ(Owner(&arena).arena(), &arena);
  EXPECT_EQ(Owner(&region).region(), &region);
}

TEST(Owner, of_a_slab_names_its_class_and_unit) {
  Slab slab;
  for (const std::size_t slab_class : {std::size_t{0}, kSlabClasses - 1})
    for (const std::uint64_t unit : {0, 1, 127, 1023, 1024, 2047}) {
      slab.slab_class = static_cast<std::uint8_t>(slab_class);
      const Owner owner(slab, unit);
      EXPECT_EQ(owner.slab(), &slab);
      EXPECT_EQ(owner.slab_class(), slab_class);
      EXPECT_EQ(owner.unit(), unit % 1024);
      EXPECT_EQ(owner.extent(), nullptr);
    }
}

}  // namespace
}  // namespace vpmm::small
