// process: recordings that exit finishes.
#include "process/recordings.hpp"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <sstream>
#include <string>

namespace vpmm::process {
namespace {

class Recordings : public testing::Test {
 protected:
  std::shared_ptr<observe::TraceWriter> begun(const std::string& name) {
    auto created = observe::TraceWriter::create(path_of(name), 0,
                                                std::make_shared<observe::RecordingChannel>());
    EXPECT_TRUE(created.ok());
    std::shared_ptr<observe::TraceWriter> writer = std::move(created.value());
    EXPECT_TRUE(writer->begin({}, 0).ok());
    return writer;
  }
  // The last line of the file, once it is finished.
  std::string last_line_of(const std::string& name) const {
    std::ifstream file(path_of(name));
    std::string line;
    std::string last;
    while (std::getline(file, line)) last = line;
    return last;
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
  EXPECT_NE(last_line_of("first.csv"), "");
  const std::string whole = last_line_of("second.csv");
  EXPECT_TRUE(second->close().ok()) << "nothing is left to do";
  EXPECT_EQ(last_line_of("second.csv"), whole);
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
