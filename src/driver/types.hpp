// SPDX-License-Identifier: Apache-2.0
// driver: handles, numbers and small structs of driver calls; values are CUDA's own.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "base/address.hpp"
#include "base/bytes.hpp"

namespace vpmm::driver {

// CUresult by value. Numbers without a name here pass through unchanged.
enum class CuResult : int {
  success = 0,
  invalid_value = 1,
  out_of_memory = 2,
  not_initialized = 3,
  deinitialized = 4,
  no_device = 100,
  invalid_device = 101,
  invalid_context = 201,
  map_failed = 205,
  ecc_uncorrectable = 214,
  operating_system = 304,
  invalid_handle = 400,
  illegal_state = 401,
  not_found = 500,
  not_ready = 600,
  illegal_address = 700,
  primary_context_active = 708,
  context_is_destroyed = 709,
  assert_triggered = 710,
  too_many_peers = 711,
  host_memory_already_registered = 712,
  host_memory_not_registered = 713,
  hardware_stack_error = 714,
  illegal_instruction = 715,
  misaligned_address = 716,
  invalid_address_space = 717,
  invalid_pc = 718,
  launch_failed = 719,
  not_permitted = 800,
  not_supported = 801,
  stream_capture_unsupported = 900,
  stream_capture_invalidated = 901,
  stream_capture_merge = 902,
  stream_capture_unmatched = 903,
  stream_capture_unjoined = 904,
  stream_capture_isolation = 905,
  stream_capture_implicit = 906,
  captured_event = 907,
  stream_capture_wrong_thread = 908,
  unknown = 999,
};

// Handles are CUDA's pointer values. A default-constructed handle is null.
enum class ContextHandle : std::uintptr_t {};
enum class StreamHandle : std::uintptr_t {};
enum class EventHandle : std::uintptr_t {};
enum class GraphHandle : std::uintptr_t {};
enum class GraphExecHandle : std::uintptr_t {};
enum class UserObjectHandle : std::uintptr_t {};
enum class MemPoolHandle : std::uintptr_t {};
enum class ChunkHandle : std::uint64_t {};  // CUmemGenericAllocationHandle

enum class ContextId : std::uint64_t {};  // cuCtxGetId: never reused in a process
enum class StreamId : std::uint64_t {};   // cuStreamGetId: never reused in a process
enum class CaptureId : std::uint64_t {};  // cuStreamGetCaptureInfo

using DeviceOrdinal = int;  // CUdevice

constexpr StreamHandle kNullStream{0};       // the legacy default stream, as 0
constexpr StreamHandle kLegacyStream{1};     // CU_STREAM_LEGACY
constexpr StreamHandle kPerThreadStream{2};  // CU_STREAM_PER_THREAD

// CUdevice_attribute by value; only those the project asks for.
enum class DeviceAttribute : int {
  can_map_host_memory = 19,
  unified_addressing = 41,
  compute_capability_major = 75,
  compute_capability_minor = 76,
  managed_memory = 83,
  virtual_memory_management_supported = 102,
  posix_file_descriptor_supported = 103,
  gpu_direct_rdma_with_vmm_supported = 110,
  memory_pools_supported = 115,
  gpu_direct_rdma_supported = 116,
};

// Properties of a cuMemCreate; fixed for the life of a chunk.
struct ChunkProperties {
  DeviceOrdinal device = 0;
  bool posix_file_descriptor = false;  // requestedHandleTypes = POSIX_FILE_DESCRIPTOR
  bool gpu_direct_rdma_capable = false;
};

enum class Granularity { minimum = 0, recommended = 1 };

// Read and write access for one device (CUmemAccessDesc with PROT_READWRITE).
struct AccessDescriptor {
  DeviceOrdinal device = 0;
};

struct MemInfo {
  Bytes free = 0;
  Bytes total = 0;
};

// Flags of mem_host_alloc and mem_host_register.
constexpr unsigned kHostMemoryPortable =
    1;  // CU_MEMHOSTALLOC_PORTABLE, CU_MEMHOSTREGISTER_PORTABLE
constexpr unsigned kHostMemoryDeviceMap =
    2;  // CU_MEMHOSTALLOC_DEVICEMAP, CU_MEMHOSTREGISTER_DEVICEMAP
constexpr unsigned kHostMemoryWriteCombined =
    4;  // CU_MEMHOSTALLOC_WRITECOMBINED; not for mem_host_register

// Flags of mem_alloc_managed: one of them.
constexpr unsigned kManagedAttachGlobal = 1;  // CU_MEM_ATTACH_GLOBAL
constexpr unsigned kManagedAttachHost = 2;    // CU_MEM_ATTACH_HOST

enum class StreamFlags : unsigned { blocking = 0, non_blocking = 1 };

enum class CaptureStatus : int { none = 0, active = 1, invalidated = 2 };
enum class CaptureMode : int { global = 0, thread_local_mode = 1, relaxed = 2 };

struct CaptureInfo {
  CaptureStatus status = CaptureStatus::none;
  CaptureId id{};
  GraphHandle graph{};  // borrowed; valid while the capture is active
};

enum class MemPoolAttribute : int {
  reuse_allow_internal_dependencies = 3,
  release_threshold = 4,
  reserved_mem_current = 5,
  reserved_mem_high = 6,
  used_mem_current = 7,
  used_mem_high = 8,
};

// CUipcMemHandle: plain bytes, to be sent to another process.
using IpcMemHandle = std::array<std::byte, 64>;

using Uuid = std::array<std::uint8_t, 16>;
// Called by the driver on a thread of its own choice; may not call the driver.
using UserObjectDestructor = void (*)(void*);

}  // namespace vpmm::driver
