// SPDX-License-Identifier: Apache-2.0
// ipc: one connection to an exporter, and the process at its other end.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "context/context.hpp"
#include "ipc/channel.hpp"

namespace vpmm::ipc {

struct Lease {
  std::uint64_t pool = 0;  // of Exporter::SharingPool; 0: no share was found
  context::ShareId share{};
};

// Note [A lease ends when its importer says so or is dead]
// A closed connection alone proves nothing: a kernel of the importer may still be running. So
// unclosed leases wait for the end of the importer's process, as its descriptor tells; by then the
// driver has taken its work off the GPU. A process that cannot be watched, in another container,
// gets a grace period.
struct Connected {
  using LeaseKey = std::pair<std::uint64_t, std::uint64_t>;  // numbers of connection and opening

  pid_t number = 0;    // of the process; 0: not visible from here
  Descriptor process;  // readable once the process has ended; empty: cannot be watched
  std::uint64_t connections = 0;
  std::map<LeaseKey, Lease> leases;
  std::multimap<LeaseKey, Lease> over;  // leases to give back; their nodes come from `leases`
  Deadline grace{};                     // of an unwatched process that has hung up

  bool has_ended() const;  // Requires: watched, or without connection.
  void end_lease(const LeaseKey& key) noexcept;
  void end_all_leases() noexcept { over.merge(leases); }
};

struct Delivery {
  std::uint64_t number = 0;  // of the opening
  std::uint64_t pool = 0;
  Vector<context::SharedChunks::ChunkInfo> chunks;
  std::size_t next = 0;      // index of the next chunk to send
  std::size_t received = 0;  // acknowledged chunks
  Deadline deadline;         // for the next acknowledgement
  bool may_send_more() const {
    return next < chunks.size() && next - received + kBatch <= kMostInFlight;
  }
};

// Sends without waiting: a message that cannot be sent now is sent later. Allocates no memory.
struct Connection {
  std::uint64_t number = 0;  // unique over all connections
  Connected* client = nullptr;
  Channel channel;  // closed: the connection is gone
  std::optional<Delivery> delivery;
  std::optional<Message>
      unsent;            // not sent yet; no message is read meanwhile, so there is one at most
  Deadline give_up{};    // on `unsent`
  Deadline try_again{};  // to send `unsent` or a batch
  Deadline since{};

  bool has_leases() const;
  // `until`: a peer that has not read the message by then loses its connection.
  void send(const Message& message, Deadline until);
  void refuse(std::uint64_t opening, ErrorCode code, std::string_view why, Deadline until);
  void send_again();
  // Returns true if the batch is sent. Descriptors that cannot be sent now are not kept, for they
  // would be taken from the program.
  bool try_batch(const Message& batch, const std::vector<Descriptor>& files);

 private:
  void note(Channel::Sent sent);
};

}  // namespace vpmm::ipc
