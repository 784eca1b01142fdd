"""PyTorch, CuPy and Numba draw from one pool in one process. Needs a GPU, PyTorch 2.11, CuPy and numba-cuda.

python examples/pytorch_cupy_numba.py
"""

import vpmm

vpmm.use_for_torch()
vpmm.use_for_numba()

import cupy  # noqa: E402
import torch  # noqa: E402
from numba import cuda  # noqa: E402

pool = vpmm.Pool.default(0)
# CuPy's own interface for allocators; the stream is the one that is current when an array is made.
allocator = cupy.cuda.PythonFunctionAllocator(
    lambda size, _device: pool.allocate(size, cupy.cuda.get_current_stream().ptr),
    lambda pointer, _device: pool.deallocate_any_stream(pointer),
)
cupy.cuda.set_allocator(allocator.malloc)


@cuda.jit
def add_one(array):  # noqa: ANN001, ANN201  a kernel
    i = cuda.grid(1)
    if i < array.size:
        array[i] += 1


COUNT = 1 << 20
tensor = torch.ones(COUNT, dtype=torch.float32, device="cuda")
array = cupy.asarray(tensor) * 2  # a view of the tensor, and a new array of CuPy's
torch.cuda.synchronize()
cupy.cuda.get_current_stream().synchronize()
device_array = cuda.to_device(cupy.asnumpy(array))
add_one[(COUNT + 255) // 256, 256](device_array)
cuda.synchronize()
back = torch.as_tensor(device_array, device="cuda")
assert bool((back == 3).all())

figures = vpmm.stats()
print(f"{figures['live_allocations']} allocations of three libraries in {figures['mapped_bytes'] >> 20} MiB")
del tensor, array, device_array, back
freed = vpmm.trim()
print(f"{freed >> 20} MiB of them went back to the device")
