// SPDX-License-Identifier: Apache-2.0
// ipc: processes connected to an exporter: limits on their number, and the order of making way.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <list>
#include <string_view>

#include "ipc/connection.hpp"

namespace vpmm::ipc {

// Note [Descriptors are the program's]
// A connection takes one descriptor, and each process one more, which shows its end. Together they
// are a share of the process's limit; the program has the rest. A hostile process of the user is
// bounded by its connections; at the limit one without leases makes way for the next.
class Clients {
 public:
  // Admits a connection, or returns the reason for a refusal. Moves from `channel` only on success.
  Result<void> admit(Channel& channel);
  // Sends a refusal, without a wait for its receipt.
  static void turn_away(Channel& channel, ErrorCode code, std::string_view why);
  // Removes closed connections, and processes without connections and leases.
  void remove_gone();
  std::list<Connection>& connections() { return connections_; }
  std::list<Connected>& all() { return clients_; }

 private:
  Connected* find(pid_t process);
  Result<void> make_room(std::size_t descriptors);
  Connection* longest_without_leases();

  std::list<Connected> clients_;  // at fixed addresses: connections point here
  std::list<Connection> connections_;
  std::uint64_t last_number_ = 0;
};

}  // namespace vpmm::ipc
