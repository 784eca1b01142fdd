// SPDX-License-Identifier: Apache-2.0
// ipc tests: a forked child has none of what its parent shared or opened, keeps nothing of it
// alive, and removes none.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstring>
#include <filesystem>
#include <optional>
#include <thread>

#include "ipc/descriptor.hpp"
#include "ipc/exporter.hpp"
#include "ipc/raw.hpp"

namespace vpmm::ipc_test::forking_test {
namespace {

constexpr std::uint64_t kSeed = 9;
constexpr Bytes kSize = 6 * kMiB;

// A child of an actor that lives on until the test ends it. words[0]: its number; words[1], [2]:
// its descriptors, and how many of them are sockets.
void fork_one_that_stays(Parcel& parcel) {
  std::array<int, 2> ends{};
  if (pipe(ends.data()) != 0) return;
  const pid_t child = fork_for_a_while();
  if (child == 0) {
    ::close(control_of_actor());
    ::close(ends[0]);
    const Descriptors own = own_descriptors();
    const bool is_told = write(ends[1], &own, sizeof own) == static_cast<ssize_t>(sizeof own);
    ::close(ends[1]);
    while (is_told) pause();
    _exit(1);
  }
  ::close(ends[1]);
  Descriptors of_child;
  const ssize_t got = read(ends[0], &of_child, sizeof of_child);
  ::close(ends[0]);
  parcel.words = {static_cast<std::uint64_t>(child), of_child.all, of_child.sockets};
  if (got != static_cast<ssize_t>(sizeof of_child)) parcel.status = VPMM_ERROR_DRIVER_FAILED;
}

class Child {
 public:
  explicit Child(Process& parent) {
    const Parcel answer = parent.call(fork_one_that_stays);
    expect_ok(answer);
    process_ = static_cast<pid_t>(answer.words[0]);
    descriptors = answer.words[1];
    sockets = answer.words[2];
  }
  ~Child() {
    if (process_ > 0) ::kill(process_, SIGKILL);
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  std::uint64_t descriptors = 0;
  std::uint64_t sockets = 0;

 private:
  pid_t process_ = 0;
};

TEST(IpcDescriptors, are_made_while_no_thread_forks) {
  std::atomic<bool> has_forked{false};
  std::thread forking;
  {
    const ipc::Descriptor::Making making;
    forking = std::thread([&] {
      const pid_t child = fork_for_a_while();
      if (child == 0) _exit(0);
      has_forked = true;
      waitpid(child, nullptr, 0);
    });
    usleep(200'000);
    EXPECT_FALSE(has_forked) << "the child could inherit one that nobody listed";
  }
  forking.join();
  EXPECT_TRUE(has_forked);
}

TEST(IpcFork, a_child_of_the_exporter_has_none_of_its_descriptors) {
  Process exporter;
  Process importer;
  exporter.allocate(kSize);
  exporter.belongings();
  const Child before(exporter);
  const Shared shared = exporter.allocate_shared(kSize, kSeed);
  importer.open(shared.handle);
  EXPECT_EQ(exporter.belongings().sockets, 3U)
      << "to the test, the listening one, and the importer's";
  const Child after(exporter);
  EXPECT_EQ(after.descriptors, before.descriptors);
  EXPECT_EQ(after.sockets, 0U);
}

// A number that a closed descriptor had is another file's by then.
TEST(IpcFork, a_child_keeps_what_the_program_opened_and_nothing_else) {
  for (const bool is_unlocked : {false, true}) {
    Process process;
    Parcel parcel;
    parcel.words[0] = is_unlocked ? 1 : 0;
    const Parcel answer = process.call(
        [](Parcel& asked) {
          ::close(STDIN_FILENO);  // so that a number is 0
          const auto make = [] {
            ipc::Descriptor::Making making;
            return making.adopt(open("/dev/null", O_RDONLY | O_CLOEXEC));
          };
          ipc::Descriptor ours = make();
          asked.words[1] = static_cast<std::uint64_t>(ours.get());
          const auto is_open_in_child = [] {
            const pid_t child = fork_for_a_while();
            if (child == 0) _exit(fcntl(STDIN_FILENO, F_GETFD) >= 0 ? 1 : 0);
            int status = -1;
            waitpid(child, &status, 0);
            return WIFEXITED(status) && WEXITSTATUS(status) == 1;
          };
          asked.words[4] = ours && is_open_in_child() ? 1 : 0;
          if (asked.words[0] != 0)
            ours.reset_unlocked();
          else
            ours.reset();
          const int theirs = open("/dev/null", O_RDONLY | O_CLOEXEC);
          asked.words[2] = static_cast<std::uint64_t>(theirs);
          asked.words[3] = is_open_in_child() ? 1 : 0;
          ::close(theirs);
          ipc::Descriptor inherited = make();
          const pid_t child = fork_for_a_while();
          if (child == 0) {
            const int of_child = open("/dev/null", O_RDONLY | O_CLOEXEC);
            if (asked.words[0] != 0)
              inherited.reset_unlocked();
            else
              inherited.reset();
            _exit(of_child == STDIN_FILENO && fcntl(of_child, F_GETFD) >= 0 ? 1 : 0);
          }
          int status = -1;
          waitpid(child, &status, 0);
          asked.words[5] = WIFEXITED(status) && WEXITSTATUS(status) == 1 ? 1 : 0;
        },
        parcel);
    EXPECT_EQ(answer.words[1], 0U);
    EXPECT_EQ(answer.words[2], 0U) << "it was closed";
    EXPECT_EQ(answer.words[3], 1U);
    EXPECT_EQ(answer.words[4], 0U) << "as it was ours";
    EXPECT_EQ(answer.words[5], 1U) << "what the child opened is not closed as what it inherited";
  }
}

TEST(IpcFork, a_child_ends_no_connection_of_its_own_with_the_number_of_an_inherited_one) {
  Process process;
  const Parcel answer = process.call([](Parcel& parcel) {
    ::close(STDIN_FILENO);
    ipc::Descriptor inherited;
    {
      ipc::Descriptor::Making making;
      inherited = making.adopt(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
    }
    const pid_t child = fork_for_a_while();
    if (child == 0) {
      std::array<int, 2> ends{};
      const bool is_made = socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends.data()) == 0;
      inherited.hang_up();
      const bool is_sent = send(ends[0], "x", 1, MSG_NOSIGNAL) == 1;
      _exit(is_made && is_sent && ends[0] == STDIN_FILENO ? 1 : 0);
    }
    int status = -1;
    waitpid(child, &status, 0);
    parcel.words[0] = WIFEXITED(status) && WEXITSTATUS(status) == 1 ? 1 : 0;
  });
  EXPECT_EQ(answer.words[0], 1U);
}

TEST(IpcFork, without_standard_input_memory_is_shared_and_opened_and_descriptors_are_closed) {
  Process exporter;
  Process importer;
  const Address address = exporter.allocate(kSize);
  exporter.fill(address, kSize, kSeed);
  importer.belongings();
  for (Process* const each : {&exporter, &importer})
    each->call([](Parcel&) { ::close(STDIN_FILENO); });
  const auto before = importer.belongings();
  const Address opened = importer.open(exporter.share(address, kSize));
  importer.expect(opened, kSize, kSeed);
  importer.close(opened);
  EXPECT_EQ(importer.belongings(), before);
}

TEST(IpcFork, an_exporter_whose_child_lives_on_is_gone_when_it_is_dead) {
  Process exporter;
  Process importer;
  const Shared shared = exporter.allocate_shared(kSize, kSeed);
  const Shared other = exporter.allocate_shared(kSize, kSeed);
  const Address opened = importer.open(shared.handle);
  const Child child(exporter);
  exporter.kill();
  expect_refused(importer.try_to_open(other.handle), VPMM_ERROR_NOT_SHARED, "is gone");
  Process next;
  expect_refused(next.try_to_open(shared.handle), VPMM_ERROR_NOT_SHARED, "is gone");
  importer.expect(opened, kSize, kSeed);
  importer.close(opened);
}

TEST(IpcFork, a_child_of_the_importer_holds_no_lease) {
  Process exporter;
  const Shared shared = exporter.allocate_shared(kSize, kSeed);
  Process closing;
  Process dying;
  const Address opened = closing.open(shared.handle);
  dying.open(shared.handle);
  const Child of_closing(closing);
  const Child of_dying(dying);
  EXPECT_EQ(of_closing.sockets, 0U);
  exporter.free(shared.address);
  exporter.end(shared.handle);
  closing.close(opened);
  dying.kill();
  expect_leases_to_end(exporter);
}

// The child has a copy of the connection that the importer made by itself, and does not hang up.
TEST(IpcFork, an_importer_that_is_dead_holds_no_lease_though_its_child_is_connected) {
  Process exporter;
  const Shared shared = exporter.allocate_shared(kSize, kSeed);
  Process importer;
  Parcel parcel;
  parcel.handle = shared.handle;
  const Parcel opened = importer.call(
      [](Parcel& asked) {
        static ipc::Channel channel = connect_by_hand(asked.handle);
        send_by_hand(channel, open_message(asked.handle, 1));
        const std::optional<ipc::Message> answer = next_from(channel);
        asked.words[0] = answer && answer->kind == ipc::MessageKind::granted ? 1 : 0;
        if (fcntl(channel.get(), F_DUPFD_CLOEXEC, 0) < 0) asked.status = VPMM_ERROR_DRIVER_FAILED;
      },
      parcel);
  expect_ok(opened);
  EXPECT_EQ(opened.words[0], 1U);
  const Child child(importer);
  EXPECT_EQ(child.sockets, 1U);
  exporter.free(shared.address);
  exporter.end(shared.handle);
  EXPECT_GE(exporter.leased(), kSize);
  importer.kill();
  expect_leases_to_end(exporter);
}

// What a child of an actor found, in the words of the parcel.
template <typename Check>
void in_child(Parcel& parcel, Check&& check) {
  std::array<int, 2> ends{};
  if (pipe(ends.data()) != 0) return;
  const pid_t child = fork_for_a_while();
  if (child == 0) {
    check(parcel);
    const ssize_t written = write(ends[1], parcel.words.data(), sizeof parcel.words);
    std::_Exit(written > 0 ? 0 : 1);
  }
  ::close(ends[1]);
  if (read(ends[0], parcel.words.data(), sizeof parcel.words) < 0)
    parcel.status = VPMM_ERROR_DRIVER_FAILED;
  ::close(ends[0]);
  waitpid(child, nullptr, 0);
}

TEST(IpcFork, in_a_child_nothing_can_be_shared_or_opened_and_closing_does_nothing) {
  Process exporter;
  Process parent;
  const Shared theirs = exporter.allocate_shared(kSize, kSeed);
  const Shared own = parent.allocate_shared(kSize, kSeed + 1);
  const Address opened = parent.open(theirs.handle);
  Parcel parcel;
  parcel.handle = theirs.handle;
  parcel.words = {own.address, opened};
  const Parcel answer = parent.call(
      [](Parcel& asked) {
        in_child(asked, [](Parcel& found) {
          auto* const memory = reinterpret_cast<void*>(found.words[0]);
          auto* const open = reinterpret_cast<void*>(found.words[1]);
          vpmm_ipc_handle handle{};
          void* ptr = nullptr;
          found.words[0] = vpmm_ipc_export(memory, 8, &handle);
          found.words[1] = vpmm_ipc_open(&found.handle, -1, &ptr);
          found.words[2] = vpmm_ipc_close(open);
          found.words[3] = vpmm_ipc_export_end(&found.handle);
          found.words[4] = vpmm_ipc_read_token(found.handle.token, &handle);
        });
      },
      parcel);
  expect_ok(answer);
  EXPECT_EQ(answer.words[0], static_cast<std::uint64_t>(VPMM_ERROR_PROCESS_ENDING));
  EXPECT_EQ(answer.words[1], static_cast<std::uint64_t>(VPMM_ERROR_PROCESS_ENDING));
  EXPECT_EQ(answer.words[2], static_cast<std::uint64_t>(VPMM_OK));
  EXPECT_EQ(answer.words[3], static_cast<std::uint64_t>(VPMM_OK));
  EXPECT_EQ(answer.words[4], static_cast<std::uint64_t>(VPMM_OK)) << "that asks nobody";
  parent.expect(opened, kSize, kSeed);
  parent.close(opened);
  parent.end(own.handle);
}

TEST(IpcFork, the_exit_of_a_child_leaves_the_socket_of_its_parent) {
  // What the parent had is out of reach in the child, which has no use for it.
  Process exporter({"ASAN_OPTIONS=detect_leaks=0"});
  const Shared shared = exporter.allocate_shared(kSize, kSeed);
  const auto names = names_in(socket_folder_of_tests());
  expect_ok(exporter.call([](Parcel& parcel) {
    const pid_t child = fork_for_a_while();
    if (child == 0) std::exit(0);  // with all that is done at exit
    int status = 0;
    waitpid(child, &status, 0);
    if (status != 0) parcel.status = VPMM_ERROR_DRIVER_FAILED;
  }));
  EXPECT_EQ(names_in(socket_folder_of_tests()), names);
  Process importer;
  importer.expect(importer.open(shared.handle), kSize, kSeed);
}

// And of a process that answers `vpmm top`, both.
TEST(IpcFork, the_exit_of_a_child_leaves_both_sockets_of_its_parent) {
  const std::string folder = socket_folder_of_tests() + "/both";
  Process process({"VPMM_TOP=1", "VPMM_IPC_DIR=" + folder, "ASAN_OPTIONS=detect_leaks=0"});
  process.allocate_shared(kSize, kSeed);
  const auto names = names_in(folder);
  EXPECT_EQ(names.size(), 2U);
  expect_ok(process.call([](Parcel& parcel) {
    const pid_t child = fork_for_a_while();
    if (child == 0) std::exit(0);
    int status = 0;
    waitpid(child, &status, 0);
    if (status != 0) parcel.status = VPMM_ERROR_DRIVER_FAILED;
  }));
  EXPECT_EQ(names_in(folder), names);
  process.exit();
  EXPECT_TRUE(names_in(folder).empty());
  std::filesystem::remove_all(folder);
}

// Before a pool is opened, a child is as good as its parent, and no process has the other's tokens.
TEST(IpcFork, a_child_has_an_exporter_of_its_own) {
  Process process;
  const Parcel answer = process.call([](Parcel& parcel) {
    parcel.words[0] = reinterpret_cast<Address>(&ipc::Exporter::of_process());
    in_child(parcel, [](Parcel& found) {
      const auto own = reinterpret_cast<Address>(&ipc::Exporter::of_process());
      found.words[1] = own == found.words[0] ? 0 : 1;
    });
  });
  EXPECT_EQ(answer.words[1], 1U);
}

// The child is made while chunks are on their way.
TEST(IpcFork, children_come_and_go_while_memory_is_opened) {
  Process exporter({"VPMM_CHUNK_MAX=page"});
  Process importer;
  const Shared shared = exporter.allocate_shared(128 * kMiB, kSeed);
  const Work fork_often = [](Parcel& parcel) {
    for (int i = 0; i < 40 && parcel.status == VPMM_OK; ++i) {
      const pid_t child = fork_for_a_while();
      if (child == 0) _exit(0);
      int status = 0;
      if (child < 0 || waitpid(child, &status, 0) != child || status != 0)
        parcel.status = VPMM_ERROR_DRIVER_FAILED;
    }
  };
  const Work open_often = [](Parcel& parcel) {
    for (int i = 0; i < 20 && parcel.status == VPMM_OK; ++i) {
      void* ptr = nullptr;
      parcel.take(vpmm_ipc_open(&parcel.handle, -1, &ptr));
      if (parcel.status == VPMM_OK) parcel.take(vpmm_ipc_close(ptr));
    }
  };
  Parcel parcel;
  parcel.handle = shared.handle;
  exporter.begin(fork_often);
  importer.begin(open_often, parcel);
  expect_ok(exporter.finish());
  expect_ok(importer.finish());
  importer.expect(importer.open(shared.handle), 128 * kMiB, kSeed);
}

}  // namespace
}  // namespace vpmm::ipc_test::forking_test
