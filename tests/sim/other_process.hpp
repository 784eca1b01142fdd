// SPDX-License-Identifier: Apache-2.0
// tests/sim: another process with a simulator of its own, and what goes to and fro between the two.
#pragma once

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <functional>
#include <vector>

#include "sim/sim_fixture.hpp"

namespace vpmm::driver::sim {

class Channel {
 public:
  explicit Channel(int end) : end_(end) {}
  void send(const IpcMemHandle& handle) {
    EXPECT_EQ(write(end_, handle.data(), handle.size()), 64);
  }
  IpcMemHandle receive() {
    IpcMemHandle handle{};
    EXPECT_EQ(recv(end_, handle.data(), handle.size(), MSG_WAITALL), 64);
    return handle;
  }
  void send_file(int file) {
    Rights rights;
    rights.header.msg_controllen = CMSG_SPACE(sizeof file);
    cmsghdr* const control = CMSG_FIRSTHDR(&rights.header);
    control->cmsg_level = SOL_SOCKET;
    control->cmsg_type = SCM_RIGHTS;
    control->cmsg_len = CMSG_LEN(sizeof file);
    std::memcpy(CMSG_DATA(control), &file, sizeof file);
    EXPECT_EQ(sendmsg(end_, &rights.header, 0), 1);
  }
  // The caller closes it.
  int receive_file() {
    Rights rights;
    EXPECT_EQ(recvmsg(end_, &rights.header, MSG_CMSG_CLOEXEC), 1);
    int file = -1;
    const cmsghdr* const control = CMSG_FIRSTHDR(&rights.header);
    if (control != nullptr) std::memcpy(&file, CMSG_DATA(control), sizeof file);
    return file;
  }
  void signal() { EXPECT_EQ(write(end_, "!", 1), 1); }
  void wait() {
    char byte = 0;
    EXPECT_EQ(read(end_, &byte, 1), 1);
  }

 private:
  // A message of one byte that takes a descriptor along.
  struct Rights {
    Rights() {
      header.msg_iov = &part;
      header.msg_iovlen = 1;
      header.msg_control = room.data();
      header.msg_controllen = room.size();
    }
    char byte = '!';
    iovec part{&byte, 1};
    alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> room{};
    msghdr header{};
  };

  int end_;
};

// A process with a simulator of its own.
class Exporter {
 public:
  using Life = std::function<void(Sim&, Channel&)>;
  explicit Exporter(const Life& life) {
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends_.data()), 0);
    process_ = fork();
    if (process_ != 0) {
      close(ends_[1]);
      return;
    }
    close(ends_[0]);
    Channel channel(ends_[1]);
    {
      Sim sim;
      life(sim, channel);
    }
    _exit(testing::Test::HasFailure() ? 1 : 0);
  }
  ~Exporter() { end(); }
  Exporter(const Exporter&) = delete;
  Exporter& operator=(const Exporter&) = delete;
  Channel channel() { return Channel(ends_[0]); }
  // Waits for its end.
  void end() {
    if (process_ == 0) return;
    int status = 0;
    EXPECT_EQ(waitpid(process_, &status, 0), process_);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
    close(ends_[0]);
    process_ = 0;
  }

 private:
  std::array<int, 2> ends_{};
  pid_t process_ = 0;
};

inline void fill(Sim& sim, AddressRange range, std::uint8_t value) {
  ok(sim.driver.memset_d8(range.begin, value, range.size));
  ok(sim.driver.ctx_synchronize());
}

inline bool all_are(Sim& sim, AddressRange range, std::uint8_t value) {
  return sim.read_back(range) == std::vector<std::uint8_t>(range.size, value);
}

}  // namespace vpmm::driver::sim
