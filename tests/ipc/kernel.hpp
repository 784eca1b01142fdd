// SPDX-License-Identifier: Apache-2.0
// ipc tests: calls of the kernel that fail when a test says so, or do something first.
#pragma once

#include <cstdint>

namespace vpmm::ipc_test {

enum class KernelCall {
  accept,
  bind,
  connect,
  getrandom,
  getsockopt,
  plain_receive,  // recv()
  receive,
  send,
  setsockopt,
  socket
};

// The next `times` calls of this process fail with this error, instead of being made. Counts calls
// anew.
void fail_kernel_call(KernelCall call, int error, std::uint64_t times = 1);
// Since the last call of fail_kernel_call.
std::uint64_t kernel_calls(KernelCall call);
// Runs before the next call, in its thread. Counts calls anew.
void before_kernel_call(KernelCall call, void (*hook)());
// From now on no process at the other end of a socket is visible, as one of another container.
void hide_peers();
// From now on sockets take descriptors that nobody asked for, as before Linux 6.16.
void become_older_kernel();

}  // namespace vpmm::ipc_test
