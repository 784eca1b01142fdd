// SPDX-License-Identifier: Apache-2.0
// ipc tests: how an actor starts, is told what to do, and ends.
#include "ipc/actor.hpp"

#include <gtest/gtest.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <string_view>

namespace vpmm::ipc_test {
namespace {

constexpr int kControl = 3;
constexpr const char* kActor = "--actor";
constexpr timeval kPatience{100, 0};  // no test hangs

// Both processes run the same binary, each at an address of its own.
void here() {}
std::intptr_t distance_to(Work work) {
  return reinterpret_cast<std::intptr_t>(work) - reinterpret_cast<std::intptr_t>(&here);
}
Work work_at(std::intptr_t distance) {
  return reinterpret_cast<Work>(reinterpret_cast<std::intptr_t>(&here) + distance);
}

struct Order {
  std::intptr_t work = 0;
  Parcel parcel;
};

// Kills it if it hangs.
pid_t wait_for_the_end_of(pid_t process, int& status) {
  const auto give_up = std::chrono::steady_clock::now() + std::chrono::seconds(kPatience.tv_sec);
  while (std::chrono::steady_clock::now() < give_up) {
    if (const pid_t ended = waitpid(process, &status, WNOHANG); ended != 0) return ended;
    usleep(1000);
  }
  ::kill(process, SIGKILL);
  return waitpid(process, &status, 0);
}

std::vector<char*> environment_with(const std::vector<std::string>& settings) {
  std::vector<char*> all;
  const auto is_changed = [&](std::string_view entry) {
    const std::string_view name = entry.substr(0, entry.find('=') + 1);
    return std::any_of(settings.begin(), settings.end(),
                       [&](const auto& setting) { return setting.starts_with(name); });
  };
  for (char** entry = environ; *entry != nullptr; ++entry)
    if (!is_changed(*entry)) all.push_back(*entry);
  for (const std::string& setting : settings) all.push_back(const_cast<char*>(setting.c_str()));
  all.push_back(nullptr);
  return all;
}

}  // namespace

Actor::Actor(const std::vector<std::string>& settings) {
  std::array<int, 2> ends{};
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends.data()) != 0) std::abort();
  control_ = ends[0];
  setsockopt(control_, SOL_SOCKET, SO_RCVTIMEO, &kPatience, sizeof kPatience);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, ends[1], kControl);
  std::string name = "/proc/self/exe";
  std::string role = kActor;
  std::array<char*, 3> arguments{name.data(), role.data(), nullptr};
  const int failed = posix_spawn(&process_, name.c_str(), &actions, nullptr, arguments.data(),
                                 environment_with(settings).data());
  posix_spawn_file_actions_destroy(&actions);
  close(ends[1]);
  EXPECT_EQ(failed, 0) << std::strerror(failed);
}

Actor::~Actor() { exit(); }

void Actor::exit() {
  if (process_ == 0) return;
  close(control_);
  int status = 0;
  EXPECT_EQ(wait_for_the_end_of(process_, status), process_);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0)
      << "an actor ended with status " << status;
  process_ = 0;
}

void Actor::kill() {
  if (process_ == 0) return;
  ::kill(process_, SIGKILL);
  close(control_);
  EXPECT_EQ(waitpid(process_, nullptr, 0), process_);
  process_ = 0;
}

void Actor::signal(int number) const {
  ::kill(process_, number);
  if (number == SIGSTOP) {
    int status = 0;
    EXPECT_EQ(waitpid(process_, &status, WUNTRACED), process_);
    EXPECT_TRUE(WIFSTOPPED(status)) << status;
  }
}

void Actor::begin(Work work, const Parcel& question) {
  const Order order{distance_to(work), question};
  EXPECT_EQ(send(control_, &order, sizeof order, MSG_NOSIGNAL), static_cast<ssize_t>(sizeof order));
}

Parcel Actor::finish() {
  Parcel answer;
  const ssize_t got = recv(control_, &answer, sizeof answer, 0);
  EXPECT_EQ(got, static_cast<ssize_t>(sizeof answer)) << "an actor died or hangs";
  if (got == static_cast<ssize_t>(sizeof answer)) return answer;
  ::kill(process_, SIGKILL);
  answer.status = VPMM_ERROR_DRIVER_FAILED;
  return answer;
}

Parcel Actor::call(Work work, const Parcel& question) {
  begin(work, question);
  return finish();
}

int control_of_actor() { return kControl; }

pid_t fork_for_a_while() {
  const pid_t child = fork();
  if (child == 0) alarm(kPatience.tv_sec);
  return child;
}

void act(int argc, const char* const* argv) {
  if (argc != 2 || std::string_view(argv[1]) != kActor) return;
  Order order;
  while (recv(kControl, &order, sizeof order, 0) == static_cast<ssize_t>(sizeof order)) {
    work_at(order.work)(order.parcel);
    if (send(kControl, &order.parcel, sizeof order.parcel, MSG_NOSIGNAL) < 0) break;
  }
  std::exit(0);
}

}  // namespace vpmm::ipc_test
