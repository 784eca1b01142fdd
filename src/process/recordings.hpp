// process: the recordings that are open, so that a process which just exits leaves whole files.
#pragma once

#include <memory>

#include "observe/trace_writer.hpp"

namespace vpmm::process {

// Keeps no recording alive: one that is stopped or destroyed before needs nothing.
void finish_at_exit(const std::shared_ptr<observe::TraceWriter>& recording);

// Run by the process gate once it has closed for exit, never in a forked child. Waits for the
// files, a second at most, and logs what they lack. Calls no driver and takes no lock of a pool: a
// thread that exit found in the middle of a call may hold that for ever.
void finish_recordings() noexcept;

}  // namespace vpmm::process
