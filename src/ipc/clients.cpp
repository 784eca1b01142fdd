// SPDX-License-Identifier: Apache-2.0
// ipc: admits importers and removes them.
#include "ipc/clients.hpp"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>

namespace vpmm::ipc {
namespace {

// Importers get 1 / kShare of the process's descriptors: of the usual 1024, 128 processes. Doubled
// share: twice as many, and half for the program; halved: no room for 65 workers.
constexpr std::uint64_t kShare = 4;
// Connections of one process: one, for a moment a second while the end of the first is unnoticed,
// and one per further copy of this library. Doubled: half as many hostile processes fill the share.
constexpr std::ptrdiff_t kMostOfOneProcess = 16;
// Age at which a connection without leases may have to make way. Importers ask at once, and hang up
// when they hold no memory, so a tenth would do; ten times that would keep others waiting.
constexpr std::chrono::seconds kToAsk{1};

std::uint64_t most_descriptors() {
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  return limit.rlim_cur / kShare;
}

}  // namespace

// A process number is not reused before its process ends: a later connection with it is of the same
// process, unless that has ended.
Connected* Clients::find(pid_t process) {
  const auto found = std::find_if(clients_.begin(), clients_.end(), [&](const Connected& client) {
    return process != 0 && client.number == process && client.process && !client.has_ended();
  });
  return found == clients_.end() ? nullptr : &*found;
}

Result<void> Clients::admit(Channel& channel) {
  VPMM_TRY_ASSIGN(const PeerProcess peer, peer_of(channel));
  if (peer.user != geteuid()) return not_shared("the memory belongs to a process of another user");
  const auto is_of_peer = [&](const Connection& other) {
    return other.client->number == peer.process;
  };
  if (peer.process != 0 &&
      std::count_if(connections_.begin(), connections_.end(), is_of_peer) >= kMostOfOneProcess)
    return not_shared(
        "this process has as many connections to the one that exported the memory as it may have");
  Connected* client = find(peer.process);
  VPMM_TRY(make_room(client == nullptr ? 2 : 1));
  client = find(peer.process);  // make_room() may have removed it
  Connection connection;
  connection.number = ++last_number_;
  connection.since = Clock::now();
  std::list<Connection> made;
  made.push_back(std::move(connection));
  std::list<Connected> unknown;
  if (client == nullptr) {
    client = &unknown.emplace_back();
    client->number = peer.process;
    VPMM_TRY_ASSIGN(client->process, watch(channel, peer));
  }
  ++client->connections;
  made.front().client = client;
  made.front().channel = std::move(channel);
  clients_.splice(clients_.end(), unknown);
  connections_.splice(connections_.end(), made);
  return {};
}

// Counts all connections and clients, even those without a descriptor: each is an upper bound.
Result<void> Clients::make_room(std::size_t descriptors) {
  while (connections_.size() + clients_.size() + descriptors > most_descriptors()) {
    Connection* const idle = longest_without_leases();
    if (idle == nullptr)
      return not_shared(
          "the process that exported the memory serves as many others as it may, by its limit of "
          "descriptors (ulimit "
          "-n)");
    turn_away(idle->channel, ErrorCode::not_shared,
              "a connection that held nothing made way for another");
    idle->channel.reset();
    remove_gone();
  }
  return {};
}

// Connections are in order of admission.
Connection* Clients::longest_without_leases() {
  const auto is_idle = [](const Connection& one) {
    return Clock::now() - one.since >= kToAsk && !one.has_leases();
  };
  const auto found = std::find_if(connections_.begin(), connections_.end(), is_idle);
  return found == connections_.end() ? nullptr : &*found;
}

void Clients::turn_away(Channel& channel, ErrorCode code, std::string_view why) {
  Message refusal;
  refusal.kind = MessageKind::refused;
  refusal.status = static_cast<std::uint32_t>(code);
  refusal.say(why);
  static_cast<void>(channel.try_send(refusal, {}, Clock::now()));
}

void Clients::remove_gone() {
  connections_.remove_if([](const Connection& connection) {
    if (connection.channel) return false;
    --connection.client->connections;
    return true;
  });
  clients_.remove_if([](const Connected& client) {
    return client.connections == 0 && client.leases.empty() && client.over.empty();
  });
}

}  // namespace vpmm::ipc
