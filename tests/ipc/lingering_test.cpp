// SPDX-License-Identifier: Apache-2.0
// ipc tests: ends of connections that last, for an unread message has a descriptor that is slow to
// close.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <thread>

#include "ipc/kernel.hpp"
#include "ipc/lingering.hpp"
#include "ipc/raw.hpp"

namespace vpmm::ipc_test::lingering_test {
namespace {

using ipc::Channel;
using ipc::MessageKind;

constexpr std::uint64_t kSeed = 14;

// Needs the lock that others hold while they make descriptors.
bool can_fork(Process& process) {
  const Parcel forked = process.call([](Parcel& parcel) {
    static std::atomic<bool> has_forked{false};
    has_forked = false;
    std::thread([] {
      const pid_t child = fork_for_a_while();
      if (child == 0) _exit(0);
      waitpid(child, nullptr, 0);
      has_forked = true;
    }).detach();
    for (const auto give_up = soon(); !has_forked && ipc::Clock::now() < give_up;)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    parcel.words[0] = has_forked ? 1 : 0;
  });
  return forked.words[0] != 0;
}

// --- of an importer

std::atomic<bool> is_closed_in_actor{false};

void close_in_a_thread(Process& importer, Address address) {
  Parcel parcel;
  parcel.words[0] = address;
  importer.call(
      [](Parcel& asked) {
        std::thread([memory = reinterpret_cast<void*>(asked.words[0])] {
          vpmm_ipc_close(memory);
          is_closed_in_actor = true;
        }).detach();
      },
      parcel);
}

bool is_closed(Process& importer) {
  return importer.call([](Parcel& parcel) { parcel.words[0] = is_closed_in_actor ? 1 : 0; })
             .words[0] != 0;
}

TEST(IpcLastingEndOfALink, holds_up_the_closing_alone) {
  HandExporter hanging;
  Process exporter;
  Process importer;
  const Shared shared = exporter.allocate_shared(kMiB, kSeed);
  importer.begin_to_open(hanging.listen(4));
  EXPECT_EQ(hanging.hear().kind, MessageKind::open);
  hanging.grant(1);
  hanging.send_batch(1, 4);
  EXPECT_EQ(hanging.hear().kind, MessageKind::received);
  const Parcel opened = importer.finish();
  expect_ok(opened);
  hanging.send_lingering(1);
  close_in_a_thread(importer, opened.words[0]);
  EXPECT_EQ(hanging.hear().kind, MessageKind::close);
  EXPECT_EQ(hanging.hear().kind, MessageKind{}) << "the end of the connection";
  ASSERT_TRUE(can_fork(importer));
  importer.close(importer.open(shared.handle));
  EXPECT_FALSE(is_closed(importer));
  hanging.kill();
  for (const auto give_up = soon(); !is_closed(importer) && ipc::Clock::now() < give_up;)
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  EXPECT_TRUE(is_closed(importer));
}

// --- of an exporter, on a kernel that passes descriptors on

class IpcLastingEndOfAClient : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(lingering_.is_connected());
    exporter_.call([](Parcel&) { become_older_kernel(); });
    handle_ = exporter_.allocate_shared(kMiB, kSeed).handle;
    exporter_.signal(SIGSTOP);  // so that it reads nothing yet
  }
  void say_nonsense(const Channel& channel) {
    EXPECT_TRUE(send_with_copies_of(STDERR_FILENO, channel, "?", 1, 0));
  }
  void expect_an_end_that_lasts(Channel& channel) {
    ASSERT_TRUE(lingering_.give_to(channel, message_of(MessageKind::close, 1)));
    exporter_.signal(SIGCONT);
    EXPECT_TRUE(is_hung_up_on(channel));
    EXPECT_TRUE(can_fork(exporter_));
  }

  Process exporter_;
  vpmm_ipc_handle handle_{};
  Lingering lingering_;
};

// The first piece of nonsense ends the connection, the second one the search for closings.
TEST_F(IpcLastingEndOfAClient, that_does_not_keep_to_the_protocol_does_not_stop_the_program) {
  Channel channel = connect_by_hand(handle_);
  for (int i = 0; i < 2; ++i) say_nonsense(channel);
  expect_an_end_that_lasts(channel);
}

TEST_F(IpcLastingEndOfAClient, that_is_turned_away_does_not_stop_the_program) {
  std::array<Channel, 16> most;
  for (Channel& each : most) each = connect_by_hand(handle_);
  Channel next = connect_by_hand(handle_);
  expect_an_end_that_lasts(next);
}

}  // namespace
}  // namespace vpmm::ipc_test::lingering_test
