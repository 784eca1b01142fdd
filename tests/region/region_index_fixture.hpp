// SPDX-License-Identifier: Apache-2.0
// region tests: an index whose pages are mapped, allocated and looked at by number; valid at the
// end of every test.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "region/region_words.hpp"

namespace vpmm::region {

class RegionIndexTest : public testing::Test {
 protected:
  ~RegionIndexTest() override { EXPECT_EQ(index.validate(), ""); }

  // Makes unmapped pages free, as mapping them would.
  Region* map(std::uint64_t first, std::uint64_t count, time::Stamp stamp = complete()) {
    return index.attach_free(index.detach(region_at(index, first), pages(first, count)), stamp);
  }
  Region* allocate(std::uint64_t first, std::uint64_t count) {
    return index.allocate(region_at(index, first), pages(first, count),
                          Owner{count * kPage, A, {}, 0});
  }
  // The pages at which the free regions begin, oldest first.
  Vector<std::uint64_t> by_age() const {
    Vector<std::uint64_t> begins;
    index.for_each_free_by_age([&](Region* region) {
      begins.push_back((region->range.begin - kStart) / kPage);
      return true;
    });
    return begins;
  }
  Vector<Vector<std::uint64_t>> runs() const {
    Vector<Vector<std::uint64_t>> all;
    index.for_each_run([&](const Vector<Region*>& run) {
      all.emplace_back();
      for (const Region* region : run) all.back().push_back((region->range.begin - kStart) / kPage);
      return true;
    });
    return all;
  }

  RegionIndex index{kPage};
};

}  // namespace vpmm::region
