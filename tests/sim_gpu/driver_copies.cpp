// SPDX-License-Identifier: Apache-2.0
// sim_gpu: libcuda's copies and fills, done on the simulated memory in the order of the streams.
//
// Pageable host memory is read before a copy from it returns, and written before a copy to it does,
// as CUDA does it: a program may let go of it then. A copy between devices goes through the host,
// on a stream of each.
#include <cuda.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "sim_gpu/machine.hpp"

using vpmm::DevicePtr;
using vpmm::driver::CaptureStatus;
using vpmm::driver::CuResult;
using vpmm::driver::DeviceOrdinal;
using vpmm::driver::EventHandle;
using vpmm::driver::StreamHandle;
using vpmm::sim_gpu::device_ptr;
using vpmm::sim_gpu::InContextOf;
using vpmm::sim_gpu::machine;
using vpmm::sim_gpu::stream_of;
using vpmm::sim_gpu::to_cuda;

namespace {

using Buffer = std::shared_ptr<std::vector<std::byte>>;

std::atomic<unsigned long long> peer_copies{0};

bool is_pinned(const void* host) {
  DevicePtr ptr{};
  return machine().mem_host_get_device_pointer(const_cast<void*>(host), ptr) == CuResult::success;
}

// Copies in a capture run with its graph, and read and write then.
bool captures(StreamHandle stream) {
  CaptureStatus status = CaptureStatus::none;
  return machine().stream_is_capturing(stream, status) == CuResult::success &&
         status != CaptureStatus::none;
}

// The buffer lives until the stream gets here.
CuResult keep_until_here(const Buffer& buffer, StreamHandle stream) {
  vpmm::driver::sim::Kernel holder;
  holder.name = "end of a staged copy";
  holder.body = [buffer] {};
  return machine().launch(holder, stream);
}

CuResult copy_to_device(DevicePtr to, const void* from, size_t size, StreamHandle stream) {
  if (is_pinned(from) || captures(stream))
    return machine().memcpy_host_to_device_async(to, from, size, stream);
  const auto* const bytes = static_cast<const std::byte*>(from);
  const auto staged = std::make_shared<std::vector<std::byte>>(bytes, bytes + size);
  const CuResult result = machine().memcpy_host_to_device_async(to, staged->data(), size, stream);
  return result == CuResult::success ? keep_until_here(staged, stream) : result;
}

CuResult copy_to_host(void* to, DevicePtr from, size_t size, StreamHandle stream) {
  const CuResult result = machine().memcpy_device_to_host_async(to, from, size, stream);
  if (result != CuResult::success || is_pinned(to) || captures(stream)) return result;
  return machine().stream_synchronize(stream);
}

// A stream of the device for the far half of copies between devices.
CuResult far_stream(DeviceOrdinal device, StreamHandle& stream) {
  static std::mutex mutex;
  static std::map<DeviceOrdinal, StreamHandle> streams;
  const std::lock_guard lock(mutex);
  const auto found = streams.find(device);
  if (found != streams.end()) {
    stream = found->second;
    return CuResult::success;
  }
  const CuResult result = machine().stream_create(vpmm::driver::StreamFlags::non_blocking, stream);
  if (result == CuResult::success) streams.emplace(device, stream);
  return result;
}

CuResult follow(StreamHandle later, StreamHandle earlier, DeviceOrdinal device_of_earlier) {
  EventHandle event{};
  const InContextOf scope(device_of_earlier);
  if (const CuResult error = machine().event_create(event); error != CuResult::success)
    return error;
  CuResult result = machine().event_record(event, earlier);
  if (result == CuResult::success) result = machine().stream_wait_event(later, event);
  machine().event_destroy(event);
  return result;
}

struct Place {
  DeviceOrdinal device = 0;
  DevicePtr ptr{};
};

// One half runs on `stream`, which is of `here`, the other on a stream of the other device.
CuResult copy_between(const Place& to, const Place& from, size_t size, StreamHandle stream,
                      DeviceOrdinal here) {
  const auto staged = std::make_shared<std::vector<std::byte>>(size);
  const Place& far = here == to.device ? from : to;
  StreamHandle other{};
  {
    const InContextOf scope(far.device);
    if (const CuResult error = far_stream(far.device, other); error != CuResult::success)
      return error;
  }
  if (const CuResult error = follow(other, stream, here); error != CuResult::success) return error;
  const bool pushes = far.device == to.device;
  const StreamHandle first = pushes ? stream : other;
  const StreamHandle second = pushes ? other : stream;
  CuResult result = CuResult::success;
  {
    const InContextOf scope(from.device);
    result = machine().memcpy_device_to_host_async(staged->data(), from.ptr, size, first);
  }
  if (result == CuResult::success) result = follow(second, first, from.device);
  if (result == CuResult::success) {
    const InContextOf scope(to.device);
    result = machine().memcpy_host_to_device_async(to.ptr, staged->data(), size, second);
    if (result == CuResult::success) result = keep_until_here(staged, second);
  }
  if (result == CuResult::success && pushes) result = follow(stream, other, far.device);
  return result;
}

CuResult copy_on_devices(DevicePtr to, DevicePtr from, size_t size, StreamHandle stream) {
  Place target{0, to}, source{0, from};
  DeviceOrdinal here = 0;
  vpmm::driver::ContextHandle before{}, context{};
  if (const CuResult error = machine().stream_get_ctx(stream, context); error != CuResult::success)
    return error;
  machine().ctx_get_current(before);
  machine().ctx_set_current(context);
  const CuResult found = machine().ctx_get_device(here);
  machine().ctx_set_current(before);
  if (found != CuResult::success) return found;
  const bool known = machine().pointer_get_device(to, target.device) == CuResult::success &&
                     machine().pointer_get_device(from, source.device) == CuResult::success;
  if (!known || target.device == source.device)
    return machine().memcpy_device_to_device_async(to, from, size, stream);
  return copy_between(target, source, size, stream, here);
}

bool is_on_device(CUdeviceptr ptr) {
  DeviceOrdinal device = 0;
  return machine().pointer_get_device(device_ptr(ptr), device) == CuResult::success;
}

CuResult copy_on_host(CUdeviceptr to, CUdeviceptr from, size_t size, StreamHandle stream) {
  vpmm::driver::sim::Kernel copy;
  copy.name = "copy of host memory";
  copy.body = [to, from, size] {
    std::memmove(reinterpret_cast<void*>(to), reinterpret_cast<void*>(from), size);
  };
  return machine().launch(copy, stream);
}

}  // namespace

