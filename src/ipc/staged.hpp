// ipc: memory of another process as a copy of one's own.
#pragma once

#include "context/context.hpp"
#include "ipc/importer.hpp"

namespace vpmm::ipc {

// A copy in `target`, freed with its deallocate(): what the memory held when all work that the
// exporter had finished was done. Through peer access where the devices have it, through host
// memory where they have not. The source is closed when this returns. The device that the memory is
// on must be one that this process sees.
Result<DevicePtr> open_staged(context::Context& target, const IpcHandle& handle,
                              const Wait& wait = wait_for_primary);

}  // namespace vpmm::ipc
