// SPDX-License-Identifier: Apache-2.0
// hunt: signals are blocked, so that none is lost between a look and the wait.
#include "hunt/program/signals.hpp"

#include <algorithm>
#include <csignal>
#include <ctime>

namespace vpmm::hunt {
namespace {

bool stopped = false;

sigset_t held() {
  sigset_t set{};
  sigemptyset(&set);
  for (const int signal : {SIGCHLD, SIGINT, SIGTERM}) sigaddset(&set, signal);
  return set;
}

}  // namespace

void hold_signals() {
  const sigset_t set = held();
  sigprocmask(SIG_BLOCK, &set, nullptr);
}

void release_signals() {
  std::signal(SIGINT, SIG_IGN);
  std::signal(SIGTERM, SIG_IGN);
  const sigset_t set = held();
  sigprocmask(SIG_UNBLOCK, &set, nullptr);
}

void wait_for_signal(double seconds) {
  const double wait = std::max(seconds, 0.0);
  const auto whole = static_cast<time_t>(wait);
  const timespec time{whole, static_cast<long>(1e9 * (wait - static_cast<double>(whole)))};
  const sigset_t set = held();
  const int signal = sigtimedwait(&set, nullptr, &time);
  if (signal == SIGINT || signal == SIGTERM) stopped = true;
}

bool is_stopped() { return stopped; }

}  // namespace vpmm::hunt
