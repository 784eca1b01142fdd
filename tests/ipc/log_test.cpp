// SPDX-License-Identifier: Apache-2.0
// ipc tests: what is logged of sharing, and at which level.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "ipc/memory.hpp"
#include "ipc/raw.hpp"
#include "ipc/top_socket.hpp"
#include "observe/log.hpp"

namespace vpmm::ipc_test::log_test {
namespace {

namespace fs = std::filesystem;

std::mutex log_mutex;

std::string& log_of_actor() {
  static auto* const text = new std::string;
  return *text;
}

void note(observe::LogLevel level, std::string_view message) {
  const std::lock_guard lock(log_mutex);
  log_of_actor() += std::string(observe::to_string(level)) + ": " + std::string(message) + "\n";
}

void listen(Process& process) {
  process.call([](Parcel&) {
    observe::set_log_level(observe::LogLevel::info);
    observe::set_log_sink(note);
  });
}

// Since the last time.
std::string logged_by(Process& process) {
  return process
      .call([](Parcel& parcel) {
        const std::lock_guard lock(log_mutex);
        parcel.say(log_of_actor());
        log_of_actor().clear();
      })
      .said();
}

std::string awaited_from(Process& process) {
  std::string logged;
  for (const auto give_up = soon(); logged.empty() && ipc::Clock::now() < give_up;)
    logged = logged_by(process);
  return logged;
}

std::size_t lines_in(const std::string& text) {
  return static_cast<std::size_t>(std::count(text.begin(), text.end(), '\n'));
}

TEST(IpcLog, names_a_socket_that_is_made_anew_and_no_other) {
  Process exporter;
  const Shared first = exporter.allocate_shared(kMiB, 1);
  listen(exporter);  // the first pool sets the level
  const std::string path =
      ipc::socket_path(socket_folder_of_tests(), parts_of(first.handle).process);
  exporter.allocate_shared(kMiB, 2);
  logged_by(exporter);
  fs::remove(path);
  exporter.allocate_shared(kMiB, 3);
  const std::string logged = logged_by(exporter);
  EXPECT_NE(logged.find("info: the socket at " + path + " was removed and is made anew\n"),
            std::string::npos)
      << logged;
  exporter.allocate_shared(kMiB, 4);
  EXPECT_EQ(logged_by(exporter).find("made anew"), std::string::npos) << "once";
}

TEST(IpcLog, names_a_process_that_goes_with_memory_open_and_none_that_has_closed_it) {
  Process exporter;
  const Shared shared = exporter.allocate_shared(kMiB, 1);
  listen(exporter);
  {
    Process closing;
    closing.close(closing.open(shared.handle));
  }
  Process dying;
  dying.open(shared.handle);
  const std::string number = std::to_string(dying.process());
  dying.kill();
  EXPECT_EQ(awaited_from(exporter),
            "info: process " + number + " let go of shared memory without closing it\n");
}

// Openings of an importer that counts from 0 are memory like any other.
TEST(IpcLog, names_a_process_that_hangs_up_without_closing_whatever_the_numbers_of_its_openings) {
  Process exporter;
  const Shared shared = exporter.allocate_shared(kMiB, 1);
  listen(exporter);
  for (const std::uint64_t number : {std::uint64_t{0}, ~std::uint64_t{0}}) {
    HandImporter importer;
    const std::string line = "info: process " + std::to_string(importer.process()) +
                             " let go of shared memory without closing it\n";
    importer.connect(shared.handle);
    importer.say_open(shared.handle, number);
    EXPECT_EQ(importer.hear().kind, ipc::MessageKind::granted);
    EXPECT_EQ(importer.hear().kind, ipc::MessageKind::batch);
    importer.hang_up();
    EXPECT_EQ(awaited_from(exporter), line);
  }
}

// Its pool opens all the same.
TEST(IpcLog, says_why_top_has_no_figures) {
  const std::string folder = socket_folder_of_tests() + "/none/there";
  struct Case {
    std::vector<std::string> settings;
    std::string level;
    std::string why;
  };
  const std::string beginning = ": `vpmm top` has no figures of this process: ";
  for (const auto& [settings, level, why] :
       {Case{{"VPMM_TOP=no"}, "warning", "VPMM_TOP=no: must be 0 or 1"},
        {{"VPMM_TOP=1", "VPMM_IPC_DIR=" + folder}, "info", "VPMM_IPC_DIR=" + folder},
        {{"VPMM_TOP=0"}, "", ""},
        {{"VPMM_TOP=1", "VPMM_IPC_DIR=" + socket_folder_of_tests()}, "", ""}}) {
    SCOPED_TRACE(settings.front());
    Process process(settings);
    listen(process);
    process.call([](Parcel&) {
      ipc::answer_top({[](const std::function<void(context::Context&)>&) {}, "x"});
    });
    const std::string logged = logged_by(process);
    EXPECT_TRUE(logged.starts_with(level.empty() ? "" : level + beginning + why)) << logged;
    EXPECT_EQ(lines_in(logged), level.empty() ? 0U : 1U);
  }
}

TEST(IpcLog, says_that_top_has_no_figures_for_want_of_host_memory) {
  Process process({"VPMM_TOP=1", "VPMM_IPC_DIR=" + socket_folder_of_tests()});
  listen(process);
  const Parcel failed = process.call([](Parcel& parcel) {
    fail_allocation(1, Of::main_thread);
    ipc::answer_top({[](const std::function<void(context::Context&)>&) {}, "x"});
    parcel.words[0] = stop_failing();
  });
  EXPECT_EQ(failed.words[0], 1U);
  EXPECT_EQ(logged_by(process),
            "info: `vpmm top` has no figures of this process: std::bad_alloc\n");
}

}  // namespace
}  // namespace vpmm::ipc_test::log_test
