// SPDX-License-Identifier: Apache-2.0
// tests/driver_cuda: what a user is told when there is no usable driver, and how entry points are
// asked for.
#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <set>
#include <string>

#include "driver/cuda/cuda_driver.hpp"

namespace vpmm::driver::cuda {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

// What the imitated libcuda below is like; reset by each test's fixture.
struct Imitation {
  CuResult init_result = CuResult::success;
  std::set<std::string> missing;
  std::map<std::string, int> asked;  // symbol and version, as asked for
  std::uint64_t flags = 0;
};
Imitation imitation;

CuResult imitated_init(unsigned) { return imitation.init_result; }
CuResult imitated_map(DevicePtr ptr, std::size_t size, std::size_t offset, ChunkHandle chunk,
                      unsigned long long) {
  const bool as_passed =
      ptr == DevicePtr{0x1000} && size == 2 && offset == 3 && chunk == ChunkHandle{4};
  return as_passed ? CuResult::success : CuResult::invalid_value;
}
CuResult imitated_reserve(DevicePtr* ptr, std::size_t, std::size_t, DevicePtr, unsigned long long) {
  *ptr = DevicePtr{0xdead};
  return CuResult::out_of_memory;
}
// The attribute is CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, 9.
CuResult imitated_pointer_attribute(int* value, int attribute, DevicePtr ptr) {
  *value = attribute == 9 ? 3 : 7;
  return ptr == DevicePtr{0x1005} ? CuResult::success : CuResult::invalid_value;
}

CuResult imitated_address_range(DevicePtr* begin, std::size_t* size, DevicePtr inside) {
  *begin = inside - 5;
  *size = 9;
  return inside == DevicePtr{0x1005} ? CuResult::success : CuResult::not_found;
}
CuResult imitated_device_pointer(DevicePtr* ptr, void* host, unsigned flags) {
  *ptr = DevicePtr{reinterpret_cast<std::uint64_t>(host)};
  return flags == 0 ? CuResult::success : CuResult::invalid_value;
}
// libcuda takes the handle by value, in a struct of its own.
struct ImitatedHandle {
  char bytes[64];
};
CuResult imitated_open_handle(DevicePtr* ptr, ImitatedHandle handle, unsigned flags) {
  *ptr = DevicePtr{0x3000} + static_cast<Bytes>(handle.bytes[0]) +
         static_cast<Bytes>(handle.bytes[63]);
  return flags == kIpcLazyEnablePeerAccess ? CuResult::success : CuResult::invalid_value;
}
CuResult never_called() { return CuResult::unknown; }

CuResult old_get_proc_address(const char* symbol, void** function, int version,
                              std::uint64_t flags) {
  imitation.asked[symbol] = version;
  imitation.flags = flags;
  if (imitation.missing.count(symbol) != 0) return CuResult::not_found;
  *function = reinterpret_cast<void*>(never_called);
  if (std::strcmp(symbol, "cuInit") == 0) *function = reinterpret_cast<void*>(imitated_init);
  if (std::strcmp(symbol, "cuMemMap") == 0) *function = reinterpret_cast<void*>(imitated_map);
  if (std::strcmp(symbol, "cuMemAddressReserve") == 0)
    *function = reinterpret_cast<void*>(imitated_reserve);
  if (std::strcmp(symbol, "cuPointerGetAttribute") == 0)
    *function = reinterpret_cast<void*>(imitated_pointer_attribute);
  if (std::strcmp(symbol, "cuMemGetAddressRange") == 0)
    *function = reinterpret_cast<void*>(imitated_address_range);
  if (std::strcmp(symbol, "cuIpcOpenMemHandle") == 0)
    *function = reinterpret_cast<void*>(imitated_open_handle);
  if (std::strcmp(symbol, "cuMemHostGetDevicePointer") == 0) {
    *function = reinterpret_cast<void*>(imitated_device_pointer);
  }
  return CuResult::success;
}
// As drivers from 12.0: a missing symbol is a success with a null pointer.
CuResult get_proc_address(const char* symbol, void** function, int version, std::uint64_t flags,
                          int* status) {
  *status = 0;
  if (old_get_proc_address(symbol, function, version, flags) != CuResult::success)
    *function = nullptr;
  return CuResult::success;
}

void* exports_of_12(const char* name) {
  return std::strcmp(name, "cuGetProcAddress_v2") == 0 ? reinterpret_cast<void*>(get_proc_address)
                                                       : nullptr;
}
void* exports_of_11(const char* name) {
  return std::strcmp(name, "cuGetProcAddress") == 0 ? reinterpret_cast<void*>(old_get_proc_address)
                                                    : nullptr;
}
void* exports_of_10(const char*) { return nullptr; }

class OpenCudaDriver : public testing::Test {
 protected:
  OpenCudaDriver() { imitation = Imitation{}; }
};

TEST_F(OpenCudaDriver, without_libcuda_the_error_names_the_simulator) {
  if (void* const library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL)) {
    dlclose(library);
    GTEST_SKIP() << "this machine has libcuda, so it is not missed";
  }
  const auto driver = open_cuda_driver();
  ASSERT_FALSE(driver.ok());
  EXPECT_EQ(driver.error().code, ErrorCode::no_driver);
  EXPECT_THAT(
      driver.error().message,
      StartsWith(
          "no CUDA driver: libcuda.so.1 was not found; use the simulator with VPMM_DRIVER=sim"));
}

