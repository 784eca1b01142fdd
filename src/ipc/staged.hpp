// SPDX-License-Identifier: Apache-2.0
// ipc: own copy of memory of another process.
#pragma once

#include "context/context.hpp"
#include "ipc/importer.hpp"

namespace vpmm::ipc {

// Returns a copy in `target`, freed with its deallocate(): the content after all work that the
// exporter had finished. Copies by peer access, else through host memory. Closes the source. The
// memory's device must be visible to this process.
Result<DevicePtr> open_staged(context::Context& target, const IpcHandle& handle,
                              const Wait& wait = wait_for_primary);

}  // namespace vpmm::ipc
