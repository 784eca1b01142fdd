// SPDX-License-Identifier: Apache-2.0
// tests: recordings as blocks: what is written is read, cut files are read to their last whole
// block, damage is named.
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>
#include <zstd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>

#include "observe/recorded_program.hpp"
#include "observe/recording_reader.hpp"
#include "observe/trace_file.hpp"
#include "support/recorded_file.hpp"

namespace vpmm::observe {
namespace {

using test::read_recorded;
using test::RecordedFile;

class RecordingFile : public testing::Test {
 protected:
  void SetUp() override {
    const auto* test = testing::UnitTest::GetInstance()->current_test_info();
    folder_ = std::filesystem::temp_directory_path() /
              ("vpmm_rec_" + std::to_string(getpid()) + "_" + test->name());
    std::filesystem::create_directories(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::string path() const { return (folder_ / "w.vpmmrec").string(); }
  std::unique_ptr<RecordedProgram> start(const RecordingOptions& options = {},
                                         std::vector<LiveAllocation> live = {}) const {
    auto program = RecordedProgram::create(path(), 0, options, std::move(live));
    EXPECT_TRUE(program.ok()) << program.error().message;
    return std::move(program).value();
  }
  std::string bytes() const {
    std::ifstream file(path(), std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  void write(const std::string& bytes) const { std::ofstream(path(), std::ios::binary) << bytes; }
  void record_a_little() const {
    auto program = start();
    program->record_allocate(kA, 64, 5, 1);
    program->record_allocate(kB, 128, std::nullopt, 2);
    program->record(RecordedKind::allocate_failed, {}, 4096, 5, 3,
                    std::make_unique<std::string>("no memory"));
    program->record_deallocate(kA, 6, 4);
    program->record(RecordedKind::mark, {}, 0, std::nullopt, 5,
                    std::make_unique<std::string>("step 12"));
    ASSERT_TRUE(program->close().ok());
  }
  std::string refusal() const {
    const auto trace = read_trace(path());
    if (trace) return "";
    EXPECT_EQ(trace.error().code, ErrorCode::bad_file);
    return trace.error().message;
  }

  std::filesystem::path folder_;
};

TEST_F(RecordingFile, holds_what_was_recorded_in_its_order) {
  record_a_little();
  const RecordedFile file = read_recorded(path());
  ASSERT_EQ(file.error, "");
  ASSERT_EQ(file.events.size(), 5u);
  EXPECT_EQ(file.events[0].address, to_integer(kA));
  EXPECT_EQ(file.events[0].time_ns, 1000u);
  EXPECT_EQ(file.events[1].stream, kNoRecordedStream);
  EXPECT_EQ(file.text(file.events[2].value), "no memory");
  EXPECT_EQ(file.events[3].bytes, 64u) << "a free has the size of its allocation";
  EXPECT_NE(file.events[3].stream, file.events[0].stream);
  EXPECT_EQ(file.text(file.events[4].value), "step 12");
  EXPECT_EQ(file.end["lost"], 0);
  EXPECT_EQ(file.end["ended"], "stopped");
  EXPECT_EQ(file.end["peak_live_bytes"], 192);
  EXPECT_EQ(file.header["source"], "vpmm");
  EXPECT_EQ(file.header["is_window"], false);
}

TEST_F(RecordingFile, is_read_as_a_trace_with_its_failed_requests) {
  record_a_little();
  const auto trace = read_trace(path());
  ASSERT_TRUE(trace.ok()) << trace.error().message;
  EXPECT_EQ(trace.value().warning, "");
  EXPECT_EQ(trace.value().allocations, 3u);
  EXPECT_EQ(trace.value().streams, 3u);
  EXPECT_EQ(trace.value().failed, 1u);
  ASSERT_EQ(trace.value().events.size(), 4u);
  EXPECT_TRUE(trace.value().events[2].failed);
  EXPECT_EQ(trace.value().events[2].bytes, 4096u);
  EXPECT_EQ(trace.value().events[3].kind, TraceEvent::TraceKind::deallocate);
}

TEST_F(RecordingFile, begins_with_what_lived_and_knows_its_frees) {
  auto program = start({}, {{kA, 64, 512, 5, 0xa0, 0, 0}});
  program->record_deallocate(kA, 5, 1);
  program->record_deallocate(kB, 5, 2);
  ASSERT_TRUE(program->close().ok());
  const RecordedFile file = read_recorded(path());
  ASSERT_EQ(file.events.size(), 2u) << "a free of what nobody knows is left out";
  EXPECT_EQ(file.events[0].kind, static_cast<std::uint16_t>(RecordedKind::live));
  EXPECT_EQ(file.events[0].value, 512u);
  EXPECT_EQ(file.definitions["streams"]["0"], "stream 5 (0xa0)");
  EXPECT_EQ(read_trace(path()).value().allocations, 1u);
}

TEST_F(RecordingFile, frees_what_an_address_held_before_if_that_free_was_left_out) {
  auto program = start({}, {{kA, 64, 512, 5, std::nullopt, 0, 0}});
  program->record_allocate(kA, 8, 5, 1);
  ASSERT_TRUE(program->close().ok());
  const RecordedFile file = read_recorded(path());
  EXPECT_EQ(test::order_fault(file), "");
  EXPECT_EQ(file.events.size(), 3u);
}

TEST_F(RecordingFile, knows_the_most_that_was_mapped_between_two_samples) {
  auto program = start();
  program->record(RecordedKind::sample, DevicePtr{1000}, 0, std::nullopt, 1);
  program->record(RecordedKind::map, kA, 500, std::nullopt, 2, nullptr, 1);
  program->record(RecordedKind::map, kB, 700, std::nullopt, 3);  // a chunk that moved
  program->record(RecordedKind::unmap, kA, 500, std::nullopt, 4, nullptr, 1);
  ASSERT_TRUE(program->close().ok());
  EXPECT_EQ(read_recorded(path()).end["peak_mapped_bytes"], 1500);
}

TEST_F(RecordingFile, has_blocks_of_many_events) {
  auto program = start();
  for (std::uint64_t i = 0; i < 200'000; ++i)
    program->record_allocate(DevicePtr{(i + 1) << 12}, 64, i % 7, i);
  ASSERT_TRUE(program->close(std::chrono::minutes(2)).ok());
  const auto trace = read_trace(path());
  ASSERT_TRUE(trace.ok()) << trace.error().message;
  EXPECT_EQ(trace.value().allocations, 200'000u);
  EXPECT_EQ(trace.value().streams, 7u);
}

TEST_F(RecordingFile, holds_one_allocation_in_n_with_its_free) {
  RecordingOptions options;
  options.sample = 10;
  auto program = start(options);
  for (std::uint64_t i = 0; i < 20'000; ++i) {
    program->record_allocate(kA, 64, 1, i);
    program->record_deallocate(kA, 1, i);
  }
  ASSERT_TRUE(program->close().ok());
  const RecordedFile file = read_recorded(path());
  const std::size_t chosen = file.count(RecordedKind::allocate);
  EXPECT_GT(chosen, 1'000u);
  EXPECT_LT(chosen, 4'000u);
  EXPECT_EQ(file.count(RecordedKind::free), chosen);
}

// --- what is kept short

// Sizes that hardly compress.
void record_noise(RecordedProgram& program, std::uint64_t count, std::uint64_t us_each) {
  std::mt19937_64 random(1);
  for (std::uint64_t i = 0; i < count; ++i) {
    const DevicePtr ptr{(random() >> 20) | 1};
    program.record_allocate(ptr, random() >> 30, random() % 3, i * us_each);
    program.record_deallocate(ptr, 1, i * us_each);
  }
}

TEST_F(RecordingFile, with_a_limit_stays_below_it_and_knows_what_lives) {
  RecordingOptions options;
  options.limit = std::size_t{1} << 20;
  auto program = start(options);
  program->record_allocate(kB, 77, 1, 0);
  record_noise(*program, 200'000, 1);
  program->record_deallocate(kB, 1, 200'000);
  ASSERT_TRUE(program->close(std::chrono::minutes(2)).ok());
  EXPECT_LT(std::filesystem::file_size(path()), options.limit + (std::size_t{1} << 20));
  EXPECT_FALSE(std::filesystem::exists(path() + ".new"));
  const RecordedFile file = read_recorded(path());
  ASSERT_EQ(file.error, "");
  EXPECT_EQ(file.header["is_window"], true);
  EXPECT_EQ(test::order_fault(file), "");
  EXPECT_EQ(file.first(RecordedKind::live).address, to_integer(kB));
  EXPECT_LT(file.events.size(), 400'000u);
  const auto trace = read_trace(path());
  EXPECT_TRUE(trace.ok()) << trace.error().message;
}

TEST_F(RecordingFile, with_a_limit_keeps_who_may_read_it) {
  namespace fs = std::filesystem;
  RecordingOptions options;
  options.limit = std::size_t{1} << 20;
  const fs::perms own = fs::perms::owner_read | fs::perms::owner_write;
  const fs::perms shared = own | fs::perms::group_read | fs::perms::group_write;
  const mode_t before = umask(022);
  for (const fs::perms mode : {own, shared}) {
    write("");
    fs::permissions(path(), mode);
    std::ofstream(path() + ".new") << "left over";  // with another mode
    auto program = start(options);
    record_noise(*program, 100'000, 1);
    ASSERT_TRUE(program->close(std::chrono::minutes(2)).ok());
    EXPECT_EQ(read_recorded(path()).header["is_window"], true);
    EXPECT_EQ(fs::status(path()).permissions(), mode);
  }
  umask(before);
}

TEST_F(RecordingFile, with_a_limit_keeps_the_texts_that_its_events_repeat) {
  RecordingOptions options;
  options.limit = std::size_t{1} << 20;
  auto program = start(options);
  for (std::uint64_t turn = 0; turn < 20; ++turn) {
    program->record(RecordedKind::mark, DevicePtr{}, 0, std::nullopt, turn * 20'000,
                    std::make_unique<std::string>("the same"));
    for (std::uint64_t i = 0; i < 10'000; ++i) {
      program->record_allocate(kB, 77 + i * 4096, 1, turn * 20'000 + 2 * i);
      program->record_deallocate(kB, 1, turn * 20'000 + 2 * i + 1);
    }
  }
  ASSERT_TRUE(program->close(std::chrono::minutes(2)).ok());
  const RecordedFile file = read_recorded(path());
  ASSERT_EQ(file.error, "");
  ASSERT_EQ(file.header["is_window"], true);
  EXPECT_GT(file.count(RecordedKind::mark), 0u);
}

TEST_F(RecordingFile, with_a_window_reaches_back_that_far_and_hardly_twice) {
  RecordingOptions options;
  options.window_ns = 1'000'000'000;
  auto program = start(options);
  record_noise(*program, 100'000, 100);  // ten seconds
  ASSERT_TRUE(program->close(std::chrono::minutes(2)).ok());
  const RecordedFile file = read_recorded(path());
  ASSERT_EQ(file.error, "");
  ASSERT_FALSE(file.events.empty());
  const std::uint64_t reach =
      file.events.back().time_ns - file.first(RecordedKind::allocate).time_ns;
  EXPECT_GE(reach, options.window_ns);
  EXPECT_LT(file.events.size(), 200'000u);
  EXPECT_EQ(test::order_fault(file), "");
}

TEST_F(RecordingFile, whose_older_part_cannot_be_left_out_goes_on_and_says_so) {
  RecordingOptions options;
  options.limit = std::size_t{1} << 20;
  std::filesystem::create_directories(path() + ".new");
  auto program = start(options);
  record_noise(*program, 100'000, 1);
  const auto closed = program->close(std::chrono::minutes(2));
  ASSERT_FALSE(closed.ok());
  EXPECT_NE(closed.error().message.find(".new: cannot be created"), std::string::npos)
      << closed.error().message;
  const RecordedFile file = read_recorded(path());
  EXPECT_EQ(file.error, "");
  EXPECT_EQ(file.count(RecordedKind::allocate), 100'000u);
}

TEST_F(RecordingFile, with_a_limit_must_be_a_regular_file) {
  RecordingOptions options;
  options.limit = std::size_t{1} << 20;
  const auto program = RecordedProgram::create("/dev/null", 0, options);
  ASSERT_FALSE(program.ok());
  EXPECT_EQ(program.error().message, "/dev/null: a recording with a limit needs a regular file");
}

TEST_F(RecordingFile, on_a_full_disk_is_refused_at_once) {
  if (!std::filesystem::exists("/dev/full"))
    GTEST_SKIP() << "no /dev/full here to stand for a full disk";
  const auto program = RecordedProgram::create("/dev/full", 0);
  ASSERT_FALSE(program.ok());
  EXPECT_EQ(program.error().message, "/dev/full: cannot be created: No space left on device");
}

// --- reading what is not whole

TEST_F(RecordingFile, that_is_cut_is_read_to_its_last_whole_block_with_a_warning) {
  record_a_little();
  const std::string whole = bytes();
  std::size_t events = 4;
  for (std::size_t size = whole.size() - 1; size > 0; --size) {
    write(whole.substr(0, size));
    const auto trace = read_trace(path());
    if (!trace) {
      EXPECT_NE(trace.error().message.find("the file is cut"), std::string::npos)
          << trace.error().message;
      EXPECT_LT(size, whole.size() / 2);
      break;
    }
    EXPECT_NE(trace.value().warning.find("was not stopped"), std::string::npos);
    EXPECT_LE(trace.value().events.size(), events);
    events = trace.value().events.size();
  }
  EXPECT_EQ(events, 0u);
}

TEST_F(RecordingFile, that_is_damaged_is_refused_with_its_name_and_the_byte) {
  record_a_little();
  const std::string whole = bytes();
  std::string damaged = whole;
  damaged[whole.size() - 3] = static_cast<char>(damaged[whole.size() - 3] ^ 1);
  write(damaged);
  EXPECT_EQ(refusal().substr(0, path().size() + 7), path() + ": byte ");
  EXPECT_NE(refusal().find("its checksum is another"), std::string::npos) << refusal();
  write(whole + "more");
  EXPECT_NE(refusal().find("something follows the end"), std::string::npos) << refusal();
  damaged = whole;
  damaged[7] = 9;
  write(damaged);
  EXPECT_EQ(refusal(),
            path() + ": byte 0: version 9 of the format, where this program reads version 1");
}

// A block of spaces has a few hundred bytes.
TEST_F(RecordingFile, that_was_made_to_fill_the_memory_is_refused) {
  record_a_little();
  const std::string whole = bytes();
  const std::size_t second = whole.find("VPRB", whole.find("VPRB") + 1);
  std::string json(kLargestBlock, ' ');
  json.replace(0, 2, "{}");
  std::string stored(ZSTD_compressBound(json.size()), '\0');
  stored.resize(ZSTD_compress(stored.data(), stored.size(), json.data(), json.size(), 1));
  const auto size = [](const std::string& text) { return static_cast<std::uint32_t>(text.size()); };
  const auto sum = crc32(0, reinterpret_cast<const Bytef*>(stored.data()), size(stored));
  const BlockHeader header{kBlockMagic, static_cast<std::uint32_t>(BlockKind::definitions),
                           size(stored), size(json), static_cast<std::uint32_t>(sum)};
  const std::string block =
      std::string(reinterpret_cast<const char*>(&header), sizeof header) + stored;
  std::string made = whole.substr(0, second);
  for (int i = 0; i < 32; ++i) made += block;
  const auto blocks = [&]() -> std::string {
    write(made + whole.substr(second));
    BlockReader reader(path(), std::move(GzipInput::open(path())).value());
    for (;;) {
      const auto next = reader.next();
      if (!next) return next.error().message;
      if (!next.value()) return "all";
    }
  };
  EXPECT_NE(blocks().find("which no recording has"), std::string::npos) << blocks();
  made.resize(made.size() - block.size());
  EXPECT_EQ(blocks(), "all");
}

// With the checksum put right, damage reaches the parts behind it, too.
TEST_F(RecordingFile, with_any_byte_changed_is_a_trace_or_an_error_and_never_a_crash) {
  record_a_little();
  const std::string whole = bytes();
  std::mt19937_64 random(7);
  for (int i = 0; i < 6000; ++i) {
    std::string changed = whole;
    for (std::uint64_t many = random() % 3 + 1; many > 0; --many)
      changed[random() % changed.size()] = static_cast<char>(random());
    if (i % 3 == 0) changed.resize(random() % changed.size());
    write(changed);
    const auto trace = read_trace(path());
    EXPECT_TRUE(trace.ok() || !trace.error().message.empty());
  }
}

}  // namespace
}  // namespace vpmm::observe
