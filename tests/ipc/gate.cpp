// SPDX-License-Identifier: Apache-2.0
// ipc tests: a thread is held where the window of races in the process's gate is.
#include "ipc/gate.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <string_view>

#include "base/race_window.hpp"
#include "ipc/raw.hpp"
#include "process/process_gate.hpp"

namespace vpmm::ipc_test {
namespace {

std::atomic<bool> is_thread_at_gate{false};
std::atomic<pid_t> past_gate{0};

void wait_for_the_exit(const char* place) {
  if (std::string_view(place) != "an entry counts, and has not looked at the gate again") return;
  if (gettid() == getpid()) return;
  is_thread_at_gate = true;
  const auto give_up = soon();
  while (!process::is_ending() && ipc::Clock::now() < give_up) usleep(1000);
  past_gate = gettid();
}

}  // namespace

void hold_thread_at_gate(Process& process) {
  process.call([](Parcel&) { race_window.store(wait_for_the_exit); });
}

void expect_thread_at_gate(Process& process) {
  const Parcel asked = process.call([](Parcel& parcel) {
    const auto give_up = soon();
    while (!is_thread_at_gate && ipc::Clock::now() < give_up) usleep(1000);
    parcel.words[0] = is_thread_at_gate ? 1 : 0;
  });
  EXPECT_EQ(asked.words[0], 1U);
}

pid_t thread_past_gate() { return past_gate; }

}  // namespace vpmm::ipc_test
