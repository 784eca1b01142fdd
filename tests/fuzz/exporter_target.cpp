// SPDX-License-Identifier: Apache-2.0
// fuzz tests: messages to an exporter of this process, on the simulated GPU.
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <bitset>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <thread>

#include "fuzz/targets.hpp"
#include "ipc/channel.hpp"
#include "ipc/message.hpp"
#include "ipc/token.hpp"
#include "vpmm/vpmm.h"

namespace vpmm::fuzz {
namespace {

using ipc::Channel;
using ipc::Message;
using ipc::MessageKind;

ipc::Deadline in_ms(int ms) { return ipc::Clock::now() + std::chrono::milliseconds(ms); }

// A pool that shares memory, for the life of the process; its sockets are in a folder of its own.
class Exporting {
 public:
  static const Exporting& instance() {
    static const Exporting one;
    return one;
  }
  Channel connect() const {
    Result<Channel> channel = ipc::connect_to(path_, in_ms(20'000));
    require(channel.ok(), "an exporter takes connections");
    return std::move(channel).value();
  }
  const ipc::TokenBytes& token() const { return token_; }

 private:
  Exporting() {
    const std::string& folder = folder_of_sockets();
    setenv("VPMM_DRIVER", "sim", 0);
    setenv("VPMM_CHUNK_MAX", "page", 1);
    vpmm_pool* pool = nullptr;
    require(vpmm_pool_create(0, nullptr, &pool) == VPMM_OK, "a pool is made");
    void* memory = nullptr;
    require(vpmm_allocate(pool, 20 << 20, nullptr, &memory) == VPMM_OK, "memory is there");
    vpmm_ipc_handle handle{};
    require(vpmm_ipc_export(memory, 20 << 20, &handle) == VPMM_OK, "memory is shared");
    std::memcpy(token_.data(), handle.token, token_.size());
    path_ = ipc::socket_path(folder, ipc::decode(token_).value().process);
  }

  std::string path_;
  ipc::TokenBytes token_{};
};

void send_bytes(const Channel& channel, const void* bytes, std::size_t size) {
  static_cast<void>(send(channel.get(), bytes, size, MSG_NOSIGNAL | MSG_DONTWAIT));
}

Message some_message(Taken& taken) {
  Message message;
  message.kind = static_cast<MessageKind>(taken.number(1));
  message.number = taken.number(1);
  message.count = static_cast<std::uint32_t>(taken.number(4));
  message.token = Exporting::instance().token();
  const auto changed = static_cast<std::size_t>(taken.number(1));
  if (changed < message.token.size())
    message.token[changed] = static_cast<std::byte>(taken.number(1));
  return message;
}

// Opens the memory as an importer does, and closes it. Returns false if it was refused, or hung up
// on before it said anything, as where this process has too many connections.
bool is_served() {
  Channel channel = Exporting::instance().connect();
  Message message;
  message.kind = MessageKind::open;
  message.number = 1;
  message.token = Exporting::instance().token();
  if (!channel.send(message, {}, in_ms(20'000))) return false;
  const Result<std::optional<ipc::Received>> answer = channel.receive(in_ms(20'000));
  require(answer.ok() && answer.value(), "an exporter answers an importer whatever others said");
  if (answer.value()->message.kind != MessageKind::granted) return false;
  message.kind = MessageKind::close;
  static_cast<void>(channel.send(message, {}, in_ms(20'000)));
  return true;
}

// A process may have so many connections; those that were hung up on count until the exporter's
// thread has seen it.
void require_served() {
  for (const ipc::Deadline end = in_ms(20'000); !is_served();) {
    require(ipc::Clock::now() < end, "an exporter serves an importer whatever others said");
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

// An importer that hangs up keeps its leases until its process ends, and a process may have 16,384:
// this one loses so many on purpose, and opens nothing more once others hung up on so many.
constexpr int kLostOnPurpose = 1'000;
constexpr int kMostLost = 14'000;
int lost_leases = 0;

// A connection, and numbers of messages that may have opened memory on it.
struct Peer {
  Channel channel;
  std::bitset<256> opened;

  void send(Message message, std::size_t size) {
    if (message.kind == MessageKind::open && lost_leases >= kMostLost)
      message.kind = MessageKind::close;
    if (message.kind == MessageKind::open) opened.set(message.number);
    send_bytes(channel, &message, size);
  }
  void hang_up() {
    Message message;
    message.kind = MessageKind::close;
    for (std::size_t number = 0; number < opened.size(); ++number) {
      if (!opened[number]) continue;
      message.number = number;
      const bool is_lost = lost_leases < kLostOnPurpose || !channel.send(message, {}, in_ms(1'000));
      lost_leases += is_lost ? 1 : 0;
    }
    opened.reset();
    channel.reset();
  }
};

}  // namespace

void read_exporter_messages(Input input) {
  std::array<Peer, 3> peers;
  Taken taken(input);
  while (!taken.is_empty()) {
    const auto what = static_cast<std::uint8_t>(taken.number(1));
    Peer& peer = peers[what / 8 % peers.size()];
    if (!peer.channel) peer.channel = Exporting::instance().connect();
    switch (what % 8) {
      case 0: peer.hang_up(); break;
      case 1: static_cast<void>(peer.channel.receive(in_ms(1))); break;
      case 2: {
        const Input bytes = taken.bytes(taken.number(2));
        send_bytes(peer.channel, bytes.data(), bytes.size());
        break;
      }
      case 3: {  // another version, size or magic
        Message message = some_message(taken);
        message.version = static_cast<std::uint16_t>(taken.number(2));
        message.magic ^= static_cast<std::uint32_t>(taken.number(1));
        peer.send(message, sizeof message - taken.number(1));
        break;
      }
      default: {
        const Message message = some_message(taken);
        peer.send(message, sizeof message);
        break;
      }
    }
  }
  for (Peer& peer : peers) peer.hang_up();
  require_served();
}

}  // namespace vpmm::fuzz
