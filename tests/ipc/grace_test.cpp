// SPDX-License-Identifier: Apache-2.0
// ipc tests: an importer that cannot be watched, as one of another container on an old kernel, has
// a grace period.
#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <thread>

#include "ipc/raw.hpp"

namespace vpmm::ipc_test::grace_test {
namespace {

using ipc::MessageKind;

constexpr std::uint64_t kSeed = 12;
constexpr Bytes kSize = 4 * kMiB;

// The kernel refuses what watches other processes: the descriptor of a peer (SO_PEERPIDFD), as one
// before Linux 6.5 does, and perhaps pidfd_open.
enum class Refused { peer_descriptor, all };
bool become_blind(Process& process, Refused refused = Refused::all) {
  Parcel question;
  question.words[0] = refused == Refused::all ? SYS_pidfd_open : ~0U;
  const Parcel answer = process.call(
      [](Parcel& parcel) {
        const auto other_call = static_cast<std::uint32_t>(parcel.words[0]);
        constexpr std::uint32_t kPeerDescriptor = 77;
        constexpr auto kNumber = static_cast<std::uint32_t>(offsetof(seccomp_data, nr));
        constexpr auto kOption =
            static_cast<std::uint32_t>(offsetof(seccomp_data, args) + 2 * sizeof(std::uint64_t));
        std::array<sock_filter, 8> program = {{
            BPF_STMT(BPF_LD | BPF_W | BPF_ABS, kNumber),
            BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, other_call, 4, 0),
            BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_getsockopt, 0, 2),
            BPF_STMT(BPF_LD | BPF_W | BPF_ABS, kOption),
            BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, kPeerDescriptor, 1, 0),
            BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
            BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOPROTOOPT),
            BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
        }};
        const sock_fprog all{static_cast<unsigned short>(program.size()), program.data()};
        if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ||
            prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &all) != 0)
          parcel.status = VPMM_ERROR_UNSUPPORTED;
      },
      question);
  return answer.status == VPMM_OK;
}

void let_go(Process& exporter, const Shared& shared) {
  exporter.free(shared.address);
  exporter.end(shared.handle);
}

TEST(IpcGrace, one_that_cannot_be_watched_and_hangs_up_keeps_its_lease_for_a_while) {
  Process exporter({"VPMM_IPC_GRACE=700"});
  if (!become_blind(exporter)) GTEST_SKIP() << "no seccomp filter can be set here";
  const Shared shared = exporter.allocate_shared(kSize, kSeed);
  HandImporter importer;
  importer.connect(shared.handle);
  importer.say_open(shared.handle);
  EXPECT_EQ(importer.hear().kind, MessageKind::granted);
  let_go(exporter, shared);
  const auto before = std::chrono::steady_clock::now();
  importer.hang_up();
  expect_leases_to_end(exporter);
  EXPECT_GE(std::chrono::steady_clock::now() - before, std::chrono::milliseconds(700))
      << "no less than was promised";
}

TEST(IpcGrace, is_not_for_one_that_stays_or_closes) {
  Process exporter({"VPMM_IPC_GRACE=1"});
  if (!become_blind(exporter)) GTEST_SKIP() << "no seccomp filter can be set here";
  const Shared shared = exporter.allocate_shared(kSize, kSeed);
  Process importer;
  const Address opened = importer.open(shared.handle);
  let_go(exporter, shared);
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_GE(exporter.leased(), kSize);
  EXPECT_LT(exporter.share_of_a_core(), 0.125) << "it waits for no end of the period";
  importer.expect(opened, kSize, kSeed);
  importer.close(opened);
  expect_leases_to_end(exporter);
}

class IpcWatch : public testing::TestWithParam<bool> {};

TEST_P(IpcWatch, of_one_that_hangs_up_keeps_its_lease_until_it_is_dead) {
  Process exporter({"VPMM_IPC_GRACE=0"});
  if (GetParam() && !become_blind(exporter, Refused::peer_descriptor))
    GTEST_SKIP() << "no seccomp filter can be set here";
  const Shared shared = exporter.allocate_shared(kSize, kSeed);
  HandImporter importer;
  importer.connect(shared.handle);
  importer.say_open(shared.handle);
  EXPECT_EQ(importer.hear().kind, MessageKind::granted);
  let_go(exporter, shared);
  importer.hang_up();
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_GE(exporter.leased(), kSize);
  importer.kill();
  expect_leases_to_end(exporter);
}

// Behind a message for which the exporter hangs up.
TEST(IpcLostConnection, ends_the_openings_that_it_closed_and_no_other) {
  for (const bool closes : {false, true}) {
    Process exporter;
    const Shared shared = exporter.allocate_shared(kSize, kSeed);
    const auto sockets = exporter.belongings().sockets;
    HandImporter importer;
    importer.connect(shared.handle);
    importer.say_open(shared.handle);
    EXPECT_EQ(importer.hear().kind, MessageKind::granted);
    let_go(exporter, shared);
    EXPECT_EQ(exporter.belongings().sockets, sockets + 1);
    exporter.signal(SIGSTOP);
    importer.say_open(shared.handle);  // with a number that is in use
    importer.say_received(1);
    if (closes) importer.say_close();
    exporter.signal(SIGCONT);
    for (int i = 0; exporter.belongings().sockets != sockets && i < 20'000; ++i) usleep(1000);
    EXPECT_EQ(exporter.belongings().sockets, sockets);
    if (closes) {
      expect_leases_to_end(exporter);
    } else {
      EXPECT_GE(exporter.leased(), kSize);
    }
    importer.kill();
    expect_leases_to_end(exporter);
  }
}

INSTANTIATE_TEST_SUITE_P(, IpcWatch, testing::Bool(), [](const auto& tested) {
  return tested.param ? "by_its_number" : "by_its_connection";
});

}  // namespace
}  // namespace vpmm::ipc_test::grace_test
