// SPDX-License-Identifier: Apache-2.0
// torch_allocator: packs handles of shared memory, and opens those of other processes.
#include "sharing.hpp"

#include <c10/util/Exception.h>

#include <cstring>
#include <string_view>

#include "segments.hpp"

namespace vpmm::torch_plugin {
namespace {

constexpr std::string_view kMagic = "VPMMIPC1";

vpmm_ipc_handle handle_of(const std::string& message) {
  vpmm_ipc_handle handle{};
  const bool is_ours =
      message.size() == kMagic.size() + sizeof handle && message.starts_with(kMagic);
  TORCH_CHECK(is_ours,
              "this CUDA tensor was shared by a process whose PyTorch does not allocate through "
              "VPMM; both processes must (VPMM_TORCH=1)");
  std::memcpy(&handle, message.data() + kMagic.size(), sizeof handle);
  return handle;
}

}  // namespace

std::string message_of(const vpmm_ipc_handle& handle) {
  return std::string(kMagic).append(reinterpret_cast<const char*>(&handle), sizeof handle);
}

std::shared_ptr<void> open_shared(const std::string& message, int device) {
  const vpmm_ipc_handle handle = handle_of(message);
  void* ptr = nullptr;
  check(vpmm_ipc_open(&handle, device, &ptr), "a tensor of another process");
  return {ptr, &vpmm_ipc_close_deferred};
}

}  // namespace vpmm::torch_plugin
