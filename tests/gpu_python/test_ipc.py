# SPDX-License-Identifier: Apache-2.0
"""tests: arrays in other processes on a real GPU: Numba's handles and the package's; each case is processes of its own.

A case passes when its process ends with 0 and nothing on standard error, where finalizers that failed would be named.
VPMM_STRESS_SECONDS: how long the case with killed processes goes on.
"""

from __future__ import annotations

import os
import unittest
from pathlib import Path

from test_stress import BEGIN, NUMBA_FIRST, STRESS_SECONDS, OnGpu

HERE = str(Path(__file__).resolve().parent)

REST = """
import pickle, time
import multiprocessing
from ipc_children import *
cuda.current_context()

def live():
    cuda.current_context().get_memory_info()
    vpmm.Pool.default(0).synchronize()
    return vpmm.stats()['live_allocations']

def eventually(condition):
    end = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end, live()
        time.sleep(0.01)

def counting(count, begin=0, dtype=np.int64):
    return cuda.to_device(np.arange(begin, begin + count, dtype=dtype))

class Foreign:
    def __init__(self, array):
        self.array = array
        self.__cuda_array_interface__ = array.__cuda_array_interface__

class Plain:
    '''Memory of cuMemAlloc.'''
    def __init__(self, host):
        from cuda.bindings import driver as cu
        error, pointer = cu.cuMemAlloc(host.nbytes)
        assert error == 0, error
        error, = cu.cuMemcpyHtoD(pointer, host.ctypes.data, host.nbytes)
        assert error == 0, error
        self.__cuda_array_interface__ = {
            'shape': host.shape, 'strides': None, 'typestr': host.dtype.str, 'data': (int(pointer), False),
            'version': 3,
        }
"""
PRELUDE = BEGIN + NUMBA_FIRST + REST


class Ipc(OnGpu):
    def shares(self, code: str, prelude: str = PRELUDE, **variables: str) -> str:
        path = os.pathsep.join(filter(None, [HERE, os.environ.get("PYTHONPATH")]))
        return self.passes(code, prelude, PYTHONPATH=path, **variables)


class Arrays(Ipc):
    def test_arrays_of_80_bytes_1_mib_and_more_than_1_gib_go_both_ways(self) -> None:
        self.shares("""
with child() as ask:
    for count in (10, 1 << 17, 160 << 20):
        array = counting(count, 5)
        handle = array.get_ipc_handle()
        assert ask(is_range, handle, 5), count
        ask(overwrite, handle, 7)
        assert (array.copy_to_host() == np.arange(7, 7 + count)).all(), count
        del array, handle
    assert ask(manager) != 'NumbaMemoryManager', ask(manager)
eventually(lambda: live() == 0)
""")

    def test_slices_arrays_of_two_dimensions_and_foreign_ones_arrive(self) -> None:
        self.shares("""
flat = counting(1000)
table = cuda.to_device(np.arange(600, dtype=np.float32).reshape(20, 30))
fortran = cuda.to_device(np.asfortranarray(np.arange(600, dtype=np.float64).reshape(20, 30)))
arrays = [flat[3:], flat[3:8], flat[:8], flat[10:900][5:50], flat[::2], table, table[4:9], fortran]
arrays += [cuda.as_cuda_array(Foreign(array)) for array in list(arrays)]
with child() as ask:
    for array in arrays:
        arrived = ask(read, array.get_ipc_handle())
        expected = array.copy_to_host()
        assert arrived.dtype == expected.dtype and (arrived == expected).all(), array.shape
""")

    def test_errors_are_numbas(self) -> None:
        self.shares("""
array = counting(10)
handle = array.get_ipc_handle()
with child() as ask:
    opened, closed = 'IpcHandle is already opened', 'IpcHandle not opened'
    assert ask(errors, handle) == [closed, opened, closed], ask(errors, handle)
for own in (handle, pickle.loads(pickle.dumps(handle))):
    try:
        own.open()
    except ValueError as error:
        assert 'original process' in str(error) or 'exported it' in str(error), error
    else:
        raise AssertionError('opened')
for memory in (cuda.pinned_array(10), cuda.mapped_array(10), cuda.managed_array(10)):
    try:
        cuda.current_context().get_ipc_handle(memory.gpu_data if hasattr(memory, 'gpu_data') else memory.base)
    except (vpmm.Error, AttributeError, TypeError):
        pass
    else:
        raise AssertionError(type(memory))
""")

    def test_a_staged_copy_is_made_on_each_device(self) -> None:
        self.shares("""
array = counting(1 << 20)
handle = cuda.current_context().get_ipc_handle(array.gpu_data)
with child() as ask:
    for device in range(len(cuda.gpus)):
        assert ask(read_staged, handle, device) == array.copy_to_host().tobytes(), device
""")

    def test_several_processes_open_the_same_array_again_and_again(self) -> None:
        self.shares("""
array = counting(1 << 20)
handle = array.get_ipc_handle()
with Executor(4, mp_context=multiprocessing.get_context('spawn')) as executor:
    asked = [executor.submit(read_often, handle, 20) for _ in range(8)]
    assert all(one.result(100) for one in asked)
del handle, array
eventually(lambda: live() == 0)
""")


