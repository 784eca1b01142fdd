// SPDX-License-Identifier: Apache-2.0
// tests: trace files are read strictly, and what the writer writes the reader reads.
#include "observe/trace_file.hpp"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <thread>
#include <utility>

#include "observe/recorded_program.hpp"
#include "support/repository_path.hpp"

namespace vpmm::observe {
namespace {

class TraceFile : public testing::Test {
 protected:
  void SetUp() override {
    const auto* test = testing::UnitTest::GetInstance()->current_test_info();
    folder_ = std::filesystem::temp_directory_path() /
              ("vpmm_trace_" + std::to_string(getpid()) + "_" + test->name());
    std::filesystem::create_directories(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::string path(const std::string& name) const { return (folder_ / name).string(); }
  std::string write(const std::string& text) const {
    std::ofstream(path("t.csv"), std::ios::binary) << text;
    return path("t.csv");
  }
  std::string write_gzip(const std::string& text) const {
    gzFile file = gzopen(path("t.csv.gz").c_str(), "wb");
    gzwrite(file, text.data(), static_cast<unsigned>(text.size()));
    gzclose(file);
    return path("t.csv.gz");
  }
  // The reason behind "FILE:LINE: ", after checking the rest; "" if the trace is accepted.
  std::string refusal(const std::string& lines, int line) const {
    const std::string file = write("op,id,bytes,stream,time_us\n" + lines);
    const auto trace = read_trace(file);
    if (trace) return "";
    EXPECT_EQ(trace.error().code, ErrorCode::bad_file);
    const std::string prefix = file + ":" + std::to_string(line) + ": ";
    EXPECT_EQ(trace.error().message.substr(0, prefix.size()), prefix) << trace.error().message;
    return trace.error().message.substr(std::min(prefix.size(), trace.error().message.size()));
  }

  std::filesystem::path folder_;
};

constexpr char kSmall[] =
    "op,id,bytes,stream,time_us\n"
    "a,70,1024,5,10\n"
    "a,3,0,9,10\n"
    "f,70,0,9,12\n"
    "a,71,2097152,5,40\n";

void expect_small(const Result<Trace>& trace) {
  ASSERT_TRUE(trace.ok()) << trace.error().message;
  const auto& events = trace.value().events;
  ASSERT_EQ(events.size(), 4u);
  EXPECT_EQ(trace.value().allocations, 3u);
  EXPECT_EQ(trace.value().streams, 2u);
  EXPECT_EQ(events[0].kind, TraceEvent::TraceKind::allocate);
  EXPECT_EQ(events[0].allocation, 0u);
  EXPECT_EQ(events[0].bytes, 1024u);
  EXPECT_EQ(events[0].stream, 0u);
  EXPECT_EQ(events[0].time_us, 10u);
  EXPECT_EQ(events[1].bytes, 0u);
  EXPECT_EQ(events[1].stream, 1u);
  EXPECT_EQ(events[2].kind, TraceEvent::TraceKind::deallocate);
  EXPECT_EQ(events[2].allocation, 0u);
  EXPECT_EQ(events[2].bytes, 1024u);
  EXPECT_EQ(events[2].stream, 1u);
  EXPECT_EQ(events[3].allocation, 2u);
}

TEST_F(TraceFile, is_read_plain) { expect_small(read_trace(write(kSmall))); }
TEST_F(TraceFile, is_read_gzipped) { expect_small(read_trace(write_gzip(kSmall))); }
TEST_F(TraceFile, that_a_killed_program_left_is_read_up_to_its_last_whole_line_with_a_warning) {
  const std::string text(kSmall);
  const std::size_t header = text.find('\n') + 1;
  for (std::size_t size = header; size <= text.size(); ++size) {
    const std::string begun = text.substr(0, size);
    const auto whole = static_cast<std::size_t>(std::count(begun.begin(), begun.end(), '\n'));
    for (const std::string& file : {write(begun), write_gzip(begun)}) {
      const auto trace = read_trace(file);
      ASSERT_TRUE(trace.ok()) << trace.error().message;
      EXPECT_EQ(trace.value().events.size(), whole - 1);
      EXPECT_EQ(trace.value().warning,
                begun.back() == '\n'
                    ? ""
                    : file + ": the file is cut short, or its last line has no line end: " +
                          std::to_string(whole) + " whole lines were read");
    }
  }
}
TEST_F(TraceFile, is_named_without_its_folder) {
  EXPECT_EQ(read_trace(write(kSmall)).value().name, "t.csv");
}
TEST_F(TraceFile, may_hold_no_event) {
  EXPECT_EQ(read_trace(write("op,id,bytes,stream,time_us\n")).value().events.size(), 0u);
}

TEST_F(TraceFile, that_is_missing_is_refused_by_name) {
  const auto trace = read_trace(path("none.csv"));
  ASSERT_FALSE(trace.ok());
  EXPECT_EQ(trace.error().code, ErrorCode::bad_file);
  EXPECT_EQ(trace.error().message,
            path("none.csv") + ": cannot be opened: No such file or directory");
}

TEST_F(TraceFile, that_is_a_folder_is_refused) { EXPECT_FALSE(read_trace(folder_.string()).ok()); }

TEST_F(TraceFile, with_another_header_is_refused) {
  for (const char* text : {"\n", "op,id,bytes\n", "a,1,2,0,0\n", "op,id,bytes,stream,time_us \n"}) {
    const auto trace = read_trace(write(text));
    ASSERT_FALSE(trace.ok()) << text;
    EXPECT_EQ(trace.error().message,
              path("t.csv") +
                  ":1: this is no recording, binary or CSV with the first line "
                  "`op,id,bytes,stream,time_us`; `vpmm convert` makes one from a snapshot of "
                  "PyTorch, a log of RMM or a database of Nsight Systems");
  }
}

TEST_F(TraceFile, with_a_cause_that_an_editor_hides_is_refused_by_that_cause) {
  const std::string header = "op,id,bytes,stream,time_us";
  const std::pair<std::string, std::string> cases[] = {
      {"", ":1: the file is empty"},
      {header + "\r\na,1,64,0,0\r\n",
       ":1: the line ends with a carriage return (CR LF): lines of a trace end with LF alone"},
      {header + "\na,1,64,0,0\r\n",
       ":2: the line ends with a carriage return (CR LF): lines of a trace end with LF alone"},
      {"\xEF\xBB\xBF" + header + "\n",
       ":1: the file begins with a byte order mark (EF BB BF), not with `" + header + "`"}};
  for (const auto& [text, reason] : cases) {
    const auto trace = read_trace(write(text));
    ASSERT_FALSE(trace.ok()) << reason;
    EXPECT_EQ(trace.error().message, path("t.csv") + reason);
  }
}

TEST_F(TraceFile, refuses_a_malformed_line_with_its_number_and_the_reason) {
  EXPECT_EQ(refusal("a,1,64,0,0\nx,2,64,0,0\n", 3), "op `x` is neither `a` nor `f`");
  EXPECT_EQ(refusal("a,1,64,0,0\na,1,64,0,0\n", 3),
            "id 1 was allocated before: ids are never reused");
  EXPECT_EQ(refusal("a,1,64,0,0\nf,1,0,0,0\na,1,64,0,0\n", 4),
            "id 1 was allocated before: ids are never reused");
  EXPECT_EQ(refusal("f,4,0,0,0\n", 2), "id 4 is freed but was never allocated");
  EXPECT_EQ(refusal("a,1,64,0,0\nf,1,0,0,0\nf,1,0,0,0\n", 4), "id 1 was freed before, in line 3");
  EXPECT_EQ(refusal("a,1,64,0\n", 2), "expected 5 columns (op,id,bytes,stream,time_us), found 4");
  EXPECT_EQ(refusal("a,1,64,0,0,7\n", 2),
            "expected 5 columns (op,id,bytes,stream,time_us), found 6");
  EXPECT_EQ(refusal("a,1,64,0,0\n\n", 3),
            "expected 5 columns (op,id,bytes,stream,time_us), found 1");
  EXPECT_EQ(refusal("a,1,18446744073709551616,0,0\n", 2),
            "bytes `18446744073709551616` does not fit in 64 bits");
  EXPECT_EQ(refusal("a,1,-64,0,0\n", 2), "bytes `-64` is not a number from 0 up");
  EXPECT_EQ(refusal("a,1,64,-1,0\n", 2), "stream `-1` is not a number from 0 up");
  EXPECT_EQ(refusal("a,,64,0,0\n", 2), "id `` is not a number from 0 up");
  EXPECT_EQ(refusal("a,1,64,0,1.5\n", 2), "time_us `1.5` is not a number from 0 up");
  EXPECT_EQ(refusal("a,1,64,0, 9\n", 2), "time_us ` 9` is not a number from 0 up");
  EXPECT_EQ(refusal("a,1,64,0,9\na,2,64,0,8\n", 3), "time_us 8 is before the 9 of an earlier line");
  EXPECT_EQ(refusal("a,1,64,0,0\nf,1,65,0,0\n", 3),
            "bytes 65 of a free must be 0, or the 64 of its allocation");
  EXPECT_EQ(refusal("a,1,64,0,0\nf,1,64,0,0\n", 0), "");
}

TEST_F(TraceFile, refuses_lines_that_are_too_long_or_not_text) {
  const std::string reason =
      "no line of a trace: too long, or it holds a zero byte; `vpmm convert` reads the files of "
      "other programs";
  EXPECT_EQ(refusal(std::string(5000, '1') + "\n", 2), reason);
  EXPECT_EQ(refusal(std::string("a,1,64\0,0,0\na,2,1,0,0\n", 22), 2), reason);
}

// Enough for the compressed file to have several blocks.
std::string long_trace() {
  std::string text(kSmall);
  for (int i = 100; i < 20'000; ++i)
    text += "a," + std::to_string(i) + "," + std::to_string(i * 7919) + ",5,50\n";
  return text;
}

TEST_F(TraceFile, that_is_compressed_and_cut_is_read_to_its_last_whole_line_with_a_warning) {
  const std::string file = write_gzip(long_trace());
  const auto whole = std::filesystem::file_size(file);
  for (const auto size : {whole - 1, whole - 8, whole / 2, whole / 3}) {
    std::filesystem::resize_file(file, size);
    const auto trace = read_trace(file);
    ASSERT_TRUE(trace.ok()) << trace.error().message;
    const auto& events = trace.value().events;
    ASSERT_GT(events.size(), 1000u);
    for (std::size_t i = 4; i < events.size(); ++i)
      ASSERT_EQ(events[i].bytes, (i + 96) * 7919) << "a line was cut";
    EXPECT_EQ(trace.value().warning,
              file + ": the file is cut short, or its last line has no line end: " +
                  std::to_string(events.size() + 1) + " whole lines were read");
  }
}

TEST_F(TraceFile, that_is_whole_has_no_warning) {
  EXPECT_EQ(read_trace(write_gzip(long_trace())).value().warning, "");
}

TEST_F(TraceFile, that_is_cut_inside_the_header_is_refused) {
  const std::string file = write_gzip(kSmall);
  for (const int size : {12, 5}) {
    std::filesystem::resize_file(file, static_cast<std::uintmax_t>(size));
    const auto trace = read_trace(file);
    ASSERT_FALSE(trace.ok()) << size;
    EXPECT_EQ(trace.error().message, file + ":1: the file is cut short inside its first line");
  }
  const std::string plain = write("op,id,bytes,str");
  EXPECT_EQ(read_trace(plain).error().message,
            plain + ":1: the file is cut short inside its first line");
}

TEST_F(TraceFile, refuses_compressed_data_that_is_damaged) {
  const std::string file = write_gzip(long_trace());
  const auto size = static_cast<std::streamoff>(std::filesystem::file_size(file));
  for (const std::streamoff place : {size / 2, size - 6}) {  // inside the data, and in its checksum
    std::fstream damage(file, std::ios::binary | std::ios::in | std::ios::out);
    damage.seekp(place).write("damaged!", 4);
    damage.close();
    const auto trace = read_trace(file);
    ASSERT_FALSE(trace.ok());
    EXPECT_EQ(trace.error().code, ErrorCode::bad_file);
    EXPECT_EQ(trace.error().message.rfind(file + ":", 0), 0u) << trace.error().message;
    write_gzip(long_trace());
  }
}

TEST_F(TraceFile, names_damage_that_is_no_line_any_more) {
  const std::string file = write_gzip(kSmall);
  std::fstream(file, std::ios::binary | std::ios::in | std::ios::out)
      .seekp(-8, std::ios::end)
      .write("sum?", 4);
  const auto trace = read_trace(file);
  ASSERT_FALSE(trace.ok());
  EXPECT_EQ(trace.error().message,
            file + ":6: the compressed data is damaged (incorrect data check)");
}

TEST_F(TraceFile, refuses_what_follows_the_compressed_data) {
  for (const std::string garbage : {"a,99,64,0,50\n", "\n"}) {
    const std::string file = write_gzip(kSmall);
    std::ofstream(file, std::ios::binary | std::ios::app) << garbage;
    const auto trace = read_trace(file);
    ASSERT_FALSE(trace.ok());
    EXPECT_EQ(trace.error().message,
              file + ":6: something that is not compressed follows the end of the compressed data");
  }
}

TEST_F(TraceFile, of_a_recording_is_plain_or_compressed_as_its_name_says) {
  for (const char* name : {"run.csv", "run.csv.gz"}) {
    const std::string file = path(name);
    auto program = RecordedProgram::create(file, 0);
    ASSERT_TRUE(program.ok()) << program.error().message;
    program.value()->record_allocate(DevicePtr{0x1000}, 64, 1, 1);
    ASSERT_TRUE(program.value()->close().ok());
    std::ifstream input(file, std::ios::binary);
    const std::string content{std::istreambuf_iterator<char>(input), {}};
    EXPECT_EQ(content.starts_with("op,id,bytes,stream,time_us\na,0,64,0,"), file.ends_with(".csv"))
        << content;
    EXPECT_EQ(content.starts_with("\x1f\x8b"), file.ends_with(".gz"));
    EXPECT_EQ(read_trace(file).value().allocations, 1u);
  }
}

TEST_F(TraceFile, may_be_several_compressed_files_joined) {
  const std::string file = write_gzip(kSmall);
  std::ifstream first(file, std::ios::binary);
  const std::string begin{std::istreambuf_iterator<char>(first), {}};
  std::ifstream second(write_gzip("a,72,4096,5,41\n"), std::ios::binary);
  const std::string more{std::istreambuf_iterator<char>(second), {}};
  std::ofstream(file, std::ios::binary) << begin << more;
  const auto trace = read_trace(file);
  ASSERT_TRUE(trace.ok()) << trace.error().message;
  EXPECT_EQ(trace.value().events.size(), 5u);
  EXPECT_EQ(trace.value().warning, "");
}

TEST_F(TraceFile, reads_the_traces_that_come_with_the_project) {
  const struct {
    const char* name;
    std::size_t allocations;
    std::size_t streams;
  } traces[] = {{"gpt_train", 67'647, 1},
                {"gnn", 9'150, 1},
                {"serve_streams", 102'701, 13},
                {"gpt_ckpt", 143'648, 1},
                {"moe_train", 124'509, 1}};
  for (const auto& expected : traces) {
    const auto trace =
        read_trace(repository_path(std::string("bench/traces/") + expected.name + ".csv.gz"));
    ASSERT_TRUE(trace.ok()) << trace.error().message;
    EXPECT_EQ(trace.value().allocations, expected.allocations);
    EXPECT_EQ(trace.value().streams, expected.streams);
  }
}

class TraceWriting : public TraceFile {
 protected:
  std::unique_ptr<RecordedProgram> start(std::uint64_t now_us = 0) {
    auto writer = RecordedProgram::create(path("w.csv.gz"), now_us);
    EXPECT_TRUE(writer.ok());
    return std::move(writer).value();
  }
  std::string text() const {
    gzFile file = gzopen(path("w.csv.gz").c_str(), "rb");
    std::string content(1 << 16, '\0');
    content.resize(static_cast<std::size_t>(
        gzread(file, content.data(), static_cast<unsigned>(content.size()))));
    gzclose(file);
    return content;
  }
};

TEST_F(TraceWriting, gives_fresh_ids_and_small_stream_numbers) {
  auto writer = start(1000);
  writer->record_allocate(kA, 64, 0xdeadbeef, 1000);
  writer->record_deallocate(kA, 0xdeadbeef, 1005);
  writer->record_allocate(kA, 128, 0xcafe, 1007);
  writer->record_allocate(kB, 256, std::nullopt, 1008);
  writer->record_deallocate(kA, 0xdeadbeef, 1009);
  writer->record_deallocate(kB, std::nullopt, 1010);
  ASSERT_TRUE(writer->close().ok());
  EXPECT_EQ(text(),
            "op,id,bytes,stream,time_us\n"
            "a,0,64,0,0\nf,0,0,0,5\na,1,128,1,7\na,2,256,2,8\nf,1,0,0,9\nf,2,0,2,10\n");
}

TEST_F(TraceWriting, leaves_out_what_it_never_saw_allocated) {
  auto writer = start();
  writer->record_deallocate(kA, 1, 2);
  writer->record_allocate(kA, 4, 1, 3);
  writer->record_deallocate(kA, std::nullopt, 4);
  writer->record_deallocate(kA, std::nullopt, 5);
  ASSERT_TRUE(writer->close().ok());
  EXPECT_EQ(text(), "op,id,bytes,stream,time_us\na,0,4,0,3\nf,0,0,0,4\n");
}

TEST_F(TraceWriting, never_lets_time_run_backwards) {
  auto writer = start(100);
  writer->record_allocate(kA, 4, 1, 50);
  writer->record_allocate(kB, 4, 1, 130);
  writer->record_deallocate(kA, 1, 120);
  ASSERT_TRUE(writer->close().ok());
  EXPECT_EQ(text(), "op,id,bytes,stream,time_us\na,0,4,0,0\na,1,4,0,30\nf,0,0,0,30\n");
}

TEST_F(TraceWriting, drops_what_comes_after_close) {
  auto writer = start();
  ASSERT_TRUE(writer->close().ok());
  writer->record_allocate(kA, 4, 1, 50);
  EXPECT_TRUE(writer->close().ok());
  EXPECT_EQ(text(), "op,id,bytes,stream,time_us\n");
}

TEST_F(TraceWriting, can_be_read_while_it_goes_on) {
  const auto events_in_file = [&] {
    const auto trace = read_trace(path("w.csv.gz"));
    EXPECT_TRUE(trace.ok()) << trace.error().message;
    EXPECT_EQ(trace.value().warning.empty(), false);
    return trace.value().events.size();
  };
  const auto holds_soon = [&](std::size_t events) {
    for (int i = 0; i < 6000 && events_in_file() < events; ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    return events_in_file() == events;
  };
  auto writer = start();
  EXPECT_EQ(events_in_file(), 0u) << "the first line is there at once";
  for (std::uint64_t i = 0; i < 3000; ++i) writer->record_allocate(DevicePtr{i + 1}, 4, 1, i);
  EXPECT_TRUE(holds_soon(3000));
  writer->record_allocate(DevicePtr{3001}, 4, 1, 3000);
  EXPECT_TRUE(holds_soon(3001)) << "one alone, too";
}

TEST_F(TraceWriting, in_a_forked_child_leaves_the_file_to_the_parent) {
  auto writer = start();
  writer->record_allocate(kA, 64, 1, 1);
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    writer.reset();
    _exit(0);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  writer->record_deallocate(kA, 1, 2);
  ASSERT_TRUE(writer->close().ok());
  EXPECT_EQ(text(), "op,id,bytes,stream,time_us\na,0,64,0,1\nf,0,0,0,2\n");
}

TEST_F(TraceWriting, frees_what_an_address_held_before_if_that_free_was_left_out) {
  auto writer = start();
  writer->record_allocate(kA, 4, 1, 1);
  writer->record_allocate(kA, 8, 2, 5);
  writer->record_deallocate(kA, 2, 6);
  ASSERT_TRUE(writer->close().ok());
  EXPECT_EQ(text(), "op,id,bytes,stream,time_us\na,0,4,0,1\nf,0,0,0,5\na,1,8,1,5\nf,1,0,1,6\n");
}

TEST_F(TraceWriting, into_a_folder_that_is_not_there_is_an_error_with_the_name) {
  const auto writer = RecordedProgram::create(path("none/w.csv.gz"), 0);
  ASSERT_FALSE(writer.ok());
  EXPECT_EQ(writer.error().code, ErrorCode::bad_file);
  EXPECT_EQ(writer.error().message,
            path("none/w.csv.gz") + ": cannot be created: No such file or directory");
}

TEST_F(TraceWriting, to_a_full_disk_is_reported_by_close) {
  if (!std::filesystem::exists("/dev/full"))
    GTEST_SKIP() << "no /dev/full here to stand for a full disk";
  std::filesystem::create_symlink("/dev/full", path("full.csv"));
  auto writer = RecordedProgram::create(path("full.csv"), 0);
  ASSERT_TRUE(writer.ok()) << writer.error().message;
  writer.value()->record_allocate(kA, 4, 1, 0);
  const auto closed = writer.value()->close();
  ASSERT_FALSE(closed.ok());
  EXPECT_EQ(closed.error().code, ErrorCode::bad_file);
}

TEST_F(TraceWriting, of_several_threads_is_a_trace_that_reads_back) {
  auto writer = start();
  std::vector<std::thread> threads;
  for (std::uint64_t t = 0; t < 4; ++t) {
    threads.emplace_back([&writer, t] {
      for (std::uint64_t i = 0; i < 500; ++i) {
        const DevicePtr ptr{(t + 1) << 32 | i << 12};
        writer->record_allocate(ptr, i, t, i);
        if (i % 3 != 0) writer->record_deallocate(ptr, t, i);
      }
    });
  }
  for (auto& thread : threads) thread.join();
  ASSERT_TRUE(writer->close().ok());
  const auto trace = read_trace(path("w.csv.gz"));
  ASSERT_TRUE(trace.ok()) << trace.error().message;
  EXPECT_EQ(trace.value().allocations, 2000u);
  EXPECT_EQ(trace.value().streams, 4u);
}

}  // namespace
}  // namespace vpmm::observe
