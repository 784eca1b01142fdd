# SPDX-License-Identifier: Apache-2.0
# rmm_resource: RMM's class of memory resources over the process-wide pools; compiled with RMM's own declarations.
# distutils: language = c++
# cython: language_level = 3

from libcpp.optional cimport optional

from rmm.librmm.memory_resource cimport device_async_resource_ref
from rmm.pylibrmm.memory_resource cimport DeviceMemoryResource


cdef extern from "resource.hpp" namespace "vpmm::rmm_plugin":
    device_async_resource_ref of_device(int device) except +


cdef class MemoryResource(DeviceMemoryResource):
    """Memory of a device from its process-wide pool, which its first allocation opens, for all that takes a resource of
    RMM's. Stream-ordered; any thread may call it, and no call holds the interpreter's lock. Raises MemoryError.
    """

    draws_from_vpmm = True
    cdef readonly int device

    def __cinit__(self, int device=0):
        self.device = device
        self.c_ref = optional[device_async_resource_ref](of_device(device))

    def __repr__(self):
        return f"<vpmm.rmm.MemoryResource of device {self.device}>"
