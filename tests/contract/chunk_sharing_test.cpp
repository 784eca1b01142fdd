// SPDX-License-Identifier: Apache-2.0
// tests/contract: what both drivers do with chunks that go from process to process as file
// descriptors.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>
#include <string>

#include "support/gpu_test.hpp"

namespace vpmm::test::chunk_sharing_test {
namespace {

using ::testing::ExitedWithCode;
using ::testing::Ne;

constexpr std::uint32_t kPattern = 0xA5A5'1234;
constexpr std::uint32_t kOther = 0x0BAD'F00D;
constexpr int kNoFile = -7;
constexpr const char* kVariable = "VPMM_TEST_CHUNK_FILE";

// The statement of a death test runs in a program that has run the test up to there itself. It
// inherits the descriptor of the first process, whose number reaches it through the environment,
// which is not overwritten.
int handed_over(int file) {
  EXPECT_EQ(fcntl(file, F_SETFD, 0), 0);
  setenv(kVariable, std::to_string(file).c_str(), 0);
  return std::stoi(std::getenv(kVariable));
}

class ChunkSharingContract : public GpuTest {
 protected:
  void SetUp() override {
    GTEST_FLAG_SET(death_test_style, "threadsafe");  // a new program: no context survives a fork
    GpuTest::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    size_ = 2 * granularity();
  }
  void TearDown() override {
    unsetenv(kVariable);
    if (file_ != kNoFile) close(file_);
    GpuTest::TearDown();
  }

  // A chunk that only its mapping and its descriptor keep.
  AddressRange share() {
    const AddressRange range = reserve(size_);
    ChunkProperties properties;
    properties.posix_file_descriptor = true;
    ChunkHandle chunk{};
    EXPECT_OK(driver().mem_create(size_, properties, chunk));
    map(range, chunk);
    EXPECT_OK(driver().mem_export_to_shareable_handle(chunk, file_));
    EXPECT_OK(driver().mem_release(chunk));
    return range;
  }
  int file() const { return file_; }

  AddressRange import(int file) {
    ChunkHandle chunk{};
    EXPECT_OK(driver().mem_import_from_shareable_handle(file, chunk));
    const AddressRange range = reserve(size_);
    map(range, chunk);
    EXPECT_OK(driver().mem_release(chunk));
    return range;
  }
  CuResult try_to_import(int file) {
    ChunkHandle chunk{};
    const CuResult result = driver().mem_import_from_shareable_handle(file, chunk);
    EXPECT_EQ(chunk, ChunkHandle{});
    return result;
  }

  // Ends the other process, which calls no driver on its way out.
  [[noreturn]] static void leave() { std::_Exit(HasFailure() ? 1 : 0); }

  void read_and_write(int file) {
    const AddressRange memory = import(file);
    close(file);
    EXPECT_TRUE(holds(memory, kPattern));
    fill(memory, kOther);
    unmap(memory);
    leave();
  }
  void read(int file) {
    EXPECT_TRUE(holds(import(file), kPattern));
    leave();
  }

 private:
  Bytes size_ = 0;
  int file_ = kNoFile;
};
VPMM_ON_BOTH_DRIVERS(ChunkSharingContract);

TEST_P(ChunkSharingContract, another_process_reads_and_writes_through_the_descriptor) {
  const AddressRange memory = share();
  fill(memory, kPattern);
  const int inherited = handed_over(file());
  EXPECT_EXIT(read_and_write(inherited), ExitedWithCode(0), "");
  EXPECT_TRUE(holds(memory, kOther));
}

TEST_P(ChunkSharingContract,
       another_process_finds_the_memory_when_the_first_has_unmapped_and_released_it) {
  const AddressRange memory = share();
  fill(memory, kPattern);
  unmap(memory);
  const int inherited = handed_over(file());
  EXPECT_EXIT(read(inherited), ExitedWithCode(0), "");
}

TEST_P(ChunkSharingContract, the_process_that_exported_imports_the_same_memory) {
  const AddressRange memory = share();
  fill(memory, kPattern);
  const AddressRange alias = import(file());
  EXPECT_NE(alias.begin, memory.begin);
  EXPECT_TRUE(holds(alias, kPattern));
  fill(alias, kOther);
  EXPECT_TRUE(holds(memory, kOther));
  unmap(memory);
  EXPECT_TRUE(holds(alias, kOther));
}

TEST_P(ChunkSharingContract, an_imported_chunk_is_mapped_whole_and_after_its_descriptor_is_closed) {
  fill(share(), kPattern);
  ChunkHandle chunk{};
  const int other = fcntl(file(), F_DUPFD_CLOEXEC, 0);
  ASSERT_OK(driver().mem_import_from_shareable_handle(other, chunk));
  close(other);
  const AddressRange range = reserve(2 * granularity());
  EXPECT_THAT(driver().mem_map({range.begin, granularity()}, 0, chunk), Ne(CuResult::success));
  map(range, chunk);
  EXPECT_OK(driver().mem_release(chunk));
  EXPECT_TRUE(holds(range, kPattern));
}

TEST_P(ChunkSharingContract, a_chunk_that_was_not_made_for_it_is_not_exported) {
  int none = kNoFile;
  EXPECT_EQ(driver().mem_export_to_shareable_handle(create(granularity()), none),
            CuResult::invalid_value);
  EXPECT_EQ(none, kNoFile);
}

// CUDA's documentation has no result for it.
TEST_P(ChunkSharingContract, a_descriptor_of_something_else_is_refused) {
  const int device = open("/dev/null", O_RDWR | O_CLOEXEC);
  const int memory = memfd_create("none of ours", MFD_CLOEXEC);
  for (const int other : {device, memory}) {
    EXPECT_THAT(try_to_import(other), Ne(CuResult::success));
    EXPECT_EQ(close(other), 0) << "it stays the caller's";
  }
}

}  // namespace
}  // namespace vpmm::test::chunk_sharing_test
