// SPDX-License-Identifier: Apache-2.0
// ipc tests: a descriptor that takes long to close.
#pragma once

#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <utility>
#include <vector>

#include "ipc/channel.hpp"

namespace vpmm::ipc_test {

constexpr std::size_t kMostOfAMessage = 253;  // SCM_MAX_FD

// A connection with unsent data, which whoever closes it last waits for.
class Lingering {
 public:
  Lingering() {
    const int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    auto* const any = reinterpret_cast<sockaddr*>(&address);
    file_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    is_connected_ = bind(listener, any, sizeof address) == 0 && listen(listener, 1) == 0 &&
                    getsockname(listener, any, &size) == 0 &&
                    connect(file_, any, sizeof address) == 0;
    peer_ = is_connected_ ? accept4(listener, nullptr, nullptr, SOCK_CLOEXEC) : -1;
    ::close(listener);
    const std::vector<char> bytes(1 << 16);
    while (is_connected_ &&
           send(file_, bytes.data(), bytes.size(), MSG_DONTWAIT | MSG_NOSIGNAL) > 0) {
    }
    linger({1, 60});
  }
  ~Lingering() {
    ::close(peer_);  // without having read: that ends it
    if (file_ >= 0) ::close(file_);
  }
  Lingering(const Lingering&) = delete;
  Lingering& operator=(const Lingering&) = delete;

  bool is_connected() const { return is_connected_; }
  // The last of `count` descriptors; the others are quick to close. True: the other side has it,
  // and this one no more.
  bool give_to(const ipc::Channel& channel, const ipc::Message& message, std::size_t count = 1) {
    iovec data{const_cast<ipc::Message*>(&message), sizeof message};
    alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int) * kMostOfAMessage)> room{};
    std::array<int, kMostOfAMessage> files{};
    files.fill(0);
    files[count - 1] = file_;
    msghdr header{};
    header.msg_iov = &data;
    header.msg_iovlen = 1;
    header.msg_control = room.data();
    header.msg_controllen = CMSG_SPACE(sizeof(int) * count);
    cmsghdr* const part = CMSG_FIRSTHDR(&header);
    part->cmsg_level = SOL_SOCKET;
    part->cmsg_type = SCM_RIGHTS;
    part->cmsg_len = CMSG_LEN(sizeof(int) * count);
    std::memcpy(CMSG_DATA(part), files.data(), sizeof(int) * count);
    const bool is_sent = sendmsg(channel.get(), &header, MSG_NOSIGNAL) >= 0;
    if (!is_sent) linger({1, 0});
    ::close(std::exchange(file_, -1));
    return is_sent;
  }

 private:
  void linger(::linger how) const { setsockopt(file_, SOL_SOCKET, SO_LINGER, &how, sizeof how); }
  int file_ = -1;
  int peer_ = -1;
  bool is_connected_ = false;
};

inline bool kernel_can_refuse_descriptors() {
  constexpr int kPassRights = 83;
  const int file = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  const int value = 0;
  const bool can = setsockopt(file, SOL_SOCKET, kPassRights, &value, sizeof value) == 0;
  ::close(file);
  return can;
}

}  // namespace vpmm::ipc_test