TEST_F(OpenCudaDriver, a_failed_init_is_named) {
  imitation.init_result = CuResult{803};
  const auto driver = open_cuda_driver(exports_of_12);
  ASSERT_FALSE(driver.ok());
  EXPECT_EQ(driver.error().code, ErrorCode::driver_failed);
  EXPECT_THAT(driver.error().message,
              HasSubstr("cuInit failed with CUDA_ERROR_SYSTEM_DRIVER_MISMATCH (803)"));
}

TEST_F(OpenCudaDriver, a_driver_that_sees_no_gpu_is_no_driver) {
  imitation.init_result = CuResult::no_device;
  const auto driver = open_cuda_driver(exports_of_12);
  ASSERT_FALSE(driver.ok());
  EXPECT_EQ(driver.error().code, ErrorCode::no_driver);
  EXPECT_THAT(driver.error().message, HasSubstr("CUDA_ERROR_NO_DEVICE"));
  EXPECT_THAT(driver.error().message, HasSubstr("VPMM_DRIVER=sim"));
}

TEST_F(OpenCudaDriver, a_missing_optional_symbol_is_a_missing_capability) {
  imitation.missing = {"cuCtxRecordEvent", "cuCtxGetId", "cuStreamGetId"};
  for (const auto& exports : {exports_of_11, exports_of_12}) {
    const auto driver = open_cuda_driver(exports);
    ASSERT_TRUE(driver.ok()) << driver.error().message;
    Driver& door = *driver.value();
    ContextId context_id{};
    StreamId stream_id{};
    EXPECT_FALSE(door.has(Call::ctx_record_event));
    EXPECT_EQ(door.ctx_record_event(ContextHandle{1}, EventHandle{1}), CuResult::not_supported);
    EXPECT_FALSE(door.has(Call::ctx_get_id));
    EXPECT_EQ(door.ctx_get_id(ContextHandle{1}, context_id), CuResult::not_supported);
    EXPECT_FALSE(door.has(Call::stream_get_id));
    EXPECT_EQ(door.stream_get_id(kNullStream, stream_id), CuResult::not_supported);
    EXPECT_TRUE(door.has(Call::mem_map));
  }
}

