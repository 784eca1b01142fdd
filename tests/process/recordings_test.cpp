// SPDX-License-Identifier: Apache-2.0
// process: recordings that exit finishes.
#include "process/recordings.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstddef>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "observe/log.hpp"

namespace vpmm::process {
namespace {

class Recordings : public testing::Test {
 protected:
  // With one event, which is in the file once the recording is finished, and a second later.
  std::shared_ptr<observe::TraceWriter> begun(
      const std::string& name, const std::function<void()>& before = [] {}) {
    const auto channel = std::make_shared<observe::RecordingChannel>();
    auto created = observe::TraceWriter::create(path_of(name), 0, channel);
    EXPECT_TRUE(created.ok());
    std::shared_ptr<observe::TraceWriter> writer = std::move(created.value());
    before();
    observe::QueuedEvent event;
    event.kind = observe::RecordedKind::allocate;
    channel->queue.claim().publish(std::move(event));
    EXPECT_TRUE(writer->begin({}, 0).ok());
    return writer;
  }
  std::size_t lines_of(const std::string& name) const {
    std::ifstream file(path_of(name));
    std::size_t lines = 0;
    for (std::string line; std::getline(file, line);) ++lines;
    return lines;
  }
  std::string path_of(const std::string& name) const { return (folder_ / name).string(); }

  std::filesystem::path folder_ = [] {
    std::string name = testing::TempDir() + "recordings-XXXXXX";
    return std::filesystem::path(mkdtemp(name.data()));
  }();
  void TearDown() override { std::filesystem::remove_all(folder_); }
};

TEST_F(Recordings, are_all_finished) {
  const auto first = begun("first.csv");
  const auto second = begun("second.csv");
  finish_at_exit(first);
  finish_at_exit(second);
  testing::internal::CaptureStderr();
  finish_recordings();
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
  EXPECT_EQ(lines_of("first.csv"), 2u) << "the names of the columns and the event";
  EXPECT_EQ(lines_of("second.csv"), 2u);
  EXPECT_TRUE(second->close().ok()) << "nothing is left to do";
}

TEST_F(Recordings, say_that_exit_ended_them) {
  const auto recording = begun("run.vpmm");
  finish_at_exit(recording);
  finish_recordings();
  std::ifstream file(path_of("run.vpmm"), std::ios::binary);
  const std::string bytes{std::istreambuf_iterator<char>(file), {}};
  EXPECT_NE(bytes.find("\"ended\":\"exit\""), std::string::npos);
}

TEST_F(Recordings, that_cannot_be_written_are_an_error_and_the_others_are_finished) {
  ASSERT_EQ(mkfifo(path_of("pipe.csv").c_str(), 0600), 0);
  const int reader = open(path_of("pipe.csv").c_str(), O_RDONLY | O_NONBLOCK);
  const auto broken = begun("pipe.csv", [&] { close(reader); });
  const auto whole = begun("whole.csv");
  finish_at_exit(broken);
  finish_at_exit(whole);
  std::vector<std::string> said;
  observe::set_log_sink([&](observe::LogLevel level, std::string_view message) {
    said.push_back(std::string(observe::to_string(level)) + ": " + std::string(message));
  });
  finish_recordings();
  observe::set_log_sink({});
  EXPECT_EQ(said,
            std::vector{"error: " + path_of("pipe.csv") + ": cannot be written: Broken pipe"});
  EXPECT_EQ(lines_of("whole.csv"), 2u);
}

TEST_F(Recordings, that_ended_before_are_left_alone) {
  finish_at_exit(begun("gone.csv"));
  std::filesystem::remove(path_of("gone.csv"));
  testing::internal::CaptureStderr();
  finish_recordings();
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
  EXPECT_FALSE(std::filesystem::exists(path_of("gone.csv")));
}

}  // namespace
}  // namespace vpmm::process
