// SPDX-License-Identifier: Apache-2.0
// tests/contract: what both drivers do with memory handles, in the process that makes them and in
// another one.
#include <gmock/gmock.h>

#include <cstdlib>
#include <string>

#include "support/gpu_test.hpp"

namespace vpmm::test::sharing_test {
namespace {

using driver::IpcMemHandle;
using ::testing::AnyOf;
using ::testing::ExitedWithCode;

constexpr Bytes kSize = 4 * kMiB;
constexpr std::uint32_t kPattern = 0xA5A5'1234;
constexpr std::uint32_t kOther = 0x0BAD'F00D;
constexpr const char* kVariable = "VPMM_TEST_IPC_HANDLE";

// The statement of a death test runs in a process that has run the test up to there itself, and so
// made a handle of its own. That of the first process reaches it through the environment, which is
// not overwritten.
IpcMemHandle handed_over(const IpcMemHandle& handle) {
  std::string text;
  for (const std::byte byte : handle) {
    text += static_cast<char>('a' + static_cast<int>(byte >> 4));
    text += static_cast<char>('a' + static_cast<int>(byte & std::byte{15}));
  }
  setenv(kVariable, text.c_str(), 0);
  const std::string arrived = std::getenv(kVariable);
  IpcMemHandle result{};
  for (std::size_t i = 0; i < result.size(); ++i) {
    result[i] = static_cast<std::byte>((arrived[2 * i] - 'a') * 16 + (arrived[2 * i + 1] - 'a'));
  }
  return result;
}

class SharingContract : public GpuTest {
 protected:
  void SetUp() override {
    GTEST_FLAG_SET(death_test_style, "threadsafe");  // a new program: no context survives a fork
    GpuTest::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    ASSERT_OK(driver().mem_alloc(kSize, plain_));
  }
  void TearDown() override {
    unsetenv(kVariable);
    if (plain_ != DevicePtr{}) {
      EXPECT_OK(driver().mem_free(plain_));
    }
    GpuTest::TearDown();
  }
  AddressRange plain() const { return {plain_, kSize}; }
  IpcMemHandle handle_of(DevicePtr ptr) {
    IpcMemHandle handle{};
    EXPECT_OK(driver().ipc_get_mem_handle(ptr, handle));
    return handle;
  }
  AddressRange open(const IpcMemHandle& handle) {
    DevicePtr ptr{};
    EXPECT_OK(driver().ipc_open_mem_handle(handle, ptr));
    return {ptr, kSize};
  }
  // Ends the other process, which calls no driver on its way out.
  [[noreturn]] static void leave() { std::_Exit(HasFailure() ? 1 : 0); }

  void read_and_write(const IpcMemHandle& handle) {
    const AddressRange memory = open(handle);
    AddressRange found;
    EXPECT_OK(driver().mem_get_address_range(memory.begin, found));
    EXPECT_TRUE(found.contains(memory));
    EXPECT_TRUE(holds(memory, kPattern));
    fill(memory, kOther);
    EXPECT_OK(driver().ipc_close_mem_handle(memory.begin));
    leave();
  }
  void open_twice(const IpcMemHandle& handle) {
    const AddressRange memory = open(handle);
    EXPECT_EQ(open(handle), memory);
    EXPECT_OK(driver().ipc_close_mem_handle(memory.begin));
    EXPECT_TRUE(holds(memory, kPattern));
    EXPECT_OK(driver().ipc_close_mem_handle(memory.begin));
    EXPECT_THAT(driver().ipc_close_mem_handle(memory.begin),
                AnyOf(CuResult::invalid_value, CuResult::invalid_handle));
    leave();
  }

 private:
  DevicePtr plain_{};
};
VPMM_ON_BOTH_DRIVERS(SharingContract);

TEST_P(SharingContract, another_process_reads_and_writes_the_memory) {
  fill(plain(), kPattern);
  const IpcMemHandle handle = handed_over(handle_of(plain().begin));
  EXPECT_EXIT(read_and_write(handle), ExitedWithCode(0), "");
  EXPECT_TRUE(holds(plain(), kOther));
}

TEST_P(SharingContract, opening_again_gives_the_same_address_and_each_opening_is_closed) {
  fill(plain(), kPattern);
  const IpcMemHandle handle = handed_over(handle_of(plain().begin));
  EXPECT_EXIT(open_twice(handle), ExitedWithCode(0), "");
}

TEST_P(SharingContract, the_process_that_made_a_handle_does_not_open_it) {
  DevicePtr ptr{};
  EXPECT_EQ(driver().ipc_open_mem_handle(handle_of(plain().begin), ptr), CuResult::invalid_context);
  EXPECT_EQ(ptr, DevicePtr{});
}

TEST_P(SharingContract, mapped_and_stream_ordered_memory_has_no_handle) {
  IpcMemHandle handle{};
  EXPECT_EQ(driver().ipc_get_mem_handle(memory(granularity()).begin, handle),
            CuResult::invalid_value);
  driver::MemPoolHandle pool{};
  DevicePtr pooled{};
  const StreamHandle work = stream();
  ASSERT_OK(driver().mem_pool_create(0, pool));
  ASSERT_OK(driver().mem_alloc_from_pool_async(kSize, pool, work, pooled));
  EXPECT_OK(driver().stream_synchronize(work));
  EXPECT_EQ(driver().ipc_get_mem_handle(pooled, handle), CuResult::invalid_value);
  EXPECT_OK(driver().mem_free_async(pooled, work));
  EXPECT_OK(driver().mem_pool_destroy(pool));
  EXPECT_EQ(handle, IpcMemHandle{});
}

TEST_P(SharingContract, memory_that_takes_the_place_of_other_memory_has_a_handle_of_its_own) {
  DevicePtr ptr{};
  ASSERT_OK(driver().mem_alloc(kSize, ptr));
  const IpcMemHandle first = handle_of(ptr);
  EXPECT_OK(driver().mem_free(ptr));
  ASSERT_OK(driver().mem_alloc(kSize, ptr));
  EXPECT_NE(handle_of(ptr), first);
  EXPECT_OK(driver().mem_free(ptr));
}

TEST_P(SharingContract, what_was_not_opened_is_not_closed) {
  EXPECT_THAT(driver().ipc_close_mem_handle(plain().begin),
              AnyOf(CuResult::invalid_value, CuResult::invalid_handle));
}

}  // namespace
}  // namespace vpmm::test::sharing_test