class Bytes(Ipc):
    CODE = """
array = counting(10)
context_handle = cuda.current_context().get_ipc_handle(array.gpu_data)
expected = array.copy_to_host().tobytes()
reserved, size = context_handle.handle.reserved, context_handle.size
assert len(reserved) == 64 and isinstance(reserved, bytes), reserved
with child() as ask:
    assert ask(FUNCTION, VALUE, size) == expected
    print(ask(manager))
"""

    def test_open_ipc_array_takes_the_64_bytes_that_were_pickled(self) -> None:
        self.shares(self.CODE.replace("FUNCTION", "read_bytes").replace("VALUE", "reserved"))

    def test_it_takes_plain_bytes_after_an_import(self) -> None:
        self.shares(self.CODE.replace("FUNCTION", "read_bytes_after_import").replace("VALUE", "bytes(reserved)"))

    def test_it_takes_plain_bytes_where_the_variable_is_inherited(self) -> None:
        code = self.CODE.replace("FUNCTION", "read_bytes").replace("VALUE", "bytes(reserved)")
        prelude = BEGIN + "from numba import cuda\nimport vpmm\n" + REST
        self.assertEqual(self.shares(code, prelude, NUMBA_CUDA_MEMORY_MANAGER="vpmm").split(), ["NumbaMemoryManager"])


class Lives(Ipc):
    def test_a_handle_outlives_the_array_and_its_memory_is_not_used_again(self) -> None:
        self.shares("""
array = counting(1 << 20, 3)
handle = array.get_ipc_handle()
address = array.device_ctypes_pointer.value
handle._ipc_handle.base = None  # as if the manager were reset: nothing but the lease holds it
del array
others = [counting(1 << 20, 1000 + i) for i in range(8)]
assert address not in [other.device_ctypes_pointer.value for other in others]
with child() as ask:
    assert ask(is_range, handle, 3)
del handle, others
eventually(lambda: live() == 0)
""")

    def test_what_a_process_has_open_stays_until_it_closes_or_dies(self) -> None:
        self.shares("""
for end in (let_go, die):
    array = counting(1 << 20, 3)
    handle = array.get_ipc_handle()
    with child() as ask:
        ask(hold, handle)
        del array, handle
        gc.collect()
        others = [counting(1 << 20, 1000 + i) for i in range(8)]
        assert (ask(read_held) == np.arange(3, 3 + (1 << 20))).all()
        del others
        gc.collect()
        assert live() == 1, live()
        try:
            ask(end)
        except Exception as error:
            assert end is die, error
        eventually(lambda: live() == 0)
""")

    def test_what_a_killed_process_was_writing_to_is_used_again_when_its_kernel_has_stopped(self) -> None:
        out = self.shares(
            """
import signal
size = 1 << 20
rounds = 0
end = time.monotonic() + int(os.environ['STRESS_SECONDS'])
while rounds < 5 or time.monotonic() < end:
    rounds += 1
    array = counting(size)
    handle = array.get_ipc_handle()
    with child() as ask:
        victim = ask(write_on_and_on, handle)
        address = array.device_ctypes_pointer.value
        del array, handle
        gc.collect()
        assert address not in [counting(size).device_ctypes_pointer.value for _ in range(8)]
        os.kill(victim, signal.SIGKILL)
        begin = time.monotonic()
        while live() != 0:
            assert time.monotonic() - begin < 30
        took = time.monotonic() - begin
        again = [counting(size, 7 + i) for i in range(16)]
        cuda.synchronize()
        assert address in [one.device_ctypes_pointer.value for one in again], 'it was not used again'
        for _ in range(20):
            time.sleep(0.02)
            for i, one in enumerate(again):
                assert (one.copy_to_host() == np.arange(7 + i, 7 + i + size)).all(), 'a dead kernel writes'
        print(f'free again {1000 * took:.0f} ms after the kill')
        del again, one
        gc.collect()
print(f"{rounds} rounds, {vpmm.stats()['allocations']} allocations")
""",
            STRESS_SECONDS=str(STRESS_SECONDS),
        )
        print(out, end="")

    def test_what_is_open_outlives_the_exporter(self) -> None:
        exporter = (
            PRELUDE
            + """
array = counting(1 << 20, 3)
handles = [array.get_ipc_handle(), counting(10).get_ipc_handle()]
print(pickle.dumps(handles).hex(), flush=True)
sys.stdin.read()
"""
        )
        self.shares(
            f"EXPORTER = {exporter!r}"
            + """
process = subprocess.Popen([sys.executable, '-c', EXPORTER], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
first, second = pickle.loads(bytes.fromhex(process.stdout.readline().decode()))
array = first.open()
assert array.copy_to_host()[0] == 3
process.kill()
process.wait()
process.stdin.close()
process.stdout.close()
assert (array.copy_to_host() == np.arange(3, 3 + (1 << 20))).all()
try:
    second.open()
except vpmm.Error as error:
    assert error.code == 'VPMM_ERROR_NOT_SHARED', error
else:
    raise AssertionError('opened')
del array
first.close()
"""
        )


