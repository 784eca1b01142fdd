// SPDX-License-Identifier: Apache-2.0
// ipc tests: a thread of the library that has entered, and waits there until the process's exit has
// begun.
#pragma once

#include <sys/types.h>

#include "ipc/process.hpp"

namespace vpmm::ipc_test {

// Holds the next thread but the main one that enters.
void hold_thread_at_gate(Process& process);
// Waits until a thread is held.
void expect_thread_at_gate(Process& process);
// In the actor: the thread that was held and went on. 0: none.
pid_t thread_past_gate();

}  // namespace vpmm::ipc_test