CUresult cuMemcpyHtoD(CUdeviceptr to, const void* from, size_t size) {
  return to_cuda(machine().memcpy_host_to_device(device_ptr(to), from, size));
}

CUresult cuMemcpyDtoH(void* to, CUdeviceptr from, size_t size) {
  return to_cuda(machine().memcpy_device_to_host(to, device_ptr(from), size));
}

CUresult cuMemcpyHtoDAsync(CUdeviceptr to, const void* from, size_t size, CUstream stream) {
  return to_cuda(copy_to_device(device_ptr(to), from, size, stream_of(stream)));
}

CUresult cuMemcpyDtoHAsync(void* to, CUdeviceptr from, size_t size, CUstream stream) {
  return to_cuda(copy_to_host(to, device_ptr(from), size, stream_of(stream)));
}

CUresult cuMemcpyDtoDAsync(CUdeviceptr to, CUdeviceptr from, size_t size, CUstream stream) {
  return to_cuda(copy_on_devices(device_ptr(to), device_ptr(from), size, stream_of(stream)));
}

CUresult cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, size_t size, CUstream stream) {
  if (is_on_device(to)) {
    return is_on_device(from)
               ? cuMemcpyDtoDAsync(to, from, size, stream)
               : cuMemcpyHtoDAsync(to, reinterpret_cast<const void*>(from), size, stream);
  }
  if (is_on_device(from)) return cuMemcpyDtoHAsync(reinterpret_cast<void*>(to), from, size, stream);
  return to_cuda(copy_on_host(to, from, size, stream_of(stream)));
}

CUresult cuMemcpyPeerAsync(CUdeviceptr to, CUcontext, CUdeviceptr from, CUcontext, size_t size,
                           CUstream stream) {
  ++peer_copies;
  return cuMemcpyDtoDAsync(to, from, size, stream);
}

extern "C" unsigned long long vpmm_sim_gpu_peer_copies() { return peer_copies; }

CUresult cuMemsetD8(CUdeviceptr to, unsigned char value, size_t size) {
  return to_cuda(machine().memset_d8(device_ptr(to), value, size));
}

CUresult cuMemsetD8Async(CUdeviceptr to, unsigned char value, size_t size, CUstream stream) {
  return to_cuda(machine().memset_d8_async(device_ptr(to), value, size, stream_of(stream)));
}

CUresult cuMemsetD32Async(CUdeviceptr to, unsigned value, size_t count, CUstream stream) {
  using vpmm::driver::sim::MemoryAccess;
  vpmm::driver::sim::Kernel fill;
  fill.name = "fill";
  fill.accesses.push_back({{device_ptr(to), count * sizeof value}, MemoryAccess::Kind::write});
  fill.body = [=] { std::fill_n(reinterpret_cast<unsigned*>(to), count, value); };
  return to_cuda(machine().launch(fill, stream_of(stream)));
}