class Others(Ipc):
    def test_plain_driver_memory_and_cupys_go_by_cudas_own_handles(self) -> None:
        out = self.shares("""
warnings.simplefilter('ignore')  # of what is imported
host = np.arange(1000, dtype=np.int64)
arrays = [Plain(host)]
try:
    import cupy
    arrays.append(cupy.asarray(host))
    arrays.append(cupy.asarray(np.arange(2000))[500:1500])
except ImportError:
    print('without CuPy')
with child() as ask:
    for array in arrays:
        array = cuda.as_cuda_array(array)
        for part in (array, array[10:20]):
            handle = part.get_ipc_handle()
            assert type(handle._ipc_handle) is cuda.cudadrv.driver.IpcHandle, type(handle._ipc_handle)
            assert (ask(read, handle) == part.copy_to_host()).all()
            ours = vpmm.ipc_export(part)
            assert ours.kind == 'legacy', ours
            assert (ask(read_ours, ours) == part.copy_to_host()).all()
""")
        print(out, end="")

    def test_the_package_shares_arrays_buffers_and_tensors(self) -> None:
        out = self.shares("""
warnings.simplefilter('ignore')  # of what is imported
from vpmm.cuda_core import MemoryResource
table = cuda.to_device(np.arange(600, dtype=np.float32).reshape(20, 30))
buffer = MemoryResource(0).allocate(600)
interface = {'shape': (600,), 'strides': None, 'typestr': '|u1', 'data': (int(buffer.handle), False), 'version': 3}
holder = type('Holder', (), {'__cuda_array_interface__': interface})()
cuda.as_cuda_array(holder).copy_to_device((np.arange(600) % 251).astype(np.uint8))
cuda.synchronize()
things = [(table, table.copy_to_host()), (buffer, (np.arange(600) % 251).astype(np.uint8))]
things.append((Foreign(table), table.copy_to_host()))
kinds = ['pool', 'pool', 'pool']
try:
    import torch
    tensor = torch.arange(600, device='cuda').reshape(20, 30)
    class Dlpack:
        def __init__(self, tensor):
            self.tensor = tensor
        def __dlpack__(self, **options):
            return self.tensor.__dlpack__(**options)
        def __dlpack_device__(self):
            return self.tensor.__dlpack_device__()
    torch.cuda.synchronize()
    for one in (tensor, tensor[5:7], tensor.t()):
        for thing in (one, Dlpack(one)):
            things.append((thing, one.cpu().numpy()))
            kinds.append('legacy')
    half = torch.arange(600, device='cuda').to(torch.bfloat16)
    torch.cuda.synchronize()
    things.append((Dlpack(half), half.cpu().view(torch.uint8).numpy()))
    kinds.append('legacy')
except ImportError:
    print('without PyTorch')
with child() as ask:
    for (thing, expected), kind in zip(things, kinds, strict=True):
        handle = vpmm.ipc_export(thing)
        assert handle.kind == kind, (type(thing), handle)
        for way in (read_ours, read_our_copy):
            arrived = ask(way, handle)
            assert arrived.shape == expected.shape, (type(thing), way, arrived.shape)
            assert (arrived == expected).all(), (type(thing), way)
buffer.close()
""")
        print(out, end="")


class Speed(Ipc):
    def test_how_long_a_child_takes_from_its_start_to_its_data(self) -> None:
        """Printed, and judged by whoever reads it."""
        code = """
times = []
for _ in range(3):
    array = counting(10)
    handle = array.get_ipc_handle()
    begin = time.time()
    with child() as ask:
        times.append(ask(seconds_to_read, handle, begin))
print('a child has its data after', ' '.join(f'{1000 * seconds:.0f}' for seconds in times), 'ms')
"""
        default = BEGIN + "from numba import cuda\n" + REST
        ours = BEGIN + "from numba import cuda\nimport vpmm\n" + REST
        runs = {
            "Numba's manager": (default, {}),
            "vpmm, the child without it": (PRELUDE, {}),
            "vpmm, the child too": (ours, {"NUMBA_CUDA_MEMORY_MANAGER": "vpmm"}),
        }
        for name, (prelude, variables) in runs.items():
            print(f"{name}: {self.shares(code, prelude, **variables).strip()}")


if __name__ == "__main__":
    unittest.main()
