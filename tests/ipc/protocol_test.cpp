// SPDX-License-Identifier: Apache-2.0
// ipc tests: an exporter that is told nonsense hangs up on who says it and goes on serving the
// others.
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <random>
#include <string>
#include <thread>

#include "ipc/kernel.hpp"
#include "ipc/raw.hpp"

namespace vpmm::ipc_test::protocol_test {
namespace {

using ipc::Channel;
using ipc::Message;
using ipc::MessageKind;

constexpr std::uint64_t kSeed = 8;
constexpr Bytes kSize = 20 * kMiB;  // 10 chunks

class IpcProtocol : public testing::Test {
 protected:
  static void send_bytes(const Channel& channel, const void* bytes, std::size_t size,
                         std::size_t files = 0) {
    send_with_copies_of(STDERR_FILENO, channel, bytes, size, files);
  }
  void expect_hung_up_on(const Message& message) {
    Channel channel = connect_by_hand(shared_.handle);
    send_bytes(channel, &message, sizeof message);
    EXPECT_TRUE(is_hung_up_on(channel));
  }
  // With a last message, which says why.
  void expect_turned_away(const void* bytes, std::size_t size) {
    Channel channel = connect_by_hand(shared_.handle);
    send_bytes(channel, bytes, size);
    const std::optional<Message> heard = next_from(channel);
    ASSERT_TRUE(heard.has_value());
    EXPECT_EQ(heard->kind, MessageKind::refused);
    EXPECT_EQ(heard->number, 0u) << "of all openings";
    EXPECT_EQ(heard->version, Message::kVersion) << "so that another one knows";
    EXPECT_EQ(heard->said(), "the process that exported the memory cannot read this one's message");
    EXPECT_TRUE(is_hung_up_on(channel));
  }
  void expect_served() {
    Process importer;
    const Address opened = importer.open(shared_.handle);
    importer.expect(opened, kSize, kSeed);
    importer.close(opened);
  }
  // What was there before anybody connected.
  void expect_nothing_left() {
    exporter_.free(shared_.address);
    exporter_.end(shared_.handle);
    Belongings now = exporter_.belongings();
    for (int i = 0; i < 10'000 && now.descriptors != before_.descriptors; ++i)
      now = exporter_.belongings();
    EXPECT_EQ(now.descriptors, before_.descriptors);
    EXPECT_EQ(now.threads, before_.threads);
  }
  void SetUp() override {
    exporter_.belongings();
    before_ = exporter_.belongings();
  }

  Process exporter_{{"VPMM_CHUNK_MAX=page"}};
  const Shared shared_ = exporter_.allocate_shared(kSize, kSeed);
  Belongings before_;
};

TEST_F(IpcProtocol, whoever_talks_nonsense_is_hung_up_on) {
  const Message good = open_message(shared_.handle, 1);
  for (const std::size_t size : {std::size_t{1}, sizeof(Message) / 2, sizeof(Message) - 1}) {
    SCOPED_TRACE(size);
    expect_turned_away(&good, size);
  }
  struct Longer {
    Message message;
    char more = 0;
  };
  const Longer longer{good};
  expect_turned_away(&longer, sizeof longer);

  Message foreign = good;
  ++foreign.magic;
  expect_turned_away(&foreign, sizeof foreign);
  for (const int kind : {0, 2, 3, 4, 7, 0xFFFF}) {
    SCOPED_TRACE(kind);
    expect_hung_up_on(message_of(static_cast<MessageKind>(kind), 1));
  }
  expect_served();
  expect_nothing_left();
}

TEST_F(IpcProtocol, an_importer_of_another_version_is_turned_away) {
  struct {
    Message message;
    char more = 0;
  } newer{open_message(shared_.handle, 1)};
  ++newer.message.version;
  for (const std::size_t size : {sizeof newer, sizeof newer.message, offsetof(Message, kind)}) {
    SCOPED_TRACE(size);
    expect_turned_away(&newer, size);
  }
  expect_served();
  expect_nothing_left();
}

TEST_F(IpcProtocol, an_importer_that_acknowledges_what_it_never_got_is_hung_up_on) {
  Channel channel = connect_by_hand(shared_.handle);
  send_by_hand(channel, open_message(shared_.handle, 1));
  EXPECT_EQ(next_from(channel)->kind, MessageKind::granted);
  send_by_hand(channel, message_of(MessageKind::received, 1, 1000));
  EXPECT_TRUE(is_hung_up_on(channel));
  expect_served();
}

TEST_F(IpcProtocol, an_importer_that_acknowledges_nothing_new_is_hung_up_on) {
  const Shared large = exporter_.allocate_shared(100 * kMiB, kSeed);  // 50 chunks
  for (const std::uint32_t again : {0U, 4U, 8U}) {
    SCOPED_TRACE(again);
    Channel channel = connect_by_hand(large.handle);
    send_by_hand(channel, open_message(large.handle, 1));
    EXPECT_EQ(next_from(channel)->kind, MessageKind::granted);
    for (int i = 0; i < 8; ++i) EXPECT_EQ(next_from(channel)->kind, MessageKind::batch);
    send_by_hand(channel, message_of(MessageKind::received, 1, 8));
    for (int i = 0; i < 2; ++i) EXPECT_EQ(next_from(channel)->kind, MessageKind::batch);
    send_by_hand(channel, message_of(MessageKind::received, 1, again));
    EXPECT_TRUE(is_hung_up_on(channel));
  }
  expect_served();
}

TEST_F(IpcProtocol, words_about_openings_that_there_are_not_change_nothing) {
  Channel channel = connect_by_hand(shared_.handle);
  send_by_hand(channel, message_of(MessageKind::received, 5, 1000));
  send_by_hand(channel, message_of(MessageKind::close, 5));
  send_by_hand(channel, message_of(MessageKind::close, 0));
  send_by_hand(channel, open_message(shared_.handle, 1));
  EXPECT_EQ(next_from(channel)->kind, MessageKind::granted);
  send_by_hand(channel, message_of(MessageKind::close, 1));
  send_by_hand(channel, message_of(MessageKind::close, 1));
  channel.reset();
  expect_served();
  expect_nothing_left();
}

TEST_F(IpcProtocol, words_about_another_opening_leave_a_delivery_as_it_is) {
  const Shared large = exporter_.allocate_shared(100 * kMiB, kSeed);  // 50 chunks
  Channel channel = connect_by_hand(large.handle);
  send_by_hand(channel, open_message(large.handle, 2));
  EXPECT_EQ(next_from(channel)->kind, MessageKind::granted);
  for (int i = 0; i < 8; ++i) EXPECT_EQ(next_from(channel)->kind, MessageKind::batch);
  for (const std::uint64_t other : {1, 3}) {
    for (const std::uint32_t count : {0U, 32U, 1000U})
      send_by_hand(channel, message_of(MessageKind::received, other, count));
    send_by_hand(channel, message_of(MessageKind::close, other));
  }
  send_by_hand(channel, message_of(MessageKind::received, 2, 32));
  for (const std::uint32_t count : {4U, 4U, 4U, 4U, 2U}) {
    const std::optional<Message> batch = next_from(channel);
    ASSERT_TRUE(batch);
    EXPECT_EQ(batch->kind, MessageKind::batch);
    EXPECT_EQ(batch->number, 2U);
    EXPECT_EQ(batch->count, count);
  }
  send_by_hand(channel, message_of(MessageKind::received, 2, 50));
  send_by_hand(channel, message_of(MessageKind::close, 2));
}

// It may still acknowledge what it got meanwhile.
TEST_F(IpcProtocol, an_opening_that_is_closed_half_way_is_delivered_no_further) {
  const Shared large = exporter_.allocate_shared(100 * kMiB, kSeed);  // 50 chunks
  Channel channel = connect_by_hand(large.handle);
  send_by_hand(channel, open_message(large.handle, 1));
  EXPECT_EQ(next_from(channel)->kind, MessageKind::granted);
  for (int i = 0; i < 8; ++i) EXPECT_EQ(next_from(channel)->kind, MessageKind::batch);
  send_by_hand(channel, message_of(MessageKind::close, 1));
  send_by_hand(channel, message_of(MessageKind::received, 1, 32));
  send_by_hand(channel, open_message(shared_.handle, 2));
  const std::optional<Message> next = next_from(channel);
  ASSERT_TRUE(next);
  EXPECT_EQ(next->kind, MessageKind::granted);
  EXPECT_EQ(next->number, 2U);
  exporter_.free(large.address);
  exporter_.end(large.handle);
  expect_leases_to_end(exporter_);
}

// Both would be closed at once.
TEST_F(IpcProtocol, an_importer_that_gives_two_openings_one_number_is_hung_up_on) {
  const Shared one_chunk = exporter_.allocate_shared(kMiB, kSeed);
  Channel channel = connect_by_hand(one_chunk.handle);
  send_by_hand(channel, open_message(one_chunk.handle, 1));
  EXPECT_EQ(next_from(channel)->kind, MessageKind::granted);
  EXPECT_EQ(next_from(channel)->kind, MessageKind::batch);
  send_by_hand(channel, message_of(MessageKind::received, 1, 1));
  send_by_hand(channel, open_message(one_chunk.handle, 1));
  EXPECT_TRUE(is_hung_up_on(channel));
  expect_served();
}

TEST_F(IpcProtocol, one_opening_at_a_time_is_delivered) {
  Channel channel = connect_by_hand(shared_.handle);
  send_by_hand(channel, open_message(shared_.handle, 1));
  send_by_hand(channel, open_message(shared_.handle, 2));
  EXPECT_TRUE(is_hung_up_on(channel));
  expect_served();
}

TEST_F(IpcProtocol, descriptors_where_none_belong_are_closed) {
  for (const std::size_t files : {1U, 32U, 33U, 200U}) {
    SCOPED_TRACE(files);
    Channel channel = connect_by_hand(shared_.handle);
    const Message message = message_of(MessageKind::close, 1);
    send_bytes(channel, &message, sizeof message, files);
    channel.reset();
  }
  expect_served();
  expect_nothing_left();
}

TEST_F(IpcProtocol, random_messages_break_nothing) {
  const char* const given = std::getenv("VPMM_SEED");
  const std::uint64_t seed =
      given != nullptr ? std::strtoull(given, nullptr, 10) : std::random_device{}();
  SCOPED_TRACE("replay: VPMM_SEED=" + std::to_string(seed) + " " + program_invocation_name +
               " --gtest_filter=IpcProtocol.random_messages_break_nothing");
  std::mt19937_64 dice(seed);
  for (int connection = 0; connection < 100; ++connection) {
    Channel channel = connect_by_hand(shared_.handle);
    for (int i = 0; i < 20; ++i) {
      Message message;
      if (dice() % 2 == 0) message = open_message(shared_.handle, dice() % 4);
      message.number = dice() % 4;
      if (dice() % 4 != 0) message.kind = static_cast<MessageKind>(dice() % 8);
      message.count = static_cast<std::uint32_t>(dice() % 2 == 0 ? dice() : dice() % 12);
      if (dice() % 8 == 0) reinterpret_cast<unsigned char*>(&message)[dice() % sizeof message] ^= 1;
      send_bytes(channel, &message, dice() % 16 == 0 ? dice() % sizeof message : sizeof message,
                 dice() % 16 == 0);
    }
  }
  expect_served();
}

TEST_F(IpcProtocol, a_flood_of_openings_that_are_never_read_stops_nobody) {
  std::vector<Channel> floods;
  const ipc::Token forged{parts_of(shared_.handle).process, 1, 999'999, 0, 1};
  for (int i = 0; i < 10; ++i) {
    floods.push_back(connect_by_hand(shared_.handle));
    const Message message = open_message(i % 2 == 0 ? shared_.handle : handle_of(forged), 1);
    for (int many = 0; many < 500; ++many) send_bytes(floods.back(), &message, sizeof message);
  }
  expect_served();
  floods.clear();
  expect_served();
}

// Each asks for memory that there is not and so for an answer that waits for it.
TEST(IpcFlood, of_questions_whose_answers_are_never_read_is_cut_off) {
  Process exporter({"VPMM_IPC_TIMEOUT=500"});
  const Shared shared = exporter.allocate_shared(kSize, kSeed);
  const ipc::Token forged{parts_of(shared.handle).process, 1, 999'999, 0, 1};
  Channel flood = connect_by_hand(shared.handle);
  const Message message = open_message(handle_of(forged), 1);
  int said = 0;
  while (said < 10'000 && flood.try_send(message, {}, soon()) == Channel::Sent::yes) ++said;
  EXPECT_LT(said, 10'000);
  EXPECT_EQ(flood.try_send(message, {}, soon()), Channel::Sent::gone);
  Process importer;
  importer.expect(importer.open(shared.handle), kSize, kSeed);
}

// The exporter's thread sleeps between its tries.
TEST_F(IpcProtocol, an_answer_that_is_not_read_is_sent_again_a_hundred_times_a_second_at_most) {
  const ipc::Token forged{parts_of(shared_.handle).process, 1, 999'999, 0, 1};
  Channel flood = connect_by_hand(shared_.handle);
  const Message message = open_message(handle_of(forged), 1);
  const auto say = [&] {
    return flood.try_send(message, {}, ipc::Clock::now() + std::chrono::milliseconds(200));
  };
  Channel::Sent last = say();
  while (last == Channel::Sent::yes) last = say();
  ASSERT_EQ(last, Channel::Sent::not_now);
  const Parcel tried = exporter_.call([](Parcel& parcel) {
    const auto begin = ipc::Clock::now();
    fail_kernel_call(KernelCall::send, 0, 0);
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    parcel.words[0] = kernel_calls(KernelCall::send);
    const auto took = std::chrono::ceil<std::chrono::milliseconds>(ipc::Clock::now() - begin);
    parcel.words[1] = static_cast<std::uint64_t>(took.count());
  });
  EXPECT_LE(tried.words[0], tried.words[1] / 10 + 2) << "in " << tried.words[1] << " ms";
  EXPECT_LT(exporter_.share_of_a_core(), 0.125) << "though the next question waits to be read";
}

// It talks faster than it is listened to, and never stops.
TEST_F(IpcProtocol, one_that_never_stops_talking_leaves_the_others_their_turn) {
  HandImporter talker;
  Parcel parcel;
  parcel.handle = shared_.handle;
  talker.begin(
      [](Parcel& asked) {
        Channel channel = connect_by_hand(asked.handle);
        const Message message = message_of(MessageKind::close, 1);
        const auto talk = [&] {
          while (channel.send(message, {}, soon())) {
          }
        };
        std::array<std::thread, 6> mouths;
        for (std::thread& mouth : mouths) mouth = std::thread(talk);
        for (std::thread& mouth : mouths) mouth.join();
      },
      parcel);
  for (int i = 0; i < 5; ++i) expect_served();
  talker.kill();
}

TEST_F(IpcProtocol, no_more_than_32_descriptors_are_on_their_way) {
  const Shared large = exporter_.allocate_shared(100 * kMiB, kSeed);  // 50 chunks
  Channel channel = connect_by_hand(large.handle);
  send_by_hand(channel, open_message(large.handle, 1));
  EXPECT_EQ(next_from(channel)->kind, MessageKind::granted);
  const auto take_all = [&] {
    std::uint32_t taken = 0;
    while (channel.wait_to_receive(ipc::Clock::now() + std::chrono::milliseconds(100)))
      taken += next_from(channel)->count;
    return taken;
  };
  EXPECT_EQ(take_all(), 32U);
  EXPECT_LT(exporter_.share_of_a_core(), 0.125) << "while it waits to hear that they have come";
  expect_served();  // which wakes the exporter
  EXPECT_EQ(take_all(), 0U);
  send_by_hand(channel, message_of(MessageKind::received, 1, 4));
  EXPECT_EQ(take_all(), 4U);
  send_by_hand(channel, message_of(MessageKind::received, 1, 36));
  EXPECT_EQ(take_all(), 14U);
  send_by_hand(channel, message_of(MessageKind::received, 1, 50));
  send_by_hand(channel, message_of(MessageKind::close, 1));
}

TEST_F(IpcProtocol, a_delivery_goes_on_while_other_memory_is_closed) {
  const Shared large = exporter_.allocate_shared(100 * kMiB, kSeed);  // 50 chunks
  Channel channel = connect_by_hand(large.handle);
  send_by_hand(channel, open_message(shared_.handle, 1));
  const auto chunks = static_cast<std::uint32_t>(next_from(channel)->chunks);
  for (std::uint32_t taken = 0; taken < chunks;) taken += next_from(channel)->count;
  send_by_hand(channel, message_of(MessageKind::received, 1, chunks));
  send_by_hand(channel, open_message(large.handle, 2));
  EXPECT_EQ(next_from(channel)->kind, MessageKind::granted);
  for (int i = 0; i < 8; ++i) EXPECT_EQ(next_from(channel)->count, 4U);
  send_by_hand(channel, message_of(MessageKind::close, 1));
  send_by_hand(channel, message_of(MessageKind::received, 2, 32));
  for (int i = 0; i < 4; ++i) EXPECT_EQ(next_from(channel)->kind, MessageKind::batch);
  send_by_hand(channel, message_of(MessageKind::received, 2, 50));
  send_by_hand(channel, message_of(MessageKind::close, 2));
}

TEST_F(IpcProtocol, answers_that_are_read_late_have_all_waited) {
  const ipc::Token forged{parts_of(shared_.handle).process, 1, 999'999, 0, 1};
  Channel channel = connect_by_hand(shared_.handle);
  const Message message = open_message(handle_of(forged), 1);
  const auto say = [&] {
    return channel.try_send(message, {}, ipc::Clock::now() + std::chrono::milliseconds(200));
  };
  std::size_t said = 0;
  Channel::Sent sent = say();
  for (; sent == Channel::Sent::yes; sent = say()) ++said;
  EXPECT_EQ(sent, Channel::Sent::not_now) << "the exporter waits for a reader";
  for (std::size_t i = 0; i < said; ++i) {
    const std::optional<Message> answer = next_from(channel);
    ASSERT_TRUE(answer) << i << " of " << said;
    EXPECT_EQ(answer->kind, MessageKind::refused);
  }
  expect_served();
}

}  // namespace
}  // namespace vpmm::ipc_test::protocol_test
