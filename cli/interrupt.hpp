// SPDX-License-Identifier: Apache-2.0
// cli: Ctrl-C asks a verb to end with what it has; a second one ends the process.
#pragma once

namespace vpmm::cli {

constexpr int kInterrupted = 130;  // exit code, as of a process that SIGINT ended

// From now on the first Ctrl-C is noted and nothing else.
void note_interrupts();
bool is_interrupted();

}  // namespace vpmm::cli
