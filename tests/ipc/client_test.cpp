// SPDX-License-Identifier: Apache-2.0
// ipc tests: other processes of the user, hostile ones too, leave the exporting program its
// descriptors and each other a place.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "ipc/kernel.hpp"
#include "ipc/lingering.hpp"
#include "ipc/raw.hpp"

namespace vpmm::ipc_test::client_test {
namespace {

using ipc::Channel;
using ipc::Message;
using ipc::MessageKind;

constexpr std::uint64_t kSeed = 11;
constexpr Bytes kSize = 4 * kMiB;

std::vector<Channel>& channels_of_actor() {
  static std::vector<Channel> channels;
  return channels;
}

// Connections that say nothing. Those that are turned away stay open at this end.
void connect_often(Process& client, const vpmm_ipc_handle& handle, std::uint64_t times) {
  Parcel parcel;
  parcel.handle = handle;
  parcel.words[0] = times;
  client.call(
      [](Parcel& asked) {
        for (std::uint64_t i = 0; i < asked.words[0]; ++i)
          channels_of_actor().push_back(connect_by_hand(asked.handle));
      },
      parcel);
}

// What a connection of connect_often was told.
Message told(Process& client, std::uint64_t connection) {
  Parcel parcel;
  parcel.words[0] = connection;
  const Parcel answer = client.call(
      [](Parcel& asked) {
        const std::optional<Message> heard = next_from(channels_of_actor().at(asked.words[0]));
        const Message message = heard.value_or(Message{});
        asked.words = {static_cast<std::uint64_t>(message.kind), message.number, message.status};
        asked.say(message.said());
      },
      parcel);
  Message message = message_of(static_cast<MessageKind>(answer.words[0]), answer.words[1]);
  message.status = static_cast<std::uint32_t>(answer.words[2]);
  message.say(answer.said());
  return message;
}

// All that a connection hears that is turned away.
void expect_turned_away(Process& client, std::uint64_t connection, const char* why) {
  const Message message = told(client, connection);
  EXPECT_EQ(message.kind, MessageKind::refused);
  EXPECT_EQ(message.number, 0U) << "of no opening alone";
  EXPECT_EQ(message.status, static_cast<std::uint32_t>(VPMM_ERROR_NOT_SHARED));
  EXPECT_NE(message.said().find(why), std::string::npos) << message.said();
  EXPECT_EQ(told(client, connection).kind, MessageKind{}) << "and nothing more";
}

std::uint64_t files_that_can_be_opened(Process& process) {
  return process
      .call([](Parcel& parcel) {
        std::vector<int> files;
        for (int file = 0; (file = open("/dev/null", O_RDONLY | O_CLOEXEC)) >= 0;)
          files.push_back(file);
        parcel.words[0] = files.size();
        for (const int file : files) ::close(file);
      })
      .words[0];
}

// The exporter closes its copies of the descriptors that it sends after the importer has them, and
// answers no other opening before.
void await_end_of_delivery(Process& importer, const vpmm_ipc_handle& handle) {
  ipc::Token unknown = parts_of(handle);
  ++unknown.generation;
  expect_refused(importer.try_to_open(handle_of(unknown)), VPMM_ERROR_NOT_SHARED, "freed");
}

// Silent connections make way after a while.
Address open_in_the_end(Process& importer, const vpmm_ipc_handle& handle) {
  Parcel answer = importer.try_to_open(handle);
  for (const auto give_up = soon(); answer.status != VPMM_OK && ipc::Clock::now() < give_up;) {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    answer = importer.try_to_open(handle);
  }
  expect_ok(answer);
  return answer.words[0];
}

TEST(IpcClients, one_that_connects_without_end_has_16_connections_and_others_get_in) {
  Process exporter;
  const Shared shared = exporter.allocate_shared(kSize, kSeed);
  exporter.limit_descriptors(256);
  const std::uint64_t free_before = files_that_can_be_opened(exporter);
  Process hostile;
  connect_often(hostile, shared.handle, 300);
  Process importer;
  const Address opened = importer.open(shared.handle);
  importer.expect(opened, kSize, kSeed);
  await_end_of_delivery(importer, shared.handle);
  EXPECT_EQ(files_that_can_be_opened(exporter) + 16 + 1 + 2, free_before);
  expect_turned_away(hostile, 16, "as many connections");
  importer.close(opened);
}

TEST(IpcClients, several_that_connect_without_end_have_a_quarter_of_the_descriptors_and_make_way) {
  Process exporter;
  const Shared shared = exporter.allocate_shared(kSize, kSeed);
  exporter.limit_descriptors(64);
  const std::uint64_t free_before = files_that_can_be_opened(exporter);
  std::array<Process, 4> hostile;
  for (Process& one : hostile) connect_often(one, shared.handle, 16);
  Process importer;
  const Address opened = open_in_the_end(importer, shared.handle);
  await_end_of_delivery(importer, shared.handle);
  EXPECT_GE(files_that_can_be_opened(exporter) + 16, free_before);
  expect_turned_away(hostile[0], 0, "made way");
  importer.expect(opened, kSize, kSeed);
  importer.close(opened);
}

TEST(IpcClients, one_that_hangs_up_and_comes_back_takes_one_descriptor_and_keeps_its_leases) {
  Process exporter;
  const Shared shared = exporter.allocate_shared(kSize, kSeed);
  exporter.belongings();
  const std::uint64_t before = exporter.belongings().descriptors;
  HandImporter client;
  for (int i = 0; i < 60; ++i) {
    client.connect(shared.handle);
    client.say_open(shared.handle);
    EXPECT_EQ(client.hear().kind, MessageKind::granted);
    client.hang_up();
  }
  Process importer;
  importer.close(importer.open(shared.handle));
  Belongings now = exporter.belongings();
  for (int i = 0; i < 10'000 && now.descriptors > before + 1; ++i) now = exporter.belongings();
  EXPECT_EQ(now.descriptors, before + 1);
  exporter.free(shared.address);
  exporter.end(shared.handle);
  EXPECT_GE(exporter.leased(), kSize);
  client.kill();
  expect_leases_to_end(exporter);
}

// It holds memory through both, and one may not end the leases of the other.
TEST(IpcClients, one_with_two_connections_keeps_the_leases_of_either) {
  Process exporter;
  const Shared first = exporter.allocate_shared(kSize, kSeed);
  const Shared second = exporter.allocate_shared(kSize, kSeed);
  Channel one = connect_by_hand(first.handle);
  Channel other = connect_by_hand(first.handle);
  send_by_hand(one, open_message(first.handle, 1));
  EXPECT_EQ(next_from(one)->kind, MessageKind::granted);
  send_by_hand(other, open_message(second.handle, 1));
  EXPECT_EQ(next_from(other)->kind, MessageKind::granted);
  const Bytes both = first.handle.bytes + second.handle.bytes;
  for (const Shared& each : {first, second}) {
    exporter.free(each.address);
    exporter.end(each.handle);
  }
  EXPECT_GE(exporter.leased(), both);
  send_by_hand(one, message_of(MessageKind::close, 1));
  for (const auto give_up = soon(); exporter.leased() >= both;)
    ASSERT_LT(ipc::Clock::now(), give_up);
  EXPECT_GE(exporter.leased(), kSize);
  send_by_hand(other, message_of(MessageKind::close, 1));
  expect_leases_to_end(exporter);
}

TEST(IpcClients, more_than_an_exporter_may_serve_are_told_so_and_served_when_one_leaves) {
  Process exporter;
  const Shared shared = exporter.allocate_shared(kSize, kSeed);
  exporter.limit_descriptors(64);
  std::array<Process, 8> importers;
  for (Process& importer : importers) importer.expect(importer.open(shared.handle), kSize, kSeed);
  Process late;
  // Those without memory would have to make way from now on.
  std::this_thread::sleep_for(std::chrono::milliseconds(1100));
  for (int i = 0; i < 3; ++i)
    expect_refused(late.try_to_open(shared.handle), VPMM_ERROR_NOT_SHARED,
                   "as many others as it may");
  importers[0].exit();
  late.expect(open_in_the_end(late, shared.handle), kSize, kSeed);
}

// Until each thread but that of the test waits for something.
void await_rest(Process& process) {
  expect_ok(process.call([](Parcel& parcel) {
    const auto are_all_waiting = [] {
      for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
        if (task.path().filename() == std::to_string(gettid())) continue;
        std::string line;
        std::getline(std::ifstream(task.path() / "stat"), line);
        if (line.compare(line.rfind(')') + 1, 2, " S") != 0) return false;
      }
      return true;
    };
    for (int i = 0; i < 20'000; ++i) {
      if (are_all_waiting()) return;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    parcel.status = VPMM_ERROR_DRIVER_FAILED;
  }));
}

// The exporter sees the end of one and the arrival of the other at the same time.
TEST(IpcClients, one_that_is_dead_makes_way_before_others_are_let_in) {
  Process exporter;
  const Shared shared = exporter.allocate_shared(kSize, kSeed);
  exporter.limit_descriptors(64);
  std::array<Process, 8> importers;
  for (Process& importer : importers) importer.open(shared.handle);
  await_rest(exporter);
  exporter.signal(SIGSTOP);
  importers[0].kill();
  Channel late = connect_by_hand(shared.handle);
  send_by_hand(late, open_message(shared.handle, 1));
  exporter.signal(SIGCONT);
  const std::optional<Message> answer = next_from(late);
  ASSERT_TRUE(answer);
  EXPECT_EQ(answer->kind, MessageKind::granted) << answer->said();
}

// The exporter forgets the process with its first connection, and knows it again by the second.
TEST(IpcClients, one_that_makes_way_for_itself_holds_what_it_opens_then) {
  Process exporter;
  const Shared shared = exporter.allocate_shared(kSize, kSeed);
  exporter.limit_descriptors(64);
  Process client;
  connect_often(client, shared.handle, 1);
  std::vector<Channel> others;  // 16 descriptors with those of the processes
  for (int i = 0; i < 13; ++i) others.push_back(connect_by_hand(shared.handle));
  std::this_thread::sleep_for(std::chrono::milliseconds(1100));
  connect_often(client, shared.handle, 1);
  expect_turned_away(client, 0, "made way");
  Parcel parcel;
  parcel.handle = shared.handle;
  const auto open_through_the_last = [](Parcel& asked) {
    Channel& channel = channels_of_actor().back();
    send_by_hand(channel, open_message(asked.handle, 1));
    const std::optional<Message> heard = next_from(channel);
    asked.words[0] = heard && heard->kind == MessageKind::granted ? 1 : 0;
  };
  EXPECT_EQ(client.call(open_through_the_last, parcel).words[0], 1U);
  exporter.free(shared.address);
  exporter.end(shared.handle);
  EXPECT_GE(exporter.leased(), kSize);
  client.kill();
  expect_leases_to_end(exporter);
}

// A process that is not served yet takes two descriptors, of 16, and another connection of one that
// is takes one.
TEST(IpcClients, one_that_needs_two_descriptors_is_not_let_in_where_there_is_one) {
  Process exporter;
  const Shared shared = exporter.allocate_shared(kSize, kSeed);
  exporter.limit_descriptors(64);
  std::array<Process, 6> importers;
  for (Process& importer : importers) importer.open(shared.handle);
  const auto connect_and_open = [&] {
    Channel channel = connect_by_hand(shared.handle);
    send_by_hand(channel, open_message(shared.handle, 1));
    const std::optional<Message> answer = next_from(channel);
    EXPECT_TRUE(answer && answer->kind == MessageKind::granted);
    return channel;
  };
  std::vector<Channel> own;
  for (int i = 0; i < 2; ++i) own.push_back(connect_and_open());
  Process late;
  expect_refused(late.try_to_open(shared.handle), VPMM_ERROR_NOT_SHARED, "as many others");
  own.push_back(connect_and_open());
}

// Of 16 descriptors one watches the process of these, and each of them takes one.
TEST(IpcClients, ones_that_came_just_now_do_not_make_way) {
  Process exporter;
  const Shared shared = exporter.allocate_shared(kSize, kSeed);
  exporter.limit_descriptors(64);
  Process importer;
  const ipc::Deadline begin = ipc::Clock::now();
  std::vector<Channel> silent;
  for (int i = 0; i < 15; ++i) silent.push_back(connect_by_hand(shared.handle));
  const Parcel refused = importer.try_to_open(shared.handle);
  Channel next = connect_by_hand(shared.handle);
  const auto said = next_from(next);
  const bool had_to_go = std::any_of(silent.begin(), silent.end(), [](const Channel& channel) {
    return channel.wait_to_receive(ipc::Clock::now());
  });
  if (ipc::Clock::now() - begin > std::chrono::seconds(1))
    GTEST_SKIP() << "the machine is too busy: they had a second to ask for something";
  expect_refused(refused, VPMM_ERROR_NOT_SHARED, "as many others as it may");
  EXPECT_FALSE(had_to_go);
  ASSERT_TRUE(said);
  EXPECT_EQ(said->kind, MessageKind::refused);
}

// Their numbers are not visible, so they are not told from each other by those.
TEST(IpcClients, ones_of_other_containers_are_each_taken_for_one_of_its_own) {
  Process exporter({"VPMM_IPC_GRACE=1"});
  exporter.call([](Parcel&) { hide_peers(); });
  const Shared first = exporter.allocate_shared(kSize, kSeed);
  const Shared second = exporter.allocate_shared(kSize, kSeed);
  HandImporter dying;
  HandImporter staying;
  for (const auto& [importer, shared] : {std::pair(&dying, first), std::pair(&staying, second)}) {
    importer->connect(shared.handle);
    importer->say_open(shared.handle);
    EXPECT_EQ(importer->hear().kind, MessageKind::granted);
    EXPECT_EQ(importer->hear().kind, MessageKind::batch);
    exporter.free(shared.address);
    exporter.end(shared.handle);
  }
  const Bytes both = exporter.leased();
  dying.kill();
  for (const auto give_up = soon(); exporter.leased() == both && ipc::Clock::now() < give_up;)
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  EXPECT_EQ(exporter.leased(), both / 2);
  const Shared next = exporter.allocate_shared(kMiB, kSeed);
  staying.say_received(1);
  staying.say_open(next.handle, 2);
  EXPECT_EQ(staying.hear().kind, MessageKind::granted) << "on the connection that it has";
  staying.kill();
  expect_leases_to_end(exporter);
  std::vector<Channel> many;
  for (int i = 0; i < 20; ++i) {
    many.push_back(connect_by_hand(next.handle));
    send_by_hand(many.back(), open_message(next.handle, 1));
    const std::optional<Message> answer = next_from(many.back());
    ASSERT_TRUE(answer);
    EXPECT_EQ(answer->kind, MessageKind::granted) << answer->said();
  }
}

// --- what else one may do

TEST(IpcClients, one_that_sends_a_descriptor_whose_closing_lasts_stops_nobody) {
  if (!kernel_can_refuse_descriptors()) GTEST_SKIP() << "SO_PASSRIGHTS is new in Linux 6.16";
  Process exporter;
  const Shared shared = exporter.allocate_shared(kSize, kSeed);
  Process importer({"VPMM_IPC_TIMEOUT=3000"});
  Lingering lingering;
  if (!lingering.is_connected()) GTEST_SKIP() << "no TCP here";
  const Channel channel = connect_by_hand(shared.handle);
  EXPECT_FALSE(lingering.give_to(channel, message_of(MessageKind::close, 1)));
  const Address opened = importer.open(shared.handle);
  importer.expect(opened, kSize, kSeed);
  importer.close(opened);
}

TEST(IpcClients, one_with_more_openings_than_it_may_have_is_refused_the_next_and_keeps_the_others) {
  constexpr std::uint64_t kMost = 1 << 14;
  Process exporter;
  const Shared shared = exporter.allocate_shared(1000, kSeed);
  Channel channel = connect_by_hand(shared.handle);
  const auto open = [&](std::uint64_t number) {
    send_by_hand(channel, open_message(shared.handle, number));
    const std::optional<Message> answer = next_from(channel);
    if (!answer || answer->kind != MessageKind::granted) return answer;
    for (std::uint32_t received = 0; received < answer->chunks;) {
      const std::optional<Message> batch = next_from(channel);
      if (!batch) return batch;
      send_by_hand(channel, message_of(MessageKind::received, number, received += batch->count));
    }
    return answer;
  };
  for (std::uint64_t number = 1; number <= kMost; ++number)
    ASSERT_EQ(open(number)->kind, MessageKind::granted);
  const std::optional<Message> refused = open(kMost + 1);
  ASSERT_TRUE(refused.has_value());
  EXPECT_EQ(refused->kind, MessageKind::refused);
  EXPECT_NE(refused->said().find("open as it may have"), std::string::npos) << refused->said();
  send_by_hand(channel, message_of(MessageKind::close, 1));
  EXPECT_EQ(open(kMost + 2)->kind, MessageKind::granted);
}

// --- an exporter

TEST(IpcExporter, that_talks_about_other_openings_for_ever_fails_the_opening) {
  Process importer({"VPMM_IPC_TIMEOUT=300"});
  importer.belongings();
  const Belongings before = importer.belongings();
  HandExporter exporter;
  importer.begin_to_open(exporter.listen(4));
  EXPECT_EQ(exporter.hear().kind, MessageKind::open);
  exporter.begin_to_flood(message_of(MessageKind::batch, 99));
  expect_refused(importer.finish(), VPMM_ERROR_NOT_SHARED, "protocol");
  EXPECT_EQ(importer.belongings(), before) << "it does not listen any longer";
  exporter.kill();
}

}  // namespace
}  // namespace vpmm::ipc_test::client_test
