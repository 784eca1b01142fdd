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
  std::uint64_t pool = 0;  // of Exporter::Pool
  context::ShareId share{};
};

// Note [A lease ends when its importer says so or is dead]
// A closed connection alone proves nothing: a kernel of the importer may still be running. So
// leases that were not closed wait until the importer's process has ended, which its descriptor
// tells; the driver has taken its work off the GPU by then. A process that cannot be watched,
// because it lives in another container, is given a grace period.
struct Client {
  using LeaseKey =
      std::pair<std::uint64_t, std::uint64_t>;  // the numbers of connection and opening

  pid_t number = 0;               // of the process; 0: it cannot be seen from here
  Descriptor process;             // can be read from when it has ended; empty: it cannot be watched
  std::uint64_t connections = 0;  // that are open
  std::map<LeaseKey, Lease> leases;
  std::multimap<LeaseKey, Lease> over;  // leases to be given back; their nodes come from `leases`
  Deadline grace{};                     // of one that cannot be watched and has hung up

  bool has_ended() const;  // Requires: it can be watched, or has no connection.
  void end_lease(const LeaseKey& key) noexcept;
  void end_all_leases() noexcept { over.merge(leases); }
};

struct Delivery {
  std::uint64_t number = 0;  // of the opening
  std::uint64_t pool = 0;
  Vector<context::SharedChunks::Chunk> chunks;
  std::size_t next = 0;      // of the chunks, to be sent
  std::size_t received = 0;  // acknowledged
  Deadline deadline;         // for the next acknowledgement
  bool may_send_more() const {
    return next < chunks.size() && next - received + kBatch <= kMostInFlight;
  }
};

// Nothing is waited for here: what cannot be sent now is sent later. Saying something needs no
// memory.
struct Connection {
  std::uint64_t number = 0;  // of all that there were
  Client* client = nullptr;
  Channel channel;  // closed: it is gone
  std::optional<Delivery> delivery;
  std::optional<Message>
      unsent;          // could not be sent yet; nothing is heard meanwhile, so there is one at most
  Deadline give_up{};  // sending it
  Deadline try_again{};  // to send it, or a batch
  Deadline since{};      // when it was let in
  bool is_deaf = false;  // it takes no more, but what it said before it went is heard

  bool has_leases() const;
  // `until`: who has not taken it by then keeps no connection.
  void send(const Message& message, Deadline until);
  void refuse(std::uint64_t opening, ErrorCode code, std::string_view why, Deadline until);
  void send_again();
  // True: it is on its way. Descriptors that cannot be sent now are not kept, for they would be the
  // program's.
  bool try_batch(const Message& batch, const std::vector<Descriptor>& files);

 private:
  void note(Channel::Sent sent);
};

}  // namespace vpmm::ipc
