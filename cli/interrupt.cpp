// SPDX-License-Identifier: Apache-2.0
// cli: Ctrl-C as a flag.
#include "cli/interrupt.hpp"

#include <csignal>

namespace vpmm::cli {
namespace {

volatile std::sig_atomic_t interrupted = 0;

}  // namespace

void note_interrupts() {
  struct sigaction action = {};
  action.sa_handler = [](int) { interrupted = 1; };
  action.sa_flags = SA_RESTART | static_cast<int>(SA_RESETHAND);
  ::sigaction(SIGINT, &action, nullptr);
}

bool is_interrupted() { return interrupted != 0; }

}  // namespace vpmm::cli
