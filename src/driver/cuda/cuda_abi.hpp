// SPDX-License-Identifier: Apache-2.0
// driver/cuda: structs and numbers of libcuda's binary interface, to build without a CUDA header.
//
// tests/driver_cuda/cuda_abi_test.cpp compares each with cuda.h where that is installed. Handles,
// enumerations and results are those of driver/types.hpp, which have CUDA's size and values.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "driver/types.hpp"

namespace vpmm::driver::cuda {

static_assert(sizeof(std::size_t) == sizeof(Bytes), "the driver door is for 64-bit hosts");

struct MemLocation {  // CUmemLocation
  int type = 0;
  int id = 0;
};

struct MemAllocationFlags {  // allocFlags of CUmemAllocationProp
  unsigned char compression_type = 0;
  unsigned char gpu_direct_rdma_capable = 0;
  unsigned short usage = 0;
  unsigned char reserved[4] = {};
};

struct MemAllocationProp {  // CUmemAllocationProp
  int type = 0;
  int requested_handle_types = 0;
  MemLocation location;
  void* win32_handle_metadata = nullptr;
  MemAllocationFlags flags;
};

struct MemAccessDesc {  // CUmemAccessDesc
  MemLocation location;
  int flags = 0;
};

struct MemPoolProps {  // CUmemPoolProps
  int allocation_type = 0;
  int handle_types = 0;
  MemLocation location;
  void* win32_security_attributes = nullptr;
  std::size_t max_size = 0;
  unsigned short usage = 0;
  unsigned char reserved[54] = {};
};

enum class PointerAttribute : int { device_ordinal = 9 };  // CUpointer_attribute

constexpr int kMemAllocationTypePinned = 1;            // CU_MEM_ALLOCATION_TYPE_PINNED
constexpr int kMemHandleTypePosixFileDescriptor = 1;   // CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
constexpr int kMemLocationTypeDevice = 1;              // CU_MEM_LOCATION_TYPE_DEVICE
constexpr int kMemAccessReadWrite = 3;                 // CU_MEM_ACCESS_FLAGS_PROT_READWRITE
constexpr unsigned kIpcLazyEnablePeerAccess = 1;       // CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS
constexpr unsigned kEventDisableTiming = 2;            // CU_EVENT_DISABLE_TIMING
constexpr unsigned kUserObjectNoDestructorSync = 1;    // CU_USER_OBJECT_NO_DESTRUCTOR_SYNC
constexpr unsigned kGraphUserObjectMove = 1;           // CU_GRAPH_USER_OBJECT_MOVE
constexpr std::uint64_t kProcAddressLegacyStream = 1;  // CU_GET_PROC_ADDRESS_LEGACY_STREAM

// cuGetProcAddress as exported by drivers from 12.0 (cuGetProcAddress_v2) and before.
using GetProcAddress = CuResult (*)(const char* symbol, void** function, int version,
                                    std::uint64_t flags, int* status);
using GetProcAddressV1 = CuResult (*)(const char* symbol, void** function, int version,
                                      std::uint64_t flags);

}  // namespace vpmm::driver::cuda
