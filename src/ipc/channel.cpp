// SPDX-License-Identifier: Apache-2.0
// ipc: makes, finds and sweeps sockets, and passes one message at a time.
#include "ipc/channel.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <thread>

#include "base/scope_exit.hpp"

namespace vpmm::ipc {
namespace {

constexpr std::string_view kSuffix = ".sock";
constexpr std::string_view kTopPrefix = "top-";
constexpr std::size_t kStemLength = 32;  // of a process, in hexadecimal digits
constexpr std::size_t kNameLength = kStemLength + kSuffix.size();
constexpr std::string_view kUnfinished = ".new";
constexpr std::chrono::minutes kUnfinishedForSure{1};
constexpr int kBacklog = 128;
constexpr int kPeerDescriptor = 77;  // SO_PEERPIDFD, Linux 6.5
constexpr int kPassRights = 83;      // SO_PASSRIGHTS, Linux 6.16

std::string reason() { return std::strerror(errno); }

int remaining_ms(Deadline deadline) {
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()).count();
  return static_cast<int>(std::clamp<std::int64_t>(left, 0, 1'000'000));
}

// Waits for `events` or the end of the other side. Returns false after `deadline`.
bool wait_for(int file, short events, Deadline deadline) {
  for (;;) {
    pollfd asked{file, events, 0};
    const int got = poll(&asked, 1, remaining_ms(deadline));
    if (got > 0) return true;
    if (got == 0 || errno != EINTR) return false;
  }
}

// The most descriptors that the kernel sends with a message (SCM_MAX_FD). With less room for them
// it would close the rest itself, inside of a call that holds the lock.
constexpr std::size_t kMostReceived = 253;

union Control {
  cmsghdr align;
  char bytes[CMSG_SPACE(sizeof(int) * kMostReceived)];
};

sockaddr_un address_of(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  path.copy(address.sun_path, sizeof address.sun_path - 1);
  return address;
}

int connect_socket(int file, const std::string& path) {
  const sockaddr_un address = address_of(path);
  return connect(file, reinterpret_cast<const sockaddr*>(&address), sizeof address);
}

Descriptor new_socket() {
  Descriptor::Making making;
  return making.adopt(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
}

// Tells if the name of a socket for `vpmm top` has the number of another process that runs, perhaps
// of a later one. Its socket is not connected to, which would wake the process. With the number of
// this process most are of earlier ones: those of a container that starts again and again have the
// same number each time.
bool names_another_running_process(std::string_view name) {
  if (!name.starts_with(kTopPrefix)) return false;
  name.remove_prefix(kTopPrefix.size());
  pid_t process = 0;
  std::from_chars(name.data(), name.data() + name.size(), process);
  return process > 0 && process != getpid() && (kill(process, 0) == 0 || errno == EPERM);
}

// Takes ownership of every received descriptor, even if unwanted. Requires: room for kMostReceived
// in `files`.
void adopt_files(Descriptor::Making& making, msghdr& header, std::vector<Descriptor>& files)
    VPMM_REQUIRES(descriptor_mutex) {
  for (cmsghdr* part = CMSG_FIRSTHDR(&header); part != nullptr; part = CMSG_NXTHDR(&header, part)) {
    if (part->cmsg_level != SOL_SOCKET || part->cmsg_type != SCM_RIGHTS) continue;
    const std::size_t count = (part->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (std::size_t i = 0; i < count; ++i) {
      int file = -1;
      std::memcpy(&file, CMSG_DATA(part) + i * sizeof file, sizeof file);
      files.push_back(making.adopt(file));
    }
  }
}

}  // namespace

// --- messages

Received::~Received() {
  for (Descriptor& file : files) file.reset_unlocked();
}

Channel::Sent Channel::try_send(const Message& message, const std::vector<Descriptor>& files,
                                Deadline deadline) {
  iovec data{const_cast<Message*>(&message), sizeof message};
  msghdr header{};
  header.msg_iov = &data;
  header.msg_iovlen = 1;
  Control control{};
  if (!files.empty()) {
    header.msg_control = control.bytes;
    header.msg_controllen = CMSG_SPACE(sizeof(int) * files.size());
    cmsghdr* const part = CMSG_FIRSTHDR(&header);
    part->cmsg_level = SOL_SOCKET;
    part->cmsg_type = SCM_RIGHTS;
    part->cmsg_len = CMSG_LEN(sizeof(int) * files.size());
    unsigned char* at = CMSG_DATA(part);
    for (const Descriptor& each : files) {
      const int file = each.get();
      std::memcpy(at, &file, sizeof file);
      at += sizeof file;
    }
  }
  for (;;) {
    if (sendmsg(get(), &header, MSG_NOSIGNAL | MSG_DONTWAIT) >= 0) return Sent::yes;
    if (errno == EINTR) continue;
    // A surplus of descriptors in flight ends soon, too, but poll() cannot wait for it.
    const bool is_full = errno == EAGAIN || errno == ETOOMANYREFS || errno == ENOBUFS;
    if (!is_full) return Sent::gone;
    if (Clock::now() >= deadline) return Sent::not_now;
    if (errno != EAGAIN)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    else if (!wait_for(get(), POLLOUT, deadline))
      return Sent::not_now;
  }
}

Result<void> Channel::send(const Message& message, const std::vector<Descriptor>& files,
                           Deadline deadline) {
  switch (try_send(message, files, deadline)) {
    case Sent::yes: return {};
    case Sent::not_now: return not_shared("the other process does not answer");
    case Sent::gone: break;
  }
  return not_shared("the other process is gone");
}

bool Channel::wait_to_receive(Deadline deadline) const { return wait_for(get(), POLLIN, deadline); }

Result<std::optional<Received>> Channel::receive(Deadline deadline, Files files) {
  Received received;
  if (files == Files::taken)
    received.files.reserve(kMostReceived);  // so that no received descriptor is lost
  iovec data{&received.message, sizeof received.message};
  Control control{};
  msghdr header{};
  header.msg_iov = &data;
  header.msg_iovlen = 1;
  ssize_t got = -1;
  int said = 0;
  do {
    if (!wait_to_receive(deadline)) return not_shared("the other process does not answer");
    const auto take = [&] {
      got = recvmsg(get(), &header, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
      said = errno;
    };
    if (files == Files::none) {
      take();  // without the lock: Note [Descriptors that nobody asked for]
      continue;
    }
    header.msg_control = control.bytes;
    header.msg_controllen = sizeof control.bytes;
    Descriptor::Making making;
    take();
    if (got >= 0) adopt_files(making, header, received.files);  // also of an empty message
    // A reset, by an end that closed before it read everything, is reported once, ahead of messages
    // sent by that end.
  } while (got < 0 && (said == EINTR || said == EAGAIN || said == ECONNRESET));
  if (got == 0) return std::optional<Received>{};
  if (got < 0) return not_shared(fmt::format("receiving failed: {}", std::strerror(said)));
  const Message& message = received.message;
  // A process at its limit of descriptors gets the message without them.
  if (files == Files::taken && (header.msg_flags & MSG_CTRUNC) != 0)
    return Error{
        ErrorCode::host_out_of_memory,
        "descriptors were lost on their way: this process has as many open as it may (ulimit -n)"};
  const bool has_version =
      static_cast<std::size_t>(got) >= offsetof(Message, kind) && message.magic == Message::kMagic;
  // Before the size, which another version may have changed.
  if (has_version && message.version != Message::kVersion)
    return not_shared(fmt::format(
        "the other process speaks version {} of vpmm's protocol, and this library version {}: "
        "both need the same version of vpmm",
        message.version, Message::kVersion));
  if (!has_version || got != sizeof message || (header.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) != 0)
    return not_shared("what the other process says is no message of vpmm");
  return std::optional<Received>{std::move(received)};
}

// --- the other end

Result<PeerProcess> peer_of(const Channel& channel) {
  ucred credentials{};
  socklen_t size = sizeof credentials;
  if (getsockopt(channel.get(), SOL_SOCKET, SO_PEERCRED, &credentials, &size) != 0)
    return not_shared(fmt::format("the other process does not say who it is: {}", reason()));
  return PeerProcess{credentials.pid, credentials.uid};
}

Result<Descriptor> watch(const Channel& channel, const PeerProcess& peer) {
  const auto is_short = [] { return errno == EMFILE || errno == ENFILE || errno == ENOMEM; };
  const auto none = [] {
    return Error{
        ErrorCode::host_out_of_memory,
        "the process that exported the memory has as many descriptors open as it may (ulimit -n)"};
  };
  Descriptor watched;
  {
    Descriptor::Making making;
    int file = -1;
    socklen_t size = sizeof file;
    if (getsockopt(channel.get(), SOL_SOCKET, kPeerDescriptor, &file, &size) == 0) {
      watched = making.adopt(file);
    } else if (is_short()) {
      return none();
    } else {  // an older kernel; it has no process 0, which is one that is not visible from here
      watched = making.adopt(static_cast<int>(syscall(SYS_pidfd_open, peer.process, 0)));
      if (!watched && is_short()) return none();
    }
  }
  // The process number is certain only while the peer's end of the connection exists.
  pollfd asked{channel.get(), 0, 0};
  poll(&asked, 1, 0);
  if (watched && (asked.revents & POLLHUP) != 0) return not_shared("it has ended already");
  return Result<Descriptor>(std::move(watched));
}

// --- the folder

Result<std::string> socket_folder(const std::string& configured) {
  const std::string folder =
      configured.empty() ? fmt::format("/tmp/vpmm-{}", geteuid()) : configured;
  const std::string name = configured.empty() ? folder : "VPMM_IPC_DIR=" + folder;
  const auto bad = [&](const std::string& why) {
    return Error{ErrorCode::bad_configuration, fmt::format("{}: {}", name, why)};
  };
  if (folder.front() != '/')
    return bad("must be an absolute path, so that other processes find it");
  constexpr std::size_t kMost =
      sizeof(sockaddr_un::sun_path) - 1 - 1 - kNameLength - kUnfinished.size();
  if (folder.size() > kMost)
    return bad(
        fmt::format("has {} characters, and a socket in it allows {}", folder.size(), kMost));
  if (mkdir(folder.c_str(), 0700) != 0 && errno != EEXIST)
    return bad(fmt::format("cannot be made: {}", reason()));
  struct stat status {};
  if (lstat(folder.c_str(), &status) != 0)
    return bad(fmt::format("cannot be looked at: {}", reason()));
  if (!S_ISDIR(status.st_mode)) return bad("must be a folder, and not a link to one");
  if (status.st_uid != geteuid())
    return bad(fmt::format("belongs to user {} and not to {}, whom this process runs as",
                           status.st_uid, geteuid()));
  if ((status.st_mode & 0077) != 0)
    return bad(
        fmt::format("has mode {:o}, and others may not enter it: use 0700", status.st_mode & 0777));
  return folder;
}

std::string socket_path(const std::string& folder, const Identity& process) {
  return folder + "/" + to_hex(process) + std::string(kSuffix);
}

// As long as other names, so that their rules hold: "top-4711-6e0a...".
std::string top_socket_path(const std::string& folder, const Identity& process) {
  std::string stem = fmt::format("{}{}-{}", kTopPrefix, getpid(), to_hex(process));
  stem.resize(kStemLength);
  return folder + "/" + stem + std::string(kSuffix);
}

std::optional<SocketFile> socket_file(const std::string& path) {
  struct stat status {};
  if (lstat(path.c_str(), &status) != 0 || !S_ISSOCK(status.st_mode)) return std::nullopt;
  return SocketFile{status.st_dev, status.st_ino, status.st_ctim.tv_sec, status.st_ctim.tv_nsec};
}

void sweep(const std::string& folder) {
  DIR* const open_folder = opendir(folder.c_str());
  if (open_folder == nullptr) return;
  const ScopeExit close_folder([&] { closedir(open_folder); });
  while (const dirent* const entry = readdir(open_folder)) {
    const std::string_view name = entry->d_name;
    const std::string path = folder + "/" + std::string(name);
    if (name.size() == kNameLength && name.ends_with(kSuffix)) {
      if (names_another_running_process(name)) continue;
      const Channel socket(new_socket());
      if (socket && connect_socket(socket.get(), path) != 0 && errno == ECONNREFUSED)
        unlink(path.c_str());
    } else if (name.size() == kNameLength + kUnfinished.size() && name.ends_with(kUnfinished)) {
      struct stat status {};
      const auto now = std::chrono::system_clock::now();
      if (lstat(path.c_str(), &status) == 0 &&
          now - std::chrono::system_clock::from_time_t(status.st_mtime) > kUnfinishedForSure)
        unlink(path.c_str());
    }
  }
}

// --- connecting

// Note [Descriptors that nobody asked for]
// Closing the last descriptor of an open file may take as long as its sender likes: a connection
// that lingers, a file on a dead server. A receiver closes all descriptors of a message, wanted or
// not, so an exporter has the kernel refuse such messages where possible, and never takes their
// descriptors. An importer takes them, and closes those that are no chunks without the lock, which
// fork() and other threads need. The end of a connection closes those of messages that were not
// read: without the lock, too.
//
// Binds another name until it listens: a socket that refuses connections is swept away.
Result<Descriptor> listen_at(const std::string& path) {
  const std::string unfinished = path + std::string(kUnfinished);
  Descriptor socket = new_socket();
  const sockaddr_un address = address_of(unfinished);
  constexpr int kNot = 0;
  if (socket) setsockopt(socket.get(), SOL_SOCKET, kPassRights, &kNot, sizeof kNot);
  if (socket &&
      bind(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0 &&
      listen(socket.get(), kBacklog) == 0 && rename(unfinished.c_str(), path.c_str()) == 0)
    return socket;
  const int said = errno;
  unlink(unfinished.c_str());
  return Error{ErrorCode::bad_file,
               fmt::format("no socket can be made at {}: {}", path, std::strerror(said))};
}

Channel accept_from(int listener, bool& is_short) {
  for (;;) {
    Descriptor::Making making;
    Descriptor accepted =
        making.adopt(accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!accepted && (errno == EINTR || errno == ECONNABORTED)) continue;
    is_short = !accepted && errno != EAGAIN && errno != EINVAL;  // EINVAL: it was shut down
    return Channel(std::move(accepted));
  }
}

Result<Channel> connect_to(const std::string& path, Deadline deadline) {
  for (;;) {
    Descriptor socket = new_socket();
    if (!socket)
      return Error{ErrorCode::host_out_of_memory,
                   fmt::format("no socket can be made: {}", reason())};
    if (connect_socket(socket.get(), path) == 0) return Channel(std::move(socket));
    if (errno == ENOENT || errno == ECONNREFUSED)
      return not_shared(
          "the process that exported the memory is gone, or uses another VPMM_IPC_DIR, or its "
          "socket was removed (its "
          "next "
          "export makes it anew)");
    // EAGAIN: too many connections wait to be accepted.
    if (errno != EAGAIN && errno != EINTR)
      return not_shared(fmt::format(
          "the process that exported the memory cannot be reached at {}: {}", path, reason()));
    if (Clock::now() >= deadline)
      return not_shared("the process that exported the memory does not answer");
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

}  // namespace vpmm::ipc
