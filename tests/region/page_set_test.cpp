// SPDX-License-Identifier: Apache-2.0
// region tests: the set of page numbers against std::set.
#include "region/page_set.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <optional>
#include <random>
#include <set>
#include <vector>

namespace vpmm::region {
namespace {

std::optional<std::uint64_t> first_from(const std::set<std::uint64_t>& set, std::uint64_t page) {
  const auto found = set.lower_bound(page);
  return found == set.end() ? std::nullopt : std::optional(*found);
}

std::optional<std::uint64_t> last_up_to(const std::set<std::uint64_t>& set, std::uint64_t page) {
  const auto behind = set.upper_bound(page);
  return behind == set.begin() ? std::nullopt : std::optional(*std::prev(behind));
}

// Changes and questions at random; few numbers at a time, so that most words are empty.
void agrees_with_a_set(std::uint64_t pages, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<std::uint64_t> memory(PageSet::words(pages));
  PageSet ours(memory.data(), pages);
  std::set<std::uint64_t> naive;
  for (int i = 0; i < 3000; ++i) {
    const std::uint64_t page = random() % pages;
    const bool is_in = naive.contains(page);
    if (is_in) {
      ours.remove(page);
      naive.erase(page);
    } else if (naive.size() < 20) {
      ours.add(page);
      naive.insert(page);
    } else {
      ours.remove(*naive.begin());
      naive.erase(naive.begin());
    }
    const std::uint64_t asked = random() % pages;
    ASSERT_EQ(ours.first_from(asked), first_from(naive, asked))
        << pages << " pages, from " << asked;
    ASSERT_EQ(ours.last_up_to(asked), last_up_to(naive, asked))
        << pages << " pages, up to " << asked;
    ASSERT_EQ(ours.empty(), naive.empty());
  }
}

TEST(PageSet, numbers_are_found_as_in_a_sorted_set_whatever_the_depth) {
  constexpr std::uint64_t kPages[] = {1,    2,    63,      64,      65,       4095,
                                      4096, 4097, 262'144, 262'145, 5'000'000};
  for (const std::uint64_t pages : kPages) agrees_with_a_set(pages, pages);
}

TEST(PageSet, an_empty_set_has_no_first_and_no_last) {
  std::vector<std::uint64_t> memory(PageSet::words(100'000));
  PageSet set(memory.data(), 100'000);
  set.add(77'777);
  set.remove(77'777);
  EXPECT_TRUE(set.empty());
  EXPECT_EQ(set.first_from(0), std::nullopt);
  EXPECT_EQ(set.last_up_to(99'999), std::nullopt);
}

TEST(PageSet, nothing_comes_from_behind_the_last_page) {
  std::vector<std::uint64_t> memory(PageSet::words(64));
  PageSet set(memory.data(), 64);
  set.add(63);
  EXPECT_EQ(set.first_from(63), 63U);
  EXPECT_EQ(set.first_from(64), std::nullopt);
}

}  // namespace
}  // namespace vpmm::region