TEST_F(OpenCudaDriver, a_missing_required_symbol_is_named_with_the_version_that_is_needed) {
  imitation.missing = {"cuMemCreate"};
  const auto driver = open_cuda_driver(exports_of_12);
  ASSERT_FALSE(driver.ok());
  EXPECT_EQ(driver.error().code, ErrorCode::unsupported);
  EXPECT_THAT(driver.error().message,
              HasSubstr("does not offer cuMemCreate as of CUDA 10.2 (CUDA_ERROR_NOT_FOUND)"));
}

TEST_F(OpenCudaDriver, a_driver_before_11_3_is_refused_as_too_old) {
  const auto driver = open_cuda_driver(exports_of_10);
  ASSERT_FALSE(driver.ok());
  EXPECT_EQ(driver.error().code, ErrorCode::unsupported);
  EXPECT_THAT(driver.error().message, HasSubstr("11.4 or newer is needed"));
}

TEST_F(OpenCudaDriver,
       entry_points_are_asked_for_by_stable_version_and_with_the_legacy_default_stream) {
  ASSERT_TRUE(open_cuda_driver(exports_of_12).ok());
  EXPECT_EQ(imitation.asked.size(), kCallCount);
  EXPECT_EQ(imitation.asked["cuStreamGetCaptureInfo"], 11030);
  EXPECT_EQ(imitation.asked["cuStreamGetCtx"], 9020);
  EXPECT_EQ(imitation.asked["cuCtxSynchronize"], 2000);
  EXPECT_EQ(imitation.flags, kProcAddressLegacyStream);
}

TEST_F(OpenCudaDriver, arguments_arrive_in_cudas_order_and_outputs_are_untouched_by_a_failure) {
  const auto driver = open_cuda_driver(exports_of_12);
  ASSERT_TRUE(driver.ok());
  Driver& door = *driver.value();
  EXPECT_EQ(door.mem_map({DevicePtr{0x1000}, 2}, 3, ChunkHandle{4}), CuResult::success);
  DevicePtr begin{7};
  EXPECT_EQ(door.mem_address_reserve(2, 0, DevicePtr{}, begin), CuResult::out_of_memory);
  EXPECT_EQ(begin, DevicePtr{7});
  AddressRange range;
  EXPECT_EQ(door.mem_get_address_range(DevicePtr{0x1005}, range), CuResult::success);
  EXPECT_EQ(range, (AddressRange{DevicePtr{0x1000}, 9}));
  EXPECT_EQ(door.mem_get_address_range(DevicePtr{0x2005}, range), CuResult::not_found);
  EXPECT_EQ(range, (AddressRange{DevicePtr{0x1000}, 9}));
  DeviceOrdinal device = -1;
  EXPECT_EQ(door.pointer_get_device(DevicePtr{0x1005}, device), CuResult::success);
  EXPECT_EQ(device, 3);
  EXPECT_EQ(door.pointer_get_device(DevicePtr{0x2005}, device), CuResult::invalid_value);
  EXPECT_EQ(device, 3);
  IpcMemHandle handle{};
  handle.front() = std::byte{1};
  handle.back() = std::byte{2};
  EXPECT_EQ(door.ipc_open_mem_handle(handle, begin), CuResult::success);
  EXPECT_EQ(begin, DevicePtr{0x3003});
  EXPECT_EQ(door.mem_host_get_device_pointer(&imitation, begin), CuResult::success);
  EXPECT_EQ(begin, DevicePtr{reinterpret_cast<std::uint64_t>(&imitation)});
}

TEST_F(OpenCudaDriver, any_other_entry_point_can_be_found_by_name) {
  imitation.missing = {"cuFuture"};
  const auto driver = open_cuda_driver(exports_of_12);
  ASSERT_TRUE(driver.ok());
  const auto& door = dynamic_cast<const CudaDriver&>(*driver.value());
  EXPECT_EQ(door.symbol("cuInit", 2000), reinterpret_cast<void*>(imitated_init));
  EXPECT_EQ(door.symbol("cuFuture", 99000), nullptr);
}

}  // namespace
}  // namespace vpmm::driver::cuda
