// SPDX-License-Identifier: Apache-2.0
// sim_gpu: the words of the CUDA headers that a host compiler does not know; the wheels leave this
// header out.
#pragma once

#define CUDARTAPI
#define CUDARTAPI_CDECL
#define CUDA_CB
#define __host__
#define __device__
#define __device_builtin__
#define __device_builtin_texture_type__
#define __device_builtin_surface_type__
#define __cudart_builtin__
#define __align__(bytes) __attribute__((aligned(bytes)))
#define __builtin_align__(bytes) __align__(bytes)
#define __specialization_static static
