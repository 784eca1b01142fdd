// SPDX-License-Identifier: Apache-2.0
// report: tags of live allocations, and names of tags and libraries.
#include "report/tags.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "report/shortage_report.hpp"

namespace vpmm::report {
namespace {

constexpr DevicePtr kFirst{0x1000};
constexpr DevicePtr kSecond{0x2000};

TEST(Tags, sum_what_lives_by_tag_and_library) {
  Tags tags;
  EXPECT_TRUE(tags.empty());
  tags.add(kFirst, 10, {3, 7});
  tags.add(kSecond, 5, {3, 0});
  EXPECT_FALSE(tags.empty());
  EXPECT_EQ(Tags::of(tags.by_tag(), 3), 15u);
  EXPECT_EQ(Tags::of(tags.by_library(), 7), 10u);
  EXPECT_EQ(tags.by_library().size(), 1u) << "no library is none";
  EXPECT_EQ(tags.of(kFirst).tag, 3u);
  EXPECT_EQ(tags.of(kFirst).library, 7u);
  EXPECT_EQ(tags.of(DevicePtr{0x3000}).tag, 0u);
  tags.add(DevicePtr{0x4000}, 3, {3, 0});
  EXPECT_EQ(tags.take(DevicePtr{0x4000}).tag, 3u);
  EXPECT_EQ(Tags::of(tags.by_library(), 7), 10u);
  EXPECT_EQ(tags.by_library().size(), 1u);
  EXPECT_EQ(tags.take(kFirst).library, 7u);
  EXPECT_EQ(tags.take(kFirst).tag, 0u) << "it is gone";
  EXPECT_EQ(Tags::of(tags.by_tag(), 3), 5u);
  EXPECT_TRUE(tags.by_library().empty()) << "zeros are not kept";
  EXPECT_EQ(Tags::of(tags.by_library(), 7), 0u);
}

TEST(Tags, of_what_died_are_forgotten) {
  Tags tags;
  tags.add(kFirst, 10, {3, 7});
  tags.add(kSecond, 5, {4, 7});
  tags.forget_unless([](DevicePtr begin) { return begin == kSecond; });
  EXPECT_EQ(tags.of(kFirst).tag, 0u);
  EXPECT_EQ(tags.of(kSecond).tag, 4u);
  EXPECT_EQ(Tags::of(tags.by_tag(), 3), 0u);
  EXPECT_EQ(Tags::of(tags.by_library(), 7), 5u);
}

TEST(TagNames, are_given_or_made) {
  EXPECT_STREQ(tag_name(901), "");
  EXPECT_EQ(described_tag(901), "tag 901");
  set_tag_name(901, "weights of a test");
  EXPECT_STREQ(tag_name(901), "weights of a test");
  EXPECT_EQ(described_tag(901), "the tag \"weights of a test\"");
  EXPECT_EQ(tag_with_name("weights of a test"), 901u);
  const std::uint32_t made = tag_with_name("made by a test");
  EXPECT_GT(made, 0x7fffffffu) << "above those that programs number";
  EXPECT_EQ(tag_with_name("made by a test"), made);
  set_tag_name(made + 1, "taken by a test");
  EXPECT_EQ(tag_with_name("another of a test"), made + 2);
  set_tag_name(900, "made by a test");
  EXPECT_EQ(tag_with_name("made by a test"), 900u) << "the lowest";
}

bool is_tagging_advised() {
  const std::vector<std::string> list = advice({});
  return std::any_of(list.begin(), list.end(), [](const std::string& sentence) {
    return sentence == "see how much of it each library holds (" + untagged_libraries() +
                           "): VPMM_TAG_LIBRARIES=1 PROGRAM";
  });
}

TEST(Libraries, without_a_tag_are_listed_where_there_are_several) {
  note_library("torch", false);
  EXPECT_FALSE(is_tagging_advised());
  EXPECT_EQ(untagged_libraries(), "") << "all memory is its";
  note_library("cupy", true);
  EXPECT_EQ(untagged_libraries(), "torch");
  EXPECT_TRUE(is_tagging_advised());
  note_library("cupy", false);
  EXPECT_EQ(untagged_libraries(), "cupy, torch");
  note_library("cupy", true);
  note_library("torch", true);
  EXPECT_EQ(untagged_libraries(), "");
  EXPECT_FALSE(is_tagging_advised());
}

}  // namespace
}  // namespace vpmm::report
