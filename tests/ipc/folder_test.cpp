// ipc tests: the folder of sockets: which are refused, and what is in it when.
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "ipc/raw.hpp"

namespace vpmm::ipc_test::folder_test {
namespace {

namespace fs = std::filesystem;

class IpcFolder : public testing::Test {
 protected:
  std::string inside(const std::string& name) const { return folder_ + "/" + name; }
  static std::vector<std::string> setting(const std::string& folder) { return {"VPMM_IPC_DIR=" + folder}; }
  // Both sides say why.
  static void expect_refused_as(const std::string& folder, const std::string& why) {
    SCOPED_TRACE(folder);
    Process process(setting(folder));
    const Parcel refused = process.try_to_share(process.allocate(kMiB), kMiB);
    expect_refused(refused, VPMM_ERROR_BAD_CONFIGURATION, "VPMM_IPC_DIR=" + folder);
    expect_refused(refused, VPMM_ERROR_BAD_CONFIGURATION, why);
    EXPECT_EQ(process.belongings().threads, 1U);
    const ipc::Token token{ipc::new_identity(), 4096, 1, 0, kMiB};
    expect_refused(process.try_to_open(handle_of(token)), VPMM_ERROR_BAD_CONFIGURATION, why);
  }
  void SetUp() override { fs::create_directory(folder_); }
  void TearDown() override { fs::remove_all(folder_); }

  const std::string folder_ = socket_folder_of_tests() + "/f";
};

TEST_F(IpcFolder, that_others_could_use_or_find_elsewhere_is_refused_by_name) {
  expect_refused_as("relative/folder", "absolute");
  expect_refused_as(inside(std::string(100, 'x')), "characters");
  expect_refused_as(inside("not/there/yet"), "cannot be made");
  fs::create_directory(inside("real"));
  ASSERT_EQ(chmod(inside("real").c_str(), 0700), 0);
  fs::create_directory_symlink(inside("real"), inside("link"));
  expect_refused_as(inside("link"), "not a link");
  std::ofstream(inside("file")) << "x";
  expect_refused_as(inside("file"), "must be a folder");
  for (const mode_t mode : {0755U, 0770U, 0701U, 0777U}) {
    ASSERT_EQ(chmod(inside("real").c_str(), mode), 0);
    expect_refused_as(inside("real"), "0700");
  }
}

TEST_F(IpcFolder, of_another_user_is_refused) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can give a folder away";
  fs::create_directory(inside("theirs"));
  ASSERT_EQ(chmod(inside("theirs").c_str(), 0700), 0);
  ASSERT_EQ(chown(inside("theirs").c_str(), 65534, 65534), 0);
  expect_refused_as(inside("theirs"), "belongs to user 65534");
}

TEST_F(IpcFolder, that_is_not_there_is_made_for_its_user_alone) {
  Process exporter(setting(inside("new")));
  Process importer(setting(inside("new")));
  const Shared shared = exporter.allocate_shared(kMiB, 1);
  struct stat status {};
  ASSERT_EQ(stat(inside("new").c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 07777, 0700U);
  importer.expect(importer.open(shared.handle), kMiB, 1);
  Process elsewhere;
  expect_refused(elsewhere.try_to_open(shared.handle), VPMM_ERROR_NOT_SHARED, "VPMM_IPC_DIR");
}

TEST_F(IpcFolder, with_the_longest_name_that_is_allowed_works) {
  // 108 characters of an address with its zero, less a slash and the name of a socket that is not finished.
  const std::size_t most = 107 - 1 - 32 - 5 - 4;
  ASSERT_LT(inside("").size(), most);
  const std::string name = inside(std::string(most - inside("").size(), 'n'));
  expect_refused_as(name + "n", std::to_string(most));
  Process exporter(setting(name));
  Process importer(setting(name));
  importer.expect(importer.open(exporter.allocate_shared(kMiB, 1).handle), kMiB, 1);
}

TEST_F(IpcFolder, holds_one_socket_for_each_process_that_shares_and_it_goes_at_exit) {
  const std::string folder = inside("sockets");
  Process one(setting(folder));
  Process other(setting(folder));
  one.allocate_shared(kMiB, 1);
  one.allocate_shared(kMiB, 1);
  EXPECT_EQ(names_in(folder).size(), 1U);
  other.allocate_shared(kMiB, 2);
  EXPECT_EQ(names_in(folder).size(), 2U);
  other.exit();
  EXPECT_EQ(names_in(folder).size(), 1U);
  one.exit();
  EXPECT_TRUE(names_in(folder).empty());
}

TEST_F(IpcFolder, of_dead_processes_is_swept_and_the_living_stay) {
  const std::string folder = inside("swept");
  Process living(setting(folder));
  const Shared of_living = living.allocate_shared(kMiB, 1);
  std::vector<std::string> names = names_in(folder);
  for (int i = 0; i < 3; ++i) {
    Process dying(setting(folder));
    dying.allocate_shared(kMiB, 2);
    dying.kill();
  }
  names.push_back("something of somebody");
  std::ofstream(folder + "/" + names.back()) << "x";
  const std::string unfinished(32, '0');
  for (const char* const age : {"now", "then"}) {
    const std::string name = (age == std::string("now") ? "0" : "1") + unfinished.substr(1) + ".sock.new";
    std::ofstream(folder + "/" + name) << "x";
    if (age == std::string("now")) names.push_back(name);
    if (age == std::string("then"))
      fs::last_write_time(folder + "/" + name, fs::file_time_type::clock::now() - std::chrono::hours(1));
  }
  std::sort(names.begin(), names.end());
  living.signal(SIGSTOP);  // it is none the less alive
  {
    Process next(setting(folder));
    next.allocate_shared(kMiB, 3);
    EXPECT_EQ(names_in(folder).size(), names.size() + 1);
  }
  living.signal(SIGCONT);
  EXPECT_EQ(names_in(folder), names);
  Process importer(setting(folder));
  importer.expect(importer.open(of_living.handle), kMiB, 1);
}

}  // namespace
}  // namespace vpmm::ipc_test::folder_test
