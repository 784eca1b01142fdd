// context: memory for host copies that is taken from the system ahead of its use.
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstddef>
#include <vector>

#include "host_copy/host_memory.hpp"

namespace vpmm::test {
namespace {

// By several threads, and by one.
class HostCopyMemory : public ::testing::TestWithParam<Bytes> {};

TEST_P(HostCopyMemory, is_resident_once_it_was_touched_and_keeps_its_contents) {
  constexpr Bytes kSystemPage = 4 * kKiB;
  const Bytes size = GetParam();
  const host_copy::HostMemory memory(size);
  for (const Bytes at : {Bytes{0}, size / 2, size - 1}) memory.begin()[at] = std::byte{7};
  memory.touch();
  for (const Bytes at : {Bytes{0}, size / 2, size - 1})
    EXPECT_EQ(memory.begin()[at], std::byte{7}) << at;
  std::vector<unsigned char> pages((size + kSystemPage - 1) / kSystemPage);
  ASSERT_EQ(::mincore(memory.begin(), size, pages.data()), 0);
  EXPECT_TRUE(
      std::all_of(pages.begin(), pages.end(), [](unsigned char page) { return (page & 1) != 0; }));
}

INSTANTIATE_TEST_SUITE_P(Sizes, HostCopyMemory, ::testing::Values(5000, 300 * kMiB + 5000));

}  // namespace
}  // namespace vpmm::test
