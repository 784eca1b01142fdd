// SPDX-License-Identifier: Apache-2.0
// tests/driver_cuda: our declarations of libcuda's interface against CUDA's own, where its headers
// are installed.
#include <gtest/gtest.h>

#if __has_include(<cudaTypedefs.h>)
#include <cuda.h>
#endif

// Older headers lack entry points and results that we name.
#if defined(CUDA_VERSION) && CUDA_VERSION >= 13000
#include <cudaTypedefs.h>

#include <cstddef>
#include <type_traits>

#include "driver/cuda/cuda_symbols.hpp"

namespace vpmm::driver::cuda {
namespace {

template <typename E>
constexpr int number(E value) {
  return static_cast<int>(value);
}

// Same size; and where ours points to something complete, theirs points to something of the same
// size.
template <typename Ours, typename Theirs>
constexpr bool same_parameter() {
  if constexpr (std::is_pointer_v<Ours> && std::is_object_v<std::remove_pointer_t<Ours>>) {
    return std::is_pointer_v<Theirs> &&
           sizeof(std::remove_pointer_t<Ours>) == sizeof(std::remove_pointer_t<Theirs>);
  } else {
    return sizeof(Ours) == sizeof(Theirs);
  }
}

template <typename R, typename... Ours, typename S, typename... Theirs>
constexpr bool same_function(R (*)(Ours...), S (*)(Theirs...)) {
  if constexpr (sizeof...(Ours) == sizeof...(Theirs)) {
    return sizeof(R) == sizeof(S) && (same_parameter<Ours, Theirs>() && ...);
  } else {
    return false;
  }
}

TEST(CudaAbi, every_symbol_has_the_parameters_of_cudas_declaration) {
#define VPMM_CUDA_SYMBOL(call, symbol, version, need, parameters)                              \
  EXPECT_TRUE(                                                                                 \
      same_function(decltype(CudaSymbols::call){nullptr}, PFN_##symbol##_v##version{nullptr})) \
      << #symbol << " of CUDA version " << version;
#include "driver/cuda/cuda_symbols.def"
#undef VPMM_CUDA_SYMBOL
  EXPECT_TRUE(same_function(GetProcAddress{nullptr}, PFN_cuGetProcAddress_v12000{nullptr}));
  EXPECT_TRUE(same_function(GetProcAddressV1{nullptr}, PFN_cuGetProcAddress_v11030{nullptr}));
}

TEST(CudaAbi, a_difference_in_parameters_would_be_seen) {
  using Ours = CuResult (*)(DevicePtr, std::size_t);
  using Shorter = CUresult (*)(CUdeviceptr);
  using Narrower = CUresult (*)(CUdeviceptr, unsigned);
  using Same = CUresult (*)(CUdeviceptr, std::size_t);
  EXPECT_FALSE(same_function(Ours{nullptr}, Shorter{nullptr}));
  EXPECT_FALSE(same_function(Ours{nullptr}, Narrower{nullptr}));
  EXPECT_TRUE(same_function(Ours{nullptr}, Same{nullptr}));
}

TEST(CudaAbi, every_result_has_cudas_number) {
#define VPMM_CU_RESULT(name, value) EXPECT_EQ(number(::name), value) << #name;
#include "driver/results.def"
#undef VPMM_CU_RESULT
}

TEST(CudaAbi, structs_have_cudas_layout) {
  EXPECT_EQ(sizeof(MemLocation), sizeof(CUmemLocation));
  EXPECT_EQ(offsetof(MemLocation, id), offsetof(CUmemLocation, id));

  EXPECT_EQ(sizeof(MemAllocationProp), sizeof(CUmemAllocationProp));
  EXPECT_EQ(offsetof(MemAllocationProp, requested_handle_types),
            offsetof(CUmemAllocationProp, requestedHandleTypes));
  EXPECT_EQ(offsetof(MemAllocationProp, location), offsetof(CUmemAllocationProp, location));
  EXPECT_EQ(offsetof(MemAllocationProp, flags), offsetof(CUmemAllocationProp, allocFlags));
  EXPECT_EQ(
      offsetof(MemAllocationProp, flags) + offsetof(MemAllocationFlags, gpu_direct_rdma_capable),
      offsetof(CUmemAllocationProp, allocFlags.gpuDirectRDMACapable));
  EXPECT_EQ(offsetof(MemAllocationProp, flags) + offsetof(MemAllocationFlags, usage),
            offsetof(CUmemAllocationProp, allocFlags.usage));

  EXPECT_EQ(sizeof(MemAccessDesc), sizeof(CUmemAccessDesc));
  EXPECT_EQ(offsetof(MemAccessDesc, flags), offsetof(CUmemAccessDesc, flags));

  EXPECT_EQ(sizeof(IpcMemHandle), sizeof(CUipcMemHandle));
  EXPECT_EQ(alignof(IpcMemHandle), alignof(CUipcMemHandle));

  EXPECT_EQ(sizeof(MemPoolProps), sizeof(CUmemPoolProps));
  EXPECT_EQ(offsetof(MemPoolProps, handle_types), offsetof(CUmemPoolProps, handleTypes));
  EXPECT_EQ(offsetof(MemPoolProps, location), offsetof(CUmemPoolProps, location));
  EXPECT_EQ(offsetof(MemPoolProps, max_size), offsetof(CUmemPoolProps, maxSize));
  EXPECT_EQ(offsetof(MemPoolProps, usage), offsetof(CUmemPoolProps, usage));
}

TEST(CudaAbi, flags_have_cudas_numbers) {
  EXPECT_EQ(kMemAllocationTypePinned, number(CU_MEM_ALLOCATION_TYPE_PINNED));
  EXPECT_EQ(kMemHandleTypePosixFileDescriptor, number(CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
  EXPECT_EQ(kMemLocationTypeDevice, number(CU_MEM_LOCATION_TYPE_DEVICE));
  EXPECT_EQ(kMemAccessReadWrite, number(CU_MEM_ACCESS_FLAGS_PROT_READWRITE));
  EXPECT_EQ(kIpcLazyEnablePeerAccess, unsigned{CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS});
  EXPECT_EQ(kHostMemoryPortable, unsigned{CU_MEMHOSTALLOC_PORTABLE});
  EXPECT_EQ(kHostMemoryPortable, unsigned{CU_MEMHOSTREGISTER_PORTABLE});
  EXPECT_EQ(kHostMemoryDeviceMap, unsigned{CU_MEMHOSTALLOC_DEVICEMAP});
  EXPECT_EQ(kHostMemoryDeviceMap, unsigned{CU_MEMHOSTREGISTER_DEVICEMAP});
  EXPECT_EQ(kHostMemoryWriteCombined, unsigned{CU_MEMHOSTALLOC_WRITECOMBINED});
  EXPECT_EQ(kManagedAttachGlobal, unsigned{CU_MEM_ATTACH_GLOBAL});
  EXPECT_EQ(kManagedAttachHost, unsigned{CU_MEM_ATTACH_HOST});
  EXPECT_EQ(kEventDisableTiming, unsigned{CU_EVENT_DISABLE_TIMING});
  EXPECT_EQ(kUserObjectNoDestructorSync, unsigned{CU_USER_OBJECT_NO_DESTRUCTOR_SYNC});
  EXPECT_EQ(kGraphUserObjectMove, unsigned{CU_GRAPH_USER_OBJECT_MOVE});
  EXPECT_EQ(kProcAddressLegacyStream, std::uint64_t{CU_GET_PROC_ADDRESS_LEGACY_STREAM});
}

TEST(CudaAbi, enumerations_of_the_door_have_cudas_numbers) {
  EXPECT_EQ(number(DeviceAttribute::can_map_host_memory),
            number(CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY));
  EXPECT_EQ(number(DeviceAttribute::unified_addressing),
            number(CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING));
  EXPECT_EQ(number(DeviceAttribute::managed_memory), number(CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY));
  EXPECT_EQ(number(DeviceAttribute::compute_capability_major),
            number(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR));
  EXPECT_EQ(number(DeviceAttribute::compute_capability_minor),
            number(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR));
  EXPECT_EQ(number(DeviceAttribute::virtual_memory_management_supported),
            number(CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED));
  EXPECT_EQ(number(DeviceAttribute::posix_file_descriptor_supported),
            number(CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED));
  EXPECT_EQ(number(DeviceAttribute::gpu_direct_rdma_with_vmm_supported),
            number(CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED));
  EXPECT_EQ(number(DeviceAttribute::memory_pools_supported),
            number(CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED));
  EXPECT_EQ(number(DeviceAttribute::gpu_direct_rdma_supported),
            number(CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED));

  EXPECT_EQ(number(PointerAttribute::device_ordinal), number(CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL));
  EXPECT_EQ(number(Granularity::minimum), number(CU_MEM_ALLOC_GRANULARITY_MINIMUM));
  EXPECT_EQ(number(Granularity::recommended), number(CU_MEM_ALLOC_GRANULARITY_RECOMMENDED));
  EXPECT_EQ(number(StreamFlags::blocking), number(CU_STREAM_DEFAULT));
  EXPECT_EQ(number(StreamFlags::non_blocking), number(CU_STREAM_NON_BLOCKING));
  EXPECT_EQ(number(CaptureStatus::none), number(CU_STREAM_CAPTURE_STATUS_NONE));
  EXPECT_EQ(number(CaptureStatus::active), number(CU_STREAM_CAPTURE_STATUS_ACTIVE));
  EXPECT_EQ(number(CaptureStatus::invalidated), number(CU_STREAM_CAPTURE_STATUS_INVALIDATED));
  EXPECT_EQ(number(CaptureMode::global), number(CU_STREAM_CAPTURE_MODE_GLOBAL));
  EXPECT_EQ(number(CaptureMode::thread_local_mode), number(CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
  EXPECT_EQ(number(CaptureMode::relaxed), number(CU_STREAM_CAPTURE_MODE_RELAXED));
  EXPECT_EQ(number(MemPoolAttribute::reuse_allow_internal_dependencies),
            number(CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES));
  EXPECT_EQ(number(MemPoolAttribute::release_threshold), number(CU_MEMPOOL_ATTR_RELEASE_THRESHOLD));
  EXPECT_EQ(number(MemPoolAttribute::reserved_mem_current),
            number(CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT));
  EXPECT_EQ(number(MemPoolAttribute::reserved_mem_high), number(CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH));
  EXPECT_EQ(number(MemPoolAttribute::used_mem_current), number(CU_MEMPOOL_ATTR_USED_MEM_CURRENT));
  EXPECT_EQ(number(MemPoolAttribute::used_mem_high), number(CU_MEMPOOL_ATTR_USED_MEM_HIGH));
  EXPECT_EQ(reinterpret_cast<CUstream>(kLegacyStream), CU_STREAM_LEGACY);
  EXPECT_EQ(reinterpret_cast<CUstream>(kPerThreadStream), CU_STREAM_PER_THREAD);
}

}  // namespace
}  // namespace vpmm::driver::cuda

#else

// Skipped rather than left out, so that whoever runs the tests sees what was not compared.
TEST(CudaAbi, declarations_match_cudas_headers) {
  GTEST_SKIP() << "cuda.h of CUDA 13.0 or newer is not installed";
}

#endif
