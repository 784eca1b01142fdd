// SPDX-License-Identifier: Apache-2.0
// ipc tests: messages by hand, in the test and in actors.
#include "ipc/raw.hpp"

#include <fcntl.h>
#include <linux/sockios.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <thread>

#include "ipc/lingering.hpp"

namespace vpmm::ipc_test {

using ipc::Channel;
using ipc::Message;
using ipc::MessageKind;

ipc::TokenBytes token_in(const vpmm_ipc_handle& handle) {
  ipc::TokenBytes token{};
  std::memcpy(token.data(), handle.token, token.size());
  return token;
}

ipc::Token parts_of(const vpmm_ipc_handle& handle) {
  const Result<ipc::Token> parts = ipc::decode(token_in(handle));
  EXPECT_TRUE(parts.ok());
  return parts ? parts.value() : ipc::Token{};
}

vpmm_ipc_handle handle_of(const ipc::Token& token) {
  vpmm_ipc_handle handle{};
  handle.kind = VPMM_IPC_POOL;
  const ipc::TokenBytes bytes = ipc::encode(token);
  std::memcpy(handle.token, bytes.data(), bytes.size());
  handle.bytes = token.size;
  handle.offset = token.offset;
  return handle;
}

ipc::Deadline soon() { return ipc::Clock::now() + std::chrono::seconds(20); }

Channel connect_by_hand(const vpmm_ipc_handle& handle) {
  Result<Channel> channel =
      ipc::connect_to(ipc::socket_path(socket_folder_of_tests(), parts_of(handle).process), soon());
  EXPECT_TRUE(channel.ok()) << (channel ? "" : channel.error().message);
  return channel ? std::move(channel).value() : Channel{};
}

Message message_of(MessageKind kind, std::uint64_t number, std::uint32_t count) {
  Message message;
  message.kind = kind;
  message.number = number;
  message.count = count;
  return message;
}

Message open_message(const vpmm_ipc_handle& handle, std::uint64_t number) {
  Message message = message_of(MessageKind::open, number);
  message.token = token_in(handle);
  return message;
}

bool send_with_copies_of(int file, const Channel& channel, const void* bytes, std::size_t size,
                         std::size_t copies) {
  iovec data{const_cast<void*>(bytes), size};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int) * 200)> room{};
  msghdr header{};
  header.msg_iov = &data;
  header.msg_iovlen = 1;
  if (copies != 0) {
    header.msg_control = room.data();
    header.msg_controllen = CMSG_SPACE(sizeof(int) * copies);
    cmsghdr* const part = CMSG_FIRSTHDR(&header);
    part->cmsg_level = SOL_SOCKET;
    part->cmsg_type = SCM_RIGHTS;
    part->cmsg_len = CMSG_LEN(sizeof(int) * copies);
    for (std::size_t i = 0; i < copies; ++i)
      std::memcpy(CMSG_DATA(part) + i * sizeof file, &file, sizeof file);
  }
  return sendmsg(channel.get(), &header, MSG_NOSIGNAL | MSG_DONTWAIT) >= 0;
}

void send_by_hand(Channel& channel, const Message& message) {
  const Result<void> sent = channel.send(message, {}, soon());
  EXPECT_TRUE(sent.ok()) << (sent ? "" : sent.error().message);
}

std::optional<Message> next_from(Channel& channel) {
  const Result<std::optional<ipc::Received>> received = channel.receive(soon());
  if (!received || !received.value()) return std::nullopt;
  return received.value()->message;
}

bool is_hung_up_on(Channel& channel) {
  for (const ipc::Deadline deadline = soon();;) {
    const Result<std::optional<ipc::Received>> received = channel.receive(deadline);
    if (!received || !received.value()) return received.ok();
  }
}

