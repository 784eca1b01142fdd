// SPDX-License-Identifier: Apache-2.0
// torch_allocator: the message that stands for a tensor in another process, and its memory there.
#pragma once

#include <memory>
#include <string>

#include "vpmm/vpmm.h"

namespace vpmm::torch_plugin {

// Sent to the other process in place of CUDA's own handle.
std::string message_of(const vpmm_ipc_handle& handle);

// Opens memory of another process; the same memory has one address for each device. It is closed
// when its last tensor goes. Any thread.
std::shared_ptr<void> open_shared(const std::string& message, int device);

}  // namespace vpmm::torch_plugin
