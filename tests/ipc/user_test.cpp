// SPDX-License-Identifier: Apache-2.0
// ipc tests: neither side talks to a process of another user, even where the folder would let it
// in.
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <vector>

#include "ipc/raw.hpp"

namespace vpmm::ipc_test::user_test {
namespace {

using ipc::MessageKind;

constexpr uid_t kNobody = 65534;

class IpcUser : public testing::Test {
 protected:
  void SetUp() override {
    if (geteuid() != 0) GTEST_SKIP() << "only root can become another user";
    folder_ = socket_folder_of_tests();
  }
  // So that nothing but the checks under test stands between the two.
  void open_to_all(const vpmm_ipc_handle& handle) {
    ASSERT_EQ(chmod(folder_.c_str(), 0777), 0);
    ASSERT_EQ(chmod(ipc::socket_path(folder_, parts_of(handle).process).c_str(), 0777), 0);
  }
  void TearDown() override {
    if (!folder_.empty()) chmod(folder_.c_str(), 0700);
  }
  std::string folder_;
};

void become_nobody(Process& process) {
  expect_ok(process.call([](Parcel& parcel) {
    if (setuid(kNobody) == 0) return;
    parcel.status = VPMM_ERROR_DRIVER_FAILED;
    parcel.say(std::strerror(errno));
  }));
}

TEST_F(IpcUser, another_is_refused_by_the_exporter) {
  Process exporter;
  const Shared shared = exporter.allocate_shared(2 * kMiB, 1);
  open_to_all(shared.handle);
  HandImporter stranger;
  become_nobody(stranger);
  stranger.connect(shared.handle);
  const ipc::Message heard = stranger.hear();
  EXPECT_EQ(heard.kind, MessageKind::refused);
  EXPECT_EQ(heard.number, 0U);
  EXPECT_NE(heard.said().find("another user"), std::string::npos) << heard.said();
  EXPECT_EQ(stranger.hear().kind, MessageKind{}) << "and is hung up on";
  exporter.free(shared.address);
  exporter.end(shared.handle);
  EXPECT_EQ(exporter.leased(), 0U);
  chmod(folder_.c_str(), 0700);
  Process friendly;
  const Shared next = exporter.allocate_shared(kMiB, 2);
  friendly.expect(friendly.open(next.handle), kMiB, 2);
}

TEST_F(IpcUser, another_does_not_get_as_far_as_the_socket_by_itself) {
  Process exporter;
  const Shared shared = exporter.allocate_shared(2 * kMiB, 1);
  Process stranger;
  become_nobody(stranger);
  expect_refused(stranger.try_to_open(shared.handle), VPMM_ERROR_BAD_CONFIGURATION, "VPMM_IPC_DIR");
  open_to_all(shared.handle);
  expect_refused(stranger.try_to_open(shared.handle), VPMM_ERROR_BAD_CONFIGURATION,
                 "belongs to user 0");
}

// Who listens is who the importer would trust with its memory map.
TEST_F(IpcUser, a_socket_that_another_listens_at_is_not_believed) {
  Process impostor;
  Process importer;
  const ipc::Token token{ipc::new_identity(), 4096, 1, 0, 2 * kMiB};
  Parcel parcel;
  parcel.handle = handle_of(token);
  expect_ok(impostor.call(
      [](Parcel& asked) {
        const std::string path =
            ipc::socket_path(socket_folder_of_tests(), parts_of(asked.handle).process);
        sockaddr_un address{};
        address.sun_family = AF_UNIX;
        path.copy(address.sun_path, sizeof address.sun_path - 1);
        const int listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
        const bool is_made =
            bind(listener, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0 &&
            setuid(kNobody) == 0 && listen(listener, 5) == 0;
        if (!is_made) asked.status = VPMM_ERROR_DRIVER_FAILED;
      },
      parcel));
  expect_refused(importer.try_to_open(handle_of(token)), VPMM_ERROR_NOT_SHARED,
                 "belongs to user 65534");
  EXPECT_EQ(importer.belongings().reservations, 0U);
}

// --- what a user who is not root may have on its way

constexpr std::uint64_t kDescriptors = 256;  // of all that a user sends, as well
constexpr std::size_t kSlowOnes = 12;        // with 32 each
constexpr std::uint32_t kSlowChunks = 50;    // of each
constexpr Bytes kSlowSize = kSlowChunks * 2 * kMiB;

struct SlowOne {
  ipc::Channel channel;
  std::uint32_t taken = 0;
};
std::vector<SlowOne>& slow_ones_of_actor() {
  static std::vector<SlowOne> all;
  return all;
}

// One message from each in turn, for what one does not take may be what keeps another waiting. Out:
// words[0]: chunks.
void take_everything(Parcel& parcel) {
  constexpr std::uint32_t kAll = kSlowOnes * kSlowChunks;
  std::uint32_t taken = 0;
  for (const ipc::Deadline end = soon(); taken < kAll && ipc::Clock::now() < end;) {
    for (SlowOne& one : slow_ones_of_actor()) {
      if (one.taken == kSlowChunks || !one.channel.wait_to_receive(ipc::Clock::now())) continue;
      const std::optional<ipc::Message> heard = next_from(one.channel);
      if (!heard) return parcel.say("a connection was cut");
      if (heard->kind == MessageKind::refused) return parcel.say(heard->said());
      one.taken += heard->count;
      taken += heard->count;
      if (heard->count != 0)
        send_by_hand(one.channel, message_of(MessageKind::received, 1, one.taken));
      if (one.taken == kSlowChunks) send_by_hand(one.channel, message_of(MessageKind::close, 1));
    }
  }
  parcel.words[0] = taken;
}

TEST_F(IpcUser, who_has_too_many_descriptors_on_their_way_serves_everybody_in_the_end) {
  std::string folder = "/tmp/vpmm-ipc-user-XXXXXX";
  ASSERT_NE(mkdtemp(folder.data()), nullptr);
  ASSERT_EQ(chown(folder.c_str(), kNobody, kNobody), 0);
  {
    const std::string here = "VPMM_IPC_DIR=" + folder;
    Process exporter({here, "VPMM_CHUNK_MAX=page", "VPMM_IPC_TIMEOUT=60000"});
    Process importer({here});
    for (Process* const process : {&exporter, &importer}) {
      process->limit_descriptors(kDescriptors);
      become_nobody(*process);
    }
    const Address address = exporter.allocate(kSlowSize);
    Parcel parcel;
    parcel.handle = exporter.share(address, kSlowSize);
    expect_ok(importer.call(
        [](Parcel& asked) {
          for (std::size_t i = 0; i < kSlowOnes; ++i) {
            slow_ones_of_actor().push_back({connect_by_hand(asked.handle), 0});
            send_by_hand(slow_ones_of_actor().back().channel, open_message(asked.handle, 1));
          }
          // So that each has its part on the way, as far as that goes.
          for (const SlowOne& one : slow_ones_of_actor())
            if (!one.channel.wait_to_receive(soon())) asked.status = VPMM_ERROR_NOT_SHARED;
        },
        parcel));
    parcel.words[0] = 0;
    const Parcel taken = importer.call(take_everything, parcel);
    EXPECT_EQ(taken.said(), "");
    EXPECT_EQ(taken.words[0], kSlowOnes * kSlowChunks);
    exporter.free(address);
    exporter.end(parcel.handle);
    expect_leases_to_end(exporter);
  }
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace vpmm::ipc_test::user_test
