// torch_allocator: PyTorch's CUDA allocator over the pools of libvpmm. Built for one minor version
// of PyTorch; see
// ../torch.py.
//
// Every method of c10::cuda::CUDACachingAllocator::CUDAAllocator. The pools decide where memory
// lies and when it is used again; this file keeps what PyTorch asks about an allocation (its
// stream, the size asked for, the stack that made it), counts as PyTorch counts, and writes the
// events that its memory history consists of.
//
// Locks: Device::mutex (blocks, counts, arenas), then History::mutex_. Events take both under the
// pool's own lock, so no function of the pool is called under either.

#if VPMM_TORCH_MINOR < 11
#error "PyTorch 2.11 or newer is needed"
#endif

#include "allocator.hpp"

#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>

#include <exception>

#include "allocating.hpp"
#include "observing.hpp"
#include "private_pools.hpp"
#include "wire.hpp"

namespace vpmm::torch_plugin {

// The pool's memory, and what programs have of cudaMalloc.
void Allocator::enablePeerAccess(DeviceIndex device, DeviceIndex owner) {
  check(vpmm_set_peer_access(pool_of(device_of(owner)), device), "peer access");
  const c10::cuda::CUDAGuard guard(device);
  const cudaError_t enabled = cudaDeviceEnablePeerAccess(owner, 0);
  if (enabled == cudaErrorPeerAccessAlreadyEnabled)
    (void)cudaGetLastError();
  else
    C10_CUDA_CHECK(enabled);
}

cudaError_t Allocator::memcpyAsync(void* to, int to_device, const void* from, int from_device,
                                   std::size_t bytes, cudaStream_t stream, bool p2p_enabled) {
  if (p2p_enabled || to_device == from_device)
    return cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream);
  return cudaMemcpyPeerAsync(to, to_device, from, from_device, bytes, stream);
}

// One export for the life of an allocation, so that a receiver knows by the bytes that it has the
// memory open already.
cca::ShareableHandle Allocator::shareIpcHandle(void* ptr) {
  std::size_t bytes = 0;
  void* const begin = getBaseAllocation(ptr, &bytes);
  const auto offset = static_cast<char*>(ptr) - static_cast<char*>(begin);
  const int count = device_count_.load();
  for (int i = 0; i < count; ++i) {
    Device& device = devices_[static_cast<std::size_t>(i)];
    {
      const std::lock_guard<std::mutex> lock(device.mutex);
      if (const auto known = device.exports.find(begin); known != device.exports.end())
        return {offset, known->second.bytes};
      if (device.blocks.find(begin) == device.blocks.end()) continue;
    }
    vpmm_ipc_handle handle{};
    check(vpmm_ipc_export(begin, bytes, &handle), "sharing a tensor");
    std::string bytes_to_send;
    bool is_ours = false;
    {
      const std::lock_guard<std::mutex> lock(device.mutex);
      const auto block = device.blocks.find(begin);
      if (block != device.blocks.end()) {
        const auto [entry, is_new] =
            device.exports.try_emplace(begin, Export{handle, to_bytes(handle)});
        block->second.is_exported = true;
        bytes_to_send = entry->second.bytes;
        is_ours = is_new;
      }
    }
    if (!is_ours) vpmm_ipc_export_end(&handle);  // another thread was faster, or freed it
    TORCH_CHECK(!bytes_to_send.empty(), "a tensor was freed while it was shared");
    return {offset, bytes_to_send};
  }
  TORCH_CHECK(false, "invalid device pointer: ", ptr);
}

// The same memory is opened once for each device. It is closed when its last tensor goes.
std::shared_ptr<void> Allocator::getIpcDevPtr(std::string bytes) {
  const vpmm_ipc_handle handle = from_bytes(bytes);
  DeviceIndex device = 0;
  C10_CUDA_CHECK(c10::cuda::GetDevice(&device));
  bytes.push_back(static_cast<char>(device));
  const std::lock_guard<std::mutex> lock(opened_mutex_);
  if (const auto known = opened_.find(bytes); known != opened_.end())
    if (std::shared_ptr<void> memory = known->second.lock()) return memory;
  void* ptr = nullptr;
  check(vpmm_ipc_open(&handle, device, &ptr), "a tensor of another process");
  std::shared_ptr<void> memory(ptr, [this, bytes](void* opened) {
    {
      const std::lock_guard<std::mutex> closing(opened_mutex_);
      const auto known = opened_.find(bytes);
      if (known != opened_.end() && known->second.expired()) opened_.erase(known);
    }
    vpmm_ipc_close_deferred(opened);
  });
  opened_[bytes] = memory;
  return memory;
}

namespace {

// Why vpmm_torch_install failed.
std::string last_error;

}  // namespace

}  // namespace vpmm::torch_plugin

using namespace vpmm::torch_plugin;

#define VPMM_TORCH_EXPORT extern "C" __attribute__((visibility("default")))

VPMM_TORCH_EXPORT int vpmm_torch_minor() { return VPMM_TORCH_MINOR; }

VPMM_TORCH_EXPORT const char* vpmm_torch_last_error() { return last_error.c_str(); }

// Makes PyTorch allocate CUDA memory here from now on. 0: done, or done before. Only PyTorch's own
// allocators are replaced. Not thread-safe: call it before the first CUDA tensor.
VPMM_TORCH_EXPORT int vpmm_torch_install() {
  try {
    cca::CUDAAllocator* const before = cca::allocator.load();
    if (before == &instance()) return 0;
    TORCH_CHECK(before != nullptr, "PyTorch has no CUDA allocator: is this a build without CUDA?");
    const std::string name = before->name();
    TORCH_CHECK(name == "native" || name == "cudaMallocAsync",
                "PyTorch has another allocator already, '", name,
                "': leave out either VPMM or torch.cuda.memory.change_current_allocator");
    TORCH_CHECK(!before->initialized(),
                "PyTorch has initialized CUDA already: switch VPMM on before the first CUDA call");
    cca::allocator.store(&instance());
    c10::SetAllocator(c10::DeviceType::CUDA, &instance(), 0);
    return 0;
  } catch (const c10::Error& error) {
    last_error = error.what_without_backtrace();
  } catch (const std::exception& error) {
    last_error = error.what();
  }
  return 1;
}
