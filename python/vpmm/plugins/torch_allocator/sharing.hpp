// SPDX-License-Identifier: Apache-2.0
// torch_allocator: the message that stands for a tensor in another process, and its memory there.
#pragma once

#include <memory>
#include <string>
#include <unordered_map>

#include "mutex.hpp"
#include "vpmm/vpmm.h"

namespace vpmm::torch_plugin {

// Sent to the other process in place of CUDA's own handle.
std::string message_of(const vpmm_ipc_handle& handle);

// Memory of other processes. Any thread.
class SharedMemory {
 public:
  // Opens the same memory once for each device; it is closed when its last tensor goes.
  std::shared_ptr<void> open(const std::string& message, int device);

 private:
  Mutex mutex_;
  // By message and device. Those that are closed go at the next opening.
  std::unordered_map<std::string, std::weak_ptr<void>> opened_ VPMM_GUARDED_BY(mutex_);
};

}  // namespace vpmm::torch_plugin
