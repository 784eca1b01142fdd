// SPDX-License-Identifier: Apache-2.0
// ipc tests: the folder of sockets: which are refused, and what is in it when.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <optional>
#include <thread>
#include <utility>

#include "ipc/kernel.hpp"
#include "ipc/raw.hpp"

namespace vpmm::ipc_test::folder_test {
namespace {

namespace fs = std::filesystem;

class IpcFolder : public testing::Test {
 protected:
  std::string inside(const std::string& name) const { return folder_ + "/" + name; }
  static std::vector<std::string> setting(const std::string& folder) {
    return {"VPMM_IPC_DIR=" + folder};
  }
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
  fs::create_symlink(inside("nowhere"), inside("dangling"));
  expect_refused_as(inside("dangling") + "/", "cannot be looked at: No such file or directory");
  for (const mode_t mode : {0755U, 0770U, 0701U, 0777U}) {
    ASSERT_EQ(chmod(inside("real").c_str(), mode), 0);
    expect_refused_as(inside("real"), fmt::format("has mode {:o}, ", mode));
    expect_refused_as(inside("real"), "use 0700");
  }
}

TEST_F(IpcFolder, of_another_user_is_refused) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can give a folder away";
  fs::create_directory(inside("theirs"));
  ASSERT_EQ(chmod(inside("theirs").c_str(), 0700), 0);
  ASSERT_EQ(chown(inside("theirs").c_str(), 65534, 65534), 0);
  expect_refused_as(inside("theirs"), "belongs to user 65534");
}

// Another user, who has no such folder yet.
TEST_F(IpcFolder, of_each_user_is_one_in_tmp_if_no_other_is_chosen) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can become another user";
  // Of the numbers that a container has, and not that of a test beside this one.
  const auto somebody = static_cast<uid_t>(60'000 + getpid() % 5'000);
  const std::string folder = fmt::format("/tmp/vpmm-{}", somebody);
  fs::remove(folder);  // left by a test that was killed
  Process process;
  Parcel asked;
  asked.words[1] = somebody;
  const Parcel answer = process.call(
      [](Parcel& parcel) {
        parcel.words[2] = setuid(static_cast<uid_t>(parcel.words[1])) == 0 ? 1 : 0;
        if (parcel.words[2] == 0) return;
        const Result<std::string> made = ipc::socket_folder("");
        if (!made) return parcel.say(made.error().message);
        struct stat status {};
        parcel.words[0] = stat(made.value().c_str(), &status) == 0 ? status.st_mode & 07777 : 0;
        chmod(made.value().c_str(), 0755);
        const Result<std::string> refused = ipc::socket_folder("");
        parcel.say(made.value() + "; " + (refused ? "" : refused.error().message));
        rmdir(made.value().c_str());
      },
      asked);
  if (answer.words[2] == 0) GTEST_SKIP() << "this container lets root become no other user";
  EXPECT_EQ(answer.said(),
            fmt::format("{0}; {0}: has mode 755, and others may not enter it: use 0700", folder));
  EXPECT_EQ(answer.words[0], 0700U);
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
  // 108 characters of an address with its zero, less a slash and the name of a socket that is not
  // finished.
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
    const std::string name =
        (age == std::string("now") ? "0" : "1") + unfinished.substr(1) + ".sock.new";
    std::ofstream(folder + "/" + name) << "x";
    if (age == std::string("now")) names.push_back(name);
    if (age == std::string("then"))
      fs::last_write_time(folder + "/" + name,
                          fs::file_time_type::clock::now() - std::chrono::hours(1));
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

TEST_F(IpcFolder, is_swept_of_sockets_that_were_not_finished_in_a_minute_and_of_no_other_file) {
  const std::string stem(32, 'f');
  struct File {
    std::string name;
    std::chrono::seconds age;
    bool stays;
  };
  const std::vector<File> files = {
      {stem + ".sock.new", std::chrono::seconds(100), false},
      {"x" + stem.substr(1) + ".sock.new", std::chrono::seconds(30), true},
      {"short.new", std::chrono::hours(1), true},
      {"longer" + stem + ".sock.new", std::chrono::hours(1), true},
      {stem + ".sock.old", std::chrono::hours(1), true},
      {stem + ".text", std::chrono::hours(1), true},
      {".sock", std::chrono::hours(1), true},
  };
  std::vector<std::string> expected;
  for (const auto& [name, age, stays] : files) {
    std::ofstream(inside(name)) << "x";
    fs::last_write_time(inside(name), fs::file_time_type::clock::now() - age);
    if (stays) expected.push_back(name);
  }
  std::sort(expected.begin(), expected.end());
  ipc::sweep(folder_);
  EXPECT_EQ(names_in(folder_), expected);
  ipc::sweep(inside("not there"));
}

TEST_F(IpcFolder, is_swept_of_dead_sockets_with_any_name_of_that_length) {
  for (const std::string begin : {"top-", "top-0-", "top--1-", "top-x", "socket"}) {
    ASSERT_TRUE(ipc::listen_at(inside(begin + std::string(32 - begin.size(), 'f') + ".sock")).ok());
    EXPECT_EQ(names_in(folder_).size(), 1U) << begin;
    ipc::sweep(folder_);
    EXPECT_TRUE(names_in(folder_).empty()) << begin;
  }
  const auto kept = inside(std::string(31, 'f') + ".sock");
  ASSERT_TRUE(ipc::listen_at(kept).ok());
  ipc::sweep(folder_);
  EXPECT_EQ(names_in(folder_).size(), 1U) << "of somebody else";
}

// Whatever a call before it left behind.
TEST_F(IpcFolder, is_swept_of_no_socket_at_which_a_process_listens) {
  const auto listener = ipc::listen_at(inside(std::string(32, 'f') + ".sock"));
  ASSERT_TRUE(listener.ok());
  errno = ECONNREFUSED;
  ipc::sweep(folder_);
  EXPECT_EQ(names_in(folder_).size(), 1U);
}

// A connection would wake it.
TEST_F(IpcFolder, is_swept_without_a_word_to_processes_that_answer_top) {
  const auto is_connected_to = [this](pid_t process) {
    std::string stem = "top-" + std::to_string(process) + "-";
    stem.resize(32, '0');
    const auto listener = ipc::listen_at(inside(stem + ".sock"));
    EXPECT_TRUE(listener.ok());
    ipc::sweep(folder_);
    bool is_short = false;
    return listener && ipc::accept_from(listener.value().get(), is_short);
  };
  Process running;
  EXPECT_FALSE(is_connected_to(running.process()));
  if (getpid() != 1) {
    EXPECT_FALSE(is_connected_to(1)) << "which always runs";
  }
  EXPECT_TRUE(is_connected_to(getpid())) << "of an earlier process with this number";
}

// --- a folder that changes while processes share

// A socket with a name, at which nobody listens.
void bind_a_socket_at(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  path.copy(address.sun_path, sizeof address.sun_path - 1);
  const int file = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  ASSERT_EQ(bind(file, reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
  close(file);
}

class IpcChangedFolder : public IpcFolder {
 protected:
  void SetUp() override {
    IpcFolder::SetUp();
    exporter_.emplace(setting(shared_dir_));
    connected_.emplace(setting(shared_dir_));
    first_ = exporter_->allocate_shared(kMiB, 1);
    opened_ = connected_->open(first_.handle);
  }
  std::string socket_of_exporter() const {
    return ipc::socket_path(shared_dir_, parts_of(first_.handle).process);
  }
  // For the exporter: memory to export, and where its old socket is now.
  Parcel move_socket() const {
    Parcel parcel;
    parcel.words[0] = first_.address;
    parcel.say(inside("moved.sock"));
    fs::rename(socket_of_exporter(), parcel.said());
    return parcel;
  }
  void make_folder(mode_t mode) const {
    fs::create_directory(shared_dir_);
    ASSERT_EQ(chmod(shared_dir_.c_str(), mode), 0);
  }
  // By the next export, which `seed` fills, and by one that was made before.
  void expect_reachable(std::uint64_t seed) {
    const Shared next = exporter_->allocate_shared(kMiB, seed);
    Process newcomer(setting(shared_dir_));
    newcomer.expect(newcomer.open(next.handle), kMiB, seed);
    newcomer.expect(newcomer.open(first_.handle), kMiB, 1);
    connected_->expect(connected_->open(next.handle), kMiB, seed);
    EXPECT_TRUE(fs::is_socket(socket_of_exporter()));
  }
  void expect_sockets(std::uint64_t expected) {
    for (int i = 0; exporter_->belongings().sockets != expected && i < 20'000; ++i) usleep(1000);
    EXPECT_EQ(exporter_->belongings().sockets, expected);
  }

  const std::string shared_dir_ = inside("shared");
  std::optional<Process> exporter_;
  std::optional<Process> connected_;
  Shared first_;
  Address opened_ = 0;
};

TEST_F(IpcChangedFolder, gets_a_socket_again_at_the_next_export) {
  const std::string path = socket_of_exporter();
  const std::vector<std::pair<const char*, std::function<void()>>> changes = {
      {"the socket is removed", [&] { fs::remove(path); }},
      {"the folder is removed", [&] { fs::remove_all(shared_dir_); }},
      {"the folder is another one",
       [&] {
         fs::rename(shared_dir_, inside("moved"));
         make_folder(0700);
       }},
      {"a file has its name",
       [&] {
         fs::remove(path);
         std::ofstream(path) << "x";
       }},
      {"a socket of nobody has its name",
       [&] {
         fs::remove(path);
         bind_a_socket_at(path);
       }},
      {"a link has its name",
       [&] {
         fs::rename(path, inside("moved.sock"));
         fs::create_symlink(inside("moved.sock"), path);
       }},
      {"nobody may connect to it", [&] { ASSERT_EQ(chmod(path.c_str(), 0), 0); }},
  };
  const Belongings before = exporter_->belongings();
  std::uint64_t seed = 2;
  for (const auto& [what, change] : changes) {
    SCOPED_TRACE(what);
    change();
    expect_reachable(seed++);
  }
  connected_->expect(opened_, kMiB, 1);
  expect_sockets(before.sockets);
  EXPECT_EQ(exporter_->belongings().threads, before.threads);
}

TEST_F(IpcChangedFolder, is_refused_at_the_next_export_as_it_would_be_at_the_first) {
  const std::vector<std::pair<std::string, std::function<void()>>> changes = {
      {"0700", [&] { make_folder(0755); }},
      {"must be a folder", [&] { std::ofstream(shared_dir_) << "x"; }},
      {"not a link",
       [&] {
         fs::create_directory(inside("real"));
         fs::create_directory_symlink(inside("real"), shared_dir_);
       }},
      {"belongs to user 65534",
       [&] {
         make_folder(0700);
         ASSERT_EQ(chown(shared_dir_.c_str(), 65534, 65534), 0);
       }},
  };
  const Address memory = exporter_->allocate(kMiB);
  std::uint64_t seed = 2;
  for (const auto& [why, change] : changes) {
    if (why.starts_with("belongs") && geteuid() != 0) continue;  // only root can give a folder away
    SCOPED_TRACE(why);
    fs::remove_all(shared_dir_);
    change();
    const Parcel refused = exporter_->try_to_share(memory, kMiB);
    expect_refused(refused, VPMM_ERROR_BAD_CONFIGURATION, "VPMM_IPC_DIR=" + shared_dir_);
    expect_refused(refused, VPMM_ERROR_BAD_CONFIGURATION, why);
    connected_->expect(opened_, kMiB, 1);
    fs::remove_all(shared_dir_);
    expect_reachable(seed++);
  }
}

TEST_F(IpcChangedFolder, where_no_socket_can_be_made_fails_the_export_and_holds_nothing) {
  const std::string path = socket_of_exporter();
  const Shared freed = exporter_->allocate_shared(kMiB, 2);
  fs::remove(path);
  fs::create_directory(path);
  expect_refused(exporter_->try_to_share(freed.address, kMiB), VPMM_ERROR_BAD_FILE, path);
  exporter_->free(freed.address);
  exporter_->end(freed.handle);
  EXPECT_EQ(exporter_->leased(), 0U);
  fs::remove(path);
  expect_reachable(3);
}

TEST_F(IpcChangedFolder, keeps_the_leases_of_those_who_have_memory_open) {
  fs::remove_all(shared_dir_);
  exporter_->free(first_.address);
  expect_reachable(2);
  EXPECT_GE(exporter_->leased(), kMiB);
  exporter_->end(first_.handle);
  connected_->expect(opened_, kMiB, 1);
  connected_->close(opened_);
  expect_leases_to_end(*exporter_);
}

TEST_F(IpcChangedFolder, serves_importers_that_had_reached_the_removed_socket) {
  exporter_->signal(SIGSTOP);
  HandImporter waiting(setting(shared_dir_));
  waiting.connect(first_.handle);
  waiting.say_open(first_.handle);
  fs::remove_all(shared_dir_);
  exporter_->signal(SIGCONT);
  expect_reachable(2);
  EXPECT_EQ(waiting.hear().kind, ipc::MessageKind::granted);
}

std::string* old_socket_in_actor = nullptr;
std::optional<ipc::Channel> reached_in_actor;

void reach_the_old_socket() {
  Result<ipc::Channel> reached = ipc::connect_to(*old_socket_in_actor, soon());
  if (reached) reached_in_actor = std::move(reached).value();
}

// The thread finds both, the connection and the next socket.
TEST_F(IpcChangedFolder, serves_importers_that_reach_the_old_socket_while_another_is_made) {
  const Parcel parcel = move_socket();
  const Parcel answer = exporter_->call(
      [](Parcel& asked) {
        old_socket_in_actor = new std::string(asked.said());
        before_kernel_call(KernelCall::bind, reach_the_old_socket);
        asked.take(vpmm_ipc_export(reinterpret_cast<void*>(asked.words[0]), kMiB, &asked.handle));
        if (!reached_in_actor || asked.status != VPMM_OK) return;
        send_by_hand(*reached_in_actor, open_message(asked.handle, 1));
        const std::optional<ipc::Message> heard = next_from(*reached_in_actor);
        asked.words[1] = heard ? static_cast<std::uint64_t>(heard->kind) : 0;
        send_by_hand(*reached_in_actor, message_of(ipc::MessageKind::close, 1));
      },
      parcel);
  expect_ok(answer);
  EXPECT_EQ(answer.words[1], static_cast<std::uint64_t>(ipc::MessageKind::granted));
  expect_reachable(2);
}

std::atomic<bool> is_accepting_in_actor{false};

// In the exporter's thread: it finds no connection, and then another thread is in an export.
void find_no_connection() {
  fail_kernel_call(KernelCall::accept, EAGAIN);
  is_accepting_in_actor = true;
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
}

// The last look at the old socket is after the export that replaced it.
TEST_F(IpcChangedFolder, serves_importers_that_reached_the_old_socket_since_a_look_at_it) {
  const Parcel parcel = move_socket();
  const Parcel answer = exporter_->call(
      [](Parcel& asked) {
        before_kernel_call(KernelCall::accept, find_no_connection);
        Result<ipc::Channel> reached = ipc::connect_to(asked.said(), soon());
        if (!reached) return asked.say(reached.error().message);
        const auto give_up = soon();
        while (!is_accepting_in_actor && ipc::Clock::now() < give_up) std::this_thread::yield();
        if (!is_accepting_in_actor) return asked.say("the exporter has not looked");
        asked.take(vpmm_ipc_export(reinterpret_cast<void*>(asked.words[0]), kMiB, &asked.handle));
        if (asked.status != VPMM_OK) return;
        static_cast<void>(
            reached.value().send(open_message(asked.handle, 1), {}, soon()));  // or it is gone
        const std::optional<ipc::Message> heard = next_from(reached.value());
        asked.words[1] = heard ? static_cast<std::uint64_t>(heard->kind) : 0;
      },
      parcel);
  expect_ok(answer);
  EXPECT_EQ(answer.words[1], static_cast<std::uint64_t>(ipc::MessageKind::granted));
}

std::atomic<bool> is_held_in_actor{false};
std::atomic<bool> may_admit_in_actor{false};

// In the exporter's thread, which asks who has connected, without a lock.
void hold_the_thread() {
  is_held_in_actor = true;
  const auto give_up = soon();
  while (!may_admit_in_actor && ipc::Clock::now() < give_up) std::this_thread::yield();
}

constexpr int kMostReplaced = 8;

// The thread has looked at no other since the first was replaced.
TEST_F(IpcChangedFolder, serves_importers_of_every_socket_that_was_replaced_and_replaces_no_more) {
  Parcel parcel;
  parcel.words[0] = first_.address;
  parcel.say(socket_of_exporter());
  const Parcel answer = exporter_->call(
      [](Parcel& asked) {
        const std::string path = asked.said();
        const auto share = [&] {
          asked.take(vpmm_ipc_export(reinterpret_cast<void*>(asked.words[0]), kMiB, &asked.handle));
          return asked.status == VPMM_OK;
        };
        before_kernel_call(KernelCall::getsockopt, hold_the_thread);
        std::vector<ipc::Channel> reached;
        for (int i = 0; i <= kMostReplaced; ++i) {
          Result<ipc::Channel> channel = ipc::connect_to(path, soon());
          if (!channel) return asked.say(channel.error().message);
          reached.push_back(std::move(channel).value());
          const auto give_up = soon();
          while (!is_held_in_actor && ipc::Clock::now() < give_up) std::this_thread::yield();
          fs::remove(path);
          if (i < kMostReplaced && !share()) return;
        }
        asked.words[2] = share() ? 0 : 1;
        may_admit_in_actor = true;
        for (ipc::Channel& channel : reached) {
          static_cast<void>(
              channel.send(open_message(asked.handle, 1), {}, soon()));  // or it is gone
          const std::optional<ipc::Message> heard = next_from(channel);
          asked.words[1] += heard && heard->kind == ipc::MessageKind::granted ? 1 : 0;
        }
      },
      parcel);
  expect_refused(answer, VPMM_ERROR_HOST_OUT_OF_MEMORY, "are not closed yet");
  EXPECT_EQ(answer.words[1], kMostReplaced + 1u);
  EXPECT_EQ(answer.words[2], 1u);
  expect_reachable(2);
}

TEST_F(IpcChangedFolder, serves_every_pool_of_the_process_after_the_export_of_one) {
  fs::remove_all(shared_dir_);
  static vpmm_pool* of_its_own = nullptr;
  const Parcel made = exporter_->call([](Parcel& parcel) {
    void* ptr = nullptr;
    parcel.take(vpmm_pool_create(0, nullptr, &of_its_own));
    if (parcel.status == VPMM_OK) parcel.take(vpmm_allocate_any_stream(of_its_own, kMiB, 0, &ptr));
    parcel.words[0] = reinterpret_cast<Address>(ptr);
  });
  expect_ok(made);
  exporter_->fill(made.words[0], kMiB, 3);
  const vpmm_ipc_handle handle = exporter_->share(made.words[0], kMiB);
  Process newcomer(setting(shared_dir_));
  newcomer.expect(newcomer.open(handle), kMiB, 3);
  newcomer.expect(newcomer.open(first_.handle), kMiB, 1);
}

TEST_F(IpcChangedFolder, that_is_emptied_between_any_two_exports_leaves_nothing_behind) {
  const Belongings before = exporter_->belongings();
  for (int i = 0; i < 100; ++i) {
    fs::remove_all(shared_dir_);
    exporter_->end(exporter_->share(first_.address, kMiB));
  }
  expect_sockets(before.sockets);
  EXPECT_LE(exporter_->belongings().descriptors, before.descriptors)
      << "an importer of before may have gone meanwhile";
  expect_reachable(2);
  exporter_->exit();
  EXPECT_TRUE(names_in(shared_dir_).empty());
}

}  // namespace
}  // namespace vpmm::ipc_test::folder_test
