// SPDX-License-Identifier: Apache-2.0
// torch_allocator: the library for one minor version of PyTorch; ../torch.py compiles this file.
//
// The pools of libvpmm decide where memory lies and when it is used again. The parts here keep the
// facts that PyTorch asks for about an allocation (its stream, its requested size, the stack of its
// request), count as PyTorch counts, and write the events of its memory history. All are compiled
// together, because each would read PyTorch's headers anew.

#if VPMM_TORCH_MINOR < 11
#error "PyTorch 2.11 or newer is needed"
#endif

#include <c10/cuda/CUDAAllocatorConfig.h>

#include <stdexcept>

#include "allocator.cpp"
#include "blocks.cpp"
#include "device.cpp"
#include "history.cpp"
#include "pool.cpp"
#include "private_pools.cpp"
#include "segments.cpp"
#include "sharing.cpp"
#include "stretches.cpp"

#define VPMM_TORCH_EXPORT extern "C" __attribute__((visibility("default")))

namespace {

std::string last_error;  // of vpmm_torch_install

}  // namespace

VPMM_TORCH_EXPORT int vpmm_torch_minor() { return VPMM_TORCH_MINOR; }

VPMM_TORCH_EXPORT const char* vpmm_torch_last_error() { return last_error.c_str(); }

// Makes PyTorch allocate CUDA memory here from now on. 0: done, or done before. Only PyTorch's own
// allocators are replaced. Not thread-safe: call it before the first CUDA tensor.
VPMM_TORCH_EXPORT int vpmm_torch_install() {
  using namespace vpmm::torch_plugin;
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
    // Reads PYTORCH_ALLOC_CONF now: PyTorch compares its `backend` with the allocator that is
    // there.
    (void)cca::CUDAAllocatorConfig::instance();
    // PyTorch registers its own with priority 0, from 2.12 on with 1, and a lower one changes
    // nothing.
    c10::SetAllocator(c10::DeviceType::CUDA, &instance(), 1);
    TORCH_CHECK(c10::GetAllocator(c10::DeviceType::CUDA) == &instance(),
                "another allocator for CUDA is registered with a higher priority");
    cca::allocator.store(&instance());
    return 0;
  } catch (const c10::Error& error) {
    last_error = error.what_without_backtrace();
  } catch (const std::logic_error& error) {  // of a number among the settings
    last_error = std::string("its settings (PYTORCH_ALLOC_CONF) cannot be read: ") + error.what();
  } catch (const std::exception& error) {
    last_error = error.what();
  }
  return 1;
}