namespace {

// --- in an actor

Channel& channel_of_actor() {
  static Channel channel;
  return channel;
}

struct Exported {
  ipc::Descriptor listener;
  std::vector<ipc::Descriptor> files;
  std::size_t sent = 0;
};
Exported& exported_by_actor() {
  static Exported exported;
  return exported;
}

constexpr Bytes kChunk = 2 * kMiB;

void answer_with(Parcel& parcel, const Result<void>& outcome) {
  if (outcome) return;
  parcel.status = static_cast<vpmm_status>(outcome.error().code);
  parcel.say(outcome.error().message);
}

Parcel with(const Message& message) {
  Parcel parcel;
  parcel.words = {
      message.number, static_cast<std::uint64_t>(message.kind), message.count, message.status, 0,
      message.version};
  std::memcpy(parcel.handle.token, message.token.data(), message.token.size());
  parcel.say(message.said());
  return parcel;
}

Message in(const Parcel& parcel) {
  Message message = message_of(static_cast<MessageKind>(parcel.words[1]), parcel.words[0],
                               static_cast<std::uint32_t>(parcel.words[2]));
  message.status = static_cast<std::uint32_t>(parcel.words[3]);
  message.version = static_cast<std::uint16_t>(parcel.words[5]);
  message.token = token_in(parcel.handle);
  message.say(parcel.said());
  return message;
}

void send_here(Parcel& parcel) {
  answer_with(parcel, channel_of_actor().send(in(parcel), {}, soon()));
}

void hear_here(Parcel& parcel) {
  const std::optional<Message> heard = next_from(channel_of_actor());
  parcel = with(heard ? *heard : Message{});
}

void hang_up_here(Parcel&) { channel_of_actor().reset(); }

}  // namespace

void HandImporter::connect(const vpmm_ipc_handle& handle) {
  Parcel parcel;
  parcel.handle = handle;
  call([](Parcel& asked) { channel_of_actor() = connect_by_hand(asked.handle); }, parcel);
}

void HandImporter::say_open(const vpmm_ipc_handle& handle, std::uint64_t number) {
  expect_ok(call(send_here, with(open_message(handle, number))));
}

Message HandImporter::hear() { return in(call(hear_here)); }

void HandImporter::say_received(std::uint32_t chunks, std::uint64_t number) {
  expect_ok(call(send_here, with(message_of(MessageKind::received, number, chunks))));
}

void HandImporter::say_close(std::uint64_t number) {
  expect_ok(call(send_here, with(message_of(MessageKind::close, number))));
}

void HandImporter::hang_up() { call(hang_up_here); }

// --- the exporter

vpmm_ipc_handle HandExporter::listen(std::uint64_t chunks) {
  Parcel parcel;
  parcel.words[0] = chunks;
  const Parcel answer = call(
      [](Parcel& asked) {
        const ipc::Token token{ipc::new_identity(), 4096, 1, 0, asked.words[0] * kChunk};
        Result<ipc::Descriptor> listener =
            ipc::listen_at(ipc::socket_path(socket_folder_of_tests(), token.process));
        if (!listener) return answer_with(asked, listener.error());
        exported_by_actor().listener = std::move(listener).value();
        driver::Driver& driver = driver_of_actor();
        for (std::uint64_t i = 0; i < asked.words[0]; ++i) {
          driver::ChunkHandle chunk{};
          int file = -1;
          EXPECT_EQ(driver.mem_create(kChunk, {0, true, false}, chunk), driver::CuResult::success);
          ipc::Descriptor::Making making;
          EXPECT_EQ(driver.mem_export_to_shareable_handle(chunk, file), driver::CuResult::success);
          exported_by_actor().files.push_back(making.adopt(file));
        }
        asked.handle = handle_of(token);
      },
      parcel);
  expect_ok(answer);
  return answer.handle;
}

