// SPDX-License-Identifier: Apache-2.0
// tests: a recording that cannot keep up leaves calls out, counts them, and never stops or fails
// who makes them.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <new>
#include <string>
#include <thread>

#include "observe/recorded_program.hpp"
#include "observe/trace_file.hpp"

namespace {
std::atomic<bool> has_no_memory{false};
std::atomic<std::uint64_t> refusals{0};
}  // namespace

// For the whole binary, so that a test can let the process run out of memory.
[[gnu::noinline]] void* operator new(std::size_t bytes) {
  void* const memory = has_no_memory.load() ? nullptr : std::malloc(bytes);
  if (memory != nullptr) return memory;
  ++refusals;
  throw std::bad_alloc();
}
// Sanitizers have one of their own, whose memory is not for free().
[[gnu::noinline]] void* operator new(std::size_t bytes, const std::nothrow_t& /*tag*/) noexcept {
  return has_no_memory.load() ? nullptr : std::malloc(bytes);
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::size_t /*bytes*/) noexcept {
  std::free(memory);
}

namespace vpmm::observe {
namespace {

static_assert(noexcept(std::declval<RecordedProgram&>().record_allocate({}, 0, {}, 0)));
static_assert(noexcept(std::declval<RecordedProgram&>().record_deallocate({}, {}, 0)));

constexpr std::uint64_t kCalls = 250'000;  // far more than a recording keeps

class TraceLoss : public testing::Test {
 protected:
  void TearDown() override {
    for (const std::string& file : {pipe(), csv_pipe(), file_}) std::filesystem::remove(file);
  }
  std::string pipe() const { return file_ + ".pipe"; }
  std::string csv_pipe() const { return pipe() + ".csv"; }

  const std::string file_ =
      testing::TempDir() + "vpmm_trace_loss_" + std::to_string(getpid()) + ".csv.gz";
};

TEST_F(TraceLoss, a_pipe_that_is_full_stops_nobody_and_what_goes_through_it_later_is_a_trace) {
  ASSERT_EQ(mkfifo(pipe().c_str(), 0600), 0);
  const int reader = open(pipe().c_str(), O_RDONLY | O_NONBLOCK);
  ASSERT_GE(reader, 0);
  auto writer = RecordedProgram::create(pipe(), 0);
  ASSERT_TRUE(writer.ok());
  alarm(120);
  for (std::uint64_t i = 0; i < kCalls; ++i)
    writer.value()->record_allocate(DevicePtr{i + 1}, 4, i % 3, i);
  alarm(0);
  const auto hangs = writer.value()->close(std::chrono::milliseconds(10));
  ASSERT_FALSE(hangs.ok());
  EXPECT_EQ(hangs.error().message, pipe() + ": not finished, for it takes no bytes");

  ASSERT_EQ(fcntl(reader, F_SETFL, 0), 0);
  std::thread drain([&] {
    std::ofstream copy(file_, std::ios::binary);
    char bytes[4096];
    for (ssize_t got = 0; (got = read(reader, bytes, sizeof(bytes))) > 0;) copy.write(bytes, got);
  });
  const auto closed = writer.value()->close(std::chrono::minutes(2));
  drain.join();
  ::close(reader);
  const auto trace = read_trace(file_);
  ASSERT_TRUE(trace.ok()) << trace.error().message;
  EXPECT_EQ(trace.value().warning, "");
  const std::uint64_t lost = kCalls - trace.value().events.size();
  EXPECT_GT(lost, 0u);
  ASSERT_FALSE(closed.ok());
  EXPECT_EQ(closed.error().message, pipe() + ": " + std::to_string(lost) + " calls are not in it");
}

TEST_F(TraceLoss, lines_go_to_a_pipe_once_somebody_reads_it) {
  ASSERT_EQ(mkfifo(csv_pipe().c_str(), 0600), 0);
  std::atomic<bool> is_over{false};
  std::thread recording([&] {
    auto writer = RecordedProgram::create(csv_pipe(), 0);
    if (writer.ok()) {
      writer.value()->record_allocate(DevicePtr{1}, 4, 1, 1);
      EXPECT_TRUE(writer.value()->close().ok());
    }
    is_over = true;
  });
  for (int i = 0; i < 30 && !is_over; ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  EXPECT_FALSE(is_over) << "nobody read";
  const int reader = open(csv_pipe().c_str(), O_RDONLY | (is_over ? O_NONBLOCK : 0));
  std::ofstream copy(file_, std::ios::binary);
  char bytes[4096];
  for (ssize_t got = 0; (got = read(reader, bytes, sizeof(bytes))) > 0;) copy.write(bytes, got);
  copy.close();
  recording.join();
  ::close(reader);
  const auto trace = read_trace(file_);
  ASSERT_TRUE(trace.ok()) << trace.error().message;
  EXPECT_EQ(trace.value().events.size(), 1u);
}

TEST_F(TraceLoss, lines_for_a_pipe_whose_reader_is_gone_are_an_error_of_close) {
  ASSERT_EQ(mkfifo(csv_pipe().c_str(), 0600), 0);
  const int reader = open(csv_pipe().c_str(), O_RDONLY | O_NONBLOCK);
  ASSERT_GE(reader, 0);
  auto writer = RecordedProgram::create(csv_pipe(), 0);
  ASSERT_TRUE(writer.ok()) << writer.error().message;
  ::close(reader);
  writer.value()->record_allocate(DevicePtr{1}, 4, 1, 1);
  const auto closed = writer.value()->close();
  ASSERT_FALSE(closed.ok());
  EXPECT_EQ(closed.error().message, csv_pipe() + ": cannot be written: Broken pipe");
}

TEST_F(TraceLoss, a_file_that_takes_bytes_gets_every_call) {
  auto writer = RecordedProgram::create(file_, 0);
  ASSERT_TRUE(writer.ok());
  for (std::uint64_t i = 0; i < kCalls; ++i)
    writer.value()->record_allocate(DevicePtr{i + 1}, 4, i % 3, i);
  const auto closed = writer.value()->close(std::chrono::minutes(2));
  EXPECT_TRUE(closed.ok()) << closed.error().message;
  EXPECT_EQ(read_trace(file_).value().events.size(), kCalls);
}

TEST_F(TraceLoss, without_memory_calls_are_left_out_and_nobody_fails) {
  auto writer = RecordedProgram::create(file_, 0);
  ASSERT_TRUE(writer.ok());
  refusals = 0;
  has_no_memory = true;
  for (std::uint64_t i = 0; i < 2000; ++i)
    writer.value()->record_allocate(DevicePtr{i + 1}, 4, 1, i);
  for (int i = 0; i < 6000 && refusals < 2000; ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  has_no_memory = false;
  writer.value()->record_allocate(DevicePtr{1}, 4, 1, 9000);
  const auto closed = writer.value()->close();
  ASSERT_FALSE(closed.ok());
  EXPECT_EQ(closed.error().message, file_ + ": 2000 calls are not in it");
  EXPECT_EQ(read_trace(file_).value().events.size(), 1u);
}

}  // namespace
}  // namespace vpmm::observe
