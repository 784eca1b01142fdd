// SPDX-License-Identifier: Apache-2.0
// context: the specification's five-call walkthrough, cases A to D, for every X from 0 to 20.
//
// +10, +1, -10, +4, +11 on one stream with 11 + X pages preallocated. Pictures as the specification
// draws them, with the plan that moves the fewest pages (docs/spec.md, V18), after zombies were
// swept.
#include <gtest/gtest.h>

#include <map>
#include <string>

#include <fmt/format.h>

#include "support/pool_world.hpp"

namespace vpmm::test {
namespace {

std::string number(Bytes pages, const char* kind) {
  return pages == 0 ? "" : fmt::format("[{}{}]", kind, pages);
}

// What step 4 (+4) leaves.
std::string after_four(Bytes x) {
  if (x >= 4 && x < 10) return "[-10][1][4]" + number(x - 4, "-");
  return "[4][-6][1]" + number(x, "-");
}

// What step 5 (+11) leaves. At X = 10 two ranges fit +4 equally well: the lowest address wins.
std::string after_eleven(Bytes x) {
  if (x >= 11) return "[4][-6][1][11]" + number(x - 11, "-");  // case A: no defragmentation
  if (x == 10) return "[4][*1][-5][1][11]";                    // case B: the tail lacks one page
  if (x > 4)
    return fmt::format("[*{}]", 15 - x) + number(x - 5, "-") +
           "[1][4][11]";                 // case B: the tail lacks 15 - X
  if (x == 4) return "[*10][1][4][11]";  // case C: ten pages move, one is new
  return "[4][*6][1][11]";               // case D: six move, 5 - X are new
}

Bytes footprint(Bytes x) { return x < 5 ? 16 : 11 + x; }

class Walkthrough : public ::testing::TestWithParam<int> {};

void walk(WorldOptions options, Bytes unit, Bytes x) {
  options.config.pages = (11 + x) * (unit / options.config.page_size.value_or(2 * kMiB));
  PoolWorld world(options);
  const Bytes in_pages = unit / options.config.page_size.value_or(2 * kMiB);
  const auto scaled = [&](const std::string& picture) {
    std::string text;
    for (std::size_t i = 0; i < picture.size();) {
      if (!std::isdigit(static_cast<unsigned char>(picture[i]))) {
        text += picture[i++];
        continue;
      }
      std::size_t used = 0;
      text += std::to_string(std::stoull(picture.substr(i), &used) * in_pages);
      i += used;
    }
    return text;
  };
  const StreamHandle stream = world.stream();
  const auto use = [&](DevicePtr ptr, Bytes pages) { world.use(ptr, pages * unit, stream); };
  const DevicePtr ten = world.allocate(10 * unit, stream);
  use(ten, 10);
  EXPECT_EQ(world.picture(), scaled("[10]" + number(1 + x, "-")));
  const DevicePtr one = world.allocate(1 * unit, stream);
  use(one, 1);
  EXPECT_EQ(world.picture(), scaled("[10][1]" + number(x, "-")));
  world.deallocate(ten, stream);
  EXPECT_EQ(world.picture(), scaled("[-10][1]" + number(x, "-")));
  const DevicePtr four = world.allocate(4 * unit, stream);
  use(four, 4);
  EXPECT_EQ(world.picture(), scaled(after_four(x)));
  const DevicePtr eleven = world.allocate(11 * unit, stream);
  use(eleven, 11);
  world.wait();
  EXPECT_EQ(world.picture(), scaled(after_eleven(x)));
  EXPECT_EQ(world.statistics().live_bytes, 16 * unit);
  EXPECT_EQ(world.statistics().mapped_bytes, footprint(x) * unit);
}

TEST_P(Walkthrough, page_mode_draws_the_pictures_of_the_specification) {
  walk(page_world(kGiB), kGiB, static_cast<Bytes>(GetParam()));
}

INSTANTIATE_TEST_SUITE_P(X, Walkthrough, ::testing::Range(0, 21));

}  // namespace
}  // namespace vpmm::test