Message HandExporter::hear() {
  return in(call([](Parcel& parcel) {
    bool is_short = false;
    for (int i = 0; !channel_of_actor() && i < 20'000; ++i) {
      channel_of_actor() = ipc::accept_from(exported_by_actor().listener.get(), is_short);
      if (!channel_of_actor()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    hear_here(parcel);
  }));
}

void HandExporter::grant(std::uint64_t number, const Terms& terms) {
  Parcel parcel;
  parcel.words = {number, terms.chunks.value_or(~std::uint64_t{0}), terms.more, terms.offset,
                  static_cast<std::uint64_t>(terms.kind)};
  expect_ok(call(
      [](Parcel& asked) {
        Message granted = message_of(static_cast<MessageKind>(asked.words[4]), asked.words[0]);
        granted.chunks = std::min(asked.words[1], exported_by_actor().files.size());
        granted.bytes = granted.chunks * kChunk + asked.words[2];
        granted.offset = asked.words[3];
        driver_of_actor().device_get_uuid(0, granted.device);
        answer_with(asked, channel_of_actor().send(granted, {}, soon()));
      },
      parcel));
}

void HandExporter::send_batch(std::uint64_t number, std::uint32_t chunks,
                              std::optional<Bytes> said_size, MessageKind kind) {
  Parcel parcel = with(message_of(kind, number, chunks));
  parcel.words[4] = said_size.value_or(kChunk);
  expect_ok(call(
      [](Parcel& asked) {
        Exported& exported = exported_by_actor();
        Message batch = in(asked);
        std::vector<ipc::Descriptor> files;
        for (std::uint32_t i = 0; i < batch.count; ++i) {
          batch.sizes[i] = asked.words[4];
          files.push_back(std::move(exported.files[exported.sent++]));
        }
        answer_with(asked, channel_of_actor().send(batch, files, soon()));
      },
      parcel));
}

void HandExporter::send_something_else(std::uint64_t number, std::uint32_t chunks) {
  expect_ok(call(
      [](Parcel& asked) {
        Message batch = in(asked);
        std::vector<ipc::Descriptor> files;
        for (std::uint32_t i = 0; i < batch.count; ++i) {
          if (i < batch.sizes.size()) batch.sizes[i] = kChunk;
          ipc::Descriptor::Making making;
          files.push_back(making.adopt(::open("/dev/null", O_RDONLY | O_CLOEXEC)));
        }
        answer_with(asked, channel_of_actor().send(batch, files, soon()));
      },
      with(message_of(MessageKind::batch, number, chunks))));
}

void HandExporter::send_lingering(std::uint64_t number) {
  expect_ok(call(
      [](Parcel& asked) {
        static auto* const lingering = new Lingering;
        if (!lingering->is_connected() ||
            !lingering->give_to(channel_of_actor(), in(asked), kMostOfAMessage))
          asked.status = VPMM_ERROR_DRIVER_FAILED;
      },
      with(message_of(MessageKind::batch, number, 1))));
}

void HandExporter::send_piece(std::uint64_t bytes, std::uint32_t descriptors) {
  Parcel parcel;
  parcel.words = {bytes, descriptors};
  expect_ok(call(
      [](Parcel& asked) {
        const Message message;
        if (!send_with_copies_of(STDERR_FILENO, channel_of_actor(), &message, asked.words[0],
                                 asked.words[1]))
          asked.status = VPMM_ERROR_DRIVER_FAILED;
      },
      parcel));
}

bool HandExporter::is_read() {
  const auto ask = [](Parcel& parcel) {
    int unread = -1;
    parcel.words[0] = ioctl(channel_of_actor().get(), SIOCOUTQ, &unread) == 0 && unread == 0;
  };
  return call(ask).words[0] != 0;
}

bool HandExporter::is_connected_to_again() {
  const auto ask = [](Parcel& parcel) {
    constexpr int kPatienceMs = 20'000;
    pollfd asked{exported_by_actor().listener.get(), POLLIN, 0};
    parcel.words[0] = poll(&asked, 1, kPatienceMs) == 1 ? 1 : 0;
  };
  return call(ask).words[0] != 0;
}

void HandExporter::say(const Message& message) { expect_ok(call(send_here, with(message))); }

void HandExporter::begin_to_flood(const Message& message) {
  begin(
      [](Parcel& asked) {
        const Message spoken = in(asked);
        const auto talk = [&] {
          while (channel_of_actor().send(spoken, {}, soon())) {
          }
        };
        std::array<std::thread, 4> mouths;  // faster than one who listens
        for (std::thread& mouth : mouths) mouth = std::thread(talk);
        for (std::thread& mouth : mouths) mouth.join();
      },
      with(message));
}

void HandExporter::hang_up(HangUp what) {
  Parcel parcel;
  parcel.words[0] = what == HangUp::for_good ? 1 : 0;
  call(
      [](Parcel& asked) {
        channel_of_actor().reset();
        if (asked.words[0] != 0) exported_by_actor().listener.reset();
      },
      parcel);
}

}  // namespace vpmm::ipc_test
