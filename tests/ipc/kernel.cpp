// SPDX-License-Identifier: Apache-2.0
// ipc tests: calls of this binary that go to the kernel, unless they are told to fail.
#include "ipc/kernel.hpp"

#include <sys/random.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstddef>

namespace vpmm::ipc_test {
namespace {

struct Plan {
  std::atomic<int> error{0};
  std::atomic<std::int64_t> left{0};
  std::atomic<std::uint64_t> calls{0};
  std::atomic<void (*)()> hook{nullptr};
};
constinit std::atomic<bool> are_peers_hidden{false};
constinit std::array<Plan, 10> plans;

Plan& plan_of(KernelCall call) { return plans.at(static_cast<std::size_t>(call)); }

template <typename... Arguments>
long make(KernelCall call, long number, Arguments... arguments) {
  Plan& plan = plan_of(call);
  ++plan.calls;
  if (void (*const hook)() = plan.hook.exchange(nullptr)) hook();
  if (plan.left <= 0 || plan.left.fetch_sub(1) <= 0) return syscall(number, arguments...);
  errno = plan.error;
  return -1;
}

}  // namespace

void fail_kernel_call(KernelCall call, int error, std::uint64_t times) {
  Plan& plan = plan_of(call);
  plan.error = error;
  plan.calls = 0;
  plan.left = static_cast<std::int64_t>(times);
}

std::uint64_t kernel_calls(KernelCall call) { return plan_of(call).calls; }

void before_kernel_call(KernelCall call, void (*hook)()) {
  fail_kernel_call(call, 0, 0);
  plan_of(call).hook = hook;
}

void hide_peers() { are_peers_hidden = true; }

void become_older_kernel() {
  fail_kernel_call(KernelCall::setsockopt, ENOPROTOOPT, std::uint64_t{1} << 62);
}

}  // namespace vpmm::ipc_test

using vpmm::ipc_test::KernelCall;
using vpmm::ipc_test::make;

int accept4(int file, sockaddr* address, socklen_t* size, int flags) {
  return static_cast<int>(make(KernelCall::accept, SYS_accept4, file, address, size, flags));
}
int bind(int file, const sockaddr* address, socklen_t size) noexcept {
  return static_cast<int>(make(KernelCall::bind, SYS_bind, file, address, size));
}
int connect(int file, const sockaddr* address, socklen_t size) {
  return static_cast<int>(make(KernelCall::connect, SYS_connect, file, address, size));
}
ssize_t getrandom(void* bytes, std::size_t size, unsigned flags) {
  return make(KernelCall::getrandom, SYS_getrandom, bytes, size, flags);
}
int getsockopt(int file, int level, int option, void* value, socklen_t* size) noexcept {
  const long result =
      make(KernelCall::getsockopt, SYS_getsockopt, file, level, option, value, size);
  if (result == 0 && option == SO_PEERCRED && vpmm::ipc_test::are_peers_hidden)
    static_cast<ucred*>(value)->pid = 0;
  return static_cast<int>(result);
}
ssize_t recv(int file, void* bytes, std::size_t size, int flags) {
  return make(KernelCall::plain_receive, SYS_recvfrom, file, bytes, size, flags, nullptr, nullptr);
}
ssize_t recvmsg(int file, msghdr* message, int flags) {
  return make(KernelCall::receive, SYS_recvmsg, file, message, flags);
}
ssize_t sendmsg(int file, const msghdr* message, int flags) {
  return make(KernelCall::send, SYS_sendmsg, file, message, flags);
}
int setsockopt(int file, int level, int option, const void* value, socklen_t size) noexcept {
  return static_cast<int>(
      make(KernelCall::setsockopt, SYS_setsockopt, file, level, option, value, size));
}
int socket(int domain, int type, int protocol) noexcept {
  return static_cast<int>(make(KernelCall::socket, SYS_socket, domain, type, protocol));
}
