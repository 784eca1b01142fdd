// ipc: the processes that are connected to an exporter: how many are let in, and who makes way.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <list>
#include <string_view>

#include "ipc/connection.hpp"

namespace vpmm::ipc {

// Note [Descriptors are the program's]
// A connection takes one descriptor, and each process one more, through which its end is seen.
// Together they are a share of what the process may have open, so the program always has the rest.
// Another process of the user may do what it likes: it has so many connections and no more; and at
// the limit one that holds nothing makes way for the next.
class Clients {
 public:
  // Lets a connection in, or says why not. `channel` is taken from only if it is let in.
  Result<void> admit(Channel& channel);
  // Whether it hears that or not.
  static void turn_away(Channel& channel, ErrorCode code, std::string_view why);
  // Connections that are gone, and processes without connections and leases.
  void remove_gone();
  std::list<Connection>& connections() { return connections_; }
  std::list<Client>& all() { return clients_; }

 private:
  Client* find(pid_t process);
  Result<void> make_room(std::size_t descriptors);
  Connection* longest_without_leases();

  std::list<Client> clients_;  // the places stay: connections point here
  std::list<Connection> connections_;
  std::uint64_t last_number_ = 0;
};

}  // namespace vpmm::ipc
