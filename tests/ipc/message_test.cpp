// SPDX-License-Identifier: Apache-2.0
// ipc tests: messages that are none, and exporters that do not keep to the protocol, which fail the
// opening alone.
#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstddef>
#include <optional>
#include <string>
#include <utility>

#include "ipc/raw.hpp"

namespace vpmm::ipc_test::message_test {
namespace {

using ipc::Channel;
using ipc::Message;
using ipc::MessageKind;

constexpr const char* kNoMessage = "what the other process says is no message of vpmm";

std::string of_version(unsigned version) {
  return "the other process speaks version " + std::to_string(version) +
         " of vpmm's protocol, and this library version " + std::to_string(Message::kVersion) +
         ": both need the same version of vpmm";
}

// errno of an earlier call changes nothing.
TEST(IpcMessage, that_does_not_come_is_waited_for_until_the_deadline) {
  const std::string path = socket_folder_of_tests() + "/silent.sock";
  const auto listener = ipc::listen_at(path);
  ASSERT_TRUE(listener.ok());
  Result<Channel> channel = ipc::connect_to(path, soon());
  ASSERT_TRUE(channel.ok());
  errno = EINTR;
  EXPECT_FALSE(channel.value().wait_to_receive(ipc::Clock::now()));
  for (const Channel::Files files : {Channel::Files::none, Channel::Files::taken}) {
    const auto received = channel.value().receive(ipc::Clock::now(), files);
    ASSERT_FALSE(received.ok());
    EXPECT_EQ(received.error().code, ErrorCode::not_shared);
    EXPECT_EQ(received.error().message, "the other process does not answer");
  }
  unlink(path.c_str());
}

TEST(IpcMessage, that_is_none_of_this_version_is_refused_with_the_reason) {
  const std::string path = socket_folder_of_tests() + "/talk.sock";
  const auto listener = ipc::listen_at(path);
  ASSERT_TRUE(listener.ok());
  const Result<Channel> near = ipc::connect_to(path, soon());
  ASSERT_TRUE(near.ok());
  bool is_short = false;
  Channel far = ipc::accept_from(listener.value().get(), is_short);
  unlink(path.c_str());
  struct {
    Message message;
    char more = 0;
  } said;
  const auto answer_to = [&](std::size_t size) -> std::string {
    EXPECT_TRUE(send_with_copies_of(STDERR_FILENO, near.value(), &said, size, 0));
    const auto received = far.receive(soon());
    if (received) return "";
    EXPECT_EQ(received.error().code, ErrorCode::not_shared);
    return received.error().message;
  };
  const std::string none = kNoMessage;
  constexpr std::size_t kUpToVersion = offsetof(Message, kind);
  EXPECT_EQ(answer_to(sizeof said.message), "");
  EXPECT_EQ(answer_to(sizeof said.message - 1), none);
  EXPECT_EQ(answer_to(sizeof said.message + 1), none);
  EXPECT_EQ(answer_to(kUpToVersion), none);
  ++said.message.version;
  const std::string newer = of_version(said.message.version);
  for (const std::size_t size : {sizeof said.message, sizeof said, kUpToVersion})
    EXPECT_EQ(answer_to(size), newer) << size << " bytes, as that version may have";
  EXPECT_EQ(answer_to(kUpToVersion - 1), none);
  ++said.message.magic;
  EXPECT_EQ(answer_to(sizeof said.message), none) << "its version is none, either";
}

TEST(IpcMessage, to_an_end_that_is_closed_is_an_error) {
  const std::string path = socket_folder_of_tests() + "/closed.sock";
  const auto listener = ipc::listen_at(path);
  ASSERT_TRUE(listener.ok());
  Result<Channel> channel = ipc::connect_to(path, soon());
  ASSERT_TRUE(channel.ok());
  bool is_short = false;
  ipc::accept_from(listener.value().get(), is_short).reset();
  const auto said = channel.value().send(message_of(MessageKind::close, 1), {}, soon());
  ASSERT_FALSE(said.ok());
  EXPECT_EQ(said.error().code, ErrorCode::not_shared);
  unlink(path.c_str());
}

TEST(IpcMessage, text_that_does_not_end_ends_with_the_message) {
  struct {
    Message message;
    std::array<char, 8> beyond{'b', 'e', 'y', 'o', 'n', 'd', '!', '\0'};
  } sent;
  sent.message.text.fill('x');
  EXPECT_EQ(sent.message.said(), std::string(Message::kTextSize, 'x'));
  sent.message.say(std::string(1000, 'y'));
  EXPECT_EQ(sent.message.said(), std::string(Message::kTextSize - 1, 'y') + 'x');
}

// --- the importer

void expect_refused_answer(void (*answer)(HandExporter&), const std::string& words) {
  Process importer;
  importer.belongings();
  const Belongings before = importer.belongings();
  HandExporter exporter;
  importer.begin_to_open(exporter.listen(8));
  EXPECT_EQ(exporter.hear().kind, MessageKind::open);
  answer(exporter);
  expect_refused(importer.finish(), VPMM_ERROR_NOT_SHARED, words);
  EXPECT_EQ(importer.belongings(), before);
}

TEST(IpcProtocolOfExporter, whose_refusal_is_no_text_fails_the_opening_with_a_sentence) {
  expect_refused_answer(
      [](HandExporter& exporter) { exporter.say(message_of(MessageKind::refused, 1)); },
      "refuses it without a reason");
  expect_refused_answer(
      [](HandExporter& exporter) {
        Message refused = message_of(MessageKind::refused, 1);
        refused.say("not \x1b[2J\xff\n now");
        exporter.say(refused);
      },
      "not ?[2J?? now");
}

TEST(IpcProtocolOfExporter, that_is_not_kept_fails_the_opening) {
  expect_refused_answer(
      [](HandExporter& exporter) { exporter.say(message_of(MessageKind::close, 1)); }, "protocol");
  expect_refused_answer(
      [](HandExporter& exporter) { exporter.say(message_of(MessageKind::granted, 1)); },
      "protocol");
  expect_refused_answer(
      [](HandExporter& exporter) { exporter.grant(1, {.kind = MessageKind::batch}); }, "protocol");
  expect_refused_answer([](HandExporter& exporter) { exporter.grant(1, {7}); }, "protocol");
  expect_refused_answer([](HandExporter& exporter) { exporter.grant(1, {.offset = 1}); },
                        "protocol");
  expect_refused_answer(
      [](HandExporter& exporter) {
        exporter.grant(1);
        exporter.say(message_of(MessageKind::batch, 1, 4));  // without a descriptor
      },
      "protocol");
  expect_refused_answer(
      [](HandExporter& exporter) {
        exporter.grant(1);
        exporter.send_batch(1, 4, {}, MessageKind::received);
      },
      "protocol");
  expect_refused_answer(
      [](HandExporter& exporter) {
        exporter.grant(1);
        exporter.say(message_of(MessageKind::batch, 1, 0));
      },
      "protocol");
  expect_refused_answer(
      [](HandExporter& exporter) {
        exporter.grant(1);
        exporter.say(message_of(MessageKind::batch, 1, 4000));
      },
      "protocol");
  expect_refused_answer(
      [](HandExporter& exporter) {
        exporter.grant(1);
        exporter.send_batch(1, 4);
        exporter.say(message_of(MessageKind::granted, 1));
      },
      "protocol");
}

TEST(IpcProtocolOfExporter, whose_chunks_have_other_sizes_than_it_says_fails_the_opening) {
  expect_refused_answer(
      [](HandExporter& exporter) {
        exporter.grant(1);
        exporter.send_batch(1, 4, 0);
      },
      "protocol");
  expect_refused_answer(
      [](HandExporter& exporter) {
        exporter.grant(1);
        exporter.send_batch(1, 4, 17 * kMiB);
      },
      "protocol");
  expect_refused_answer(
      [](HandExporter& exporter) {
        exporter.grant(1, {.chunks = 4, .more = 4 * 2 * kMiB});
        exporter.send_batch(1, 8);
      },
      "protocol");
  expect_refused_answer(
      [](HandExporter& exporter) {
        exporter.grant(1, {.chunks = 6, .more = 2 * 2 * kMiB});
        exporter.send_batch(1, 4);
        exporter.send_batch(1, 4);
      },
      "protocol");
  expect_refused_answer(
      [](HandExporter& exporter) {
        exporter.grant(1, {.more = 2 * kMiB});
        exporter.send_batch(1, 4);
        exporter.send_batch(1, 4);
      },
      "protocol");
}

TEST(IpcProtocolOfExporter, as_many_chunks_as_may_be_on_their_way_come_at_once_and_no_more) {
  Process importer;
  HandExporter exporter;
  importer.begin_to_open(exporter.listen(32));
  EXPECT_EQ(exporter.hear().kind, MessageKind::open);
  exporter.grant(1);
  exporter.send_batch(1, 32);
  const Parcel opened = importer.finish();
  expect_ok(opened);
  EXPECT_EQ(exporter.hear().count, 32U);
  importer.close(opened.words[0]);
  HandExporter other;
  importer.begin_to_open(other.listen(40));
  EXPECT_EQ(other.hear().kind, MessageKind::open);
  other.grant(1);
  other.send_something_else(1, 33);
  expect_refused(importer.finish(), VPMM_ERROR_NOT_SHARED, "protocol");
}

TEST(IpcProtocolOfExporter, that_refuses_an_opening_says_whether_it_could_ever_succeed) {
  for (const auto& [said, read] :
       {std::pair(VPMM_ERROR_INVALID_ARGUMENT, VPMM_ERROR_INVALID_ARGUMENT),
        std::pair(VPMM_ERROR_UNSUPPORTED, VPMM_ERROR_UNSUPPORTED),
        std::pair(VPMM_ERROR_SUSPENDED, VPMM_ERROR_SUSPENDED),
        std::pair(VPMM_ERROR_POISONED, VPMM_ERROR_NOT_SHARED)}) {
    Process importer;
    HandExporter exporter;
    importer.begin_to_open(exporter.listen(1));
    EXPECT_EQ(exporter.hear().kind, MessageKind::open);
    Message refusal = message_of(MessageKind::refused, 1);
    refusal.status = static_cast<std::uint32_t>(said);
    refusal.say("for a reason of its own");
    exporter.say(refusal);
    expect_refused(importer.finish(), read, "for a reason of its own");
  }
}

TEST(IpcProtocolOfExporter, of_another_version_is_named) {
  const auto answer = [](HandExporter& exporter) {
    Message other = message_of(MessageKind::refused, 0);
    ++other.version;
    other.say("which no other version needs to read");
    exporter.say(other);
  };
  expect_refused_answer(answer, of_version(Message::kVersion + 1));
}

TEST(IpcProtocolOfExporter, that_refuses_between_two_batches_says_why) {
  expect_refused_answer(
      [](HandExporter& exporter) {
        exporter.grant(1);
        exporter.send_batch(1, 4);
        Message refusal = message_of(MessageKind::refused, 1);
        refusal.status = VPMM_ERROR_DRIVER_FAILED;
        refusal.say("for a reason of its own");
        exporter.say(refusal);
      },
      "for a reason of its own");
}

TEST(IpcProtocolOfExporter, whose_messages_are_too_short_leaves_no_descriptors_behind) {
  expect_refused_answer([](HandExporter& exporter) { exporter.send_piece(0, 3); }, "gone");
  expect_refused_answer([](HandExporter& exporter) { exporter.send_piece(1, 3); }, "no message");
}

TEST(IpcProtocolOfExporter, chunks_that_are_none_fail_the_opening) {
  Process importer;
  importer.belongings();
  const Belongings before = importer.belongings();
  HandExporter exporter;
  importer.begin_to_open(exporter.listen(8));
  EXPECT_EQ(exporter.hear().kind, MessageKind::open);
  exporter.grant(1);
  exporter.send_batch(1, 4);
  exporter.send_something_else(1, 4);
  EXPECT_NE(importer.finish().status, VPMM_OK);
  EXPECT_EQ(importer.belongings(), before);
}

}  // namespace
}  // namespace vpmm::ipc_test::message_test
