// torch_allocator: the message that stands for a tensor in another process.
#pragma once

#include <c10/util/Exception.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <string>

#include "vpmm/vpmm.h"

namespace vpmm::torch_plugin {

// Sent to the other process in place of CUDA's own handle.
struct Wire {
  static constexpr std::array<char, 8> kMagic{'V', 'P', 'M', 'M', 'I', 'P', 'C', '1'};
  std::array<char, 8> magic = kMagic;
  vpmm_ipc_handle handle{};
};

inline std::string to_bytes(const vpmm_ipc_handle& handle) {
  Wire wire;
  wire.handle = handle;
  std::string bytes(sizeof wire, '\0');
  std::memcpy(bytes.data(), &wire, sizeof wire);
  return bytes;
}

inline vpmm_ipc_handle from_bytes(const std::string& bytes) {
  Wire wire;
  const bool is_ours = bytes.size() == sizeof wire &&
                       std::equal(Wire::kMagic.begin(), Wire::kMagic.end(), bytes.begin());
  TORCH_CHECK(is_ours,
              "this CUDA tensor was shared by a process whose PyTorch does not allocate through "
              "VPMM; both ",
              "processes must (VPMM_TORCH=1)");
  std::memcpy(&wire, bytes.data(), sizeof wire);
  return wire.handle;
}

}  // namespace vpmm::torch_plugin
