// SPDX-License-Identifier: Apache-2.0
// process: open recordings, finished at exit so that their files are whole.
#pragma once

#include <memory>

#include "observe/trace_writer.hpp"

namespace vpmm::process {

// Keeps no recording alive: it may be stopped or destroyed before.
void finish_at_exit(const std::shared_ptr<observe::TraceWriter>& recording);

// Called by the process gate after closing for exit, never in a forked child. Waits for the files,
// at most a second, and logs failures. Calls no driver and takes no pool's lock: a thread stopped
// by exit may hold it for ever.
void finish_recordings() noexcept;

}  // namespace vpmm::process
