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

struct Received {
  Message message;
  std::vector<Descriptor> files;
};

// One end of a connection. Messages keep their borders (SOCK_SEQPACKET); descriptors come
// close-on-exec.
class Channel {
 public:
  Channel() = default;
  explicit Channel(Descriptor socket) : socket_(std::move(socket)) {}

  explicit operator bool() const { return static_cast<bool>(socket_); }
  int get() const { return socket_.get(); }
  void reset() { socket_.reset(); }

  // `not_now`: the other side has not taken what is on its way, or too many descriptors are, of all
  // that this user sends.
  enum class Sent { yes, not_now, gone };
  Sent try_send(const Message& message, const std::vector<Descriptor>& files, Deadline deadline);
  // not_shared: the other side is gone, or takes nothing before `deadline`.
  Result<void> send(const Message& message, const std::vector<Descriptor>& files,
                    Deadline deadline);
  // Whether descriptors may come with a message. Where they may not, none ever becomes this
  // process's.
  enum class Files { none, taken };
  // None: the other side has closed. not_shared: nothing came before `deadline`, or what came was
  // cut off or is no message.
  Result<std::optional<Received>> receive(Deadline deadline, Files files = Files::taken);
  // Waits for something to receive; false: there was nothing before `deadline`.
  bool wait_to_receive(Deadline deadline) const;

 private:
  Descriptor socket_;
};

struct Peer {
  pid_t process = 0;  // 0: it cannot be seen from here
  uid_t user = 0;
};
// Who made the connection, or listens at its other end.
Result<Peer> peer_of(const Channel& channel);
// A descriptor that can be read from once the process has ended; empty: it cannot be watched.
// host_out_of_memory: there is no descriptor for it now. not_shared: it has ended already.
Result<Descriptor> watch(const Channel& channel, const Peer& peer);

// The folder of sockets: `configured`, or one of the user's own under /tmp; made with mode 0700 if
// it is not there. bad_configuration: it is somebody else's, open to others, or its name too long
// for a socket in it.
Result<std::string> socket_folder(const std::string& configured);
std::string socket_path(const std::string& folder, const Identity& process);
// Removes the sockets of processes that are gone.
void sweep(const std::string& folder);
// A socket's file. Another one at its path differs, also if it has the same inode number.
struct SocketFile {
  dev_t device = 0;
  ino_t inode = 0;
  std::int64_t changed_s = 0;
  std::int64_t changed_ns = 0;
  friend bool operator==(const SocketFile&, const SocketFile&) = default;
};
// None: no socket is at `path`.
std::optional<SocketFile> socket_file(const std::string& path);
// Listens at `path`, in place of a file that is there. Where the kernel can (Linux 6.16), who
// connects can send no descriptors.
Result<Descriptor> listen_at(const std::string& path);
// Never blocks. Empty: nobody waits any more, or (`is_short`) there is no descriptor for it.
Channel accept_from(int listener, bool& is_short);
// not_shared: nobody listens, or does not answer before `deadline`.
Result<Channel> connect_to(const std::string& path, Deadline deadline);

}  // namespace vpmm::ipc
