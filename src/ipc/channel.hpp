// SPDX-License-Identifier: Apache-2.0
// ipc: Unix sockets that carry messages and descriptors between two processes of one user.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/result.hpp"
#include "ipc/descriptor.hpp"
#include "ipc/message.hpp"

namespace vpmm::ipc {

using Clock = std::chrono::steady_clock;
using Deadline = Clock::time_point;

inline Error not_shared(std::string message) { return {ErrorCode::not_shared, std::move(message)}; }

// Closes the descriptors that are still its own as those of a stranger: Note [Descriptors that
// nobody asked for].
struct Received {
  Message message;
  std::vector<Descriptor> files;

  Received() = default;
  ~Received();
  Received(Received&&) noexcept = default;
  Received& operator=(Received&&) = delete;
};

// One end of a connection. Messages keep their borders (SOCK_SEQPACKET); descriptors are
// close-on-exec. Closing lasts as long as the other side likes: Note [Descriptors that nobody asked
// for].
class Channel {
 public:
  Channel() = default;
  explicit Channel(Descriptor socket) : socket_(std::move(socket)) {}
  ~Channel() { reset(); }
  Channel(Channel&&) noexcept = default;
  Channel& operator=(Channel&& other) noexcept {
    if (this != &other) reset();
    socket_ = std::move(other.socket_);
    return *this;
  }

  explicit operator bool() const { return static_cast<bool>(socket_); }
  int get() const { return socket_.get(); }
  void reset() noexcept { socket_.hang_up(); }

  // `not_now`: the other side has not read earlier messages, or this user has too many descriptors
  // in flight.
  enum class Sent { yes, not_now, gone };
  Sent try_send(const Message& message, const std::vector<Descriptor>& files, Deadline deadline);
  // not_shared: the other side is gone, or reads nothing before `deadline`.
  Result<void> send(const Message& message, const std::vector<Descriptor>& files,
                    Deadline deadline);
  // Tells if descriptors may come with a message. `none`: none ever becomes this process's.
  enum class Files { none, taken };
  // nullopt: the other side has closed. not_shared: no message before `deadline`, a truncated or a
  // foreign one. host_out_of_memory: descriptors were lost.
  Result<std::optional<Received>> receive(Deadline deadline, Files files = Files::taken);
  // Waits for a message, or the end of the other side. Returns false after `deadline`.
  bool wait_to_receive(Deadline deadline) const;

 private:
  Descriptor socket_;
};

struct PeerProcess {
  pid_t process = 0;  // 0: not visible from here
  uid_t user = 0;
};
// Returns the process that connected, or listens, at the other end.
Result<PeerProcess> peer_of(const Channel& channel);
// Returns a descriptor that is readable once the process has ended; empty: cannot be watched.
// host_out_of_memory: no descriptor is free. not_shared: the process has ended already.
Result<Descriptor> watch(const Channel& channel, const PeerProcess& peer);

// Returns the folder of sockets: `configured`, or the user's own under /tmp; makes a missing one
// with mode 0700. bad_configuration: not made, another user's, open to others, or its name is too
// long for a socket.
Result<std::string> socket_folder(const std::string& configured);
std::string socket_path(const std::string& folder, const Identity& process);
// Path of a socket for `vpmm top`, with the number of this process in its name.
std::string top_socket_path(const std::string& folder, const Identity& process);
// Removes the sockets of ended processes.
void sweep(const std::string& folder);
// A socket's file. A later one at the same path differs, even with the same inode number.
struct SocketFile {
  dev_t device = 0;
  ino_t inode = 0;
  std::int64_t changed_s = 0;
  std::int64_t changed_ns = 0;
  friend bool operator==(const SocketFile&, const SocketFile&) = default;
};
// nullopt: no socket is at `path`.
std::optional<SocketFile> socket_file(const std::string& path);
// Listens at `path`, and replaces a file there. Where the kernel can (Linux 6.16), connecting
// processes cannot send descriptors.
Result<Descriptor> listen_at(const std::string& path);
// Accepts without blocking. Empty: no connection waits, or (`is_short`) no descriptor is free.
Channel accept_from(int listener, bool& is_short);
// not_shared: no process listens, or it does not answer before `deadline`. host_out_of_memory: no
// socket can be made.
Result<Channel> connect_to(const std::string& path, Deadline deadline);

}  // namespace vpmm::ipc
